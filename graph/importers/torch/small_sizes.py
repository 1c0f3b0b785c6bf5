"""Exclude the sizes below 2 at which an exported torch program fails or has other shapes than it was traced with.

torch.export traces with sizes >= 2 and records no guard that is always true for them, so an access such as x[:, 1] leaves no trace in
the guards.  The program is therefore replayed on fake tensors, which have shapes but no elements, with each dynamic size at 0 and at 1,
and with pairs of small sizes.  torch's own operators refuse accesses that are out of bounds.  Fake tensors skip some checks of empty
tensors (the maximum of no elements), so operators on empty tensors are also called with real ones.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tunesmith.graph.importers.torch.sizes import Sizes, is_unbacked, logic, relation
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Not
from tunesmith.ir.poly import Var, evaluate, poly
from tunesmith.support.errors import ModelImportError

SMALL = (0, 1)


def small_size_conditions(torch: Any, program: Any, sizes: Sizes, known: Sequence[Expr]) -> list[Expr]:
    """Conditions that hold for all sizes but the small ones for which the program is invalid.

    Args:
        torch: the module.
        program: the exported program as traced, before its operators are decomposed: decompositions skip checks of the operators.
        sizes: the size variables.
        known: conditions from ranges and guards.  Sizes that do not satisfy them need no replay.
    """
    ranges = program.range_constraints
    symbols = [s for s in sorted(ranges, key=str) if s.is_Symbol and sizes.bound_to(s) is not None]
    replay = _Replay(torch, program, sizes, known)
    found: list[Expr] = []
    valid: dict[Any, list[int]] = {}
    for symbol in symbols:
        least = sizes.least_of(symbol, ranges)
        tried = [v for v in SMALL if v >= least]
        valid[symbol] = [v for v in tried if replay.is_valid({symbol: v})]
        wrong = [v for v in tried if v not in valid[symbol]]
        size = sizes.of_sympy(symbol)
        found += [relation("ge", size, poly(2))] if wrong and not valid[symbol] else [relation("ne", size, poly(v)) for v in wrong if v]
        found += [relation("ge", size, poly(1))] if wrong and wrong[0] == 0 and valid[symbol] else []
    for a, b in itertools.combinations(symbols, 2):
        for v, w in itertools.product(valid[a], valid[b]):
            if not replay.is_valid({a: v, b: w}):
                found.append(logic("Or", [relation("ne", sizes.of_sympy(a), poly(v)), relation("ne", sizes.of_sympy(b), poly(w))]))
    return found


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape and torch element type of a tensor."""

    extents: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, tensor: Any) -> _Shape:
        """Those of a fake tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)


class _Replay:
    """Evaluation of a program on fake tensors, for chosen sizes."""

    def __init__(self, torch: Any, program: Any, sizes: Sizes, known: Sequence[Expr]) -> None:
        self.torch, self.program, self.sizes, self.known = torch, program, sizes, known

    def is_valid(self, chosen: Mapping[Any, int]) -> bool:
        """Whether the program accepts the chosen values of symbols and keeps the shapes of its trace; also if no call has such sizes."""
        values = self._values(chosen)
        if values is None:
            return True
        with _silent("torch._subclasses.fake_tensor"):
            try:
                self._run(values)
            except Exception as error:  # torch raises many types for accesses out of bounds
                return self._reads_data and type(error).__name__ in _UNDECIDED
        return True

    def _values(self, chosen: Mapping[Any, int]) -> dict[Var, int] | None:
        """Values of all variables with the chosen ones of symbols: those of the example, or others if these violate a guard; None if no
        values below `_FEW` satisfy the guards either."""
        fixed = {}
        for symbol, value in chosen.items():
            variable, factor, offset = self.sizes.bound_to(symbol) or (None, 0, 0)
            if variable is not None:
                fixed[variable] = factor * value + offset
        free = [v for v in self.sizes.variables.values() if v not in fixed]
        candidates = itertools.chain(
            [[self.sizes.example.get(v, 2) for v in free]], itertools.product(range(_FEW), repeat=len(free)) if len(free) <= 3 else []
        )
        for candidate in candidates:
            values = {**fixed, **dict(zip(free, candidate, strict=True))}
            if all(_holds(c, values) for c in self.known):
                return values
        return None

    def _run(self, values: Mapping[Var, int]) -> None:
        """Evaluate all nodes; ModelImportError or an exception of torch if one is invalid."""
        replay, torch, tree = self, self.torch, self.torch.utils._pytree
        on_empty: list[tuple[Any, Any]] = []

        class Interpreter(torch.fx.Interpreter):  # type: ignore[name-defined]
            def run_node(self, node: Any) -> Any:
                made = super().run_node(node)
                replay.check(node, made, values)
                return made

            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                tensors = [t for t in tree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
                if isinstance(target, torch._ops.OpOverload) and any(_is_zero(e) for t in tensors for e in t.shape):
                    on_empty.append((target, tree.tree_map_only(torch.Tensor, _Shape.of, (args, kwargs))))
                return super().call_function(target, args, kwargs)

        with self._fake_mode():
            Interpreter(self.program.graph_module).run(*[self._input(n, values) for n in self._placeholders()])
        for target, given in on_empty:
            if any(isinstance(e, torch.SymInt) for t in tree.tree_leaves(given) for e in (t.extents if isinstance(t, _Shape) else [t])):
                continue
            args, kwargs = tree.tree_map_only(_Shape, lambda t: torch.zeros(t.extents, dtype=t.dtype), given)
            target(*args, **kwargs)

    def _fake_mode(self) -> Any:
        from torch._subclasses.fake_tensor import FakeTensorMode  # submodules that importing torch does not load
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        return FakeTensorMode(shape_env=ShapeEnv() if self._reads_data else None, allow_non_fake_inputs=True)

    @property
    def _reads_data(self) -> bool:
        """Whether shapes or numbers of the program depend on data."""
        return any(is_unbacked(str(s)) for s in self.program.range_constraints)

    def _placeholders(self) -> list[Any]:
        return [n for n in self.program.graph.nodes if n.op == "placeholder"]

    def _input(self, node: Any, values: Mapping[Var, int]) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, self.torch.Tensor):
            return value
        return self.torch.empty(self._extents(value.shape, values), dtype=value.dtype, device=value.device)

    def _extents(self, shape: Sequence[Any], values: Mapping[Var, int]) -> list[int]:
        return [evaluate(self.sizes.poly(size), values) for size in shape]

    def check(self, node: Any, made: Any, values: Mapping[Var, int]) -> None:
        """Raise ModelImportError if a result has not the shape of the trace."""
        traced = node.meta.get("val")
        for result, expected in zip(*[v if isinstance(v, (list, tuple)) else [v] for v in (made, traced)], strict=False):
            if isinstance(result, self.torch.Tensor) and isinstance(expected, self.torch.Tensor):
                if any(_from_data(e) for e in expected.shape):
                    continue
                shape = self._extents(expected.shape, values)
                if list(result.shape) != shape:
                    raise ModelImportError(f"{node.name} has the shape {list(result.shape)}, and {shape} in the trace")


_UNDECIDED = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
"""Errors of torch where it cannot decide without data; what follows is not replayed."""

_FEW = 9
"""Sizes that guards may tie to a small one are below this number, or are those of the example."""


def _is_zero(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 0


def _from_data(extent: Any) -> bool:
    return not isinstance(extent, int) and any(is_unbacked(str(s)) for s in extent.node.expr.free_symbols)


def _holds(condition: Expr, values: Mapping[Var, int]) -> bool:
    """The value of a condition on sizes."""
    if isinstance(condition, Const):
        return bool(condition.value)
    if isinstance(condition, IsNegative):
        return evaluate(condition.index, values) < 0
    if isinstance(condition, Not):
        return not _holds(condition.a, values)
    if not isinstance(condition, Binary):
        raise ModelImportError(f"{condition} is not a condition on sizes")
    parts = [_holds(condition.a, values), _holds(condition.b, values)]
    return all(parts) if condition.op == "and" else any(parts)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Disable a logger: torch logs each refusal as an error."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
