"""Read, run and build the functions that experiments/tvm_import dumped with TVM 0.27 (tests/golden/tvm)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.poly import Var
from tunesmith.ir.script.parser import parse
from tunesmith.ir.structural import difference
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.pipelines import GPU
from tunesmith.support.seeds import stream

DUMPS = Path(__file__).parents[2] / "golden" / "tvm"
SIZE = 6
"""The value of dynamic sizes."""
windows = np.lib.stride_tricks.sliding_window_view


def convolved(x: np.ndarray, w: np.ndarray, stride: int = 1, groups: int = 1) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = [
        np.einsum("nchwrs,fcrs->nfhw", windows(xs, (3, 3), (2, 3))[:, :, ::stride, ::stride], ws)
        for xs, ws in zip(np.split(padded, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, 1)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mean_pooled(x: np.ndarray) -> np.ndarray:
    return windows(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)).mean((4, 5))[:, :, ::2, ::2]


def layer_normed(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def scattered(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.put_along_axis(out, i, u, 0)
    return out


def resized(x: np.ndarray) -> np.ndarray:
    out = x
    for axis, n in ((2, 12), (3, 9)):
        at = (np.arange(n) + 0.5) * x.shape[axis] / n - 0.5
        low = np.floor(at).astype(int)
        part = (at - low).reshape([-1 if d == axis else 1 for d in range(4)])
        first, second = (np.take(out, np.clip(low + k, 0, x.shape[axis] - 1), axis) for k in (0, 1))
        out = first * (1 - part) + second * part
    return out.astype(x.dtype)


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    return (x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))).astype(x.dtype)


EXPECTED: dict[str, Callable[..., np.ndarray]] = {
    **dict.fromkeys(["matmul", "dynamic_matmul"], np.matmul),
    **dict.fromkeys(["matmul_tiled", "matmul_uneven", "matmul_blockized", "matmul_lowered", "matmul_shared"], np.matmul),
    "batch_matmul": lambda a, b: a @ b.transpose(0, 2, 1),
    "conv2d": lambda x, w: convolved(x, w, 2),
    "depthwise_conv2d": lambda x, w: convolved(x, w, 1, 8),
    "group_conv2d": lambda x, w: convolved(x, w, 1, 2),
    "conv2d_staged": lambda x, w: np.maximum(convolved(x, w), 0),
    "avg_pool": mean_pooled,
    "softmax": softmax,
    "layer_norm": layer_normed,
    "rms_norm": lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
    "attention": lambda q, k, v: softmax(q @ k.transpose(0, 2, 1) * np.float32(0.25)) @ v,
    "transpose": lambda x: x.transpose(2, 0, 1),
    "take": lambda x, i: x[i],
    "gather": lambda x, i: np.take_along_axis(x, i, 0),
    "scatter_elements": scattered,
    "cumsum": lambda x: x.cumsum(1),
    "searchsorted": lambda x, v: np.stack([np.searchsorted(r, s) for r, s in zip(x, v, strict=True)]),
    "argmax": lambda x: x.argmax(1).astype(np.int32),
    "reduce_sum": lambda x: x.sum(1, keepdims=True),
    "sum_factored": lambda x: x.sum(1),
    "resize2d": resized,
    "gelu": gelu,
    "one_hot": lambda i: np.eye(5, dtype=np.float32)[i],
    "newton": lambda x: 2 * np.sqrt(np.abs(x)),
    "view": lambda x: x.T + 1,
}


def read(name: str) -> PrimFunc:
    found = parse((DUMPS / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt")
    return found if isinstance(found, PrimFunc) else next(iter(found.values()))


def inputs(name: str, f: PrimFunc) -> tuple[list[np.ndarray], dict[Var, int]]:
    rng, buffers = stream(0, "tvm dumps", name), [p for p in f.params if isinstance(p, Buffer)]
    out: list[np.ndarray] = []
    for b in buffers[:-1]:
        shape = [SIZE if e.const is None else e.const for e in b.shape]
        if b.dtype.startswith("int"):
            most = 3 if name == "scatter_elements" else 5
            out.append(
                np.stack([rng.permutation(8)[:most] for _ in range(16)], 1)[: shape[0]].astype(b.dtype)
                if len(shape) == 2
                else rng.integers(0, 5, shape).astype(b.dtype)
            )
        else:
            out.append(rng.standard_normal(shape).astype(b.dtype))
    if name == "searchsorted":
        out[0].sort(1)
    return out, {p: SIZE for p in f.params if isinstance(p, Var)}


def test_every_dump_has_an_expectation() -> None:
    assert sorted(EXPECTED) == sorted(p.stem for p in DUMPS.glob("*.txt"))


@pytest.mark.parametrize("name", EXPECTED)
def test_dumps_of_tvm_compute_what_numpy_computes(name: str) -> None:
    f = read(name)
    verify(f)
    assert difference(parse(str(f)), f) is None
    given, sizes = inputs(name, f)
    want = EXPECTED[name](*given)
    limits: dict[str, Any] = {"rtol": 2e-3, "atol": 1e-4}
    if name == "matmul_shared":
        kernel = GPU(f, Target("cuda -arch=sm_80"))
        flat = [x.reshape(-1) for x in (*given, np.zeros_like(want))]
        np.testing.assert_allclose(run_threads(kernel, flat)[-1].reshape(want.shape), want, **limits)
        return
    np.testing.assert_allclose(run(f, given, sizes)[-1], want, **limits)
    out = np.zeros(want.shape, want.dtype)
    tunesmith.build(f)[f.name](*given, out, *sizes.values())
    np.testing.assert_allclose(out, want, **limits)
