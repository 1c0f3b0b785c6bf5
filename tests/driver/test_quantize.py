"""Test quantisation after training: error bounds, ranges and percentiles, what is skipped, arguments of every kind, refusals."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.compile_model import compile_model
from tunesmith.driver.quantize import OutputError
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.name_patterns import PatternWarning
from tunesmith.graph.ir.node import Call, Constant, If, Operand, all_bindings
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.script_printer import large_constants
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm").with_attributes(num_cores=2)


@pytest.fixture(autouse=True)
def default_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration without a second of search for each function."""
    import tunesmith.driver.quantize as module

    monkeypatch.setattr(module, "compile", lambda mod, target: compile_model(mod, TARGET, untuned=default_schedule))


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return stream(seed, "quantise", *shape).standard_normal(shape).astype(np.float32)


def network(rows: Any = 8, bias: bool = True, gain: float = 1.0) -> IRModule:
    """Two layers whose weights have names."""
    b = GraphBuilder("main")
    x = b.input("x", (rows, 16))
    y = b.matmul(x, b.constant(data(16, 24) * np.float32(gain), "fc1.weight"))
    y = b.relu(b.add(y, b.constant(data(24), "fc1.bias")) if bias else y)
    return IRModule({"main": b.finish(b.matmul(y, b.constant(data(24, 10), "fc2.weight")))})


def images(channels: int = 3) -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (1, channels, 9, 9))
    y = b.relu(b.conv2d(x, b.constant(data(8, channels, 3, 3), "conv1.weight"), padding=(1, 1, 1, 1)))
    y = b.conv2d(y, b.constant(data(8, 1, 3, 3), "depthwise.weight"), groups=8)
    y = b.add(b.conv2d(y, b.constant(data(8, 8, 1, 1), "conv2.weight")), y)
    return IRModule({"main": b.finish(b.mean(y, axes=(2, 3)))})


def batches(*shape: int, count: int = 6) -> list[tuple[np.ndarray]]:
    return [(data(*shape, seed=i + 1),) for i in range(count)]


def main_of(mod: IRModule) -> GraphFunc:
    main = mod["main"]
    assert isinstance(main, GraphFunc)
    verify(main, mod)
    return main


def quantised(mod: IRModule) -> list[str]:
    """The names of the quantised weights."""
    made = [b.operation for b in all_bindings(main_of(mod).body) if isinstance(b.operation, Call) and b.operation.operator == "dequantize"]
    return [c.args[0].name for c in made if isinstance(c.args[0], Constant)]


def zero_points(mod: IRModule) -> list[tuple[float, int]]:
    """The scale and zero point of each quantised activation."""
    made = [b.operation for b in all_bindings(main_of(mod).body) if isinstance(b.operation, Call) and b.operation.operator == "quantize"]
    assert all(c.args[2].type.dtype == "uint8" for c in made)
    return [tuple([a.data.item() for a in c.args[1:] if isinstance(a, Constant)]) for c in made]


def in_bytes(mod: IRModule) -> int:
    """The compiled functions that multiply bytes."""
    return sum([
        any(isinstance(p, Buffer) and p.dtype == "int8" for p in f.params) for f in GRAPH(mod, TARGET).values() if isinstance(f, PrimFunc)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("mod", "shape", "weights"),
    [
        (network(), (8, 16), ["fc1.weight", "fc2.weight"]),
        (network(bias=False), (8, 16), ["fc1.weight", "fc2.weight"]),
        (images(), (1, 3, 9, 9), ["conv1.weight", "conv2.weight"]),
        (images(5), (1, 5, 9, 9), ["conv1.weight", "conv2.weight"]),
    ],
)
def test_errors_are_about_a_hundredth(mod: IRModule, shape: tuple[int, ...], weights: list[str]) -> None:
    given = batches(*shape)
    made = tunesmith.quantize(mod, given)
    assert quantised(made) == weights and in_bytes(made) == 2
    (error,) = tunesmith.output_errors(mod, made, given)
    assert 1e-4 < error.rms < 0.02 and error.largest < 0.03 and error.cosine > 0.999
    assert error.agreement is not None and error.agreement >= 0.8
    assert str(error).startswith(f"{error.name}: largest error ") and "same class in " in str(error)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "unet", "bert_base"])
