"""Ahead-of-time compilation with executor="aot", in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import BuildError, UserError

SOURCE = """
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule

def small():
    g = GraphBuilder()
    return IRModule({"main": g.finish(g.relu(g.input("x", (3, 5)), name="y"))})
"""


def small() -> IRModule:
    g = GraphBuilder()
    return IRModule({"main": g.finish(g.relu(g.input("x", (3, 5)), name="y"))})


def test_compile(tmp_path: Path) -> None:
    made = tunesmith.compile(small(), executor="aot", name="small")
    assert isinstance(made, tunesmith.CompiledModel)
    x = np.linspace(-1, 1, 15, dtype="float32").reshape(3, 5)
    np.testing.assert_array_equal(made(x), np.maximum(x, 0))
    made.export_object(tmp_path / "small.o", tmp_path / "small.h")
    assert "int32_t small_run(" in (tmp_path / "small.h").read_text()
    assert "int32_t model_run(" in export_header(tmp_path, tunesmith.compile(small(), executor="aot"))


def export_header(folder: Path, made: object) -> str:
    assert isinstance(made, tunesmith.CompiledModel)
    made.export_library(folder / "x.so", header=folder / "x.h")
    return (folder / "x.h").read_text()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name='m' requires executor=\"aot\""):
        tunesmith.compile(small(), name="m")
    with pytest.raises(UserError, match="name='m' is for models"):
        tunesmith.compile("relu(shape=8)", name="m")
    with pytest.raises(UserError, match="there is no executor 'tape'; there are graph, vm, aot"):
        tunesmith.compile(small(), executor="tape")
    made = tunesmith.compile(small())
    assert isinstance(made, tunesmith.CompiledModel)
    with pytest.raises(BuildError, match="objects are made of models that were compiled ahead of time"):
        made.export_object(tmp_path / "small.o")


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    library, header = tmp_path / "lib.so", tmp_path / "lib.h"
    words = ["compile", f"{tmp_path}/mine.py:small", "--executor", "aot", "-o", str(library), "--header", str(header)]
    done = CliRunner().invoke(main, [*words, "--name", "small", "--parameters", "beside", "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["without_record"]
    assert "int32_t small_run_with(" in header.read_text()
    loaded = tunesmith.load_module(library)
    np.testing.assert_array_equal(loaded(-np.ones((3, 5), "float32")), np.zeros((3, 5)))  # type: ignore[operator]
    for wrong in (["compile", "relu(shape=8)", "-o", str(library), "--header", str(header)], [*words[:2], *words[4:]]):
        refused = CliRunner().invoke(main, wrong)
        assert refused.exit_code != 0
        assert (
            "--header requires a model" in refused.output or 'only models compiled ahead of time have one: executor="aot"' in refused.output
        )
