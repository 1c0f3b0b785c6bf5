"""Simplify operators for inference: decompose batch normalisation and split, and remove calls without effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.verify import infer
from tunesmith.graph.operators.axes import permutation_of
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ZERO, poly


def simplify_inference(mod: IRModule) -> IRModule:
    """Rewrite calls by the rules in `RULES`:

    - `batch_norm(x, gamma, beta, mean, var)` becomes `x * scale + shift`, with scale and shift computed from the four (folded later if
      constant);
    - `conv2d_transpose` of stride 1 with a constant filter of float32 becomes `conv2d` with the filter turned by 180 degrees, and input and
      output channels exchanged in each group (source: Dumoulin and Visin, A guide to convolution arithmetic, 2016);
    - `split(x)` becomes a `strided_slice` for each result, so that each can be fused with its users;
    - `expand_dims` and `squeeze` become `reshape`, the only view that other passes handle;
    - `reshape` of `reshape` and `permute_dims` of `permute_dims` become one;
    - `identity`, and `cast`, `reshape`, `permute_dims`, `broadcast_to` and `pad` without effect become the operand.
    """
    return mod.update({name: _Simplify()(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Simplify(Rewriter):
    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call) or operation.operator not in RULES:
            return None
        return RULES[operation.operator](self, operation, build)

    def source(self, call: Call) -> Call | None:
        """The call that computes the first operand of `call`, None if it is no result of a call."""
        return self.made_by(call.args[0])


def _batch_norm(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x, gamma, beta, mean, var = call.args
    if x.type.dtype == "bfloat16":  # numpy cannot represent eps in bfloat16
        return None
    axis, eps = call.attr("axis"), call.attr("eps")
    small = build.constant(np.asarray(eps, var.type.dtype), "eps")
    scale = build.multiply(gamma, build.rsqrt(build.add(var, small)), name="scale")
    shift = build.subtract(beta, build.multiply(mean, scale), name="shift")
    rank = len(x.type.shape)
    shape = [e if d == axis % rank else 1 for d, e in enumerate(x.type.shape)][axis % rank :]
    aligned = [build.reshape(v, shape=shape) if len(shape) > 1 else v for v in (scale, shift)]
    return [build.add(build.multiply(x, aligned[0]), aligned[1], name="batch_norm")]


def _conv2d_transpose(s: _Simplify, call: Call, build: RegionBuilder) -> list[Operand] | None:
    x, w = call.args
    layout, groups, dilation = call.attr("layout"), call.attr("groups"), call.attr("dilation")
    window = [e.const for e in (w.type.shape[:2] if layout == "NHWC" else w.type.shape[2:])]
    if call.attr("strides") != (1, 1) or not isinstance(w, Constant) or w.type.dtype != "float32":
        return None
    edges = zip(call.attr("padding"), (*window, *window), (*dilation, *dilation), (0, 0, *call.attr("output_padding")), strict=True)
    padding = [d * ((k or 1) - 1) - p + o for p, k, d, o in edges]
    if min(padding) < 0:
        return None
    if layout == "NHWC":
        kh, kw, each, inputs = w.type.extents
        split, order, shape = (kh, kw, each, groups, inputs // groups), (0, 1, 4, 3, 2), (kh, kw, inputs // groups, groups * each)
    else:
        inputs, each, kh, kw = w.type.extents
        split, order, shape = (groups, inputs // groups, each, kh, kw), (0, 2, 1, 3, 4), (groups * each, inputs // groups, kh, kw)
    turned = build.flip(w, axes=(0, 1) if layout == "NHWC" else (2, 3), name=w.name)
    filters = build.reshape(build.permute_dims(build.reshape(turned, shape=split), axes=order), shape=shape, name=w.name)
    return [build.conv2d(x, filters, padding=tuple(padding), dilation=dilation, groups=groups, layout=layout)]


def _split(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand]:
    x, at, out = call.args[0], ZERO, []
    axis = call.attr("axis") % len(x.type.shape)
    for size in call.attr("sizes"):
        out.append(build.strided_slice(x, axes=(axis,), begin=(at,), end=(at + size,)))
        at = at + size
    return out


def _identity(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand]:
    return [call.args[0]]


def _view(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    (result,) = infer(call.operator, [call.args[0].type], call.attrs)
    source = s.source(call)
    x = source.args[0] if source is not None and source.operator == "reshape" else call.args[0]
    if x.type.shape == result.shape:
        return [x]
    return None if call.operator == "reshape" and x is call.args[0] else [build.reshape(x, shape=result.shape)]


def _permute(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x, axes, source = call.args[0], _order(call), s.source(call)
    if source is not None and source.operator == "permute_dims":
        x, axes = source.args[0], tuple([_order(source)[a] for a in axes])
    if axes == tuple(range(len(axes))):
        return [x]
    return None if x is call.args[0] else [build.permute_dims(x, axes=axes)]


def _order(call: Call) -> tuple[int, ...]:
    """The operand axis of each result axis of a permute_dims."""
    return permutation_of(call.attr("axes"), len(call.args[0].type.shape))


def _broadcast_to(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if tuple([poly(e) for e in call.attr("shape")]) == call.args[0].type.shape else None


def _cast(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if call.attr("dtype") == call.args[0].type.dtype else None


def _pad(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if all(n == 0 for n in (*call.attr("before"), *call.attr("after"))) else None


RULES: dict[str, Callable[[_Simplify, Call, RegionBuilder], Sequence[Operand] | None]] = {
    "batch_norm": _batch_norm,
    "conv2d_transpose": _conv2d_transpose,
    "broadcast_to": _broadcast_to,
    "cast": _cast,
    "expand_dims": _view,
    "identity": _identity,
    "pad": _pad,
    "permute_dims": _permute,
    "reshape": _view,
    "split": _split,
    "squeeze": _view,
}
"""Operator -> rule; a rule returns the new results, or None if it does not apply."""
