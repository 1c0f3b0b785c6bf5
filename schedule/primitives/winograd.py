"""Compute a convolution with fewer multiplications (Winograd)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import plain_iter
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Expr, cast, conjunction, const, select
from tunesmith.ir.poly import Poly, Var, ceildiv, floordiv, less_than, maximum, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, Iter, Stmt, nest, seq, store
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.linear_stages import LinearStages, chosen, sum_of_products
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.pad_einsum import trivial_loops
from tunesmith.schedule.state import ScheduleState
from tunesmith.schedule.winograd_matrices import POINTS, Matrix, WinogradMatrices, error_growth, winograd_matrices


@primitive
def winograd(s: ScheduleState, block: BlockRV, tile: int) -> list[BlockRV]:
    """Compute a convolution of stride 1 by products of transformed tiles of its image and its transformed filter.

    A window of r taps over `tile` outputs takes tile + r - 1 products in each dimension, in place of tile * r: a fourth for 4 x 4 outputs
    and 3 x 3 taps.  The transforms are linear, one dimension after the other, with constant coefficients that become numbers when their
    loops are unrolled.  The filter is transformed in float64 and rounded once.

    Returns the block that copies the image with zeros up to whole tiles, the blocks that transform the image, one for each dimension, those
    that transform the filter, the products, and the inverse transforms.  The block itself copies the tiles to the output, and can be
    inlined.

    Args:
        block: the convolution, for example C[i] = C[i] + A[i + k, c] * B[k, c].
        tile: outputs of a tile in each dimension of the window.
    Rewrite: `winograd(C, 2)`
        for i, k, c in T.grid(6, 2, 3):
            init: C[i] = 0.0
            C[i] = C[i] + A[i + k, c] * B[k, c]
      ->
        A_whole = T.alloc_buffer((7, 3))
        A_winograd = T.alloc_buffer((3, 3, 3))
        B_winograd = T.alloc_buffer((3, 3))
        C_products = T.alloc_buffer((3, 3))
        C_tiles = T.alloc_buffer((2, 3))
        for ax0, ax1 in T.grid(7, 3):
            A_whole[ax0, ax1] = A[ax0, ax1]
        for ax0, ax1, ax2 in T.grid(3, 3, 3):
            A_winograd[ax0, ax1, ax2] = T.select(
                ax0 < 1,
                A_whole[ax1 * 2, ax2] + A_whole[ax1 * 2 + 1, ax2],
                T.select(ax0 < 2, A_whole[ax1 * 2 + 1, ax2], A_whole[ax1 * 2 + 1, ax2] + A_whole[ax1 * 2 + 2, ax2]),
            )
        for ax0, ax1 in T.grid(3, 3):
            B_winograd[ax0, ax1] = T.cast(
                "float32",
                T.select(
                    ax0 < 1,
                    T.cast("float64", B[0, ax1]),
                    T.select(ax0 < 2, T.cast("float64", B[1, ax1]) - T.cast("float64", B[0, ax1]), T.cast("float64", B[1, ax1])),
                ),
            )
        for ax0, ax1, ax2 in T.grid(3, 3, 3):
            if ax2 < 1:
                C_products[ax0, ax1] = 0.0
            C_products[ax0, ax1] = C_products[ax0, ax1] + A_winograd[ax0, ax1, ax2] * B_winograd[ax0, ax2]
        for ax0, ax1 in T.grid(2, 3):
            C_tiles[ax0, ax1] = T.select(ax0 < 1, C_products[0, ax1] + C_products[1, ax1], C_products[2, ax1] - C_products[1, ax1])
        for i in T.serial(6):
            C[i] = C_tiles[i - i // 2 * 2, i // 2]
    Requires:
        convolution: the block sums products of one element of an image and one of a filter, both loads of the type of the sums, float32 or
            float64, starting from 0; the output is indexed by iteration variables.
        window: one or more dimensions of the image are indexed by the sum of a spatial variable, which does not index the filter, and a
            reduction variable of constant extent, which is an index of the filter; neither occurs elsewhere.
        channels: another reduction variable remains, which is summed after the transforms.
        tile: it is at least 2, and there are interpolation points for tile + r - 1.
        trivial: each iteration variable is bound to a loop of its own, of the same extent; the loops contain nothing else.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
    Keeps: results up to rounding, with two to three times the error of direct sums for tiles of 4; an infinity or NaN of the image or the
        filter makes whole tiles NaN (sources: Winograd 1980; Lavin and Gray, CVPR 2016).
    """
    b = s.block(block)
    conv = _match(s, b, tile)
    loops = {v: f.var.name for f, v in trivial_loops(s, b)}
    check_in_blocks(s, b, "in-blocks")
    made = _Stages(s, b, conv, tile)
    data = made.transformed(made.whole_tiles(conv.image), True)
    weights = made.transformed(conv.filter, False)
    products = made.products(data, weights)
    inverse = made.inverse(products)
    at = s.root_index(b.name)
    stmts = s.root_stmts()
    s.set_body(seq([*stmts[:at], *made.stmts, made.output(inverse, loops), *stmts[at + 1 :]]))
    s.add_allocs(*made.buffers)
    s.grow_error(math.prod(error_growth(tile, w.tap.extent.as_int()) for w in conv.windows))
    return [s.new_block(name) for name in made.names]


@dataclass(frozen=True, slots=True)
class _Window:
    """One dimension of the window.

    Attributes:
        output: the spatial variable.
        tap: the reduction variable.
        image: the dimension of the image, whose index is output + tap + start.
        filter: the dimension of the filter.
        start: a number.
    """

    output: Iter
    tap: Iter
    image: int
    filter: int
    start: int


@dataclass(frozen=True, slots=True)
class _Convolution:
    """The operands of a convolution, its store and the dimensions of its window."""

    store: BufferStore
    image: BufferLoad
    filter: BufferLoad
    windows: tuple[_Window, ...]


def _match(s: ScheduleState, b: Block, tile: int) -> _Convolution:
    out, *terms = sum_of_products(s, b, "convolution")
    if any(plain_iter(e, b) is None for e in out.indices):
        raise s.refuse("convolution", f"block {b.name} writes {out.buffer.name} at an index that is not an iteration variable", b)
    for image, weights in (terms, terms[::-1]):
        windows = _windows(b, image, weights)
        if windows:
            break
    else:
        raise s.refuse(
            "window", f"no dimension of an operand of block {b.name} is indexed by the sum of an output and a tap of stride 1", b
        )
    taps = {w.tap.var for w in windows}
    if not any(it.kind == "R" and it.var not in taps for it in b.iters):
        raise s.refuse("channels", f"block {b.name} sums only over the window, so that transforms cost more than they save", b)
    for w in windows:
        if tile < 2 or tile + w.tap.extent.as_int() - 2 not in POINTS:
            most = max(POINTS) + 2 - w.tap.extent.as_int()
            raise s.refuse("tile", f"tile={tile} for {w.tap.extent} taps: a tile has 2 to {most} outputs", b)
    return _Convolution(out, image, weights, windows)


def _windows(b: Block, image: BufferLoad, weights: BufferLoad) -> tuple[_Window, ...]:
    """The dimensions of the image that are indexed by an output and a tap; empty if one of them is not of the form that is required."""
    found = []
    for d, e in enumerate(image.indices):
        inside = [it for it in b.iters if it.var in e.vars]
        taps = [it for it in inside if it.kind == "R" and it.extent.const is not None and it.extent.const > 1]
        if len(inside) != 2 or len(taps) != 1 or len(e.vars) != 2:
            continue
        tap, output = taps[0], next(it for it in inside if it is not taps[0])
        rest = substitute(e, {tap.var: poly(0), output.var: poly(0)})
        if output.kind != "S" or e - rest != poly(tap.var) + output.var or rest.const is None:
            continue
        at = [k for k, i in enumerate(weights.indices) if i.as_var() is tap.var]
        others = [*[i for k, i in enumerate(image.indices) if k != d], *[i for k, i in enumerate(weights.indices) if k not in at[:1]]]
        if len(at) == 1 and not any(v in i.vars for i in others for v in (tap.var, output.var)):
            found.append(_Window(output, tap, d, at[0], rest.const))
    return tuple(found)


class _Stages(LinearStages):
    """The new blocks.

    Args:
        s: the schedule, for names.
        b: the convolution.
        conv: its operands.
        tile: outputs of a tile.
    """

    def __init__(self, s: ScheduleState, b: Block, conv: _Convolution, tile: int) -> None:
        super().__init__(s)
        self._b, self._conv, self._tile = b, conv, tile
        self._matrices: list[WinogradMatrices] = [winograd_matrices(tile, w.tap.extent.as_int()) for w in conv.windows]
        self._points = [len(x.data) for x in self._matrices]
        self._tiles = [ceildiv(w.output.extent, tile) for w in conv.windows]

    def whole_tiles(self, load: BufferLoad) -> BufferLoad:
        """A copy of the image, extended by zeros to whole tiles, and the load of it."""
        shape = list(load.buffer.shape)
        for w, n, points in zip(self._conv.windows, self._tiles, self._points, strict=True):
            shape[w.image] = maximum(shape[w.image], n * self._tile + points - self._tile + w.start)

        def element(index: Sequence[Var]) -> Expr:
            grown = [less_than(v, n) for v, n, new in zip(index, load.buffer.shape, shape, strict=True) if n != new]
            value = BufferLoad(load.buffer, tuple(map(poly, index)))
            return select(conjunction(tuple(grown)), value, const(0.0, load.buffer.dtype)) if grown else value

        return load.with_(buffer=self.stage(f"{load.buffer.name}_whole", shape, load.buffer.dtype, element))

    def transformed(self, load: BufferLoad, is_image: bool) -> Buffer:
        """Transform an operand: [points, tiles of an image, the other dimensions]."""
        windows = self._conv.windows
        dims = [w.image if is_image else w.filter for w in windows]
        rest = [n for d, n in enumerate(load.buffer.shape) if d not in dims]
        tiles = self._tiles if is_image else []
        wide = load.buffer.dtype if is_image else "float64"
        before: Buffer | None = None
        for d, matrices in enumerate(self._matrices):
            last = d == len(windows) - 1
            rows = matrices.data if is_image else matrices.weights
            inputs = [len(m.data[0]) if is_image else len(m.weights[0]) for m in self._matrices[d + 1 :]]
            shape = [*map(poly, [*self._points[: d + 1], *inputs]), *tiles, *rest]
            name = f"{load.buffer.name.removesuffix('_whole')}_winograd" + ("" if last else f"_{d}")

            def element(index: Sequence[Var], d: int = d, before: Buffer | None = before, rows: Matrix = rows, last: bool = last) -> Expr:
                def source(k: int) -> Expr:
                    if before is not None:
                        return BufferLoad(before, (*map(poly, index[:d]), poly(k), *map(poly, index[d + 1 :])))
                    return self._operand(load, dims, [poly(k), *map(poly, index[1 : len(dims)])], index[len(dims) :], is_image)

                made = chosen(index[d], rows, source, wide)
                return cast(load.buffer.dtype, made) if last else made

            before = self.stage(name, shape, load.buffer.dtype if last else wide, element)
        assert before is not None
        return before

    def _operand(self, load: BufferLoad, dims: Sequence[int], window: Sequence[Poly], index: Sequence[Var], is_image: bool) -> Expr:
        """An element of an operand at positions in the window, and the index of the tiles of an image and of the other dimensions."""
        tiles, rest = (index[: len(dims)], list(index[len(dims) :])) if is_image else ((), list(index))
        at: list[Poly] = []
        for d in range(len(load.buffer.shape)):
            if d in dims:
                n = dims.index(d)
                at.append(window[n] + (poly(tiles[n]) * self._tile + self._conv.windows[n].start if is_image else 0))
            else:
                at.append(poly(rest.pop(0)))
        value: Expr = BufferLoad(load.buffer, tuple(at))
        return value if is_image else cast("float64", value)

    def products(self, data: Buffer, weights: Buffer) -> Buffer:
        """Sum the products of transformed operands: [points, tiles, the other dimensions of the output]."""
        conv = self._conv
        replaced = {v.var for w in conv.windows for v in (w.output, w.tap)}
        others = [it for it in self._b.iters if it.var not in replaced]
        outputs = [e.as_var() for e in conv.store.indices if e.as_var() not in replaced]
        points = [Iter(Var(f"v_p{d}"), poly(x), "S") for d, x in enumerate(self._points)]
        tiles = [Iter(Var(f"v_t{d}"), x, "S") for d, x in enumerate(self._tiles)]
        fresh = {it.var: Iter(Var(it.var.name), it.extent, it.kind) for it in others}
        renamed = {v: poly(it.var) for v, it in fresh.items()}
        spatial = [fresh[v] for v in outputs if v is not None]
        iters = [*points, *tiles, *spatial, *[it for it in fresh.values() if it not in spatial]]
        buffer = self.buffer(
            f"{conv.store.buffer.name}_products", [it.extent for it in (*points, *tiles, *spatial)], conv.store.buffer.dtype
        )
        at = [it.var for it in (*points, *tiles, *spatial)]

        def rest(load: BufferLoad, dims: Sequence[int]) -> list[Poly]:
            return [substitute(e, renamed) for d, e in enumerate(load.indices) if d not in dims]

        left = BufferLoad(data, (*[poly(it.var) for it in (*points, *tiles)], *rest(conv.image, [w.image for w in conv.windows])))
        right = BufferLoad(weights, (*[poly(it.var) for it in points], *rest(conv.filter, [w.filter for w in conv.windows])))
        sums = BufferLoad(buffer, tuple(map(poly, at)))
        self.add(buffer, iters, store(buffer, at, sums + left * right), store(buffer, at, const(0.0, buffer.dtype)))
        return buffer

    def inverse(self, products: Buffer) -> Buffer:
        """Transform the sums back: [outputs of a tile, tiles, the other dimensions of the output]."""
        before = products
        for d, matrices in enumerate(self._matrices):
            last = d == len(self._matrices) - 1
            name = f"{self._conv.store.buffer.name}_tiles" + ("" if last else f"_{d}")
            shape = [*before.shape[:d], poly(self._tile), *before.shape[d + 1 :]]

            def element(index: Sequence[Var], d: int = d, before: Buffer = before, rows: Matrix = matrices.inverse) -> Expr:
                def source(k: int) -> Expr:
                    return BufferLoad(before, (*map(poly, index[:d]), poly(k), *map(poly, index[d + 1 :])))

                return chosen(index[d], rows, source, before.dtype)

            before = self.stage(name, shape, before.dtype, element)
        return before

    def output(self, tiles: Buffer, names: Mapping[Var, str]) -> Stmt:
        """Copy the tiles to the output; the block keeps its name."""
        conv, b = self._conv, self._b
        iters = [Iter(Var(it.var.name), it.extent, "S") for it in b.iters if it.kind == "S"]
        new = dict(zip([it.var for it in b.iters if it.kind == "S"], [it.var for it in iters], strict=True))
        windows = [new[w.output.var] for w in conv.windows]
        written = [new[v] for e in conv.store.indices if (v := e.as_var()) is not None]
        others = [v for v in written if v not in windows]
        at = [*[v - floordiv(v, self._tile) * self._tile for v in windows], *[floordiv(v, self._tile) for v in windows], *map(poly, others)]
        loops = [Var(names[it.var]) for it in b.iters if it.kind == "S"]
        body = store(conv.store.buffer, written, BufferLoad(tiles, tuple(at)))
        made = Block(b.name, tuple(iters), tuple(map(poly, loops)), (), None, body, b.annotations)
        return nest([(v, it.extent) for v, it in zip(loops, iters, strict=True)], made)
