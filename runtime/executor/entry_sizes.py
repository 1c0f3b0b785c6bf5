"""Compute the sizes of a call from the shapes of its inputs, and the extents of tensors from sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.runtime.executor.executor import Shape
from tunesmith.runtime.executor.index_program import evaluate, holds, shown_condition
from tunesmith.runtime.executor.vm_code import Code
from tunesmith.support.errors import RunError


class WrongExtent(RunError):
    """An input has an extent that does not fit the others.

    Args:
        input: the number of the input.
        why: what is expected, to follow the shape.
    """

    def __init__(self, input: int, why: str) -> None:
        super().__init__(why)
        self.input = input


def entry_sizes(code: Code, shapes: Sequence[Shape]) -> dict[str, int]:
    """The sizes that inputs of these shapes give.

    Raises:
        WrongExtent: an extent is inconsistent with others.
        RunError: a precondition of the program does not hold.
    """
    sizes: dict[str, int] = {}
    for ins in code.entry:
        if ins[0] == "require":
            if not holds(ins[1], sizes):
                raise RunError(f"the program requires {shown_condition(ins[1])}, and the inputs have {_assigned(sizes)}")
            continue
        i, axis = (ins[2], ins[3]) if ins[0] == "size" else (ins[1], ins[2])
        given = shapes[i][axis]
        if ins[0] == "size":
            sizes[ins[1]] = given
        elif given != evaluate(ins[3], sizes):
            named = f" where {_assigned(sizes)}" if isinstance(ins[3], (str, list)) else ""
            raise WrongExtent(i, f", expected {evaluate(ins[3], sizes)} at axis {axis}{named}")
    return sizes


def extents(shape: Sequence[Any], sizes: Mapping[str, int], what: str) -> Shape:
    """The extents of a shape.  RunError if one is negative; KeyError for a size that is not known."""
    found = tuple([evaluate(e, sizes) for e in shape])
    if any(e < 0 for e in found):
        raise RunError(f"{what} of the program has negative extents {list(found)} for inputs with {_assigned(sizes)}")
    return found


def known_extents(shape: Sequence[Any], sizes: Mapping[str, int], what: str) -> Shape | None:
    """The extents of a shape; None if they depend on a size that is read while the program runs."""
    try:
        return extents(shape, sizes, what)
    except KeyError:
        return None


def _assigned(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items()) or "no sizes"