def test_torch_models(name: str) -> None:
    torch_models = pytest.importorskip("tunesmith.testing.torch_models")
    module, inputs = torch_models.get(name)
    mod = tunesmith.from_torch(module, inputs)
    given = [torch_models.get(name, seed=i)[1] for i in range(4)]
    made = tunesmith.quantize(mod, given)
    assert in_bytes(made) >= 2
    errors = tunesmith.output_errors(mod, made, given)
    assert len(errors) == len(main_of(mod).results)
    assert all(e.rms < 0.1 and e.cosine > 0.99 for e in errors), errors


def test_torch_tensors_and_generators() -> None:
    torch = pytest.importorskip("torch")
    given = batches(8, 16)
    made = tunesmith.quantize(network(), given)
    tensors = tunesmith.quantize(network(), ([torch.from_numpy(x)] for (x,) in given))
    assert same(made, tensors)
    assert tunesmith.output_errors(network(), made, ([torch.from_numpy(x)] for (x,) in given)) == tunesmith.output_errors(
        network(), made, given
    )


def same(a: IRModule, b: IRModule) -> bool:
    """Equal text, and equal bytes of constants."""
    x, y = (large_constants(main_of(m)) for m in (a, b))
    return (
        str(a["main"]) == str(b["main"])
        and x.keys() == y.keys()
        and all(np.asarray(x[k]).tobytes() == np.asarray(y[k]).tobytes() for k in x)
    )


def test_equal_arguments_give_equal_models() -> None:
    given = batches(8, 16)
    made = [tunesmith.quantize(network(), given) for _ in range(2)]
    assert same(*made) and str(made[0]["main"]).count("quantize") >= 4
    assert not same(made[0], tunesmith.quantize(network(), batches(8, 16, count=2)))


def test_a_contraction_of_the_result_of_another_is_quantised() -> None:
    b = GraphBuilder("main")
    y = b.matmul(b.matmul(b.input("x", (4, 16)), b.constant(data(16, 16), "first")), b.constant(data(16, 16), "second"))
    mod = IRModule({"main": b.finish(y)})
    made = tunesmith.quantize(mod, batches(4, 16))
    assert quantised(made) == ["first", "second"] and len(zero_points(made)) == 2


def test_an_activation_of_two_contractions_is_quantised_once() -> None:
    b = GraphBuilder("main")
    x = b.relu(b.input("x", (4, 16)))
    mod = IRModule({"main": b.finish(b.matmul(x, b.constant(data(16, 8), "a")), b.matmul(x, b.constant(data(16, 4), "b")), x)})
    made = tunesmith.quantize(mod, batches(4, 16))
    assert quantised(made) == ["a", "b"] and len(zero_points(made)) == 1
    errors = tunesmith.output_errors(mod, made, batches(4, 16))
    assert [e.largest == 0.0 for e in errors] == [False, False, True]


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(0.0, 5.1, 0), (1.0, 5.1, 0), (-5.1, 0.0, 255), (-5.1, -1.0, 255), (-1.5, 1.0, 153), (-2.0, 6.0, 64)]
)
def test_ranges_are_extended_to_zero(low: float, high: float, zero: int) -> None:
    x = np.full((8, 16), low, np.float32)
    x[:, 1] = high
    ((scale, found),) = zero_points(tunesmith.quantize(network(), [(x,)], skip="fc2*"))
    assert found == zero and scale == np.float32((max(np.float32(high), 0.0) - min(float(np.float32(low)), 0.0)) / 255)


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-42])
def test_constant_activations(value: float) -> None:
    """Without a range the scale is 1; one value is exact."""
    mod, given = network(bias=False), [(np.full((8, 16), value, np.float32),)]
    made = tunesmith.quantize(mod, given)
    (error,) = tunesmith.output_errors(mod, made, given)
    assert np.isfinite([error.largest, error.rms, error.cosine]).all()
    assert error.rms < 0.02 or value == 1e-42, "products of scales of denormal numbers are 0"
    assert all(np.isfinite(scale) and scale > 0 for scale, _ in zero_points(made))


def test_ranges_cover_all_batches() -> None:
    given = [(np.full((8, 16), v, np.float32),) for v in (-1.0, 0.0, 3.0, 1.0)]
    (first, *_) = zero_points(tunesmith.quantize(network(), given))
    assert first == (float(np.float32(4 / 255)), 64)


def test_percentiles_ignore_outliers() -> None:
    given = batches(8, 16)
    given[0][0][0, 0] = 1e4
    mod = network(bias=False)
    plain, cut = (tunesmith.quantize(mod, given, percentile=p, skip="fc2*") for p in (100.0, 99.0))
    assert zero_points(plain)[0][0] == pytest.approx(1e4 / 255, rel=1e-2) and zero_points(cut)[0][0] < 0.05
    clean = batches(8, 16)
    errors = [tunesmith.output_errors(mod, m, clean)[0].rms for m in (plain, cut)]
    assert errors[1] < 0.1 < errors[0]


