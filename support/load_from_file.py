"""Load `path.py:name`: user-defined samplers, models and workloads that are not installed as a package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean
from tunesmith.support.registry import Registry
from tunesmith.support.source_closure import search_path, source_closure

T = TypeVar("T")

_loaded: dict[Path, bytes] = {}
"""Modules beside loaded files -> digest of the source that was executed."""


def names_a_file(spec: str) -> bool:
    """Whether the text has the form `path.py:name`, and hence is not a registered name."""
    return ".py:" in spec


def find_named(registry: Registry[T], spec: str) -> object:
    """The object that a text names: a registered name, or `path.py:name`, see `load_from_file`.

    Raises:
        UserError: there is no such name, file or object; or the text names a file without an object in it.
    """
    if names_a_file(spec):
        return load_from_file(spec)
    if spec.endswith(".py") and spec not in registry:
        defined = _definitions(Path(spec))
        known = f"{spec}:{defined[0]}" if len(defined) == 1 else f"{spec}:NAME" + (f", one of {', '.join(defined)}" if defined else "")
        raise UserError(f"{spec!r} is a file and no {registry.kind}: name the object in it: {known}")
    return registry.get(spec)


def _definitions(file: Path) -> list[str]:
    """The public classes and functions of a Python file, which is not executed; empty if it cannot be read."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    return [n.name for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and not n.name.startswith("_")]


def load_from_file(spec: str) -> object:
    """The object named by `path.py:name`; the file is executed as if it were imported.

    The file is executed again in each call.  It may import the modules and packages beside it; these are executed once, and again
    after an edit.  Pass only names that the user gave on the command line or in a call, never text from a log, a dataset or a saved
    model.

    Raises:
        UserError: the file does not exist, fails, or does not define the name, or a module beside it has the name of a different
            module that is already loaded.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not file.is_file():
        where = "" if file.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{spec!r}: there is no file {path}{where}. Spell it path.py:name")
    # A unique name per file: two files `mine.py` in different folders are different modules.
    module_name = f"{file.stem}_{blake2b(str(file.resolve()).encode(), digest_size=4).hexdigest()}"
    module_spec = importlib.util.spec_from_file_location(module_name, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    with _modules_beside(spec, file.resolve()):
        sys.modules[module_name] = module  # dataclasses look up their module
        try:
            module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise UserError(f"{spec!r}: running {path} failed with {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(f"{spec!r}: {path} holds no {name!r}.{did_you_mean(name, vars(module))}")
    return getattr(module, name)


@contextmanager
def _modules_beside(spec: str, file: Path) -> Iterator[None]:
    """Put the file's folder on the path: before installed packages while the file runs, last afterwards, for imports inside functions."""
    folder = str(file.parent)
    beside = [path for path in source_closure([file]).files if path != file and path.is_relative_to(folder)]
    edited = False
    for path in beside:
        digest = blake2b(path.read_bytes(), digest_size=16).digest()
        edited |= _loaded.get(path, digest) != digest
        _loaded[path] = digest
    for path in beside:
        name = _module_name(path, file.parent)
        known = sys.modules.get(name)
        if known is not None and Path(getattr(known, "__file__", None) or "").resolve() != path:
            raise UserError(
                f"{spec!r} imports {name}, which is {path}; but a module of that name is loaded already, from "
                f"{getattr(known, '__file__', None) or 'Python itself'}. Give one of them another name"
            )
        if known is not None and edited:  # all of them: the others may hold values of the edited one
            del sys.modules[name]
    before, written = list(sys.path), sys.dont_write_bytecode
    importlib.invalidate_caches()
    sys.path[:] = search_path(folder)
    sys.dont_write_bytecode = True  # .pyc files have timestamps in seconds: an edit within one second would be missed
    done = False
    try:
        yield
        done = True
    finally:
        sys.dont_write_bytecode = written
        sys.path[:] = [*before, *([folder] if done and beside and folder not in before else [])]


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
