"""Represent tensors by the formula of one element; `ops.tensor_expression` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Expr
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.node import Node, node
from tunesmith.ir.poly import Index, Poly, Var
from tunesmith.ir.visit import walk_objects
from tunesmith.support.errors import ScriptError


def default_loops(rank: int) -> list[str]:
    """The names of the spatial loops of a `compute` that takes `*indices`: i, j, k, l, or i0, i1, ... for more than four."""
    return list("ijkl"[:rank]) if rank <= 4 else [f"i{d}" for d in range(rank)]


class SpatialAxis(Var):
    """The variable of one dimension of a `compute`."""

    __slots__ = ()


class ReduceAxis(Var):
    """The variable of a reduction, 0 <= variable < extent."""

    __slots__ = ("extent",)

    def __init__(self, name: str, extent: Poly) -> None:
        super().__init__(name)
        self.extent = extent


@node
class Reduction(Expr):
    """`value` combined over `axes` with `op`, allowed only as the whole formula of a `compute`."""

    op: str
    value: Expr
    axes: tuple[ReduceAxis, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.value.dtype


@node
class Scan(Expr):
    """`value`, computed in the order of dimension `axis`; allowed only as the whole formula of a tensor.

    `value` may load the tensor itself at the element before.  The order is that of the dimension's variable; if `reverse`, variable v
    computes element extent - 1 - v.
    """

    value: Expr
    axis: int
    reverse: bool

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.value.dtype


@node
class Scatter(Expr):
    """Elements of a tensor that are `initial` first, and then updated in the order of `axes`; allowed only as the whole formula.

    For each value of the axes where `condition` holds, the element at `at` becomes `update`.

    Attributes:
        initial: formula of an element before the updates, in terms of the tensor's own axes.
        axes: the variables of the updates.
        extents: their extents.
        bound: indirect indices: variables, in order, that `at`, `condition` and `update` may use.
        values: their values.
        sizes: their extents.
        at: the indices of the updated element.
        condition: None if each update is made.
        update: the new element; it may load the tensor itself at `at`.
    """

    initial: Expr
    axes: tuple[SpatialAxis, ...]
    extents: tuple[Poly, ...]
    bound: tuple[IndirectVar, ...]
    values: tuple[Expr, ...]
    sizes: tuple[Poly, ...]
    at: tuple[Poly, ...]
    condition: Expr | None
    update: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.update.dtype


def _on_elements(symbol: str) -> tuple[Callable[..., NoReturn], Callable[..., NoReturn]]:
    """An operator of whole tensors and its reflection, which refuse with their spelling on elements."""

    def refuse(*operands: object) -> NoReturn:
        shown = [f"{x.name}[{', '.join(default_loops(len(x.shape))) or '()'}]" if isinstance(x, Tensor) else str(x) for x in operands]
        spelled = f" {symbol} ".join(shown) if len(shown) > 1 else f"{symbol}{shown[0]}"
        raise ScriptError(f"{symbol} combines elements and not whole tensors: index the tensors in the formula of a compute, {spelled}")

    return refuse, lambda b, a: refuse(a, b)


class Tensor(Buffer):
    """A placeholder or a computed tensor, made by `placeholder` and `compute`; `T[i, j]` is an element, as an expression.

    Attributes:
        axes: one variable for each dimension; empty for a placeholder.
        value: the formula of an element, None for a placeholder.
    """

    __slots__ = ("axes", "value")

    def __init__(
        self, name: str, shape: Iterable[Index], dtype: str, axes: tuple[SpatialAxis, ...] = (), value: Expr | None = None
    ) -> None:
        super().__init__(name, shape, dtype)
        self.axes = axes
        self.value = value

    @property
    def is_input(self) -> bool:
        """Whether this is a placeholder."""
        return self.value is None

    @property
    def element(self) -> Expr:
        """The formula of a computed tensor that is no scatter, without the reduction or scan around it."""
        assert self.value is not None, f"the placeholder {self.name} has no formula"
        return self.value.value if isinstance(self.value, (Reduction, Scan)) else self.value

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """All expressions that a computed tensor evaluates, without the reduction, scan or scatter around them."""
        if isinstance(self.value, Scatter):
            v = self.value
            return (v.initial, *v.values, v.update) if v.condition is None else (v.initial, *v.values, v.condition, v.update)
        return (self.element,)

    @property
    def is_ordered(self) -> bool:
        """Whether elements depend on the order of the computation or on several values, so that no consumer can compute them itself."""
        return isinstance(self.value, (Reduction, Scan, Scatter))

    @property
    def sources(self) -> list[Tensor]:
        """The other tensors that the formula loads, without duplicates, in the order of the formula."""
        found = [] if self.value is None else [n.buffer for n in walk_objects(self.value) if isinstance(n, BufferLoad)]
        return [b for b in dict.fromkeys(found) if isinstance(b, Tensor) and b is not self]

    __add__, __radd__ = _on_elements("+")
    __sub__, __rsub__ = _on_elements("-")
    __neg__ = __sub__
    __mul__, __rmul__ = _on_elements("*")
    __truediv__, __rtruediv__ = _on_elements("/")
    __floordiv__, __rfloordiv__ = _on_elements("//")
    __mod__, __rmod__ = _on_elements("%")
    __pow__, __rpow__ = _on_elements("**")
    __lt__, __gt__ = _on_elements("<")[0], _on_elements(">")[0]
    __le__, __ge__ = _on_elements("<=")[0], _on_elements(">=")[0]


def variables_of(n: Node) -> list[Var]:
    """The variables of an index in a fixed order; none for other nodes."""
    return sorted(n.vars, key=lambda v: v.key) if isinstance(n, Poly) else []
