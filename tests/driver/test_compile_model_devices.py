"""Test models compiled for devices (CUDA with a GPU, else OpenCL), for CUDA without a GPU, and for host and device together."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.compile_model import CompiledModel
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Constant
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.cuda import CUDA
from tunesmith.runtime.device.device import Device, KernelLaunch, cpu
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.runtime.executor.executable import Executable
from tunesmith.support.errors import BuildError, RecordError, RunError, UserError

DEVICE = Device("cuda" if CUDA.count() else "opencl")
KIND, API = DEVICE.kind, DEVICE.api
pytestmark = (
    pytest.mark.gpu
    if KIND == "cuda"
    else pytest.mark.skipif(API.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
)
W = Constant("w", np.random.default_rng(2).standard_normal((8, 3)).astype("float32"))
X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype("float32")


def network() -> IRModule:
    """A convolution, a product, and a softmax; the results are the last and the first of them."""
    rng = np.random.default_rng(1)
    b = GraphBuilder()
    w = b.constant(rng.standard_normal((8, 3, 3, 3)).astype("float32"), "w")
    v = b.constant(rng.standard_normal((64, 10)).astype("float32"), "v")
    y = b.relu(b.conv2d(b.input("x", X.shape), w, padding=(1, 1, 1, 1)))
    return IRModule({"main": b.finish(b.softmax(b.matmul(b.reshape(y, shape=(8, 64)), v)), y)})


def expected() -> list[np.ndarray]:
    mod = network()
    return run(mod["main"], [X], mod)


def same(found: object) -> None:
    assert isinstance(found, tuple)
    for a, e in zip(found, expected(), strict=True):
        np.testing.assert_allclose(a.numpy() if isinstance(a, DeviceArray) else a, e, rtol=2e-5, atol=2e-6)


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    made = tunesmith.compile(network(), KIND)
    assert isinstance(made, CompiledModel)
    return made


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, int]]]:
    """The copies of the device: kinds of both memories, and bytes."""
    seen: list[tuple[str, str, int]] = []
    real = API.copy

    def copy(source, target, nbytes, *rest, **more):  # type: ignore[no-untyped-def]
        seen.append((source.device.kind, target.device.kind, nbytes))
        real(source, target, nbytes, *rest, **more)

    monkeypatch.setattr(API, "copy", copy)
    yield seen


def test_arrays_of_the_host(model: CompiledModel, copies: list[tuple[str, str, int]]) -> None:
    same(model(X))
    del copies[:]
    same(model(X))
    assert copies == [("cpu", KIND, X.nbytes), (KIND, "cpu", 2048), (KIND, "cpu", 320)]
    assert model.executor.devices == (KIND,) and model.target.kind == KIND


def test_arrays_of_the_device_are_not_copied(model: CompiledModel, copies: list[tuple[str, str, int]]) -> None:
    there = DeviceArray.from_numpy(DEVICE, X)
    model(there)
    del copies[:]
    made = model(there)
    assert not copies and all(isinstance(a, DeviceArray) and a.device == DEVICE for a in made)
    same(made)
    same(model(X))


def test_repeated_runs_use_the_same_memory(model: CompiledModel) -> None:
    for x in (X, DeviceArray.from_numpy(DEVICE, X)):
        model.set_input("x", x)
        model.run()
        first = model.get_output(0)
        model.run()
        again = model.get_output(0)
        assert isinstance(again, type(first)) and (again is first or np.may_share_memory(again, first))
        same((model.get_output(0), model.get_output(1)))


def test_work_runs_on_the_current_stream(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    for name in ("launch", "launch_graph"):
        real = getattr(API, name)
        monkeypatch.setattr(API, name, lambda *a, real=real: (seen.add(a[-1]), real(*a))[1])
    model(X)
    stream = API.create_stream(0)
    try:
        with API.using_stream(0, stream):
            same(model(X))
        assert seen == {0, stream}
        same(model(X))
    finally:
        API.free_stream(0, stream)


def test_a_run_waits_for_the_one_before_on_another_stream(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use the same memory; the stream before may have been freed."""
    waits: list[tuple[str, int]] = []
    for name in ("sync_streams", "wait_event"):
        real = getattr(API, name)
        monkeypatch.setattr(API, name, lambda *a, name=name, real=real: (waits.append((name, a[-1])), real(*a))[1])
    there = DeviceArray.from_numpy(DEVICE, X)
    model(there)
    del waits[:]
    first, second = API.create_stream(0), API.create_stream(0)
    with API.using_stream(0, first):
        model(there)
    assert ("wait_event", first) in waits or ("sync_streams", first) in waits
    API.free_stream(0, first)
    del waits[:]
    with API.using_stream(0, second):
        same(model(there))
        API.synchronise(0, second)
    assert waits == [("wait_event", second)]
    API.free_stream(0, second)
    same(model(there))


