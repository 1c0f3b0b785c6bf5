"""Is everything right on this GPU, and how fast: `python experiments/gpu_check/run.py [--kind cuda] [--seconds 460] [--only peers]`.

Prints lines as it goes and its table last; writes results.json, records.jsonl, output.txt and table.md.  What is missing is said before
anything runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

SECTIONS = ("machine", "calibration", "conformance", "tuning", "peers")
NEEDED = {
    "numpy": "numpy",
    "llvmlite": "llvmlite",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "xgboost": "xgboost",
    "tvm_ffi": "apache-tvm-ffi",
    "rich": "rich",
    "click": "click",
    "filelock": "filelock",
}
"""Modules and the packages that bring them."""
OF_KIND = {"cuda": {"cuda.bindings": "cuda-bindings", "torch": "torch"}, "opencl": {"pyopencl": "pyopencl"}}
OF_TESTS = {"pytest": "pytest", "hypothesis": "hypothesis"}


def main() -> int:
    """Parse, look for packages, and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--kind", choices=sorted(OF_KIND), default="cuda", help="opencl takes small sizes, for trying without an NVIDIA GPU"
    )
    parser.add_argument("--seconds", type=float, default=460.0, help="for everything")
    parser.add_argument("--trials", type=int, default=128, help="for each workload")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), help="folder for results; records of the run before are kept")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections; peers without tuning takes the records of the run before")
    parser.add_argument("--workloads", nargs="+", metavar="TEXT", help="in place of the usual ones")
    given = parser.parse_args()
    given.only = [name.strip() for name in given.only.split(",") if name.strip()]
    unknown = sorted(set(given.only) - set(SECTIONS))
    if unknown or given.seconds <= 0 or given.trials < 1:
        parser.error(
            f"sections are {','.join(SECTIONS)}; seconds and trials are positive" + (f"; not {','.join(unknown)}" if unknown else "")
        )
    missing = missing_packages(given.kind, given.only)
    if missing:
        print(
            f"{sys.executable} lacks what this needs: {' '.join(missing)}\n"
            f"Install it:  {sys.executable} -m pip install {' '.join(missing)}\n"
            "(or put folders that hold it on PYTHONPATH, or let `make gpu-check` without GPU_PYTHON set up an environment)",
            file=sys.stderr,
        )
        return 2
    from tunesmith.support.registry import resolve

    return resolve("tunesmith.experiments.gpu_check.check:main")(given)


def missing_packages(kind: str, sections: list[str]) -> list[str]:
    """Packages that sections need and that are not installed; looked up, not imported."""
    needed = {**NEEDED, **OF_KIND[kind], **(OF_TESTS if "conformance" in sections else {})}
    if not {"peers", "calibration"} & set(sections):
        needed.pop("torch", None)
    missing = [package for module, package in needed.items() if not _there(module)]
    return missing if _there("tunesmith") else ["tunesmith", *missing]


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


if __name__ == "__main__":
    sys.exit(main())
