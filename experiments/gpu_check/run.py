"""Check correctness and speed on this GPU: `python experiments/gpu_check/run.py [--kind cuda] [--seconds 460] [--only peers]`.

Prints progress, and the table at the end; writes results.json, records.jsonl, output.txt and table.md.  Missing packages are reported
before anything runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

SECTIONS = ("machine", "calibration", "conformance", "models", "tuning", "peers")
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
"""Modules, and the packages that contain them."""
OF_KIND = {"cuda": {"cuda.bindings": "cuda-bindings", "torch": "torch"}, "opencl": {"pyopencl": "pyopencl"}}
OF_TESTS = {"pytest": "pytest", "hypothesis": "hypothesis"}


def main() -> int:
    """Parse the arguments, check for missing packages, and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--kind", choices=sorted(OF_KIND), default="cuda", help="opencl uses small sizes, to try the check without an NVIDIA GPU"
    )
    parser.add_argument("--seconds", type=float, default=460.0, help="time limit of the run")
    parser.add_argument("--trials", type=int, default=128, help="trials per workload")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), help="folder for results; records of the previous run are kept")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections; peers without tuning uses the records of the previous run")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="models instead of the default ones, of tunesmith.testing.torch_models")
    parser.add_argument("--model-seconds", type=float, default=0.0, help="tune each model for this time; 0 compiles without records only")
    parser.add_argument("--workloads", nargs="+", metavar="TEXT", help="workloads instead of the default ones")
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
            f"{sys.executable} lacks required packages: {' '.join(missing)}\n"
            f"Install them:  {sys.executable} -m pip install {' '.join(missing)}\n"
            "(or add their folders to PYTHONPATH, or use `make gpu-check` without GPU_PYTHON to create an environment)",
            file=sys.stderr,
        )
        return 2
    from tunesmith.support.registry import resolve

    return resolve("tunesmith.experiments.gpu_check.check:main")(given)


def missing_packages(kind: str, sections: list[str]) -> list[str]:
    """Packages that the sections need and that are not installed; modules are looked up, not imported."""
    needed = {**NEEDED, **OF_KIND[kind], **(OF_TESTS if "conformance" in sections else {})}
    if "models" in sections:
        needed["torch"] = "torch"
    elif not {"peers", "calibration"} & set(sections):
        needed.pop("torch", None)
    missing = [package for module, package in needed.items() if not _is_installed(module)]
    return missing if _is_installed("tunesmith") else ["tunesmith", *missing]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


if __name__ == "__main__":
    sys.exit(main())
