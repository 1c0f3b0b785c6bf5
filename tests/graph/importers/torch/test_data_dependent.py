"""Test torch models whose shapes or loops depend on data: one imported model for several inputs, against torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.graph.ir.verify import verify  # noqa: E402
from tunesmith.support.errors import ModelImportError, RunError  # noqa: E402


class Calls(nn.Module):
    """A function wrapped in a module."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Any) -> Any:
        return self.f(*args)


t = torch.tensor
SOME, NONE, ALL = t([1.0, -2.0, 0.0, 3.0, -1.0]), -torch.ones(5), torch.arange(1.0, 6.0)
VECTORS = ((SOME,), (NONE,), (ALL,))
ROWS = t([[1.0, 2.0, 0.0], [-1.0, 0.0, 2.0], [1.0, 2.0, 0.0], [0.0, -2.0, 3.0]])
MATRICES = ((ROWS,), (-ROWS.abs() - 1,), (ROWS.abs() + 1,))
INTS = ((t([3, 0, 3, 1]),), (t([0, 0, 0, 0]),), (t([5, 2, 7, 4]),))
COUNTS = tuple([(SOME, t(n)) for n in (3, 0, 5, 1)])
SIGNED = tuple([(SOME, t(n)) for n in (3, 0, 5, -2, -5, 9)])


