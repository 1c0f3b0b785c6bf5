"""Fold permutations of axes into the contractions that read or write the permuted tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_lowercase

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, Operand, Region, used, with_branches
from tunesmith.graph.operators.axes import permutation_of
from tunesmith.graph.operators.nn import terms_of
from tunesmith.ir.function import IRModule

MAX_CHANNELS = 4
"""Maximum number of image channels for folding; sums over more channels need them contiguous."""


def fold_permutes(mod: IRModule) -> IRModule:
    """Apply these rewrites, for matmuls of operands with equal batch extents:

        matmul(permute_dims(x), y)          ->  einsum(x, y)             also for the second operand, and for both
        permute_dims(matmul(x, y))          ->  einsum(x, y)             if the product has no other use; also for an einsum
        conv2d(permute_dims(x), w)          ->  conv2d(x, w, image_layout="NCHW")     for NHWC and up to `MAX_CHANNELS` channels

    Transformer attention then needs no copies of queries, keys, values and results, and the first layer of an image network reads its
    input in the original layout.
    """
    return mod.update({name: _function(f) for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is None})


def _function(func: GraphFunc) -> GraphFunc:
    body = _region(func.body, {})
    return func if body is func.body else func.with_(body=body)


def _region(region: Region, outside: Mapping[Operand, Call]) -> Region:
    """The rewritten region; `outside` maps values of the enclosing regions to the calls that compute them."""
    uses = Counter([o for b in region.bindings for o in used(b.operation)] + list(region.results))
    calls = dict(outside)
    local: dict[Operand, Binding] = {}
    removed: set[Binding] = set()
    out: list[Binding] = []
    for b in region.bindings:
        b = with_branches(b, lambda r: _region(r, calls))
        op = b.operation
        if isinstance(op, Call) and op.operator == "matmul":
            b = _fold_into_operands(b, op, calls)
        elif isinstance(op, Call) and op.operator == "conv2d":
            b = _fold_into_image(b, op, calls)
        elif isinstance(op, Call) and op.operator == "permute_dims" and op.args[0] in local and uses[op.args[0]] == 1:
            source = local[op.args[0]]
            folded = _fold_into_result(source, op)
            if folded is not None:
                removed.add(source)
                b = Binding(b.results, folded)
        if isinstance(b.operation, Call):
            calls[b.results[0]] = b.operation
            local[b.results[0]] = b
        out.append(b)
    if all(new is old for new, old in zip(out, region.bindings, strict=True)):
        return region
    return Region(tuple([b for b in out if b not in removed]), region.results)


def _fold_into_operands(b: Binding, call: Call, calls: Mapping[Operand, Call]) -> Binding:
    """The product on the unpermuted operands, if any operand is a permutation."""
    terms = _terms(call)
    if terms is None:
        return b
    args, letters = list(call.args), list(terms[:2])
    for i, o in enumerate(call.args):
        source = calls.get(o)
        if source is not None and source.operator == "permute_dims":
            args[i], letters[i] = source.args[0], _before(letters[i], _axes(source))
    if args == list(call.args):
        return b
    return Binding(b.results, _einsum(call, args, (*letters, terms[2])))


def _fold_into_image(b: Binding, call: Call, calls: Mapping[Operand, Call]) -> Binding:
    """The convolution on the NCHW image, if its operand is a conversion of that image to NHWC."""
    source = calls.get(call.args[0])
    if source is None or source.operator != "permute_dims" or _axes(source) != (0, 2, 3, 1):
        return b
    channels = source.args[0].type.shape[1].const
    if call.attr("layout") != "NHWC" or call.attr("image_layout") or channels is None or channels > MAX_CHANNELS:
        return b
    return Binding(b.results, Call("conv2d", (source.args[0], call.args[1]), tuple({**call.keywords, "image_layout": "NCHW"}.items())))


def _fold_into_result(product: Binding, permute: Call) -> Call | None:
    """The product with the permutation applied to the axes of its result."""
    call = product.operation
    assert isinstance(call, Call)
    terms = terms_of(str(call.attr("equation"))) if call.operator == "einsum" else _terms(call) if call.operator == "matmul" else None
    if terms is None:
        return None
    x, y, out = terms
    return _einsum(call, call.args, (x, y, "".join([out[a] for a in _axes(permute)])))


def _einsum(call: Call, args: Sequence[Operand], terms: Sequence[str]) -> Call:
    """An einsum with the type of the result of `call`."""
    x, y, out = terms
    return Call("einsum", tuple(args), (("equation", f"{x},{y}->{out}"), ("out_dtype", call.attr("out_dtype"))))


def _terms(matmul: Call) -> tuple[str, str, str] | None:
    """The einsum terms of a product of matrices, or of batches with equal extents."""
    a, b = [o.type.shape for o in matmul.args]
    if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2]:
        return None
    batch, (i, j, k) = ascii_lowercase[: len(a) - 2], "xyz"
    return f"{batch}{i}{k}", f"{batch}{k}{j}", f"{batch}{i}{j}"


def _axes(permute: Call) -> tuple[int, ...]:
    return permutation_of(permute.attr("axes"), len(permute.args[0].type.shape))


def _before(term: str, axes: tuple[int, ...]) -> str:
    """The term of a tensor whose permutation by `axes` has the letters `term`."""
    found = dict(zip(axes, term, strict=True))
    return "".join([found[d] for d in range(len(term))])
