"""Describe a program independently of the project's IR: loops, blocks, axes, guards, statements and expressions as plain data.

The description is rendered as script text (`render`) and evaluated directly (`evaluate`), by two independent implementations.
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
    """A loop variable, block axis, size of the program, or the variable of an indirect index."""

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
    """A number of some type."""

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
    """`a op b` for values of one type: + - * / // % min max & | ^ << >>."""

    op: str
    a: Value
    b: Value
    dtype: str


@dataclass(frozen=True, slots=True)
class Compare:
    """`a op b` for two values of one type; a bool."""

    op: str
    a: Value
    b: Value
    dtype: str = "bool"


@dataclass(frozen=True, slots=True)
class IndexCompare:
    """`a op b` for two index expressions; a bool."""

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
    """`a` if `cond` holds, else `b`; only the chosen side is evaluated.  `style` is the spelling: select, call or ternary."""

    cond: Value
    a: Value
    b: Value
    style: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Cast:
    """`a` converted to a type."""

    a: Value
    dtype: str


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index expression as a value of some type."""

    index: Index
    dtype: str


@dataclass(frozen=True, slots=True)
class Function:
    """A call of an intrinsic."""

    name: str
    args: tuple[Value, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class IndirectIndex:
    """`body` with the index `name` equal to the int64 `value`, which is in [0, extent)."""

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
    """A computation executed where all guards hold; `init` is executed first where all reduction axes are 0.

    Attributes:
        under: conditions on loops and data of an `if` around the block.
        is_plain: whether the statements are not in a block: loops are used instead of axes, and there is no init.
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
    """A buffer.

    Attributes:
        role: input, output (a parameter that is read and written) or scratch (initially undefined).
        data: contents of a parameter before the call: small, fractions, wild, tiny, huge, or an index below `bound`.
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
        sizes: names of the sizes passed at run time.
        bindings: values of the sizes for each checked call; one empty tuple if there are no sizes.
    """

    buffers: tuple[Buffer, ...]
    body: tuple[Nest, ...]
    sizes: tuple[str, ...] = ()
    bindings: tuple[tuple[int, ...], ...] = ((),)

    @property
    def params(self) -> tuple[Buffer, ...]:
        """The parameters in call order."""
        return tuple([b for b in self.buffers if b.role != "scratch"])

    def buffer(self, name: str) -> Buffer:
        """The buffer with a name."""
        return next(b for b in self.buffers if b.name == name)


def replaced(x: Any, name: str, by: Index) -> Any:
    """`x`, any part of a program, with a name replaced by an index expression."""
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
    """All blocks, including plain statements described as blocks, in program order."""
    return [b for n in body for b in ([n] if isinstance(n, Block) else blocks(n.body))]
