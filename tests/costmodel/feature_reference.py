"""Compute features of one concrete program in plain Python: integers, ifs, breaks and sorts; no unit loops.

Written from the description of the features, independently of `store_features`: numbers for footprints, evaluation for strides.  It is
the oracle for both backends, and a baseline for the speed of one candidate at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Call, Cast, IsNegative, Not, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Op, Poly, Var, substitute
from tunesmith.ir.stmt import Block, BufferStore, For

BYTES = {"float32": 4, "float64": 8, "int32": 4, "uint8": 1}
LINE = 64


@dataclass
class Loop:
    """A loop with more than one iteration."""

    var: Var
    extent: int
    kind: str
    notes: dict[str, Any]


def slog2(x: float) -> float:
    """The logarithm of the features."""
    return math.log2(x + 1)


def value(p: Poly, env: dict[Var, int]) -> int:
    """An index expression with unknown variables at 0."""
    total = 0
    for m, c in p.terms:
        for a in m:
            if type(a) is not Op:
                c *= env.get(a, 0)  # type: ignore[arg-type]
                continue
            x = [value(y, env) for y in a.args]
            c *= (
                min(x)
                if a.op == "min"
                else max(x)
                if a.op == "max"
                else x[0] % x[1]
                if a.op == "mod"
                else -(-x[0] // x[1])
                if a.op == "ceildiv"
                else x[0] // x[1]
            )
        total += c
    return total


def width(p: Poly, widths: dict[Var, int], tops: dict[Var, int], whole: bool = True) -> float:
    """Highest less lowest value when variables span their widths; unknown variables are at 0, unknown divisors at their maximum."""
    total = 0.0
    for m, c in p.terms:
        span: float = abs(c)
        if not any(v in widths for a in m for v in a.vars):
            continue
        for a in m:
            if type(a) is not Op:
                span *= widths[a] if a in widths else tops.get(a, 0)  # type: ignore[index, call-overload]
                continue
            inner = max(width(x, widths, tops, whole) for x in a.args)
            if a.op == "mod":
                inner = min(inner, value(a.args[1], tops) - 1)
            elif a.op in ("floordiv", "ceildiv"):
                quotient = (inner + 1) / value(a.args[1], tops)
                inner = (math.ceil(quotient) if whole else max(quotient, 1.0)) - 1
            span *= inner
        total += span
    return total


def highest(p: Poly, tops: dict[Var, int]) -> int:
    """The maximum of an expression whose terms are all >= 0."""
    total = 0
    for m, c in p.terms:
        if c < 0:
            span = 0 if any(a.vars for a in m) else 1
            total += c * span
            continue
        span = 1
        for a in m:
            if type(a) is not Op:
                span *= tops.get(a, 0)  # type: ignore[call-overload]
            elif a.op == "mod":
                span *= min(highest(a.args[0], tops), value(a.args[1], tops) - 1)
            elif a.op in ("min", "max"):
                span *= (min if a.op == "min" else max)(highest(x, tops) for x in a.args)
            else:
                x, d = highest(a.args[0], tops), value(a.args[1], {})
                span *= x // d if a.op == "floordiv" else -(-x // d)
        total += c * span
    return total


def depends(p: Poly, v: Var, tops: dict[Var, int]) -> bool:
    """Whether an expression depends on a variable."""
    for m, _ in p.terms:
        for a in m:
            if a is v:
                return True
            if type(a) is Op and any(depends(x, v, tops) for x in a.args):
                if a.op in ("min", "max"):
                    return True
                d = value(a.args[1], {})
                if d > 1 if a.op == "mod" else highest(a.args[0], tops) >= d:
                    return True
    return False


def about_positions(e: Any) -> bool:
    """Whether a condition is only on indices."""
    if isinstance(e, IsNegative):
        return True
    if isinstance(e, Not):
        return about_positions(e.a)
    return isinstance(e, Binary) and e.op in ("and", "or") and about_positions(e.a) and about_positions(e.b)


def operations(block: Block) -> dict[str, int]:
    """Operations of the body."""
    out = dict.fromkeys(("add", "mul", "div", "max", "call", "select", "mask", "cast", "integer"), 0)
    kinds = {
        "add": "add",
        "sub": "add",
        "mul": "mul",
        "div": "div",
        "min": "max",
        "max": "max",
        "lt": "max",
        "le": "max",
        "gt": "max",
        "ge": "max",
    }

    def visit(n: Any) -> None:
        if isinstance(n, Poly) or about_positions(n):
            return
        if isinstance(n, Binary):
            out[kinds[n.op] if "float" in n.a.dtype else "integer"] += 1
        if isinstance(n, Call):
            out["call"] += INTRINSICS[n.name].flops
        if isinstance(n, Select):
            out["mask" if about_positions(n.cond) else "select"] += 1
        if isinstance(n, Cast):
            out["cast"] += 1
        n.each_child(visit)

    visit(block.body)
    return out


class Access:
    """A block's accesses to one buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.r = self.w = False
        self.indices: list[tuple[Poly, ...]] = []


