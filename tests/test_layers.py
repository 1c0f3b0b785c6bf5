"""The house in one test: imports run down only, are absolute, and third parties stay in their rooms."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]

FACADE = "src/tunesmith"
RANKS = {
    "support": 0,
    "ir": 1,
    "runtime": 1,
    "ops": 2,
    "schedule": 2,
    "lower": 3,
    "codegen": 4,
    "measure": 5,
    "graph": 6,
    "datasets": 6,
    "costmodel": 7,
    "search": 8,
    FACADE: 9,
    "experiments": 10,
}
"""A folder imports itself and folders of lower rank, not others of its own rank."""

ROOMS: dict[str, tuple[str, ...]] = {
    "numpy": ("*",),
    "filelock": ("support/json_lines.py",),
    "llvmlite": ("codegen/llvm*", "runtime/object_loader.py"),
    "tvm_ffi": ("runtime/*", "codegen/*"),
    "pandas": ("measure/*", "datasets/*", "costmodel/*", "search/*", f"{FACADE}/*", "experiments/*"),
    "pyarrow": ("measure/*", "datasets/*", "costmodel/*", "experiments/*"),
    "xgboost": ("costmodel/xgb_*",),
    "torch": ("*torch*",),
    "onnx": ("*onnx*",),
    "onnxruntime": ("*onnxruntime*",),
    "jax": ("*jax*",),
    "tvm": ("*tvm*",),
    "optuna": ("*optuna*",),
    "ray": ("*/ray_*",),
    "safetensors": ("*torch*",),
    "tensorboardX": ("*tensorboard*",),
    "cuda": ("runtime/cuda*", "codegen/cuda*"),
    "pycuda": ("runtime/cuda*", "codegen/cuda*"),
    "pyopencl": ("*opencl*",),
    "matplotlib": ("*plot*",),
    "click": (f"{FACADE}/*",),
    "rich": (f"{FACADE}/*",),
    "pytest": (f"{FACADE}/testing/*",),
    "hypothesis": (f"{FACADE}/testing/*",),
}
"""Third-party package -> patterns of the files that may import it.  `*` crosses folders."""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, in functions and under TYPE_CHECKING too.  A relative one starts with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def folder_of(path: PurePosixPath) -> str:
    """`ir/arith/interval.py` -> `ir`; the facade is two folders deep."""
    return FACADE if path.is_relative_to(FACADE) else path.parts[0]


def violations(path: PurePosixPath, source: str) -> list[str]:
    """What is wrong with the imports of the file that stands at `path`, relative to the repository root."""
    folder = folder_of(path)
    found = []
    for line, name in imports(ast.parse(source)):
        fault = _fault(path, folder, name)
        if fault:
            found.append(f"{path}:{line}: import of {name}: {fault}")
    return found


def _fault(path: PurePosixPath, folder: str, name: str) -> str:
    top, _, rest = name.partition(".")
    if not top:
        return "relative; spell it tunesmith.<folder>..."
    if top == "tunesmith":
        target = rest.split(".")[0]
        target = target if target in RANKS else FACADE
        if folder == "tests" or target == folder or RANKS[target] < RANKS[folder]:
            return ""
        return f"{folder} (rank {RANKS[folder]}) may not import {target} (rank {RANKS[target]})"
    if top in RANKS or top in ("src", "tests"):
        return f"a folder of this repository; spell it tunesmith.{top}"
    if top in sys.stdlib_module_names or top == "__future__" or folder == "tests":
        return ""
    if top not in ROOMS:
        return "no known package; give it a room in tests/test_layers.py and a line in pyproject.toml"
    if any(fnmatch(str(path), pattern) for pattern in ROOMS[top]):
        return ""
    return f"allowed only in {', '.join(ROOMS[top])}"


def python_files() -> Iterator[PurePosixPath]:
    for folder in (*RANKS, "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield PurePosixPath(path.relative_to(ROOT).as_posix())


def test_every_import_of_the_tree_is_allowed() -> None:
    files = list(python_files())
    assert len(files) > 10
    found = [fault for path in files for fault in violations(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("ir/expr.py", "from tunesmith.schedule.trace import Trace", "ir (rank 1) may not import schedule (rank 2)"),
        ("ir/expr.py", "def f():\n    import tunesmith.search.tuner", "ir (rank 1) may not import search (rank 8)"),
        ("ir/expr.py", "from tunesmith import runtime", "ir (rank 1) may not import runtime (rank 1)"),
        (
            "runtime/device.py",
            "if TYPE_CHECKING:\n    from tunesmith.ir.target import Target",
            "runtime (rank 1) may not import ir (rank 1)",
        ),
        ("graph/passes/fuse.py", "from tunesmith.datasets.networks import x", "graph (rank 6) may not import datasets (rank 6)"),
        ("search/tuner.py", "import tunesmith", "search (rank 8) may not import src/tunesmith (rank 9)"),
        ("search/tuner.py", "from tunesmith import tune", "search (rank 8) may not import src/tunesmith (rank 9)"),
        ("src/tunesmith/tune.py", "import tunesmith.experiments.noise", "may not import experiments (rank 10)"),
        ("ir/expr.py", "from .node import node", "relative; spell it tunesmith.<folder>..."),
        ("tests/ir/test_expr.py", "from . import shared", "relative; spell it tunesmith.<folder>..."),
        ("lower/passes.py", "import ir.expr", "a folder of this repository; spell it tunesmith.ir"),
        ("tests/ir/test_expr.py", "from datasets import networks", "a folder of this repository; spell it tunesmith.datasets"),
        ("measure/local_builder.py", "import llvmlite.binding", "allowed only in codegen/llvm*, runtime/object_loader.py"),
        ("costmodel/model.py", "def f():\n    import xgboost", "allowed only in costmodel/xgb_*"),
        ("search/arena.py", "import ray", "allowed only in */ray_*"),
        ("search/array_ray.py", "import ray", "allowed only in */ray_*"),
        ("support/seeds.py", "import pandas as pd", "allowed only in measure/*"),
        ("ir/expr.py", "import scipy.special", "no known package"),
    ],
)
def test_a_forbidden_import_is_named(path: str, source: str, fault: str) -> None:
    found = violations(PurePosixPath(path), source)
    assert len(found) == 1 and fault in found[0], found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("schedule/primitives/split.py", "from tunesmith.ir.expr import Var\nfrom tunesmith.schedule.state import S\nimport numpy as np"),
        ("codegen/llvm_compile.py", "import llvmlite.binding as llvm\nfrom tunesmith.runtime.threads import x"),
        ("search/ray_samplers.py", "def f():\n    import ray\n    from tunesmith import measure"),
        ("graph/import_torch.py", "from __future__ import annotations\nimport torch.nn, json"),
        ("src/tunesmith/cli.py", "import click\nfrom rich.table import Table\nimport tunesmith.search.tuner"),
        ("experiments/noise/run.py", "import tunesmith\nimport pandas"),
        ("tests/test_x.py", "import tunesmith, pytest, llvmlite, scipy"),
    ],
)
def test_allowed_imports_pass(path: str, source: str) -> None:
    assert violations(PurePosixPath(path), source) == []


def test_the_rank_table_names_the_folders_of_the_tree() -> None:
    """A new top folder with code needs a rank."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders <= set(RANKS), folders - set(RANKS)
