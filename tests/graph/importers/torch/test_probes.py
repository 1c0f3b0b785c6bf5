"""Compare rarely used torch operators with torch, imported together in few models; and test what is refused of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Call, all_bindings
from tunesmith.support.errors import ModelImportError

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tunesmith.testing import torch_agreement as agreement  # noqa: E402
from tunesmith.testing.torch_probes import IMAGE, PROBES, ROWS, WHOLE  # noqa: E402

GROUPS = 4
"""Number of models: tracing and compiling a large model costs less than many small ones."""
NAMES = list(PROBES)


class Together(torch.nn.Module):
    """Many probes in one module; each has its own inputs and results."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.parts = torch.nn.ModuleDict({n: PROBES[n][0] for n in names if isinstance(PROBES[n][0], torch.nn.Module)})

    def forward(self, inputs: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {n: (self.parts[n] if n in self.parts else PROBES[n][0])(*inputs[n]) for n in self.names}


Verdicts = dict[str, str]


def verdicts(names: list[str], execute: Callable[..., Any]) -> Verdicts:
    """The difference between the results of each probe and torch's; "" if there is none."""
    model, inputs = Together(names), {n: tuple([x.clone() for x in PROBES[n][1]]) for n in names}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about uneven padding and slow paths
        expected = model(inputs)
    arrays = [x.contiguous().numpy().copy() for x in agreement.leaves(inputs)]
    results = iter(execute(from_torch(model, (inputs,)), arrays))
    out = {}
    for name in names:
        found = [agreement.difference(np.asarray(next(results)), w, 1e-4) for w in agreement.leaves(expected[name])]
        out[name] = "; ".join(filter(None, found))
    assert next(results, None) is None
    return out


@pytest.fixture(scope="module")
def interpreted() -> Verdicts:
    found: Verdicts = {}
    for part in range(GROUPS):
        found |= verdicts(NAMES[part::GROUPS], agreement.interpreted)
    return found


def test_there_are_more_than_64_probes() -> None:
    assert len(NAMES) >= 64


@pytest.mark.parametrize("name", NAMES)
def test_probe(interpreted: Verdicts, name: str) -> None:
    assert interpreted[name] == ""


def test_compiled_probes() -> None:
    chosen = ["conv3d", "max_pool2d_indices", "col2im", "grid_sample", "topk", "median", "cummax", "logcumsumexp", "embedding_bag_mean"]
    chosen += ["index_apart", "adaptive_avg_pool2d", "cdist", "erfc", "atan2", "bitwise_right_shift", "batch_norm_training"]
    assert {n: v for n, v in verdicts(chosen, agreement.EXECUTORS["graph"]).items() if v} == {}


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def test_running_statistics_can_be_left_out() -> None:
    norm = torch.nn.BatchNorm2d(3).train()
    with pytest.raises(ModelImportError, match="write to the buffer 'running_mean'.*drop_buffer_writes=True"):
        from_torch(norm, (IMAGE,))
    func = from_torch(norm, (IMAGE,), drop_buffer_writes=True)["main"]
    (got,) = run(func, [IMAGE.numpy()])
    assert agreement.difference(got, norm(IMAGE), 1e-5) == ""


def test_running_statistics_of_training() -> None:
    """The new statistics are results of the operator, for a model that returns them."""

    def normed(x: Any, mean: Any, variance: Any) -> Any:
        made = torch.ops.aten._native_batch_norm_legit_functional(x, None, None, mean, variance, True, 0.1, 1e-5)
        return made[0], made[1], made[2], made[3], made[4]

    inputs = (IMAGE, torch.zeros(3), torch.ones(3))
    got = run(from_torch(Function(normed), inputs)["main"], [x.numpy() for x in inputs])
    for g, w in zip(got, normed(*inputs), strict=True):
        assert agreement.difference(g, w, 1e-5) == ""


def test_a_fold_is_a_convolution() -> None:
    """It costs linear time, while a scatter compares each element with all windows."""
    module, inputs = PROBES["col2im"]
    func = from_torch(module, inputs)["main"]
    operators = [b.operation.operator for b in all_bindings(func.body) if isinstance(b.operation, Call)]
    assert "conv2d_transpose" in operators and "scatter_nd" not in operators


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (lambda x: torch.histc(x, 4), (ROWS,), "its range is that of the data; give min and max"),
        (lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3), (IMAGE,), "divisor_override with ceil_mode is not supported"),
        (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), (IMAGE,), "result 1 of aten.adaptive_max_pool2d"),
        (lambda x: F.rrelu(x, training=True), (ROWS,), "its slopes are random"),
        (lambda x: torch.fft.rfft(x).abs(), (ROWS,), "aten._fft_r2c.default: its elements are complex numbers"),
        (
            lambda x, i: torch.ones(4, 6).long().scatter_reduce(1, i, x, "mean"),
            (WHOLE[:, :4].T % 6, WHOLE[:, :4].T % 6),
            "the mean of integers",
        ),
        (lambda x: x.as_strided((2, 3), (6, 2)), (ROWS,), "aten.as_strided.default: there is no converter"),
    ],
)
def test_refusals(function: Callable[..., Any], inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ModelImportError, match=message):
        from_torch(Function(function), inputs)


def test_dynamic_sizes_that_are_refused() -> None:
    rows = {"inputs": ({0: torch.export.Dim("n", min=3, max=50)},)}
    for function, message in (
        (F.pdist, "the distances of a dynamic number of rows"),
        (lambda x: (x @ x.T).diagonal(), "the diagonal of a matrix of dynamic size"),
        (lambda x: (x @ x.T).diagonal_scatter(x[:, 0]), "writing the diagonal of a matrix of dynamic size"),
    ):
        with pytest.raises(ModelImportError, match=message):
            from_torch(Function(function), (ROWS,), rows)
    dims = {"inputs": ({2: torch.export.Dim("h", min=4, max=90)},)}
    for function, message in (
        (lambda x: F.fold(F.unfold(x, 3), x.shape[2:], 3), "a fold to an image of dynamic shape"),
        (lambda x: F.adaptive_avg_pool2d(x, (3, 1)), "its windows depend on dynamic sizes"),
        (lambda x: F.interpolate(x, scale_factor=1.3), "the size TruncToInt"),
        (lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True), "antialiasing of an image of dynamic shape"),
    ):
        with pytest.raises(ModelImportError, match=message):
            from_torch(Function(function), (IMAGE,), dims)


def test_indices_of_maxima_in_an_image_of_dynamic_size() -> None:
    dims = {"inputs": ({2: torch.export.Dim("h", min=4, max=90)},)}
    module = Function(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True))
    func = from_torch(module, (IMAGE,), dims)["main"]
    for height in (4, 7):
        x = torch.randn(*IMAGE.shape[:2], height, IMAGE.shape[3])
        for got, expected in zip(run(func, [x.numpy()]), module(x), strict=True):
            assert np.array_equal(got, expected.numpy())


def test_sort_along_a_dynamic_axis() -> None:
    dims = {"inputs": ({0: torch.export.Dim("n", min=2, max=50)},)}
    func = from_torch(Function(lambda x: (x.sort(dim=0, stable=True), x.topk(2, 0))), (ROWS,), dims)["main"]
    longer = torch.cat([ROWS, -ROWS, ROWS])
    got = run(func, [longer.numpy()])
    expected = [*longer.sort(dim=0, stable=True), longer.topk(2, 0).values]
    for g, w in zip(got, expected, strict=False):
        assert agreement.difference(g, w) == ""
