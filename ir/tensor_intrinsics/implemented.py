"""Call the implementation of a tensor intrinsic, and check the statement that it makes."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.expr import Binary, Call
from tunesmith.ir.intrinsics import intrinsic as intrinsic_of
from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.tensor_intrinsics.intrinsic import Operand, TensorIntrinsic
from tunesmith.ir.visit import walk
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError, ScriptError


def implemented(intrinsic: TensorIntrinsic, operands: Mapping[str, Operand], active: Poly | None) -> Stmt:
    """The statement that replaces a nest.

    Args:
        intrinsic: the intrinsic.
        operands: buffers by the names of the description.
        active: leading iterations of the outermost loop that run; None for all.
    Raises:
        BuildError: the implementation asks for an operand that the description lacks, returns no statement, or one with a call of an
            unknown function, of the wrong number of operands or lanes, or with operands of different types.
    """
    made = intrinsic.implementation(_Operands(intrinsic, operands), active)
    what = f"the implementation of the tensor intrinsic {intrinsic.name}"
    if not isinstance(made, Stmt):
        raise BuildError(
            f"{what} returned an object of type {type(made).__name__}, not a statement of tunesmith.ir.stmt, such as a BufferStore"
        )
    for n in walk(made):
        if type(n) is Call:
            _check_call(what, n)
        if type(n) is Binary and n.a.dtype != n.b.dtype:
            raise BuildError(f"{what}: the operands of {n.op} are {n.a.dtype} and {n.b.dtype}")
        if type(n) is BufferStore and dt.element(n.value.dtype) != n.buffer.dtype:
            raise BuildError(f"{what}: a value of {n.value.dtype} is stored to {n.buffer.name}, whose elements are {n.buffer.dtype}")
    return made


class _Operands(dict[str, Operand]):
    """The operands; an unknown name is a BuildError."""

    def __init__(self, intrinsic: TensorIntrinsic, operands: Mapping[str, Operand]) -> None:
        super().__init__(operands)
        self._intrinsic = intrinsic

    def __missing__(self, name: str) -> Operand:
        raise BuildError(
            f"the implementation of the tensor intrinsic {self._intrinsic.name} asks for the operand {name!r}; "
            f"its description has the operands {', '.join(self)}"
        )


def _check_call(what: str, e: Call) -> None:
    try:
        known = intrinsic_of(e.name)
    except ScriptError as error:
        raise BuildError(f"{what}: {error}") from None
    if known.effect:
        return
    if len(e.args) != known.arity:
        raise BuildError(f"{what}: {e.name} takes {known.arity} operands, got {len(e.args)}")
    lanes = dt.lanes(e.dtype)
    if known.operands:
        wanted = [dt.vector(element, n * lanes) for element, n in known.operands]
        found = [a.dtype for a in e.args]
        if found != wanted:
            raise BuildError(f"{what}: the operands of {e.name} for a result of {e.dtype} are {', '.join(wanted)}, not {', '.join(found)}")
    elif e.name != "reinterpret" and not known.reduces and not known.concatenates and any(dt.lanes(a.dtype) != lanes for a in e.args):
        found = [a.dtype for a in e.args]
        raise BuildError(
            f"{what}: the result of {e.name} is {e.dtype}, and its operands are {', '.join(found)}, of another number of lanes"
        )