def test_skipped_weights() -> None:
    given = batches(8, 16)
    assert quantised(tunesmith.quantize(network(), given, skip="fc1*")) == ["fc2.weight"]
    assert quantised(tunesmith.quantize(network(), given, skip=["fc2.weight"])) == ["fc1.weight"]
    message = r"skip: no name matches the pattern 'fc2_weight'\. Did you mean 'fc2\.weight'\? Weights: fc1\.weight, fc2\.weight\."
    with pytest.warns(PatternWarning, match=message):
        assert quantised(tunesmith.quantize(network(), given, skip=["fc1*", "fc2_weight"])) == ["fc2.weight"]
    assert len(zero_points(tunesmith.quantize(network(), given, skip=("fc2*",)))) == 1


def test_channels_of_zeros_are_exact() -> None:
    b = GraphBuilder("main")
    w = data(16, 6)
    w[:, 2] = 0
    x = b.input("x", (4, 16))
    zeros = b.matmul(x, b.constant(np.zeros((16, 2), np.float32), "zeros"))
    mod = IRModule({"main": b.finish(b.matmul(x, b.constant(w, "w")), zeros)})
    made = tunesmith.quantize(mod, batches(4, 16))
    first, second = run(main_of(made), list(batches(4, 16)[0]))
    assert (first[:, 2] == 0).all() and (second == 0).all() and np.abs(first[:, 1]).min() > 0
    assert [e.rms < 0.02 for e in tunesmith.output_errors(mod, made, batches(4, 16))] == [True, True]


def test_weights_use_the_range_of_each_output_channel() -> None:
    b = GraphBuilder("main")
    w = data(16, 3) * np.float32([1e-3, 1.0, 1e3])
    mod = IRModule({"main": b.finish(b.matmul(b.input("x", (4, 16)), b.constant(w, "w")))})
    made = tunesmith.quantize(mod, batches(4, 16))
    (q,) = [
        a
        for b in all_bindings(main_of(made).body)
        for a in b.operation.args
        if isinstance(a, Constant) and a.type.dtype == "int8" and a.data.ndim
    ]
    assert (np.abs(q.data).max(axis=0) == 127).all()
    given = batches(4, 16)[0]
    for got, want in zip(run(main_of(made), list(given))[0].T, run(main_of(mod), list(given))[0].T, strict=True):
        assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


def test_two_inputs_integers_and_several_results() -> None:
    b = GraphBuilder("main")
    ids, x = b.input("ids", (4,), "int64"), b.input("x", (4, 16))
    y = b.add(b.take(b.constant(data(9, 16), "table"), ids, axis=0), x)
    z = b.matmul(y, b.constant(data(16, 5), "w"))
    mod = IRModule({"main": b.finish(b.argmax(z, axis=1), z, ids)})
    given = [(np.int64([i, 2, 8, 0]), x) for i, (x,) in enumerate(batches(4, 16))]
    made = tunesmith.quantize(mod, given)
    assert quantised(made) == ["w"]
    errors = tunesmith.output_errors(mod, made, given)
    assert errors[2].largest == 0.0 and errors[1].rms < 0.02 and errors[0].agreement is None


def test_branches_stay_float32_and_their_models_run_in_the_virtual_machine() -> None:
    b = GraphBuilder("main")
    x, flag = b.input("x", (4, 16)), b.input("flag", (), "bool")
    w = b.constant(data(16, 16), "w")
    y = b.branch(flag, lambda r: r.matmul(x, w), lambda r: r.neg(x))
    mod = IRModule({"main": b.finish(b.matmul(y, b.constant(data(16, 3), "last")))})
    given = [(x, np.asarray(bool(i % 2))) for i, (x,) in enumerate(batches(4, 16))]
    made = tunesmith.quantize(mod, given)
    assert quantised(made) == ["last"]
    model = compile_model(made, TARGET, untuned=default_schedule, executor="vm")
    for args in given:
        np.testing.assert_allclose(model(*args), run(main_of(made), list(args))[0], rtol=1e-4, atol=1e-4)


