"""Find the source files of a Python file: itself and the modules it imports, outside of installed packages.

Cached results (replays of a method) are keyed by the digest of these files, so that an edited helper module counts as another method.
Import statements anywhere in a file are parsed, not executed.  A module that is on none of the known paths, because a file changes
`sys.path`, is found if it is loaded.  Modules imported by computed names are not found.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

OWN = "tunesmith"


@dataclass(frozen=True, slots=True)
class SourceClosure:
    """Source files and packages of a Python file.

    Attributes:
        files: the file and the modules outside of installed packages that it reaches, sorted; absolute paths.
        names: for each of `files`, its path relative to the folder of the file that reaches it, after the number of that file.
        packages: top-level names of the installed packages that these import, sorted; includes `tunesmith`, wherever it is installed.
    """

    files: tuple[Path, ...]
    names: tuple[str, ...]
    packages: tuple[str, ...]

    def digest(self) -> str:
        """Digest of the file contents, the package versions, and the sources of tunesmith if it is imported.

        It does not depend on the place of the folder that contains the files.
        """
        h = blake2b(digest_size=16)
        facts = sorted((name.encode(), path.read_bytes()) for name, path in zip(self.names, self.files, strict=True))
        facts += [(p.encode(), _own_digest() if p == OWN else _version(p).encode()) for p in self.packages]
        facts.append((b"python", sys.version.encode()))
        for name, text in facts:
            h.update(len(name).to_bytes(8, "little") + name + len(text).to_bytes(8, "little") + text)
        return h.hexdigest()


def source_closure(files: Iterable[Path]) -> SourceClosure:
    """The source closure of these files.  A file that is not Python, such as a compiled module, has no imports.

    Raises:
        OSError: a file cannot be read.
    """
    todo = [(path.resolve(), path.resolve().parent, n) for n, path in enumerate(files)][::-1]
    found: dict[Path, str] = {}
    packages: set[str] = set()
    while todo:
        path, folder, n = todo.pop()
        if path in found:
            continue
        found[path] = f"{n}:{Path(os.path.relpath(path, folder)).as_posix()}"
        for module in imports(path) if path.suffix == ".py" else []:
            top = module.name.partition(".")[0]
            if module.folder is None and (top == OWN or top in sys.stdlib_module_names):
                packages |= {OWN} & {top}
                continue
            places = _modules(module, str(folder))
            if installed := {name for p in places if (name := _installed_package(p))}:
                packages |= installed
            else:
                todo += [(p, folder, n) for p in places]
    order = sorted(found)
    return SourceClosure(tuple(order), tuple([found[path] for path in order]), tuple(sorted(packages)))


def search_path(folder: str) -> list[str]:
    """`sys.path` for a file of this folder: the folder comes before installed packages and after the standard library."""
    first = next((i for i, p in enumerate(sys.path) if p and Path(p).resolve() in _site_folders()), len(sys.path))
    return [*sys.path[:first], folder, *sys.path[first:]]


@dataclass(frozen=True, slots=True)
class ImportedName:
    """A dotted name that an import statement may import.

    Attributes:
        name: the name, without the dots of a relative import.
        folder: the folder in which a relative import looks for it; None for an absolute import.
    """

    name: str
    folder: Path | None = None


def imports(path: Path) -> list[ImportedName]:
    """Names that a file's import statements may import; `a` and `a.b` for `from a import b`, because b may be a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return []
    out: dict[ImportedName, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= dict.fromkeys(ImportedName(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The folder of the file is that of its package, with or without an `__init__.py`.
            folder = path.parents[min(node.level, len(path.parents)) - 1] if node.level else None
            base = [node.module] if node.module else []
            out |= dict.fromkeys(ImportedName(".".join(name), folder) for name in (base, *[[*base, a.name] for a in node.names]) if name)
    return list(out)


def _modules(module: ImportedName, folder: str) -> list[Path]:
    """The files of a module and of its enclosing packages, resolved as for a file of this folder."""
    where = search_path(folder) if module.folder is None else [str(module.folder)]
    out = [] if module.folder is None else _enclosing_packages(module.folder)
    dotted = ""
    for part in module.name.split("."):
        dotted = f"{dotted}.{part}" if dotted else part
        spec = PathFinder.find_spec(dotted, where)
        if spec is None and module.folder is None:
            spec = getattr(sys.modules.get(dotted), "__spec__", None)
        if spec is None:
            break
        if spec.has_location and spec.origin is not None and Path(spec.origin).is_file():
            out.append(Path(spec.origin).resolve())
        if spec.submodule_search_locations is None:
            break
        where = list(spec.submodule_search_locations)
    return out


def _enclosing_packages(folder: Path) -> list[Path]:
    """The `__init__.py` of this folder and of those above it, as far as each folder has one."""
    out: list[Path] = []
    while (init := folder / "__init__.py").is_file():
        out.append(init)
        folder = folder.parent
    return out


def is_installed(path: Path) -> bool:
    """Whether a module belongs to an installed package, which is identified by its version."""
    return _installed_package(path) is not None


def _installed_package(path: Path) -> str | None:
    """The top-level name of the installed package of a module; None if it is not installed."""
    folder = next((folder for folder in _site_folders() if path.is_relative_to(folder)), None)
    return None if folder is None else path.relative_to(folder).parts[0].partition(".")[0]


@cache
def _site_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    named = {Path(paths[k]).resolve() for k in ("purelib", "platlib")}
    return tuple(named | {Path(p).resolve() for p in sys.path if Path(p).name in ("site-packages", "dist-packages")})


@cache
def _distributions() -> dict[str, list[str]]:
    return {name: sorted(set(found)) for name, found in metadata.packages_distributions().items()}


def _version(package: str) -> str:
    return " ".join(f"{d} {metadata.version(d)}" for d in _distributions().get(package, [])) or f"{package} of no version"


@cache
def _own_digest() -> bytes:
    """Digest of all tunesmith sources, because the version number does not change between releases."""
    h = blake2b(digest_size=16)
    for folder in map(Path, sys.modules[OWN].__path__):
        packages = [p.parent for p in folder.glob("*/__init__.py") if p.parent.name not in ("tests", "experiments")]
        own = folder.glob("*.py") if (folder / "__init__.py").is_file() else iter(())
        for path in sorted([*own, *[p for package in packages for p in package.rglob("*.py")]]):
            h.update(str(path.relative_to(folder)).encode() + b"\0" + blake2b(path.read_bytes(), digest_size=16).digest())
    return h.digest()
