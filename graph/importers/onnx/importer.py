"""Import ONNX models as graph functions: convert nodes in order, folding constants and shapes during the import.

A node is converted by its entry in `ONNX_OPERATORS`.  Without an entry, the model's own function for the operator, or the function
body in the operator's ONNX schema, is inlined.  All unsupported nodes are collected and reported in one error.

The package `onnx` is imported only when a model is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx import activations as onnx_import_activations
from tunesmith.graph.importers.onnx import elementwise as onnx_import_elementwise
from tunesmith.graph.importers.onnx import features as onnx_import_features
from tunesmith.graph.importers.onnx import indexing as onnx_import_indexing
from tunesmith.graph.importers.onnx import nn as onnx_import_nn
from tunesmith.graph.importers.onnx import norms as onnx_import_norms
from tunesmith.graph.importers.onnx import pooling as onnx_import_pooling
from tunesmith.graph.importers.onnx import quantized as onnx_import_quantized
from tunesmith.graph.importers.onnx import recurrent as onnx_import_recurrent
from tunesmith.graph.importers.onnx import reductions as onnx_import_reductions
from tunesmith.graph.importers.onnx import resize as onnx_import_resize
from tunesmith.graph.importers.onnx import sampling as onnx_import_sampling
from tunesmith.graph.importers.onnx import sequences as onnx_import_sequences
from tunesmith.graph.importers.onnx import shapes as onnx_import_shapes
from tunesmith.graph.importers.onnx.control import Scope
from tunesmith.graph.importers.onnx.errors import OnnxImportError, Unsupported
from tunesmith.graph.importers.onnx.file import Extents, Input, Known, initializer, load_onnx, model_inputs, onnx_package
from tunesmith.graph.importers.onnx.loops import CONTROL
from tunesmith.graph.importers.onnx.narrow import AWARE, MOVING, TYPES, Narrow, constant
from tunesmith.graph.importers.onnx.node import ONNX_OPERATORS, Converter, EmptyTensor, OnnxNode
from tunesmith.graph.importers.onnx.sequences import SEQUENCE_OPERATORS, OptionalDatum, TensorSequence, described, is_composite, parts
from tunesmith.graph.importers.onnx.values import MISSING, Datum, FoldingBuilder, UnsupportedNode
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Constant, Operand
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.support.errors import ModelImportError, ScriptError

OLDEST = 7
"""Oldest supported operator set, in which broadcasting became implicit; older ones are supported for operators that are the same there."""

SEQUENCES = "sequences"
"""Attribute of a function: a JSON object of the number of results of each output that is a sequence."""

_TABLES: Sequence[Mapping[str, Converter]] = (
    onnx_import_activations.CONVERTERS,
    onnx_import_elementwise.CONVERTERS,
    onnx_import_features.CONVERTERS,
    onnx_import_indexing.CONVERTERS,
    onnx_import_nn.CONVERTERS,
    onnx_import_norms.CONVERTERS,
    onnx_import_pooling.CONVERTERS,
    onnx_import_quantized.CONVERTERS,
    onnx_import_recurrent.CONVERTERS,
    onnx_import_reductions.CONVERTERS,
    onnx_import_resize.CONVERTERS,
    onnx_import_sampling.CONVERTERS,
    onnx_import_sequences.CONVERTERS,
    onnx_import_shapes.CONVERTERS,
)
for _table in _TABLES:
    for _name, _converter in _table.items():
        ONNX_OPERATORS.register(_name, _converter)


def from_onnx(
    model: Any,
    shapes: Mapping[str, int] | None = None,
    name: str = "main",
    *,
    constants: Mapping[str, Known] | None = None,
    sequences: Mapping[str, Sequence[Extents] | None] | None = None,
) -> IRModule:
    """Import an ONNX model as a module with one graph function.

    Tensors keep the layout of the model (NCHW).  Initializers become constants.  A symbolic dimension that `shapes` does not fix
    becomes a size variable of the function, shared by all uses of its name.

    Args:
        model: file path, bytes, or an `onnx.ModelProto`.  External weights are read from the folder of the path.
        shapes: extents by symbolic dimension.
        name: function name.
        constants: values by input; such an input is not a parameter of the function.  Needed if an operator requires the value at
            import, for example the shape of a Reshape.  The value of a sequence is a list of arrays.
        sequences: shapes of the tensors of each input that is a sequence; an extent is an int or the name of a size.  A sequence `x` of
            two tensors becomes the parameters `x_0` and `x_1`.  None is for an optional without an element, which is no parameter; other
            optionals have an element.  An optional tensor needs a list of one shape if the model does not declare its shape.
    Returns:
        The module; parameters and results have the order and the names of the model's inputs and outputs.  A sequence `y` as an output
        becomes one result per tensor, `y_0` and so on; the function's attribute `sequences` is a JSON object of their numbers by output.
    Raises:
        MissingExtraError: `onnx` is not installed.
        ModelImportError: the file is not an ONNX model, or `shapes`, `constants` or `sequences` do not match it.
        OnnxImportError: the model has unsupported nodes; all of them are listed.
    """
    proto = load_onnx(model)
    importer = _Importer(proto)
    func = importer.function(name, dict(shapes or {}), dict(constants or {}), dict(sequences or {}))
    return IRModule({name: func, **importer.called})


class _Importer:
    """Converter of one model."""

    def __init__(self, proto: Any) -> None:
        self.onnx = onnx_package()
        self.proto = proto
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in proto.functions}
        self.unsupported: list[Unsupported] = []
        self.called: Mapping[str, PrimFunc] = {}

    def function(
        self, name: str, shapes: dict[str, int], constants: dict[str, Known], sequences: dict[str, Sequence[Extents] | None]
    ) -> Any:
        """The model's graph as a graph function."""
        graph = self.proto.graph
        opsets = {_domain(o.domain): o.version for o in self.proto.opset_import}
        changed = self._changed(graph, opsets.get("", OLDEST))
        if changed:
            raise ModelImportError(
                f"the ONNX graph {graph.name!r} uses operator set {opsets['']}, and {', '.join(changed)} changed since then; {OLDEST} is "
                "the oldest one that is supported completely. "
                f"Convert it: onnx.version_converter.convert_version(model, {OLDEST})"
            )
        builder = GraphBuilder(name)
        folding = FoldingBuilder(builder)
        self.called = folding.functions
        inputs = model_inputs(graph, shapes, constants, sequences)
        scope = Scope({given.name: self._input(given, folding, builder) for given in inputs}, opsets, {})
        _check_parameters(builder)
        self.graph(graph, scope, folding)
        results = self.results(graph, scope, folding)
        lengths = self._lengths(graph, scope)
        if not results and not self.unsupported:
            self._refuse("Output", "", 0, UnsupportedNode("the model has no result but empty sequences"), ", ".join(lengths))
        if self.unsupported:
            sizes = dict.fromkeys(str(v) for p in builder.params for e in p.type.shape for v in sorted(e.vars, key=lambda v: v.key))
            raise OnnxImportError(graph.name, self.unsupported, list(sizes)) from next((u.cause for u in self.unsupported if u.cause), None)
        names = [name for o in graph.output for name in _result_names(o.name, lengths.get(o.name))]
        made = builder.finish(*results)
        return (made.with_(attrs=((SEQUENCES, json.dumps(lengths)),)) if lengths else made).with_result_names(names)

    def _input(self, given: Input, b: FoldingBuilder, builder: GraphBuilder) -> Any:
        """The datum of an input; a tensor whose value is not known is a parameter."""
        kind = given.type
        tensors: list[Any] = []
        for i, tensor in enumerate(given.tensors or ()):
            name = f"{given.name}_{i}" if kind.is_sequence else given.name
            if isinstance(tensor, np.ndarray):
                tensors.append(constant(name, tensor))
                continue
            value = builder.input(name, tensor, kind.dtype if isinstance(kind.dtype, str) else kind.dtype.storage)
            b.origins[value] = frozenset((given.name,))
            tensors.append(value if isinstance(kind.dtype, str) else Narrow(value, kind.dtype))
        element = None if given.tensors is None else TensorSequence(tuple(tensors), kind.dtype_name) if kind.is_sequence else tensors[0]
        return OptionalDatum(element, kind.dtype_name, kind.is_sequence) if kind.is_optional else element

    def _lengths(self, graph: Any, scope: Scope) -> dict[str, int]:
        """The number of tensors of each output that is a sequence, or an optional with one; others without an element are refused."""
        lengths = {}
        for output in graph.output:
            datum = scope.tensors[output.name]
            if isinstance(datum, OptionalDatum) and datum.element is None:
                self._refuse("Output", "", 0, UnsupportedNode(f"{output.name} is {described(datum)}"), output.name)
            elif isinstance(datum, TensorSequence) or (isinstance(datum, OptionalDatum) and datum.is_sequence):
                lengths[output.name] = len(parts(datum))
        return lengths

    def _changed(self, graph: Any, version: int) -> list[str]:
        """The operators of a graph whose definition changed between an operator set and `OLDEST`; none for a newer set."""
        if version >= OLDEST:
            return []
        found: dict[str, None] = {}
        for node in graph.node:
            for a in node.attribute:
                inner = [*a.graphs, *([a.g] if a.HasField("g") else [])]
                found.update(dict.fromkeys(operator for g in inner for operator in self._changed(g, version)))
            if _domain(node.domain):
                continue
            try:
                since = [self.onnx.defs.get_schema(node.op_type, max(v, 1)).since_version for v in (version, OLDEST)]
            except self.onnx.defs.SchemaError:
                continue  # reported as an operator without a converter
            if since[0] != since[1]:
                found[node.op_type] = None
        return list(found)

    # ---- graphs ----

    def graph(self, graph: Any, scope: Scope, b: FoldingBuilder) -> None:
        """Convert initializers and nodes of a graph; results are added to `scope`."""
        for tensor in graph.initializer:
            if scope.place or tensor.name not in scope.tensors:  # `constants` may override the model's initializers
                scope.tensors[tensor.name] = self._initializer(tensor)
        for tensor in graph.sparse_initializer:
            self._refuse("SparseTensor", "", 0, UnsupportedNode("sparse initializers"), tensor.values.name)
            scope.tensors[tensor.values.name] = MISSING
        self._nodes(graph.node, scope, b)

    def _initializer(self, tensor: Any) -> Any:
        try:
            return constant(tensor.name, initializer(tensor))
        except UnsupportedNode as error:
            self._refuse("Initializer", "", 0, error, tensor.name)
            return MISSING

    def results(self, graph: Any, scope: Scope, b: FoldingBuilder) -> list[Operand]:
        results: list[Operand] = []
        for output in graph.output:
            datum = self.lookup(output.name, scope, f"output {output.name} of the graph {graph.name!r}")
            if datum is MISSING:
                continue
            for part in parts(datum):
                if any(e.const == 0 for e in part.type.shape) and not isinstance(part, Constant):
                    self._refuse("Output", "", 0, UnsupportedNode(f"{output.name} is empty: {part.type}"), output.name)
                    continue
                results.append(b.operand(part.codes if isinstance(part, Narrow) else part))
        return results

    def lookup(self, name: str, scope: Scope, consumer: str) -> Any:
        if name not in scope.tensors:
            raise ModelImportError(f"{consumer}: the tensor {name!r} is used before it is computed; the file is not a valid ONNX model")
        return scope.tensors[name]

    # ---- nodes ----

    def _nodes(self, nodes: Iterable[Any], scope: Scope, b: FoldingBuilder) -> None:
        for i, node in enumerate(nodes):
            self._node(node, i, scope, b)

    def _node(self, node: Any, i: int, scope: Scope, b: FoldingBuilder) -> None:
        domain = _domain(node.domain)
        version = scope.opsets.get(domain, 0)
        place = "/".join([*scope.place, node.name or f"{node.op_type}_{i}"])
        inputs = [self.lookup(x, scope, f"node {place}") if x else None for x in node.input]
        made: Sequence[Any] = [MISSING] * len(node.output)
        outer, b.hint = b.hint, _identifier(next((o for o in node.output if o), node.op_type))
        try:
            if any(x is MISSING for x in inputs):
                self._check_known(node, domain, version, scope)
            else:
                made = self._convert(node, domain, version, inputs, scope, b, place)
        except UnsupportedNode as error:
            wanted = error.wanted or b.wanted_for(inputs)
            self._refuse(node.op_type, domain, version, UnsupportedNode(error.reason, wanted), place)
        except ScriptError as error:
            self._refuse(node.op_type, domain, version, UnsupportedNode(str(error), b.wanted_for(inputs)), place)
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            self._refuse(node.op_type, domain, version, _misfit(node, inputs, error), place, error)
        b.hint = outer
        for key, datum in zip(node.output, made, strict=False):
            if key:
                scope.tensors[key] = datum

    def _check_known(self, node: Any, domain: str, version: int, scope: Scope) -> None:
        """Refuse an unknown operator even if its operands are missing."""
        known = (not domain and node.op_type in CONTROL) or _registered(domain, node.op_type) in ONNX_OPERATORS
        if not known and (domain, node.op_type, node.overload) not in self.functions and not self._schema(node, domain, version):
            raise UnsupportedNode(_no_converter(node.op_type))

    def _convert(
        self, node: Any, domain: str, version: int, inputs: list[Datum | None], scope: Scope, b: FoldingBuilder, place: str
    ) -> Sequence[Any]:
        attributes = self._attributes(node, scope)
        key = _registered(domain, node.op_type)
        if (domain, node.op_type, node.overload) not in self.functions and key not in SEQUENCE_OPERATORS:
            found = next((f"input {i} is {described(x)}" for i, x in enumerate(inputs) if is_composite(x)), None)
            if found:
                raise UnsupportedNode(f"{found}; the operator takes tensors")
        if key == "Identity" and is_composite(inputs[0]):
            return inputs
        if not domain and node.op_type in CONTROL:
            return CONTROL[node.op_type](self, {a.name: a for a in attributes}, inputs, scope, b, place)
        for i, x in enumerate(inputs):
            if isinstance(x, EmptyTensor) and key not in ("Concat", "Shape", "Size"):
                raise UnsupportedNode(f"input {i}, {x.type}, has no elements, and its shape is not constant; fix its sizes with shapes=")
        if key not in AWARE and key not in onnx_import_sequences.CONVERTERS and any(isinstance(x, Narrow) for x in inputs):
            return self._moved(node, domain, version, inputs, scope, b, place)
        if key in ONNX_OPERATORS:
            values = {a.name: self._attribute(a) for a in attributes}
            made = ONNX_OPERATORS.get(key)(OnnxNode(node.op_type, version, tuple(inputs), tuple(node.output), values, b))
            results = list(made) if isinstance(made, Sequence) else [made]
            results += [None] * (len(node.output) - len(results))
            for i, name in enumerate(node.output):
                if name and results[i] is None:
                    raise UnsupportedNode(f"output {i} is not supported")
            return [constant(x.name, x.data) if isinstance(x, Constant) else x for x in results]
        return self._inlined(node, domain, version, attributes, inputs, scope, b, place)

    def _moved(self, node: Any, domain: str, version: int, inputs: list[Any], scope: Scope, b: FoldingBuilder, place: str) -> Sequence[Any]:
        """The results of a node on tensors of narrow types."""
        x, *rest = inputs
        if node.op_type not in MOVING or domain or not isinstance(x, Narrow) or any(isinstance(y, Narrow) for y in rest):
            kinds = dict.fromkeys(y.kind.name for y in inputs if isinstance(y, Narrow))
            raise UnsupportedNode(f"elements of the type {', '.join(kinds)}: convert them by Cast or DequantizeLinear before it")
        made = self._convert(node, domain, version, [x.codes, *rest], scope, b, place)
        return [Narrow(y, x.kind) for y in made]

    def _attributes(self, node: Any, scope: Scope) -> list[Any]:
        """The attributes of a node with references to the enclosing function's attributes resolved; absent ones are dropped."""
        made = []
        for a in node.attribute:
            if not a.ref_attr_name:
                made.append(a)
            elif a.ref_attr_name in scope.attributes:
                resolved = self.onnx.AttributeProto()
                resolved.CopyFrom(scope.attributes[a.ref_attr_name])
                resolved.name = a.name
                made.append(resolved)
        return made

    def _attribute(self, a: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(a)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, self.onnx.TensorProto):
            return initializer(value)
        if isinstance(value, self.onnx.TypeProto):
            return value
        if isinstance(value, (self.onnx.GraphProto, self.onnx.SparseTensorProto)):
            raise UnsupportedNode(f"attribute {a.name} is a {type(value).__name__}")
        if isinstance(value, (int, float)):
            return value
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]

    # ---- functions ----

    def _schema(self, node: Any, domain: str, version: int) -> Any:
        """The operator's schema if it has a function body, else None."""
        try:
            schema = self.onnx.defs.get_schema(node.op_type, max(version, 1), domain)
        except self.onnx.defs.SchemaError:
            return None
        return schema if schema.has_function or schema.has_context_dependent_function else None

    def _inlined(
        self,
        node: Any,
        domain: str,
        version: int,
        attributes: list[Any],
        inputs: list[Datum | None],
        scope: Scope,
        b: FoldingBuilder,
        place: str,
    ) -> Sequence[Any]:
        """The results of inlining the operator's function body."""
        function = self.functions.get((domain, node.op_type, node.overload))
        given: dict[str, Any] = {}
        if function is None:
            schema = self._schema(node, domain, version)
            if schema is None:
                raise UnsupportedNode(_no_converter(node.op_type))
            given = {k: a.default_value for k, a in schema.attributes.items() if a.default_value.name}
            function = self._body(schema, node, version, attributes, inputs)
        given.update({a.name: a for a in function.attribute_proto})
        given.update({a.name: a for a in attributes})
        opsets = {**scope.opsets, **{_domain(o.domain): o.version for o in function.opset_import}}
        tensors: dict[str, Any] = dict.fromkeys(function.input, None)
        tensors.update(zip(function.input, inputs, strict=False))
        before = len(self.unsupported)
        inner = Scope(tensors, opsets, given, (*scope.place, place.rsplit("/", 1)[-1]))
        self._nodes(function.node, inner, b)
        if len(self.unsupported) > before:
            return [MISSING] * len(node.output)
        return [self.lookup(name, inner, f"function {function.name}") if wanted else None
                for name, wanted in zip(function.output, node.output, strict=False)]  # fmt: skip

    def _body(self, schema: Any, node: Any, version: int, attributes: list[Any], inputs: Sequence[Datum | None]) -> Any:
        """The function body of a schema for the operator set nearest to the model's."""
        function = self.onnx.FunctionProto()
        if schema.has_function:
            at = _nearest(schema.function_opset_versions, version)
            function.ParseFromString(schema.get_function_with_opset_version(at))
            return function
        resolved = self.onnx.NodeProto()
        resolved.CopyFrom(node)
        del resolved.attribute[:]
        resolved.attribute.extend(attributes)
        types = [self._type(x).SerializeToString() for x in inputs]
        at = _nearest(schema.context_dependent_function_opset_versions, version)
        try:
            body = schema.get_context_dependent_function_with_opset_version(at, resolved.SerializeToString(), types)
            function.ParseFromString(body)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedNode(f"its function body cannot be built: {error}") from error
        if not function.node:
            raise UnsupportedNode("there is no converter, and no function body for these operands")
        return function

    def _type(self, x: Datum | None) -> Any:
        if x is None:
            return self.onnx.TypeProto()
        narrow = next((n for n, kind in TYPES.items() if isinstance(x, Narrow) and x.kind == kind), None)
        number = narrow or self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(x.type.dtype))
        shape = [str(e) if e.const is None else e.const for e in x.type.shape]
        return self.onnx.helper.make_tensor_type_proto(number, shape)

    def _refuse(self, operator: str, domain: str, version: int, error: UnsupportedNode, place: str, cause: Exception | None = None) -> None:
        self.unsupported.append(Unsupported(operator, domain, version, error.reason, place, error.wanted, cause))


