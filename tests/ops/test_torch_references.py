"""Compare the numpy references with torch, in float64 and on odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tunesmith.ops.workload import workload

Numbers = dict[str, Any]


def _first(x: Any, layout: str) -> Any:
    return torch.movedim(x, -1, 1) if layout.endswith("C") else x


def _convolution(p: Numbers, x: Any, w: Any, *more: Any) -> Any:
    rank = len(p["layout"]) - 2
    last = p["layout"].endswith("C")
    if w.ndim == rank + 1:
        w = w.unsqueeze(rank if last else 1)
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    weights = torch.movedim(w, (-1, -2), (0, 1)) if last else w
    rest = list(more)
    out = function(_first(x, p["layout"]), weights, rest.pop(0) if p["bias"] else None, p["stride"], p["pad"], p["dilation"], p["groups"])
    if p["residual"]:
        out = out + _first(rest[0], p["layout"])
    return _back(F.relu(out) if p["relu"] else out, p["layout"])


def _back(x: Any, layout: str) -> Any:
    return torch.movedim(x, 1, -1) if layout.endswith("C") else x


def _transposed(p: Numbers, x: Any, w: Any, *more: Any) -> Any:
    rank = len(p["layout"]) - 2
    function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    weights = torch.movedim(w, (-1, -2), (0, 1)) if p["layout"].endswith("C") else w
    bias = more[0] if p["bias"] else None
    out = function(_first(x, p["layout"]), weights, bias, p["stride"], p["pad"], p["output_pad"], p["groups"], p["dilation"])
    return _back(F.relu(out) if p["relu"] else out, p["layout"])


def _capsule(p: Numbers, x: Any, w: Any) -> Any:
    """Each column j of the capsules of the result is a three-dimensional convolution of rows of X with columns of W."""
    n, h, width, size, _, ci = x.shape
    image = x.permute(0, 3, 5, 1, 2, 4).reshape(n * size, ci, h, width, size)
    filters = w.permute(3, 5, 4, 0, 1, 2)
    columns = [F.conv3d(image, f, stride=(p["stride"], p["stride"], 1), padding=(p["pad"], p["pad"], 0)) for f in filters]
    out = torch.stack(columns, -1)[:, :, :, :, 0]
    return out.reshape(n, size, *out.shape[1:]).permute(0, 3, 4, 1, 5, 2)


def _pool(name: str) -> Callable[..., Any]:
    def pool(p: Numbers, x: Any) -> Any:
        rank = len(p["layout"]) - 2
        kernel = [p[f"k{c}"] for c in "dhw"[-rank:]]
        more = {"count_include_pad": bool(p["count_include_pad"])} if name == "avg" else {}
        function = getattr(F, f"{name}_pool{rank}d")
        return _back(function(_first(x, p["layout"]), kernel, p["stride"], p["pad"], **more), p["layout"])

    return pool


def _group_norm(p: Numbers, x: Any, gamma: Any, beta: Any) -> Any:
    return _back(F.group_norm(_first(x, p["layout"]), p["groups"], gamma, beta, p["eps"]), p["layout"])


def _instance_norm(p: Numbers, x: Any, gamma: Any, beta: Any) -> Any:
    return _back(F.instance_norm(_first(x, p["layout"]), weight=gamma, bias=beta, eps=p["eps"]), p["layout"])


def _resize(p: Numbers, x: Any) -> Any:
    if p["mode"] == "nearest":
        return F.interpolate(x, (p["oh"], p["ow"]), mode="nearest")
    return F.interpolate(x, (p["oh"], p["ow"]), mode="bilinear", align_corners=p["coordinates"] == "align_corners")


def _lstm_cell(p: Numbers, x: Any, hidden: Any, cell: Any, w: Any, r: Any, bias: Any) -> Any:
    return torch._VF.lstm_cell(x, (hidden, cell), w.t().contiguous(), r.t().contiguous(), bias, torch.zeros_like(bias))


TORCH: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _convolution),
    **dict.fromkeys(["conv1d_transpose", "conv2d_transpose", "conv3d_transpose"], _transposed),
    "capsule_conv2d": _capsule,
    "matrix_norm": lambda p, x: torch.linalg.matrix_norm(x),
    **{f"{kind}_pool{rank}d": _pool(kind) for kind in ("max", "avg") for rank in (1, 2, 3)},
    "argmax": lambda p, x: torch.argmax(x, p["axis"]),
    "argmin": lambda p, x: torch.argmin(x, p["axis"]),
    "argsort": lambda p, x: torch.sort(x, dim=p["axis"], descending=bool(p["descending"]), stable=True).indices,
    "topk": lambda p, x: torch.topk(x, p["k"], p["axis"]).indices,
    "prod": lambda p, x: torch.prod(x, p["axis"][0]),
    **{f: lambda p, x, f=f: getattr(torch, f)(x, p["axis"]) for f in ("cumsum", "cumprod", "logcumsumexp")},
    **{f: lambda p, x, f=f: getattr(torch, f)(x, p["axis"]).values for f in ("cummax", "cummin")},
    "variance": lambda p, x: torch.var(x, p["axis"] or None, correction=p["correction"]),
    "softmax": lambda p, x: torch.softmax(x, p["axis"]),
    "log_softmax": lambda p, x: torch.log_softmax(x, p["axis"]),
    "rms_norm": lambda p, x, gamma: F.rms_norm(x, (p["n"],), gamma, p["eps"]),
    "layer_norm": lambda p, x, gamma, beta: F.layer_norm(x, (p["n"],), gamma, beta, p["eps"]),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "attention": lambda p, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=bool(p["causal"])),
    "lstm_cell": _lstm_cell,
    "gather": lambda p, x, i: x[i],
    "embedding": lambda p, i, w: F.embedding(i, w),
    "resize2d": _resize,
}


@pytest.mark.parametrize(
    "text",
    [
        "conv1d(n=2,w=9,ci=4,co=4,kw=3,pad=1,dilation=2,groups=4,layout=NCW,bias=1,relu=1)",
        "conv1d(n=2,w=9,ci=4,co=6,kw=3,stride=2,pad=1)",
        "conv2d(n=2,h=7,w=6,ci=4,co=6,kh=3,kw=2,stride=3,pad=1,groups=2,bias=1,relu=1,residual=1)",
        "conv3d(n=1,d=4,h=5,w=3,ci=2,co=4,kd=3,kh=2,kw=1,stride=2,pad=1,groups=2,layout=NCDHW,residual=1)",
        "conv3d(n=1,d=4,h=5,w=3,ci=2,co=3,kd=3,kh=2,kw=1,bias=1)",
        "conv1d_transpose(n=2,w=4,ci=4,co=6,kw=3,stride=3,output_pad=2,groups=2,layout=NCW,bias=1)",
        "conv2d_transpose(n=2,h=3,w=4,ci=4,co=6,kh=4,kw=4,stride=2,pad=1)",
        "conv3d_transpose(n=1,d=2,h=2,w=3,ci=2,co=3,kd=2,kh=3,kw=1,stride=2,dilation=2,relu=1)",
        "capsule_conv2d(n=2,h=5,w=6,ci=3,co=2,kh=3,kw=2,stride=2,pad=1,size=3)",
        "matrix_norm(b=2,m=3,n=5)",
        "max_pool1d(n=2,w=9,c=3,kw=3,stride=2,pad=1)",
        "max_pool2d(n=2,h=7,w=6,c=3,kh=3,kw=2,stride=2,pad=1,layout=NCHW)",
        "max_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2)",
        "avg_pool1d(n=1,w=5,c=1,kw=5)",
        "avg_pool2d(n=2,h=7,w=6,c=3,kh=3,kw=2,stride=2,pad=1)",
        "avg_pool2d(n=2,h=7,w=6,c=3,kh=3,kw=2,stride=2,pad=1,count_include_pad=1)",
        "avg_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2,pad=1,layout=NCDHW)",
        "argmax(shape=3x4x5,axis=1)",
        "argmin(shape=7)",
        *[f"{f}(shape=3x4x5,axis=1)" for f in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")],
        *[f"argsort(shape=3x9x5,axis=1{more})" for more in ("", ",descending=1")],
        "topk(shape=3x9,k=4)",
        "prod(shape=3x4,axis=0)",
        "variance(shape=3x4x5,axis=0+2)",
        "variance(shape=7,correction=1)",
        "softmax(m=3,n=5,axis=0)",
        "log_softmax(m=3,n=5)",
        "rms_norm(m=3,n=7,eps=0.5)",
        "layer_norm(m=3,n=7)",
        "group_norm(shape=2x3x2x6,groups=3)",
        "group_norm(shape=2x6x3,groups=2,layout=NCHW)",
        "instance_norm(shape=2x3x2x6)",
        "attention(b=2,m=5,n=4,d=3)",
        "attention(b=2,m=5,n=7,d=3,causal=1)",
        "lstm_cell(m=3,n=4,k=5)",
        "gather(m=7,n=3,rows=5)",
        "embedding(tokens=4,vocabulary=9,width=3)",
        "resize2d(n=2,h=5,w=4,c=3,oh=7,ow=3,coordinates=asymmetric)",
        "resize2d(n=2,h=5,w=4,c=3,oh=7,ow=3,mode=linear)",
        "resize2d(n=2,h=5,w=4,c=3,oh=7,ow=3,mode=linear,coordinates=align_corners)",
    ],
)
def test_the_reference_agrees_with_torch(text: str) -> None:
    case = workload(f"{text[:-1]},dtype=float64)")
    inputs = case.random_inputs(2)
    found = TORCH[case.name](dict(case.params), *map(torch.from_numpy, inputs))
    for got, want in zip(found if isinstance(found, tuple) else [found], case.reference(inputs), strict=True):
        np.testing.assert_allclose(want, got.numpy(), rtol=1e-10, atol=1e-12)


def test_the_first_of_equal_elements_and_nan() -> None:
    data = np.array([[3, 1, 3, 1], [np.nan, 5, np.nan, -1]], np.float32)
    assert workload("argmax(shape=2x4)").reference([data])[0].tolist() == [0, 0]
    assert workload("argmin(shape=2x4)").reference([data])[0].tolist() == [1, 0]
