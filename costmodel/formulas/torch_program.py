"""Roots of a graph in torch: the values of the numpy reference, and derivatives with respect to the columns of a row.

Counts of loops, cache lines and vectors are full of steps: ceil, floor, comparisons, choices.  Their derivatives are 0 or nowhere,
and useless to whoever descends.  So each has two derivatives here.  *Exact* ones are torch's own, and right wherever the graph is
smooth.  *Relaxed* ones leave all values as they are and let the derivative of a smooth neighbour take the place of that of a step
(straight-through, Bengio et al. 2013; the smooth neighbours are like those of Felix, Zhao et al., ASPLOS 2024):

- floor and ceil of a quotient have the derivative of the quotient, and a remainder follows from that;
- a > b has that of a logistic function of their relative difference;
- a choice has, besides that of the branch taken, that of its condition times what the other branch would change;
- a minimum or maximum gives the operand that loses a share of the derivative as long as it is close.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.support.errors import MissingExtraError

Tensor = Any

SHARPNESS = 4.0
"""Of the logistic functions: of operands that differ by a factor of two, the loser of a maximum has a share of a tenth to a fifth."""


def import_torch(purpose: str) -> ModuleType:
    """The module torch.  MissingExtraError, which says how to install it, where it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", purpose) from None
    return torch


class TorchProgram:
    """Roots of a graph, for tensors of rows; see the module's text.

    Args:
        dag: the graph.
        roots: what to evaluate.
        relaxed: which derivatives it has.
    Raises:
        MissingExtraError: torch is not installed.
    """

    def __init__(self, dag: Dag, roots: Sequence[Num], *, relaxed: bool = False) -> None:
        self._torch = import_torch("evaluating a graph of features with gradients")
        self.width = len(dag.params)
        self.relaxed = relaxed
        self._roots = [r.id for r in roots]
        self._steps = [(i, *dag.nodes[i]) for i in dag.live(roots)]
        self._operations = _operations(self._torch, relaxed)

    def __call__(self, rows: Tensor) -> Tensor:
        """Values of the roots, float64 [len(roots), N], for rows [N, P], float64 and perhaps between whole numbers."""
        torch = self._torch
        values: dict[int, Tensor] = {}
        for i, op, args in self._steps:
            if op == "const":
                values[i] = torch.tensor(args[0], dtype=torch.float64)
            elif op == "param":
                values[i] = rows[:, int(args[0])]
            else:
                values[i] = self._operations[op](*[values[int(a)] for a in args])
        return torch.stack([values[i].expand(len(rows)) for i in self._roots])


def _operations(torch: Any, relaxed: bool) -> dict[str, Callable[..., Tensor]]:
    """What each operation of a graph is in torch."""
    exact: dict[str, Callable[..., Tensor]] = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "min": torch.minimum,
        "max": torch.maximum,
        "gt": lambda a, b: (a > b).to(torch.float64),
        "eq": lambda a, b: (a == b).to(torch.float64),
        "where": lambda c, a, b: torch.where(c > 0, a, b),
        "floordiv": lambda a, b: torch.floor(a / b),
        "ceildiv": lambda a, b: torch.ceil(a / b),
        "mod": lambda a, b: a - torch.floor(a / b) * b,
        "slog2": lambda a: torch.log2(a + 1.0),
    }
    return {**exact, **_Relaxed(torch).operations()} if relaxed else exact


class _Relaxed:
    """The operations whose derivatives are not those of their values."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def operations(self) -> dict[str, Callable[..., Tensor]]:
        """Them by name."""
        return {
            "min": lambda a, b: self._extreme(self._torch.minimum, a, b, -1.0),
            "max": lambda a, b: self._extreme(self._torch.maximum, a, b, 1.0),
            "gt": lambda a, b: self._like((a > b).to(self._torch.float64), self._truth(a, b)),
            "where": self._where,
            "floordiv": lambda a, b: self._like(self._torch.floor(a / b), a / b),
            "ceildiv": lambda a, b: self._like(self._torch.ceil(a / b), a / b),
            "mod": lambda a, b: a - self._like(self._torch.floor(a / b), a / b) * b,
        }

    def _like(self, value: Tensor, smooth: Tensor) -> Tensor:
        """The value, with the derivative of `smooth`."""
        zero = smooth - smooth.detach()
        return value.detach() + self._torch.where(self._torch.isfinite(zero), zero, 0.0)

    def _truth(self, a: Tensor, b: Tensor) -> Tensor:
        """Smoothly whether a > b: depends on their ratio, as tile sizes do."""
        return self._torch.sigmoid(SHARPNESS * (a - b) / (a.detach().abs() + b.detach().abs() + 1.0))

    def _where(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        change = (a - b).detach()
        change = self._torch.where(self._torch.isfinite(change), change, 0.0)
        # A condition may be a count: past 1, more of it changes nothing.
        weight = self._torch.tanh(c)
        return self._torch.where(c > 0, a, b) + (weight - weight.detach()) * change

    def _extreme(self, which: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, sign: float) -> Tensor:
        share = self._torch.sigmoid(sign * 2.0 * SHARPNESS * (a - b) / (a.abs() + b.abs() + 1e-300)).detach()
        return self._like(which(a, b), share * a + (1.0 - share) * b)
