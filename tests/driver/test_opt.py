"""opt: passes run one by one on a program, by name and with options, and what each changes; refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tunesmith.cli.main import main
from tunesmith.driver.opt import Optimized, find_passes, opt
from tunesmith.driver.workloads import find_subject
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import CPU, PASSES
from tunesmith.support.errors import UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
SCRIPT = """
@T.prim_func
def scaled(A: T.Buffer((60,), "float32"), C: T.Buffer((60,), "float32")):
    for i in T.serial(8):
        for j in T.vectorized(8):
            with T.block("C"):
                vi = T.axis.spatial(60, i * 8 + j)
                T.where(i * 8 + j < 60)
                C[vi] = A[vi] * 2.0
"""
GRAPH = """
@G.function
def main(x: G.Tensor((4, 4), "float32")):
    a = G.relu(x)
    b = G.exp(a)
    c = G.exp(a)
    return a
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "scaled.txt"
    path.write_text(SCRIPT)
    return path


def test_the_passes_of_a_pipeline_give_what_the_pipeline_gives() -> None:
    func = find_subject("softmax(m=8,n=8)").func
    found = opt(func, "cpu", TARGET)
    assert found.script == str(CPU(func, TARGET)) and [s.name for s in found.steps] == [p.name for p in CPU.passes]


def test_each_step_has_its_change(script: Path) -> None:
    found = opt(script, "simplify,lower_blocks,version_loops{most=2},flatten_buffers,vectorize_loops", TARGET)
    changed = {s.name: s.changed for s in found.steps}
    assert list(changed) == ["simplify", "lower_blocks", "version_loops{most=2}", "flatten_buffers", "vectorize_loops"]
    assert changed["lower_blocks"] and changed["vectorize_loops"]
    diff = next(s for s in found.steps if s.name == "lower_blocks").diff()
    assert '-        with T.block("C"):' in diff.replace("            with", "        with") and "+" in diff
    assert all(a.after == b.before for a, b in zip(found.steps, found.steps[1:], strict=False))


def test_an_option_stops_a_pass(script: Path) -> None:
    def versions(most: int) -> int:
        return opt(script, f"lower_blocks,version_loops{{most={most}}}", TARGET).script.count("for j in")

    assert versions(1) < versions(24)


def test_graph_passes_run_on_graph_functions(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(GRAPH)
    found = opt(path, "common_subexpressions,dead_code", TARGET)
    assert isinstance(found, Optimized) and "exp" not in found.script and "relu" in found.script


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("simplfy", "there is no pass 'simplfy'. Did you mean 'simplify'"),
        ("", "no pass was given. Passes: bound_unrolling"),
        (
            "vectorize_loops",
            "vectorize_loops needs a program in stage FLAT, and scaled is in stage SCHEDULED: run flatten_buffers first",
        ),
        ("simplify{most=1}", "the pass 'simplify' has no option 'most'"),
    ],
)
def test_refusals(script: Path, passes: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        opt(script, passes, TARGET)


def test_texts_of_passes_are_split_at_commas_outside_of_braces() -> None:
    found = find_passes("simplify, version_loops{most=2,rests=1}")
    assert [str(p) for p in found] == ["simplify", "version_loops{most=2,rests=1}"]
    assert find_passes("cpu") == list(CPU.passes)


def run(*arguments: str, text: str | None = None) -> str:
    result = CliRunner().invoke(main, ["opt", *arguments], input=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command(script: Path) -> None:
    target = ["--target", str(TARGET)]
    assert "with T.block" not in run(str(script), "-p", "lower_blocks", *target)
    assert run("-", "-p", "lower_blocks", *target, text=SCRIPT) == run(str(script), "-p", "lower_blocks", *target)
    assert run(str(script), "-p", "simplify,lower_blocks", "--diff", *target).startswith("# ")
    listed = run("--list")
    assert all(name in listed for name in PASSES) and "SCHEDULED -> OPAQUE" in listed
    data = json.loads(run(str(script), "-p", "simplify,lower_blocks", "--json", "-", *target))
    assert [s["pass"] for s in data["steps"]] == ["simplify", "lower_blocks"]


def test_wrong_use(script: Path) -> None:
    result = CliRunner().invoke(main, ["opt", str(script)])
    assert result.exit_code == 2 and "give a PROGRAM and --passes, or --list" in result.output
    result = CliRunner().invoke(main, ["opt", "missing.txt", "-p", "simplify"])
    assert result.exit_code == 2 and "missing.txt" in result.output