def test_the_condition_of_a_branch_is_taken_from_the_array_that_was_set_last() -> None:
    b = GraphBuilder()
    x, c = b.input("x", (4,)), b.input("c", (), "bool")
    made = tunesmith.compile(IRModule({"main": b.finish(b.branch(c, lambda r: r.relu(x), lambda r: r.neg(x)))}), KIND)
    assert isinstance(made, CompiledModel)
    values = np.array([-1, 0, 1, 2], "float32")
    made.set_input("x", DeviceArray.from_numpy(DEVICE, values))
    for holds in (True, False, True):
        made.set_input("c", DeviceArray.from_numpy(DEVICE, np.array(holds)))
        made.run()
        np.testing.assert_array_equal(made.get_output(0).numpy(), np.maximum(values, 0) if holds else -values)


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_results_of_a_loop_whose_initial_value_is_computed_on_the_device(executor: str) -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4,)), b.constant(np.full((4, 4), 0.25, "float32"))
    step = lambda r, t, v: ((r.add(r.square(v), x),), (v,))  # noqa: E731
    y, rows = b.loop(2, [b.tanh(x)], step)
    mod = IRModule({"main": b.finish(y, y, b.relu(b.matmul(y, w)), rows, b.reshape(y, shape=(2, 2)))})
    made = tunesmith.compile(mod, KIND, executor=executor)
    assert isinstance(made, CompiledModel)
    values = np.array([-1, 0, 0.5, 0.25], "float32")
    want = run(mod["main"], [values])
    for given in (values, DeviceArray.from_numpy(DEVICE, values)):
        for found, w_ in zip(made(given), want, strict=True):
            np.testing.assert_allclose(found.numpy() if isinstance(found, DeviceArray) else found, w_, rtol=1e-5, atol=1e-6)


def test_an_output_as_the_next_input_is_copied() -> None:
    b = GraphBuilder()
    made = tunesmith.compile(IRModule({"main": b.finish(b.add(b.input("x", (4,)), b.constant(np.ones(4, "float32"))))}), KIND)
    assert isinstance(made, CompiledModel)
    made.set_input(0, DeviceArray.from_numpy(DEVICE, np.zeros(4, "float32")))
    for n in range(3):
        made.run()
        assert made.get_output(0).numpy().tolist() == [n + 1.0] * 4
        made.set_input(0, made.get_output(0))


