"""Dump functions and tuning records of TVM 0.27 as fixtures: `VENV/bin/python experiments/tvm_import/dump.py tests/golden/tvm`.

It runs in an environment of its own that has TVM (README.md) and imports nothing of tunesmith.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import tvm
from tvm import relax, s_tir, te, topi
from tvm.s_tir import meta_schedule

P = te.placeholder


def product(n: int, m: int, k: int, relu: bool = False) -> Any:
    """A matrix product, with a rectifier after it if wanted."""
    a, b, r = P((n, k), name="A"), P((k, m), name="B"), te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    d = te.compute((n, m), lambda i, j: te.max(c[i, j], 0.0), name="D")
    return te.create_prim_func([a, b, d if relu else c])


def function(*shapes: Any, of: Callable[..., Any]) -> Any:
    """The function of a topi operator; a shape may have a dtype as its last item."""
    dtypes = [s[-1] if isinstance(s[-1], str) else "float32" for s in shapes]
    dims = [tuple(x for x in s if not isinstance(x, str)) for s in shapes]
    inputs = [P(s, name=f"X{n}", dtype=t) for n, (s, t) in enumerate(zip(dims, dtypes, strict=True))]
    made = of(*inputs)
    return te.create_prim_func([*inputs, *(made if isinstance(made, (list, tuple)) else [made])])


def relax_module(*shapes: Any, of: Callable[..., Any]) -> Any:
    """The legalised functions of a Relax function of one operator; sizes named by a text are dynamic."""
    sizes: dict[str, Any] = {}
    dims = [tuple(sizes.setdefault(x, tvm.tirx.Var(x, "int64")) if isinstance(x, str) else x for x in s) for s in shapes]
    inputs = [relax.Var(f"x{n}", relax.TensorType(s, "float32")) for n, s in enumerate(dims)]
    builder = relax.BlockBuilder()
    with builder.function("entry", inputs):
        with builder.dataflow():
            out = builder.emit_output(of(*inputs))
        builder.emit_func_output(out)
    found = relax.transform.LegalizeOps()(builder.get())
    ours = [f for name, f in found.functions.items() if name.name_hint != "entry"]
    assert len(ours) == 1, found
    return ours[0]


def tiled() -> Any:
    """A product in tiles, with a copy of the result, an init of its own, and marked loops."""
    s = s_tir.Schedule(product(64, 64, 64))
    block = s.get_sblock("C")
    i, j, k = s.get_loops(block)
    i0, i1 = s.split(i, [None, 8])
    j0, j1 = s.split(j, [None, 16])
    k0, k1 = s.split(k, [None, 4])
    s.reorder(i0, j0, k0, i1, k1, j1)
    s.parallel(i0)
    s.vectorize(j1)
    s.unroll(k1)
    s.reverse_compute_at(s.cache_write(block, 0, "global"), j0)
    s.annotate(i0, "pragma_auto_unroll_max_step", 16)
    s.storage_align(s.decompose_reduction(block, k0), 0, 0, 32, 8)
    return s.mod["main"]


def uneven() -> Any:
    """Tiles that do not divide the extents."""
    s = s_tir.Schedule(product(30, 50, 20))
    i, j, _ = s.get_loops(s.get_sblock("C"))
    _, i1 = s.split(i, [None, 8])
    j0, j1 = s.split(j, [None, 16])
    s.reorder(j0, i1, j1)
    s.vectorize(j1)
    return s.mod["main"]


def blockized() -> Any:
    """A product of tiles that are blocks of their own."""
    s = s_tir.Schedule(product(64, 64, 64))
    loops = [s.split(x, [None, 16]) for x in s.get_loops(s.get_sblock("C"))]
    s.reorder(*[x[0] for x in loops], *[x[1] for x in loops])
    s.blockize(loops[0][1])
    return s.mod["main"]


def lowered() -> Any:
    """The same after the passes of TVM that remove blocks and flatten buffers."""
    mod = tvm.IRModule({"main": blockized().with_attr("global_symbol", "main")})
    for name in ("LowerInitBlock", "PlanAndUpdateBufferAllocationLocation", "ConvertBlocksToOpaque", "CompactBufferAllocation"):
        mod = getattr(s_tir.transform, name)()(mod)
    return tvm.tirx.transform.FlattenBuffer()(s_tir.transform.LowerOpaqueBlock()(mod))["main"]


def staged() -> Any:
    """A convolution whose padding is computed in the loops of its consumer, with copies of the input."""
    s = s_tir.Schedule(function((1, 8, 14, 14), (16, 8, 3, 3), of=lambda x, w: topi.nn.relu(topi.nn.conv2d(x, w, 1, 1, 1))))
    block = s.get_sblock("conv2d_nchw")
    loops = s.get_loops(block)
    s.compute_at(s.get_sblock("pad_temp"), loops[2])
    s.compute_at(s.cache_read(block, 1, "global"), loops[1])
    s.reverse_compute_at(s.get_sblock("compute"), loops[1])
    return s.mod["main"]


def factored() -> Any:
    """A sum of rows in partial sums."""
    s = s_tir.Schedule(function((16, 4096), of=lambda x: topi.sum(x, axis=1)))
    block = s.get_sblock("X0_red")
    _, k = s.get_loops(block)
    _, k1 = s.split(k, [None, 16])
    s.rfactor(k1, 1)
    return s.mod["main"]


def threads() -> Any:
    """A product with tiles in shared memory, for a GPU."""
    s = s_tir.Schedule(product(32, 32, 32))
    block = s.get_sblock("C")
    i, j, k = s.get_loops(block)
    i0, i1 = s.split(i, [None, 8])
    j0, j1 = s.split(j, [None, 8])
    k0, k1 = s.split(k, [None, 8])
    s.reorder(i0, j0, i1, j1, k0, k1)
    for loop, axis in ((i0, "blockIdx.y"), (j0, "blockIdx.x"), (i1, "threadIdx.y"), (j1, "threadIdx.x")):
        s.bind(loop, axis)
    s.reverse_compute_at(s.cache_write(block, 0, "local"), j1)
    for n in (0, 1):
        copy = s.cache_read(block, n, "shared")
        s.compute_at(copy, k0)
        y, x = s.get_loops(copy)[-2:]
        s.bind(y, "threadIdx.y")
        s.bind(x, "threadIdx.x")
    return s.mod["main"]


def attention(q: Any, k: Any, v: Any) -> Any:
    """softmax(q k^T / 4) v, for a batch of heads."""
    scores = topi.nn.batch_matmul(q, k, transpose_a=False, transpose_b=True)
    return topi.nn.batch_matmul(topi.nn.softmax(topi.multiply(scores, 0.25), axis=2), v, transpose_a=False, transpose_b=False)


def newton() -> Any:
    """A loop with a condition of data in each element, let-bound values, and a function of the C library."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(64):
            with T.sblock("Y"):
                vi = T.axis.spatial(64, i)
                x: T.let[T.float32] = T.fabs(X[vi])
                Y[vi] = x * T.float32(0.5) + T.float32(0.5)
                while T.fabs(Y[vi] * Y[vi] - x) > T.float32(1e-4) * x:
                    step: T.let[T.float32] = (Y[vi] * Y[vi] - x) / (Y[vi] * T.float32(2.0))
                    Y[vi] = Y[vi] - step
                Y[vi] = Y[vi] + T.call_pure_extern("float32", "sqrtf", x)

    return main


