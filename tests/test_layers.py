"""The layout: imports run down only, are absolute and make no circles, and third parties are imported at the boundary."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
LAYOUT: dict[str, dict[str, Any]] = SETTINGS["tunesmith"]["layout"]
"""Package -> its layer, what it holds, and its parts from bottom to top.  The longest path that contains a file is its package."""
FACADE = "src/tunesmith"
TOPS = [p for p in LAYOUT if "/" not in p]
FLAT_FILES = 20
CROWDED = {
    "graph/importers/onnx": "one group of operators a file",
    "graph/operators": "one group of operators a file",
    "graph/passes": "one pass a file",
    "lower/passes": "one pass a file",
    "ops": "one formula a file",
    "runtime": "one part of a loaded module a file: code, functions, models, memory, clocks",
    "schedule/primitives": "one primitive a file",
    "search/space/rules": "one rule a file",
    "src/tunesmith/testing": "one contract a file, which extensions import by its name",
    "src/tunesmith/testing/program_fuzz": "one part of a program, or of a comparison, a file",
    "support": "one helper shared by several packages a file",
}
"""Folder -> why it may hold more than FLAT_FILES modules."""

BOUNDARY: dict[str, tuple[str, ...]] = {
    "numpy": ("*",),
    "ml_dtypes": ("runtime/arrays.py",),
    "filelock": ("support/json_lines.py",),
    "llvmlite": ("codegen/llvm/*", "codegen/vector_vm/*", "codegen/cuda/*", "runtime/object_loader.py", "runtime/generic_code.py"),
    "tvm_ffi": ("runtime/*", "codegen/*"),
    "pandas": ("measure/*", "datasets/*", "costmodel/*", "search/*", f"{FACADE}/*", "experiments/*"),
    "pyarrow": ("measure/*", "datasets/*", "costmodel/*", "experiments/*"),
    "xgboost": ("costmodel/models/xgb_*",),
    "torch": ("*torch*",),
    "onnx": ("*onnx*",),
    "onnxruntime": ("*onnxruntime*",),
    "openvino": ("*openvino*",),
    "ncnn": ("*ncnn*",),
    "pnnx": ("*ncnn*",),
    "jax": ("*jax*",),
    "jaxonnxruntime": ("*jax*",),
    "tvm": ("*tvm*",),
    "optuna": ("*optuna*",),
    "ray": ("*/ray_*",),
    "safetensors": ("*torch*",),
    "tensorboardX": ("*tensorboard*",),
    "cuda": ("runtime/device/cuda*", "codegen/cuda/*"),
    "pycuda": ("runtime/device/cuda*", "codegen/cuda/*"),
    "pyopencl": ("*opencl*",),
    "scipy": ("experiments/*/statistics.py", f"{FACADE}/driver/bench/ratio.py"),
    "matplotlib": ("*plots*",),
    "jinja2": ("experiments/study/report.py",),
    "click": (f"{FACADE}/cli/*",),
    "rich": (f"{FACADE}/*", "experiments/*"),
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


def package_of(path: PurePosixPath) -> str:
    """`ir/arith/interval.py` -> `ir`; `src/tunesmith/cli/main.py` -> `src/tunesmith/cli`."""
    if path.parts[0] == "tests":
        return "tests"
    return max((p for p in LAYOUT if path.is_relative_to(p)), key=len)


def module_path(name: str) -> PurePosixPath:
    """`tunesmith.ir.expr.Expr` -> `ir/expr/Expr`, `tunesmith.driver.tune` -> `src/tunesmith/driver/tune`."""
    rest = name.split(".")[1:]
    return PurePosixPath(*([] if rest and rest[0] in TOPS else [FACADE]), *rest)


def violations(path: PurePosixPath, source: str) -> list[str]:
    """The forbidden imports of a file at `path`, relative to the repository root."""
    found = []
    for line, name in imports(ast.parse(source)):
        fault = _fault(path, name)
        if fault:
            found.append(f"{path}:{line}: import of {name}: {fault}")
    return found


def _fault(path: PurePosixPath, name: str) -> str:
    top = name.partition(".")[0]
    package = package_of(path)
    if not top:
        return "relative; spell it tunesmith.<package>..."
    if top == "tunesmith":
        return "" if package == "tests" else _upward(path, package, module_path(name))
    if top in TOPS or top in ("src", "tests"):
        return f"a folder of this repository; spell it tunesmith.{top}"
    if top in sys.stdlib_module_names or top == "__future__" or package == "tests":
        return ""
    if top not in BOUNDARY:
        return "no known package; give it a line in tests/test_layers.py and one in pyproject.toml"
    if any(fnmatch(str(path), pattern) for pattern in BOUNDARY[top]):
        return ""
    return f"allowed only in {', '.join(BOUNDARY[top])}"


def _upward(path: PurePosixPath, package: str, imported: PurePosixPath) -> str:
    target = package_of(imported)
    if path.name == "__main__.py":
        return ""  # `python -m tunesmith` is the command line
    mine, its = LAYOUT[package]["layer"], LAYOUT[target]["layer"]
    if target != package:
        return "" if its < mine else f"{package} (layer {mine}) may not import {target} (layer {its})"
    levels: list[list[str]] = LAYOUT[package].get("parts", [])
    a, b = part_of(path, package), part_of(imported, package)
    if a == b or not a or not b:
        return ""
    above = [i for i, level in enumerate(levels) if a in level]
    below = [i for i, level in enumerate(levels) if b in level]
    if not above or not below:
        return f"{a if not above else b} is in no level of the parts of {package}: add it to pyproject.toml"
    return "" if below[0] < above[0] else f"{package}/{a} may not import {package}/{b}"


def part_of(path: PurePosixPath, package: str) -> str:
    """The sub-package of `package` that a file or a dotted name is in; empty for files directly in the package."""
    rest = path.relative_to(package).parts
    known = {part for level in LAYOUT[package].get("parts", []) for part in level}
    if rest and (rest[0] in known or (len(rest) > 1 and (ROOT / package / rest[0]).is_dir())):
        return rest[0]
    return ""


def python_files() -> Iterator[PurePosixPath]:
    for folder in (*TOPS, FACADE, "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield PurePosixPath(path.relative_to(ROOT).as_posix())


@cache
def import_graph() -> dict[str, set[str]]:
    """Module -> modules of this project that it imports, wherever the import statement is, but for those that only types need."""
    modules = {_dotted(path): path for path in python_files() if path.parts[0] != "tests"}
    out: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        found = set()
        for _, name in imports(tree):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            found.add(name)
        out[module] = found - {"", module}
    return out


def _dotted(path: PurePosixPath) -> str:
    parts = path.relative_to("src").parts if path.parts[0] == "src" else ("tunesmith", *path.parts)
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__")


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, directly or through others (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(n: str) -> None:
        index[n] = low[n] = len(index)
        stack.append(n)
        for k in sorted(graph[n]):
            if k not in index:
                visit(k)
                low[n] = min(low[n], low[k])
            elif k in stack:
                low[n] = min(low[n], index[k])
        if low[n] == index[n]:
            at = stack.index(n)
            if len(stack) - at > 1:
                out.append(sorted(stack[at:]))
            del stack[at:]

    for n in sorted(graph):
        if n not in index:
            visit(n)
    return out


def test_every_import_of_the_tree_is_allowed() -> None:
    files = list(python_files())
    assert len(files) > 10
    found = [fault for path in files for fault in violations(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(found)


def test_no_modules_import_each_other() -> None:
    assert not circles(import_graph())


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]


def test_folders_are_not_crowded() -> None:
    counts: dict[str, int] = {}
    for path in python_files():
        if path.parts[0] != "tests" and path.name != "__init__.py":
            counts[str(path.parent)] = counts.get(str(path.parent), 0) + 1
    crowded = {folder for folder, n in counts.items() if n > FLAT_FILES}
    assert crowded == set(CROWDED), "group the files in sub-packages, or give the reason in CROWDED"


def test_the_layout_names_the_packages_of_the_tree() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"}  # asv asks for its __init__.py
    assert folders == set(TOPS)
    for package, entry in LAYOUT.items():
        known = {part for level in entry.get("parts", []) for part in level}
        below = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        below -= {p.rpartition("/")[2] for p in LAYOUT if p.startswith(f"{package}/")}
        below -= {path.name for path in (ROOT / package).iterdir() if path.is_symlink()}
        assert known <= below, f"{package} has no part {known - below}"
        if known:
            assert below <= known, f"{package}: give {below - known} a level in pyproject.toml"


def test_links_make_one_package_of_the_folders() -> None:
    links = {path.name: path.resolve() for path in (ROOT / FACADE).iterdir() if path.is_symlink()}
    assert links == {top: ROOT / top for top in TOPS}


def test_other_lists_of_packages_agree_with_the_layout() -> None:
    banned = SETTINGS["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert {name for name in banned if (ROOT / name).is_dir()} == {*TOPS, "src", "tests"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for package, entry in LAYOUT.items():
        assert f"| `{package}/` | {entry['holds']} |" in readme, f"README.md has no line: | `{package}/` | {entry['holds']} |"


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("ir/expr.py", "from tunesmith.schedule.trace import Trace", "ir (layer 1) may not import schedule (layer 2)"),
        ("ir/expr.py", "def f():\n    import tunesmith.search.tuner", "ir (layer 1) may not import search (layer 8)"),
        ("ir/expr.py", "from tunesmith import runtime", "ir (layer 1) may not import runtime (layer 1)"),
        (
            "runtime/device/device.py",
            "if TYPE_CHECKING:\n    from tunesmith.ir.target.target import Target",
            "runtime (layer 1) may not import ir (layer 1)",
        ),
        ("graph/passes/fuse.py", "from tunesmith.datasets.networks import x", "graph (layer 6) may not import datasets (layer 6)"),
        ("search/tuner.py", "import tunesmith", "search (layer 8) may not import src/tunesmith (layer 9)"),
        ("search/tuner.py", "from tunesmith import tune", "search (layer 8) may not import src/tunesmith (layer 9)"),
        ("src/tunesmith/driver/tune.py", "import tunesmith.experiments.noise", "may not import experiments (layer 13)"),
        ("ir/expr.py", "from .node import node", "relative; spell it tunesmith.<package>..."),
        ("tests/ir/test_expr.py", "from . import shared", "relative; spell it tunesmith.<package>..."),
        ("lower/pass_infra.py", "import ir.expr", "a folder of this repository; spell it tunesmith.ir"),
        ("tests/ir/test_expr.py", "from datasets import networks", "a folder of this repository; spell it tunesmith.datasets"),
        ("measure/local_builder.py", "import llvmlite.binding", "allowed only in codegen/llvm/*"),
        ("costmodel/models/model.py", "def f():\n    import xgboost", "allowed only in costmodel/models/xgb_*"),
        ("experiments/arena/replay.py", "import ray", "allowed only in */ray_*"),
        ("search/array_ray.py", "import ray", "allowed only in */ray_*"),
        (
            "graph/importers/torch/call.py",
            "from tunesmith.graph.emit.memory_plan import plan",
            "graph/importers may not import graph/emit",
        ),
        ("search/space/rules/rows.py", "import tunesmith.search.samplers.sampler", "search/space may not import search/samplers"),
        ("codegen/llvm/export.py", "from tunesmith.codegen.cuda import nvrtc", "codegen/llvm may not import codegen/cuda"),
        ("support/seeds.py", "import pandas as pd", "allowed only in measure/*"),
        ("ir/expr.py", "import scipy.special", "allowed only in experiments/*/statistics.py, src/tunesmith/driver/bench/ratio.py"),
        ("ir/expr.py", "import sympy", "no known package"),
    ],
)
def test_a_forbidden_import_is_named(path: str, source: str, fault: str) -> None:
    found = violations(PurePosixPath(path), source)
    assert len(found) == 1 and fault in found[0], found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("schedule/primitives/split.py", "from tunesmith.ir.expr import Var\nfrom tunesmith.schedule.state import S\nimport numpy as np"),
        ("codegen/llvm/compile.py", "import llvmlite.binding as llvm\nfrom tunesmith.runtime.threads import x"),
        ("search/ray_samplers.py", "def f():\n    import ray\n    from tunesmith import measure"),
        ("graph/import_torch.py", "from __future__ import annotations\nimport torch.nn, json"),
        ("src/tunesmith/cli/main.py", "import click\nfrom rich.table import Table\nimport tunesmith.search.tuner"),
        ("experiments/noise/run.py", "import tunesmith\nimport pandas"),
        ("tests/test_x.py", "import tunesmith, pytest, llvmlite, scipy"),
    ],
)
def test_allowed_imports_pass(path: str, source: str) -> None:
    assert violations(PurePosixPath(path), source) == []
