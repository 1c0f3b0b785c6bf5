"""Test recurrent layers of torch, imported as loops, against torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.importers.torch.sizes import Sizes  # noqa: E402
from tunesmith.graph.ir.builder import GraphBuilder  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.graph.ir.node import Loop, all_bindings  # noqa: E402
from tunesmith.graph.passes.pipelines import GRAPH  # noqa: E402
from tunesmith.ir.poly import Var  # noqa: E402
from tunesmith.ir.target.target import Target  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402

KINDS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn_relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}


def leaves(results: Any) -> list[np.ndarray]:
    return [r.detach().numpy() for r in torch.utils._pytree.tree_leaves(results)]


def check(model: Any, inputs: tuple[Any, ...], compiled: bool = False) -> Any:
    """The module; its results are those of torch."""
    model = model.eval()
    mod = from_torch(model, inputs)
    arrays = [x.numpy() for x in torch.utils._pytree.tree_leaves(inputs)]
    got = tunesmith.compile(mod)(*arrays) if compiled else run(mod["main"], arrays, mod)
    for a, b in zip(got, leaves(model(*inputs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return mod


@pytest.mark.parametrize(
    ("layers", "bidirectional", "batch_first", "bias"), list(itertools.product((1, 2), (False, True), (False, True), (True,)))
)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](5, 6, layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias)
    mod = check(model, (torch.randn(4, 3, 5),))
    loops = [b.operation for b in all_bindings(mod["main"].body) if isinstance(b.operation, Loop)]
    assert len(loops) == layers * (2 if bidirectional else 1) and {loop.trips for loop in loops} == {3 if batch_first else 4}


@pytest.mark.parametrize("kind", KINDS)
def test_options(kind: str) -> None:
    torch.manual_seed(1)
    check(KINDS[kind](5, 6, bias=False), (torch.randn(4, 3, 5),))
    check(KINDS[kind](5, 6), (torch.randn(4, 5),))  # one sequence without a batch axis
    check(KINDS[kind](5, 6, 2, dropout=0.5), (torch.randn(1, 2, 5),))
    state = torch.randn(4, 3, 6)
    check(
        KINDS[kind](5, 6, 2, bidirectional=True), (torch.randn(7, 3, 5), (state, state * 0.5) if kind == "lstm" else state), compiled=True
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_lstm() -> None:
    torch.manual_seed(2)
    check(nn.LSTM(5, 6, 2, proj_size=3, bidirectional=True), (torch.randn(4, 2, 5),))
    check(nn.LSTM(5, 6, proj_size=3, bias=False), (torch.randn(4, 2, 5),), compiled=True)


class Classifier(nn.Module):
    """A recurrent layer between others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(11, 8), nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, ids: Any) -> Any:
        return self.head(self.lstm(self.embed(ids))[0][:, -1])


def test_a_long_sequence_has_as_many_functions_as_a_short_one() -> None:
    torch.manual_seed(3)
    model = Classifier().eval()
    sizes = []
    for length in (4, 300):
        ids = torch.randint(0, 11, (2, length))
        mod = from_torch(model, (ids,))
        sizes.append(len(GRAPH(mod, Target.detect())))
        got = tunesmith.compile(mod)(ids.numpy())
        np.testing.assert_allclose(got, model(ids).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert sizes[0] == sizes[1]


def test_shapes_are_inferred_from_one_step() -> None:
    from torch._decomp import decompositions

    cells: list[Any] = []
    original = decompositions.lstm_cell

    def counted(*given: Any, **options: Any) -> Any:
        cells.append(given[0].shape)
        return original(*given, **options)

    decompositions.lstm_cell = counted
    try:
        check(nn.LSTM(5, 6, 3, bidirectional=True), (torch.randn(50, 2, 5),))
    finally:
        decompositions.lstm_cell = original
    assert 0 < len(cells) < 50
    assert decompositions.one_layer_lstm.__module__ == decompositions.__name__, "the functions are put back"


def test_dropout_between_layers_in_training_needs_a_seed() -> None:
    model, x = nn.GRU(5, 6, 2, dropout=0.5).train(), torch.randn(4, 3, 5)
    with pytest.raises(ModelImportError, match=r"it drops elements at random: call model.eval\(\) before the import, or pass seed="):
        from_torch(model, (x,))
    mod = from_torch(model, (x,), seed="seed")
    first, again, other = [run(mod["main"], [x.numpy(), np.asarray(s)], mod)[0] for s in (1, 1, 2)]
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_a_dynamic_length_is_refused() -> None:
    """torch.export fixes the length already; a converter of another exporter may not."""
    b = GraphBuilder("main")
    x, h = b.input("x", (Var("n"), 2, 3)), b.input("h", (1, 2, 4))
    weights = [b.constant(np.zeros(shape, np.float32)) for shape in ((12, 3), (12, 4))]
    call = TorchCall("gru", b, Sizes(), ())
    with pytest.raises(ModelImportError, match="the number of steps of its sequence is dynamic; fix it"):
        TORCH_OPERATORS.get("aten.gru.input")(call, x, h, weights, False, 1, 0.0, False, False, False)