def test_the_profile_is_of_device_events(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(API, "elapsed", lambda *a: 0.25)
    rows = model.profile(X, repeats=3)
    assert rows[0].function == "fused_conv2d_relu" and all(r.calls == 3 and r.microseconds == 250_000 for r in rows)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that start kernels.  On a device without graphs, a graph launches its kernels one after the other."""
    seen: list[str] = []
    graphs: list[list[KernelLaunch]] = []

    def create_graph(index: int, launches: Sequence[KernelLaunch]) -> int:
        graphs.append(list(launches))
        return len(graphs) - 1

    def launch_graph(index: int, graph: int, stream: int = 0) -> None:
        for x in graphs[graph]:
            launch(index, *x, stream)

    launch = API.launch
    if not API.has_graphs:
        monkeypatch.setattr(type(API), "has_graphs", True)
        monkeypatch.setattr(API, "create_graph", create_graph)
        monkeypatch.setattr(API, "update_graph", lambda index, graph, position, x: graphs[graph].__setitem__(position, x))
        monkeypatch.setattr(API, "launch_graph", launch_graph)
        monkeypatch.setattr(API, "free_graph", lambda index, graph: graphs[graph].clear())
    for name in ("launch", "launch_graph"):
        real = getattr(API, name)
        monkeypatch.setattr(API, name, lambda *a, name=name, real=real: (seen.append(name), real(*a))[1])
    return seen


def test_launches_are_started_as_graphs(started: list[str]) -> None:
    """From the second run on, with the arrays and on the stream of each run; calls on the host are between them."""
    mod = network()
    for place, launches, alone in (({}, 4, 0), ({"*permute_dims*": "llvm"}, 3, 1)):
        made = tunesmith.compile(mod, KIND, place=place)
        assert isinstance(made, CompiledModel)
        del started[:]
        for factor in (1, 2, 1):
            x = factor * X
            want = run(mod["main"], [x], mod)
            for given in (x, DeviceArray.from_numpy(DEVICE, x)):
                for found, e in zip(made(given), want, strict=True):
                    np.testing.assert_allclose(found.numpy() if isinstance(found, DeviceArray) else found, e, rtol=2e-5, atol=2e-6)
        assert started[:launches] == ["launch"] * launches and started.count("launch_graph") == 5
        assert started[launches:].count("launch") == 5 * alone
        stream = API.create_stream(0)
        with API.using_stream(0, stream):
            same(made(X))
        API.free_stream(0, stream)
        same(made(X))


def test_graphs_in_branches_and_loops(started: list[str]) -> None:
    b = GraphBuilder()
    x = b.input("x", (8,))
    positive = b.greater(b.sum(x), b.constant(np.float32(0)))
    y = b.branch(
        positive, lambda r: r.tanh(r.matmul(r.reshape(x, shape=(1, 8)), W)), lambda r: r.matmul(r.reshape(r.neg(x), shape=(1, 8)), W)
    )
    mod = IRModule({"main": b.finish(y, *b.loop(3, [x], lambda r, t, v: ((r.softmax(r.add(r.square(v), x)),), ())))})
    made = tunesmith.compile(mod, KIND)
    for sign in (1, -1, 1, -1, 1):
        value = np.linspace(0, 1, 8, dtype="float32") * np.float32(sign)
        for a, e in zip(made(value), run(mod["main"], [value], mod), strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
    assert "launch_graph" in started


def test_parts_on_the_host(copies: list[tuple[str, str, int]]) -> None:
    made = tunesmith.compile(network(), KIND, place={"*softmax*": "llvm"})
    assert isinstance(made, CompiledModel)
    same(made(X))
    del copies[:]
    same(made(X))
    assert copies == [("cpu", KIND, X.nbytes), (KIND, "cpu", 320), (KIND, "cpu", 2048)]
    assert "G.transfer(matmul" in str(made.module["main"]) and "(copy)" in [r.function for r in made.profile(X)]


def test_a_model_of_the_host_with_a_part_on_the_device() -> None:
    made = tunesmith.compile(network(), place={"*conv2d*": KIND})
    assert isinstance(made, CompiledModel) and made.executor.devices == (KIND,)
    same(made(X))


@pytest.mark.parametrize("parameters", ["inside", "beside"])
def test_an_exported_library(model: CompiledModel, parameters: str, tmp_path: Path) -> None:
    path = model.export_library(tmp_path / "lib.so", parameters)
    same(tunesmith.load_module(path)(X))
    np.save(tmp_path / "x.npy", X)
    script = "import sys, numpy as np, tunesmith; print(repr(tunesmith.load_module(sys.argv[1])(np.load(sys.argv[2]))[0].sum()))"
    found = subprocess.run([sys.executable, "-c", script, path, tmp_path / "x.npy"], capture_output=True, text=True, check=True)
    assert "8." in found.stdout or "7.99" in found.stdout


def test_the_executable_is_data(model: CompiledModel) -> None:
    data = model.executable.to_bytes()
    again = Executable.from_bytes(data)
    assert again.device_programs == model.executable.device_programs and again.to_bytes() == data and again.data is None
    cut = dict(model.executable.program, devices={"nothing": []})
    for program, text in ((cut, "needs a device of kind 'nothing'"), (cut | {"devices": 7}, "devices of the program are malformed")):
        with pytest.raises(RunError, match=text):
            tunesmith.runtime.module.load_executable(Executable("graph", program, model.executable.constants))


def test_branches_run_on_the_virtual_machine() -> None:
    b = GraphBuilder()
    x = b.input("x", (8,))
    positive = b.greater(b.sum(x), b.constant(np.float32(0)))
    mod = IRModule({"main": b.finish(b.branch(positive, lambda i: i.exp(x), lambda i: i.reshape(i.neg(x), shape=(8,))), b.abs(x))})
    made = tunesmith.compile(mod, KIND)
    assert isinstance(made, CompiledModel) and made.executor.kind == "vm" and made.executor.devices == (KIND,)
    for sign in (1, -1, 1):
        value = np.linspace(0, 1, 8, dtype="float32") * np.float32(sign)
        for a, e in zip(made(value), run(mod["main"], [value], mod), strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-6)


def test_dynamic_shapes_run_on_the_host() -> None:
    n = tunesmith.ir.poly.Var("n")
    b = GraphBuilder()
    x = b.input("x", (n, 4))
    y = b.exp(b.constant(np.ones((4, 4), "float32"), "c"))
    mod = IRModule({"main": b.finish(b.matmul(b.relu(x), y))})
    made = tunesmith.compile(mod, KIND)
    value = np.ones((3, 4), "float32")
    np.testing.assert_allclose(made(value), run(mod["main"], [value], mod)[0], rtol=1e-6)


def test_cuda_without_a_gpu(tmp_path: Path) -> None:
    made = tunesmith.compile(network(), "cuda -arch=sm_90")
    assert isinstance(made, CompiledModel)
    (program,) = [DeviceProgram.from_bytes(p) for p in made.executable.device_programs]
    assert program.arch == "sm_90" and program.code.startswith(b"\x7fELF")
    path = made.export_library(tmp_path / "lib.so")
    assert program.code in path.read_bytes()
    assert hashlib.sha256(made.export_library(tmp_path / "again.so").read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest()
    if CUDA.count() == 0:
        with pytest.raises(RunError, match=r"there is no cuda\(0\)"):
            made(X)


@pytest.mark.skipif(KIND == "cuda", reason="takes half a minute, and tests no more than on OpenCL")
def test_records_of_both_targets_in_one_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune(network(), KIND, log, budget=2, search=tunesmith.Search(leaders=0), workers=0, progress=False)
    assert {t.workload for t in report.tasks} >= {"fused_conv2d_relu", "op_matmul"}
    made = tunesmith.compile(network(), KIND, log, strict=True)
    assert {c.status for c in made.coverage} == {"used"}
    same(made(X))
    host = Target.detect()
    with pytest.raises(RecordError, match="op_softmax.*its records are for other targets"):
        tunesmith.compile(network(), KIND, log, strict=True, place={"op_softmax": host})
    tunesmith.tune(network(), host, log, budget=2, search=tunesmith.Search(check_models=False, leaders=0), workers=0, progress=False)
    assert len({r.target["kind"] for r in Database.from_log(log).records()}) == 2
    mixed = tunesmith.compile(network(), KIND, log, strict=True, place={"op_softmax": host})
    same(mixed(X))


def test_refusals(model: CompiledModel) -> None:
    with pytest.raises(BuildError, match=f'the backend of {KIND} compiles no models ahead of time. Use executor="graph"'):
        tunesmith.compile(network(), KIND, executor="aot")
    with pytest.raises(BuildError, match='run with executor="graph" or "vm"'):
        tunesmith.compile(network(), executor="aot", place={"op_softmax": KIND})
    with pytest.raises(BuildError, match="checks are generated for CPUs only"):
        tunesmith.compile(network(), KIND, bounds_check=True)
    with pytest.raises(UserError, match="place='nothing' matches no function of the model"):
        tunesmith.compile(network(), KIND, place={"nothing": "llvm"})
    for place, message in ((["*"], r"place=\['\*'\]: it maps patterns"), ("*", "place='\\*': it maps"), ({1: "llvm"}, "1 is no pattern")):
        with pytest.raises(UserError, match=message):
            tunesmith.compile(network(), place=place)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="place=.* is for models"):
        tunesmith.compile("relu(shape=4)", KIND, place={"relu": "llvm"})
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[1, 3, 8, 8\]\): got dtype float64"):
        model(DeviceArray.from_numpy(DEVICE, X.astype("float64")))
    with pytest.raises(RunError, match=r"got shape \[1, 3, 8\]"):
        model(DeviceArray.from_numpy(DEVICE, X[..., 0]))
    with pytest.raises(RunError, match=r"got shape \[1, 3, 4, 8\]"):
        model(DeviceArray.from_numpy(DEVICE, X[:, :, :4]))
    with pytest.raises(UserError, match=f"offload: blas makes code for the host, and the target is {KIND}"):
        tunesmith.compile(network(), KIND, offload=["blas"])


def test_arrays_in_memory_of_the_host(model: CompiledModel) -> None:
    """Also those that are `DeviceArray`s."""
    for found, e in zip(model(DeviceArray.from_numpy(cpu(), X)), expected(), strict=True):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, e, rtol=2e-5, atol=2e-6)
