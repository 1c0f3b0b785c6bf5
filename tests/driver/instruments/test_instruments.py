"""The built-in instruments: what they write, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.instruments import DumpStages, InstrumentError, PassDiff, PassTimes, PrintPasses, VerifyPasses
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Seq
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.ops.workload import workload
from tunesmith.passes import CPU, GRAPH, PassContext, Pipeline, function_pass, module_pass
from tunesmith.support.errors import UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=1")


def func() -> PrimFunc:
    return workload("matmul(m=9,n=8,k=7)").func


def model() -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (4, 8))
    return IRModule({"main": b.finish(b.softmax(b.relu(b.matmul(x, b.constant(np.ones((8, 16), np.float32))))))})


@module_pass
def inner(mod: IRModule) -> IRModule:
    return Pipeline(CPU.passes[1])(mod, TARGET)


@function_pass(requires="SCHEDULED")
def fails(func: PrimFunc, target: Target) -> PrimFunc:
    raise ValueError("first line\nsecond line")


# ---- DumpStages ------------------------------------------------------------------------------------------------------------


def test_stages_are_files(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "stages"
    with PassContext(instruments=[DumpStages(folder)]):
        done = CPU(func(), TARGET)
    lines = (folder / "stages.txt").read_text().splitlines()
    assert len(lines) == len(CPU) + 1 and "input, matmul: 0000-matmul-input.txt" in lines[0]
    assert [line.split("ms  ")[1].split(",")[0] for line in lines[1:]] == list(CPU.names)
    files = sorted(p.name for p in folder.iterdir() if p.name != "stages.txt")
    named = [line.rpartition(": ")[2] for line in lines if not line.endswith("no change")]
    assert files == sorted(named) and "0005-matmul-lower_blocks.txt" in files
    assert str(parse((folder / files[0]).read_text())) == str(func()) and (folder / files[-1]).read_text().strip() == str(done)


def test_the_program_of_a_failing_pass_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first line"), PassContext(instruments=[DumpStages(tmp_path)]):
        Pipeline(CPU.passes[1], fails)(func(), TARGET)
    text = (tmp_path / "0002-matmul-fails.failed.txt").read_text()
    assert text.startswith("# ValueError in fails\n# first line\n# second line\n@T.prim_func")
    assert "fails, matmul: failed, 0002-" in (tmp_path / "stages.txt").read_text()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="has files already: name an empty folder"):
        DumpStages(tmp_path)
    with pytest.raises(UserError, match="stages cannot be written to .*mine"):
        DumpStages(tmp_path / "mine")


# ---- PassTimes -------------------------------------------------------------------------------------------------------------


def test_times_of_nested_passes() -> None:
    times = PassTimes()
    with PassContext(instruments=[times]):
        Pipeline(inner, inner)(IRModule([func()]), TARGET)
        CPU(func(), TARGET)
    rows = {r.path: r for r in times.rows}
    assert rows[("inner",)].calls == rows[("inner", "simplify")].calls == 2 and rows[("simplify",)].calls == 3
    outer = rows[("inner",)]
    assert outer.own == pytest.approx(outer.seconds - rows[("inner", "simplify")].seconds) and 0 <= outer.own <= outer.seconds
    assert times.seconds >= sum(r.own for r in times.rows) > 0
    lines = str(times).splitlines()
    assert lines[0].split() == ["pass", "calls", "total", "ms", "own", "ms"] and lines[2].startswith("  simplify")
    assert lines[-1].split()[:3] == ["all", "passes", str(4 + len(CPU))]
    assert times.to_json()[1]["path"] == ["inner", "simplify"]


def test_times_after_a_failure() -> None:
    times = PassTimes()
    with PassContext(instruments=[times]):
        with pytest.raises(ValueError, match="first"):
            Pipeline(module_pass(lambda_pass), fails)(IRModule([func()]), TARGET)
        CPU(func(), TARGET)
    assert {r.path for r in times.rows} == {("lambda_pass",), ("fails",), *[(name,) for name in CPU.names]}


def lambda_pass(mod: IRModule) -> IRModule:
    return mod


def test_times_of_a_model_have_graph_passes_records_and_lowering() -> None:
    times = PassTimes()
    with PassContext(instruments=[times]):
        compile_model(model(), TARGET, untuned=default_schedule)
    paths = [r.path for r in times.rows]
    assert paths[: len(GRAPH)] == [(n,) for n in GRAPH.names] and ("apply_records",) in paths and ("vectorize_loops",) in paths


# ---- PassDiff and PrintPasses ------------------------------------------------------------------------------------------------


def test_diffs_of_passes() -> None:
    found: list[str] = []
    with PassContext(instruments=[PassDiff(write=found.append)]):
        CPU(func(), TARGET)
    assert found[0].startswith("# lower_blocks, matmul\n--- before\n+++ lower_blocks\n@@")
    assert all("\n-" in text or "\n+" in text for text in found) and len(found) < len(CPU)
    one: list[str] = []
    with PassContext(instruments=[PassDiff("flatten_buffers", write=one.append)]):
        CPU(func(), TARGET)
    assert one == [text for text in found if text.startswith("# flatten_buffers")]


def test_programs_are_printed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with PassContext(instruments=[PrintPasses("lower_blocks", when="both")]):
        CPU(func(), TARGET)
    printed = capsys.readouterr().out
    before, after = printed.split("# after lower_blocks, matmul\n")
    assert before.startswith("# before lower_blocks, matmul\n@T.prim_func") and "with T.block" in before and "with T.block" not in after
    with PassContext(instruments=[PrintPasses("fuse_operators"), PrintPasses("legalise", when="before")]):
        GRAPH(model(), TARGET)
    printed = capsys.readouterr().out
    assert printed.startswith("# after fuse_operators, module\n") and "# before legalise, module" in printed


@pytest.mark.parametrize(("names", "when"), [((), "after"), ((3,), "after"), (("simplify",), "later")])
def test_what_is_printed_is_checked(names: tuple[Any, ...], when: str) -> None:
    with pytest.raises(UserError, match=r"give the names of passes|a program is printed 'after' a pass"):
        PrintPasses(*names, when=when)


# ---- VerifyPasses ------------------------------------------------------------------------------------------------------------


def test_a_pass_that_breaks_a_function_is_named() -> None:
    @function_pass(requires="SCHEDULED")
    def doubles(func: PrimFunc, target: Target) -> PrimFunc:
        return func.with_(body=Seq((func.body, func.body)))

    for program in (func(), IRModule([func()])):
        with pytest.raises(InstrumentError, match="the instrument VerifyPasses failed in after of the pass 'doubles'"):
            with PassContext(instruments=[VerifyPasses()]):
                Pipeline(doubles)(program, TARGET)


def test_a_pass_that_breaks_a_graph_is_named() -> None:
    @module_pass
    def forgets(mod: IRModule) -> IRModule:
        return IRModule({name: f for name, f in mod.items() if isinstance(f, GraphFunc)})

    with pytest.raises(InstrumentError, match="VerifyPasses failed in after of the pass 'forgets'"):
        with PassContext(instruments=[VerifyPasses()]):
            (GRAPH + forgets)(model(), TARGET)


def test_valid_passes_are_accepted() -> None:
    with PassContext(instruments=[VerifyPasses()]):
        compile_model(model(), TARGET, untuned=default_schedule)


@pytest.mark.parametrize("instrument", [PassDiff, PrintPasses])
def test_names_that_no_pass_has_are_refused_on_entry(instrument: type) -> None:
    with PassContext(instruments=[instrument("simplify", "apply_records")]):
        pass
    with (
        pytest.raises(InstrumentError, match="there is no pass 'fuse_operator'. Did you mean 'fuse_operators'"),
        PassContext(instruments=[instrument("fuse_operator")]),
    ):
        pass
