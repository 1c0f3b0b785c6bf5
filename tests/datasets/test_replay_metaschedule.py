"""Replay real records of TVM's MetaSchedule (tests/golden/tvm/records, made by experiments/tvm_import): programs, results, refusals."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.datasets.import_metaschedule import RECORDS
from tunesmith.datasets.replay_metaschedule import Replayed, replay_database, replay_trace
from tunesmith.datasets.tvm_module import module_text
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.structural import equal
from tunesmith.ir.verify import verify
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

DATABASES = Path(__file__).parents[1] / "golden" / "tvm" / "records"
WORKLOADS = ("matmul_relu", "row_sum", "conv2d_relu", "softmax")


def inputs_of(name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs of a workload, and the output that numpy computes."""
    rng = stream(0, "metaschedule", name)
    windows = np.lib.stride_tricks.sliding_window_view
    if name == "matmul_relu":
        a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
        return [a, b], np.maximum(a @ b, 0)
    if name == "row_sum":
        x = rng.standard_normal((4, 4096)).astype(np.float32)
        return [x], x.sum(1)
    if name == "conv2d_relu":
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 8, 14, 14), (16, 8, 3, 3)))
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return [x, w], np.maximum(np.einsum("nchwrs,fcrs->nfhw", windows(padded, (3, 3), (2, 3)), w), 0)
    x = rng.standard_normal((32, 64)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    return [x], e / e.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def replayed() -> dict[str, list[Replayed]]:
    return {name: list(replay_database(DATABASES / name)) for name in WORKLOADS}


@pytest.mark.parametrize("name", WORKLOADS)
def test_records_of_tvm_replay_and_compute_what_numpy_computes(name: str, replayed: dict[str, list[Replayed]]) -> None:
    given, want = inputs_of(name)
    ours = [r for r in replayed[name] if r.schedule is not None]
    assert len(replayed[name]) == 8 and len(ours) >= 5
    for r in ours:
        assert r.schedule is not None and r.seconds < 1 and not r.refusal
        verify(r.schedule.func)
        trace = Trace.from_json(json.loads(json.dumps(r.schedule.trace.to_json())))
        assert equal(replay(trace, r.func).func, r.schedule.func) and not trace.decisions()
    modules = tunesmith.build(IRModule({f"f{r.line}": r.schedule.func.with_(name=f"f{r.line}") for r in ours if r.schedule is not None}))
    for r in ours:
        out = np.zeros_like(want)
        modules[f"f{r.line}"](*given, out)
        np.testing.assert_allclose(out, want, rtol=2e-3, atol=1e-3, err_msg=str(r.line))


def test_a_refused_instruction_has_its_position(replayed: dict[str, list[Replayed]]) -> None:
    refused = [r for r in replayed["softmax"] if r.schedule is None]
    assert [r.line for r in refused] == [1, 3, 8]
    assert f"{RECORDS}:1: instruction 26, ComputeAt: compute_at refused [box]" in refused[0].refusal
    assert f"{RECORDS}:3: instruction 64, DecomposeReduction: decompose_reduction refused [reduce-inside]" in refused[1].refusal


def test_marks_of_tvm_are_kept(replayed: dict[str, list[Replayed]]) -> None:
    kinds = {
        kind
        for r in replayed["matmul_relu"]
        if r.schedule is not None
        for kind in ("T.parallel", "T.vectorized", "T.unroll")
        if kind in str(r.schedule.func)
    }
    assert len(kinds) == 3


GET = [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l0", "l1", "l2"]]]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([["Blockize", ["l0"], [1], ["b1"]]], "instruction 3, Blockize: tunesmith has no counterpart of this instruction"),
        ([["Tensorize", ["l0"], ["dot", 1], []]], "instruction 3, Tensorize: tunesmith has no counterpart"),
        ([["TransformLayout", ["b0"], [], []]], "TransformLayout: tunesmith has no counterpart"),
        ([["Split", ["l9", None, 8], [1, 0], ["l3", "l4"]]], "instruction 3, Split: the input 'l9' is the output of no earlier"),
        ([["Split", ["b0", None, 8], [1, 0], ["l3", "l4"]]], "Split: input 1 is no loop"),
        ([["Split", ["l0", 2, 8], [1, 0], ["l3", "l4"]]], r"Split: the factors \[2, 8\] do not cover a loop of 64"),
        ([["Split", ["l0", None, 8], [1, 0], ["l3"]]], "Split: it has 1 results in TVM and 2 here"),
        ([["Parallel", ["l2"], [], []]], r"instruction 3, Parallel: parallel refused \[data-parallel\]"),
        ([["GetSBlock", [], ["nothing", "main"], ["b1"]]], "GetSBlock: get_block refused"),
        ([["GetSBlock", [], ["root", "main"], ["b1"]], ["ComputeInline", ["b1"], [], []]], "ComputeInline: input 1 is the root block"),
        ([["GetSBlock", [], ["root", "main"], ["b1"]], ["Annotate", ["b1", 1], ["x"], []]], "the root block has the annotation 'x'"),
        ([["Annotate", ["l0", 1], ["something"], []]], r"Annotate: annotate refused \[known-key\]"),
        ([["SamplePerfectTile", ["l0"], [2, 64], ["v0", "v1"]]], "SamplePerfectTile: the decision is not a list"),
        ([["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v0"], 2]], "the decision 2 is none of 2 candidates"),
        ([["SampleComputeLocation", ["b0"], [], ["l3"], 7]], "SampleComputeLocation: the decision 7 is none of the 2 loops"),
        ([["CacheRead", ["b0"], [5, "global"], ["b1"]]], "CacheRead: the block C reads 2 buffers, and buffer 5 is cached"),
        ([["Fuse", [], [1], ["l3"]]], "Fuse"),
        ([["Parallel", [], [], []]], "Parallel"),
        ([["RFactor", ["l0"], [], ["b1"]]], "RFactor"),
        ([["StorageAlign", ["b0"], [0, 0, 8], []]], "StorageAlign: it has 3 attributes: buffer, axis, factor and offset are needed"),
    ],
)
def test_what_has_no_counterpart_is_refused(steps: list[Any], message: str, replayed: dict[str, list[Replayed]]) -> None:
    with pytest.raises(RecordError, match=message):
        replay_trace([*GET, *steps], replayed["matmul_relu"][0].func)


