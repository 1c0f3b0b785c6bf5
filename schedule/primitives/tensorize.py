"""Mark a loop nest for execution by a tensor intrinsic."""

from __future__ import annotations

from tunesmith.ir.stmt import TENSORIZED, For
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.ir.tensor_intrinsics.match import Mismatch, match, nest_of
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState
from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean


@primitive
def tensorize(s: ScheduleState, loop: LoopRV, intrinsic: str) -> None:
    """Execute the nest from `loop` inwards by a tensor intrinsic, an instruction that computes a whole nest.

    Args:
        loop: the outermost loop of the nest.  Its extent and those inside must be those of the description, in the same order; further
            loops of one iteration do not matter.  Split them off before.
        intrinsic: the name of one of `ir.tensor_intrinsics`.
    Rewrite: `tensorize(j, "x86.vpdpbusd.512")`
        A = T.alloc_buffer((4,), "uint8")
        B = T.alloc_buffer((16, 4), "int8")
        C = T.alloc_buffer((16,), "int32")
        for j, k in T.grid(16, 4):
            C[j] = C[j] + T.cast("int32", A[k]) * T.cast("int32", B[j, k])
      ->
        A = T.alloc_buffer((4,), "uint8")
        B = T.alloc_buffer((16, 4), "int8")
        C = T.alloc_buffer((16,), "int32")
        for j in T.tensorized(16, annotations={"intrinsic": "x86.vpdpbusd.512"}):
            for k in T.tensorized(4, annotations={"intrinsic": "x86.vpdpbusd.512"}):
                C[j] = C[j] + T.cast("int32", A[k]) * T.cast("int32", B[j, k])
    Requires:
        known-intrinsic: the intrinsic exists.
        serial: the loops of the nest are not marked or annotated otherwise, and no loop around them is vectorized.
        nest: the nest contains one block, which is a single store without init; use decompose_reduction first.
        description: extents, the expression, types, scopes and distances of elements in memory are those of the description.
        loop-exists: the loop is still in the program.
    Keeps: results; the order of summation is that of the instruction.  Loops execute tiles of which a guard excludes iterations (source:
        TVM's tensorize).
    """
    if intrinsic not in TENSOR_INTRINSICS:
        known = TENSOR_INTRINSICS.names()
        message = (
            f"unknown tensor intrinsic {intrinsic!r}; worker processes know those of packages, and none that a program registers."
            f"{did_you_mean(intrinsic, known)} Known: {', '.join(known)}."
        )
        raise s.refuse("known-intrinsic", message)
    try:
        found = TENSOR_INTRINSICS.get(intrinsic)
    except UserError as error:
        raise s.refuse("known-intrinsic", str(error)) from None
    target = s.loop(loop)
    try:
        nest = nest_of(target)
    except Mismatch as error:
        raise s.refuse("nest", f"loop {target.var.name}: {error}", target) from None
    for f in nest.loops:
        if f.kind != "serial" or f.annotations:
            raise s.refuse("serial", f"loop {f.var.name} is {f.kind} or annotated; tensorize before marking loops", f)
    block = blocks_under(target)[0].name
    outer = next((f for f in s.loops_of(block) if f.kind == "vectorized"), None)
    if outer is not None:
        raise s.refuse("serial", f"loop {outer.var.name} around loop {target.var.name} is vectorized", outer)
    try:
        made = match(nest, found)
    except Mismatch as error:
        raise s.refuse("description", f"loop {target.var.name} does not match {intrinsic}: {error}", target) from None
    for difference in made.extents:
        s.require("eq0", difference, "description", f"the extents of loop {target.var.name} are not those of {intrinsic}")

    def marked(n: For) -> For:
        body = marked(n.body) if type(n.body) is For else n.body
        return n.with_(kind=TENSORIZED, annotations=(("intrinsic", intrinsic),), body=body)

    s.replace_loop(target.var, marked)
