"""Tuning for sizes: records carry them, compile chooses by them, other sizes and 0 run, bad sizes are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import tunesmith
from tunesmith import te
from tunesmith.cli.main import main
from tunesmith.driver.compile_records import UnusedLogWarning
from tunesmith.driver.show import show_log, show_workload
from tunesmith.driver.tune_options import grouped
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import Record
from tunesmith.support.errors import RecordError, UserError

TARGET = Target("llvm")
QUICK: dict[str, Any] = {
    "target": TARGET,
    "sampler": "random",
    "workers": 0,
    "leaders": 0,
    "progress": False,
    "policy": MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0),
}


def product(constants: bool = False) -> PrimFunc:
    m = te.var("m")
    a, b, k = te.placeholder((m, 24), name="A"), te.placeholder((24, 40), name="B"), te.reduce_axis(24, "k")
    f = te.create_prim_func([a, b, te.compute((m, 40), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), "C")], "product")
    return f.with_(attrs=(("constants", "B"),)) if constants else f


def softmax() -> PrimFunc:
    n = te.var("n")
    x, k, k2 = te.placeholder((6, n), name="X"), te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    top = te.compute((6,), lambda i: te.max(x[i, k], axis=[k]), "top")
    e = te.compute((6, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    s = te.compute((6,), lambda i: te.sum(e[i, k2], axis=[k2]), "s")
    return te.create_prim_func([x, te.compute((6, n), lambda i, j: e[i, j] / s[i], "Y")], "softmax")


def check_product(call: Any, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    b = rng.random((24, 40), np.float32)
    for m in sizes:
        a, c = rng.random((m, 24), np.float32), np.full((m, 40), 7, np.float32)
        call(a, b, c, m)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)


SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 11, 20, 21, 100)


@pytest.mark.parametrize("constants", [False, True])
def test_a_product_of_dynamic_rows(tmp_path: Path, constants: bool) -> None:
    log, f = tmp_path / "log.jsonl", product(constants)
    report = tunesmith.tune(f, **grouped(log=log, trials=3, sizes="m=1,3..8,20", **QUICK))
    assert [t.workload for t in report.tasks] == [f"product[{box}]" for box in ("m=1", "m=3..4", "m=5..8", "m=20")] and report.ok
    made = tunesmith.compile(f, TARGET, log, strict=True)
    assert [(c.status, c.sizes) for c in made.coverage] == [
        *[("used", box) for box in ("m=1", "m=3..4", "m=5..8", "m=20")],
        ("plain", "all other sizes"),
    ]
    assert "for m=5..8: record" in str(made.coverage[2]) and "the default schedule" in made.coverage[4].reason
    check_product(made["product"], SIZES)
    made.export_library(tmp_path / "product.so")
    check_product(tunesmith.load_module(tmp_path / "product.so")["product"], SIZES)
    check_product(tunesmith.compile(f, TARGET, log, bounds_check=True)["product"], (0, 1, 4, 21))
    assert tunesmith.compile(f, TARGET, log).artifact.data == made.artifact.data


def test_softmax_of_dynamic_rows(tmp_path: Path) -> None:
    log, f = tmp_path / "log.jsonl", softmax()
    assert tunesmith.tune(f, **grouped(log=log, trials=3, sizes={"n": range(30, 65)}, **QUICK)).ok
    made = tunesmith.compile(f, TARGET, log)
    assert [c.sizes for c in made.coverage] == ["n=30..32", "n=33..64", "all other sizes"]
    for n in (0, 1, 29, 30, 31, 32, 33, 50, 64, 65, 300):
        x, y = np.random.default_rng(n).random((6, n), np.float32), np.full((6, n), 7, np.float32)
        made["softmax"](x, y, n)
        np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)


def test_records_carry_their_sizes(tmp_path: Path) -> None:
    log, f = tmp_path / "log.jsonl", product()
    tunesmith.tune(f, **grouped(log=log, trials=2, sizes="m=5..8", **QUICK))
    records = RecordLog(log).load().records
    assert len(records) == 2 and all(r.sizes is not None and str(r.sizes.box) == "m=5..8" for r in records)
    for r in records:
        assert Record.from_json(json.loads(json.dumps(r.to_json()))) == r
    (entry,) = show_log(log).data
    assert entry["workload"] == "product[m=5..8]" and entry["sizes"] == "m=5..8"
    again = tunesmith.tune(f, **grouped(log=log, trials=2, sizes="m=5..8", **QUICK))
    assert again.tasks[0].resumed == 2
    with pytest.warns(UnusedLogWarning):
        other = tunesmith.compile(product(), Target("llvm -num-cores=1" if TARGET.num_cores != 1 else "llvm -num-cores=2"), log)
    assert [c.status for c in other.coverage] == ["missing"]


@pytest.mark.parametrize(
    "sizes",
    [
        3,
        {},
        {"function": "x"},
        {"function": "x", "ranges": {}},
        {"function": "../x", "ranges": {"n": [1, 2]}},
        {"function": "x", "ranges": {"n": [0, 2]}},
        {"function": "x", "ranges": {"n": [3, 2]}},
        {"function": "x", "ranges": {"n": [1, 2**31]}},
        {"function": "x", "ranges": {"n": [1, True]}},
        {"function": "x", "ranges": {"n": [1]}},
        {"function": "x", "ranges": {"n": "12"}},
    ],
    ids=str,
)
def test_lines_with_wrong_sizes_are_refused(tmp_path: Path, sizes: object) -> None:
    log = tmp_path / "log.jsonl"
    tunesmith.tune(product(), **grouped(log=log, trials=1, sizes="m=5", **QUICK))
    (record,) = RecordLog(log).load().records
    with pytest.raises(RecordError, match="record line: field `sizes`: expected"):
        Record.from_json(record.to_json() | {"sizes": sizes})


def test_records_of_another_function_are_not_used(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tunesmith.tune(product(), **grouped(log=log, trials=1, sizes="m=5", **QUICK))
    (record,) = RecordLog(log).load().records
    assert record.sizes is not None
    wrong = Record.from_json(record.to_json() | {"sizes": {**record.sizes.to_json(), "ranges": {"m": [6, 9]}}})
    made = tunesmith.compile(product(), TARGET, Database([wrong]))
    assert [(c.status, c.sizes) for c in made.coverage] == [("refused", "m=6..9"), ("plain", "all other sizes")]
    check_product(made["product"], (6, 9))


def test_the_latest_of_overlapping_ranges_runs(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for sizes in ("m=5..8", "m=7"):
        tunesmith.tune(product(), **grouped(log=log, trials=1, sizes=sizes, **QUICK))
    made = tunesmith.compile(product(), TARGET, log)
    assert sorted(c.sizes for c in made.coverage) == ["all other sizes", "m=5..8", "m=7"]
    check_product(made["product"], SIZES)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (None, "product has dynamic shapes: pass the sizes to tune it for, as in sizes='m=1..128'"),
        ("k=1..4", "no workload has the size k; the dynamic sizes are m"),
        ("m=0..4", "sizes to tune for are from 1"),
        ("m=4..1", "is empty"),
    ],
)
def test_refusals(sizes: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        tunesmith.tune(product(), **grouped(log=tmp_path / "log.jsonl", trials=1, sizes=sizes, **QUICK))
    assert message in str(caught.value)
    assert not (tmp_path / "log.jsonl").exists()


def test_sizes_that_the_program_excludes_are_refused(tmp_path: Path) -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    f = te.create_prim_func([x, te.compute((n - 3,), lambda i: x[i + 3] * 2.0, "Y")], "shifted")
    with pytest.raises(UserError, match="shifted is not defined for n = 1: the extent .* of Y is negative"):
        tunesmith.tune(f, **grouped(log=None, trials=1, sizes="n=1..8", **QUICK))
    with pytest.raises(UserError, match="no workload has the size n; no workload has dynamic shapes"):
        tunesmith.tune("relu(shape=64)", **grouped(log=None, trials=1, sizes="n=1..8", **QUICK))


ROWS = """@T.prim_func
def rows(X: T.Buffer((n, 6), "float32"), Y: T.Buffer((n,), "float32"), n: T.int64):
    for i, k in T.grid(n, 6):
        with T.block("Y"):
            vi, vk = T.axis.remap("SS", [i, k])
            Y[vi] = Y[vi] + X[vi, vk]
