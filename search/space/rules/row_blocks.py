"""Schedule chains of convolutions by blocks of rows of the last image (source: Alwani et al., Fused-Layer CNN Accelerators, 2016).

    parallel over images and blocks of rows
        for each layer but the last: the rows that the block needs     workspace
        last layer: the rows of the block

Each layer is computed in register tiles of pixels and vectors of channels.  Rows that the windows of two blocks share are computed twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.analysis.reduction_update import accumulation
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.expr import Binary, Const, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE, ZERO, product
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.plans import is_copy, rows_of
from tunesmith.search.space.derive.reductions import own_loops
from tunesmith.search.space.derive.register_tile import TileLoops, budget, finish_tile
from tunesmith.search.space.rules.block_classes import consumers, has_own_nests, is_contraction, is_output, is_pointwise, vector_axis
from tunesmith.search.space.rules.contraction import WINDOW
from tunesmith.search.space.rules.tile_domains import ROWS, VECTORS
from tunesmith.support import dtype as dt

Named = tuple[str, Callable[[Schedule], None]]
BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Rows of the last image in a task."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        vector_first: the register tiles of a row are iterated along the channels in the outermost loop.
        window: the innermost loop over a window is unrolled.
        threads: the tasks run in parallel.
    """

    vector_first: bool
    window: bool
    threads: bool

    @property
    def name(self) -> str:
        """As records spell it."""
        return f"row blocks {'vec-rows' if self.vector_first else 'rows-vec'}{' window' * self.window}{' serial' * (not self.threads)}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A contraction of the chain and the elementwise blocks that follow it.

    Attributes:
        main: the contraction.
        epilogue: elementwise blocks at the same axes as its result, in order.
        moved: elementwise blocks that read other elements, such as padding, after them.
    """

    main: str
    epilogue: tuple[str, ...]
    moved: tuple[str, ...]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules of a function whose contractions are a chain of at least two layers with images [n, h, w, c]."""
    layers = chain(func)
    if not layers:
        return []
    threading = (True, False) if worth_serial(func, target) else (True,)
    plans = [Plan(*choices) for choices in itertools.product((False, True), (False, True), threading)]
    return [(plan.name, partial(schedule, layers=layers, plan=plan, target=target)) for plan in plans]


def chain(func: PrimFunc) -> list[Layer]:
    """The layers of a function that consists of one chain; empty for others."""
    blocks = blocks_under(func.body)
    mains = [b for b in blocks if is_contraction(b)]
    if not has_own_nests(func) or len(mains) < 2 or not all(is_pointwise(b) for b in blocks if b not in mains):
        return []
    layers: list[Layer] = []
    for main, following in zip(mains, [*mains[1:], None], strict=True):
        layer = _layer(func, main, following)
        if layer is None or not _is_of_images(main) or (layers and not _reads_rows(main)):
            return []
        if not all(is_copy(b) or (_pads_with_zeros(b) and _sums_products(following)) for b in blocks if b.name in layer.moved):
            return []  # zeros that are not multiplied, and other values, are read without guards, beyond the rows of a block
        layers.append(layer)
    return layers


def _pads_with_zeros(b: Block) -> bool:
    value = b.body.value if isinstance(b.body, BufferStore) else None
    return isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0


def _sums_products(main: Block | None) -> bool:
    update = accumulation(main.body) if main is not None and isinstance(main.body, BufferStore) else None
    return update is not None and update.op == "add" and isinstance(update.term, Binary) and update.term.op == "mul"


def _is_of_images(main: Block) -> bool:
    """Whether the result is an image, with its axes first and in order, of several rows, and pixels reuse an operand."""
    own = [it.var for it in main.iters if it.kind == "S"]
    if main.iters[1].extent == ONE:
        return False
    return len(own) == 4 and [it.var for it in main.iters[:4]] == [e.as_var() for e in writes(main)[0].indices] and 2 in rows_of(main)


def _reads_rows(main: Block) -> bool:
    """Whether the rows of the result that a task computes need some rows of the image only."""
    rows = main.iters[1].var
    return any(len(a.indices) == 4 and rows in a.indices[1].vars for a in reads(main))


