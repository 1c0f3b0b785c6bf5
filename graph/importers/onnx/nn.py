"""Convert ONNX products and convolutions over one to three dimensions; 1-D ones are 2-D of height 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, extents, rank, shape_of
from tunesmith.graph.importers.onnx.shapes import padded
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode
from tunesmith.ir.poly import Index, Poly, ceildiv, maximum, poly


@dataclass(frozen=True)
class Window:
    """A sliding kernel; each attribute has one entry per spatial dimension.

    Attributes:
        kernel: extents.
        strides: steps.
        dilations: distances between elements.
        before: leading padding.
        after: trailing padding.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, node: OnnxNode, kernel: Sequence[int], spatial: Sequence[Index]) -> Window:
        """A window from the attributes strides, dilations, pads and auto_pad."""
        n = len(spatial)
        if len(kernel) != n or any(k < 1 for k in kernel):
            raise UnsupportedNode(f"the kernel has the extents {list(kernel)}, expected {n} extents >= 1")
        strides = node.each("strides", n, [1] * n)
        dilations = node.each("dilations", n, [1] * n)
        if min((*strides, *dilations), default=1) < 1:
            raise UnsupportedNode(f"strides {list(strides)} and dilations {list(dilations)} must be at least 1")
        pads = node.each("pads", 2 * n, [0] * 2 * n)
        before, after = pads[:n], pads[n:]
        auto = node.attr("auto_pad", "NOTSET")
        if auto == "VALID":
            before = after = (0,) * n
        if auto.startswith("SAME"):
            totals = [_same(e, k, s, d) for e, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)]
            small, large = tuple([t // 2 for t in totals]), tuple([t - t // 2 for t in totals])
            before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
        return cls(tuple(kernel), strides, dilations, before, after)

    def part(self, *dims: int) -> Window:
        """The window restricted to some dimensions; -1 adds a dimension of kernel extent 1."""
        fields = [(self.kernel, 1), (self.strides, 1), (self.dilations, 1), (self.before, 0), (self.after, 0)]
        return Window(*[tuple([default if d < 0 else values[d] for d in dims]) for values, default in fields])

    @property
    def padding(self) -> tuple[int, ...]:
        """Padding as all low sides and then all high sides: (top, left, bottom, right) in two dimensions."""
        return (*self.before, *self.after)


def _same(extent: Index, kernel: int, stride: int, dilation: int) -> int:
    total = maximum((ceildiv(extent, stride) - 1) * stride + (kernel - 1) * dilation + 1 - poly(extent), 0)
    if total.const is None:
        raise UnsupportedNode(f"auto_pad along the symbolic extent {extent} with stride {stride}; fix it with shapes=")
    return total.const


def _matmul(node: OnnxNode) -> Converted:
    return node.b.matmul(node.input(0), node.input(1))


def _gemm(node: OnnxNode) -> Converted:
    x, y, b = node.input(0), node.input(1), node.b
    x = b.permute_dims(x, axes=(1, 0)) if node.attr("transA", 0) else x
    y = b.permute_dims(y, axes=(1, 0)) if node.attr("transB", 0) else y
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    made = b.matmul(x, y)
    if alpha != 1:
        made = b.multiply(made, node.like(alpha, made))
    if not node.has(2) or beta == 0:
        return made
    c = node.input(2)
    return b.add(made, c if beta == 1 else b.multiply(c, node.like(beta, c)))


def _einsum(node: OnnxNode) -> Converted:
    """Einsum of at most two operands without ellipsis, with axes classified as batch, row, column or reduced."""
    b, equation = node.b, node.attr("equation").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = "".join(terms)
        result = "".join(sorted({c for c in letters if letters.count(c) == 1}))
    if len(terms) > 2 or "." in equation or any(len(set(t)) != len(t) for t in (*terms, result)):
        raise node.refuse(f"the equation {node.attr('equation')!r}")
    if len(terms) == 1:
        return _arranged(node, node.input(0), terms[0], result)
    x, y = node.input(0), node.input(1)
    sizes: dict[str, Poly | int] = {c: e for t, v in zip(terms, (x, y), strict=True) for c, e in zip(t, shape_of(v), strict=True)}
    batch = [c for c in terms[0] if c in terms[1] and c in result]
    reduced = [c for c in terms[0] if c in terms[1] and c not in result]
    rows = [c for c in terms[0] if c not in terms[1] and c in result]
    columns = [c for c in terms[1] if c not in terms[0] and c in result]
    x = _arranged(node, x, terms[0], "".join(batch + rows + reduced))
    y = _arranged(node, y, terms[1], "".join(batch + reduced + columns))

    def shape(*groups: Sequence[str]) -> tuple[Index, ...]:
        made: list[Poly | int] = [sizes[c] for c in batch]
        for group in groups:
            total: Poly | int = 1
            for c in group:
                total = total * sizes[c]
            made.append(total)
        return tuple(made)

    product = b.matmul(b.reshape(x, shape=shape(rows, reduced)), b.reshape(y, shape=shape(reduced, columns)))
    order = "".join(batch + rows + columns)
    product = b.reshape(product, shape=tuple([sizes[c] for c in order]))
    return _arranged(node, product, order, result)


def _arranged(node: OnnxNode, x: Datum, term: str, result: str) -> Datum:
    """Sum over axes that are not in `result`, and permute the rest to its order."""
    summed = tuple([i for i, c in enumerate(term) if c not in result])
    if summed:
        x = node.b.sum(x, axes=summed)
    remaining = [c for c in term if c in result]
    order = tuple([remaining.index(c) for c in result])
    return x if order == tuple(range(len(order))) else node.b.permute_dims(x, axes=order)


def add_bias(node: OnnxNode, y: Datum, bias: Datum | None) -> Datum:
    """Add a per-channel bias along axis 1."""
    if bias is None:
        return y
    return node.b.add(y, node.b.reshape(bias, shape=(1, shape_of(bias)[0], *[1] * (rank(y) - 2))))


def convolve(node: OnnxNode, x: Datum, w: Datum) -> Datum:
    """The convolution described by the node's attributes, over one to three spatial dimensions.

    Args:
        node: node with the attributes strides, dilations, pads, auto_pad and group.
        x: [n, ci, ...].
        w: [co, ci / group, ...].
    """
    b, n, groups = node.b, rank(x) - 2, node.attr("group", 1)
    kernel = extents(w, "the kernel")[2:]
    if node.each("kernel_shape", n, kernel) != tuple(kernel):
        raise UnsupportedNode(f"the attribute kernel_shape is {node.attr('kernel_shape')}, but the weights have {list(kernel)}")
    window = Window.of(node, kernel, shape_of(x)[2:])
    if n == 1:
        line = window.part(-1, 0)
        return b.squeeze(_plane(node, b.expand_dims(x, axes=(2,)), b.expand_dims(w, axes=(2,)), line, groups), axes=(2,))
    if n == 2:
        return _plane(node, x, w, window, groups)
    if n == 3:
        return b.conv3d(x, w, strides=window.strides, padding=window.padding, dilation=window.dilations, groups=groups, layout="NCDHW")
    raise node.refuse(f"a convolution over {n} dimensions")


def _plane(node: OnnxNode, x: Datum, w: Datum, window: Window, groups: int) -> Datum:
    return node.b.conv2d(x, w, strides=window.strides, padding=window.padding, dilation=window.dilations, groups=groups, layout="NCHW")


def _conv(node: OnnxNode) -> Converted:
    return add_bias(node, convolve(node, node.input(0), node.input(1)), node.get(2))


def _conv_transpose(node: OnnxNode) -> Converted:
    x, w, b = node.input(0), node.input(1), node.b
    n = rank(x) - 2
    if n not in (1, 2, 3):
        raise node.refuse(f"a transposed convolution over {n} dimensions")
    kernel, spatial = extents(w, "the kernel")[2:], shape_of(x)[2:]
    strides, dilations = tuple(node.attr("strides", [1] * n)), tuple(node.attr("dilations", [1] * n))
    extra = list(node.attr("output_padding", [0] * n))
    pads = list(node.attr("pads", [0] * 2 * n))
    auto, requested = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if requested is not None or auto.startswith("SAME"):
        for i in range(n):
            size = requested[-n:][i] if requested is not None else spatial[i] * strides[i]
            missing = poly(strides[i] * (spatial[i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - size)
            total = missing.as_int() if missing.const is not None else _refuse_size(spatial[i])
            extra[i] += max(-total, 0)
            total = max(total, 0)
            small, large = total // 2, total - total // 2
            pads[i], pads[n + i] = (small, large) if auto == "SAME_UPPER" else (large, small)
    if n == 1:
        x, w = b.expand_dims(x, axes=(2,)), b.expand_dims(w, axes=(2,))
        strides, dilations, extra, pads = (1, *strides), (1, *dilations), [0, *extra], [0, pads[0], 0, pads[1]]
    # Extra rows are padding that is not cropped; output_shape may request more than output_padding allows.
    cut = [max(e - max(s, d) + 1, 0) for e, s, d in zip(extra, strides, dilations, strict=True)]
    made = b.call(
        "conv3d_transpose" if n == 3 else "conv2d_transpose",
        x,
        w,
        strides=strides,
        padding=tuple(pads),
        output_padding=tuple([e - c for e, c in zip(extra, cut, strict=True)]),
        dilation=dilations,
        groups=node.attr("group", 1),
        layout="NCDHW" if n == 3 else "NCHW",
    )
    made = padded(node, made, (0,) * (2 + len(cut)), (0, 0, *cut))
    return add_bias(node, b.squeeze(made, axes=(2,)) if n == 1 else made, node.get(2))


def _refuse_size(e: Index) -> int:
    raise UnsupportedNode(f"the padding depends on the symbolic extent {e}; fix it with shapes=")


def _integer(x: Datum, zero: Datum | None, node: OnnxNode, axis: int | None = None) -> Datum:
    """Integers as int32 with their zero point subtracted."""
    b = node.b
    wide = cast_to(b, x, "int32")
    if zero is None:
        return wide
    zero = cast_to(b, zero, "int32")
    if rank(zero) == 1 and axis is not None:
        zero = _along(node, zero, rank(x), axis)
    return b.subtract(wide, zero)


def _along(node: OnnxNode, v: Datum, n: int, axis: int) -> Datum:
    extent = shape_of(v)[0]
    return node.b.reshape(v, shape=tuple([extent if i == axis else 1 for i in range(n)]))


def _matmul_integer(node: OnnxNode) -> Converted:
    x, y = node.input(0), node.input(1)
    left = _integer(x, node.get(2), node, rank(x) - 2)
    right = _integer(y, node.get(3), node, rank(y) - 1)
    return node.b.matmul(left, right)


def _conv_integer(node: OnnxNode) -> Converted:
    return convolve(node, _integer(node.input(0), node.get(2), node), _integer(node.input(1), node.get(3), node, 0))


CONVERTERS: Mapping[str, Converter] = {
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul_integer,
}
