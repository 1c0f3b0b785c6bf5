"""Make build/typecheck/tunesmith, a farm of links in the shape of the installed package, which mypy and pyright can read.

In a checkout the sub-packages are found through `__path__`, which no type checker follows.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def make_typecheck_farm(root: Path) -> Path:
    """Build the farm of the checkout at `root` anew and return the folder to put on the checker's path."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    sources: dict[str, str] = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    farm = root / "build" / "typecheck"
    if farm.exists():
        shutil.rmtree(farm)  # removes links, not what they point to
    (farm / "tunesmith").mkdir(parents=True)
    for source, name in sources.items():
        if name == "tunesmith":
            for entry in (root / source).iterdir():
                (farm / "tunesmith" / entry.name).symlink_to(entry)
        elif (root / source).is_dir():
            (farm / name).symlink_to(root / source)
    return farm


if __name__ == "__main__":
    make_typecheck_farm(ROOT)