def view() -> Any:
    """Blocks that name parts of buffers by T.match_buffer."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i, j in T.grid(4, 4):
            with T.sblock("tile"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(A[vj * 8 : vj * 8 + 8, vi * 8 : vi * 8 + 8])
                T.writes(B[vi * 8 : vi * 8 + 8, vj * 8 : vj * 8 + 8])
                a = T.match_buffer(A[vj * 8 : vj * 8 + 8, vi * 8 : vi * 8 + 8], (8, 8), strides=("s0", "s1"), offset_factor=1)
                b = T.match_buffer(B[vi * 8 : vi * 8 + 8, vj * 8 : vj * 8 + 8], (8, 8), strides=("t0", "t1"), offset_factor=1)
                for x, y in T.grid(8, 8):
                    with T.sblock("element"):
                        vx, vy = T.axis.remap("SS", [x, y])
                        b[vx, vy] = a[vy, vx] + T.float32(1.0)

    return main


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: product(24, 32, 40),
    "batch_matmul": lambda: function((2, 8, 16), (2, 24, 16), of=lambda a, b: topi.nn.batch_matmul(a, b)),
    "conv2d": lambda: function((1, 4, 9, 9), (6, 4, 3, 3), of=lambda x, w: topi.nn.conv2d(x, w, 2, 1, 1)),
    "depthwise_conv2d": lambda: function((1, 8, 9, 9), (8, 1, 3, 3), of=lambda x, w: topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)),
    "group_conv2d": lambda: function((1, 8, 9, 9), (8, 4, 3, 3), of=lambda x, w: topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, 2)),
    "avg_pool": lambda: function((1, 3, 8, 8), of=lambda x: topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "avg")),
    "softmax": lambda: relax_module((8, 20), of=lambda x: relax.op.nn.softmax(x, axis=-1)),
    "layer_norm": lambda: relax_module((8, 20), (20,), (20,), of=lambda x, w, b: relax.op.nn.layer_norm(x, w, b, axes=[-1])),
    "rms_norm": lambda: relax_module(("n", 20), (20,), of=lambda x, w: relax.op.nn.rms_norm(x, w, axes=[-1])),
    "attention": lambda: function((2, 8, 16), (2, 12, 16), (2, 12, 16), of=attention),
    "transpose": lambda: function((3, 4, 5), of=lambda x: topi.transpose(x, (2, 0, 1))),
    "take": lambda: function((8, 16), (5, "int32"), of=lambda x, i: topi.take(x, i, axis=0, mode="clip")),
    "gather": lambda: function((8, 16), (3, 16, "int64"), of=lambda x, i: topi.gather(x, 0, i)),
    "scatter_elements": lambda: function((8, 16), (3, 16, "int64"), (3, 16), of=lambda x, i, u: topi.scatter_elements(x, i, u, axis=0)),
    "cumsum": lambda: function((8, 16), of=lambda x: topi.cumsum(x, 1)),
    "searchsorted": lambda: function((8, 16), (8, 3), of=lambda x, v: topi.searchsorted(x, v, right=False)),
    "argmax": lambda: function((8, 16), of=lambda x: topi.argmax(x, 1)),
    "reduce_sum": lambda: relax_module((6, "n", 5), of=lambda x: relax.op.sum(x, axis=[1], keepdims=True)),
    "resize2d": lambda: function(
        (1, 2, 6, 6),
        of=lambda x: topi.image.resize2d(x, (0.0, 0.0, 0.0, 0.0), (12, 9), layout="NCHW", method="linear", rounding_method=""),
    ),
    "gelu": lambda: relax_module(("n", 16), of=relax.op.nn.gelu),
    "one_hot": lambda: function(
        (7, "int32"), of=lambda i: topi.one_hot(i, tvm.tirx.const(1, "float32"), tvm.tirx.const(0, "float32"), 5, -1, "float32")
    ),
    "dynamic_matmul": lambda: relax_module(("n", 16), (16, "m"), of=relax.op.matmul),
    "matmul_tiled": tiled,
    "matmul_uneven": uneven,
    "matmul_blockized": blockized,
    "matmul_lowered": lowered,
    "conv2d_staged": staged,
    "sum_factored": factored,
    "matmul_shared": threads,
    "newton": newton,
    "view": view,
}
"""A function by the name of its fixture."""

TUNED: dict[str, Callable[[], Any]] = {
    "matmul_relu": lambda: product(64, 64, 64, relu=True),
    "row_sum": lambda: function((4, 4096), of=lambda x: topi.sum(x, axis=1)),
    "conv2d_relu": lambda: function((1, 8, 14, 14), (16, 8, 3, 3), of=lambda x, w: topi.nn.relu(topi.nn.conv2d(x, w, 1, 1, 1))),
    "softmax": lambda: function((32, 64), of=lambda x: topi.nn.softmax(x, axis=1)),
}
"""A workload by the name of its database."""


def main() -> None:
    """Write `NAME.txt` for each function, and the two files of a database for each workload."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, make in FUNCTIONS.items():
        (out / f"{name}.txt").write_text(make().script().rstrip() + "\n", encoding="utf-8")
    if "--records" in sys.argv[2:]:
        target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
        for name, make in TUNED.items():
            folder = out / "records" / name
            shutil.rmtree(folder, ignore_errors=True)
            options = {"max_trials_global": 8, "num_trials_per_iter": 8, "num_tuning_cores": 2, "seed": 0}
            meta_schedule.tune_tir(make(), target, str(folder), **options)
            shutil.rmtree(folder / "logs")


if __name__ == "__main__":
    main()
