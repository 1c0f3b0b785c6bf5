"""Test contractions: values, equality with the programs of workloads, types with dynamic sizes, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import FUSABLE, GRAPH_OPERATORS
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import For
from tunesmith.ir.structural import digest
from tunesmith.ir.visit import walk
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.workload import workload
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

RNG = np.random.default_rng(5)


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 5), (5, 4)),
        ((2, 3, 5), (2, 5, 4)),
        ((2, 3, 5), (5, 4)),
        ((3, 5), (2, 5, 4)),
        ((2, 3, 5), (1, 5, 4)),
        ((2, 1, 3, 5), (3, 5, 4)),
        ((1, 2, 3, 5), (2, 2, 5, 4)),
        ((5,), (5,)),
        ((5,), (5, 4)),
        ((3, 5), (5,)),
        ((2, 3, 5), (5,)),
        ((5,), (2, 5, 4)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_operator("matmul", [floats(*a), floats(*b)])
    check_operator("matmul", [RNG.integers(-9, 9, a).astype(np.int32), RNG.integers(-9, 9, b).astype(np.int32)], compiled=False)


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("ik,kj->ij", (3, 5), (5, 4)),
        ("bihd,bjhd->bhij", (1, 3, 2, 5), (1, 4, 2, 5)),
        ("bhij,bjhd->bihd", (2, 2, 3, 5), (2, 5, 2, 4)),
        ("ki,jk->ji", (3, 5), (4, 3)),
        ("kl,lkj->j", (3, 2), (2, 3, 4)),
        ("i,j->ji", (3,), (2,)),
        ("ij,j->ij", (3, 4), (4,)),
        ("k,k->", (5,), (5,)),
    ],
)
def test_einsum(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_operator("einsum", [floats(*a), floats(*b)], equation=equation)
    check_operator(
        "einsum", [RNG.integers(-9, 9, a).astype(np.int32), RNG.integers(-9, 9, b).astype(np.int32)], compiled=False, equation=equation
    )


WINDOWS = [
    {},
    {"strides": (2, 1), "padding": (1, 0, 2, 1)},
    {"strides": (1, 3), "padding": (0, 2, 0, 0), "dilation": (2, 1)},
    {"padding": (1, 1, 1, 1), "dilation": (1, 2)},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("groups", "ci", "co"), [(1, 3, 4), (2, 4, 6), (3, 3, 3), (3, 3, 6)])
def test_conv2d(window: dict[str, Any], layout: str, groups: int, ci: int, co: int) -> None:
    x = floats(2, ci, 7, 6) if layout == "NCHW" else floats(2, 7, 6, ci)
    w = floats(co, ci // groups, 3, 2) if layout == "NCHW" else floats(3, 2, ci // groups, co)
    check_operator("conv2d", [x, w], compiled=groups != 2, atol=1e-5, **window, groups=groups, layout=layout)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_depthwise_filters_may_omit_their_axis_of_extent_1(layout: str) -> None:
    x, w = (floats(1, 3, 6, 5), floats(3, 3, 3)) if layout == "NCHW" else (floats(1, 6, 5, 3), floats(3, 3, 3))
    check_operator("conv2d", [x, w], atol=1e-5, padding=(1, 1, 1, 1), groups=3, layout=layout)


@pytest.mark.parametrize("window", [*WINDOWS, {"strides": (2, 2), "output_padding": (1, 0)}, {"strides": (3, 2), "dilation": (2, 2)}])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("groups", "ci", "each"), [(1, 3, 4), (2, 4, 3)])
def test_conv2d_transpose(window: dict[str, Any], layout: str, groups: int, ci: int, each: int) -> None:
    x = floats(2, ci, 4, 5) if layout == "NCHW" else floats(2, 4, 5, ci)
    w = floats(ci, each, 3, 2) if layout == "NCHW" else floats(3, 2, each, ci)
    check_operator("conv2d_transpose", [x, w], compiled=groups == 1, atol=1e-5, **window, groups=groups, layout=layout)


def test_conv2d_transpose_is_the_adjoint_of_conv2d() -> None:
    """<conv(x), y> == <x, conv_transpose(y)> for all attributes."""
    window: dict[str, Any] = {"strides": (2, 3), "padding": (1, 0, 2, 1), "dilation": (1, 2)}
    x, w = floats(1, 4, 8, 9, dtype="float64"), floats(6, 2, 3, 3, dtype="float64")

    def evaluated(name: str, *operands: np.ndarray, **attrs: Any) -> np.ndarray:
        operator = GRAPH_OPERATORS.get(name)
        return operator.evaluate(operands, operator.bind(attrs))[0]

    image = evaluated("conv2d", x, w, **window, groups=2)
    y = floats(*image.shape, dtype="float64")
    back = evaluated("conv2d_transpose", y, w, **window, groups=2)
    more = [have - got for have, got in zip(x.shape[2:], back.shape[2:], strict=True)]
    back = evaluated("conv2d_transpose", y, w, **window, groups=2, output_padding=tuple(more))
    np.testing.assert_allclose((image * y).sum(), (x * back).sum())


def test_conv2d_transpose_multiplies_no_zeros_between_pixels() -> None:
    """For kernel 2 and stride 2, each pixel of the result is the sum of one product per channel."""
    operator = GRAPH_OPERATORS.get("conv2d_transpose")
    made = operator.apply([te.placeholder((1, 8, 5, 5)), te.placeholder((8, 4, 2, 2))], operator.bind({"strides": (2, 2)}))[0]
    reduced = {a.name: a.extent for a in made.value.axes}  # type: ignore[union-attr]
    assert reduced == {"rc": 8, "rh": 1, "rw": 1}


def program(name: str, types: list[tuple[tuple[int, ...], str]], **attrs: Any) -> PrimFunc:
    operator = GRAPH_OPERATORS.get(name)
    inputs = [te.placeholder(*t) for t in types]
    return te.create_prim_func([*inputs, *operator.apply(inputs, operator.bind(attrs))])


@pytest.mark.parametrize(
    ("text", "name", "attrs"),
    [
        ("matmul(m=3,n=5,k=7)", "matmul", {}),
        ("batch_matmul(b=2,m=3,n=5,k=7)", "matmul", {}),
        ("conv2d(n=2,h=7,w=6,ci=4,co=6,kh=3,kw=2)", "conv2d", {"layout": "NHWC"}),
        (
            "conv2d(n=2,h=7,w=6,ci=4,co=6,kh=3,kw=2,stride=2,pad=1,groups=2)",
            "conv2d",
            {"layout": "NHWC", "strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 2},
        ),
        (
            "conv2d(n=1,h=9,w=9,ci=4,co=6,kh=3,kw=3,pad=2,dilation=2,layout=NCHW)",
            "conv2d",
            {"padding": (2, 2, 2, 2), "dilation": (2, 2)},
        ),
        (
            "conv2d(n=1,h=6,w=5,ci=3,co=3,kh=3,kw=3,groups=3,pad=1)",
            "conv2d",
            {"layout": "NHWC", "padding": (1, 1, 1, 1), "groups": 3},
        ),
        ("conv2d(n=1,h=6,w=5,ci=3,co=3,kh=3,kw=3,groups=3,stride=2,layout=NCHW)", "conv2d", {"strides": (2, 2), "groups": 3}),
        ("softmax(m=3,n=7)", "softmax", {}),
        ("layer_norm(m=3,n=7,eps=0.001)", "layer_norm", {"eps": 0.001}),
    ],
)
def test_programs_equal_those_of_workloads(text: str, name: str, attrs: dict[str, Any]) -> None:
    case = workload(text)
    made = program(name, [(s.shape, s.dtype) for s in case.inputs], **attrs)
    assert digest(made.with_(name=case.func.name)) == digest(case.func.with_(attrs=()))


def test_a_depthwise_filter_of_rank_4_is_not_reduced_over_channels() -> None:
    made = program("conv2d", [((1, 3, 6, 5), "float32"), ((3, 1, 3, 3), "float32")], padding=(1, 1, 1, 1), groups=3)
    loops = [n.var.name for n in walk(made.body) if isinstance(n, For)]
    assert loops == ["n", "c", "h", "w", "n", "c", "h", "w", "rh", "rw"]
    assert [b.name for b in made.allocs] == ["Pad"]


def infer(name: str, types: list[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_types_with_dynamic_sizes() -> None:
    n = poly(Var("n"))
    assert infer("matmul", [TensorType.of((n, 8)), TensorType.of((8, 4))]) == (TensorType.of((n, 4)),)
    assert infer("matmul", [TensorType.of((2, n, 8)), TensorType.of((2, 8, n))]) == (TensorType.of((2, n, n)),)
    assert infer("matmul", [TensorType.of((n, 3, 8)), TensorType.of((8, 4))]) == (TensorType.of((n, 3, 4)),)
    assert infer("matmul", [TensorType.of((4, n)), TensorType.of((n, 4))]) == (TensorType.of((4, 4)),)
    image = infer("conv2d", [TensorType.of((n, 3, 8, 8)), TensorType.of((4, 3, 3, 3))], padding=(1, 1, 1, 1), strides=(2, 2))
    assert image == (TensorType.of((n, 4, 4, 4)),)
    rows = infer("conv2d", [TensorType.of((1, n, 8, 3)), TensorType.of((3, 3, 3, 4))], padding=(1, 1, 1, 1), layout="NHWC")
    assert rows == (TensorType.of((1, n, 8, 4)),)
    assert infer("conv2d_transpose", [TensorType.of((1, 3, n, 8)), TensorType.of((3, 4, 2, 2))], strides=(2, 2)) == (
        TensorType.of((1, 4, n * 2, 16)),
    )
    func = te.create_prim_func([a := te.placeholder((n, 8)), b := te.placeholder((8, 4)), *GRAPH_OPERATORS.get("matmul").apply([a, b])])
    assert [p for p in func.params if not isinstance(p, Buffer)] == [n.as_var()]


@pytest.mark.parametrize("window", WINDOWS)
def test_conv2d_of_an_image_in_another_layout(window: dict[str, Any]) -> None:
    check_operator("conv2d", [floats(1, 3, 7, 8), floats(3, 3, 3, 5)], layout="NHWC", image_layout="NCHW", **window)
    check_operator("conv2d", [floats(1, 7, 8, 3), floats(5, 3, 3, 3)], layout="NCHW", image_layout="NHWC", **window)


def test_kinds() -> None:
    assert {GRAPH_OPERATORS.get(n).kind for n in ("matmul", "einsum", "conv2d", "conv2d_transpose")} == {FUSABLE}


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("matmul", [(), (3,)], {}, "a scalar has no matrix product"),
        ("matmul", [(3, 4), (5, 4)], {}, "4 columns of the first and 5 rows of the second"),
        ("matmul", [(2, 3, 4), (3, 4, 5)], {}, "batch extents 2 and 3 cannot be broadcast"),
        ("einsum", [(3, 4), (4, 5)], {"equation": "ik,kj"}, "is not of the form"),
        ("einsum", [(3, 4), (4, 5)], {"equation": "IK,KJ->IJ"}, "is not of the form"),
        ("einsum", [(3, 3), (3, 5)], {"equation": "ii,ij->j"}, "repeats a letter in a term"),
        ("einsum", [(3, 4), (4, 5)], {"equation": "ik,kj->i"}, "all letters of a single operand"),
        ("einsum", [(3, 4), (4, 5)], {"equation": "ik,kj->ijm"}, "must have only letters of the operands"),
        ("einsum", [(3, 4, 1), (4, 5)], {"equation": "ik,kj->ij"}, "for operands of 2 and 2 axes, not 3 and 2"),
        ("einsum", [(3, 4), (5, 6)], {"equation": "ik,kj->ij"}, "k is 4 in the first operand and 5 in the second"),
        ("conv2d", [(1, 3, 8), (4, 3, 3, 3)], {}, "X has 4 dimensions"),
        ("conv2d", [(1, 3, 8, 8), (4, 2, 3, 3)], {}, "the channels of .* do not fit together with 1 groups"),
        ("conv2d", [(1, 4, 8, 8), (5, 2, 3, 3)], {"groups": 2}, "do not fit together with 2 groups"),
        ("conv2d", [(1, 3, 2, 8), (4, 3, 3, 3)], {}, "the extent 0 is not positive"),
        ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)], {"layout": "NCWH"}, "unknown layout 'NCWH'"),
        ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)], {"image_layout": "CHWN"}, "unknown layout 'CHWN' of the image"),
        ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)], {"padding": (1, 1)}, r"padding \(1, 1\) must be \(top, left, bottom, right\)"),
        ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)], {"padding": (-1, 0, 0, 0)}, "must not be negative"),
        ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": (0, 1)}, "must be positive"),
        ("conv2d_transpose", [(1, 3, 8, 8), (4, 3, 3, 3)], {}, "the image has 3 channels and the filter has 4"),
        ("conv2d_transpose", [(1, 3, 8, 8), (3, 3, 3, 3)], {"groups": 2}, "a multiple of the 2 groups"),
        ("conv2d_transpose", [(1, 3, 8, 8), (3, 3, 3, 3)], {"output_padding": (1, 0)}, "must be less than the strides"),
        ("conv2d_transpose", [(1, 3, 8, 8), (3, 3, 3)], {}, "have 4 dimensions"),
    ],
)
def test_errors(name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        infer(name, [TensorType.of(s) for s in shapes], **attrs)


@pytest.mark.parametrize(("name", "shape"), [("matmul", (3, 3)), ("conv2d", (3, 3, 3, 3)), ("conv2d_transpose", (3, 3, 3, 3))])
def test_mixed_types_are_rejected(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ScriptError, match="element type"):
        infer(name, [TensorType.of(shape), TensorType.of(shape, "float64")])
