"""Import ONNX sequences and optionals: a sequence is a tuple of tensors during import, an optional is a tensor, a sequence or nothing.

A graph has neither: an operator on a sequence selects, joins or splits tensors while the model is imported, so lengths and positions must
be known then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunesmith.graph.importers.onnx.narrow import TYPES, Narrow
from tunesmith.graph.importers.onnx.node import OnnxNode, dtype_of, normalised, rank
from tunesmith.graph.importers.onnx.values import MISSING, Datum, FoldingBuilder, UnsupportedNode
from tunesmith.ir.poly import Poly, poly

if TYPE_CHECKING:
    from tunesmith.graph.importers.onnx.control import GraphImporter, Scope

Tensor = Datum | Narrow
"""A tensor during import."""

MOST_PARTS = 1024
"""Maximum length of a sequence made by SplitToSequence."""


@dataclass(frozen=True, eq=False)
class TensorSequence:
    """A sequence of tensors during import.

    Attributes:
        elements: its tensors.
        dtype: their element type, by the name that ONNX's numpy types have.
    """

    elements: tuple[Tensor, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class OptionalDatum:
    """An optional during import.

    Attributes:
        element: its tensor or sequence; None if it has no element.
        dtype: element type of the tensor, or of the tensors of the sequence.
        is_sequence: whether the element is a sequence.
    """

    element: Tensor | TensorSequence | None
    dtype: str
    is_sequence: bool


def is_composite(datum: Any) -> bool:
    """Whether a datum is a sequence or an optional."""
    return isinstance(datum, (TensorSequence, OptionalDatum))


def parts(datum: Any) -> tuple[Tensor, ...]:
    """The tensors of a tensor, sequence or optional."""
    if isinstance(datum, OptionalDatum):
        return () if datum.element is None else parts(datum.element)
    return datum.elements if isinstance(datum, TensorSequence) else (datum,)


def with_parts(datum: Any, tensors: Iterator[Datum]) -> Any:
    """A datum of the same form with other tensors; those of narrow types are given by their codes."""
    if isinstance(datum, OptionalDatum):
        return datum if datum.element is None else OptionalDatum(with_parts(datum.element, tensors), datum.dtype, datum.is_sequence)
    if isinstance(datum, TensorSequence):
        return TensorSequence(tuple([with_parts(e, tensors) for e in datum.elements]), datum.dtype)
    return Narrow(next(tensors), datum.kind) if isinstance(datum, Narrow) else next(tensors)


def dtype_name(x: Tensor) -> str:
    """The element type of a tensor."""
    return x.kind.name if isinstance(x, Narrow) else x.type.dtype


def described(datum: Any) -> str:
    """The form of a datum, without the shapes of the tensors of a sequence."""
    if isinstance(datum, OptionalDatum):
        if datum.element is None:
            return f"an optional {'sequence' if datum.is_sequence else 'tensor'} of {datum.dtype} without an element"
        return f"an optional with {described(datum.element)}"
    if isinstance(datum, TensorSequence):
        return f"a sequence of {len(datum.elements)} tensors of {datum.dtype}"
    return f"a tensor of {dtype_name(datum)}"


def nested_type(type_proto: Any) -> tuple[Any, bool, bool]:
    """The TypeProto in a TypeProto of an optional, a sequence or both; whether it is a sequence, and whether it is an optional."""
    is_optional = type_proto.WhichOneof("value") == "optional_type"
    inner = type_proto.optional_type.elem_type if is_optional else type_proto
    is_sequence = inner.WhichOneof("value") == "sequence_type"
    return (inner.sequence_type.elem_type if is_sequence else inner), is_sequence, is_optional


def _named(number: int) -> str:
    """The name of an element type by its number."""
    return TYPES[number].name if number in TYPES else dtype_of(number)


def _sequence(elements: Sequence[Tensor], dtype: str) -> TensorSequence:
    other = next((name for name in map(dtype_name, elements) if name != dtype), None)
    if other is not None:
        raise UnsupportedNode(f"a tensor of {other} in a sequence of {dtype}")
    return TensorSequence(tuple(elements), dtype)


def _operand(node: OnnxNode, i: int) -> TensorSequence:
    """Input `i`, a sequence."""
    found: Any = node.input(i)
    if not isinstance(found, TensorSequence):
        raise UnsupportedNode(f"input {i} is {described(found)}, not a sequence")
    return found


def _tensor(node: OnnxNode, i: int) -> Tensor:
    """Input `i`, a tensor."""
    found: Any = node.input(i)
    if is_composite(found):
        raise UnsupportedNode(f"input {i} is {described(found)}, not a tensor")
    return found


def _position(node: OnnxNode, i: int, count: int) -> int:
    """The position that input `i` gives, of `count` allowed ones; a negative position counts from the end of the sequence."""
    given = node.numbers(i, "position")
    if len(given) != 1:
        raise UnsupportedNode(f"the position has {len(given)} elements; expected 1")
    n = len(_operand(node, 0).elements)
    if not -n <= given[0] < count:
        raise UnsupportedNode(f"position {given[0]} is out of range for a sequence of {n} tensors")
    return given[0] + n if given[0] < 0 else given[0]


# ---- sequences ----


def _empty(node: OnnxNode) -> Any:
    return TensorSequence((), _named(node.attr("dtype", 1)))


def _construct(node: OnnxNode) -> Any:
    elements = [_tensor(node, i) for i in range(len(node.inputs))]
    if not elements:
        raise UnsupportedNode("it has no inputs; an empty sequence is made by SequenceEmpty")
    return _sequence(elements, dtype_name(elements[0]))


def _insert(node: OnnxNode) -> Any:
    given = _operand(node, 0)
    elements = list(given.elements)
    elements.insert(_position(node, 2, len(elements) + 1) if node.has(2) else len(elements), _tensor(node, 1))
    return _sequence(elements, given.dtype)


def _erase(node: OnnxNode) -> Any:
    given = _operand(node, 0)
    n = len(given.elements)
    if not n:
        raise UnsupportedNode("the sequence is empty")
    at = _position(node, 1, n) if node.has(1) else n - 1
    return TensorSequence((*given.elements[:at], *given.elements[at + 1 :]), given.dtype)


def _at(node: OnnxNode) -> Any:
    elements = _operand(node, 0).elements
    return elements[_position(node, 1, len(elements))]


def _length(node: OnnxNode) -> Any:
    return node.b.constant(len(_operand(node, 0).elements), "int64")


def _split(node: OnnxNode) -> Any:
    given = _tensor(node, 0)
    x = given.codes if isinstance(given, Narrow) else given
    axis = normalised(node.attr("axis", 0), rank(x))
    sizes = _part_sizes(node, x.type.shape[axis], axis)
    made = [x] if len(sizes) == 1 else list(node.b.split(x, sizes=sizes, axis=axis)) if sizes else []
    if not node.has(1) and not node.attr("keepdims", 1):
        made = [node.b.squeeze(part, axes=(axis,)) for part in made]
    elements = [Narrow(part, given.kind) for part in made] if isinstance(given, Narrow) else made
    return TensorSequence(tuple(elements), dtype_name(given))


def _part_sizes(node: OnnxNode, extent: Poly, axis: int) -> tuple[Poly | int, ...]:
    """The extents of the parts into which SplitToSequence splits an axis."""
    if node.has(1) and rank(_codes(_tensor(node, 1))) > 0:
        sizes = node.ints(1, "split")
        if any(isinstance(s, int) and s < 1 for s in sizes):
            raise UnsupportedNode(f"split contains {min(s for s in sizes if isinstance(s, int))}; its numbers must be positive")
        if sum([poly(s) for s in sizes], poly(0)) != extent:
            raise UnsupportedNode(f"the sum of split, {', '.join(map(str, sizes))}, is not the extent {extent} of axis {axis}")
    else:
        step = node.numbers(1, "split")[0] if node.has(1) else 1
        if step < 1:
            raise UnsupportedNode(f"split is {step}; it must be positive")
        n = extent.const
        if n is None:
            raise UnsupportedNode(f"axis {axis} has the symbolic extent {extent}, so the number of parts is unknown; fix it with shapes=")
        count = -(-n // step)
        sizes = tuple([min(step, n - i * step) for i in range(min(count, MOST_PARTS + 1))])
    if len(sizes) > MOST_PARTS:
        raise UnsupportedNode(f"it has more than {MOST_PARTS} parts")
    return sizes


def _codes(x: Tensor) -> Datum:
    """The tensor, or the codes of one of a narrow type."""
    return x.codes if isinstance(x, Narrow) else x


def _concat(node: OnnxNode) -> Any:
    elements = _operand(node, 0).elements
    if not elements:
        raise UnsupportedNode("the sequence is empty")
    if node.attr("axis") is None:
        raise UnsupportedNode("the attribute axis is missing")
    stack = bool(node.attr("new_axis", 0))
    first = elements[0]
    axis = normalised(node.attr("axis"), rank(_codes(first)) + stack)
    operands = [_codes(e) for e in elements]
    if stack:
        operands = [node.b.expand_dims(x, axes=(axis,)) for x in operands]
    else:
        operands = [x for x in operands if x.type.shape[axis] != 0] or operands[:1]
    made = operands[0] if len(operands) == 1 else node.b.concat(*operands, axis=axis)
    return Narrow(made, first.kind) if isinstance(first, Narrow) else made


def sequence_map(
    importer: GraphImporter, attributes: Mapping[str, Any], inputs: Sequence[Any], scope: Scope, b: FoldingBuilder, place: str
) -> Sequence[Any]:
    """The results of SequenceMap: its sub-graph is converted once per element."""
    if "body" not in attributes or not inputs or not isinstance(inputs[0], TensorSequence):
        raise UnsupportedNode("the sub-graph is missing, or the first input is not a sequence")
    if any(x is None or isinstance(x, OptionalDatum) for x in inputs):
        raise UnsupportedNode("an omitted or optional input; the inputs must be sequences and tensors")
    body = attributes["body"].g
    n = len(inputs[0].elements)
    other = next((len(x.elements) for x in inputs if isinstance(x, TensorSequence) and len(x.elements) != n), None)
    if other is not None:
        raise UnsupportedNode(f"sequences of {n} and of {other} tensors; they must have the same length")
    if len(body.input) != len(inputs):
        raise UnsupportedNode(f"{len(inputs)} inputs for a sub-graph with {len(body.input)}")
    rows: list[list[Any]] = []
    for i in range(n):
        inner = scope.inner(f"{body.name}_{i}")
        samples = [x.elements[i] if isinstance(x, TensorSequence) else x for x in inputs]
        inner.tensors.update(zip([v.name for v in body.input], samples, strict=True))
        importer.graph(body, inner, b)
        made = [importer.lookup(o.name, inner, f"node {place}") for o in body.output]
        if any(m is MISSING for m in made):
            return [MISSING] * len(body.output)
        rows.append(made)
    for row in rows:
        for output, datum in zip(body.output, row, strict=True):
            if is_composite(datum):
                raise UnsupportedNode(f"the output {output.name} of the sub-graph is {described(datum)}, not a tensor")
    return [
        _sequence([row[k] for row in rows], dtype_name(rows[0][k]) if rows else _named(o.type.tensor_type.elem_type))
        for k, o in enumerate(body.output)
    ]


# ---- optionals ----


def _optional(node: OnnxNode) -> Any:
    declared = node.attr("type")
    if node.has(0):
        element: Any = node.input(0)
        if isinstance(element, OptionalDatum):
            raise UnsupportedNode("an optional in an optional")
        is_sequence = isinstance(element, TensorSequence)
        dtype = element.dtype if is_sequence else dtype_name(element)
    elif declared is None:
        raise UnsupportedNode("it has neither an input nor the attribute type")
    else:
        element, is_sequence, dtype = None, False, ""
    if declared is not None:
        inner, declares_sequence, is_optional = nested_type(declared)
        if inner.WhichOneof("value") != "tensor_type" or is_optional:
            raise UnsupportedNode("the attribute type is neither that of a tensor nor that of a sequence of tensors")
        name = _named(inner.tensor_type.elem_type)
        if element is not None and (name, declares_sequence) != (dtype, is_sequence):
            declaration = f"{'sequence' if declares_sequence else 'tensor'} of {name}"
            raise UnsupportedNode(f"the attribute type is a {declaration}, and the input is {described(element)}")
        is_sequence, dtype = declares_sequence, name
    return OptionalDatum(element, dtype, is_sequence)


def _has_element(node: OnnxNode) -> Any:
    x: Any = node.get(0)
    return node.b.constant(x is not None and not (isinstance(x, OptionalDatum) and x.element is None), "bool")


def _get_element(node: OnnxNode) -> Any:
    x: Any = node.input(0)
    if isinstance(x, OptionalDatum):
        if x.element is None:
            raise UnsupportedNode("its input is an optional without an element")
        return x.element
    return x


CONVERTERS: Mapping[str, Callable[[OnnxNode], Any]] = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}

SEQUENCE_OPERATORS = frozenset({*CONVERTERS, "Identity", "Loop", "SequenceMap"})
"""Operators whose operands may be sequences or optionals."""
