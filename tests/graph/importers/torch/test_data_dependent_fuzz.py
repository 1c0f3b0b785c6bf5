"""Test random torch models of operators whose shapes, branches and loops depend on data, for inputs that select no, all or some rows.

All numbers are small integers, so that results are exact and a comparison cannot depend on rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops import while_loop  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.graph.ir.verify import verify  # noqa: E402
from tunesmith.support.seeds import stream  # noqa: E402

Step = Callable[["Network", Any, Any, int], Any]


def small(y: Any) -> Any:
    return torch.fmod(y, 7)


def masked(net: Network, x: Any, y: Any, k: int) -> Any:
    return y[y[:, k] > k - 2]


def multiplied(net: Network, x: Any, y: Any, k: int) -> Any:
    return small(y @ net.weight)


def gathered(net: Network, x: Any, y: Any, k: int) -> Any:
    return net.table[y[:, k].abs().long() % 6] + y


def indexed(net: Network, x: Any, y: Any, k: int) -> Any:
    at = (y > k).nonzero()
    return net.table[at[:, 1]] - y[at[:, 0]]


def branched(net: Network, x: Any, y: Any, k: int) -> Any:
    return small(y + torch.cond(y.sum() > k, lambda s: s + 1, lambda s: s * 2 - 1, (small(y.sum(0)),)))


def repeated(net: Network, x: Any, y: Any, k: int) -> Any:
    """A loop with a branch in it."""

    def body(i: Any, s: Any) -> Any:
        return i + 1, torch.cond(s.sum() > 0, lambda s: s - 2, lambda s: s + 3, (s,))

    return small(y + while_loop(lambda i, s: (i < k + 2) & (s.sum() < 20), body, ((x[0, 0] * 0).long(), small(y.sum(0))))[1])


def unique(net: Network, x: Any, y: Any, k: int) -> Any:
    rows, inverse, counts = torch.unique(y, dim=0, return_inverse=True, return_counts=True)
    return torch.cat([small(rows * counts[:, None]), rows[inverse]])


def interleaved(net: Network, x: Any, y: Any, k: int) -> Any:
    return y.repeat_interleave(y[:, k].abs().long() % 3, 0)


def joined(net: Network, x: Any, y: Any, k: int) -> Any:
    return torch.cat([net.table[:k], y])


def counted(net: Network, x: Any, y: Any, k: int) -> Any:
    return small(y + torch.bincount(y.abs().long().flatten() % 5, minlength=k).sum())


def scaled(net: Network, x: Any, y: Any, k: int) -> Any:
    return small(y * (x > k).sum().item())


def written(net: Network, x: Any, y: Any, k: int) -> Any:
    z = y.clone()
    z[z > k] = k - 3.0
    return z


STEPS: tuple[Step, ...] = (
    *(masked, multiplied, gathered, indexed, branched, repeated, unique, interleaved, joined, counted, scaled, written),
)


class Network(nn.Module):
    """Five random steps on a matrix of four columns, whose number of rows changes."""

    weight: Any
    table: Any

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = stream(seed, "data-dependent torch networks")
        self.steps = [(STEPS[rng.integers(len(STEPS))], int(rng.integers(4))) for _ in range(5)]
        self.register_buffer("weight", torch.tensor(rng.integers(-1, 2, (4, 4)), dtype=torch.float32))
        self.register_buffer("table", torch.tensor(rng.integers(-3, 4, (6, 4)), dtype=torch.float32))
        some = [torch.tensor(rng.integers(-3, 4, (5, 4)), dtype=torch.float32) for _ in range(3)]
        self.inputs = [*some, torch.full((5, 4), -4.0), torch.full((5, 4), 4.0)]

    def forward(self, x: Any) -> Any:
        y = x
        for step, k in self.steps:
            y = step(self, x, y, k)
        return y, y.sum(0), y.shape[0]


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int) -> None:
    net = Network(seed)
    names = [step.__name__ for step, _ in net.steps]
    mod = from_torch(net, (net.inputs[0],))
    verify(mod["main"])
    compiled = tunesmith.compile(mod)
    for x in net.inputs:
        wanted = [np.asarray(torch.as_tensor(w)) for w in net(x)]
        for got in (run(mod["main"], [x.numpy()], mod), compiled(x.numpy())):
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(g, w, strict=True, err_msg=f"{names}, {x}")
