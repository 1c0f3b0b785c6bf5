"""What a schedule hands out: names for a block, a loop, a sampled integer.  A handle outlives every rewrite that keeps its binder."""

from __future__ import annotations

from tunesmith.ir.poly import Poly, Var


class Handle:
    """Named `b0`, `l3`, `v7` in order of creation, so that equal traces are equal text."""

    __slots__ = ("name",)
    letter = "?"

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class BlockRV(Handle):
    """A block, by its name in the function."""

    __slots__ = ("block",)
    letter = "b"

    def __init__(self, name: str, block: str) -> None:
        super().__init__(name)
        self.block = block


class LoopRV(Handle):
    """A loop, by its variable."""

    __slots__ = ("var",)
    letter = "l"

    def __init__(self, name: str, var: Var) -> None:
        super().__init__(name)
        self.var = var


class IntRV(Handle):
    """A sampled integer.  `expr` is a Param in parametric mode and a number in concrete mode; two draws of 4 are two handles."""

    __slots__ = ("expr",)
    letter = "v"

    def __init__(self, name: str, expr: Poly) -> None:
        super().__init__(name)
        self.expr = expr

    def __int__(self) -> int:
        return self.expr.as_int()