def item(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a vector and a number from data that is at most its extent."""

    def of(x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        return f(x, k)

    return of


def written(x: Any, mask: Any, value: Any) -> Any:
    y = x.clone()
    y[mask] = value
    return y


Case = tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "nonzero": (lambda x: x.nonzero(), MATRICES),
    "nonzero_bool": (lambda x: (x > 0).nonzero(as_tuple=True), MATRICES),
    "nonzero_int": (lambda x: x.nonzero(), INTS),
    "nonzero_static": (lambda x: (torch.nonzero_static(x, size=3), torch.nonzero_static(x, size=40, fill_value=7)), MATRICES),
    "where": (lambda x: torch.where(x > 0)[0], VECTORS),
    "argwhere": (lambda x: torch.argwhere(x > 0), MATRICES),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), MATRICES),
    "masked_select_broadcast": (lambda x: torch.masked_select(x, x[0] > 0), MATRICES),
    "mask": (lambda x: x[x > 0], VECTORS),
    "mask_of_bools": (lambda x: (x > 0)[x < 2], VECTORS),
    "mask_of_rows": (lambda x: x[x.sum(1) > 2] * 2, MATRICES),
    "mask_of_columns": (lambda x: x[:, x[0] > 0], MATRICES),
    "mask_and_index": (lambda x: x[x[:, 0] > 0, t([1])], MATRICES),
    "mask_elements": (lambda x: (lambda y: (y[:2], y[1:], y[::2], y.shape[0], y.sum(), y * 2 + 1))(x[x > 0]), VECTORS),
    "mask_gather": (lambda x: x[x > 0][t([0, 0])] * (x > 0).any(), VECTORS[::2]),
    "mask_sort": (lambda x: x[x > 0].sort(), VECTORS),
    "mask_concat": (lambda x: torch.cat([x[x > 0], x, x[x < 0]]), VECTORS),
    "mask_product": (lambda x: (lambda y: y.reshape(-1, 1) @ y.reshape(1, -1))(x[x > 0]), VECTORS),
    "mask_equal_extents": (lambda x: x[x > 0] + x[x > 0].flip(0) + x[x.abs() * x > 0], VECTORS),
    "mask_sorted_twice": (lambda x: x[x > -2][x[x > -2] > 0], VECTORS),
    "index_put": (lambda x: written(x, x > 0, 0.5), MATRICES),
    "index_put_rows": (lambda x: written(x, x[:, 0] > 0, x[0] * 2), MATRICES),
    "index_put_selected": (lambda x: written(x, x > 0, x[x > 0] * 3), VECTORS),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, torch.arange(12.0)), MATRICES),
    "unique": (torch.unique, INTS),
    "unique_all": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), MATRICES),
    "unique_bool": (lambda x: torch.unique(x > 0, return_counts=True), VECTORS),
    "unique_of_mask": (lambda x: torch.unique(x[x > 0], return_inverse=True), VECTORS),
    "unique_rows": (lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), MATRICES),
    "unique_columns": (lambda x: torch.unique(x[:2], dim=1), MATRICES),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x > 0, return_inverse=True, return_counts=True), VECTORS),
    "unique_consecutive_rows": (lambda x: torch.unique_consecutive(x > 0, dim=0), MATRICES),
    "repeat_interleave": (lambda n: (torch.repeat_interleave(n), torch.arange(12.0).reshape(4, 3).repeat_interleave(n, 0)), INTS),
    "repeat_interleave_known": (lambda n: torch.repeat_interleave(n, output_size=7), INTS[:1]),
    "bincount": (lambda n: (torch.bincount(n), torch.bincount(n, minlength=5)), INTS),
    "bincount_weights": (lambda n: torch.bincount(n, torch.arange(4.0), minlength=2), INTS),
    "item_extents": (item(lambda x, k: (torch.full((k,), 2.0), torch.arange(k), torch.ones(k, 2) + k, x.expand(k, 5))), COUNTS),
    "item_slices": (item(lambda x, k: (x[:k] * 2, x[k:], x.narrow(0, 0, k), x[: k // 2])), COUNTS),
    "item_tril": (item(lambda x, k: torch.ones(k, k).tril()), COUNTS),
    "item_signed": (lambda x, n: (lambda k: (x[:k], x[k:], x[-k:]))(n.item()), SIGNED),
    "item_numbers": (lambda x, n: (x * n.item() + (n.item() - 3) // 2, x + max(n.item(), 2)), SIGNED),
    "item_float": (lambda x: x * x.max().item() + x.sum().item() / 2, VECTORS),
    "item_bool": (lambda x: x * (x.max() > 2).item(), VECTORS),
    "item_row": (lambda x, n: (x[n.item() - 1], x[n.item()]), COUNTS[:2]),
    "item_topk": (item(lambda x, k: x.topk(k).values), COUNTS),
    "item_split": (lambda x, n: x.split(n.tolist()), ((SOME, t([2, 0, 3])), (SOME, t([5, 0, 0])), (SOME, t([1, 1, 3])))),
    "item_returned": (lambda x: (x > 0).sum().item() + x[x > 0].shape[0], VECTORS),
    "cond_on_item": (lambda x: torch.cond((x > 0).sum().item() > 1, lambda x: x + 1, lambda x: x - 1, (x,)), VECTORS),
    "cond_on_extent": (lambda x: torch.cond(x[x > 0].shape[0] > 1, lambda x: x + 1, lambda x: x - 1, (x,)), VECTORS),
    "mask_in_cond": (lambda x: torch.cond(x.sum() > 0, lambda x: x[x > 2].sum(), lambda x: x[x < 0].prod(), (x,)), VECTORS),
}


def results(tree: Any) -> list[np.ndarray]:
    return [np.asarray(torch.as_tensor(leaf)) for leaf in torch.utils._pytree.tree_leaves(tree)]


def check(f: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], dynamic_shapes: Any = None) -> None:
    """Compare one model, interpreted and compiled, with torch for all inputs."""
    mod = from_torch(Calls(f), inputs[0], dynamic_shapes)
    verify(mod["main"])
    compiled = tunesmith.compile(mod)
    for given in inputs:
        wanted = results(f(*[x.clone() for x in given]))
        arrays = [x.numpy() for x in given]
        called = compiled(*arrays)
        for got in (run(mod["main"], arrays, mod), list(called) if isinstance(called, tuple) else [called]):
            assert len(got) == len(wanted)
            for g, w in zip(got, wanted, strict=True):
                assert (g.shape, g.dtype) == (w.shape, w.dtype), given
                np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_numbers_from_data(name: str) -> None:
    check(*CASES[name])


def test_extents_of_the_inputs_may_be_dynamic_too() -> None:
    n = torch.export.Dim("n")

    def f(x: Any) -> Any:
        rows = x[x[:, 0] > 0]
        return rows @ x.T, torch.unique(x), x.nonzero()

    check(f, [(ROWS,), (ROWS[:1],), (-ROWS.abs(),), (torch.cat([ROWS, ROWS]),)], (({0: n},),))


def test_results_of_torch_tensors() -> None:
    model = tunesmith.compile(from_torch(Calls(lambda x: x[x > 0]), (SOME,)))
    for (x,) in VECTORS:
        assert torch.equal(torch.as_tensor(model(x)), x[x > 0])


@pytest.mark.parametrize(
    ("f", "good", "bad"),
    [
        (item(lambda x, k: x[:k]), (SOME, t(5)), (SOME, t(6))),
        (lambda x, n: torch.arange(n.item()), (SOME, t(5)), (SOME, t(-1))),
        (lambda x: x[x > 0][0], (SOME,), (NONE,)),
        (lambda x: x[x > 0] + x[x < 0], (SOME,), (t([1.0, 2, 3, -1, -1]),)),
        (lambda x: x[x > 0] * torch.ones(2), (SOME,), (ALL,)),
        (lambda x, n: x.split(n.tolist()), (SOME, t([2, 3])), (SOME, t([2, 4]))),
        (torch.bincount, (t([1, 2]),), (t([1, -2]),)),
        (torch.repeat_interleave, (t([1, 2]),), (t([3, -2]),)),
    ],
)
def test_what_torch_asserts_about_sizes_is_checked(f: Callable[..., Any], good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    check(f, [good])
    mod = from_torch(Calls(f), good)
    with pytest.raises((RuntimeError, IndexError)):
        f(*bad)
    for call in (lambda *xs: run(mod["main"], xs, mod), tunesmith.compile(mod)):
        with pytest.raises(RunError, match="must be at least 0, and is -1"):
            call(*[x.numpy() for x in bad])


@pytest.mark.parametrize(
    ("f", "inputs", "message"),
    [
        (lambda x: x.sum().nonzero(), (SOME,), "aten.nonzero.default: its operand is a number"),
        (lambda x: torch.unique(x, dim=0), (torch.ones(3, 65),), "it sorts slices of 65 elements; more than 64"),
        (lambda x: x.index_put((x > 0,), x, accumulate=True), (SOME,), "writes through a mask in a way that is not supported"),
        (lambda x: x[x[:, 0] > 0, x[0] > 0], (ROWS,), "torch.export could not trace"),
    ],
)
def test_refusals(f: Callable[..., Any], inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ModelImportError, match=message):
        from_torch(Calls(f), inputs)
