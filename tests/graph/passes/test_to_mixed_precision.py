"""Test precision policies: which contractions are rounded, the error of each policy, patterns of names, branches, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.name_patterns import PatternWarning
from tunesmith.graph.ir.node import Call, Constant, all_bindings
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.script_printer import large_constants
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.to_mixed_precision import POLICIES, to_mixed_precision, with_precision
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

BLOCK = """
@G.function
def main(x: G.Tensor((6, 16), "float32"), y: G.Tensor((16, 6), "float32")):
    w = G.constant([[1.0, 0.3], [-3.7, 4.1]], (2, 2), "float32")
    a = G.matmul(x, y)
    b = G.softmax(a, axis=1)
    c = G.reshape(b, shape=(18, 2))
    d = G.matmul(c, w)
    e = G.add(d, c)
    return e, a
"""
CONVOLUTIONS = """
@G.function
def main(
    x: G.Tensor((1, 4, 6, 5), "float32"),
    w: G.Tensor((8, 4, 3, 3), "float32"),
    g: G.Tensor((8, 2, 1, 1), "float32"),
    d: G.Tensor((4, 3, 3), "float32"),
    u: G.Tensor((4, 3, 2, 2), "float32"),
):
    a = G.conv2d(x, w, padding=(1, 1, 1, 1))
    b = G.conv2d(x, g, groups=2)
    c = G.conv2d(x, d)
    e = G.conv2d_transpose(x, u)
    return a, b, c, e
"""
BRANCH = """
@G.function
def main(x: G.Tensor((3, 4), "float32"), y: G.Tensor((4, 3), "float32"), c: G.Tensor((), "bool")):
    if c:
        a = G.matmul(x, y)
    else:
        b = G.matmul(x, y)
        a = G.neg(b)
    z = G.matmul(x, y)
    return a, z
