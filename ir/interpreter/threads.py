"""The interpreter of programs with threads: kernel after kernel, block after block, the threads of one block in step.

`run_threads` means what `interpret.run` means, and besides that each thread loop is run by the threads of a block together: a
statement is done by all of them, as numpy arrays with a row for each thread, before the next one begins.  A program whose result
depends on the order in which real threads would come is refused: two threads that touch one cell with no barrier between, one of
them writing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import match_arrays
from tunesmith.ir.interpreter.memory import InterpretError
from tunesmith.ir.interpreter.source import Compiler
from tunesmith.ir.interpreter.thread_memory import Clock, CommonMemory
from tunesmith.ir.interpreter.thread_source import VIRTUAL_TAGS, ThreadCompiler, written_buffers
from tunesmith.ir.poly import Param, Var
from tunesmith.ir.stmt import Allocate, For, Seq, Stmt
from tunesmith.ir.visit import walk_objects

__all__ = ["InterpretError", "run_threads"]


def run_threads(
    func: PrimFunc,
    arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray],
    values: Mapping[Var, int] | None = None,
    *,
    check_races: bool = True,
) -> list[np.ndarray]:
    """What the buffer parameters of `func` hold after a call on a device with threads.

    Each statement at the root of the body is a kernel; its blocks run one after the other in the order of their numbers.  Memory of a
    scope that is private to threads exists once for each thread, shared memory once for each block, and both begin poisoned.  A loop
    that is bound to a thread runs in each thread the one iteration that is the thread's coordinate; the loops of one tag in one kernel
    agree in their extent.  A statement under no loop of some tag is run by all threads along that axis.  Loops of virtual threads are
    run by each thread from end to end.

    Args:
        func: any program that `verify` accepts, at any stage of lowering.
        arrays: as for `interpret.run`.
        values: the value of every Param and scalar parameter.
        check_races: refuse races, and reads of shared or private memory that was not written.  Nested thread loops are right without
            a barrier between them only when threads run in step: such a program is refused until its barriers are in place.  Of
            iterations of parallel and vectorized loops only `interpret.run` knows that they may race.

    Returns:
        One array for each buffer parameter, in order.

    Raises:
        InterpretError: as for `interpret.run`; a race, with both statements and both threads; a barrier that some threads of a block
            do not reach, a shuffle that some threads of a warp do not reach; thread loops that disagree.
    """
    known = dict(values or {})
    for v, n in known.items():
        if isinstance(v, Param) and n not in v.domain:
            raise InterpretError(f"the value {n} is not in the domain of the Param {v}: {v.domain}")
    made = Compiler(func, known, False)
    clock, written = Clock(func.name), written_buffers(func.body)
    common: dict[Buffer, CommonMemory] = {}

    def remember(b: Buffer, given: np.ndarray | None) -> np.ndarray:
        array = made.memory(b, given)
        common[b] = CommonMemory(b, array, clock, False, check_races and b in written)
        return array

    result = [remember(b, given) for b, given in match_arrays(func, arrays)]
    kernels, allocated = _kernels(func)
    for b in (*func.allocs, *allocated):
        if b.scope == "global":
            remember(b, None)
    compiled = [ThreadCompiler(func, known, check_races, clock, common, kernel) for kernel in kernels]
    with np.errstate(all="ignore"):
        try:
            for c in compiled:
                _run_kernel(c)
        except (ArithmeticError, ValueError) as e:
            raise InterpretError(f"function {func.name} computes something undefined: {e}") from e
    return result


def _kernels(func: PrimFunc) -> tuple[list[Stmt], list[Buffer]]:
    """The kernels in order, and global memory that the body allocates around them.  Without bound loops all is one kernel."""
    bound = [n for n in walk_objects(func.body) if type(n) is For and n.kind == "thread" and n.thread not in VIRTUAL_TAGS]
    kernels: list[Stmt] = []
    allocated: list[Buffer] = []

    def collect(s: Stmt) -> None:
        if type(s) is Seq:
            for x in s.stmts:
                collect(x)
        elif type(s) is Allocate and s.buffer.scope == "global":
            allocated.append(s.buffer)
            collect(s.body)
        else:
            kernels.append(s)

    if bound:
        collect(func.body)
    else:
        kernels.append(func.body)
    return kernels, allocated


def _run_kernel(made: ThreadCompiler) -> None:
    """All blocks, x fastest."""
    if not made.threads:
        return
    exec(made.compile(), made.env)
    main, clock = made.env["main"], made.clock
    clock.begin_kernel(made.block_shape, np.arange(made.threads, dtype=np.int64))
    nx, ny, nz = made.grid
    for z, y, x in itertools.product(range(nz), range(ny), range(nx)):
        clock.begin_block((x, y, z))
        for memory in made.fresh_in_block:
            memory.reset()
        main(x, y, z)
