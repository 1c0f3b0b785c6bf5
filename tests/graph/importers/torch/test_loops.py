"""Test the loops of torch's higher-order operators (while_loop, scan, map) against torch, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops import associative_scan, scan, while_loop  # noqa: E402
from torch._higher_order_ops.map import map as map_rows  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.graph.ir.node import While, all_bindings  # noqa: E402
from tunesmith.graph.ir.verify import verify  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402


class Calls(nn.Module):
    """A function wrapped in a module with a weight."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f
        self.weight = nn.Parameter(torch.tensor([[0.5, 0.25, 0.0], [-0.5, 0.5, 0.25], [0.0, 0.125, -0.5]]))

    def forward(self, *args: Any) -> Any:
        return self.f(self.weight, *args)


t = torch.tensor
VECTORS = ((t([1.0, -2.0, 0.5]),), (t([-1.0, -1.0, -4.0]),), (t([40.0, 50.0, 60.0]),))
COUNTS = tuple([(t([1.0, -2.0, 0.5]), t(n)) for n in (3, 0, 7)])
ROWS = ((torch.arange(12.0).reshape(4, 3) / 4 - 1,), (-torch.ones(4, 3),))


def counted(w: Any, x: Any) -> Any:
    """An int is carried, and x is carried and used by itself as well."""
    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 0.5 + x), (0, x))


def counted_by_tensor(w: Any, x: Any) -> Any:
    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 0.5 + x), (t(0), x))


def until_small(w: Any, x: Any) -> Any:
    return while_loop(lambda y: y.abs().sum() > 1, lambda y: (w @ y,), (x,))


def to_a_limit(w: Any, x: Any, n: Any) -> Any:
    """The limit is an input, so there may be no iteration."""
    return while_loop(lambda i, y: (i < n) & (y.sum() < 1e3), lambda i, y: (i + 1, y + w[0]), (n - n, x))


def to_an_item(w: Any, x: Any, n: Any) -> Any:
    return while_loop(lambda i, y: i < n.item(), lambda i, y: (i + 1, y * 0.5 + x), (0, x))


def by_row(w: Any, x: Any) -> Any:
    """The carried int is an index."""
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x[i] + w[i]), (0, x))


def by_prefix(w: Any, x: Any) -> Any:
    """The carried int is read as a size in each iteration."""

    def body(i: Any, y: Any) -> Any:
        torch._check(i >= 0)
        torch._check(i <= 3)
        return i + 1, y + x[:i].sum()

    return while_loop(lambda i, y: i < 3, body, (0, x))


def swapped(w: Any, x: Any) -> Any:
    """The carried values exchange their places; one of them is a bool."""
    return while_loop(lambda i, a, b, f: i < 3, lambda i, a, b, f: (i + 1, b + 0, a * 2, ~f), (0, x, x + 1, x.sum() > 0))


def with_cond(w: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, torch.cond(y.sum() > 3, lambda y: y + 1, lambda y: y * 2 + 1, (y,))

    return while_loop(lambda i, y: (y.sum() < 50) & (i < 20), body, (t(0), x))


def in_cond(w: Any, x: Any) -> Any:
    return torch.cond(
        x.sum() > 0, lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x.clone()))[1], torch.neg, (x,)
    )


def nested(w: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, while_loop(lambda j, z: j < 2, lambda j, z: (j + 1, z * 0.5 + 1), (i * 0, y.clone()))[1]

    return while_loop(lambda i, y: i < 3, body, (t(0), x))


def with_mask(w: Any, x: Any) -> Any:
    """Shapes that depend on data, in a loop."""
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + y[y > 0].sum()), (t(0), x))


def scanned(w: Any, x: Any) -> Any:
    return scan(lambda c, r: (torch.tanh(w @ c + r), c * r), torch.zeros(3), x)


def scanned_backwards(w: Any, x: Any) -> Any:
    return scan(lambda c, r: (c + r, c.sum()), torch.zeros(3), x, reverse=True)


def mapped(w: Any, x: Any) -> Any:
    return map_rows(lambda r, w: (w @ r + 1, r.sum()), x, w)


CASES: dict[str, tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]] = {
    **{f.__name__: (f, VECTORS) for f in (counted, counted_by_tensor, until_small, by_row, by_prefix, swapped, with_cond, in_cond)},
    **{f.__name__: (f, VECTORS) for f in (nested, with_mask)},
    **{f.__name__: (f, COUNTS) for f in (to_a_limit, to_an_item)},
    **{f.__name__: (f, ROWS) for f in (scanned, scanned_backwards, mapped)},
    "associative_scan": (lambda w, x: associative_scan(lambda a, b: a * 0.5 + b, x, 0, combine_mode="generic"), ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_loops(name: str) -> None:
    f, inputs = CASES[name]
    model = Calls(f)
    mod = from_torch(model, inputs[0])
    verify(mod["main"])
    compiled = tunesmith.compile(mod)
    for given in inputs:
        with torch.no_grad():
            wanted = [np.asarray(torch.as_tensor(w)) for w in torch.utils._pytree.tree_leaves(model(*[x.clone() for x in given]))]
        arrays = [x.numpy() for x in given]
        called = compiled(*arrays)
        for got in (run(mod["main"], arrays, mod), list(called) if isinstance(called, tuple) else [called]):
            assert len(got) == len(wanted)
            for g, w in zip(got, wanted, strict=True):
                assert (g.shape, g.dtype) == (w.shape, w.dtype)
                np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def test_a_while_loop_is_one_loop_of_the_graph_and_the_program_is_unchanged() -> None:
    program = torch.export.export(Calls(counted), VECTORS[0], strict=False)
    before = str(program.graph)
    body = from_torch(program)["main"].body
    assert [type(b.operation) for b in all_bindings(body)].count(While) == 1
    assert str(program.graph) == before


def test_refusals() -> None:
    n = torch.export.Dim("n")
    with pytest.raises(ModelImportError, match=r"higher_order.scan: its number of iterations is a dynamic size"):
        from_torch(Calls(scanned), ROWS[0], (({0: n},),))

    with pytest.raises(ModelImportError, match="torch.export could not trace"):
        from_torch(Calls(lambda w, x, n: while_loop(lambda i, y: i < 9, lambda i, y: (i + 1, y * 2), (n.item(), x))), COUNTS[0])
