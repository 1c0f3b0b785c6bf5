"""opt: passes run one by one on a program, by name and with options, and what each changes; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tunesmith.cli.main import main
from tunesmith.driver.opt import GRAPH_PASSES, Optimized, find_passes, opt, purpose, steered
from tunesmith.driver.workloads import find_subject
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.pipelines import GRAPH as GRAPH_PIPELINE
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import CPU, PASSES
from tunesmith.schedule.schedule import Schedule
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


def test_programs_and_passes_are_objects_too() -> None:
    func = find_subject("relu(shape=8)").func
    text = opt(func, "cpu", TARGET).script
    halves = [*CPU.passes[:1], Pipeline(*CPU.passes[1:])]
    for program, passes in ((Schedule(func), CPU), (Schedule(func), [CPU]), (IRModule([func]), CPU.passes), ([func], halves)):
        assert opt(program, passes, TARGET).script == text  # type: ignore[arg-type]
    b = GraphBuilder("main")
    graph = b.finish(b.relu(b.input("x", (4,))))
    by_pipeline, by_name = opt(graph, GRAPH_PIPELINE, TARGET), opt(IRModule({"main": graph}), "graph", TARGET)
    assert by_pipeline.script == by_name.script and "op_relu" in by_name.script


def test_options_of_graph_passes() -> None:
    b = GraphBuilder("main")
    graph = b.finish(b.relu(b.exp(b.input("x", (4,)))))
    assert "fused_exp_relu" in opt(graph, "fuse_operators", TARGET).script
    alone = opt(graph, "fuse_operators{most=1}", TARGET)
    assert "fused_exp_relu" not in alone.script and alone.steps[0].name == "fuse_operators{most=1}"
    with pytest.raises(UserError, match="most=0: fuse_operators needs at least 1 call per group"):
        opt(graph, "fuse_operators{most=0}", TARGET)


@pytest.mark.parametrize("program", [None, 3, "x" * 5000, "a\0b", ".", object()])
def test_programs_of_other_types_are_refused(program: object) -> None:
    with pytest.raises(UserError, match=r"is not a workload|a workload is a text"):
        opt(program, "simplify", TARGET)  # type: ignore[arg-type]


@pytest.mark.parametrize("passes", [None, 3, b"simplify", [None], ["simplify", 3], {"simplify": 1}])
def test_passes_of_other_types_are_refused(passes: object) -> None:
    with pytest.raises(UserError, match="is not a pass: make one of a function with"):
        find_passes(passes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("simplfy", "there is no pass 'simplfy'. Did you mean 'simplify'"),
        ("gpuu", "there is no pass 'gpuu'. Did you mean 'gpu'"),
        ("mine", r"A pass of your own is path.py:name, or an object in .*opt\(program"),
        ("lower.simplify", "there is no pass 'lower.simplify'. Since version 0.2 it is 'simplify'"),
        ("cpu,lower.prefetch_ahead", "'lower.prefetch_ahead'. Since version 0.2 it is 'inject_prefetch'"),
        ("clip_loops", "'clip_loops'. Since version 0.2 it is 'tighten_loop_bounds'"),
        ("cpu{most=1}", "'cpu{most=1}': cpu is a pipeline, which has no options. Give them to its passes"),
        ("legalise{most=1}", "the pass 'legalise' has no option 'most'; it has none"),
        ("version_loops{moat=1}", "has no option 'moat'; it has most, rests. Did you mean 'most'"),
        ("version_loops{most=1,most=2}", "the option 'most' of version_loops is given twice, as 1 and 2: give it once"),
        ("version_loops{most=many}", "the option 'most' of the pass 'version_loops' is of type int, got 'many'"),
        ("version_loops{most}", "'most' is no option of version_loops: write option=value"),
        ("simplify{", "'simplify{' is no pass: write NAME or NAME{option=value,...}"),
        ("lower_blocks,version_loops{most=-1}", "most=-1: version_loops makes at least 0 copies"),
        ("", "no pass was given. Passes: bound_unrolling"),
        (
            "vectorize_loops",
            "vectorize_loops needs a program in stage FLAT, and scaled is in stage SCHEDULED: run flatten_buffers first",
        ),
        ("simplify{most=1}", "the pass 'simplify' has no option 'most'"),
    ],
)
def test_refusals(script: Path, passes: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("{", r"\{")):
        opt(script, passes, TARGET)


def test_passes_of_files(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from tunesmith.lower.pass_infra import Pipeline, function_pass\n"
        "from tunesmith.lower.pipelines import PASSES\n\n"
        "@function_pass(requires='SCHEDULED')\n"
        "def serialise(func, target, *, most=2):\n    return func\n\n"
        "both = Pipeline(PASSES['simplify'], serialise)\n\n"
        "def plain(func, target):\n    return func\n"
    )
    found = opt(script, f"simplify,{file}:serialise{{most=3}}", TARGET)
    assert [s.name for s in found.steps] == ["simplify", "serialise{most=3}"] and str(found) == found.script
    assert [s.name for s in opt(script, f"{file}:both", TARGET).steps] == ["simplify", "serialise"]
    with pytest.raises(UserError, match=r"mine.py:plain is a function, not a pass: make a pass of a function with @function_pass"):
        opt(script, f"{file}:plain", TARGET)
    with pytest.raises(UserError, match=r"holds no 'serialize'\. Did you mean 'serialise'"):
        opt(script, f"{file}:serialize", TARGET)
    with pytest.raises(UserError, match="mine.py:both is a pipeline, which has no options"):
        opt(script, f"{file}:both{{most=1}}", TARGET)
    ran = CliRunner().invoke(main, ["opt", str(script), "-p", f"{file}:serialise"])
    assert ran.exit_code == 0 and ran.stdout.strip() == str(opt(script, f"{file}:serialise")).strip()


def test_texts_of_passes_are_split_at_commas_outside_of_braces() -> None:
    found = find_passes("simplify, version_loops{most=2,rests=1}")
    assert [str(p) for p in found] == ["simplify", "version_loops{most=2,rests=1}"]
    assert find_passes("cpu") == list(CPU.passes) and find_passes(["simplify", "cpu"]) == [PASSES["simplify"], *CPU.passes]


def test_every_listed_pass_has_a_purpose() -> None:
    for p in (*PASSES.values(), *GRAPH_PASSES.values()):
        assert purpose(p), p.name
    assert purpose(GRAPH_PASSES["fold_layouts"]).startswith("Fold the constants")


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
    assert "most=64" in next(line for line in listed.splitlines() if "fuse_operators" in line)
    data = json.loads(run(str(script), "-p", "simplify,lower_blocks", "--json", "-", *target))
    assert [s["pass"] for s in data["steps"]] == ["simplify", "lower_blocks"]


def test_wrong_use(script: Path) -> None:
    result = CliRunner().invoke(main, ["opt", str(script)])
    assert result.exit_code == 2 and "give a PROGRAM and --passes, or --list" in result.output
    result = CliRunner().invoke(main, ["opt", "missing.txt", "-p", "simplify"])
    assert result.exit_code == 2 and "missing.txt" in result.output


def test_the_programs_of_a_log_are_read_from_standard_input(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul(), clean=False))
    relu = find_subject("relu(shape=64)").func
    hand.write_log(log, hand.record_of(relu, lambda s: s.vectorize(s.get_loops(s.get_block("Y"))[0])), name="relu(shape=64)", func=relu)
    shown = CliRunner().invoke(main, ["show", str(log), "--script"])
    assert shown.exit_code == 0
    result = CliRunner().invoke(main, ["opt", "-", "-p", "cpu", "--target", str(TARGET)], input=shown.stdout)
    assert result.exit_code == 0, result.stderr
    assert "def matmul" in result.stdout and "def relu" in result.stdout


def test_functions_of_one_name_in_a_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(SCRIPT + SCRIPT)
    with pytest.raises(UserError, match=r"two.py: two functions are named scaled: rename one, or pass them one at a time"):
        opt(tmp_path / "two.py", "simplify", TARGET)
    wrong = SCRIPT.replace("def scaled", "def other").replace("A[vi]", "Z[vi]")
    (tmp_path / "wrong.py").write_text(SCRIPT + wrong)
    with pytest.raises(UserError, match=rf"wrong.py:{len((SCRIPT + wrong).splitlines())}:"):
        opt(tmp_path / "wrong.py", "simplify", TARGET)


# ---- steering ---------------------------------------------------------------------------------------------------------------


def test_the_context_steers_passes(script: Path) -> None:
    with steered(disable=["simplify"], options=["version_loops.most=1"], level=2):
        found = opt(script, "cpu", TARGET)
    names = [s.name for s in found.steps]
    assert "simplify" not in names and "version_loops{most=1}" in names
    with steered(level=0):
        assert [s.name for s in opt(script, "cpu", TARGET).steps] == [p.name for p in CPU if p.needed_by]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": ["most=1"]}, "--option 'most=1': write PASS.OPTION=VALUE, such as version_loops.most=8"),
        ({"options": ["version_loops.most"]}, "write PASS.OPTION=VALUE"),
        ({"options": ["version_loops.mst=1"]}, "has no option 'mst'; it has most, rests. Did you mean 'most'"),
        ({"options": ["version_loops.most=x"]}, "the option 'most' of the pass 'version_loops' is of type int, got 'x'"),
        ({"options": ["nonsense.most=1"]}, "there is no pass 'nonsense'"),
        ({"disable": ["simplfy"]}, "there is no pass 'simplfy'. Did you mean 'simplify'"),
        ({"disable": ["flatten_buffers"]}, "the pass 'flatten_buffers' cannot be disabled"),
    ],
)
def test_wrong_steering(given: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        steered(**given)  # type: ignore[arg-type]


def test_the_flags_of_the_command(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    flags = ["--time", "--verify", "--dump", str(folder), "--disable", "simplify", "--option", "version_loops.most=1", "--level", "2"]
    result = CliRunner().invoke(main, ["opt", str(script), "-p", "cpu", "--target", str(TARGET), *flags])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("@T.prim_func") and result.stderr.startswith("pass ") and "simplify" not in result.stderr
    assert (folder / "stages.txt").exists() and "lower_blocks, scaled: 0" in (folder / "stages.txt").read_text()
    again = CliRunner().invoke(main, ["opt", str(script), "-p", "cpu", "--dump", str(folder)])
    assert again.exit_code == 2 and "has files already" in again.output
    listed = run("--list")
    assert "needed" in next(line for line in listed.splitlines() if "flatten_buffers" in line)


def test_passes_of_files_have_options_by_name(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from tunesmith.passes import function_pass\n\n"
        "@function_pass(requires='SCHEDULED')\ndef marked(func, target, *, note='x'):\n    return func.with_(attrs=(('note', note),))\n"
    )
    assert "other" in run(str(script), "-p", f"{file}:marked", "--option", "marked.note=other", "--target", str(TARGET))
    assert "note" not in run(str(script), "-p", f"simplify,{file}:marked", "--disable", "marked", "--target", str(TARGET))