def _check_parameters(builder: GraphBuilder) -> None:
    """Refuse an input with the name of an element of another input."""
    names = Counter([p.name for p in builder.params])
    twice = next((name for name, n in names.items() if n > 1), None)
    if twice is not None:
        raise ModelImportError(f"two inputs, or an input and an element of a sequence, have the name {twice!r}")


def _misfit(node: Any, inputs: Sequence[Any], error: Exception) -> UnsupportedNode:
    """Report a Python error in a converter: attributes and constant inputs may have any length, type and value."""
    types = ", ".join(["-" if x is None or x is MISSING else described(x) if is_composite(x) else str(x.type) for x in inputs])
    given = ", ".join([a.name for a in node.attribute])
    first = (str(error).splitlines() or [""])[0]
    return UnsupportedNode(
        f"its attributes ({given or 'none'}) do not match its inputs ({types}) or their values: {type(error).__name__}: {first}"
    )


_RANDOM = "it draws random numbers; pass them to the model as an input"
_REASONS = {
    "ImageDecoder": "it decodes files of images; decode them before the model is called",
    **dict.fromkeys(("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _RANDOM),
}
"""Operators that have no converter, and why."""


def _no_converter(operator: str) -> str:
    return _REASONS.get(operator, "there is no converter")


def _result_names(output: str, count: int | None) -> list[str]:
    """The names of the results of an output: one of each tensor if it is a sequence of `count` tensors."""
    return [output] if count is None else [f"{output}_{i}" for i in range(count)]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _registered(domain: str, operator: str) -> str:
    return f"{domain}.{operator}" if domain else operator


def _nearest(versions: Sequence[int], version: int) -> int:
    """The newest version <= `version`, else the oldest."""
    return max([v for v in versions if v <= version], default=min(versions))


def _identifier(name: str) -> str:
    text = "".join([c if c.isascii() and c.isalnum() else "_" for c in name])
    return text if text[:1].isalpha() or text[:1] == "_" else f"v{text}"