def accesses(block: Block) -> list[Access]:
    """Accesses by buffer, in program order: init, then stores before their loads."""
    found: dict[Buffer, Access] = {}

    def visit(n: Any) -> None:
        if isinstance(n, (BufferLoad, BufferStore)):
            a = found.setdefault(n.buffer, Access(n.buffer))
            a.r |= isinstance(n, BufferLoad)
            a.w |= isinstance(n, BufferStore)
            if n.indices not in a.indices:
                a.indices.append(n.indices)
        if not isinstance(n, Poly):
            n.each_child(visit)

    for part in (block.init, block.body):
        if part is not None:
            visit(part)
    return list(found.values())


class Reference:
    """Feature rows of a concrete function, one for each block."""

    def __init__(self, func: PrimFunc, curve: bool) -> None:
        self.curve = curve
        self.allocs = set(func.allocs)
        self.blocks: list[tuple[Block, list[Loop], list[Var]]] = []
        self._walk(func.body, [], [])
        self.rows = [self._row(i) for i in range(len(self.blocks))]

    def _walk(self, n: Any, path: list[Loop], every: list[Var]) -> None:
        if isinstance(n, Block):
            self.blocks.append((n, path[::-1], every))
        elif isinstance(n, For):
            e = n.extent.as_int()
            self._walk(n.body, [*path, Loop(n.var, e, n.kind, dict(n.annotations))] if e > 1 else path, [*every, n.var])
        elif not isinstance(n, Poly):
            n.each_child(lambda k: self._walk(k, path, every))

    def extents(self, block: Block, a: Access, loops: list[Loop], every: list[Loop]) -> list[int]:
        """The footprint over the iterations of `loops`."""
        spans = {x.var: x.extent - 1 for x in loops}
        tops = {x.var: x.extent - 1 for x in every}
        iters = {it.var: min(width(b, spans, tops), it.extent.as_int() - 1) for it, b in zip(block.iters, block.bindings, strict=True)}
        return [min(max(width(t[d], iters, {}) for t in a.indices) + 1, size.as_int()) for d, size in enumerate(a.buffer.shape)]

    def allocated(self, buffer: Buffer) -> tuple[list[int], int]:
        """Extents of an intermediate, and the number of (non-unit) loops around its allocation."""
        users = [(b, p, v, a) for b, p, v in self.blocks for a in accesses(b) if a.buffer is buffer]
        shared: list[Var] = []
        for together in zip(*[v for _, _, v, _ in users], strict=False):
            if any(x is not together[0] for x in together):
                break
            shared.append(together[0])
        sizes = [self.extents(b, a, [x for x in p if x.var not in shared], p) for b, p, _, a in users]
        around = next(sum(x.var in shared for x in p) for _, p, _, _ in users)
        return [max(x) for x in zip(*sizes, strict=True)], around

    def _row(self, index: int) -> list[float]:
        block, loops, _ = self.blocks[index]
        uses = accesses(block)
        total = math.prod(x.extent for x in loops)
        spans = {x.var: x.extent - 1 for x in loops}
        share = math.prod(
            min(1.0, it.extent.as_int() / (width(b, spans, spans, False) + 1)) for it, b in zip(block.iters, block.bindings, strict=True)
        )
        done = total * share
        ops = operations(block)
        flops = ops["add"] + ops["mul"] + ops["div"] + ops["max"] + ops["call"]
        row = [slog2(done * n) for n in ops.values()]
        row += [slog2(done * (1 + flops + ops["integer"])), slog2(total), slog2(done)]
        for kind in ("vectorized", "unrolled", "parallel"):
            sizes = [x.extent for x in loops if x.kind == kind]
            row += [len(sizes)] + ([slog2(math.prod(sizes)), slog2(sizes[-1 if kind == "parallel" else 0])] if sizes else [0.0, 0.0])
        row.append(float(any(highest(p, spans) >= 0 for p in block.predicate)))
        row += [share, slog2(done / math.prod(it.extent.as_int() for it in block.iters)), len(loops)]
        reducing = {v for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "R" for v in b.vars}
        row.append(slog2(math.prod(x.extent for x in loops if x.var in reducing)))
        row.append(slog2(math.prod(x.extent for x in loops if x.kind in ("vectorized", "unrolled"))))
        row.append(slog2(next((x.extent for x in loops if x.kind == "serial"), 0)))
        row.append(float(any("prefetch" in x.notes for x in loops) or any(k == "prefetch" for k, _ in block.annotations)))
        row += self._memory(uses, loops)
        levels = [[self.extents(block, a, loops[:k], loops) for a in uses] for k in range(len(loops) + 1)]
        sizes_at = [[math.prod(e) * BYTES[a.buffer.dtype] for e, a in zip(level, uses, strict=True)] for level in levels]
        inner = [math.prod(x.extent for x in loops[:k]) for k in range(len(loops) + 1)]
        if self.curve:
            row += self._curve(max(flops, 1), inner, [sum(s) for s in sizes_at])
        groups = [self._group(index, k, a, levels, sizes_at, inner) for k, a in enumerate(uses)]
        groups.sort(key=lambda g: -g[0])
        flat = [x for _, g in groups[:5] for x in g]
        return row + flat + [0.0] * (5 * 19 - len(flat)) + [0.0] * 28  # the GPU columns

    def _memory(self, uses: list[Access], loops: list[Loop]) -> list[float]:
        written = next(a for a in uses if a.w)
        size, times, elements, vectors = 0, 0, 0, 0
        if written.buffer in self.allocs:
            extents, around = self.allocated(written.buffer)
            size = math.prod(extents) * BYTES[written.buffer.dtype]
            times = math.prod(x.extent for x in loops[::-1][:around])
        for a in uses:
            if a.buffer.scope == "register" and a.buffer in self.allocs:
                extents, _ = self.allocated(a.buffer)
                elements += math.prod(extents)
                vectors += math.prod(extents[:-1]) * -(-extents[-1] * BYTES[a.buffer.dtype] // LINE) if extents else 1
        flags = [
            float(any(getattr(a, rw) and a.buffer.scope == scope for a in uses))
            for rw, scope in (("w", "register"), ("w", "workspace"), ("r", "register"), ("r", "workspace"))
        ]
        return [slog2(size), slog2(times), slog2(elements), slog2(vectors), *flags]

    @staticmethod
    def _curve(flops: int, inner: list[int], sizes: list[int]) -> list[float]:
        xs = [slog2(flops * n) for n in inner]
        ys = [slog2(flops * n / s) for n, s in zip(inner, sizes, strict=True)]
        out = []
        for q in range(10):
            x = xs[-1] * ((q + 1) / 10)
            if x <= xs[0]:
                out.append(ys[0])
                continue
            for k in range(len(xs) - 1):
                if x <= xs[k + 1]:
                    out.append(ys[k] + (x - xs[k]) / (xs[k + 1] - xs[k]) * (ys[k + 1] - ys[k]))
                    break
            else:
                out.append(ys[-1])
        return out

    def _group(
        self, index: int, which: int, a: Access, levels: list[list[list[int]]], sizes: list[list[int]], inner: list[int]
    ) -> tuple[float, list[float]]:
        block, loops, _ = self.blocks[index]
        bound = dict(zip([it.var for it in block.iters], block.bindings, strict=True))
        tops = {x.var: x.extent - 1 for x in loops}
        item = BYTES[a.buffer.dtype]
        total = inner[-1]

        def varies(x: Loop) -> bool:
            return any(depends(substitute(e, bound), x.var, tops) for t in a.indices for e in t)

        def address(env: dict[Var, int]) -> int:
            out, at = 0, {v: value(b, env) for v, b in bound.items()}
            for e, n in zip(a.indices[0], a.buffer.shape, strict=True):
                out = out * n.as_int() + value(e, at)
            return out

        stride, ratio = 0, 1
        for x in loops:
            if varies(x):
                stride = abs(address({x.var: 1}) - address({}))
                break
            ratio *= x.extent
        accessed, unique = total * item, sizes[-1][which]
        lines = max(total / ratio * min(1.0, stride * item / LINE), 1.0)
        ex = levels[-1][which]
        unique_lines = math.prod(ex[:-1]) * max(1.0, ex[-1] * item / LINE) if ex else 1.0
        kind, iterations, distance, count = "none", 1, 0, 1
        for k, x in enumerate(loops):
            if not varies(x):
                kind, iterations, distance, count = "loop", inner[k], sum(sizes[k]), x.extent
                break
            others = sum(
                any(y.var is x.var for y in p) and any(o.buffer is a.buffer for o in accesses(b))
                for i, (b, p, _) in enumerate(self.blocks)
                if i != index
            )
            if others:
                kind, iterations, distance, count = "serial", inner[k + 1], sum(sizes[k + 1]), others
                break
        out = [float(a.r and not a.w), float(a.w and not a.r), float(a.r and a.w), float(a.buffer.scope != "global")]
        out += [slog2(accessed), slog2(unique), slog2(lines), slog2(unique_lines)]
        out += [float(kind == "loop"), float(kind == "serial"), float(kind == "none"), slog2(iterations), slog2(distance), slog2(count)]
        out += [slog2(v / count) for v in (accessed, unique, lines, unique_lines)]
        return unique, [*out, slog2(stride)]


def reference_features(func: PrimFunc, curve: bool = False) -> list[list[float]]:
    """The rows of all blocks of a concrete function."""
    return Reference(func, curve).rows