def _layer(func: PrimFunc, main: Block, following: Block | None) -> Layer | None:
    """A layer, if all that reads its result is a row of elementwise blocks to the following layer, or to the output."""
    epilogue, moved, here = list[str](), list[str](), main
    while not (following is None and is_output(func, here)):
        readers = consumers(func, here)
        if len(readers) != 1 or is_output(func, here):
            return None
        if readers[0] is following:
            break
        if not is_pointwise(readers[0]):
            return None
        (epilogue if not moved and _is_at_same_axes(readers[0], here) else moved).append(readers[0].name)
        here = readers[0]
    return None if following is None and moved else Layer(main.name, tuple(epilogue), tuple(moved))


def _is_at_same_axes(reader: Block, made: Block) -> bool:
    """Whether a block reads the elements of another at its own iteration variables, in order, and nothing else of it."""
    buffer = writes(made)[0].buffer
    own = [it.var for it in reader.iters]
    same = [[e.as_var() for e in a.indices] == own for a in reads(reader) if a.buffer is buffer]
    return all(same) and writes(reader)[0].buffer.shape == buffer.shape


def schedule(s: Schedule, layers: Sequence[Layer], plan: Plan, target: Target) -> None:
    """Build the nest of `plan`."""
    kept = {n for layer in layers for n in (layer.main, *layer.epilogue[-1:])}
    for name in [b.name for b in s.blocks() if b.name not in kept]:
        s.compute_inline(s.get_block(name))
    writers = [_writer(s, layer) for layer in layers]
    task, inner = _tasks(s, s.get_block(writers[-1]))
    size = ZERO
    for layer, writer in reversed(list(zip(layers, writers, strict=True))):
        block = s.get_block(writer)
        if writer != writers[-1]:
            s.set_scope(block, "workspace")
            s.compute_at(block, task, whole=(2, 3))
            inner = own_loops(s, block)
            size = size + product([s.loop(x).extent for x in inner]) * dt.nbytes(writes(s.block(block))[0].buffer.dtype)
        _tile(s, layer.main, writer, inner, plan, target)
    s.step = "workspace budget"
    s.require("le0", size - (target.l2_bytes or 1 << 20), "workspace-budget", "the images of a block do not fit the second-level cache")
    if plan.threads:
        s.parallel(task)


def _writer(s: Schedule, layer: Layer) -> str:
    """Keep the sums of a layer in registers; the block that reads them."""
    main = s.get_block(layer.main)
    if layer.epilogue:
        s.set_scope(main, "register")
        return layer.epilogue[-1]
    return s.block(s.cache_write(main, "register")).name


def _tasks(s: Schedule, out: BlockRV) -> tuple[LoopRV, list[LoopRV]]:
    """Split the rows of the last image into blocks: the loop over all blocks, and the loops of a block over rows, pixels and channels."""
    images, rows, *others = s.get_loops(out)
    most = s.loop(rows).extent.const or 1
    size = s.sample_tile(rows, 2, "rows", [tuple([n for n in BLOCKS if n <= most])], waste=0.5)
    blocks, inside = s.split(rows, [None, *size])
    return blocks if s.loop(images).extent == ONE else s.fuse([images, blocks]), [inside, *others]


def _tile(s: Schedule, main: str, writer: str, own: Sequence[LoopRV], plan: Plan, target: Target) -> None:
    """Compute a layer in register tiles of pixels of a row and vectors of channels."""
    lanes = target.vector_lanes(writes(s.block(s.get_block(main)))[0].buffer.dtype)
    *others, pixels, channels = own
    heights = tuple([n for n in ROWS if n <= (s.loop(pixels).extent.const or 1)])
    widths = tuple([lanes * n for n in VECTORS if n <= max(target.vector_registers // 4, 2)])
    (height,) = s.sample_tile(pixels, 2, f"{main}_pixels", [heights], slack=4, waste=0.25)
    (width,) = s.sample_tile(channels, 2, f"{main}_channels", [widths], slack=lanes, waste=0.5)
    over, pixel = s.split(pixels, [None, height])
    panels, channel = s.split(channels, [None, width])
    loops = TileLoops(list(others), [over], [panels], [pixel], [height], channel, width)
    budget(s, loops, lanes, target.vector_registers)
    at = loops.order(s, plan.vector_first)
    block = s.get_block(main)
    s.compute_at(block, at)
    b = s.block(block)
    position = vector_axis(b)
    assert position is not None
    taps = [x for x, it in zip(own_loops(s, block), b.iters, strict=True) if it.kind == "R" and 1 < (it.extent.const or 0) <= WINDOW]
    finish_tile(s, main, position, [position - 1], loops)
    if plan.window and taps:
        s.unroll(taps[-1])
