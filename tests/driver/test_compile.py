"""Compile and build: applied records, coverage, determinism, refusals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.codegen import build as codegen_build
from tunesmith.codegen.backends.backend import backend_of
from tunesmith.driver.compile_records import UnusedLogWarning
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.instrument import Instrument, InstrumentError
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.ops.workload import workload
from tunesmith.passes import CPU, GRAPH, PassContext, function_pass, module_pass
from tunesmith.runtime.timing import LONGEST
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError, RecordError, RunError, ScriptError, UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def check(module: tunesmith.CompiledModule, text: str, name: str | None = None) -> None:
    """Assert that the compiled workload matches numpy."""
    w = workload(text)
    inputs = w.random_inputs()
    (spec,) = w.outputs
    out = np.full(spec.shape, np.nan, spec.dtype)
    module[name or w.name](*inputs, out)
    np.testing.assert_allclose(out, w.reference(inputs)[0], rtol=1e-4, atol=1e-5)


def test_a_log_is_applied(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    for records in (log, str(log), Database.from_log(log)):
        module = tunesmith.compile(hand.MATMUL, hand.TARGET, records, strict=True)
        assert [c.status for c in module.coverage] == ["used"]
        check(module, hand.MATMUL)
    assert module.artifact.functions == ("matmul",)


def test_every_form_of_a_program_compiles(hand: ModuleType, tmp_path: Path) -> None:
    func = hand.matmul()
    sch = tunesmith.Schedule(func)
    hand.tiled(sch)
    a = te.placeholder((24, 16), name="A")
    b = te.placeholder((16, 32), name="B")
    k = te.reduce_axis(16, "k")
    c = te.compute((24, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    file = tmp_path / "mine.py"
    file.write_text("from tunesmith.ops.workload import workload\n\ndef small():\n    return workload('matmul(m=24,n=32,k=16)').func\n")
    for mod in (func, IRModule([func]), sch, sch.mod, hand.MATMUL, workload(hand.MATMUL), [a, b, c], f"{file}:small"):
        module = tunesmith.compile(mod)
        check(module, hand.MATMUL, module.functions[0])
    for built in (tunesmith.build(func), tunesmith.build(sch, "llvm"), tunesmith.build(sch.mod, hand.TARGET)):
        check(built, hand.MATMUL)


def test_unscheduled_functions_of_every_form_are_scheduled_and_others_are_not(hand: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    from tunesmith.codegen.llvm import build as llvm_build

    emit = llvm_build.emit_text

    def spy(funcs, target, pipeline):  # type: ignore[no-untyped-def]
        seen.append({n.kind for f in funcs for n in walk(f.body) if type(n) is For})
        return emit(funcs, target, pipeline)

    monkeypatch.setattr(llvm_build, "emit_text", spy)
    large = "matmul(m=64,n=64,k=64)"
    tunesmith.compile(large)
    tunesmith.compile(workload(large).func)
    tunesmith.compile(workload(large).func, records=Database())
    tunesmith.build(workload(large).func)
    tunesmith.compile(Schedule(workload(large).func))
    assert all("vectorized" in kinds for kinds in seen[:3]) and seen[3:] == [{"serial"}, {"serial"}]


def test_strict_refuses_and_lists(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    mod = IRModule([hand.matmul(), workload("relu(shape=8x8)").func])
    with pytest.raises(RecordError, match=r"1 of 2 functions[^$]*relu"):
        tunesmith.compile(mod, hand.TARGET, log, strict=True)
    loose = tunesmith.compile(mod, hand.TARGET, log)
    assert {c.function: c.status for c in loose.coverage} == {"matmul": "used", "relu": "missing"}
    check(loose, "relu(shape=8x8)")
    with pytest.raises(UserError, match="no records were given"):
        tunesmith.compile(mod, strict=True)


def test_a_record_of_another_target_is_not_used(hand: ModuleType) -> None:
    other = Target("llvm -mcpu=x86-64-v3 -num-cores=7")
    database = Database([hand.record_of(hand.matmul(), target=other)])
    with pytest.warns(UnusedLogWarning, match="its records are for other targets"):
        assert [c.status for c in tunesmith.compile(hand.MATMUL, hand.TARGET, database).coverage] == ["missing"]
    with pytest.raises(RecordError, match="for other targets"):
        tunesmith.compile(hand.MATMUL, hand.TARGET, database, strict=True)


def test_two_processes_make_the_same_bytes(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    program = (
        "import hashlib, json, sys, tunesmith\n"
        "made = [tunesmith.compile(w, records=sys.argv[1]) for w in (sys.argv[2], 'softmax(m=16,n=40)')]\n"
        "print(json.dumps([hashlib.sha256(m.artifact.data).hexdigest() for m in made]))\n"
    )
    found = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(log), hand.MATMUL],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    here = tunesmith.compile(hand.MATMUL, records=log)
    assert hashlib.sha256(here.artifact.data).hexdigest() == found[0][0]


def test_a_module_exports_times_and_is_called(hand: ModuleType, tmp_path: Path) -> None:
    module = tunesmith.compile("relu(shape=64)")
    x, y = np.linspace(-1, 1, 64, dtype=np.float32), np.empty(64, np.float32)
    module(x, y)
    assert np.array_equal(y, np.maximum(x, 0))
    samples = module.time(
        x, y, name="relu", policy=tunesmith.runtime.timing.TimingPolicy(number=2, repeats=2, window_s=0.0, quiet_fraction=9e9)
    )
    assert len(samples.seconds) >= 2
    y[:] = 0
    tunesmith.load_module(module.export_library(tmp_path / "relu.so"))["relu"](x, y)
    assert np.array_equal(y, np.maximum(x, 0))
    two = tunesmith.compile(IRModule([hand.matmul(), workload("relu(shape=64)").func]))
    with pytest.raises(UserError, match="module of matmul, relu .* has several functions: call one of them"):
        two(x, y)
    with pytest.raises(RunError, match="shape"):
        module(x, y[:5])


@pytest.mark.parametrize(
    ("mod", "target", "error", "message"),
    [
        (3, None, UserError, "a workload is a text"),
        ("matmul(m=1)", None, UserError, "parameter n is missing"),
        (IRModule(), None, BuildError, "nothing to compile"),
        ("nowhere.py:f", None, UserError, "there is no file nowhere.py"),
    ],
)
def test_invalid_arguments_are_refused(mod: object, target: str | None, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        tunesmith.compile(mod, target)  # type: ignore[arg-type]


def test_build_takes_programs_only_and_missing_logs_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="build takes a PrimFunc"):
        tunesmith.build("relu(shape=8)")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="none.jsonl"):
        tunesmith.compile("relu(shape=8)", records=tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    RecordLog(empty).append()
    empty.touch()
    assert tunesmith.compile("relu(shape=8)", records=empty).coverage[0].status == "missing"


def packing(func: PrimFunc) -> tunesmith.Schedule:
    s = tunesmith.Schedule(func)
    s.annotate(s.cache_read(s.get_block("C"), "W", "global", [[1, "/", 8], 0, [1, "%", 8]]), "pack_constant", "W")
    return s


def test_a_bound_call_packs_its_weights_once() -> None:
    w = workload("dense(m=3,n=20,k=5,bias=0)")
    module = tunesmith.build(packing(w.func))
    check(module, w.text)  # an unbound call packs every time
    a, weights = w.random_inputs()
    out = np.zeros((3, 20), np.float32)
    call = module.bind(a, weights, out)
    taken = weights.copy()
    weights[...] = 7
    a[...] = 2
    call()
    np.testing.assert_allclose(out, a @ taken, rtol=1e-4, atol=1e-5)
    assert module.artifact.functions == ("dense",)


def test_bind_refuses_invalid_arguments() -> None:
    one = workload("dense(m=3,n=20,k=5,bias=0)").func
    module = tunesmith.build(IRModule([packing(one).func, workload("matmul(m=2,n=3,k=4)").func]))
    with pytest.raises(UserError, match=r"<module of dense, matmul .* has several functions: call one of them"):
        module.bind()
    with pytest.raises(UserError, match=r"no function 'conv'. It has: dense, matmul"):
        module.bind(name="conv")
    with pytest.raises(RunError, match=r"W"):
        module.bind(np.zeros((3, 5), np.float32), np.zeros((5, 21), np.float32), np.zeros((3, 20), np.float32), name="dense")
    with pytest.raises(RunError, match=r"got 1 argument\(s\), but argument 1 is a constant"):
        module.bind(np.zeros((3, 5), np.float32), name="dense")
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(RunError, match=r"matmul: expected 3 argument\(s\), got 1"):
        module.bind(x, name="matmul")()
    with pytest.raises(RunError, match=r"matmul: argument 2 \(C\): .* got a value of type int"):
        module.bind(x, np.zeros((4, 3), np.float32), 3, name="matmul")()


@T.prim_func
def add_one(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + 1.0


def locked(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def test_read_only_arrays_are_passed_where_the_function_only_reads(hand: ModuleType, tmp_path: Path) -> None:
    module = tunesmith.build(add_one)
    np.save(tmp_path / "a.npy", np.ones((4, 4), "float32"))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for a in (locked(np.ones((4, 4), "float32")), mapped):
        for call in (module, module["add_one"], lambda *x: module["add_one"].bind(*x)(), lambda *x: module.bind(*x)()):
            c = np.zeros((4, 4), "float32")
            call(a, c)
            assert (c == 2).all() and not a.flags.writeable
    a, c = np.ones((4, 4), "float32"), locked(np.zeros((4, 4), "float32"))
    for call in (module, lambda *x: module["add_one"].bind(*x)(), lambda *x: module.bind(*x)()):
        with pytest.raises(RunError, match=r"add_one: argument 1 \(C\) is a read-only array, and the function writes it"):
            call(a, c)
    assert (c == 0).all()
    with pytest.raises(RunError, match=r"add_one: argument 0 \(A\): expected float32\[4, 4\], got shape \[2, 4\]"):
        module(locked(a[:2]), np.zeros((4, 4), "float32"))
    with pytest.raises(RunError, match=r"argument 0 \(A\): .* got strides \[1, 4\]"):
        module(locked(np.ones((4, 4), "float32")).T, np.zeros((4, 4), "float32"))
    with pytest.raises(RunError, match="memory"):
        module(locked(a[:]), a)
    path = module.export_library(tmp_path / "add_one.so")
    with pytest.raises(RunError, match="argument 0 is a read-only array, .* Pass a writable copy: only functions compiled in this process"):
        tunesmith.load_module(path)["add_one"](locked(a), np.zeros((4, 4), "float32"))


def test_bfloat16_arrays_of_numpy_are_passed() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    func = parse(str(add_one).replace("float32", "bfloat16").replace("1.0", "T.bfloat16(1.0)"))
    module = tunesmith.build(func)
    for a in (np.ones((4, 4), bfloat16), locked(np.ones((4, 4), bfloat16))):
        for call in (module, lambda *x: module["add_one"].bind(*x)(), lambda *x: module.bind(*x)()):
            c = np.zeros((4, 4), bfloat16)
            call(a, c)
            assert (c.astype("float32") == 2).all()
    with pytest.raises(RunError, match=r"argument 1 \(C\) is a read-only array, and the function writes it"):
        module(np.ones((4, 4), bfloat16), locked(np.zeros((4, 4), bfloat16)))
    with pytest.raises(RunError, match=r"argument 0 \(A\): expected float32\[4, 4\], got dtype bfloat16"):
        tunesmith.build(add_one)(np.ones((4, 4), bfloat16), np.zeros((4, 4), "float32"))


def test_a_model_cannot_be_built_or_scheduled() -> None:
    builder = GraphBuilder("main")
    model = IRModule([builder.finish(builder.relu(builder.input("x", (4,))))])
    with pytest.raises(BuildError, match="the module is a model, .* Take tunesmith.compile"):
        tunesmith.build(model)
    for name in (None, "main"):
        with pytest.raises(ScriptError, match="the module is a model: main calls operators and is not a PrimFunc. Use tunesmith.tune"):
            tunesmith.Schedule(model, func_name=name)
    with pytest.raises(ScriptError, match="the module is empty"):
        tunesmith.Schedule(IRModule([]))


@pytest.mark.parametrize("loaded", [False, True], ids=["compiled", "loaded"])
@pytest.mark.parametrize("kind", ["functions", "model"])
def test_functions_and_models_answer_to_the_same_calls(kind: str, loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LONGEST, raising=False)
    x, out = np.arange(-4, 4, dtype=np.float32), np.empty(8, np.float32)
    b = GraphBuilder("main")
    model = IRModule([b.finish(b.relu(b.input("x", (8,))))])
    made = tunesmith.compile(model if kind == "model" else "relu(shape=8)", TARGET)
    assert isinstance(made, tunesmith.CompiledModule) == (kind == "functions")
    lib = tunesmith.load_module(made.export_library(tmp_path / "lib.so")) if loaded else made
    assert isinstance(lib, tunesmith.Compiled)
    (name,) = lib.functions
    assert name == ("main" if kind == "model" else "relu") and list(lib) == [name] and name in lib and "absent" not in lib
    copied = tunesmith.load_module(lib.export_library(tmp_path / "copy.so"))
    given = (x,) if kind == "model" else (x, out)
    for call in (partial(lib, *given), partial(lib[name], *given), lib.bind(*given), lib.bind(*given, name=name), partial(copied, *given)):
        out.fill(-1)
        returned = call()
        np.testing.assert_array_equal(returned if kind == "model" else out, np.maximum(x, 0))
    assert len(lib.time(*given, name=name, repeats=2).seconds) >= 2 and lib.time(*given, repeats=np.int64(1)).median > 0
    (row,) = lib.profile(*given, name=name, repeats=2)
    assert row.microseconds > 0 and row.calls == 2
    for refused in (lib.bind, lib.time, lib.profile):
        with pytest.raises(RunError, match="no (callable )?function 'absent'"):
            refused(*given, name="absent")
    for repeats in (0, 1.5, True, "2"):
        for refused in (lib.time, lib.profile):
            with pytest.raises(UserError, match=f"repeats={repeats!r}"):
                refused(*given, repeats=repeats)


def test_a_module_of_several_functions_wants_a_name() -> None:
    lib = tunesmith.compile(IRModule([workload(t).func for t in ("relu(shape=8)", "gelu(shape=8)")]), TARGET)
    x = np.zeros(8, np.float32)
    for call in (lib, lib.bind, lib.time, lib.profile):
        with pytest.raises(UserError, match="<module of gelu, relu .* has several functions"):
            call(x, x.copy())
    assert lib.time(x, x.copy(), name="gelu", repeats=1).median > 0


# ---- pipelines and contexts ----------------------------------------------------------------------------------------------------


def graph() -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (4, 8))
    return IRModule({"main": b.finish(b.softmax(b.relu(x)))})


def test_lowering_and_pipeline_are_values() -> None:
    seen: list[str] = []

    @function_pass(requires="FLAT")
    def look(func: PrimFunc, target: Target) -> PrimFunc:
        seen.append(func.name)
        return func

    @module_pass
    def look_at_graph(mod: IRModule) -> IRModule:
        seen.append("graph")
        return mod

    lowering = CPU.insert_after("flatten_buffers", look)
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    y = np.empty_like(x)
    tunesmith.build(workload("relu(shape=4x8)").func, TARGET, lowering=lowering)(x, y)
    assert np.array_equal(y, np.maximum(x, 0)) and seen == ["relu"]
    tunesmith.compile("relu(shape=4x8)", TARGET, lowering=lowering)(x, y)
    assert seen == ["relu"] * 2
    seen.clear()
    model = tunesmith.compile(graph(), TARGET, pipeline=GRAPH.without("fuse_operators") + look_at_graph, lowering=lowering)
    assert seen == ["graph", "op_relu", "op_softmax"]
    np.testing.assert_allclose(model(x), tunesmith.compile(graph(), TARGET)(x), rtol=1e-6)


def test_a_context_steers_graph_and_lowering_passes() -> None:
    names: list[str] = []

    class Names(Instrument):
        def after(self, name: str, before: object, after: object, seconds: float) -> None:
            names.append(name)

    with PassContext(level=1, options={"fuse_operators": {"most": 1}}, required=["fuse_operators"], instruments=[Names()]):
        model = tunesmith.compile(graph(), TARGET)
    assert [c.function for c in model.coverage] == ["op_relu", "op_softmax"]
    assert {"fuse_operators", "simplify", "apply_records"} < set(names) and not {"convert_layout", "version_loops"} & set(names)
    # Candidates of the analytic model are lowered on trial, which instruments do not see.
    assert names.count("lower_blocks") == 2


def test_wrong_pipelines_are_refused() -> None:
    wrong: Any = [CPU.passes[0]]
    with pytest.raises(UserError, match=r"lowering=\[.*: give a tunesmith.Pipeline, such as tunesmith.passes.GRAPH \+ my_pass"):
        tunesmith.build(workload("relu(shape=8)").func, TARGET, lowering=wrong)
    with pytest.raises(UserError, match="lowering= has passes of whole modules .*: those of models are the argument pipeline="):
        tunesmith.compile(graph(), TARGET, lowering=GRAPH)
    with pytest.raises(UserError, match="pipeline= has the passes of scheduled functions .*: those are the argument lowering="):
        tunesmith.compile(graph(), TARGET, pipeline=CPU)
    with pytest.raises(UserError, match="pipeline='graph': give a tunesmith.Pipeline"):
        tunesmith.compile(graph(), TARGET, pipeline="graph")  # type: ignore[call-overload]
    with pytest.raises(UserError, match="pipeline= is for models; this module has no graph function `main`"):
        tunesmith.compile("relu(shape=8)", TARGET, pipeline=GRAPH)
    for make in (tunesmith.compile, tunesmith.build):
        with pytest.raises(UserError, match="bounds_check=True has passes of its own: without it, lowering= replaces the passes"):
            make(workload("relu(shape=8)").func, TARGET, bounds_check=True, lowering=CPU)


def test_a_backend_without_other_passes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    func = workload("relu(shape=8)").func
    other = dataclasses.replace(backend_of(TARGET), build=lambda functions, target, packing: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(codegen_build, "backend_of", lambda target: other)
    with pytest.raises(
        BuildError, match="the backend of llvm takes no other passes: leave out lowering=, and steer its own by a PassContext"
    ):
        codegen_build.build([func], TARGET, lowering=CPU)
    with pytest.raises(BuildError, match="bounds_check=True has passes of its own"):
        codegen_build.build([func], TARGET, bounds_check=True, lowering=CPU)


def test_an_error_of_an_instrument_does_not_replace_records(hand: ModuleType) -> None:
    class Fails(Instrument):
        def after(self, name: str, before: object, after: object, seconds: float) -> None:
            if name == "flatten_buffers":
                raise ValueError("no")

    with pytest.raises(InstrumentError, match="the instrument Fails failed in after of the pass 'flatten_buffers': ValueError: no"):
        with PassContext(instruments=[Fails()]):
            tunesmith.compile(hand.matmul(), hand.TARGET, Database([hand.record_of(hand.matmul())]))


def test_records_of_other_passes_are_not_used(hand: ModuleType) -> None:
    with PassContext(disabled=["version_loops"]):
        changes = PassContext.current().changes(CPU)
    database = Database([hand.record_of(hand.matmul(), passes=changes)])
    found = tunesmith.compile(hand.matmul(), hand.TARGET, database).coverage[0]
    assert found.status == "missing" and 'measured with other passes: {"without":["version_loops"]}' in found.reason
    with PassContext(disabled=["version_loops"]):
        assert tunesmith.compile(hand.matmul(), hand.TARGET, database).coverage[0].status == "used"
