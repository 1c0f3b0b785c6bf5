"""Build programs with the IR node constructors, each with a numpy reference; provided to tests by the `programs` fixture.

Data is integer valued, so float sums are exact, and a wrong program cannot pass as a reordered sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr, call, cast, conjunction, const, maximum, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Index, Param, Poly, Var, ceildiv, less_than, poly
from tunesmith.ir.stmt import Block, Iter, Stmt, nest, seq, store
from tunesmith.support.seeds import stream

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Program:
    """A function, its input shapes and dtypes, and the expected final content of its last buffer parameter."""

    func: PrimFunc
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    reference: Callable[..., np.ndarray]

    def arrays(self, seed: int = 0) -> Arrays:
        rng = stream(seed, "programs")
        return [rng.integers(-4, 5, shape).astype(dtype) for shape, dtype in self.inputs]


def block(
    name: str,
    axes: list[tuple[str, Index, str]],
    body: Callable[..., Stmt],
    init: Callable[..., Stmt] | None = None,
) -> Stmt:
    """A block with one serial loop per axis (name, extent, S or R)."""
    loops = [Var(n) for n, _, _ in axes]
    iters = tuple([Iter(Var("v" + n), poly(e), k) for n, e, k in axes])
    values = [i.var for i in iters]
    made = Block(
        name,
        iters,
        tuple([poly(v) for v in loops]),
        (),
        None if init is None else init(*[v for v, i in zip(values, iters, strict=True) if i.kind == "S"]),
        body(*values),
    )
    return nest(list(zip(loops, [e for _, e, _ in axes], strict=True)), made)


def matmul(n: int, m: int, k: int, dtype: str = "float32", out: str | None = None) -> Program:
    """C[n, m] = A[n, k] @ B[k, m], accumulated in `out`."""
    out = out or dtype
    a, b, c = Buffer("A", (n, k), dtype), Buffer("B", (k, m), dtype), Buffer("C", (n, m), out)
    body = block(
        "C",
        [("i", n, "S"), ("j", m, "S"), ("k", k, "R")],
        lambda i, j, r: store(c, (i, j), c[i, j] + cast(out, a[i, r]) * cast(out, b[r, j])),
        lambda i, j: store(c, (i, j), const(0, out)),
    )
    func = PrimFunc("matmul", (a, b, c), (), body)
    held = "float32" if dtype == "bfloat16" else dtype
    return Program(func, (((n, k), held), ((k, m), held)), lambda x, y: x.astype(out) @ y.astype(out))


def matmul_bias_relu(n: int, m: int, k: int) -> Program:
    """D = max(A @ B + bias, 0), with the product in an intermediate buffer."""
    a, b, bias, d = Buffer("A", (n, k)), Buffer("B", (k, m)), Buffer("bias", (m,)), Buffer("D", (n, m))
    c = Buffer("C", (n, m))
    product = block(
        "C",
        [("i", n, "S"), ("j", m, "S"), ("k", k, "R")],
        lambda i, j, r: store(c, (i, j), c[i, j] + a[i, r] * b[r, j]),
        lambda i, j: store(c, (i, j), const(0, "float32")),
    )
    epilogue = block("D", [("i", n, "S"), ("j", m, "S")], lambda i, j: store(d, (i, j), maximum(c[i, j] + bias[j], 0.0)))
    func = PrimFunc("matmul_bias_relu", (a, b, bias, d), (c,), seq([product, epilogue]))
    return Program(
        func, (((n, k), "float32"), ((k, m), "float32"), ((m,), "float32")), lambda x, y, z: np.maximum(x @ y + z, np.float32(0))
    )


def conv_relu(n: int, h: int, w: int, ci: int, co: int, kernel: int = 3, stride: int = 1, pad: int = 1) -> Program:
    """relu(conv2d), NHWC by HWIO: padded copy, convolution, activation."""
    oh, ow = (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1
    x, weight, out = Buffer("X", (n, h, w, ci)), Buffer("W", (kernel, kernel, ci, co)), Buffer("Y", (n, oh, ow, co))
    padded, acc = Buffer("P", (n, h + 2 * pad, w + 2 * pad, ci)), Buffer("C", (n, oh, ow, co))

    def copy(b: Var, i: Var, j: Var, c: Var) -> Stmt:
        inside: list[Expr] = [less_than(pad - 1, i), less_than(i, h + pad), less_than(pad - 1, j), less_than(j, w + pad)]
        return store(padded, (b, i, j, c), select(conjunction(tuple(inside)), x[b, poly(i) - pad, poly(j) - pad, c], 0.0))

    def tap(b: Var, i: Var, j: Var, o: Var, p: Var, q: Var, c: Var) -> Stmt:
        at = padded[b, poly(i) * stride + p, poly(j) * stride + q, c]
        return store(acc, (b, i, j, o), acc[b, i, j, o] + at * weight[p, q, c, o])

    spatial: list[tuple[str, Index, str]] = [("n", n, "S"), ("h", oh, "S"), ("w", ow, "S"), ("o", co, "S")]
    body = seq(
        [
            block("P", [("n", n, "S"), ("h", h + 2 * pad, "S"), ("w", w + 2 * pad, "S"), ("c", ci, "S")], copy),
            block(
                "C",
                [*spatial, ("p", kernel, "R"), ("q", kernel, "R"), ("c", ci, "R")],
                tap,
                lambda *i: store(acc, i, const(0, "float32")),
            ),
            block("Y", spatial, lambda *i: store(out, i, maximum(acc[i], 0.0))),
        ]
    )

    def reference(data: np.ndarray, filters: np.ndarray) -> np.ndarray:
        wide = np.pad(data, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        total = np.zeros((n, oh, ow, co), np.float32)
        for p in range(kernel):
            for q in range(kernel):
                total += wide[:, p : p + oh * stride : stride, q : q + ow * stride : stride] @ filters[p, q]
        return np.maximum(total, np.float32(0))

    func = PrimFunc("conv_relu", (x, weight, out), (padded, acc), body)
    return Program(func, (((n, h, w, ci), "float32"), ((kernel, kernel, ci, co), "float32")), reference)


def softmax(rows: int, cols: int) -> Program:
    """exp(x - max) / sum over the last axis: four blocks."""
    x, y = Buffer("X", (rows, cols)), Buffer("Y", (rows, cols))
    top, e, total = Buffer("M", (rows,)), Buffer("E", (rows, cols)), Buffer("S", (rows,))
    grid: list[tuple[str, Index, str]] = [("i", rows, "S"), ("j", cols, "S")]
    reduced: list[tuple[str, Index, str]] = [("i", rows, "S"), ("j", cols, "R")]
    body = seq(
        [
            block(
                "M", reduced, lambda i, j: store(top, (i,), maximum(top[i], x[i, j])), lambda i: store(top, (i,), const(-np.inf, "float32"))
            ),
            block("E", grid, lambda i, j: store(e, (i, j), call("exp", x[i, j] - top[i]))),
            block("S", reduced, lambda i, j: store(total, (i,), total[i] + e[i, j]), lambda i: store(total, (i,), const(0, "float32"))),
            block("Y", grid, lambda i, j: store(y, (i, j), e[i, j] / total[i])),
        ]
    )

    def reference(data: np.ndarray) -> np.ndarray:
        shifted = np.exp(data - data.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)

    return Program(PrimFunc("softmax", (x, y), (top, e, total), body), (((rows, cols), "float32"),), reference)


def tiled_matmul(n: int, m: int, k: int, ti: Index, tj: Index, tk: Index) -> Program:
    """A matmul with loops split by tile sizes that need not divide the extents, with guards; sizes may be Params."""
    a, b, c = Buffer("A", (n, k)), Buffer("B", (k, m)), Buffer("C", (n, m))
    tiles = [poly(t) for t in (ti, tj, tk)]
    outer, inner = [Var(x + "_0") for x in "ijk"], [Var(x + "_1") for x in "ijk"]
    iters = tuple([Iter(Var("v" + x), poly(e), kind) for x, e, kind in zip("ijk", (n, m, k), "SSR", strict=True)])
    vi, vj, vk = [i.var for i in iters]
    bindings: tuple[Poly, ...] = tuple([poly(o) * t + poly(i) for o, t, i in zip(outer, tiles, inner, strict=True)])
    guards = tuple([p - e for p, e in zip(bindings, (n, m, k), strict=True)])
    made = Block(
        "C",
        iters,
        bindings,
        guards,
        store(c, (vi, vj), const(0, "float32")),
        store(c, (vi, vj), c[vi, vj] + a[vi, vk] * b[vk, vj]),
    )
    extents = [ceildiv(e, t) for e, t in zip((n, m, k), tiles, strict=True)]
    loops = [*zip(outer, extents, strict=True), *zip(inner, tiles, strict=True)]
    func = PrimFunc("matmul", (a, b, c), (), nest(loops, made))
    return Program(func, (((n, k), "float32"), ((k, m), "float32")), lambda x, y: x @ y)


def tile_params(limit: int = 9) -> tuple[Param, Param, Param]:
    """Three tile-size Params."""
    return Param("ti", range(1, limit)), Param("tj", range(1, limit)), Param("tk", range(1, limit))


SMALL: dict[str, Callable[[], Program]] = {
    "matmul": lambda: matmul(5, 7, 6),
    "matmul_bias_relu": lambda: matmul_bias_relu(4, 6, 5),
    "conv_relu": lambda: conv_relu(1, 6, 5, 3, 4),
    "conv_relu_strided": lambda: conv_relu(2, 7, 6, 2, 3, kernel=3, stride=2, pad=1),
    "softmax": lambda: softmax(4, 9),
    "tiled_matmul": lambda: tiled_matmul(5, 7, 6, 2, 4, 5),
}
"""One small program of each kind, by name."""
