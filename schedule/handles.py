"""Refer to blocks, loops and sampled integers of a schedule by handles, which stay valid while their binder is in the program."""

from __future__ import annotations

from tunesmith.ir.poly import Poly, Var
from tunesmith.support.errors import UserError


class Handle:
    """A handle, named `b0`, `l3`, `v7` in order of creation, so that equal traces have equal text.

    `owner` is the number of the schedule that made the handle.  Schedules of one function share loop variables, but each has its own
    trace, where the same name may refer to another handle, or to none.
    """

    __slots__ = ("name", "owner")
    letter = "?"

    def __init__(self, name: str, owner: int) -> None:
        self.name = name
        self.owner = owner

    def __repr__(self) -> str:
        return self.name


class BlockRV(Handle):
    """Handle of a block, by its name in the function."""

    __slots__ = ("block",)
    letter = "b"

    def __init__(self, name: str, owner: int, block: str) -> None:
        super().__init__(name, owner)
        self.block = block


class LoopRV(Handle):
    """Handle of a loop, by its variable."""

    __slots__ = ("var",)
    letter = "l"

    def __init__(self, name: str, owner: int, var: Var) -> None:
        super().__init__(name, owner)
        self.var = var


ROOT, INLINE = Var("root"), Var("inline")
"""The variables of handles that `sample_compute_location` returns instead of a loop: leave the block where it is, or inline it."""


class IntRV(Handle):
    """Handle of a sampled integer.  `expr` is a Param in parametric mode and a number in concrete mode; two draws of 4 are two handles."""

    __slots__ = ("expr",)
    letter = "v"

    def __init__(self, name: str, owner: int, expr: Poly) -> None:
        super().__init__(name, owner)
        self.expr = expr

    def __int__(self) -> int:
        """The number.  UserError in a schedule with open sizes, where it is a Param."""
        if self.expr.const is None:
            raise UserError(
                f"the sampled value {self.name} has no number while sizes are open, as in a sketch rule: pass it to a primitive as it "
                "is, or give its possible values to the sampling primitive"
            )
        return self.expr.as_int()

    def __lt__(self, other: object) -> bool:
        return bool(self._compared("<") < _number(other))  # type: ignore[operator]

    def __le__(self, other: object) -> bool:
        return bool(self._compared("<=") <= _number(other))  # type: ignore[operator]

    def __gt__(self, other: object) -> bool:
        return bool(self._compared(">") > _number(other))  # type: ignore[operator]

    def __ge__(self, other: object) -> bool:
        return bool(self._compared(">=") >= _number(other))  # type: ignore[operator]

    def _compared(self, sign: str) -> int:
        """The number, for a comparison.  UserError in a schedule with open sizes."""
        if self.expr.const is None:
            raise UserError(
                f"the sampled value {self.name} cannot be compared with `{sign}` while a space is derived, as in a sketch rule: it is a "
                f"symbolic number that stands for all of its values. s.limit([{self.name}], at_most, label) is a constraint of the space; "
                "or give the values that satisfy the comparison to the sampling primitive, or make a sketch for each case"
            )
        return self.expr.as_int()


def _number(x: object) -> object:
    return int(x) if isinstance(x, IntRV) else x
