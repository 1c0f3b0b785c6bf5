"""Test torch operators that draw random numbers: distributions, seeds, and what is refused without a seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.support.errors import ModelImportError, UserError  # noqa: E402


class Wrapped(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


def drawn(function: Callable[..., Any], *shapes: Sequence[int], seed: int = 7) -> list[np.ndarray]:
    """The results of a function of ones."""
    inputs = tuple(torch.ones(*s) for s in shapes)
    mod = from_torch(Wrapped(function), inputs, seed="seed")
    assert mod["main"].params[-1].name == "seed" and str(mod["main"].params[-1].type) == "int64[]"
    return run(mod["main"], [*[x.numpy() for x in inputs], np.asarray(seed)], mod)


N = (100, 200)
DISTRIBUTIONS: dict[str, tuple[Callable[[Any], Any], float, float, float, float]] = {
    "rand": (lambda x: torch.rand(*N), 0.5, 1 / 12, 0.0, 1.0),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 1 / 12, 0.0, 1.0),
    "float64": (lambda x: torch.rand(*N, dtype=torch.float64), 0.5, 1 / 12, 0.0, 1.0),
    "float16": (lambda x: torch.rand(*N, dtype=torch.float16).float(), 0.5, 1 / 12, 0.0, 1.0),
    "randn": (lambda x: torch.randn(*N), 0.0, 1.0, -6.0, 6.0),
    "randn_like": (lambda x: torch.randn_like(x), 0.0, 1.0, -6.0, 6.0),
    "randint": (lambda x: torch.randint(10, N), 4.5, 8.25, 0, 9),
    "randint_low": (lambda x: torch.randint(-3, 4, N), 0.0, 4.0, -3, 3),
    "uniform": (lambda x: torch.empty(*N).uniform_(2.0, 5.0), 3.5, 0.75, 2.0, 5.0),
    "normal": (lambda x: torch.empty(*N).normal_(1.0, 3.0), 1.0, 9.0, -17.0, 19.0),
    "exponential": (lambda x: torch.empty(*N).exponential_(2.0), 0.5, 0.25, 0.0, 10.0),
    "bernoulli": (lambda x: torch.bernoulli(x * 0.3), 0.3, 0.21, 0.0, 1.0),
    "bernoulli_number": (lambda x: torch.empty(*N).bernoulli_(0.8), 0.8, 0.16, 0.0, 1.0),
    "dropout": (lambda x: F.dropout(x, 0.75, training=True), 1.0, 3.0, 0.0, 4.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str) -> None:
    function, mean, variance, low, high = DISTRIBUTIONS[name]
    (got,) = drawn(function, N)
    x = got.astype(np.float64)
    assert x.shape == N and x.min() >= low and x.max() <= high
    assert abs(x.mean() - mean) < 5 * (variance / x.size) ** 0.5
    assert abs(x.var() - variance) < 0.06 * variance
    # Neighbours in both directions are independent.
    centred = x - x.mean()
    for a, b in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])):
        assert abs((a * b).mean()) < 5 * variance / a.size**0.5


def test_uniform_numbers_fill_the_interval_evenly() -> None:
    (got,) = drawn(lambda x: torch.rand(1000, 100), (1,))
    counts = np.histogram(got, 64, (0.0, 1.0))[0]
    expected = got.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * (2 * 63) ** 0.5


def test_a_permutation_and_drawn_indices() -> None:
    order, index = drawn(lambda x: (torch.randperm(50), torch.multinomial(x * torch.tensor([1.0, 0.0, 3.0]), 1)), (4000, 3))
    assert sorted(order) == list(range(50)) and list(order) != list(range(50))
    assert index.shape == (4000, 1) and not (index == 1).any() and abs((index == 2).mean() - 0.75) < 0.04


def test_equal_seeds_give_equal_numbers_and_others_give_others() -> None:
    def function(x: Any) -> Any:
        return torch.rand(4, 5), torch.rand(4, 5)

    first, second = drawn(function, (1,), seed=-3)
    again = drawn(function, (1,), seed=-3)
    other = drawn(function, (1,), seed=-2)
    assert np.array_equal(first, again[0]) and np.array_equal(second, again[1])
    assert not np.isin(first, second).any() and not np.isin(first, other[0]).any()


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_compiled_models_draw_the_numbers_of_the_interpreter(executor: str) -> None:
    model, inputs = Wrapped(lambda x: F.dropout(torch.tanh(x @ torch.randn(8, 3)), 0.5, training=True)), (torch.ones(5, 8),)
    mod = from_torch(model, inputs, seed="seed")
    compiled = tunesmith.compile(mod, executor=executor)
    for seed in (0, 1, -(2**63)):
        given = [inputs[0].numpy(), np.asarray(seed)]
        np.testing.assert_allclose(compiled(*given), run(mod["main"], given, mod)[0], rtol=1e-4, atol=1e-5)


def test_a_model_in_training_drops_elements() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).train()
    mod = from_torch(model, (torch.ones(3, 8),), seed="seed")
    (y,) = run(mod["main"], [np.ones((3, 8), np.float32), np.asarray(1)], mod)
    expected = model[0](torch.ones(3, 8)).detach().numpy() * 2
    kept = y != 0
    np.testing.assert_allclose(y[kept], expected[kept], rtol=1e-5)
    assert 0.3 < kept.mean() < 0.7


def test_dropout_of_attention() -> None:
    (z,) = drawn(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), (1, 1, 64, 4))
    assert abs(z.mean() - 1) < 0.2 and z.std() > 0.01


def test_dynamic_shapes() -> None:
    n = torch.export.Dim("n", min=2, max=64)
    mod = from_torch(Wrapped(lambda x: torch.rand_like(x)), (torch.ones(4, 3),), (({0: n},),), seed="seed")
    few, many = [run(mod["main"], [np.ones((rows, 3), np.float32), np.asarray(5)], mod)[0] for rows in (4, 9)]
    assert np.array_equal(few, many[:4])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.rand(3), "aten.rand.default: it draws random numbers: pass seed='seed' to from_torch"),
        (lambda x: F.dropout(x, training=True), r"it drops elements at random: call model.eval\(\) before the import, or pass seed='seed'"),
        (lambda x: torch.multinomial(x, 1), "aten.multinomial.default: it draws random numbers: pass seed='seed'"),
        (lambda x: F.rrelu(x, training=True), r"its slopes are random: call model.eval\(\) before the import, or pass seed='seed'"),
    ],
)
def test_draws_without_a_seed_are_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ModelImportError, match=message):
        from_torch(Wrapped(function), (torch.ones(3),))


def test_several_indices_of_a_row_are_refused() -> None:
    with pytest.raises(ModelImportError, match="it draws several indices of a row; draw one"):
        from_torch(Wrapped(lambda x: torch.multinomial(x, 2)), (torch.ones(3),), seed="seed")


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ("x", "seed='x': the model has an input of this name; its inputs are x. Choose another name"),
        ("", "seed= is the name of an additional input, such as 'seed', not ''"),
        ("my seed", "seed= is the name of an additional input"),
        (7, "seed= is the name of an additional input, such as 'seed', not 7"),
    ],
)
def test_seeds_have_names(seed: Any, message: str) -> None:
    class Noise(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.rand_like(x)

    with pytest.raises(UserError, match=re.escape(message)):
        from_torch(Noise(), (torch.ones(3),), seed=seed)


def test_integers_of_large_ranges() -> None:
    for low, high in ((2**60, 2**60 + 10), (2**53, 2**53 + 3), (-(2**63), -(2**63) + 7), (5, 5 + 2**53)):
        (x,) = drawn(lambda x, low=low, high=high: torch.randint(low, high, (5000,)), (1,))
        above = [int(v) - low for v in x]
        assert min(above) >= 0 and max(above) < high - low
        if high - low < 100:
            assert set(above) == set(range(high - low))
        else:
            assert len({v % 1024 for v in above}) > 900, "the low bits are random, too"
    with pytest.raises(ModelImportError, match="has more than 2\\*\\*53 numbers"):
        drawn(lambda x: torch.randint(-(2**63), 2**63 - 1, (5,)), (1,))


def zero_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all uniform numbers 0, which one of 2**24 is."""
    import tunesmith.graph.importers.torch.random as module

    monkeypatch.setattr(
        module, "_uniform", lambda call, dtype, shape=None, what="": call.emit("full", shape=shape or call.shape, value=0.0, dtype=dtype)
    )


def test_exponential_numbers_are_above_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    zero_draws(monkeypatch)
    for dtype in (torch.float32, torch.float64, torch.float16):
        (x,) = drawn(lambda x, dtype=dtype: torch.empty(8, dtype=dtype).exponential_(), (1,))
        assert (x > 0).all()
    (y,) = drawn(lambda x: F.gumbel_softmax(x), (4, 8))
    assert np.isfinite(y).all()


def test_categories_of_no_weight_are_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    zero_draws(monkeypatch)
    weights = torch.full((3, 50), 1e-20)
    weights[:, 7] = 1
    (index,) = drawn(lambda x: torch.multinomial(x * weights, 1), (3, 50))
    assert (index == 7).all()


def test_random_slopes() -> None:
    (y,) = drawn(lambda x: F.rrelu(x * torch.tensor([1.0, -1.0]), 0.25, 0.75, training=True), (4000, 2))
    assert (y[:, 0] == 1).all() and y[:, 1].max() <= -0.25 and y[:, 1].min() >= -0.75
    assert abs(y[:, 1].mean() + 0.5) < 0.02 and abs(y[:, 1].var() - 0.25 / 12) < 0.002
