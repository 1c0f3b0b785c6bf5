"""tunesmith: a search-first autoscheduler and research toolkit for tensor programs."""

from pathlib import Path as _Path

__version__ = "0.1.0"

# In a source checkout the sub-packages are the folders at the repository root
# (ir/, search/, ...); in an installed wheel they sit next to this file.
_here = _Path(__file__).resolve().parent
_root = _here.parents[1]
if _here.parent.name == "src" and not (_here / "ir").exists() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))
del _Path, _here, _root