def test_an_activation_that_a_branch_uses_is_quantised_outside_of_it() -> None:
    """A branch before the contraction must not define the bytes that follow it use."""
    b = GraphBuilder("main")
    x, flag = b.input("x", (4, 16)), b.input("flag", (), "bool")
    w = b.constant(data(16, 16), "w")
    y = b.branch(flag, lambda r: r.matmul(x, w), lambda r: r.neg(x))
    mod = IRModule({"main": b.finish(b.add(y, b.matmul(x, w)))})
    given = [(x, np.asarray(bool(i % 2))) for i, (x,) in enumerate(batches(4, 16))]
    for made in (tunesmith.quantize(mod, given), tunesmith.quantize(mod)):
        verify(main_of(made))
        branch = next(b.operation for b in main_of(made).body.bindings if isinstance(b.operation, If))
        assert [b.operation.operator for b in branch.then.bindings if isinstance(b.operation, Call)] == ["matmul"]
        (error,) = tunesmith.output_errors(mod, made, given)
        assert error.rms < 0.02


def test_executors_agree() -> None:
    given = batches(8, 16)
    made = tunesmith.quantize(network(), given)
    results = [compile_model(made, TARGET, untuned=default_schedule, executor=e)(*given[0]) for e in ("graph", "vm", "aot")]
    assert all((r == results[0]).all() for r in results)


def test_a_dynamic_batch_and_batches_of_several_sizes() -> None:
    mod = network(Var("n"))
    given = [(data(n, 16, seed=n),) for n in (1, 5, 3)]
    made = tunesmith.quantize(mod, given)
    assert quantised(made) == ["fc1.weight", "fc2.weight"]
    (error,) = tunesmith.output_errors(mod, made, given)
    assert error.rms < 0.02 and error.agreement is not None


def test_errors_of_equal_and_of_different_models() -> None:
    given = batches(8, 16)
    (error,) = tunesmith.output_errors(network(), network(), given)
    assert error == OutputError(error.name, 0.0, 0.0, pytest.approx(1.0), 1.0)  # type: ignore[arg-type]
    (double,) = tunesmith.output_errors(network(bias=False), network(bias=False, gain=2.0), given)
    assert (double.largest, double.rms, double.cosine, double.agreement) == (*[pytest.approx(1.0, rel=1e-5)] * 3, 1.0)
    assert "same class" not in str(OutputError("y", 0.0, 0.0, 1.0, None))


def test_elements_that_are_not_finite_are_no_errors() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (2, 3))
    mod = IRModule({"main": b.finish(x)})
    given = np.array([[1.0, np.inf, np.nan], [2.0, -np.inf, 0.5]], np.float32)
    (error,) = tunesmith.output_errors(mod, mod, [(given,)])
    assert (error.largest, error.rms, error.cosine) == (0.0, 0.0, pytest.approx(1.0))


def test_batches_without_rows() -> None:
    mod, empty, given = network(Var("n")), (data(0, 16),), batches(8, 16)
    assert str(tunesmith.quantize(mod, [empty, *given])) == str(tunesmith.quantize(mod, given))
    for percentile in (100.0, 99.0):
        with pytest.raises(UserError, match="no calibration batch was given, or all are empty"):
            tunesmith.quantize(mod, [empty], percentile=percentile)
    assert tunesmith.output_errors(mod, mod, [empty]) == [OutputError("matmul", 0.0, 0.0, 0.0, None)]


def unquantisable(make: Callable[[GraphBuilder], Any]) -> IRModule:
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(make(b))})


@pytest.mark.parametrize(
    "mod",
    [
        unquantisable(lambda b: b.relu(b.input("x", (8, 16)))),
        unquantisable(lambda b: b.matmul(b.input("x", (8, 16)), b.input("w", (16, 4)))),
        unquantisable(lambda b: b.matmul(b.input("x", (8, 16)), b.constant(data(2, 16, 4)))),
        unquantisable(lambda b: b.matmul(b.constant(data(8, 16)), b.input("x", (16, 4)))),
        unquantisable(lambda b: b.matmul(b.input("x", (8, 16), "float64"), b.constant(data(16, 4).astype(np.float64)))),
        unquantisable(lambda b: b.matmul(b.input("x", (8, 16)), b.constant(data(16, 4) * np.float32(np.inf)))),
        unquantisable(lambda b: b.conv2d(b.input("x", (1, 4, 5, 5)), b.constant(data(4, 2, 3, 3)), groups=2)),
        unquantisable(lambda b: b.conv2d(b.input("x", (1, 4, 5, 5)), b.constant(data(4, 3, 3)))),
        unquantisable(lambda b: b.conv2d(b.input("x", (1, 4, 5, 5)), b.constant(data(4, 4, 3, 3)), padding_value=1.0)),
    ],
)
def test_models_without_a_contraction_to_quantise(mod: IRModule) -> None:
    with pytest.raises(UserError, match="no convolution or matrix product with constant float32 weights to quantise"):
        tunesmith.quantize(mod, batches(8, 16))


