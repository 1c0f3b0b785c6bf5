"""Propose one function for chains of convolutions whose images exceed the caches: expand, depthwise and project of MobileNet.

One function computes the layers for some rows of the last image, before it computes the next rows, so that the images between the layers
stay in the caches; rows that windows share are computed again.  Whether this pays depends on the sizes and on the machine: the module
contains both, and `graph.tuning.choose_parts` chooses by the records (source: Alwani et al., Fused-Layer CNN Accelerators, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Binding, Call, Operand, Operation, Region
from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GRAPH_OPERATORS
from tunesmith.graph.passes.depthwise import image_of_depthwise
from tunesmith.graph.passes.propose import Chain, Uses, propose
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ONE, Poly, product

LEAST_BYTES = 1 << 20
"""Bytes of an image between two layers from which one function is proposed; fewer stay in L2 caches."""
Shape = tuple[Poly, ...]


def propose_chains(mod: IRModule) -> IRModule:
    """Propose one function for layers in a row, of any two of which one is a depthwise convolution in NHWC.

    The others are products of pixels with a matrix, and convolutions.  Between them are elementwise operators, and nothing else uses their
    results.
    """
    return propose(mod, "fused_convolutions", _chains)


def _chains(region: Region, uses: Uses) -> list[Chain]:
    """The chains of a region, each as long as its shapes allow."""
    out: list[Chain] = []
    taken: set[Binding] = set()
    for b in region.bindings:
        if b not in taken and _is_layer(b):
            layers = _from(b, uses)
            prefixes = (layers[:n] for n in range(len(layers), 1, -1))
            chain = next((c for p in prefixes if _is_worthwhile(p) and (c := _in_images(p)) is not None), None)
            if chain is not None:
                taken.update(chain.replaced)
                out.append(chain)
    return out


def _is_worthwhile(layers: Sequence[Binding]) -> bool:
    """Whether there are two layers, the last binding is part of one, and an image between two layers exceeds the caches."""
    last = max(n for n, b in enumerate(layers) if _is_layer(b))
    return last > 0 and not _is_reshape(layers[-1].operation) and any(b.results[0].type.nbytes >= LEAST_BYTES for b in layers[:last])


def _from(first: Binding, uses: Uses) -> list[Binding]:
    """The bindings of the longest chain that begins with a layer; one layer is none."""
    chain, layer, layers = [first], first, 1
    while (following := _only_user(chain[-1], uses)) is not None:
        call = following.operation
        if _is_reshape(call):
            beyond = _only_user(following, uses)
            if beyond is None or not _follows(layer, beyond, following.results[0]):
                break
            chain += [following, beyond]
        elif _follows(layer, following, chain[-1].results[0]):
            chain.append(following)
        elif _is_pointwise(call) and following.results[0].type.shape == chain[-1].results[0].type.shape:
            chain.append(following)
            continue
        else:
            break
        layer, layers = chain[-1], layers + 1
    return chain if layers > 1 else []


def _only_user(b: Binding, uses: Uses) -> Binding | None:
    """The binding that uses the result of another, if it is the only one and uses it once."""
    users = uses.users.get(b.results[0], []) if len(b.results) == 1 else []
    found = users[0] if len(users) == 1 and uses.counts[b.results[0]] == 1 else None
    return found if found is not None and len(found.results) == 1 else None


def _follows(layer: Binding, following: Binding, image: Operand) -> bool:
    """Whether a binding is a layer of the image, and may be in one function with the layer before."""
    call = following.operation
    if not _is_layer(following) or not isinstance(call, Call) or call.args[0] is not image or image in call.args[1:]:
        return False
    if call.operator == "conv2d" and call.attr("image_layout") not in ("", "NHWC"):
        return False
    return _is_depthwise(layer) or _is_depthwise(following)


def _is_layer(b: Binding) -> bool:
    """Whether a binding is a product with a matrix, or a convolution whose result is in NHWC, of float32.

    Instructions for narrower types need operands in layouts that images between layers do not have.
    """
    call = b.operation
    if not isinstance(call, Call) or len(b.results) != 1 or not b.results[0].type.is_static:
        return False
    if any(v.type.dtype != "float32" for v in (*call.args, b.results[0])):
        return False
    if call.operator == "matmul":
        return len(call.args[1].type.shape) == 2 and len(call.args[0].type.shape) >= 2
    return call.operator == "conv2d" and call.attr("layout") == "NHWC"


def _is_depthwise(b: Binding) -> bool:
    return isinstance(b.operation, Call) and image_of_depthwise(b.operation) is not None


def _is_pointwise(operation: Operation) -> bool:
    return isinstance(operation, Call) and GRAPH_OPERATORS.get(operation.operator).kind in (ELEMENTWISE, BROADCAST)


def _is_reshape(operation: Operation) -> bool:
    return isinstance(operation, Call) and operation.operator == "reshape"


# ---- images in place of rows ------------------------------------------------------------------------------------------


def _in_images(layers: Sequence[Binding]) -> Chain | None:
    """The chain with the shapes of images [n, h, w, c] in place of rows [n * h * w, c], so that windows and rows have the same axes.

    None if an operand has neither the shape of the result nor that of one of its pixels.
    """
    before, calls, after = RegionBuilder(), RegionBuilder(), RegionBuilder()
    images: dict[Operand, Operand] = {}
    others: dict[tuple[Operand, Shape], Operand | None] = {}
    for n, b in enumerate(layers):
        call = b.operation
        assert isinstance(call, Call)
        if _is_reshape(call):
            image = images[call.args[0]]
            if b.results[0].type.shape not in (image.type.shape, (product(image.type.shape[:-1]), image.type.shape[-1])):
                return None
            images[b.results[0]] = image
            continue
        pixels, operands = _pixels(layers, n), list(call.args)
        for i, a in enumerate(call.args):
            if a in images and (i == 0 or not _is_layer(b)):
                operands[i] = images[a]
            elif a in images:
                return None
            elif not _is_layer(b) or (i == 0 and call.operator == "matmul"):  # a convolution reads an image already
                if (a, pixels) not in others:
                    others[a, pixels] = _image(a, b.results[0].type.shape, pixels, before)
                found = others[a, pixels]
                if found is None:
                    return None
                operands[i] = found
        images[b.results[0]] = calls.call(call.operator, *operands, name=b.results[0].name, **call.keywords)
    last, made = layers[-1], calls.bindings
    if images[last.results[0]].type == last.results[0].type:
        made[-1] = Binding(last.results, made[-1].operation)
    else:
        after.reshape(images[last.results[0]], shape=last.results[0].type.shape)
        after.bindings[-1] = Binding(last.results, after.bindings[-1].operation)
    return Chain(tuple(layers), tuple(made), tuple(before.bindings), tuple(after.bindings))


def _pixels(layers: Sequence[Binding], n: int) -> Shape:
    """The dimensions [n, h, w] of the result of a binding: of the convolution before it, or of the image that the next one reads."""
    for b in reversed(layers[: n + 1]):
        if isinstance(b.operation, Call) and b.operation.operator == "conv2d":
            return b.results[0].type.shape[:3]
    following = next(b.operation for b in layers[n:] if isinstance(b.operation, Call) and b.operation.operator == "conv2d")
    return following.args[0].type.shape[:3]


def _image(o: Operand, shape: Shape, pixels: Shape, build: RegionBuilder) -> Operand | None:
    """An operand of a binding for a result with the dimensions `pixels`: an image, or an operand that is broadcast to all pixels.

    Args:
        o: the operand.
        shape: the shape of the result.
        pixels: the dimensions [n, h, w] of the result as an image.
        build: receives a view of the operand.
    """
    own = o.type.shape
    if own[:-1] == pixels:
        return o
    if own[:-1] == shape[:-1] and product(own[:-1]) == product(pixels):
        return build.reshape(o, shape=(*pixels, own[-1]))
    return o if len(own) <= len(pixels) + 1 and all(e == ONE for e in own[:-1]) else None
