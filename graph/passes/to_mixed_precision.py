"""Compute contractions in a lower precision, by the policy of the function (source: TVM's ToMixedPrecision).

    f32       operands as they are
    bf16      operands rounded to bfloat16, products summed in float32
    bf16x3    operands split into two bfloat16 parts, x = high + low, and three of the four products summed in float32
              (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019)

Only the operands of contractions are rounded: results, residuals, norms and softmax stay float32.  The relative error of one product is
about 2**-8 for bf16 and 2**-16 for bf16x3.  bf16x3 is one contraction of bfloat16 with a reduction three times as long: the parts are
concatenated along the reduction, (high, high, low) of the first operand with (high, low, high) of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.name_patterns import warn_unmatched
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.operators.nn import terms_of
from tunesmith.graph.operators.split_bfloat16 import split_parts
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.ir.function import IRModule
from tunesmith.runtime.arrays import in_bfloat16
from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean

POLICIES = ("f32", "bf16", "bf16x3")
PRECISION = "precision"
"""The attribute of a graph function with its policy, such as "bf16" or "bf16 head.*=f32"."""

Precision = str | Mapping[str, str]
"""One policy for all contractions, or policies by the names of operands (of weights, usually), whose keys are patterns such as "layer1.*";
the key "*" is the policy of all others, by default f32.  The first pattern that matches decides."""

SPLIT = ("hhl", "hlh")
"""The parts of the operands of a contraction in bf16x3."""


def with_precision(mod: IRModule, precision: Precision) -> IRModule:
    """The model with a precision policy, which `tune`, `compile` and records of tasks follow.

    Args:
        mod: a model: a module with graph functions.
        precision: the policy of all contractions, or of those with an operand whose name matches a pattern.  A pattern that matches no
            name is a PatternWarning.
    Raises:
        UserError: no model, a policy is unknown, or the module has no graph function.
    """
    if not isinstance(mod, IRModule):
        raise UserError(f"a precision policy is for a model, an IRModule of from_torch, from_onnx or a builder, not a {type(mod).__name__}")
    text = _text(precision)
    graphs = {name: f for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is None}
    if not graphs:
        raise UserError(
            f"precision={precision!r} is for models: this module has no graph function. Give the operators of a function the types, "
            'as in "matmul(m=512,n=512,k=512,dtype=bfloat16)"'
        )
    if isinstance(precision, Mapping):
        warn_unmatched(graphs.values(), [pattern for pattern in precision if pattern != "*"], "precision")
    attrs = {name: tuple(sorted({**dict(f.attrs), PRECISION: text}.items())) for name, f in graphs.items()}
    return mod.update({name: f.with_(attrs=attrs[name]) for name, f in graphs.items()})


def to_mixed_precision(mod: IRModule) -> IRModule:
    """Round or split the float32 operands of contractions according to the attribute `precision` of their graph function.

    Grouped and transposed convolutions stay float32, and those in bf16x3 whose padding is not 0.  Constants are rounded at compile time, a
    value with several uses once.

    Raises:
        UserError: the attribute names an unknown policy.
    """
    found = {name: f for name, f in mod.items() if isinstance(f, GraphFunc) and f.attr(PRECISION) not in (None, "f32")}
    # Views of float32 whose source is rounded instead are dead.
    return dead_code(mod.update({name: _Cast(str(f.attr(PRECISION)))(f) for name, f in found.items()})) if found else mod


def _text(precision: Precision) -> str:
    given = precision if isinstance(precision, Mapping) else {"*": precision}
    for pattern, policy in given.items():
        if policy not in POLICIES:
            hint = did_you_mean(str(policy), POLICIES, 0.5)
            if policy in ("int8", "uint8"):
                hint = " tunesmith.quantize makes a model in int8."
            raise UserError(f"there is no precision policy {policy!r}; policies are {', '.join(POLICIES)}.{hint}")
        if not isinstance(pattern, str) or not pattern or any(c.isspace() or c == "=" for c in pattern):
            raise UserError(f"precision={precision!r}: {pattern!r} is not a pattern of names, such as 'layer1.*'")
    others = given.get("*", "f32")
    return " ".join([others, *[f"{pattern}={policy}" for pattern, policy in given.items() if pattern != "*"]])


class _Cast(Rewriter):
    """Rewrite one function.

    Args:
        text: the policy, in the form of the attribute.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        others, *rules = text.split()
        self._rules = [rule.split("=") for rule in rules]
        self._others = _text(others)
        self._rounded: dict[tuple[object, ...], Operand] = {}

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        if not isinstance(operation, Call) or operation.operator not in _REDUCED:
            return None
        x, w = operation.args
        policy = self._policy(x, w)
        axes = _REDUCED[operation.operator](operation)
        if policy == "f32" or axes is None or not x.type.dtype == w.type.dtype == "float32":
            return None
        if policy == "bf16x3" and operation.keywords.get("padding_value"):
            return None  # each part would be padded with the whole value
        parts = SPLIT if policy == "bf16x3" else ("", "")
        args = [self._operand(o, axis, part, build) for o, axis, part in zip((x, w), axes, parts, strict=True)]
        return [build.call(operation.operator, *args, **{**operation.keywords, "out_dtype": "float32"})]

    def _policy(self, x: Operand, w: Operand) -> str:
        for pattern, policy in self._rules:
            if any(fnmatchcase(o.name, pattern) for o in (x, w)):
                return policy
        return self._others

    def _operand(self, o: Operand, axis: int, parts: str, build: RegionBuilder) -> Operand:
        """The rounded operand, or its parts concatenated along an axis.  A value is rounded once in each region."""
        key = (o.digest if isinstance(o, Constant) else (build, o), axis if parts else None, parts)
        if key not in self._rounded:
            self._rounded[key] = self._make(o, axis, parts, build)
        return self._rounded[key]

    def _make(self, o: Operand, axis: int, parts: str, build: RegionBuilder) -> Operand:
        if isinstance(o, Constant):
            return Constant(o.name, split_parts(o.data, axis, parts) if parts else in_bfloat16(o.data))
        if parts:
            return build.split_bfloat16(o, axis=axis, parts=parts, name=o.name)
        view = self.made_by(o)
        if view is not None and GRAPH_OPERATORS.get(view.operator).view:
            # The cast of the source joins the operators that compute it; the view of the result needs no code.
            source, *others = view.args
            return build.call(view.operator, self._operand(source, axis, parts, build), *others, name=o.name, **view.keywords)
        return build.cast(o, dtype="bfloat16", name=o.name)


def _matmul_axes(call: Call) -> tuple[int, int]:
    return -1, -2 if len(call.args[1].type.shape) > 1 else 0


def _einsum_axes(call: Call) -> tuple[int, int] | None:
    """The last summed letter of the first operand, whose elements are the closest in memory."""
    x, w, out = terms_of(str(call.attr("equation")))
    summed = [c for c in x if c not in out]
    return (x.index(summed[-1]), w.index(summed[-1])) if summed else None


def _channel_axes(call: Call) -> tuple[int, int] | None:
    """The input channels, unless the convolution is grouped or depthwise."""
    x, w = call.args
    rank, layout = len(x.type.shape), str(call.attr("layout"))
    if call.attr("groups") != 1 or len(w.type.shape) != rank:
        return None
    image = str(call.keywords.get("image_layout") or layout)
    return image.index("C"), rank - 2 if layout.endswith("C") else 1


_REDUCED: dict[str, Callable[[Call], tuple[int, int] | None]] = {
    "matmul": _matmul_axes,
    "einsum": _einsum_axes,
    "conv2d": _channel_axes,
    "conv3d": _channel_axes,
}
"""For each contraction, an axis of each operand over which products are summed; None if the call stays float32."""
