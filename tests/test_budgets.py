"""Limit the lines per file, the lines per function and the time of `import tunesmith`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"build", "dist", "runs"}

FILE_LINES = 500
FUNCTION_LINES = 80
IMPORT_SECONDS = 0.3
NOT_LOADED = ("llvmlite", "xgboost", "torch", "pandas", "ray", "optuna")

LONG_FILES: dict[str, str] = {"ir/poly.py": "one normal form, whose constructors and operators call each other"}
"""Path -> reason for exceeding FILE_LINES."""
LONG_FUNCTIONS: dict[str, str] = {}
"""`path:qualified.name` -> reason for exceeding FUNCTION_LINES."""


def python_files() -> Iterator[Path]:
    for path in sorted(ROOT.glob("*/**/*.py")):
        top = path.relative_to(ROOT).parts[0]
        if top not in SKIPPED and not top.startswith("."):
            yield path


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Qualified name and line count of every function, including nested ones, without docstring and decorators."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                assert docstring.end_lineno is not None
                lines -= docstring.end_lineno - docstring.lineno + 1
            yield prefix + node.name, lines
        name = f"{prefix}{node.name}." if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else prefix
        yield from functions(node, name)


def long_files(files: Iterator[Path]) -> dict[str, int]:
    counts = {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in files}
    return {path: lines for path, lines in counts.items() if lines > FILE_LINES}


def long_functions(files: Iterator[Path]) -> dict[str, int]:
    counts = {
        f"{path.relative_to(ROOT).as_posix()}:{name}": lines
        for path in files
        for name, lines in functions(ast.parse(path.read_text(encoding="utf-8")))
    }
    return {name: lines for name, lines in counts.items() if lines > FUNCTION_LINES}


def test_files_are_short_enough_to_read() -> None:
    found = long_files(python_files())
    assert not {path: lines for path, lines in found.items() if path not in LONG_FILES}, (
        f"longer than {FILE_LINES} lines: split these files"
    )
    assert not set(LONG_FILES) - set(found), "short enough: remove them from LONG_FILES"


def test_functions_fit_a_screen() -> None:
    found = long_functions(python_files())
    assert not {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS}, (
        f"longer than {FUNCTION_LINES} lines: split these functions"
    )
    assert not set(LONG_FUNCTIONS) - set(found), "short enough: remove them from LONG_FUNCTIONS"


def test_lines_of_functions_are_counted_without_docstring_and_decorators() -> None:
    source = '''
class A:
    @property
    @staticmethod
    def b(self):
        """One.

        Two.
        """
        def c():
            return 1
        return c
async def d(): pass
'''
    assert dict(functions(ast.parse(source))) == {"A.b": 4, "A.b.c": 2, "d": 1}


def _import_tunesmith() -> tuple[float, list[str]]:
    """Seconds of the import in a fresh interpreter, and the packages loaded by it."""
    program = (
        "import json, sys, time\nstart = time.perf_counter()\nimport tunesmith\nseconds = time.perf_counter() - start\n"
        "print(json.dumps([seconds, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    seconds, modules = json.loads(printed)
    return seconds, modules


def test_import_is_quick() -> None:
    best = min(_import_tunesmith()[0] for _ in range(5))
    assert best < IMPORT_SECONDS, f"import tunesmith took {best:.2f} s at best: see python -X importtime -c 'import tunesmith'"


def test_import_loads_no_heavy_package() -> None:
    assert set(NOT_LOADED).isdisjoint(_import_tunesmith()[1])
