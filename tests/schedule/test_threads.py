"""Test bind, cooperative_fetch, pad_rows, add_unit_loop and compute_at with shared_by: rewrites and unchanged results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import InterpretError, run_threads
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import BufferStore, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.lower.pipelines import GPU
from tunesmith.schedule.schedule import Schedule, concretize, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.seeds import stream

Golden = Callable[..., None]
Steps = Callable[[Schedule], object]
TARGETS = (Target("opencl"), Target("cuda -arch=sm_90"))


def inputs(func: PrimFunc) -> list[np.ndarray]:
    """Inputs of small integers; outputs are poisoned."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    out = []
    for b in func.params:
        assert isinstance(b, Buffer)
        shape = [e.as_int() for e in b.shape]
        out.append(np.full(shape, np.nan, np.float32) if b in written else stream(0, "t", b.name).integers(-3, 4, shape).astype(np.float32))
    return out


def check(func: PrimFunc, steps: Steps, decisions: Sequence[Sequence[int]] = (), combines: bool = False) -> Schedule:
    """The schedule that `steps` make of `func`, after the checks of `check_schedule`.

    The thread interpreter computes the results: before lowering with threads in lockstep, after lowering with race detection.
    With `combines`, threads reduce into one element, which is defined only after lowering.
    """
    s = Schedule(func, decisions=decisions)
    steps(s)
    verify(s.func)
    expected = run(func, [x.copy() for x in inputs(func)])
    if combines:
        with pytest.raises(InterpretError, match="a race: C"):
            run_threads(s.func, inputs(func))
    else:
        for got, wanted in zip(run_threads(s.func, inputs(func), check_races=False), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    for target in TARGETS:
        done = GPU(s.func, target)
        verify(done)
        for got, wanted in zip(run_threads(done, [x.reshape(-1) for x in inputs(func)]), expected, strict=True):
            np.testing.assert_array_equal(got, wanted.reshape(-1))
    read = Trace.from_json(json.loads(json.dumps(s.trace.to_json())))
    assert read == s.trace
    again = replay(read, func)
    assert structural.difference(again.func, s.func) is None and again.trace == s.trace
    pasted = Schedule(func)
    exec(s.trace.as_python(), {"sch": pasted})
    assert structural.difference(pasted.func, s.func) is None and pasted.trace == s.trace
    symbolic = Schedule(func, parametric=True)
    steps(symbolic)
    values = [x for d in decisions for x in d]
    concrete = concretize(symbolic.func, dict(zip(symbolic.params, values, strict=True)))
    assert structural.difference(concrete, s.func) is None, "substitution after the steps and before them give different programs"
    return s


@T.prim_func
def row(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    for i in T.serial(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = A[vi] + 1.0


@T.prim_func
def tile(A: T.Buffer((8, 16), "float32"), C: T.Buffer((32,), "float32")):
    S = T.alloc_buffer((8, 16), "float32", scope="shared")
    for t in T.thread_binding(32, "threadIdx.x"):
        for i, j in T.grid(8, 16):
            with T.block("S"):
                vi, vj = T.axis.remap("SS", [i, j])
                S[vi, vj] = A[vi, vj] * 2.0
        with T.block("C"):
            vt = T.axis.spatial(32, t)
            C[vt] = S[vt % 8, vt // 2] + 1.0


@T.prim_func
def serial_tile(A: T.Buffer((8, 16), "float32"), C: T.Buffer((32,), "float32")):
    S = T.alloc_buffer((8, 16), "float32", scope="shared")
    for b in T.thread_binding(1, "blockIdx.x"):
        for t in T.serial(32):
            for i, j in T.grid(8, 16):
                with T.block("S"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    S[vi, vj] = A[vi, vj] * 2.0
            with T.block("C"):
                vt = T.axis.spatial(32, b * 32 + t)
                C[vt] = S[vt % 8, vt // 2] + 1.0


@T.prim_func
def chain(A: T.Buffer((12, 10), "float32"), C: T.Buffer((12, 10), "float32")):
    B = T.alloc_buffer((12, 10), "float32")
    for i, j in T.grid(12, 10):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(12, 10):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[11 - vi, vj] + 1.0


@T.prim_func
def matmul(A: T.Buffer((13, 7), "float32"), B: T.Buffer((7, 11), "float32"), C: T.Buffer((13, 11), "float32")):
    for i, j, k in T.grid(13, 11, 7):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def sums(A: T.Buffer((5, 24), "float32"), C: T.Buffer((5,), "float32")):
    for i, k in T.grid(5, 24):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


def threads(func: PrimFunc) -> list[tuple[str, str | None]]:
    """(kind, axis) of the loops, outermost first."""
    return [(n.kind, n.thread) for n in walk(func.body) if type(n) is For]


# ---- bind


def test_bind(assert_golden: Golden) -> None:
    assert_golden(str(check(row, lambda s: s.bind(s.get_loops(s.get_block("C"))[0], "threadIdx.x")).func))


@pytest.mark.parametrize("axis", ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"])
def test_bind_to_every_axis(axis: str) -> None:
    assert threads(check(row, lambda s: s.bind(s.get_loops(s.get_block("C"))[0], axis)).func) == [("thread", axis)]


@pytest.mark.parametrize("axis", ["vthread.x", "vthread.y", "vthread.z"])
def test_bind_to_virtual_threads(axis: str) -> None:
    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("C"))
        thread, virtual = s.split(i, [None, *s.sample_tile(i, 2, "v", waste=9.0)])
        s.bind(thread, "threadIdx.x")
        s.bind(virtual, axis)

    for n in (1, 3, 4, 16, 17):
        check(row, steps, [[n]])


@pytest.mark.parametrize("decision", [[1], [3], [5], [16], [17]])
def test_bind_of_tiles(decision: list[int]) -> None:
    """Parametric and concrete scheduling agree, with guards if the factor does not divide."""

    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("C"))
        block, thread = s.split(i, [None, *s.sample_tile(i, 2, "t", waste=9.0)])
        s.bind(block, "blockIdx.x")
        s.bind(thread, "threadIdx.x")

    check(row, steps, [decision])


def test_blocks_mean_the_same_to_the_serial_interpreter() -> None:
    s = Schedule(row)
    s.bind(s.get_loops(s.get_block("C"))[0], "blockIdx.x")
    np.testing.assert_array_equal(run(s.func, inputs(row))[1], inputs(row)[0] + 1)


def test_bind_of_a_whole_reduction_combines_the_values_of_threads() -> None:
    """Nested bound loops of a block without other reduction loops."""

    def steps(s: Schedule) -> None:
        i, k = s.get_loops(s.get_block("C"))
        s.bind(i, "blockIdx.x")
        s.bind(k, "threadIdx.x")

    s = check(sums, steps, combines=True)
    assert threads(s.func) == [("thread", "blockIdx.x"), ("thread", "threadIdx.x")]


@pytest.mark.parametrize("decision", [[1], [3], [8], [24], [32]])
def test_bind_of_parts_of_a_reduction(decision: list[int]) -> None:
    """Each thread sums its elements, then the threads combine their sums."""

    def steps(s: Schedule) -> None:
        i, k = s.get_loops(s.get_block("C"))
        turns, part = s.split(k, [None, *s.sample_tile(k, 2, "k", waste=9.0)])
        s.bind(i, "blockIdx.x")
        made = s.rfactor(part)
        s.reorder([part, turns])
        s.decompose_reduction(made, turns)
        s.set_scope(made, "local")
        s.bind(part, "threadIdx.x")
        s.bind(s.get_loops(s.get_block("C"))[-1], "threadIdx.x")

    check(sums, steps, [decision], combines=decision != [1])


def test_bound_extents_of_one_axis_become_constraints() -> None:
    """A condition that a concrete schedule checks is a constraint of a parametric one."""
    s = Schedule(chain, parametric=True)
    i, j = s.get_loops(s.get_block("C"))
    outer, inner = s.split(j, [None, *s.sample_tile(j, 2, "j")])
    s.compute_at(s.get_block("B"), i)
    s.bind(inner, "threadIdx.x")
    own = s.get_loops(s.get_block("B"))[-1]
    o, n = s.split(own, [None, *s.sample_tile(own, 2, "b")])
    s.bind(n, "threadIdx.x")
    assert o is not outer
    found = [c for c in s.constraints if c.label == "agree"]
    j_1, b_1 = s.params
    assert [c.kind for c in found] == ["eq0"] and found[0].expr.vars == {j_1, b_1}


# ---- cooperative_fetch


def fetch(vector: int = 1) -> Steps:
    return lambda s: s.cooperative_fetch(s.get_block("S"), vector)


def test_cooperative_fetch(assert_golden: Golden) -> None:
    s = Schedule(tile)
    fetch(4)(s)
    verify(s.func)
    assert_golden(str(s.func))


@pytest.mark.parametrize("vector", [1, 2, 3, 4, 8, 200])
def test_cooperative_fetch_of_any_width(vector: int) -> None:
    """Rounds of one element, of widths that do not divide the tile, and of more elements than the tile has."""

    def steps(s: Schedule) -> None:
        s.bind(s.get_loops(s.get_block("C"))[1], "threadIdx.x")
        (v,) = s.sample_tile(s.get_loops(s.get_block("S"))[2], 2, "v", [tuple(range(1, 256))], waste=999.0)
        s.cooperative_fetch(s.get_block("S"), v)

    check(serial_tile, steps, [[vector]])


def test_cooperative_fetch_returns_rounds_and_elements() -> None:
    s = Schedule(tile)
    turns, lane = s.cooperative_fetch(s.get_block("S"), 2)
    assert [(s.loop(x).kind, s.loop(x).extent.as_int()) for x in (turns, lane)] == [("unrolled", 2), ("vectorized", 2)]


def test_cooperative_fetch_by_threads_of_two_axes() -> None:
    """x is the fastest."""

    def steps(s: Schedule) -> None:
        t = s.get_loops(s.get_block("C"))[1]
        y, x = s.split(t, [None, 8])
        s.bind(y, "threadIdx.y")
        s.bind(x, "threadIdx.x")
        s.cooperative_fetch(s.get_block("S"), 2)

    s = check(serial_tile, steps)
    assert [t for _, t in threads(s.func)] == ["blockIdx.x", "threadIdx.y", "threadIdx.x", None, "threadIdx.y", "threadIdx.x", None]


# ---- pad_rows


def test_pad_rows(assert_golden: Golden) -> None:
    s = Schedule(tile)
    s.pad_rows(s.get_block("S"), 4)
    verify(s.func)
    assert_golden(str(s.func))


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_padded_tiles_keep_their_values(pad: int) -> None:
    def steps(s: Schedule) -> None:
        s.bind(s.get_loops(s.get_block("C"))[1], "threadIdx.x")
        s.pad_rows(s.get_block("S"), s.sample_categorical((0, 1, 4), "pad"))
        s.cooperative_fetch(s.get_block("S"))

    s = check(serial_tile, steps, [[pad]])
    (b,) = s.func.allocs
    assert b.pad.as_int() == pad
    lowered = GPU(s.func, TARGETS[0])
    sizes = {n.buffer.shape[0].as_int() for n in walk(lowered.body) if type(n) is BufferStore and n.buffer.scope == "shared"}
    assert sizes == {8 * (16 + pad)}


@pytest.mark.parametrize(("factor", "offset"), [(1, 0), (32, 0), (32, 4)])
def test_aligned_tiles_keep_their_values(factor: int, offset: int) -> None:
    """The stride of the compacted tile has the remainder, not that of the whole buffer."""

    def steps(s: Schedule) -> None:
        s.bind(s.get_loops(s.get_block("C"))[1], "threadIdx.x")
        s.storage_align(s.get_block("S"), "S", -2, s.sample_categorical((1, 32), "factor"), s.sample_categorical((0, 4), "offset"))
        s.cooperative_fetch(s.get_block("S"))

    s = check(serial_tile, steps, [[factor], [offset]])
    lowered = GPU(s.func, TARGETS[0])
    (size,) = {n.buffer.shape[0].as_int() for n in walk(lowered.body) if type(n) is BufferStore and n.buffer.scope == "shared"}
    row = 16 + (offset - 16) % factor
    assert size == 8 * row and row % factor == offset % factor


def test_padding_does_not_change_serial_programs() -> None:
    s = Schedule(serial_tile)
    s.pad_rows(s.get_block("S"), 3)
    np.testing.assert_array_equal(run(s.func, inputs(serial_tile))[1], run(serial_tile, inputs(serial_tile))[1])


# ---- add_unit_loop


def test_add_unit_loop(assert_golden: Golden) -> None:
    assert_golden(str(check(row, lambda s: s.add_unit_loop(s.get_loops(s.get_block("C"))[0])).func))


def test_a_unit_loop_may_be_bound() -> None:
    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("C"))
        s.bind(s.add_unit_loop(i), "blockIdx.x")
        s.bind(i, "threadIdx.x")

    s = check(row, steps)
    assert threads(s.func) == [("thread", "blockIdx.x"), ("thread", "threadIdx.x")]
    assert np.array_equal(run(Schedule(row).func, inputs(row))[1], inputs(row)[0] + 1)


# ---- compute_at with shared_by


def test_compute_at_shared_by(assert_golden: Golden) -> None:
    """The footprint covers the reads of all threads; without `shared_by` the reads of one thread."""

    def steps(s: Schedule) -> None:
        copy = s.get_block("B")
        s.set_scope(copy, "shared")
        i, j = s.get_loops(s.get_block("C"))
        block, thread = s.split(i, [None, 4])
        s.bind(block, "blockIdx.x")
        s.bind(thread, "threadIdx.x")
        s.compute_at(copy, j, shared_by=[thread])

    s = Schedule(chain)
    steps(s)
    verify(s.func)
    np.testing.assert_array_equal(run_threads(s.func, inputs(chain), check_races=False)[1], run(chain, inputs(chain))[1])
    assert_golden(str(s.func))


@pytest.mark.parametrize(("rows", "columns", "width"), [(4, 5, 1), (5, 4, 2), (12, 10, 3), (1, 1, 1), (13, 11, 4), (3, 10, 1)])
def test_tiles_that_threads_share(rows: int, columns: int, width: int) -> None:
    def steps(s: Schedule) -> None:
        copy = s.get_block("B")
        s.set_scope(copy, "shared")
        i, j = s.get_loops(s.get_block("C"))
        i_0, i_1 = s.split(i, [None, *s.sample_tile(i, 2, "i", waste=99.0)])
        j_0, j_1 = s.split(j, [None, *s.sample_tile(j, 2, "j", waste=99.0)])
        s.reorder([i_0, i_1, j_0, j_1])
        s.bind(i_0, "blockIdx.x")
        s.bind(i_1, "threadIdx.x")
        s.compute_at(copy, j_0, shared_by=[i_1])
        s.cooperative_fetch(copy, s.sample_categorical((1, 2, 3, 4), "width"))

    check(chain, steps, [[rows], [columns], [width]])


def test_a_matmul_with_all_gpu_primitives() -> None:
    """Cooperatively copied tiles in shared memory, virtual threads, padded rows, sums in registers."""

    def steps(s: Schedule) -> None:
        c = s.get_block("C")
        own = s.cache_write(c, "local")
        copies = [s.cache_read(c, name, "shared") for name in ("A", "B")]
        i, j = s.get_loops(own)[:2]
        i_0, i_v, i_1, i_2 = s.split(i, [None, *s.sample_tile(i, 4, "i", waste=99.0)])
        j_0, j_1, j_2 = s.split(j, [None, *s.sample_tile(j, 3, "j", waste=99.0)])
        s.reorder([i_0, j_0, i_v, i_1, j_1, i_2, j_2])
        for loop, axis in ((i_0, "blockIdx.y"), (j_0, "blockIdx.x"), (i_v, "vthread.y"), (i_1, "threadIdx.y"), (j_1, "threadIdx.x")):
            s.bind(loop, axis)
        s.compute_at(c, j_1)
        k = s.get_loops(c)[-1]
        k_0, k_1 = s.split(k, [None, *s.sample_tile(k, 2, "k", waste=99.0)])
        inner = s.get_loops(c)[5:7]
        s.reorder([k_0, k_1, *inner])
        s.decompose_reduction(c, k_0)
        for copy in copies:
            s.compute_at(copy, k_0, shared_by=[i_v, i_1, j_1])
            s.cooperative_fetch(copy, 2)
            s.pad_rows(copy, 1)

    for decisions in ([[2, 2, 2], [4, 2], [3]], [[1, 13, 1], [11, 1], [7]], [[2, 3, 1], [2, 3], [8]], [[1, 1, 1], [1, 1], [1]]):
        check(matmul, steps, decisions)


def test_a_decomposed_init_runs_in_the_same_threads() -> None:
    s = Schedule(sums)
    b = s.get_block("C")
    i, _ = s.get_loops(b)
    outer = s.add_unit_loop(i)
    s.bind(i, "threadIdx.x")
    s.decompose_reduction(b, outer)
    assert [f.thread for f in s.loops_of("C_init")] == ["threadIdx.x"]
    assert structural.equal(parse(script(s.func)), s.func)
