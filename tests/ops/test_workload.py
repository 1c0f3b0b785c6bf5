"""Test the text form of workloads: round trips, canonical spelling, random inputs, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.ir.structural import equal
from tunesmith.ops.operator import OPERATORS, Operator
from tunesmith.ops.parameter import IntParameter
from tunesmith.ops.tensor_expression import Tensor, compute, placeholder
from tunesmith.ops.workload import make_workload, workload
from tunesmith.support.errors import RunError, UserError

CONV = "n=1,h=5,w=5,ci=4,co=4,kh=3,kw=3"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("matmul(m=4,n=5,k=6)", "matmul(m=4,n=5,k=6)"),
        (" matmul ( k = 6, n=5 ,\n m=4, ta=0, dtype=float32 ) ", "matmul(m=4,n=5,k=6)"),
        ("matmul(m=004,n=+5,k=6,tb=1,dtype=float16)", "matmul(m=4,n=5,k=6,tb=1,dtype=float16)"),
        ("matmul(m=4,n=5,k=6,dtype=int8,rhs_dtype=int8,out_dtype=int32)", "matmul(m=4,n=5,k=6,dtype=int8)"),
        ("matmul(m=4,n=5,k=6,dtype=bfloat16,out_dtype=bfloat16)", "matmul(m=4,n=5,k=6,dtype=bfloat16)"),
        (f"conv2d(pad=1,{CONV},layout=NCHW,stride=1)", f"conv2d({CONV},pad=1,layout=NCHW)"),
        ("dense(m=1,n=2,k=3,bias=1,activation=none)", "dense(m=1,n=2,k=3)"),
        ("dense(m=1,n=2,k=3,bias=0)", "dense(m=1,n=2,k=3,bias=0)"),
        ("sum(shape=3x4x5,axis=-1+0)", "sum(shape=3x4x5,axis=0+2)"),
        ("sum(shape=3x4,axis=1+0)", "sum(shape=3x4)"),
        ("max(shape=7,axis=0)", "max(shape=7)"),
        ("add(shape=3x4,other=3x4)", "add(shape=3x4)"),
        ("add(shape=3x4,other=1x4)", "add(shape=3x4,other=1x4)"),
        ("layer_norm(m=2,n=3,eps=0.00001)", "layer_norm(m=2,n=3)"),
        ("layer_norm(m=2,n=3,eps=1e-6)", "layer_norm(m=2,n=3,eps=1e-06)"),
        ("argmax(shape=3x4,axis=1)", "argmax(shape=3x4)"),
        ("argmin(axis=-2,shape=3x4)", "argmin(shape=3x4,axis=0)"),
        ("softmax(m=2,n=3,axis=1)", "softmax(m=2,n=3)"),
        ("log_softmax(m=2,n=3,axis=-2)", "log_softmax(m=2,n=3,axis=0)"),
        ("conv1d(n=1,w=5,ci=2,co=2,kw=3,layout=NWC,pad=1)", "conv1d(n=1,w=5,ci=2,co=2,kw=3,pad=1)"),
    ],
)
def test_the_text_is_canonical_and_parses_back(text: str, canonical: str) -> None:
    first = workload(text)
    assert first.text == str(first) == canonical
    again = workload(first.text)
    assert again.text == canonical and again.params == first.params
    assert equal(again.func, first.func)
    assert equal(make_workload(first.name, first.params).func, first.func)
    assert first.func.name == first.name


def test_values_may_be_given_as_values() -> None:
    made = make_workload("sum", {"shape": (3, 4, 5), "axis": [np.int64(-1)]})
    assert made.text == "sum(shape=3x4x5,axis=2)"
    assert make_workload(OPERATORS.get("matmul"), {"m": np.int32(2), "n": 3, "k": 4}).text == "matmul(m=2,n=3,k=4)"
    assert equal(OPERATORS.get("matmul").build(m=2, n=3, k=4), workload("matmul(m=2,n=3,k=4)").func)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul", r"'matmul' is not a workload. Spell it NAME\(key=value,...\)"),
        ("matmul(m=1", "is not a workload"),
        ("matmul(m=1) x", "is not a workload"),
        ("matmull(m=1,n=1,k=1)", "unknown operator 'matmull'. Did you mean 'matmul'"),
        (
            "matmul(4,5,6)",
            r"'4' is not of the form key=value. Usage: matmul\(m, n, k, ta=0, tb=0, dtype=float32, rhs_dtype=same, out_dtype=auto\)",
        ),
        ("matmul(m=4,n=5,k=6,)", "'' is not of the form key=value"),
        ("matmul(=4)", "'=4' is not of the form key=value"),
        ("matmul(m=4 n=5 k=6)", r"'m=4 n=5 k=6' is more than one parameter. Separate parameters by commas: matmul\(m, n, k"),
        ("matmul", r"'matmul' is not a workload. Spell it NAME\(key=value,...\). Usage: matmul\(m, n, k"),
        ("matmul(m=4,m=5)", "the parameter m is given twice"),
        ("matmul(m=4,n=5)", "matmul: parameter k is missing"),
        ("matmul()", "parameter m is missing; parameter n is missing; parameter k is missing"),
        (f"conv2d({CONV},padding=1)", r"conv2d: parameter padding is unknown \(did you mean pad\?\)"),
        (
            f"conv2d({CONV},strides=2,foo=1)",
            r"strides is unknown \(did you mean stride\?\); parameter foo is unknown\. Usage: conv2d",
        ),
        ("matmul(m=0,n=5,k=6)", "matmul: parameter m: expected an integer from 1, got '0'"),
        ("matmul(m=-1,n=5,k=6)", "expected an integer from 1, got '-1'"),
        ("matmul(m=1.5,n=5,k=6)", "expected an integer from 1, got '1.5'"),
        ("matmul(m=1_0,n=5,k=6)", "expected an integer from 1, got '1_0'"),
        ("matmul(m=,n=5,k=6)", "expected an integer from 1, got ''"),
        ("matmul(m=1,n=5,k=6,ta=2)", "parameter ta: expected 0 or 1, got '2'"),
        ("matmul(m=1,n=5,k=6,ta=-1)", "parameter ta: expected 0 or 1, got '-1'"),
        ("relu(shape=4,dtype=float33)", "expected float16 or float32 or float64, got 'float33'. Did you mean 'float32'"),
        (
            "matmul(m=1,n=5,k=6,dtype=int16)",
            "parameter dtype: expected float16 or bfloat16 or float32 or float64 or int8 or uint8, got 'int16'",
        ),
        ("matmul(m=1,n=5,k=6,dtype=int8,out_dtype=float32)", "out_dtype=float32: a contraction of int8 operands has a result of int32"),
        ("matmul(m=1,n=5,k=6,dtype=bfloat16,out_dtype=float16)", "of bfloat16 operands has a result of bfloat16 or float32"),
        ("dense(m=1,n=5,k=6,dtype=int8,activation=gelu)", "activation=gelu: sums of int8 products are integers"),
        (f"conv2d({CONV},layout=nhwc)", "parameter layout: expected NHWC or NCHW, got 'nhwc'. Did you mean 'NHWC'"),
        (f"conv2d({CONV},pad=-1)", "parameter pad: expected an integer from 0, got '-1'"),
        (f"conv2d({CONV},groups=3)", "conv2d: groups=3 must divide ci=4 and co=4"),
        (f"conv2d({CONV},dilation=3)", "conv2d: the kernel does not fit: kh covers 7 pixels, and h with padding has 5"),
        ("conv3d(n=1,d=5,h=5,w=5,ci=1,co=1,kd=3,kh=3,kw=3,layout=NHWC)", "expected NDHWC or NCDHW, got 'NHWC'. Did you mean 'NDHWC'"),
        ("conv1d(n=1,w=2,ci=1,co=1,kw=3)", "conv1d: the kernel does not fit: kw covers 3 pixels, and w with padding has 2"),
        ("conv1d(n=1,w=2,ci=1,co=1,kw=3,h=1)", "conv1d: parameter h is unknown"),
        ("conv1d_transpose(n=1,w=2,ci=3,co=4,kw=3,groups=2)", "conv1d_transpose: groups=2 must divide ci=3 and co=4"),
        ("conv1d_transpose(n=1,w=2,ci=1,co=1,kw=3,output_pad=1)", "output_pad=1 must be less than stride=1 or dilation=1"),
        ("conv1d_transpose(n=1,w=2,ci=1,co=1,kw=3,pad=2)", "nothing remains: the result has 4 pixels along w, and pad=2 removes 4"),
        ("capsule_conv2d(n=1,h=2,w=4,ci=1,co=1,kh=3,kw=3)", "capsule_conv2d: the kernel does not fit: kh covers 3 pixels"),
        ("max_pool2d(n=1,h=4,w=4,c=1,kh=3,kw=3,pad=2)", "max_pool2d: pad=2 must be at most half of kh=3, so that no window has only"),
        ("avg_pool1d(n=1,w=2,c=1,kw=5,pad=1)", "avg_pool1d: the kernel does not fit: kw covers 5 pixels, and w with padding has 4"),
        ("max_pool1d(n=1,w=2,c=1,kw=1,count_include_pad=1)", "max_pool1d: parameter count_include_pad is unknown"),
        ("argmax(shape=3x4,axis=2)", "argmax: parameter axis: 2 is not an axis of 3x4"),
        ("argmax(shape=3x4,axis=all)", "parameter axis: expected the position of an axis, spelled like 1 or -1, got 'all'"),
        ("softmax(m=3,n=4,axis=-3)", "softmax: parameter axis: -3 is not an axis of 3x4"),
        ("variance(shape=3x1,axis=1,correction=1)", "variance: correction=1 must be less than the 1 elements of a set"),
        ("variance(shape=3x1,axis=2)", "variance: parameter axis: 2 are not different axes of 3x1"),
        ("group_norm(shape=1x2x6,groups=4)", "group_norm: groups=4 must divide the 6 channels"),
        ("group_norm(shape=1x6,groups=2)", "group_norm: parameter shape: 1x6 must have batch, channels and positions"),
        ("instance_norm(shape=6)", "instance_norm: parameter shape: 6 must have batch, channels and positions"),
        ("resize2d(n=1,h=2,w=2,c=1,oh=4,ow=4,mode=cubic)", "resize2d: parameter mode: expected nearest or linear, got 'cubic'"),
        ("gather(m=7,n=3,rows=0)", "gather: parameter rows: expected an integer from 1, got '0'"),
        ("layer_norm(m=2,n=3,eps=-1)", "parameter eps: expected a number from 0, got '-1'"),
        ("layer_norm(m=2,n=3,eps=nan)", "expected a number from 0, got 'nan'"),
        ("layer_norm(m=2,n=3,eps=tiny)", "expected a number from 0, got 'tiny'"),
        ("relu(shape=4X4)", "parameter shape: expected extents from 1, spelled like 64x56x56, got '4X4'"),
        ("relu(shape=4x0)", "expected extents from 1"),
        ("add(shape=3x4,other=3)", "add: parameter other: 3 cannot be broadcast to 3x4"),
        ("add(shape=4,other=3x4)", "parameter other: 3x4 cannot be broadcast to 4"),
        ("sum(shape=3x4,axis=2)", "sum: parameter axis: 2 are not different axes of 3x4"),
        ("sum(shape=3x4,axis=1+-1)", "parameter axis: 1\\+-1 are not different axes of 3x4"),
        ("sum(shape=3x4,axis=both)", "expected positions of axes, spelled like 1 or 0\\+2, or all, got 'both'"),
    ],
)
def test_refused_texts(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        workload(text)


@pytest.mark.parametrize(("key", "value"), [("m", True), ("m", 2.5), ("m", (2,)), ("m", None), ("dtype", 32)])
def test_refused_values(key: str, value: object) -> None:
    with pytest.raises(UserError, match=f"matmul: parameter {key}: expected"):
        make_workload("matmul", {"m": 1, "n": 1, "k": 1, key: value})


def test_random_inputs_depend_on_seed_and_text_only() -> None:
    first, again = workload("matmul(m=40,n=50,k=60)"), workload("matmul(k=60,n=50,m=40)")
    for x, y, z in zip(first.random_inputs(3), again.random_inputs(3), first.random_inputs(4), strict=True):
        np.testing.assert_array_equal(x, y)
        assert not np.array_equal(x, z)
        assert x.dtype == np.float32 and -0.5 <= x.min() < -0.49 and 0.49 < x.max() < 0.5
    a, b = workload("add(shape=40x50)").random_inputs()
    assert not np.array_equal(a, b)


def test_random_inputs_have_the_type_and_domain_of_the_operator() -> None:
    for name in ("sqrt", "rsqrt", "log"):
        assert workload(f"{name}(shape=40x50)").random_inputs()[0].min() >= 0.5
    a, b = workload("div(shape=40x50,dtype=float64)").random_inputs()
    assert a.dtype == b.dtype == np.float64 and a.min() < 0 and b.min() >= 0.5
    assert workload("relu(shape=4,dtype=float16)").random_inputs()[0].dtype == np.float16
    a, b = workload("matmul(m=40,n=50,k=60,dtype=uint8,rhs_dtype=int8)").random_inputs()
    assert (a.dtype, a.min(), a.max()) == (np.uint8, 0, 255) and (b.dtype, b.min(), b.max()) == (np.int8, -128, 127)
    a, b = workload("matmul(m=40,n=50,k=60,dtype=bfloat16)").random_inputs()
    assert a.dtype == np.float32 and not (a.view(np.uint32) & 0xFFFF).any() and a.min() < 0


def test_random_indices_are_in_range() -> None:
    x, indices = workload("gather(m=7,n=3,rows=400)").random_inputs()
    assert x.dtype == np.float32 and indices.dtype == np.int64 and set(indices) == set(range(7))
    assert workload("embedding(tokens=4,vocabulary=9,width=3)").index_extents == {"index": 9}


def test_the_reference_refuses_arrays_of_another_workload() -> None:
    case = workload("matmul(m=2,n=3,k=4)")
    a, b = case.random_inputs()
    with pytest.raises(RunError, match=r"matmul\(m=2,n=3,k=4\): the workload has 2 inputs \(A, B\), got 1"):
        case.reference([a])
    with pytest.raises(RunError, match=r"the input B is float32 of shape \(4, 3\), got float32 of shape \(3, 4\)"):
        case.reference([a, b.T])
    with pytest.raises(RunError, match="the input A is float32 of shape .*, got float64"):
        case.reference([a.astype(np.float64), b])


def test_a_user_defined_operator() -> None:
    def tensors(*, n: int) -> list[Tensor]:
        x = placeholder(n, name="X")
        return [x, compute(n, lambda i: x[i] * 2.0, "Y"), compute(n, lambda i: x[i] + 1.0, "Z")]

    twice = Operator("twice", (IntParameter("n"),), tensors, lambda x, **_: [x * 2, x + 1], lambda n: 2 * n)
    case = make_workload(twice, {"n": "3"})
    assert (case.text, case.flops, [s.name for s in case.outputs]) == ("twice(n=3)", 6, ["Y", "Z"])
    ones = np.ones(3, np.float32)
    assert [list(y) for y in case.reference([ones])] == [[2, 2, 2], [2, 2, 2]]
    assert list(twice.reference({"n": 3}, [ones])[0]) == [2, 2, 2]
