"""Find the source files of a Python file: itself and the modules it imports, outside of installed packages.

Cached results (replays of a method) are keyed by the digest of these files, so that an edited helper module counts as another method.
Import statements anywhere in a file are parsed, not executed; modules imported by computed names are not found.
"""

from __future__ import annotations

import ast
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
        packages: top-level names of the installed packages that these import, sorted; includes `tunesmith`, wherever it is installed.
    """

    files: tuple[Path, ...]
    packages: tuple[str, ...]

    def digest(self) -> str:
        """Digest of the file contents, the package versions, and the sources of tunesmith if it is imported.

        It does not depend on the folders of the files.
        """
        h = blake2b(digest_size=16)
        contents = sorted((path.name, path.read_bytes()) for path in self.files)
        facts = [(name.encode(), text) for name, text in contents]
        facts += [(p.encode(), _own_digest() if p == OWN else _version(p).encode()) for p in self.packages]
        facts.append((b"python", sys.version.encode()))
        for name, text in facts:
            h.update(len(name).to_bytes(8, "little") + name + len(text).to_bytes(8, "little") + text)
        return h.hexdigest()


def source_closure(files: Iterable[Path]) -> SourceClosure:
    """The source closure of these files.  A file that is not Python has no imports.

    Raises:
        OSError: a file cannot be read.
    """
    todo = [(path.resolve(), str(path.resolve().parent)) for path in files]
    found: set[Path] = set()
    packages: set[str] = set()
    while todo:
        path, folder = todo.pop()
        if path in found:
            continue
        found.add(path)
        for name in imported_names(path) if path.suffix == ".py" else []:
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names:
                continue
            places = [] if top == OWN else _modules(name, folder)
            if top == OWN or any(is_installed(p) for p in places):
                packages.add(top)
            else:
                todo += [(p, folder) for p in places]
    return SourceClosure(tuple(sorted(found)), tuple(sorted(packages)))


def search_path(folder: str) -> list[str]:
    """`sys.path` for a file of this folder: the folder comes before installed packages and after the standard library."""
    first = next((i for i, p in enumerate(sys.path) if p and Path(p).resolve() in _site_folders()), len(sys.path))
    return [*sys.path[:first], folder, *sys.path[first:]]


def imported_names(path: Path) -> list[str]:
    """Dotted names that a file's import statements may import; `a` and `a.b` for `from a import b`, because b may be a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return []
    out: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*_package_of(path, node.level), *filter(None, [node.module])])
            out |= dict.fromkeys([base, *[f"{base}.{alias.name}" for alias in node.names]])
    return [name for name in out if name]


def _package_of(path: Path, level: int) -> list[str]:
    """The package path that a relative import with `level` dots is resolved against."""
    folder, names = path.parent, list[str]()
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return names[: len(names) - level + 1] if level else []


def _modules(name: str, folder: str) -> list[Path]:
    """The files of a module and of its enclosing packages, resolved as for a file of this folder."""
    where = search_path(folder)
    out: list[Path] = []
    dotted = ""
    for part in name.split("."):
        dotted = f"{dotted}.{part}" if dotted else part
        spec = PathFinder.find_spec(dotted, where)
        if spec is None:
            break
        if spec.has_location and spec.origin is not None and (spec.origin.endswith(".py") or is_installed(Path(spec.origin))):
            out.append(Path(spec.origin).resolve())
        if spec.submodule_search_locations is None:
            break
        where = list(spec.submodule_search_locations)
    return out


def is_installed(path: Path) -> bool:
    """Whether a module belongs to an installed package, which is identified by its version."""
    return any(path.is_relative_to(folder) for folder in _site_folders())


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
