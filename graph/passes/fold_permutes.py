"""fold_permutes: a contraction reads and writes its axes in any order, so nobody has to move them before or after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from string import ascii_lowercase

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, If, Operand, Region, used
from tunesmith.graph.operators.nn import terms_of
from tunesmith.ir.function import IRModule

FEW = 4
"""Channels of an image.  With more, neighbouring channels should lie together when they are summed."""


def fold_permutes(mod: IRModule) -> IRModule:
    """Rewrites, for matmuls of operands with equal batch extents:

    matmul(permute_dims(x), y)          ->  einsum(x, y)             also of the second operand, and of both
    permute_dims(matmul(x, y))          ->  einsum(x, y)             where nothing else uses the product; also of an einsum
    conv2d(permute_dims(x), w)          ->  conv2d(x, w, image_layout="NCHW")     for NHWC and up to `FEW` channels

    The attention of a transformer needs no copies of queries, keys, values and results then, and the first layer of a network of images
    takes them as they come.
    """
    return mod.update({name: _function(f) for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is None})


def _function(func: GraphFunc) -> GraphFunc:
    body = _region(func.body, {})
    return func if body is func.body else func.with_(body=body)


def _region(region: Region, outside: Mapping[Operand, Call]) -> Region:
    """The region with its contractions; `outside` are the calls that made values of the regions around it."""
    uses = Counter([o for b in region.bindings for o in used(b.operation)] + list(region.results))
    made = dict(outside)
    mine: dict[Operand, Binding] = {}
    gone: set[Binding] = set()
    out: list[Binding] = []
    for b in region.bindings:
        op = b.operation
        if isinstance(op, If):
            then, otherwise = _region(op.then, made), _region(op.otherwise, made)
            if then is not op.then or otherwise is not op.otherwise:
                b = Binding(b.results, If(op.condition, then, otherwise))
        elif isinstance(op, Call) and op.operator == "matmul":
            b = _read(b, op, made)
        elif isinstance(op, Call) and op.operator == "conv2d":
            b = _pictured(b, op, made)
        elif isinstance(op, Call) and op.operator == "permute_dims" and op.args[0] in mine and uses[op.args[0]] == 1:
            source = mine[op.args[0]]
            written = _written(source, op)
            if written is not None:
                gone.add(source)
                b = Binding(b.results, written)
        if isinstance(b.operation, Call):
            made[b.results[0]] = b.operation
            mine[b.results[0]] = b
        out.append(b)
    if all(new is old for new, old in zip(out, region.bindings, strict=True)):
        return region
    return Region(tuple([b for b in out if b not in gone]), region.results)


def _read(b: Binding, call: Call, made: Mapping[Operand, Call]) -> Binding:
    """The product that reads what its operands were made from, if these only move axes."""
    terms = _terms(call)
    if terms is None:
        return b
    args, letters = list(call.args), list(terms[:2])
    for i, o in enumerate(call.args):
        source = made.get(o)
        if source is not None and source.operator == "permute_dims":
            args[i], letters[i] = source.args[0], _before(letters[i], _axes(source))
    if args == list(call.args):
        return b
    return Binding(b.results, Call("einsum", tuple(args), (("equation", f"{letters[0]},{letters[1]}->{terms[2]}"),)))


def _pictured(b: Binding, call: Call, made: Mapping[Operand, Call]) -> Binding:
    """The convolution that reads an image as it was before its channels were moved behind its pixels."""
    source = made.get(call.args[0])
    if source is None or source.operator != "permute_dims" or _axes(source) != (0, 2, 3, 1):
        return b
    channels = source.args[0].type.shape[1].const
    if call.attr("layout") != "NHWC" or call.attr("image_layout") or channels is None or channels > FEW:
        return b
    return Binding(b.results, Call("conv2d", (source.args[0], call.args[1]), tuple({**call.keywords, "image_layout": "NCHW"}.items())))


def _written(product: Binding, permute: Call) -> Call | None:
    """The product with its result's axes in another order."""
    call = product.operation
    assert isinstance(call, Call)
    terms = terms_of(str(call.attr("equation"))) if call.operator == "einsum" else _terms(call) if call.operator == "matmul" else None
    if terms is None:
        return None
    x, y, out = terms
    return Call("einsum", call.args, (("equation", f"{x},{y}->{''.join([out[a] for a in _axes(permute)])}"),))


def _terms(matmul: Call) -> tuple[str, str, str] | None:
    """The letters of a product of matrices, or of batches with equal extents."""
    a, b = [o.type.shape for o in matmul.args]
    if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2]:
        return None
    batch, (i, j, k) = ascii_lowercase[: len(a) - 2], "xyz"
    return f"{batch}{i}{k}", f"{batch}{k}{j}", f"{batch}{i}{j}"


def _axes(permute: Call) -> tuple[int, ...]:
    rank = len(permute.args[0].type.shape)
    return tuple([a % rank for a in permute.attr("axes")])


def _before(term: str, axes: tuple[int, ...]) -> str:
    """Letters of what is permuted so that its axes have the letters `term`."""
    found = dict(zip(axes, term, strict=True))
    return "".join([found[d] for d in range(len(term))])
