"""Evaluate roots of a graph in torch, with derivatives with respect to the columns of a row.

Values equal those of the numpy reference.  Counts of loops, cache lines and vectors are full of steps: ceil, floor, comparisons, selects.
Their derivatives are 0 or undefined, and useless for gradient descent, so two kinds are available.  *Exact* derivatives are torch's own,
correct wherever the graph is smooth.  *Relaxed* derivatives keep all values and replace the derivative of a step by that of a smooth
approximation (straight-through, Bengio et al. 2013; the approximations are like those of Felix, Zhao et al., ASPLOS 2024):

- floor and ceil of a quotient have the derivative of the quotient, and that of a remainder follows;
- a > b has that of a logistic function of the relative difference;
- a select has, besides that of the selected branch, that of its condition times the difference to the other branch;
- a minimum or maximum passes a share of the derivative to the operand not selected, as long as it is close.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.support.errors import MissingExtraError

Tensor = Any

SHARPNESS = 4.0
"""Slope of the logistic functions: if operands differ by a factor of two, the one not selected has a share of a tenth to a fifth."""


def import_torch(purpose: str) -> ModuleType:
    """The module torch.  Raises MissingExtraError with the install command if it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", purpose) from None
    return torch


class TorchProgram:
    """Roots of a graph, evaluated on tensors of rows; see the module docstring.

    Args:
        dag: the graph.
        roots: nodes to evaluate.
        relaxed: relaxed instead of exact derivatives.
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
        """Values of the roots, float64 [len(roots), N], for rows [N, P], float64, not necessarily whole numbers."""
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
    """The torch function of each graph operation."""
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
    """Operations with relaxed derivatives."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def operations(self) -> dict[str, Callable[..., Tensor]]:
        """The operations by name."""
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
        """`value` with the derivative of `smooth`."""
        zero = smooth - smooth.detach()
        return value.detach() + self._torch.where(self._torch.isfinite(zero), zero, 0.0)

    def _truth(self, a: Tensor, b: Tensor) -> Tensor:
        """Smooth approximation of a > b; it depends on the ratio, because tile sizes are multiplicative."""
        return self._torch.sigmoid(SHARPNESS * (a - b) / (a.detach().abs() + b.detach().abs() + 1.0))

    def _where(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        change = (a - b).detach()
        change = self._torch.where(self._torch.isfinite(change), change, 0.0)
        # A condition may be a count: beyond 1 it has no further effect.
        weight = self._torch.tanh(c)
        return self._torch.where(c > 0, a, b) + (weight - weight.detach()) * change

    def _extreme(self, which: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, sign: float) -> Tensor:
        share = self._torch.sigmoid(sign * 2.0 * SHARPNESS * (a - b) / (a.abs() + b.abs() + 1e-300)).detach()
        return self._like(which(a, b), share * a + (1.0 - share) * b)
