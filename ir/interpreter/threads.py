"""Interpret programs with GPU threads: kernels and blocks in sequence, the threads of a block in lockstep.

`run_threads` has the semantics of `interpret.run`, except that the threads of a block execute each thread loop together: a statement is
executed for all of them, as numpy arrays with a row per thread, before the next one starts.  A program whose result depends on the
scheduling of threads is rejected: two threads access the same cell without a barrier in between, and one of them writes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import VIRTUAL_AXES
from tunesmith.ir.interpreter.interpret import match_arrays
from tunesmith.ir.interpreter.memory import InterpretError
from tunesmith.ir.interpreter.source import Compiler
from tunesmith.ir.interpreter.thread_memory import Clock, CommonMemory
from tunesmith.ir.interpreter.thread_source import ThreadCompiler, written_buffers
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
    """The contents of the buffer parameters of `func` after a call on a device with threads.

    Each statement at the root of the body is a kernel; its blocks run in the order of their numbers.  Thread-private memory exists once per
    thread, shared memory once per block; both start poisoned.  Each thread executes the iteration of a thread-bound loop given by its
    coordinate; all loops of a kernel over an axis have the same extent.  A statement outside of all loops over an axis is executed by all
    threads along that axis.  Each thread executes all iterations of virtual-thread loops.

    Args:
        func: any program that `verify` accepts, at any stage of lowering.
        arrays: as for `interpret.run`.
        values: the value of every Param and scalar parameter.
        check_races: reject races, and reads of shared or private memory before it is written.  Nested thread loops without a barrier are
            correct only in lockstep, so such a program is rejected until its barriers are inserted.  Races between iterations of parallel
            and vectorized loops are detected by `interpret.run` only.

    Returns:
        One array per buffer parameter, in order.

    Raises:
        InterpretError: as for `interpret.run`; also a race, with both statements and both threads; a barrier that some threads of a block
            do not reach; a shuffle that some threads of a warp do not reach; different extents of one thread axis.
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
    """The kernels in order, and the global buffers allocated around them.  A body without bound loops is a single kernel."""
    bound = [n for n in walk_objects(func.body) if type(n) is For and n.kind == "thread" and n.thread not in VIRTUAL_AXES]
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
    """Run all blocks of a kernel, x fastest."""
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
