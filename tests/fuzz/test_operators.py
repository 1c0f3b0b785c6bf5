"""Compile every operator of the library by default and with a drawn schedule of its search space, and compare with the numpy reference.

Sizes are odd, so that tiles overhang.  The operators of matrix products, which have more rules, are in test_law.py too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.build import build
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.ops.operator import OPERATORS
from tunesmith.ops.workload import Workload, workload
from tunesmith.runtime.module import Module
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

TARGET = Target("llvm").with_attributes(num_cores=2)
WORKLOADS = (
    "matmul(m=17,n=19,k=5)",
    "batch_matmul(b=2,m=3,n=5,k=7)",
    "dense(m=3,n=13,k=5,activation=gelu)",
    "conv1d(n=2,w=9,ci=4,co=6,kw=3,stride=2,pad=1)",
    "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,stride=2,pad=1,bias=1,relu=1)",
    "conv3d(n=1,d=4,h=5,w=3,ci=2,co=4,kd=3,kh=2,kw=1,stride=2,pad=1,groups=2,layout=NCDHW,residual=1)",
    "conv1d_transpose(n=2,w=5,ci=4,co=6,kw=3,stride=3,output_pad=2,groups=2,layout=NCW,bias=1)",
    "conv2d_transpose(n=2,h=3,w=5,ci=3,co=7,kh=4,kw=4,stride=2,pad=1)",
    "conv3d_transpose(n=1,d=2,h=2,w=3,ci=2,co=3,kd=2,kh=3,kw=1,stride=2,dilation=2,relu=1)",
    "capsule_conv2d(n=1,h=5,w=4,ci=3,co=5,kh=1,kw=2,size=1)",
    "matrix_norm(b=3,m=5,n=7)",
    "max_pool1d(n=2,w=9,c=3,kw=3,stride=2,pad=1)",
    "max_pool2d(n=2,h=7,w=6,c=13,kh=3,kw=2,stride=2,pad=1)",
    "max_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2)",
    "avg_pool1d(n=1,w=5,c=1,kw=5)",
    "avg_pool2d(n=2,h=7,w=6,c=3,kh=3,kw=2,stride=2,pad=1,layout=NCHW)",
    "avg_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2,pad=1,layout=NCDHW)",
    *[f"{name}(shape=3x17)" for name in ("abs", "erf", "exp", "gelu", "log", "neg", "relu", "rsqrt", "sigmoid", "sqrt", "tanh")],
    *[f"{name}(shape=3x5x7,other=5x1)" for name in ("add", "sub", "mul", "div", "maximum", "minimum")],
    *[f"{name}(shape=5x13,axis=1)" for name in ("sum", "prod", "mean", "max", "min", "variance")],
    "argmax(shape=3x17)",
    "argmin(shape=3x4x5,axis=1)",
    *[f"{name}(shape=3x5x7,axis=1)" for name in ("cumsum", "cumprod", "cummax", "cummin")],
    "logcumsumexp(shape=5x13)",
    "argsort(shape=2x193x3,axis=1,descending=1)",
    "topk(shape=3x200,k=9)",
    "softmax(m=7,n=5,axis=0)",
    "log_softmax(m=3,n=17)",
    "layer_norm(m=3,n=11)",
    "rms_norm(m=3,n=17)",
    "group_norm(shape=2x6x7,groups=2,layout=NCHW)",
    "instance_norm(shape=2x3x2x6)",
    "attention(b=2,m=5,n=7,d=3,causal=1)",
    "lstm_cell(m=3,n=4,k=5)",
    "gather(m=7,n=3,rows=5)",
    "embedding(tokens=4,vocabulary=9,width=17)",
    "resize2d(n=1,h=5,w=4,c=2,oh=7,ow=3,mode=linear)",
)


def check(case: Workload, function: Callable[..., object], what: str) -> None:
    inputs = case.random_inputs(1)
    expected = case.reference(inputs)
    outputs = [np.full(r.shape, np.nan if r.dtype.kind == "f" else -77, r.dtype) for r in expected]
    function(*inputs, *outputs)
    for actual, reference in zip(outputs, expected, strict=True):
        found = mismatch(actual, reference, tolerance_of(case.func))
        assert found is None, f"{what}: {found}"


def test_every_operator_has_a_workload() -> None:
    assert sorted(text.partition("(")[0] for text in WORKLOADS) == sorted(OPERATORS.names())


@pytest.mark.parametrize("text", WORKLOADS)
def test_compiled_by_default(text: str) -> None:
    case = workload(text)
    check(case, tunesmith.compile(text, TARGET)[case.name], text)


@pytest.mark.parametrize("text", WORKLOADS)
def test_a_schedule_of_the_space(text: str) -> None:
    case = workload(text)
    draw = stream(1, "operators", text)
    sketches = generate(case.func, TARGET).sketches
    sketch = sketches[int(draw.integers(len(sketches)))]
    row = tuple(map(int, sketch.space.sample(1, draw)[0]))
    artifact = build(sketch.concretize(row), TARGET)
    check(case, Module.from_object(artifact.data)[artifact.functions[0]], f"{text}, {sketch.name}, row {row}")
