"""Test every operator: the interpreted program equals the numpy reference, and its stages have the names that schedules expect."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.ir.expr import Binary
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Param
from tunesmith.ir.stmt import BufferStore, For
from tunesmith.ir.structural import equal
from tunesmith.ir.visit import blocks_under, path_to_block
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.attention import attention
from tunesmith.ops.binary import binary
from tunesmith.ops.capsule_convolution import capsule_convolution
from tunesmith.ops.convolution import convolution, convolved
from tunesmith.ops.epilogue import bias_add
from tunesmith.ops.gather import take
from tunesmith.ops.group_norm import group_norm, instance_norm
from tunesmith.ops.layer_norm import layer_norm, rms_norm
from tunesmith.ops.lstm_cell import lstm_cell
from tunesmith.ops.matmul import matmul, matmul_reference
from tunesmith.ops.matrix_norm import matrix_norm
from tunesmith.ops.operator import OPERATORS
from tunesmith.ops.pooling import avg_pool, max_pool
from tunesmith.ops.reduction import reduce, reduce_reference, reduced
from tunesmith.ops.resize import resize
from tunesmith.ops.softmax import log_softmax, softmax, softmax_reference
from tunesmith.ops.transposed_convolution import transposed_convolution
from tunesmith.ops.unary import UNARY, unary
from tunesmith.ops.workload import workload
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

CONV = "n=2,h=7,w=6,ci=4,co=6,kh=3,kw=2"
CASES = [
    "matmul(m=3,n=5,k=7)",
    "matmul(m=1,n=1,k=1)",
    "matmul(m=3,n=5,k=7,ta=1)",
    "matmul(m=3,n=5,k=7,tb=1)",
    "matmul(m=3,n=5,k=7,ta=1,tb=1,dtype=float64)",
    "matmul(m=2,n=3,k=4,dtype=float16)",
    "matmul(m=3,n=4,k=7,dtype=bfloat16)",
    "matmul(m=3,n=4,k=7,ta=1,dtype=bfloat16,out_dtype=float32)",
    "matmul(m=3,n=4,k=7,dtype=uint8)",
    "batch_matmul(b=2,m=3,n=5,k=4,tb=1,dtype=uint8,rhs_dtype=int8)",
    "dense(m=3,n=5,k=4,activation=gelu,dtype=bfloat16)",
    "dense(m=3,n=5,k=4,activation=relu,dtype=int8)",
    "dense(m=3,n=5,k=4,rhs_dtype=int8)",
    "matmul(m=3,n=4,k=5,dtype=bfloat16,rhs_dtype=uint8)",
    f"conv2d({CONV},pad=1,bias=1,residual=1,relu=1,dtype=uint8,rhs_dtype=int8)",
    f"conv2d({CONV},pad=1,bias=1,groups=2,layout=NCHW,dtype=float16)",
    f"conv2d({CONV},pad=1,relu=1,dtype=bfloat16)",
    "batch_matmul(b=2,m=3,n=5,k=4)",
    "batch_matmul(b=3,m=3,n=2,k=5,ta=1,tb=1)",
    "dense(m=3,n=5,k=7)",
    "dense(m=3,n=5,k=7,bias=0)",
    "dense(m=1,n=5,k=3,bias=0,activation=tanh)",
    *[f"dense(m=3,n=5,k=2,activation={a})" for a in ("relu", "gelu", "tanh", "sigmoid")],
    *[
        f"conv2d({CONV},{more}layout={layout})"
        for layout in ("NHWC", "NCHW")
        for more in ("", "pad=1,stride=2,", "pad=2,dilation=2,", "groups=2,pad=1,", "bias=1,relu=1,residual=1,pad=1,stride=3,groups=2,")
    ],
    "conv2d(n=1,h=5,w=5,ci=3,co=4,kh=1,kw=1,relu=1)",
    "conv2d(n=1,h=1,w=1,ci=1,co=1,kh=1,kw=1)",
    "conv2d(n=1,h=6,w=5,ci=3,co=3,kh=3,kw=3,groups=3,pad=1)",
    "conv2d(n=2,h=6,w=5,ci=3,co=3,kh=3,kw=2,groups=3,stride=2,pad=1,dilation=2,layout=NCHW,bias=1)",
    "conv2d(n=1,h=5,w=4,ci=3,co=6,kh=2,kw=3,groups=3)",
    "conv2d(n=1,h=6,w=5,ci=2,co=3,kh=3,kw=3,pad=1,dtype=float64)",
    *[f"{f}(shape=3x5)" for f in UNARY],
    "gelu(shape=2x3x1x2x2,dtype=float64)",
    "relu(shape=7)",
    *[f"{f}(shape=3x5)" for f in ("add", "sub", "mul", "div", "maximum", "minimum")],
    "add(shape=3x5,other=5)",
    "div(shape=2x3x5,other=3x1)",
    "sub(shape=2x1x5,other=2x1x1)",
    "mul(shape=4,other=1)",
    *[f"{f}(shape=3x4x5,axis={axis})" for f in ("sum", "mean", "max", "min") for axis in ("0", "1", "2", "0+2", "all")],
    "sum(shape=9)",
    "mean(shape=2x3x1x2x2,axis=1+3+4)",
    "softmax(m=3,n=7)",
    "softmax(m=1,n=1,dtype=float64)",
    "layer_norm(m=3,n=7)",
    "layer_norm(m=2,n=5,eps=0.5,dtype=float64)",
    "conv1d(n=2,w=9,ci=4,co=6,kw=3,stride=2,pad=1)",
    "conv1d(n=2,w=9,ci=4,co=4,kw=3,pad=1,dilation=2,groups=4,layout=NCW,bias=1,relu=1)",
    "conv3d(n=1,d=4,h=5,w=3,ci=2,co=4,kd=3,kh=2,kw=1,stride=2,pad=1,groups=2,layout=NCDHW,residual=1)",
    "conv3d(n=1,d=4,h=5,w=3,ci=2,co=3,kd=3,kh=2,kw=1,dtype=float64)",
    "conv1d_transpose(n=2,w=4,ci=4,co=6,kw=3,stride=3,output_pad=2,groups=2,layout=NCW,bias=1)",
    "conv1d_transpose(n=1,w=1,ci=1,co=1,kw=1)",
    "conv2d_transpose(n=2,h=3,w=4,ci=4,co=6,kh=4,kw=4,stride=2,pad=1)",
    "conv2d_transpose(n=1,h=3,w=4,ci=4,co=6,kh=3,kw=2,stride=2,pad=1,output_pad=1,groups=2,layout=NCHW,bias=1,relu=1)",
    "conv3d_transpose(n=1,d=2,h=2,w=3,ci=2,co=3,kd=2,kh=3,kw=1,stride=2,dilation=2,relu=1)",
    "capsule_conv2d(n=2,h=5,w=6,ci=3,co=2,kh=3,kw=2,stride=2,pad=1,size=3)",
    "capsule_conv2d(n=1,h=4,w=3,ci=1,co=2,kh=1,kw=2,size=1)",
    "matrix_norm(b=2,m=3,n=5)",
    "max_pool1d(n=2,w=9,c=3,kw=3,stride=2,pad=1)",
    "max_pool2d(n=2,h=7,w=6,c=3,kh=3,kw=2,stride=2,pad=1,layout=NCHW)",
    "max_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2)",
    "avg_pool1d(n=1,w=5,c=1,kw=5)",
    *[f"avg_pool2d(n=2,h=7,w=6,c=3,kh=3,kw=2,stride=2,pad=1{more})" for more in ("", ",count_include_pad=1", ",layout=NCHW")],
    "avg_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2,pad=1,layout=NCDHW)",
    *[f"{f}(shape=3x4x5,axis={axis})" for f in ("argmax", "argmin") for axis in (0, 1, -1)],
    "argmax(shape=7)",
    *[f"{f}(shape=3x4x5,axis={axis})" for f in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp") for axis in (0, 1, -1)],
    "cumsum(shape=7)",
    *[f"argsort(shape={shape}{more})" for shape in ("3x4x5,axis=1", "2x130x2,axis=1", "193") for more in ("", ",descending=1")],
    "argsort(shape=1)",
    "topk(shape=3x7,k=2)",
    "topk(shape=2x260,k=70)",
    "topk(shape=300x2,k=1,axis=0,dtype=float64)",
    "logcumsumexp(shape=1x9,dtype=float64)",
    "argmin(shape=1x1)",
    "prod(shape=3x4,axis=0)",
    "variance(shape=3x4x5,axis=0+2)",
    "variance(shape=7,correction=1)",
    *[f"{f}(m=3,n=5{axis})" for f in ("softmax", "log_softmax") for axis in (",axis=0", "")],
    "rms_norm(m=3,n=7,eps=0.5)",
    "group_norm(shape=2x3x2x6,groups=3)",
    "group_norm(shape=2x6x3,groups=2,layout=NCHW)",
    "instance_norm(shape=2x3x2x6)",
    "instance_norm(shape=2x3x4,layout=NCHW,dtype=float64)",
    "attention(b=2,m=5,n=4,d=3)",
    "attention(b=2,m=5,n=7,d=3,causal=1)",
    "attention(b=1,m=3,n=1,d=1,causal=1,dtype=float64)",
    "lstm_cell(m=3,n=4,k=5)",
    "gather(m=7,n=3,rows=5)",
    "embedding(tokens=4,vocabulary=9,width=3)",
    *[
        f"resize2d(n=2,h=5,w=4,c=3,oh=7,ow=3,mode={mode},coordinates={coordinates})"
        for mode in ("nearest", "linear")
        for coordinates in ("half_pixel", "asymmetric", "align_corners")
    ],
    "resize2d(n=1,h=2,w=1,c=1,oh=1,ow=3,mode=linear,coordinates=align_corners)",
]
TOLERANCE = {"float16": 5e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12, "int32": 0.0, "int64": 0.0}


@pytest.mark.parametrize("text", CASES)
def test_the_program_computes_what_numpy_computes(text: str) -> None:
    case = workload(text)
    inputs = case.random_inputs(1)
    results = run(case.func, inputs)[len(inputs) :]
    expected = case.reference(inputs)
    assert len(results) == len(expected) == len(case.outputs) == (2 if case.name == "lstm_cell" else 1)
    for result, want, spec in zip(results, expected, case.outputs, strict=True):
        assert want.shape == spec.shape == result.shape and want.dtype == dt.to_numpy(spec.dtype) and want.flags.c_contiguous
        assert np.isfinite(want).all()
        np.testing.assert_allclose(result, want, rtol=TOLERANCE[spec.dtype], atol=TOLERANCE[spec.dtype] / 10)


@pytest.mark.parametrize("text", CASES)
def test_the_text_parses_back(text: str) -> None:
    case = workload(text)
    again = workload(case.text)
    assert (again.text, again.params) == (case.text, case.params) and equal(again.func, case.func)


def test_every_operator_has_a_case() -> None:
    assert {text.partition("(")[0] for text in CASES} == set(OPERATORS.names())
    assert [OPERATORS.get(name).name for name in OPERATORS.names()] == OPERATORS.names()


def stages(text: str) -> dict[str, list[str]]:
    """Blocks in program order, with their loops."""
    func = workload(text).func
    return {b.name: [s.var.name for s in path_to_block(func.body, b.name) or [] if isinstance(s, For)] for b in blocks_under(func.body)}


IJ = ["i", "j"]
NHWC, NCHW = ["n", "h", "w", "c"], ["n", "c", "h", "w"]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("matmul(m=3,n=5,k=7)", {"C": ["i", "j", "k"]}),
        ("batch_matmul(b=2,m=3,n=5,k=7)", {"C": ["b", "i", "j", "k"]}),
        ("dense(m=3,n=5,k=7)", {"C": ["i", "j", "k"], "bias": IJ}),
        ("matmul(m=3,n=5,k=7,dtype=float16)", {"C": ["i", "j", "k"], "cast": IJ}),
        ("matmul(m=3,n=5,k=7,dtype=float16,out_dtype=float32)", {"C": ["i", "j", "k"]}),
        ("dense(m=3,n=5,k=7,dtype=bfloat16,activation=relu)", {"C": ["i", "j", "k"], "bias": IJ, "relu": IJ, "cast": IJ}),
        ("dense(m=3,n=5,k=7,bias=0,activation=relu)", {"C": ["i", "j", "k"], "relu": IJ}),
        ("dense(m=3,n=5,k=7,activation=gelu)", {"C": ["i", "j", "k"], "bias": IJ, "gelu": IJ}),
        (f"conv2d({CONV})", {"C": [*NHWC, "rh", "rw", "rc"]}),
        (f"conv2d({CONV},layout=NCHW)", {"C": [*NCHW, "rc", "rh", "rw"]}),
        (
            f"conv2d({CONV},pad=1,bias=1,relu=1,residual=1)",
            {"Pad": NHWC, "C": [*NHWC, "rh", "rw", "rc"], "bias": NHWC, "residual": NHWC, "relu": NHWC},
        ),
        ("conv2d(n=1,h=5,w=5,ci=3,co=3,kh=3,kw=3,groups=3,pad=1)", {"Pad": NHWC, "C": [*NHWC, "rh", "rw"]}),
        ("conv2d(n=1,h=5,w=5,ci=3,co=3,kh=3,kw=3,groups=3,layout=NCHW)", {"C": [*NCHW, "rh", "rw"]}),
        ("conv2d(n=1,h=5,w=5,ci=3,co=6,kh=3,kw=3,groups=3)", {"C": [*NHWC, "rh", "rw", "rc"]}),
        ("gelu(shape=3x5)", {"Y": IJ}),
        ("add(shape=3x5,other=5)", {"Y": IJ}),
        ("sum(shape=3x5x7,axis=0+2)", {"Y": ["j", "i", "k"]}),
        ("max(shape=3x5)", {"Y": IJ}),
        ("mean(shape=3x5,axis=1)", {"S": IJ, "Y": ["i"]}),
        ("softmax(m=3,n=5)", {"M": IJ, "E": IJ, "S": IJ, "Y": IJ}),
        ("layer_norm(m=3,n=5)", {"S": IJ, "M": ["i"], "V": IJ, "R": ["i"], "Y": IJ}),
        ("conv1d(n=1,w=9,ci=4,co=6,kw=3,pad=1)", {"Pad": ["n", "w", "c"], "C": ["n", "w", "c", "rw", "rc"]}),
        ("conv3d(n=1,d=3,h=3,w=3,ci=4,co=6,kd=3,kh=3,kw=3)", {"C": ["n", "d", "h", "w", "c", "rd", "rh", "rw", "rc"]}),
        ("conv2d_transpose(n=1,h=3,w=4,ci=4,co=6,kh=4,kw=4,bias=1)", {"C": [*NHWC, "rh", "rw", "rc"], "bias": NHWC}),
        ("capsule_conv2d(n=1,h=3,w=3,ci=2,co=2,kh=3,kw=3)", {"C": ["n", "h", "w", "i", "j", "c", "rh", "rw", "k", "rc"]}),
        ("matrix_norm(b=2,m=3,n=4)", {"S": ["i", "j", "k"], "Y": ["i"]}),
        ("max_pool2d(n=1,h=4,w=4,c=2,kh=2,kw=2,stride=2)", {"max_pool2d": [*NHWC, "rh", "rw"]}),
        ("avg_pool1d(n=1,w=4,c=2,kw=2)", {"S": ["n", "w", "c", "rw"], "avg_pool1d": ["n", "w", "c"]}),
        ("argmax(shape=3x5)", {"M": IJ, "Y": IJ}),
        ("cumsum(shape=3x5)", {"cumsum": IJ}),
        ("argsort(shape=3x5)", {"R": [*IJ, "r"], "Y_initial": IJ, "Y": IJ}),
        ("log_softmax(m=3,n=5)", {"M": IJ, "E": IJ, "S": IJ, "L": ["i"], "Y": IJ}),
        ("variance(shape=3x5,axis=1)", {"S": IJ, "M": ["i"], "V": IJ, "Y": ["i"]}),
        ("rms_norm(m=3,n=5)", {"S": IJ, "R": ["i"], "Y": IJ}),
        (
            "attention(b=2,m=3,n=5,d=4)",
            {"P": ["b", *IJ, "k"], "T": ["b", *IJ], "M": ["i", "j", "k"], "E": ["i", "j", "k"], "S": ["i", "j", "k"]}
            | {"Y": ["i", "j", "k"], "C": ["b", *IJ, "k"]},
        ),
        (
            "lstm_cell(m=3,n=4,k=5)",
            {"G": ["i", "j", "k"], "G_1": ["i", "j", "k"], "A": IJ, "cell_new": IJ, "hidden_new": IJ},
        ),
    ],
)
def test_blocks_and_loops(text: str, blocks: dict[str, list[str]]) -> None:
    assert stages(text) == blocks
    assert list(stages(text)) == list(blocks)


@pytest.mark.parametrize(
    ("text", "inputs", "output", "constants"),
    [
        ("matmul(m=3,n=5,k=7,ta=1)", {"A": (7, 3), "B": (7, 5)}, ("C", (3, 5)), ()),
        ("dense(m=3,n=5,k=7,activation=relu)", {"A": (3, 7), "W": (7, 5), "bias": (5,)}, ("relu", (3, 5)), ("W", "bias")),
        (f"conv2d({CONV},groups=2)", {"X": (2, 7, 6, 4), "W": (3, 2, 2, 6)}, ("C", (2, 5, 5, 6)), ("W",)),
        (
            f"conv2d({CONV},groups=2,layout=NCHW,bias=1,residual=1,stride=2)",
            {"X": (2, 4, 7, 6), "W": (6, 2, 3, 2), "bias": (6,), "residual": (2, 6, 3, 3)},
            ("residual_1", (2, 6, 3, 3)),
            ("W", "bias"),
        ),
        ("conv2d(n=1,h=5,w=5,ci=3,co=3,kh=3,kw=2,groups=3)", {"X": (1, 5, 5, 3), "W": (3, 2, 3)}, ("C", (1, 3, 4, 3)), ("W",)),
        (
            "conv2d(n=1,h=5,w=5,ci=3,co=3,kh=3,kw=2,groups=3,layout=NCHW)",
            {"X": (1, 3, 5, 5), "W": (3, 3, 2)},
            ("C", (1, 3, 3, 4)),
            ("W",),
        ),
        ("div(shape=3x5,other=5)", {"A": (3, 5), "B": (5,)}, ("Y", (3, 5)), ()),
        ("sum(shape=3x5)", {"X": (3, 5)}, ("Y", ()), ()),
        ("layer_norm(m=3,n=5)", {"X": (3, 5), "gamma": (5,), "beta": (5,)}, ("Y", (3, 5)), ("gamma", "beta")),
    ],
)
def test_inputs_outputs_and_constants(
    text: str, inputs: dict[str, tuple[int, ...]], output: tuple[str, tuple[int, ...]], constants: tuple[str, ...]
) -> None:
    case = workload(text)
    assert {s.name: s.shape for s in case.inputs} == inputs
    assert [(s.name, s.shape) for s in case.outputs] == [output]
    assert case.func.constants == constants
    assert [b.name for b in case.func.params] == [*inputs, output[0]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "flops", "nbytes"),
    [
        ("matmul(m=3,n=5,k=7)", 210, 4 * (21 + 35 + 15)),
        ("batch_matmul(b=2,m=3,n=5,k=7,dtype=float64)", 420, 16 * (21 + 35 + 15)),
        ("dense(m=128,n=3072,k=768,activation=gelu)", 603979776, 4 * (128 * 768 + 768 * 3072 + 3072 + 128 * 3072)),
        ("conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1,bias=1,relu=1)", 231211008, 4 * (2 * 56 * 56 * 64 + 9 * 64 * 64 + 64)),
        ("conv2d(n=1,h=112,w=112,ci=32,co=32,kh=3,kw=3,pad=1,groups=32)", 2 * 112 * 112 * 32 * 9, 4 * (2 * 112 * 112 * 32 + 9 * 32)),
        ("relu(shape=3x5)", 15, 120),
        ("sum(shape=4x5,axis=1)", 20, 96),
        ("softmax(m=2,n=3)", 30, 48),
        ("log_softmax(m=2,n=3,axis=0)", 30, 48),
        ("conv1d(n=2,w=9,ci=4,co=6,kw=3,stride=2,pad=1)", 2 * 2 * 5 * 6 * 3 * 4, 4 * (2 * 9 * 4 + 3 * 4 * 6 + 2 * 5 * 6)),
        ("conv3d(n=1,d=4,h=5,w=3,ci=2,co=4,kd=3,kh=2,kw=1,groups=2)", 2 * 2 * 4 * 3 * 4 * 6, 4 * (120 + 24 + 96)),
        ("conv2d_transpose(n=2,h=3,w=4,ci=4,co=6,kh=4,kw=4,stride=2,pad=1)", 2 * 24 * 16 * 24, 4 * (96 + 384 + 576)),
        ("conv1d_transpose(n=1,w=4,ci=4,co=6,kw=3,groups=2,bias=1)", 2 * 4 * 3 * 6 * 2, 4 * (16 + 36 + 6 + 36)),
        ("conv3d_transpose(n=1,d=1,h=1,w=1,ci=1,co=1,kd=2,kh=2,kw=2)", 16, 4 * (1 + 8 + 8)),
        ("capsule_conv2d(n=1,h=4,w=4,ci=2,co=3,kh=3,kw=3,pad=1,size=4)", 2 * 16 * 9 * 64 * 6, 4 * (512 + 864 + 768)),
        ("matrix_norm(b=2,m=3,n=5)", 60, 128),
        ("max_pool1d(n=2,w=9,c=3,kw=3,stride=2,pad=1)", 90, 4 * (54 + 30)),
        ("max_pool2d(n=1,h=4,w=4,c=3,kh=2,kw=2)", 108, 4 * (48 + 27)),
        ("max_pool3d(n=1,d=2,h=2,w=2,c=3,kd=2,kh=2,kw=2)", 24, 4 * (24 + 3)),
        ("avg_pool1d(n=1,w=5,c=1,kw=5)", 5, 24),
        ("avg_pool2d(n=1,h=4,w=4,c=3,kh=2,kw=2,stride=2)", 48, 4 * (48 + 12)),
        ("avg_pool3d(n=1,d=2,h=2,w=2,c=3,kd=1,kh=2,kw=2)", 24, 4 * (24 + 6)),
        ("argmax(shape=3x5)", 30, 60 + 24),
        ("argmin(shape=5)", 10, 28),
        ("cumsum(shape=3x5)", 15, 120),
        ("argsort(shape=3x5)", 45, 60 + 120),
        ("topk(shape=3x5,k=2)", 15, 60 + 48),
        ("logcumsumexp(shape=5)", 30, 40),
        ("prod(shape=4x5)", 20, 84),
        ("variance(shape=4x5,axis=1)", 80, 96),
        ("rms_norm(m=2,n=3)", 24, 4 * 15),
        ("layer_norm(m=2,n=3)", 48, 4 * 18),
        ("group_norm(shape=1x2x4,groups=2)", 64, 4 * 24),
        ("instance_norm(shape=1x2x4)", 64, 4 * 24),
        ("attention(b=2,m=5,n=4,d=3,causal=1)", 4 * 2 * 5 * 4 * 3, 4 * 2 * 3 * (5 + 4 + 4 + 5)),
        ("lstm_cell(m=3,n=4,k=5)", 2 * 3 * 16 * 9, 4 * (15 + 12 + 12 + 80 + 64 + 16 + 24)),
        ("gather(m=7,n=3,rows=5)", 0, 4 * (21 + 15) + 40),
        ("embedding(tokens=5,vocabulary=7,width=3)", 0, 4 * (21 + 15) + 40),
        ("resize2d(n=1,h=2,w=2,c=3,oh=4,ow=4,mode=linear)", 9 * 48, 4 * (12 + 48)),
        ("resize2d(n=1,h=2,w=2,c=3,oh=4,ow=4)", 0, 4 * (12 + 48)),
    ],
)
def test_flops_and_bytes(text: str, flops: int, nbytes: int) -> None:
    case = workload(text)
    assert (case.flops, case.nbytes) == (flops, nbytes)
    assert case.operator.flops(**case.params) == flops


def test_references_accumulate_in_float64() -> None:
    """In float32 the small terms would be lost next to the large one."""
    row = np.full((1, 1025), 2.0**-24, np.float32)
    row[0, 0] = 1.0
    want = np.float32(1.0 + 1024 * 2.0**-24)
    assert workload("sum(shape=1x1025)").reference([row])[0] == want
    ones = np.ones((1025, 1), np.float32)
    assert workload("matmul(m=1,n=1,k=1025)").reference([row, ones])[0] == want
    image, filters = row.reshape(1, 1, 1, 1025), ones.reshape(1, 1, 1025, 1)
    assert workload("conv2d(n=1,h=1,w=1,ci=1025,co=1,kh=1,kw=1)").reference([image, filters])[0] == want


def test_softmax_does_not_overflow() -> None:
    case = workload("softmax(m=1,n=3)")
    data = np.array([[1000.0, 999.0, -1000.0]], np.float32)
    result = run(case.func, [data])[1]
    np.testing.assert_allclose(result, case.reference([data])[0], rtol=1e-6)


def test_padding_reads_x_only_in_range() -> None:
    func = workload("conv2d(n=1,h=2,w=3,ci=1,co=1,kh=2,kw=2,pad=1)").func
    pad = next(b for b in func.allocs if b.name == "Pad")
    assert pad.shape == (1, 4, 5, 1)
    padded = func.with_(params=(*func.params, pad), allocs=tuple([b for b in func.allocs if b is not pad]))
    image = np.arange(1, 7, dtype=np.float32).reshape(1, 2, 3, 1)
    found = run(padded, {"X": image, "W": np.ones((2, 2, 1, 1), np.float32)})[-1]
    np.testing.assert_array_equal(found[0, :, :, 0], np.pad(image[0, :, :, 0], 1))


def test_operators_take_symbolic_sizes() -> None:
    m, n = Param("m", range(1, 9)), Param("n", range(1, 9))
    x, w, b = te.placeholder((m, 4), name="X"), te.placeholder((4, n), name="W"), te.placeholder((n,), name="b")
    y = softmax(bias_add(matmul(x, w), b))
    gamma, beta = te.placeholder((n,), name="gamma"), te.placeholder((n,), name="beta")
    func = te.create_prim_func([x, w, b, gamma, beta, layer_norm(y, gamma, beta)], "head")
    arrays = workload("dense(m=3,n=5,k=4)").random_inputs()
    scale = [np.full(5, 2.0, np.float32), np.ones(5, np.float32)]
    result = run(func, [*arrays, *scale], {m: 3, n: 5})[-1]
    product = workload("dense(m=3,n=5,k=4)").reference(arrays)
    want = workload("layer_norm(m=3,n=5)").reference([*workload("softmax(m=3,n=5)").reference(product), *scale])[0]
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)


def test_the_accumulated_value_is_the_first_operand_everywhere() -> None:
    for text in ("matmul(m=2,n=2,k=2)", "softmax(m=2,n=2)", "layer_norm(m=2,n=2)", "min(shape=2x2)", f"conv2d({CONV})"):
        for b in blocks_under(workload(text).func.body):
            if b.init is not None:
                assert isinstance(b.body, BufferStore) and isinstance(b.body.value, Binary)
                assert b.body.value.a.buffer is b.body.buffer  # type: ignore[attr-defined]


A23, A34, V3 = te.placeholder((2, 3), name="A"), te.placeholder((3, 4), name="B"), te.placeholder((3,), name="v")
CUBE = te.placeholder((2, 3, 4), name="Q")
IMAGE, FILTER = te.placeholder((1, 5, 5, 4), name="X"), te.placeholder((3, 3, 4, 6), name="W")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matmul(A34, A23), r"matmul C: .* do not fit together"),
        (lambda: matmul(A23, A34, tb=True), r"B: float32\[3, 4\] transposed do not fit together"),
        (lambda: bias_add(A23, A34), "bias_add: .* is not a vector along axis -1"),
        (lambda: bias_add(A23, V3, axis=0), "is not a vector along axis 0"),
        (lambda: binary("add", A23, te.placeholder((2,))), "cannot be broadcast to the shape of A"),
        (lambda: binary("hypot", A23, A23), "binary Y: unknown function 'hypot'; known are add, div"),
        (lambda: unary("cbrt", A23), "unary Y: unknown function 'cbrt'; known are abs, erf"),
        (lambda: reduce("sum", A23, (0, 2)), r"reduce Y: \(0, 2\) are not different axes of A"),
        (lambda: reduce("any", A23, (0,)), "reduce Y: unknown function 'any'"),
        (lambda: convolution(IMAGE, FILTER, groups=2), "the channels of .* do not fit together with 2 groups"),
        (lambda: convolution(IMAGE, te.placeholder((3, 3, 5))), "the channels of .* do not fit together"),
        (lambda: convolution(A23, FILTER), "conv2d: X has 4 dimensions and W 4"),
        (lambda: softmax(te.placeholder(())), "softmax: .* has no axis"),
        (lambda: layer_norm(A23, V3, A34), r"layer_norm: B: .* must have the extents of the axes \[1\] of A"),
        (lambda: layer_norm(A23, axes=(1, -1)), r"layer_norm: \(1, -1\) are not different axes of A"),
        (lambda: rms_norm(A23, axes=(2,)), r"rms_norm: \(2,\) are not different axes of A"),
        (lambda: rms_norm(te.placeholder(())), "are not different axes"),
        (lambda: log_softmax(te.placeholder(())), "log_softmax: .* has no axis"),
        (lambda: matrix_norm(V3), "matrix_norm: .* has no matrices"),
        (lambda: convolution(IMAGE, FILTER, layout="NWC"), "conv1d: X has 3 dimensions and W 3"),
        (lambda: transposed_convolution(A23, FILTER), "image and filter must have 4 dimensions and one element type"),
        (lambda: transposed_convolution(IMAGE, FILTER), "the image has 4 channels and the filter has 6"),
        (lambda: transposed_convolution(IMAGE, IMAGE, output_pad=1), r"output_padding \(1, 1\) must be less than the strides"),
        (lambda: capsule_convolution(IMAGE, FILTER), "capsule_conv2d: X.* do not fit together"),
        (lambda: max_pool(IMAGE, (2, 2), layout="NCW"), "layout 'NCW' must be NCHW or NHWC, and X"),
        (lambda: max_pool(A23, (2,), layout="NWC"), "layout 'NWC' must be NCW or NWC, and A.* must have 3 dimensions"),
        (lambda: avg_pool(te.placeholder((1, 4, 4, 1), "int32"), (2, 2)), "a mean requires floats"),
        (lambda: group_norm(IMAGE, None, None, 3, 0.1), "the 4 channels of X.* cannot be divided into 3 groups"),
        (lambda: group_norm(IMAGE, V3, None, 2, 0.1), "v.* must be a vector along axis 3 of X"),
        (lambda: group_norm(IMAGE, None, None, 2, 0.1, "NWC"), "layout 'NWC' must be NCHW or NHWC"),
        (lambda: instance_norm(A23, None, None, 0.1), "must have at least 3 dimensions"),
        (lambda: attention(A23, A23, A23), "attention: Q.* are needed"),
        (lambda: attention(CUBE, CUBE, te.placeholder((2, 4, 4))), "matmul C: .* do not fit together"),
        (lambda: lstm_cell(A23, A23, A23, A34, A34, V3), "lstm_cell: .* do not fit together"),
        (lambda: take(A23, V3, 0), "indices must be integers, got v"),
        (lambda: resize(A23, (1, 1)), "an image must have 4 dimensions, NCHW"),
        (lambda: resize(IMAGE, (1, 1), "cubic"), "unknown mode 'cubic', 'half_pixel'"),
        (lambda: resize(IMAGE, (1,)), r"size must be \(height, width\)"),
        (lambda: resize(te.placeholder((1, 1, 2, 2), "int32"), (1, 1), "linear"), "only floats can be interpolated"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(make: object, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        make()  # type: ignore[operator]


def test_references_for_arrays_of_any_axes_and_types() -> None:
    """Graph operators use the references with axes and types that workloads do not have."""
    data = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    np.testing.assert_allclose(softmax_reference(data, 1).sum(1), 1, rtol=1e-12)
    small = np.array([[100, 100]], np.int8)
    assert reduce_reference("sum", small, (1,), True).tolist() == [[-56]]
    assert reduce_reference("max", small, None) == 100
    assert matmul_reference(small, small.T).dtype == np.int8
    image, filters = np.ones((1, 4, 5, 1), np.float32), np.ones((2, 2, 1, 1), np.float32)
    assert convolved(image, filters, stride=(2, 1), pad=(1, 0, 0, 2)).shape == (1, 2, 6, 1)


def test_softmax_along_any_axis() -> None:
    x = te.placeholder((2, 3, 4), "float64", "X")
    data = np.arange(24, dtype=np.float64).reshape(2, 3, 4) % 5
    for axis in (0, 1, -2, -1):
        func = te.create_prim_func([x, softmax(x, axis)])
        np.testing.assert_allclose(run(func, [data])[-1], softmax_reference(data, axis), rtol=1e-12)


@pytest.mark.parametrize(
    ("axes", "keepdims", "shape"), [((), False, (2, 3)), ((1,), True, (2, 1)), ((0, 1), True, (1, 1)), ((0,), False, (3,))]
)
def test_reduced_keeps_axes_and_maps_elements(axes: tuple[int, ...], keepdims: bool, shape: tuple[int, ...]) -> None:
    x = te.placeholder((2, 3), "float64", "X")
    made = reduced(x, axes, te.sum, value=lambda e: e * e, keepdims=keepdims)
    data = np.arange(6, dtype=np.float64).reshape(2, 3)
    found = run(te.create_prim_func([x, made]), [data])[-1]
    assert found.shape == shape
    np.testing.assert_allclose(found, (data * data).sum(axes, keepdims=keepdims), rtol=1e-12)


def test_strides_and_padding_of_numpy() -> None:
    x, w = te.placeholder((1, 8, 8, 4), name="X"), te.placeholder((3, 3, 4, 2), name="W")
    given, plain = (te.create_prim_func([x, w, convolution(x, w, stride=n, pad=n)]) for n in (np.int64(2), 2))
    assert equal(given, plain)
