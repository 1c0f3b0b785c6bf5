"""Define `Schedule`: a program and the primitives that rewrite it; one line for each primitive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Atom, Index, Param, Poly, Var, poly, product
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.integers import as_integer
from tunesmith.schedule.primitive import apply_instruction, foreign
from tunesmith.schedule.primitives.add_unit_loop import add_unit_loop
from tunesmith.schedule.primitives.annotate import annotate, unannotate
from tunesmith.schedule.primitives.cache_index import cache_index
from tunesmith.schedule.primitives.cache_read import cache_read
from tunesmith.schedule.primitives.cache_reduction import cache_reduction
from tunesmith.schedule.primitives.cache_write import cache_write
from tunesmith.schedule.primitives.compute_at import compute_at
from tunesmith.schedule.primitives.compute_inline import compute_inline, reverse_compute_inline
from tunesmith.schedule.primitives.cooperative_fetch import cooperative_fetch
from tunesmith.schedule.primitives.decompose_padding import decompose_padding
from tunesmith.schedule.primitives.decompose_reduction import decompose_reduction
from tunesmith.schedule.primitives.fission import fission
from tunesmith.schedule.primitives.fuse import fuse
from tunesmith.schedule.primitives.get import get_block, get_child_blocks, get_consumers, get_loops, get_output_blocks, get_producers
from tunesmith.schedule.primitives.loop_kind import bind, parallel, unroll, vectorize
from tunesmith.schedule.primitives.loop_partition import loop_partition
from tunesmith.schedule.primitives.merge import merge
from tunesmith.schedule.primitives.pad_einsum import pad_einsum
from tunesmith.schedule.primitives.pad_rows import pad_rows
from tunesmith.schedule.primitives.read_at import read_at
from tunesmith.schedule.primitives.reindex import reindex
from tunesmith.schedule.primitives.reorder import reorder
from tunesmith.schedule.primitives.restrict_reduction import restrict_reduction
from tunesmith.schedule.primitives.reuse_buffer import reuse_buffer
from tunesmith.schedule.primitives.reverse_compute_at import reverse_compute_at
from tunesmith.schedule.primitives.rfactor import rfactor
from tunesmith.schedule.primitives.rolling_buffer import rolling_buffer
from tunesmith.schedule.primitives.sample import sample_categorical, sample_perfect_tile, sample_tile
from tunesmith.schedule.primitives.sample_compute_location import compute_locations, sample_compute_location
from tunesmith.schedule.primitives.set_scope import set_scope
from tunesmith.schedule.primitives.split import split
from tunesmith.schedule.primitives.storage_align import storage_align
from tunesmith.schedule.primitives.strassen import strassen
from tunesmith.schedule.primitives.tensorize import tensorize
from tunesmith.schedule.primitives.transform_block_layout import transform_block_layout
from tunesmith.schedule.primitives.transform_layout import transform_layout
from tunesmith.schedule.primitives.unsafe_set_dtype import unsafe_set_dtype
from tunesmith.schedule.primitives.winograd import winograd
from tunesmith.schedule.primitives.write_at import write_at
from tunesmith.schedule.state import ScheduleState
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import ScheduleError


class Schedule(ScheduleState):
    """A program and its schedule.  Every method is a primitive: it checks, rewrites, records, and returns handles.

    The arguments of the constructor are those of `ScheduleState`.
    """

    get_block = get_block
    get_loops = get_loops
    get_child_blocks = get_child_blocks
    get_producers = get_producers
    get_consumers = get_consumers
    get_output_blocks = get_output_blocks
    sample_categorical = sample_categorical
    sample_tile = sample_tile
    sample_perfect_tile = sample_perfect_tile
    sample_compute_location = sample_compute_location
    split = split
    fuse = fuse
    reorder = reorder
    merge = merge
    fission = fission
    loop_partition = loop_partition
    add_unit_loop = add_unit_loop
    parallel = parallel
    vectorize = vectorize
    unroll = unroll
    bind = bind
    cooperative_fetch = cooperative_fetch
    cache_read = cache_read
    cache_write = cache_write
    cache_reduction = cache_reduction
    read_at = read_at
    write_at = write_at
    cache_index = cache_index
    reindex = reindex
    set_scope = set_scope
    pad_rows = pad_rows
    storage_align = storage_align
    tensorize = tensorize
    reuse_buffer = reuse_buffer
    rolling_buffer = rolling_buffer
    unsafe_set_dtype = unsafe_set_dtype
    transform_layout = transform_layout
    transform_block_layout = transform_block_layout
    compute_at = compute_at
    reverse_compute_at = reverse_compute_at
    compute_inline = compute_inline
    reverse_compute_inline = reverse_compute_inline
    decompose_padding = decompose_padding
    pad_einsum = pad_einsum
    restrict_reduction = restrict_reduction
    decompose_reduction = decompose_reduction
    rfactor = rfactor
    winograd = winograd
    strassen = strassen
    annotate = annotate
    unannotate = unannotate

    compute_locations = compute_locations

    @property
    def mod(self) -> IRModule:
        """The module with the function as scheduled so far."""
        return self._module.update({self._name: self.func})

    def __repr__(self) -> str:
        steps = len(self.trace.instructions)
        return f"<Schedule of {self._name}, {steps} step{'s' * (steps != 1)}>"

    def limit(self, factors: Sequence[IntRV | LoopRV], at_most: Index, label: str) -> None:
        """Require that the product of `factors` (the extent, for a loop) is at most `at_most`.

        This is a constraint of the space, not a step.  It is not recorded, because a configuration that satisfies it replays to the same
        program.
        """
        self.step = "limit"
        other = next((f for f in factors if f.owner != self.number), None)
        if other is not None:
            raise foreign("limit", other)
        most = at_most if isinstance(at_most, (Poly, Atom)) else as_integer(at_most)
        if most is None:
            raise self.refuse("arguments", f"at_most is {at_most!r}; an integer is needed")
        xs = [self.loop(f).extent if isinstance(f, LoopRV) else f.expr for f in factors]
        size = product(xs)
        self.require("le0", size - poly(most), label, f"the product of {list(factors)} must be at most {at_most}", size)


def replay(trace: Trace, mod: PrimFunc | IRModule, *, func_name: str | None = None) -> Schedule:
    """Apply a trace with all its decisions to `mod`, without randomness.

    Raises RecordError when the trace does not fit this workload, ScheduleError when a step refuses.
    """
    s = Schedule(mod, func_name=func_name)
    for i in trace.instructions:
        apply_instruction(s, i, i.decision)
    return s


def concretize(func: PrimFunc, row: Mapping[Param, int]) -> PrimFunc:
    """`func` with every Param replaced by its value, by substitution only.

    Raises ScheduleError (arguments) for a value that is not an integer.
    """
    values: dict[Var, object] = {p: poly(v if type(v) is int else _param_value(p, v)) for p, v in row.items()}
    buffers = {}
    for b in func.allocs:
        sizes = [substitute(e, values) for e in b.sizes]  # type: ignore[arg-type]
        if any(x is not y for x, y in zip(sizes, b.sizes, strict=True)):
            buffers[b] = b.with_sizes(sizes)
    body = substitute(func.body, values, buffers)  # type: ignore[arg-type]
    return func.with_(body=body, allocs=tuple([buffers.get(b, b) for b in func.allocs]))


def _param_value(p: Param, v: object) -> int:
    value = as_integer(v)
    if value is None:
        raise ScheduleError("concretize", "arguments", f"the value of {p.name} is {v!r}; an integer is needed")
    return value