"""


def test_notes_of_all_parts_are_reported_once() -> None:
    report = tunesmith.tune(parse(ROWS, "rows"), **grouped(log=None, trials=1, sizes="n=3..8", **QUICK))
    assert len(report.tasks) == 2
    (remark,) = [note for note in report.notes if "accumulates-over-spatial" in note]
    assert remark.startswith("rows: block Y: the axis vk is spatial")
    assert len([note for note in report.notes if "keeps plain loops" in note]) == 1


def test_spaces_of_all_parts_are_shown() -> None:
    shown = show_workload(product(), target=TARGET, sizes="m=5..16")
    names = ["product[m=5..8]", "product[m=9..16]"]
    assert [entry["workload"] for entry in shown.data] == names and all(entry["sketches"] for entry in shown.data)
    assert all(name in str(shown) for name in names)
    with pytest.raises(UserError, match=r"has dynamic shapes: pass the sizes to tune it for, .*--sizes 'm=1..128'"):
        show_workload(product(), target=TARGET)
    n = te.var("n")
    x = te.placeholder((n,), "uint8", name="x")
    y = te.scatter(lambda b: 0, (n,), lambda i: (te.cast("int64", x[i]),), lambda old, i: old + 1, shape=256, name="Y", dtype="int32")
    assert str(show_workload([x, y], target=TARGET, sizes="n=100,200")).count("runs serially") == 1


@pytest.fixture(scope="module")
def model() -> tuple[torch.nn.Module, IRModule]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5), torch.nn.Softmax(1)).eval()
    batch = {0: torch.export.Dim("batch", max=40)}
    return net, tunesmith.from_torch(net, (torch.randn(4, 12),), dynamic_shapes=(batch,))


def test_a_model_of_dynamic_batch(tmp_path: Path, model: tuple[torch.nn.Module, IRModule]) -> None:
    net, mod = model
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune(mod, **grouped(log=log, trials=2, sizes="batch=1,5..8", **QUICK))
    assert report.ok and len({t.workload.split("[")[0] for t in report.tasks}) == 3 and len(report.tasks) == 6
    made = tunesmith.compile(mod, TARGET, log, strict=True)
    assert {c.sizes for c in made.coverage} == {f"{name}" for name in {c.sizes for c in made.coverage}}
    assert sum(c.status == "used" for c in made.coverage) == 6
    made.export_library(tmp_path / "net.so")
    for call in (made, tunesmith.load_module(tmp_path / "net.so"), tunesmith.compile(mod, TARGET)):
        for n in (0, 1, 2, 5, 7, 8, 9, 40):
            x = torch.randn(n, 12)
            np.testing.assert_allclose(call(x), net(x).detach(), atol=1e-6)


def test_refusals_of_models(tmp_path: Path, model: tuple[torch.nn.Module, IRModule]) -> None:
    for sizes, message in (
        (None, "the model has the dynamic size batch: pass the sizes to tune it for, as in sizes='batch=1..128'"),
        ("n=1", "sizes= has nothing for batch"),
        ("batch=1..128", "main assumes batch < 41, which does not hold with batch = 64"),
        ("batch=1 n=1", "main has no size n; it has batch"),
    ):
        with pytest.raises(UserError) as caught:
            tunesmith.tune(model[1], **grouped(log=tmp_path / "log.jsonl", trials=1, sizes=sizes, **QUICK))
        assert message in str(caught.value)


def test_the_command_line(tmp_path: Path) -> None:
    path, log = tmp_path / "programs.py", tmp_path / "log.jsonl"
    path.write_text(
        "from tunesmith import te\n\n\ndef double():\n    n = te.var('n')\n    x = te.placeholder((n,), name='X')\n"
        "    return [x, te.compute((n,), lambda i: x[i] * 2.0, 'Y')]\n"
    )
    common = ["tune", f"{path}:double", "--target", "llvm", "--trials", "1", "--log", str(log), "--workers", "0"]
    refused = CliRunner().invoke(main, common)
    assert refused.exit_code == 2 and "--sizes 'n=1..128'" in refused.output
    shown = CliRunner().invoke(main, ["show", f"{path}:double", "--target", "llvm", "--sizes", "n=1..2"])
    assert shown.exit_code == 0 and "[n=1]" in shown.output and "[n=2]" in shown.output
    done = CliRunner().invoke(main, [*common, "--sizes", "n=1..2", "--sizes", "m=4"])
    assert done.exit_code == 2 and "no workload has the size m" in done.output
    done = CliRunner().invoke(main, [*common, "--sizes", "n=1..2"])
    assert done.exit_code == 0 and "[n=1]" in done.output and "[n=2]" in done.output
    library = tmp_path / "double.so"
    compiled = CliRunner().invoke(main, ["compile", f"{path}:double", "--target", "llvm", "--records", str(log), "-o", str(library)])
    assert compiled.exit_code == 0 and "1 function, 1 with a record" in compiled.output and "for n=2: record" in compiled.output
    stats = CliRunner().invoke(main, ["log", "stats", str(log), "--json", "-"])
    assert sorted(t["sizes"] for t in json.loads(stats.stdout)["tasks"]) == ["n=1", "n=2"]
    assert CliRunner().invoke(main, ["log", "verify", str(log)]).exit_code == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_along_a_dynamic_axis(tmp_path: Path, axis: int) -> None:
    """Its first iteration is apart from the others, which a size of 1 does not have."""
    n, log = te.var("n"), tmp_path / "log.jsonl"
    shape = (n, 5) if axis == 0 else (5, n)
    x = te.placeholder(shape, name="x")
    f = te.create_prim_func([x, te.scan(shape, lambda before, i, j: before + x[i, j], 0.0, axis=axis, name="Y")], "running")
    report = tunesmith.tune(f, **grouped(log=log, trials=2, sizes="n=1..20", **QUICK))
    assert report.ok
    call = tunesmith.compile(f, records=log)["running"]
    for size in (0, 1, 2, 5, 20, 33):
        a = np.random.default_rng(size).random((size, 5) if axis == 0 else (5, size), np.float32)
        y = np.full_like(a, np.nan)
        call(a, y, size)
        np.testing.assert_allclose(y, np.cumsum(a, axis), rtol=1e-5)


def test_a_function_whose_size_precedes_its_buffers_is_refused_before_it_is_measured() -> None:
    """No compiler takes it, while its candidates have constant sizes."""
    func = parse(
        """
@T.prim_func
def f(n: T.int64, X: T.Buffer((n,), "float32"), Y: T.Buffer((n,), "float32")):
    for i in T.serial(n):
        with T.block("y"):
            vi = T.axis.remap("S", [i])
            Y[vi] = X[vi] * 2.0
"""
    )
    with pytest.raises(UserError, match="f: the size n precedes the buffer X. Sizes follow the buffers"):
        tunesmith.tune(func, "llvm", None, sizes="n=1..8", budget=2, workers=0, progress=False)