def test_rfactor_needs_a_loop_around_one_block() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = A[vi]
        with T.block("D"):
            vi = T.axis.spatial(16, i)
            C[vi] = C[vi] + A[vi]
""")
    assert isinstance(func, PrimFunc)
    steps = [["GetBlock", [], ["C"], ["b"]], ["GetLoops", ["b"], [], ["l"]], ["RFactor", ["l"], [0], ["r"]]]
    with pytest.raises(RecordError, match="instruction 3, RFactor: the loop is around 2 blocks"):
        replay_trace(steps, func)


def test_a_record_that_raises_anything_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DATABASES / "row_sum", tmp_path / "d")
    file = tmp_path / "d" / RECORDS
    file.write_text((file.read_text(encoding="utf-8").splitlines()[0] + "\n") * 2, encoding="utf-8")
    results: list[Any] = [ValueError("no"), None]

    def replayed(steps: object, func: PrimFunc) -> Schedule:
        found = results.pop(0)
        if found is not None:
            raise found
        return Schedule(func)

    monkeypatch.setattr("tunesmith.datasets.replay_metaschedule.replay_trace", replayed)
    bad, good = replay_database(tmp_path / "d")
    assert bad.schedule is None and bad.refusal.endswith("replaying the trace raised ValueError: no") and good.schedule is not None


def test_more_instructions(replayed: dict[str, list[Replayed]]) -> None:
    steps = [
        *GET,
        ["CacheRead", ["b0"], [0, "global"], ["b1"]],
        ["GetSBlock", [], ["A_global", "main"], ["b2"]],
        ["ComputeAt", ["b2", "l0"], [1, -1], []],
        ["CacheWrite", ["b0"], [0, "global"], ["b3"]],
        ["StorageAlign", ["b0"], [0, 0, 32, 8], []],
        ["GetConsumers", ["b3"], [], ["b4"]],
        ["ReverseComputeInline", ["b4"], [], []],
        ["AddUnitLoop", ["l0"], [], ["l3"]],
        ["Unroll", ["l2"], [], []],
        ["EnterPostproc", [], [], []],
    ]
    s = replay_trace(steps, replayed["matmul_relu"][0].func)
    given, want = inputs_of("matmul_relu")
    out = np.zeros_like(want)
    tunesmith.build(s.func)[s.func.name](*given, out)
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-3)


def encoded(nodes: list[Any], root: int = 0) -> str:
    return base64.b64encode(b"\0" * 8 + json.dumps({"root_index": root, "nodes": nodes}).encode()).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%%%", "not base64"),
        (base64.b64encode(b"12345678[]").decode(), "no graph of TVM"),
        (encoded([{"type": "tirx.PrimFunc", "data": {}}]), "is a 'PrimFunc', no module"),
        (encoded([{"type": "ir.IRModule", "data": {}}]), "has no field 'functions'"),
        (encoded([{"type": "ir.IRModule", "data": {"functions": 7}}]), "refers to node 7 of 1"),
        (encoded([{"type": "ir.IRModule", "data": {"functions": 0}}]), "a list is needed"),
        (encoded([{"type": "ir.IRModule", "data": {"functions": 1}}, {"type": "ffi.Map", "data": [0, 0]}]), "only TensorIR functions"),
    ],
)
def test_modules_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        module_text(text)


def test_changed_modules_never_crash() -> None:
    line = json.loads((DATABASES / "row_sum" / "database_workload.json").read_text(encoding="utf-8").splitlines()[0])
    graph = json.loads(base64.b64decode(line[1])[8:])
    rng = stream(0, "changed modules")
    texts = 0
    for _ in range(300):
        nodes = json.loads(json.dumps(graph["nodes"]))
        for _ in range(int(rng.integers(1, 3))):
            n = nodes[int(rng.integers(len(nodes)))]
            if isinstance(n.get("data"), dict) and n["data"]:
                key = list(n["data"])[int(rng.integers(len(n["data"])))]
                n["data"][key] = [int(rng.integers(len(nodes))), None, "x", -1, {}][int(rng.integers(5))]
            else:
                n["type"] = nodes[int(rng.integers(len(nodes)))]["type"]
        try:
            text = module_text(encoded(nodes, graph["root_index"]))
        except RecordError:
            continue
        texts += 1
        with contextlib.suppress(UserError):
            parse(text)
    assert texts > 20


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="database_tuning_record.json does not exist: a database has the files"):
        list(replay_database(tmp_path))
    (tmp_path / "database_tuning_record.json").write_text("")
    with pytest.raises(RecordError, match="database_workload.json does not exist: a database has the files"):
        list(replay_database(tmp_path))
    shutil.copytree(DATABASES / "row_sum", tmp_path / "d")
    file = tmp_path / "d" / RECORDS
    file.write_text("[]\n" + file.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    (only,) = replay_database(tmp_path / "d")
    assert only.line == 2 and only.schedule is not None
    (given,) = replay_database(tmp_path / "d", {only.workload: only.func})
    assert given.func is only.func


def test_deep_and_shared_nodes_are_refused() -> None:
    def module(value: list[Any]) -> str:
        data = {"params": 2, "body": 3}
        nodes = [
            {"type": "ir.IRModule", "data": {"functions": 1}},
            {"type": "ffi.Map", "data": [4, 5]},
            {"type": "ffi.Array", "data": []},
            {"type": "tirx.While", "data": {"condition": 7, "body": 3}},
            {"type": "ir.GlobalVar", "data": {"name_hint": 6}},
            {"type": "tirx.PrimFunc", "data": data},
            {"type": "ffi.String", "data": "main"},
            *value,
        ]
        return encoded(nodes)

    zero = (
        {"type": "ir.IntImm", "data": {"ty": 9, "value": 8}},
        {"type": "int", "data": 0},
        {"type": "ir.PrimType", "data": {"dtype": "int32"}},
    )
    with pytest.raises(RecordError, match="nested more than"):  # its body is the statement itself
        module_text(module(list(zero)))
    doubled = [{"type": "prim.Add", "data": {"a": n + 8, "b": n + 8}} for n in range(100)]
    with pytest.raises(RecordError, match="has more than"):  # 2**100 operands
        module_text(module([*doubled, {"type": "ir.IntImm", "data": {"ty": 109, "value": 108}}, zero[1], zero[2]]))


def test_an_unreadable_module_is_given_by_its_hash(tmp_path: Path) -> None:
    shutil.copytree(DATABASES / "row_sum", tmp_path / "d")
    only, *_ = replay_database(tmp_path / "d")
    (tmp_path / "d" / "database_workload.json").write_text(f'["{only.workload}", "bm8="]\n')
    with pytest.raises(RecordError, match=f"Or pass the program: programs={{'{only.workload}': func}}"):
        list(replay_database(tmp_path / "d"))
    given, *_ = replay_database(tmp_path / "d", {only.workload: only.func})
    assert given.schedule is not None
