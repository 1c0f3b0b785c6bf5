"""List a sample of each primitive: a small program, and steps that apply the primitive to loops with sampled sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule


def _parsed(text: str) -> PrimFunc:
    made = parse(text)
    assert isinstance(made, PrimFunc)
    return made


ELEMENTWISE = _parsed("""
@T.prim_func
def elementwise(A: T.Buffer((6, 10), "float32"), C: T.Buffer((6, 10), "float32")):
    B = T.alloc_buffer((6, 10), "float32")
    for i, j in T.grid(6, 10):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(6, 10):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
""")
"""Two elementwise blocks."""
PRODUCT = _parsed("""
@T.prim_func
def product(A: T.Buffer((6, 8), "float32"), W: T.Buffer((8, 10), "float32"), D: T.Buffer((6, 10), "float32")):
    C = T.alloc_buffer((6, 10), "float32")
    for i, j, k in T.grid(6, 10, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * W[vk, vj]
    for i, j in T.grid(6, 10):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + 1.0
""")
"""A matrix product and an elementwise block."""
GATHER = _parsed("""
@T.prim_func
def gather(A: T.Buffer((6, 10), "float32"), I: T.Buffer((6,), "int32"), C: T.Buffer((6, 10), "float32")):
    for i, j in T.grid(6, 10):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.lookup(T.cast("int64", T.max(T.min(I[vi] * 2, 5), 0)), 6, lambda at: A[at, vj])
""")
"""A gather of rows."""
BYTES = _parsed("""
@T.prim_func
def bytes(A: T.Buffer((6, 8), "uint8"), B: T.Buffer((2, 4, 4), "int8"), C: T.Buffer((6, 4), "int32")):
    for i, j, k in T.grid(6, 4, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + T.cast("int32", A[vi, vk]) * T.cast("int32", B[vk // 4, vj, vk % 4])
""")
"""A product of bytes with a packed matrix."""

PADDED = _parsed("""
@T.prim_func
def padded(A: T.Buffer((6, 10), "float32"), P: T.Buffer((6, 12), "float32")):
    for i, j in T.grid(6, 12):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            P[vi, vj] = T.select(0 < vj and vj < 11, A[vi, vj - 1], 0.0)
""")
"""A padded copy."""
WINDOWS = _parsed("""
@T.prim_func
def windows(A: T.Buffer((14,), "float32"), C: T.Buffer((12,), "float32")):
    B = T.alloc_buffer((14,), "float32")
    for i in T.serial(14):
        with T.block("B"):
            vi = T.axis.spatial(14, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(12):
        with T.block("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] + B[vi + 2]
""")
"""A block that reads a sliding window of another."""
TAPS = _parsed("""
@T.prim_func
def taps(A: T.Buffer((13, 4), "float32"), W: T.Buffer((3, 4, 6), "float32"), C: T.Buffer((11, 6), "float32")):
    for i, j, k, c in T.grid(11, 6, 3, 4):
        with T.block("C"):
            vi, vj, vk, vc = T.axis.remap("SSRR", [i, j, k, c])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi + vk, vc] * W[vk, vc, vj]
""")
"""A convolution with channels."""
STRIDED = _parsed("""
@T.prim_func
def strided(A: T.Buffer((8,), "float32"), W: T.Buffer((4,), "float32"), C: T.Buffer((12,), "float32")):
    for i, k in T.grid(12, 4):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + T.select((vi + vk) % 2 == 0, A[(vi + vk) // 2], 0.0) * W[vk]
""")
"""A transposed convolution in one dimension."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps that apply a primitive.

    Attributes:
        steps: makes the schedule; it samples at least one size.
        func: the program.
        decisions: the sampled sizes, in order.
    """

    steps: Callable[[Schedule], object]
    func: PrimFunc = field(default_factory=lambda: ELEMENTWISE)
    decisions: Sequence[Sequence[int]] = ((4,),)


def _size(s: Schedule, loop: LoopRV) -> IntRV:
    return s.sample_tile(loop, 2, domains=[range(1, 20)], waste=9.0)[0]


def _tiled(s: Schedule, block: str = "C", depth: int = 1) -> tuple[BlockRV, list[LoopRV]]:
    """The block and its loops, after a split of one of them by a sampled size."""
    b = s.get_block(block)
    loop = s.get_loops(b)[depth]
    s.split(loop, [None, _size(s, loop)])
    return b, s.get_loops(b)


def _at(step: Callable[[Schedule, BlockRV, list[LoopRV]], object], block: str = "C", depth: int = 1, **more: Any) -> Sample:
    """A sample of a step on a tiled block: `step(schedule, block, loops)`."""
    return Sample(lambda s: step(s, *_tiled(s, block, depth)), **more)


def _sized(step: Callable[[Schedule, BlockRV, IntRV], object], block: str = "B", **more: Any) -> Sample:
    """A sample of a step with a sampled size: `step(schedule, block, size)`."""

    def steps(s: Schedule) -> object:
        b = s.get_block(block)
        return step(s, b, _size(s, s.get_loops(b)[1]))

    return Sample(steps, **more)


def _unannotate(s: Schedule, b: BlockRV, loops: list[LoopRV]) -> None:
    s.annotate(b, "prefetch", 4)
    s.unannotate(b, "prefetch")


def _merge(s: Schedule, b: BlockRV, loops: list[LoopRV]) -> None:
    s.merge(s.get_loops(s.get_block("B"))[0], loops[0])


def _fission(s: Schedule, b: BlockRV, loops: list[LoopRV]) -> None:
    first = s.get_block("B")
    s.fission(s.merge(s.get_loops(first)[0], loops[0]), first)


def _winograd(s: Schedule) -> None:
    products = s.winograd(s.get_block("C"), 2)[3]
    loop = s.get_loops(products)[1]
    s.split(loop, [None, _size(s, loop)])


def _strassen(s: Schedule) -> None:
    left = s.strassen(s.get_block("C"), [0, 1, 2], 2)[0]
    loop = s.get_loops(left)[1]
    s.split(loop, [None, _size(s, loop)])


def _tensorize(s: Schedule, b: BlockRV, loops: list[LoopRV]) -> None:
    rows, row, j, k = loops
    outer, inner = s.split(k, [None, 4])
    s.reorder([rows, outer, row, j, inner])
    s.decompose_reduction(b, outer)
    s.tensorize(j, "x86.vpdpbusd.128")


def _cooperative_fetch(s: Schedule) -> None:
    _, (outer, inner, column) = _tiled(s, depth=0)
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    copy = s.get_block("B")
    s.set_scope(copy, "shared")
    s.compute_at(copy, column, shared_by=[inner])
    s.cooperative_fetch(copy)


def _cache_reduction(s: Schedule, b: BlockRV, loops: list[LoopRV]) -> None:
    i, j, k_0, k_1 = loops
    s.reorder([k_0, i, j, k_1])
    s.cache_reduction(b, i, "workspace")


def _rolling_buffer(s: Schedule) -> None:
    consumer = s.get_block("C")
    (loop,) = s.get_loops(consumer)
    s.split(loop, [None, _size(s, loop)])
    producer = s.get_block("B")
    s.compute_at(producer, s.get_loops(consumer)[1])
    s.rolling_buffer(producer, "B")


def _split_layout(size: IntRV) -> list[int | list[int | str | IntRV]]:
    return [[1, "/", size], 0, [1, "%", size]]


PURE = {
    "get_block": lambda s, b, loops: s.get_block("C"),
    "get_loops": lambda s, b, loops: s.get_loops(b),
    "get_child_blocks": lambda s, b, loops: s.get_child_blocks(loops[0]),
    "get_producers": lambda s, b, loops: s.get_producers(b),
    "get_consumers": lambda s, b, loops: s.get_consumers(s.get_block("B")),
    "get_output_blocks": lambda s, b, loops: s.get_output_blocks(),
}
"""Queries."""

SAMPLES: Mapping[str, Sample] = {
    **{name: _at(step) for name, step in PURE.items()},
    "sample_categorical": Sample(lambda s: s.pad_rows(s.get_block("B"), s.sample_categorical((0, 4, 8))), decisions=((8,),)),
    "sample_tile": _at(lambda s, b, loops: None),
    "sample_perfect_tile": Sample(
        lambda s: s.split(s.get_loops(s.get_block("C"))[1], [None, *s.sample_perfect_tile(s.get_loops(s.get_block("C"))[1], 2)]),
        decisions=((5,),),
    ),
    "sample_compute_location": Sample(
        lambda s: s.compute_at(s.get_block("B"), s.sample_compute_location(s.get_block("B"))), decisions=((1,),)
    ),
    "split": _at(lambda s, b, loops: None),
    "fuse": _at(lambda s, b, loops: s.fuse(loops[:2])),
    "reorder": _at(lambda s, b, loops: s.reorder([loops[1], loops[0], loops[2]])),
    "merge": _at(_merge),
    "fission": _at(_fission),
    "loop_partition": _at(lambda s, b, loops: s.loop_partition(loops[0], [1, 4])),
    "add_unit_loop": _at(lambda s, b, loops: s.add_unit_loop(loops[1])),
    "parallel": _at(lambda s, b, loops: s.parallel(loops[1])),
    "vectorize": _at(lambda s, b, loops: s.vectorize(loops[2])),
    "unroll": _at(lambda s, b, loops: s.unroll(loops[2])),
    "tensorize": _at(_tensorize, depth=0, func=BYTES),
    "bind": _at(lambda s, b, loops: s.bind(loops[1], "blockIdx.x")),
    "annotate": _at(lambda s, b, loops: s.annotate(b, "prefetch", 4)),
    "unannotate": _at(_unannotate),
    "compute_at": _at(lambda s, b, loops: s.compute_at(s.get_block("B"), loops[1])),
    "reverse_compute_at": _at(lambda s, b, loops: s.reverse_compute_at(s.get_block("C"), loops[1]), "B"),
    "compute_inline": _at(lambda s, b, loops: s.compute_inline(s.get_block("B"))),
    "reverse_compute_inline": _at(lambda s, b, loops: s.reverse_compute_inline(s.get_block("C")), "B"),
    "cache_read": _sized(lambda s, b, t: s.cache_read(b, "A", "workspace", _split_layout(t))),
    "read_at": _at(lambda s, b, loops: s.read_at(loops[1], b, "B", "workspace")),
    "write_at": _at(lambda s, b, loops: s.write_at(loops[1], b, "C", "workspace")),
    "cache_write": _at(lambda s, b, loops: s.cache_write(b, "workspace", [1, 0])),
    "cache_reduction": _at(_cache_reduction, depth=2, func=PRODUCT),
    "cooperative_fetch": Sample(_cooperative_fetch),
    "set_scope": _at(lambda s, b, loops: s.set_scope(b, "workspace"), "B"),
    "pad_rows": _sized(lambda s, b, t: s.pad_rows(b, t)),
    "storage_align": _sized(lambda s, b, t: s.storage_align(b, "B", -2, t), decisions=((16,),)),
    "reuse_buffer": _at(lambda s, b, loops: s.reuse_buffer(b, s.get_block("C")), "B"),
    "rolling_buffer": Sample(_rolling_buffer, func=WINDOWS),
    "decompose_padding": _at(lambda s, b, loops: s.decompose_padding(b, loops[1]), "P", func=PADDED),
    "pad_einsum": _sized(lambda s, b, t: s.pad_einsum(b, [1, t, 3]), "C", func=PRODUCT),
    "transform_layout": _sized(lambda s, b, t: s.transform_layout(b, "B", _split_layout(t), 0.5)),
    "transform_block_layout": _sized(lambda s, b, t: s.transform_block_layout(b, _split_layout(t))),
    "reindex": _at(lambda s, b, loops: s.reindex(b, "W", "read"), func=PRODUCT),
    "cache_index": _at(lambda s, b, loops: s.cache_index(b, "workspace"), depth=0, func=GATHER),
    "unsafe_set_dtype": _at(lambda s, b, loops: s.unsafe_set_dtype(b, "float64"), "B"),
    "decompose_reduction": _at(lambda s, b, loops: s.decompose_reduction(b, loops[2]), depth=2, func=PRODUCT),
    "restrict_reduction": _at(lambda s, b, loops: s.restrict_reduction(b, 1), depth=0, func=STRIDED),
    "winograd": Sample(_winograd, func=TAPS),
    "strassen": Sample(_strassen, func=PRODUCT),
    "rfactor": _at(lambda s, b, loops: s.rfactor(loops[3]), depth=2, func=PRODUCT),
}
"""A sample of each primitive.  A new primitive needs one entry here, and one in `program_fuzz.generate_steps.FUZZED`."""