"""


def module(text: str) -> IRModule:
    func = parse(text)
    return IRModule({func.name: func})


def mixed(text: str, precision: tunesmith.graph.passes.to_mixed_precision.Precision) -> GraphFunc:
    done = to_mixed_precision(with_precision(module(text), precision))
    main = done["main"]
    assert isinstance(main, GraphFunc)
    verify(main, done)
    return main


def calls(func: GraphFunc) -> list[str]:
    """Operators with the types of their operands."""
    made = [b.operation for b in all_bindings(func.body)]
    return [f"{c.operator} {' '.join([a.type.dtype for a in c.args])}" for c in made if isinstance(c, Call)]


def data(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [stream(0, "mixed", *s).standard_normal(s).astype(np.float32) for s in shapes]


def test_operands_of_products_are_rounded_and_everything_else_is_float32() -> None:
    assert calls(mixed(BLOCK, "bf16")) == [
        "cast float32",
        "cast float32",
        "matmul bfloat16 bfloat16",
        "softmax float32",
        "reshape float32",
        "cast float32",  # of the softmax: it joins the operator that computes the value
        "reshape bfloat16",
        "matmul bfloat16 bfloat16",
        "add float32 float32",
    ]
    main = mixed(BLOCK, "bf16x3")
    assert [c for c in calls(main) if "split" in c or "matmul" in c] == [
        "split_bfloat16 float32",
        "split_bfloat16 float32",
        "matmul bfloat16 bfloat16",
        "split_bfloat16 float32",
        "matmul bfloat16 bfloat16",
    ]
    (weight,) = {a for b in all_bindings(main.body) for a in b.operation.args if isinstance(a, Constant)}  # type: ignore[union-attr]
    assert str(weight.type) == 'G.Tensor((6, 2), "bfloat16")' or weight.data.shape == (6, 2)


def test_grouped_depthwise_and_transposed_convolutions_stay_float32() -> None:
    found = [c for c in calls(mixed(CONVOLUTIONS, "bf16")) if c.startswith("conv")]
    assert found == [
        "conv2d bfloat16 bfloat16",
        "conv2d float32 float32",
        "conv2d float32 float32",
        "conv2d_transpose float32 float32",
    ]


def test_images_with_padding_that_is_not_zero_are_not_split() -> None:
    """Each part would be padded with the whole value."""
    text = CONVOLUTIONS.replace("padding=(1, 1, 1, 1)", "padding=(1, 1, 1, 1), padding_value=1.5")
    assert calls(mixed(text, "bf16x3"))[0] == "conv2d float32 float32" and "conv2d bfloat16 bfloat16" in calls(mixed(text, "bf16"))


@pytest.mark.parametrize(("policy", "least", "most"), [("f32", 0.0, 1e-6), ("bf16", 1e-4, 1e-2), ("bf16x3", 1e-7, 3e-5)])
def test_the_error_of_each_policy(policy: str, least: float, most: float) -> None:
    for text, shapes in ((BLOCK, ((6, 16), (16, 6))), (CONVOLUTIONS, ((1, 4, 6, 5), (8, 4, 3, 3), (8, 2, 1, 1), (4, 3, 3), (4, 3, 2, 2)))):
        given = data(*shapes)
        want = run(module(text)["main"], given)  # type: ignore[arg-type]  # numpy references sum in float64
        got = run(mixed(text, policy), given)
        errors = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, want, strict=True)]
        assert least <= max(errors) <= most, (text, errors)


@pytest.mark.parametrize("policy", ["bf16", "bf16x3"])
def test_compiled_models_agree_with_the_interpreter(policy: str) -> None:
    given = data((6, 16), (16, 6))
    model = tunesmith.compile(module(BLOCK), precision=policy)
    want = run(mixed(BLOCK, policy), given)
    for got, expected in zip(model(*given), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_a_value_is_rounded_once_in_each_region() -> None:
    found = calls(mixed(BRANCH, "bf16"))
    assert found.count("matmul bfloat16 bfloat16") == 3 and found.count("cast float32") == 6


def test_patterns_choose_the_policy_by_the_names_of_operands() -> None:
    func = mixed(BLOCK, {"w": "f32", "*": "bf16"})
    assert [c for c in calls(func) if "matmul" in c] == ["matmul bfloat16 bfloat16", "matmul float32 float32"]
    assert func.attr("precision") == "bf16 w=f32"
    func = mixed(BLOCK, {"w*": "bf16x3"})
    assert [c for c in calls(func) if "matmul" in c] == ["matmul float32 float32", "matmul bfloat16 bfloat16"]


def test_f32_and_modules_without_a_policy_are_unchanged() -> None:
    mod = module(BLOCK)
    assert to_mixed_precision(mod) is mod
    plain = with_precision(mod, "f32")
    assert to_mixed_precision(plain) is plain
    done = to_mixed_precision(with_precision(mod, "bf16"))
    assert to_mixed_precision(done)["main"] is done["main"], "operands are bfloat16 already"


def test_text_and_its_constants_round_trip() -> None:
    func = mixed(BLOCK, "bf16x3")
    again = parse(str(func), large_constants(func))
    assert str(again) == str(func) and "bfloat16" in str(func)
    given = data((6, 16), (16, 6))
    for a, b in zip(run(again, given), run(func, given), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pattern_that_matches_nothing_is_a_warning() -> None:
    mod = module(BLOCK)
    with pytest.warns(PatternWarning, match=r"precision: no name matches the pattern 'head\.\*'\. Weights: w\.$"):
        with_precision(mod, {"w": "bf16", "head.*": "bf16", "*": "f32"})


def test_refusals() -> None:
    mod = module(BLOCK)
    with pytest.raises(UserError, match=r"there is no precision policy 'bf61'; policies are f32, bf16, bf16x3\. Did you mean 'bf16'"):
        with_precision(mod, "bf61")
    with pytest.raises(UserError, match="there is no precision policy 'fp8'"):
        with_precision(mod, {"w": "fp8"})
    with pytest.raises(UserError, match=r"there is no precision policy 'int8'; .*\. tunesmith\.quantize makes a model in int8\."):
        with_precision(mod, "int8")
    with pytest.raises(UserError, match=r"'a b' is not a pattern of names, such as 'layer1\.\*'"):
        with_precision(mod, {"a b": "bf16"})
    func = workload("matmul(m=4,n=4,k=4)").func
    with pytest.raises(UserError, match="this module has no graph function. Give the operators of a function the types"):
        with_precision(IRModule({func.name: func}), "bf16")
    with pytest.raises(
        UserError, match=r"precision='bf16' is for models, and none of \['relu\(shape=4\)', 'matmul\(m=4,n=4,k=4\)'\] is one"
    ):
        tunesmith.tune(["relu(shape=4)", "matmul(m=4,n=4,k=4)"], precision="bf16", log=None)
    with pytest.raises(UserError, match=r"precision='bf16' is for models, and 'matmul\(m=4,n=4,k=4\)' is none"):
        tunesmith.tune("matmul(m=4,n=4,k=4)", log=None, precision="bf16")
    with pytest.raises(UserError, match="this module has no graph function"):
        tunesmith.compile(func, precision="bf16")
    assert isinstance(func, PrimFunc) and POLICIES == ("f32", "bf16", "bf16x3")


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UserError, match="a precision policy is for a model, an IRModule of from_torch, from_onnx or a builder, not a dict"):
        with_precision({}, "bf16")  # type: ignore[arg-type]
