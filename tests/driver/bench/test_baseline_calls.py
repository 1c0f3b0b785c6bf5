"""Calls of workloads are accepted by the baselines' own checks and give correct results in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.driver.bench.baseline_calls import baseline_call
from tunesmith.measure.baselines.operators import operator_call
from tunesmith.measure.baselines.registry import create_baseline
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.ops.workload import workload


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("matmul(m=5,n=7,k=3)", "matmul"),
        ("batch_matmul(b=2,m=5,n=7,k=3)", "batch_matmul"),
        ("dense(m=5,n=7,k=3)", "dense"),
        ("dense(m=5,n=7,k=3,bias=0,activation=gelu)", "dense"),
        ("conv2d(n=1,h=6,w=7,ci=4,co=6,kh=3,kw=2,pad=1,stride=2,groups=2,bias=1,relu=1)", "conv2d"),
        ("conv2d(n=1,h=6,w=7,ci=4,co=6,kh=3,kw=2,layout=NCHW)", "conv2d"),
        ("conv2d(n=1,h=6,w=7,ci=4,co=4,kh=3,kw=3,groups=4)", "conv2d"),
        ("conv2d(n=1,h=6,w=7,ci=4,co=4,kh=3,kw=3,groups=4,layout=NCHW)", "conv2d"),
        ("softmax(m=3,n=5)", "softmax"),
        ("sum(shape=3x5)", "sum"),
        ("sum(shape=3x5,axis=0)", "sum"),
        ("layer_norm(m=3,n=5,eps=1e-6)", "layer_norm"),
        ("relu(shape=3x4x5)", "relu"),
        ("add(shape=3x4)", "add"),
    ],
)
def test_calls_are_accepted_by_baselines(text: str, op: str) -> None:
    w = workload(text)
    inputs = w.random_inputs()
    request = baseline_call(w, inputs)
    assert request is not None and request.op == op
    call = operator_call(request.op, request.params, request.inputs)
    assert call is not None and call.output == w.outputs[0].shape and call.dtype == "float32"
    made = create_baseline("openblas", 1).prepare(request.op, request.params, request.inputs)
    if made is not None:
        assert mismatch(np.asarray(made()), w.reference(inputs)[0], tolerance_of(w.func)) is None


@pytest.mark.parametrize(
    "text",
    [
        "matmul(m=5,n=7,k=3,tb=1)",
        "conv2d(n=1,h=6,w=7,ci=4,co=6,kh=3,kw=2,residual=1)",
        "add(shape=3x4,other=4)",
        "sum(shape=3x4x5)",
        "exp(shape=3)",
        "mean(shape=3x4)",
    ],
)
def test_unsupported_operators_have_no_call(text: str) -> None:
    w = workload(text)
    assert baseline_call(w, w.random_inputs()) is None
