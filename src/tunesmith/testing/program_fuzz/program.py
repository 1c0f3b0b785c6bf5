"""Describe a program without the project's IR: loops, blocks, axes, guards, statements and expressions as plain data.

The same description is written as script text (`render`) and computed directly (`evaluate`); neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# ---- index expressions: integers without bounds -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Num:
    """An integer."""

    value: int


@dataclass(frozen=True, slots=True)
class Name:
    """A loop variable, an axis of a block, a size of the program or the variable of a lookup."""

    name: str


@dataclass(frozen=True, slots=True)
class Arith:
    """`a op b`, op one of + - * // % min max; // and % round to minus infinity."""

    op: str
    a: Index
    b: Index


Index = Num | Name | Arith


# ---- value expressions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A number of a type."""

    value: bool | int | float
    dtype: str


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a buffer."""

    buffer: str
    indices: tuple[Index, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Binary:
    """`a op b` of one type: + - * / // % min max & | ^ << >>."""

    op: str
    a: Value
    b: Value
    dtype: str


@dataclass(frozen=True, slots=True)
class Compare:
    """`a op b` of two values of one type; a bool."""

    op: str
    a: Value
    b: Value
    dtype: str = "bool"


@dataclass(frozen=True, slots=True)
class IndexCompare:
    """`a op b` of two index expressions; a bool."""

    op: str
    a: Index
    b: Index
    dtype: str = "bool"


@dataclass(frozen=True, slots=True)
class Logic:
    """`a and b` or `a or b`."""

    op: str
    a: Value
    b: Value
    dtype: str = "bool"


@dataclass(frozen=True, slots=True)
class Not:
    """`not a`."""

    a: Value
    dtype: str = "bool"


@dataclass(frozen=True, slots=True)
class Select:
    """`a` where `cond` holds, else `b`; only the chosen side is computed.  `style` is its spelling: select, call or ternary."""

    cond: Value
    a: Value
    b: Value
    style: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Cast:
    """`a` as another type."""

    a: Value
    dtype: str


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index expression as a value of a type."""

    index: Index
    dtype: str


@dataclass(frozen=True, slots=True)
class Function:
    """An intrinsic of values."""

    name: str
    args: tuple[Value, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class IndirectIndex:
    """`body` where the index `name` is the int64 `value`, which is in [0, extent)."""

    value: Value
    extent: Index
    name: str
    body: Value
    dtype: str


Value = Literal | Load | Binary | Compare | IndexCompare | Logic | Not | Select | Cast | IndexValue | Function | IndirectIndex


# ---- statements ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[indices] = value."""

    buffer: str
    indices: tuple[Index, ...]
    value: Value


@dataclass(frozen=True, slots=True)
class If:
    """if cond: then else: orelse."""

    cond: Value
    then: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


Statement = Store | If


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration variable of a block: `kind` S (spatial) or R (reduction), over [0, extent), bound to `binding`."""

    name: str
    kind: str
    extent: Index
    binding: Index


@dataclass(frozen=True, slots=True)
class Block:
    """One computation: runs where every guard holds; `init` runs first where all reduction axes are 0.

    Attributes:
        under: conditions of an `if` around the block, on loops and on data.
        is_plain: the statements are not in a block: the text has loops in the place of axes.  There is no init.
    """

    name: str
    axes: tuple[Axis, ...]
    guards: tuple[IndexCompare, ...]
    init: tuple[Statement, ...]
    body: tuple[Statement, ...]
    under: tuple[Value, ...] = ()
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """for var in range(extent): body."""

    var: str
    extent: Index
    body: tuple[Nest, ...]


Nest = Loop | Block


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory.

    Attributes:
        role: input, output (a parameter that is read and written) or scratch (starts undefined).
        data: what a parameter holds before the call: small, fractions, wild, tiny, huge, or an index below `bound`.
    """

    name: str
    shape: tuple[Index, ...]
    dtype: str
    role: str
    scope: str = "global"
    pad: int = 0
    data: str = "small"
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A function.

    Attributes:
        sizes: names of the sizes that a call gives.
        bindings: the values of the sizes, one tuple for each call that is checked; one empty tuple when there are no sizes.
    """

    buffers: tuple[Buffer, ...]
    body: tuple[Nest, ...]
    sizes: tuple[str, ...] = ()
    bindings: tuple[tuple[int, ...], ...] = ((),)

    @property
    def params(self) -> tuple[Buffer, ...]:
        """Parameters in the order of a call."""
        return tuple([b for b in self.buffers if b.role != "scratch"])

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return next(b for b in self.buffers if b.name == name)


def replaced(x: Any, name: str, by: Index) -> Any:
    """`x`, any part of a program, with an index expression in the place of a name."""
    if isinstance(x, tuple):
        return tuple([replaced(y, name, by) for y in x])
    if isinstance(x, Name):
        return by if x.name == name else x
    if not hasattr(x, "__dataclass_fields__"):
        return x
    changed = {f: replaced(getattr(x, f), name, by) for f in x.__dataclass_fields__ if not isinstance(getattr(x, f), (str, int, float))}
    made = replace(x, **changed)
    if isinstance(made, Arith) and isinstance(made.a, Num) and isinstance(made.b, Num) and made.op in "+-*":
        a, b = made.a.value, made.b.value
        return Num(a + b if made.op == "+" else a - b if made.op == "-" else a * b)
    return made


def blocks(body: tuple[Nest, ...]) -> list[Block]:
    """All blocks, and plain statements that are described as such, in program order."""
    return [b for n in body for b in ([n] if isinstance(n, Block) else blocks(n.body))]
