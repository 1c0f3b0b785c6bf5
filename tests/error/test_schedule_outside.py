"""Test statements outside of blocks and conditions around blocks: steps handle them with the same results, or refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

Refuse = Callable[..., None]
Step = Callable[[Schedule], object]


def program(body: str, **shapes: str) -> PrimFunc:
    """A function with the parameters A, C and the other named buffers, all int32."""
    given = {"A": "(8,)", "C": "(8,)", **shapes}
    head = ", ".join([f'{name}: T.Buffer({shape}, "int32")' for name, shape in given.items()])
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return parse(f"@T.prim_func\ndef f({head}):\n{lines}\n")


def block(name: str, indent: int, *lines: str) -> str:
    """A block inside the loop i, with the iteration variable v."""
    pad = " " * indent
    return "\n".join([f'{pad}with T.block("{name}"):', *[f"{pad}    {line}" for line in lines]])


def results(s: Schedule) -> list[np.ndarray]:
    """The arguments after a call of the compiled code."""
    arrays = []
    for b in [p for p in s.func.params if isinstance(p, Buffer)]:
        shape = [e.as_int() for e in b.shape]
        arrays.append(np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(b.dtype))
    tunesmith.build(s, "llvm -num-cores=1")["f"](*arrays)
    return arrays


def same(func: PrimFunc, step: Step) -> None:
    """Check that the step runs and does not change the results."""
    s = Schedule(func)
    step(s)
    for x, y in zip(results(Schedule(func)), results(s), strict=True):
        np.testing.assert_array_equal(x, y)


def loop(s: Schedule, name: str, at: int = 0) -> object:
    return s.get_loops(s.get_block(name))[at]


V = "v = T.axis.spatial(8, i)"
CHAIN = "\n".join(
    [
        'B = T.alloc_buffer((8,), "int32")',
        "for i in range(8):",
        block("b", 4, V, "B[v] = A[v] + 1"),
        "{between}",
        "for i in range(8):",
        block("c", 4, V, "C[v] = B[v] * 2"),
    ]
)
SUM = "\n".join(
    [
        "for i, k in T.grid(4, 8):",
        block("c", 4, "v, r = T.axis.remap('SR', [i, k])", "with T.init():", "    C[v] = 0", "C[v] = C[v] + A[r]"),
        "    {beside}",
    ]
)


def chain(between: str) -> Schedule:
    return Schedule(program(CHAIN.format(between=between)))


def test_stores_next_to_moving_blocks(refuse: Refuse) -> None:
    what = "a plain store or the condition of an `if` accesses A, which block b accesses too. Put it into `with T.block"
    s = chain("for k in range(8):\n    A[k] = 0")
    refuse("compute_inline", "in-blocks", what, s, lambda: s.compute_inline(s.get_block("b")))
    refuse("compute_at", "in-blocks", what, s, lambda: s.compute_at(s.get_block("b"), loop(s, "c")))
    s = chain("for k in range(8):\n    C[k] = 0")
    what = "accesses C, which block c accesses too"
    refuse("reverse_compute_at", "in-blocks", what, s, lambda: s.reverse_compute_at(s.get_block("c"), loop(s, "b")))
    refuse("reverse_compute_inline", "in-blocks", what, s, lambda: s.reverse_compute_inline(s.get_block("c")))
    s = chain("for k in range(8):\n    if B[k] > 3:\n        A[k] = 0")
    refuse("compute_inline", "in-blocks", "accesses B, which block b accesses too", s, lambda: s.compute_inline(s.get_block("b")))


def test_stores_next_to_a_copy(refuse: Refuse) -> None:
    s = Schedule(program(SUM.format(beside="A[k] = A[k] + 1")))
    refuse("cache_read", "in-blocks", "accesses A, which block c accesses too", s, lambda: s.cache_read(s.get_block("c"), "A", "global"))
    s = Schedule(program(SUM.format(beside="D[i] = C[i]"), D="(4,)"))
    what = "accesses C, which block c accesses too"
    refuse("cache_write", "in-blocks", what, s, lambda: s.cache_write(s.get_block("c"), "global"))
    inner = program(SUM.replace("    {beside}", "") + "\nC[0] = 7", C="(4,)")
    for name, step in {
        "cache_reduction": lambda s: s.cache_reduction(s.get_block("c"), loop(s, "c"), "global"),
        "decompose_reduction": lambda s: s.decompose_reduction(s.get_block("c"), loop(s, "c", 1)),
        "rfactor": lambda s: s.rfactor(loop(s, "c", 1)),
    }.items():
        s = Schedule(inner)
        with pytest.raises(ScheduleError, match=rf"{name} refused \[in-blocks\]: .*{what}"):
            step(s)
    refuse("cache_reduction", "in-blocks", what, s, lambda: s.cache_reduction(s.get_block("c"), loop(s, "c"), "global"))
    refuse("decompose_reduction", "in-blocks", what, s, lambda: s.decompose_reduction(s.get_block("c"), loop(s, "c", 1)))
    refuse("rfactor", "in-blocks", what, s, lambda: s.rfactor(loop(s, "c", 1)))


def test_stores_of_other_data_do_not_matter() -> None:
    func = program(CHAIN.format(between="for k in range(8):\n    D[k] = A[k] * 3"), D="(8,)")
    same(func, lambda s: s.compute_inline(s.get_block("b")))
    same(func, lambda s: s.compute_at(s.get_block("b"), loop(s, "c")))
    same(func, lambda s: s.cache_read(s.get_block("b"), "A", "global"))


def test_split_guards_statements_outside_of_blocks() -> None:
    body = "\n".join(["for i in range(5):", "    C[i] = A[i] + 10", block("b", 4, "v = T.axis.spatial(5, i)", "A[v] = A[v] * 2")])
    same(program(body), lambda s: s.split(loop(s, "b"), [None, 4]))
    under = "\n".join(["for i in range(7):", "    if A[i] > 3:", block("b", 8, "v = T.axis.spatial(7, i)", "C[v] = A[v] * 2")])
    same(program(under, A="(7,)"), lambda s: s.split(loop(s, "b"), [None, 4]))
    exact = body.replace("range(5)", "range(8)").replace("spatial(5", "spatial(8")
    s = Schedule(program(exact))
    s.split(loop(s, "b"), [None, 4])  # type: ignore[arg-type]
    assert "if " not in str(s.func)


def test_split_of_a_symbolic_loop_stays_inside_of_the_array() -> None:
    func = parse('@T.prim_func\ndef f(C: T.Buffer((n,), "int32"), n: T.int64):\n    for i in range(n):\n        C[i] = 7\n'
                 '        with T.block("b"):\n            v = T.axis.spatial(n, i)\n            C[v] = C[v] + 1\n')  # fmt: skip
    s = Schedule(func)
    s.split(loop(s, "b"), [None, 8])  # type: ignore[arg-type]
    memory = np.zeros(32, np.int32)
    tunesmith.build(s, "llvm -num-cores=1")["f"](memory[:17], 17)
    assert memory.tolist() == [8] * 17 + [0] * 15


ROWS = "\n".join(
    ["for i in range(4):", "    for k in {k}:", "{under}", block("c", 12, "v = T.axis.spatial(4, i)", "r = T.axis.reduce(8, {r})",
     "with T.init():", "    C[v] = 0", "C[v] = C[v] + A[r]")]
)  # fmt: skip


@pytest.mark.parametrize(
    ("k", "r", "under"),
    [
        ("range(8)", "k", "if i > 1:"),
        ("range(8)", "k", "if k > 1:"),
        ("range(i)", "k", "for t in range(1):"),
        ("range(0)", "k", "for t in range(1):"),
        ("range(1, 8)", "k", "for t in range(1):"),
    ],
)
def test_an_init_that_may_not_run(k: str, r: str, under: str) -> None:
    func = program(ROWS.format(k=k, r=r, under=f"        {under}"), C="(4,)")
    steps: dict[str, Step] = {
        "decompose_reduction": lambda s: s.decompose_reduction(s.get_block("c"), loop(s, "c", 1)),
        "cache_write": lambda s: s.cache_write(s.get_block("c"), "global"),
        "cache_reduction": lambda s: s.cache_reduction(s.get_block("c"), loop(s, "c"), "global"),
        "rfactor": lambda s: s.rfactor(loop(s, "c", 1)),
    }
    for name, step in steps.items():
        with pytest.raises(ScheduleError, match=rf"{name} refused"):
            step(Schedule(func))


@pytest.mark.parametrize("r", ["k // 2", "k % 4", "k * 2 % 8", "T.max(k, 3) - 3"])
def test_a_reduction_that_restarts(r: str, refuse: Refuse) -> None:
    body = ["for k in range(8):", block("c", 4, f"r = T.axis.reduce(8, {r})", "with T.init():", "    C[0] = 0", "C[0] = C[0] + A[r]")]
    s = Schedule(program("\n".join(body)))
    refuse("decompose_reduction", "first", "may not start in the first iteration of its loops, or may start more than once", s,
           lambda: s.decompose_reduction(s.get_block("c"), loop(s, "c")))  # fmt: skip


@pytest.mark.parametrize("r", ["(a * 4 + b) % 8", "(a * 4 + b) // 8"])
def test_an_order_that_changes_the_first_step_of_a_reduction(r: str, refuse: Refuse) -> None:
    body = [
        "for a, b in T.grid(8, 4):",
        block("c", 4, f"r = T.axis.reduce(8, {r})", "with T.init():", "    C[0] = 0", "C[0] = C[0] + A[r]"),
    ]
    s = Schedule(program("\n".join(body)))
    refuse("reorder", "dependences", "depend on each other along a, b", s, lambda: s.reorder(s.get_loops(s.get_block("c"))[::-1]))


def test_a_reduction_whose_loops_repeat_it_is_not_moved(refuse: Refuse) -> None:
    body = ['B = T.alloc_buffer((4,), "int32")', "for i, k, q in T.grid(4, 8, 3):"]
    body += [block("b", 4, "v, r = T.axis.remap('SR', [i, k])", "with T.init():", "    B[v] = 0", "B[v] = B[v] + A[r]")]
    body += ["for i in range(4):", block("c", 4, "v = T.axis.spatial(4, i)", "C[v] = B[v]")]
    s = Schedule(program("\n".join(body), C="(4,)"))
    what = "the loops around block b run instances of its reduction more than once, and the new loops would not"
    refuse("compute_at", "once", what, s, lambda: s.compute_at(s.get_block("b"), loop(s, "c")))


ONE = "v = T.axis.spatial(1, z)"


@pytest.mark.parametrize(
    ("loops", "steps", "value", "taken"),
    [
        ("q, k in T.grid(2, 3)", ("r = T.axis.reduce(3, k)", "w = T.axis.reduce(2, q)"), "r + w", False),
        ("q, k in T.grid(2, 3)", ("w = T.axis.reduce(2, q)", "r = T.axis.reduce(3, k)"), "r + w", True),
        ("q, k in T.grid(2, 3)", ("r = T.axis.reduce(6, q * 3 + k)",), "r", True),
        ("q, k in T.grid(3, 2)", ("r = T.axis.reduce(6, k * 3 + q)",), "r", False),
    ],
)
def test_a_reduction_whose_steps_have_an_order_keeps_it(
    loops: str, steps: tuple[str, ...], value: str, taken: bool, refuse: Refuse
) -> None:
    body = ['B = T.alloc_buffer((1,), "int32")', "for z in range(1):", f"    for {loops}:"]
    body += [block("b", 8, ONE, *steps, "with T.init():", "    B[v] = 0", f"B[v] = B[v] * 2 + A[{value}]")]
    body += ["for z in range(1):", block("c", 4, ONE, "C[v] = B[v]")]
    func = program("\n".join(body), C="(1,)")
    if taken:
        same(func, lambda s: s.compute_at(s.get_block("b"), loop(s, "c")))
    else:
        s = Schedule(func)
        what = "the steps of the reduction of block b depend on each other, and their order would change"
        refuse("compute_at", "order", what, s, lambda: s.compute_at(s.get_block("b"), loop(s, "c")))


def test_a_repeated_reduction_is_not_cached(refuse: Refuse) -> None:
    body = ["for i, q, k in T.grid(4, 2, 1):"]
    body += [block("c", 4, "v, r = T.axis.remap('SR', [i, k])", "with T.init():", "    C[v] = 0", "C[v] = C[v] + 6")]
    s = Schedule(program("\n".join(body), C="(4,)"))
    what = "loop i repeats the reduction of block c, which the cache would start only once"
    refuse("cache_reduction", "first", what, s, lambda: s.cache_reduction(s.get_block("c"), loop(s, "c"), "register"))


def test_a_reduction_that_starts_several_times_is_not_moved(refuse: Refuse) -> None:
    body = ['B = T.alloc_buffer((4,), "int32")', "for q, i, k in T.grid(3, 4, 8):"]
    body += [block("b", 4, "v, r, w = T.axis.remap('SRS', [i, k, q])", "with T.init():", "    B[v] = 0", "B[v] = B[v] + A[r]")]
    body += ["for i in range(4):", block("c", 4, "v = T.axis.spatial(4, i)", "C[v] = B[v]")]
    s = Schedule(program("\n".join(body), C="(4,)"))
    what = "several instances of block b start the reduction of one element of B: w does not index it"
    refuse("compute_at", "once", what, s, lambda: s.compute_at(s.get_block("b"), loop(s, "c")))


def test_an_init_that_depends_on_the_reduction() -> None:
    body = ["for k in range(8):", block("c", 4, "r = T.axis.reduce(8, k)", "with T.init():", "    C[r] = 0", "C[r] = C[r] + A[r]")]
    s = Schedule(program("\n".join(body)))
    with pytest.raises(ScheduleError, match=r"refused \[reduction\]: the init of block c depends on its reduction variables"):
        s.decompose_reduction(s.get_block("c"), loop(s, "c"))


def test_an_init_that_reads_the_old_output(refuse: Refuse) -> None:
    s = Schedule(program(SUM.format(beside="").replace("C[v] = 0", "C[v] = C[v] * 2"), C="(4,)"))
    refuse("cache_write", "own-values", "block c reads earlier values of C", s, lambda: s.cache_write(s.get_block("c"), "global"))


GEMM = parse("""
@T.prim_func
def f(A: T.Buffer((8, 8, 8), "int32"), D: T.Buffer((8, 8), "int32")):
    S = T.alloc_buffer((8, 8), "int32")
    for i, j, k in T.grid(8, 8, 8):
        with T.block("S"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                S[vi, vj] = 0
            S[vi, vj] = S[vi, vj] + A[vi, vj, vk]
    for i, j in T.grid(8, 8):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = S[vi, vj] + 1
""")


def under_a_fused_loop(s: Schedule) -> None:
    s.reverse_compute_at(s.get_block("D"), s.fuse(s.get_loops(s.get_block("S"))[:2]))


def under_fused_tiles(s: Schedule) -> None:
    i, j, k = s.get_loops(s.get_block("S"))
    (io, ii), (jo, ji) = s.split(i, [None, 4]), s.split(j, [None, 4])
    s.reorder([io, jo, ii, ji, k])
    s.reverse_compute_at(s.get_block("D"), s.fuse([io, jo]))


def after_a_decomposition(s: Schedule) -> None:
    b = s.get_block("S")
    i, j, k = s.get_loops(b)
    (io, ii), (jo, ji), (ko, ki) = (s.split(x, [None, 4]) for x in (i, j, k))
    s.reorder([io, jo, ko, ki, ii, ji])
    s.decompose_reduction(b, ko)
    s.reverse_compute_at(s.get_block("D"), jo)


def after_a_copy_from_registers(s: Schedule) -> None:
    b = s.get_block("S")
    copy = s.cache_write(b, "register")
    i, j, k = s.get_loops(b)
    (io, ii), (jo, ji) = (s.split(x, [None, 4]) for x in (i, j))
    s.reorder([io, jo, k, ii, ji])
    s.reverse_compute_at(copy, jo)
    s.reverse_compute_at(s.get_block("D"), jo)


def split_twice(s: Schedule) -> None:
    b = s.get_block("S")
    i, j, k = s.get_loops(b)
    io, rest = s.split(i, [None, 4])
    im, ii = s.split(rest, [2, 2])
    ko, ki = s.split(k, [None, 4])
    s.reorder([io, ko, im, ii, j, ki])
    s.cache_reduction(b, im, "workspace")


STEPS = [under_a_fused_loop, under_fused_tiles, after_a_decomposition, after_a_copy_from_registers, split_twice]


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_epilogues_that_other_systems_fuse(step: Step) -> None:
    same(GEMM, step)


@pytest.mark.parametrize("axis", ["blockIdx.x", "vthread.x"])
def test_thread_blocks_are_not_synchronized(axis: str, refuse: Refuse) -> None:
    """c may read elements that b writes in another iteration before they are written; virtual threads reorder b and c."""
    body = ["for i in range(8):", block("b", 4, V, "A[v] = 1"), block("c", 4, V, "C[v] = A[v // 2]")]
    s = Schedule(program("\n".join(body)))
    refuse("bind", "independent", "may access one element of A", s, lambda: s.bind(loop(s, "b"), axis))
    s.bind(loop(s, "b"), "threadIdx.x")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["B[v] + C[(v * 3) % 8, 0]", "B[v] + C[7 - v, w]"])
def test_a_consumer_whose_instances_depend_on_each_other_keeps_their_order(value: str, refuse: Refuse) -> None:
    body = ['B = T.alloc_buffer((8,), "int32")', "for i in range(8):", block("b", 4, V, "B[v] = A[v]"), "for j, i in T.grid(3, 8):"]
    body += [block("c", 4, "w, v = T.axis.remap('SS', [j, i])", f"C[v, w] = {value}")]
    s = Schedule(program("\n".join(body), C="(8, 3)"))
    what = "instances of block c depend on each other through the buffer they write, and their order would change"
    refuse("reverse_compute_at", "own-values", what, s, lambda: s.reverse_compute_at(s.get_block("c"), loop(s, "b")))


def test_a_consumer_whose_last_instance_counts_keeps_their_order(refuse: Refuse) -> None:
    body = ['B = T.alloc_buffer((8,), "int32")', "for i in range(8):", block("b", 4, V, "B[v] = A[v]"), "for j, i in T.grid(3, 8):"]
    body += [block("c", 4, "w, v = T.axis.remap('SS', [j, i])", "C[0] = B[v] + T.cast('int32', w)")]
    s = Schedule(program("\n".join(body), C="(1,)"))
    what = "instances of block c depend on each other"
    refuse("reverse_compute_at", "own-values", what, s, lambda: s.reverse_compute_at(s.get_block("c"), loop(s, "b")))


@pytest.mark.parametrize("axis", ["blockIdx.x", "vthread.x"])
def test_thread_blocks_write_each_element_once(axis: str, refuse: Refuse) -> None:
    body = ["for j, i in T.grid(2, 8):", block("b", 4, V, "C[v] = A[v]")]
    s = Schedule(program("\n".join(body)))
    refuse("bind", "independent", "may access one element of C", s, lambda: s.bind(loop(s, "b"), axis))
    s.bind(loop(s, "b"), "threadIdx.x")  # type: ignore[arg-type]


def test_a_consumer_stays_after_overwritten_elements(refuse: Refuse) -> None:
    body = ['B = T.alloc_buffer((8,), "int32")', "for i in range(2):", block("a", 4, "v = T.axis.spatial(8, 0)", "B[v] = 1")]
    body += ["    for j in range(1):", block("b", 8, "v = T.axis.spatial(2, i)", "B[v] = 3")]
    body += [block("c", 0, "v = T.axis.spatial(1, 0)", "C[v] = B[v]")]
    s = Schedule(program("\n".join(body)))
    what = "block c cannot move up before block a, which accesses the same data: B"
    refuse("reverse_compute_at", "ready", what, s, lambda: s.reverse_compute_at(s.get_block("c"), loop(s, "b", 1)))
