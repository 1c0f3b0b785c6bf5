"""Run ONNX's backend node tests: `python experiments/onnx_backend/run.py [--out FOLDER] [--match TEXT] [--execute M:F]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tunesmith.support.registry import resolve
from tunesmith.testing.onnx_backend_table import run_all, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/onnx_backend"), help="folder for results.json and table.md")
    parser.add_argument("--match", default="", help="only tests whose name contains this text")
    parser.add_argument(
        "--execute", default="tunesmith.testing.onnx_backend:compiled", help="module:function that computes a module's results"
    )
    options = parser.parse_args()
    execute: Any = resolve(options.execute)
    print(write(run_all(execute, options.match), options.out))
    print(f"see {options.out}/table.md")


if __name__ == "__main__":
    main()
