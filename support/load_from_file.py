"""Load `path.py:name`: user-defined samplers, models and workloads that are not installed as a package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
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
"""Modules that loaded files import -> digest of the source that was executed."""


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

    The file is executed again in each call.  It may import the modules and packages beside it; these, and other modules outside of
    installed packages that it imports, are executed once, and again after an edit.  Pass only names that the user gave on the command
    line or in a call, never text from a log, a dataset or a saved model.

    Raises:
        UserError: the file does not exist, fails, or does not define the name, or a module beside it has the name of a different
            module that is already loaded, or a compiled module that is already loaded has changed.
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
    used = [path for path in source_closure([file]).files if path != file]
    beside = [path for path in used if path.is_relative_to(folder)]
    loaded = _names_of_loaded(used)
    _refuse_other_modules(spec, beside, file.parent)
    edited = [path for path in used if (digest := _digest(path)) != _loaded.setdefault(path, digest)]
    for path in edited:
        if path in loaded and path.suffix != ".py":
            raise UserError(
                f"{spec!r} imports {path}, which has changed since it was loaded. Python cannot load it again: start a new process"
            )
    for path in used if edited else []:  # all of them: the others may hold values of the edited one
        _loaded[path] = _digest(path)
        for name in loaded.get(path, []) if path.suffix == ".py" else []:
            del sys.modules[name]
    before, written = list(sys.path), sys.dont_write_bytecode
    importlib.invalidate_caches()
    sys.path[:] = given = search_path(folder)
    sys.dont_write_bytecode = True  # .pyc files have timestamps in seconds: an edit within one second would be missed
    done = False
    try:
        yield
        done = True
        for added in [Path(p).resolve() for p in sys.path if p not in given]:
            found = [path for path in source_closure([file]).files if path != file and path.is_relative_to(added)]
            _refuse_other_modules(spec, found, added)
    finally:
        sys.dont_write_bytecode = written
        sys.path[:] = [*before, *([folder] if done and beside and folder not in before else [])]
        for path in source_closure([file]).files:  # some are found only now, because the file changes `sys.path`
            _loaded.setdefault(path, _digest(path))


def _refuse_other_modules(spec: str, files: Sequence[Path], root: Path) -> None:
    """Raise UserError if one of the files is not loaded, but another module of its name, which an import statement would give."""
    loaded = _names_of_loaded(files)
    for path in files:
        name = _module_name(path, root)
        known = None if path in loaded else sys.modules.get(name)
        if known is not None:
            raise UserError(
                f"{spec!r} imports {name}, which is {path}; but a module of that name is loaded already, from "
                f"{getattr(known, '__file__', None) or 'Python itself'}. Give one of them another name"
            )


def _digest(path: Path) -> bytes:
    return blake2b(path.read_bytes(), digest_size=16).digest()


def _names_of_loaded(files: Sequence[Path]) -> dict[Path, list[str]]:
    """The names in `sys.modules` of those of the files that are loaded."""
    names, out = {path.name for path in files}, dict[Path, list[str]]()
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if isinstance(place, str) and os.path.basename(place) in names and (path := Path(place).resolve()) in files:
            out.setdefault(path, []).append(name)
    return out


def _module_name(path: Path, root: Path) -> str:
    *packages, last = path.relative_to(root).parts
    name = last.partition(".")[0]  # that of a compiled module may end in `.cpython-312-x86_64-linux-gnu.so`
    return ".".join(packages if name == "__init__" else [*packages, name])