@pytest.mark.parametrize("percentile", [50.0, 0.0, 100.5, float("nan"), "99", None])
def test_percentiles_out_of_range(percentile: Any) -> None:
    with pytest.raises(UserError, match=r"percentile=.*: expected a number above 50 and up to 100"):
        tunesmith.quantize(network(), batches(8, 16), percentile=percentile)


def test_refusals() -> None:
    with pytest.raises(UserError, match="no calibration batch was given"):
        tunesmith.quantize(network(), [])
    with pytest.raises(UserError, match="to quantise \\(see skip=\\)"):
        tunesmith.quantize(network(), batches(8, 16), skip="fc*")
    for value in (np.nan, np.inf, -np.inf):
        x = data(8, 16)
        x[3, 3] = value
        with pytest.raises(UserError, match="calibration: the activation x has elements that are not finite"):
            tunesmith.quantize(network(), [(x,)])
    func = workload("relu(shape=4)").func
    with pytest.raises(UserError, match="quantize takes a model: this module has no graph function `main`"):
        tunesmith.quantize(IRModule({"main": func}), [])
    with pytest.raises(UserError, match="quantize takes a model"):
        tunesmith.quantize(IRModule({}), [])
    model: Any = tunesmith.build(func, TARGET)
    with pytest.raises(UserError, match="quantize takes a model, an IRModule of an importer or a builder, not a CompiledCpuModule"):
        tunesmith.quantize(model, [])
    with pytest.raises(UserError, match="output_errors takes two models, an IRModule .* not a CompiledCpuModule"):
        tunesmith.output_errors(network(), model, [])
    for batch in (data(8, 16), None, {"x": data(8, 16)}, "x"):
        with pytest.raises(UserError, match="a batch is a list of the arguments of a call, such as \\[x\\], not a"):
            tunesmith.quantize(network(), [batch])  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"batches are lists of the arguments of calls, such as \[\[x1\], \[x2\]\], not a int"):
        tunesmith.quantize(network(), 3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="batches are lists of the arguments of calls.*, not a NoneType"):
        tunesmith.output_errors(network(), network(), None)  # type: ignore[arg-type]
    for skip in (3, None, [3]):
        with pytest.raises(UserError, match=r"skip=.*: expected patterns of the names of weights"):
            tunesmith.quantize(network(), batches(8, 16), skip=skip)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the result matmul has the shape \(8, 10\) in the reference, and \(8, 4\) in the other model"):
        tunesmith.output_errors(
            network(), unquantisable(lambda b: b.matmul(b.input("x", (8, 16)), b.constant(data(16, 4)))), batches(8, 16)
        )
    with pytest.raises(UserError, match="no batch was given: pass a list of the arguments of calls"):
        tunesmith.output_errors(network(), network(), [])
    with pytest.raises(UserError, match="output_errors takes two models: this module has no graph function `main`"):
        tunesmith.output_errors(network(), IRModule({}), batches(8, 16))
    two = unquantisable(lambda b: b.relu(b.input("x", (8, 16))))
    both = two["main"].with_(body=two["main"].body.__class__(two["main"].body.bindings, two["main"].results * 2))  # type: ignore[union-attr]
    with pytest.raises(UserError, match="the models have 1 and 2 results, which cannot be compared"):
        tunesmith.output_errors(two, IRModule({"main": both}), batches(8, 16))


def test_calibration_frees_the_model_that_it_ran_and_looks_ranges_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import tunesmith.driver.quantize as module

    models: list[weakref.ref[Any]] = []
    dead: list[bool] = []
    compiled = module.compile

    def compile(mod: IRModule, target: Any) -> Any:
        model = compiled(mod, target)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(module, "compile", compile)
    monkeypatch.setattr(module, "return_free_memory", lambda: dead.extend([m() is None for m in models]))
    lookups = 0

    def operand(self: Any, o: Operand) -> Operand:
        nonlocal lookups
        lookups += 1
        return Rewriter.operand(self, o)

    monkeypatch.setattr(module._Quantize, "operand", operand, raising=False)
    b = GraphBuilder("main")
    x = b.input("x", (2, 4))
    for _ in range(40):
        x = b.matmul(x, b.constant(data(4, 4), "w"))
    tunesmith.quantize(IRModule({"main": b.finish(x)}), batches(2, 4))
    assert dead == [True]
    assert lookups < 40 * 5, "every contraction looks up its own activation"
