"""What a schedule hands out: names for a block, a loop, a sampled integer.  A handle outlives every rewrite that keeps its binder."""

from __future__ import annotations

from tunesmith.ir.poly import Poly, Var


class Handle:
    """Named `b0`, `l3`, `v7` in order of creation, so that equal traces are equal text.

    `owner` is the number of the schedule that gave it: another schedule of the same function has loops of the same variables, but a
    trace of its own, where the name is another handle's, or none's.
    """

    __slots__ = ("name", "owner")
    letter = "?"

    def __init__(self, name: str, owner: int) -> None:
        self.name = name
        self.owner = owner

    def __repr__(self) -> str:
        return self.name


class BlockRV(Handle):
    """A block, by its name in the function."""

    __slots__ = ("block",)
    letter = "b"

    def __init__(self, name: str, owner: int, block: str) -> None:
        super().__init__(name, owner)
        self.block = block


class LoopRV(Handle):
    """A loop, by its variable."""

    __slots__ = ("var",)
    letter = "l"

    def __init__(self, name: str, owner: int, var: Var) -> None:
        super().__init__(name, owner)
        self.var = var


class IntRV(Handle):
    """A sampled integer.  `expr` is a Param in parametric mode and a number in concrete mode; two draws of 4 are two handles."""

    __slots__ = ("expr",)
    letter = "v"

    def __init__(self, name: str, owner: int, expr: Poly) -> None:
        super().__init__(name, owner)
        self.expr = expr

    def __int__(self) -> int:
        return self.expr.as_int()
