"""Read and validate ONNX files, their inputs and their tensors.

Files are untrusted: they may be truncated, refer to weights outside their folder, or lack declared data.  Each of these raises a
`ModelImportError` that names the problem.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.narrow import TYPES, NarrowType
from tunesmith.graph.importers.onnx.node import DTYPES
from tunesmith.graph.importers.onnx.sequences import nested_type
from tunesmith.graph.importers.onnx.values import UnsupportedNode
from tunesmith.ir.poly import Index, Var
from tunesmith.support.errors import MissingExtraError, ModelImportError

_WEIGHTS = 1
"""TensorProto.EXTERNAL."""


def onnx_package() -> Any:
    """The package `onnx`; MissingExtraError if it is not installed."""
    try:
        for module in ("defs", "external_data_helper", "helper", "numpy_helper"):
            import_module(f"onnx.{module}")
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "Importing an ONNX model") from error
    return onnx


def load_onnx(model: str | PathLike[str] | bytes | Any) -> Any:
    """Load an `onnx.ModelProto` from a path or bytes, or check a given one.

    Raises:
        MissingExtraError: `onnx` is not installed.
        ModelImportError: the file does not exist, is not an ONNX model, or its weights are not in its folder.
    """
    onnx = onnx_package()
    if isinstance(model, onnx.ModelProto):
        _check_model(model, "the model")
        _check_no_outside_weights(model)
        return model
    if isinstance(model, bytes):
        proto = _parsed(onnx, model, "the bytes")
        _check_no_outside_weights(proto)
        return proto
    if not isinstance(model, (str, PathLike)):
        raise ModelImportError(f"an ONNX model must be a path, bytes or an onnx.ModelProto, got {type(model).__name__}")
    path = Path(model)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelImportError(f"cannot read the ONNX file {path}: {error.strerror or error}") from error
    except ValueError as error:  # the path contains a null byte or a lone surrogate
        raise ModelImportError(f"cannot read the ONNX file {str(path)!r}: {error}") from error
    proto = _parsed(onnx, content, f"the file {path}")
    outside = _outside(proto)
    for tensor in outside:
        _check_inside(tensor, path)
    try:
        for tensor in outside:  # onnx's function for models skips sub-graphs of functions
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent.resolve()))
    except Exception as error:  # onnx raises its own classes, OSError or ValueError
        raise ModelImportError(f"cannot read the weights of {path}: {error}") from error
    return proto


def _parsed(onnx: Any, content: bytes, what: str) -> Any:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError, which onnx does not export
        raise ModelImportError(f"{what} is not an ONNX model, or it is truncated ({len(content)} bytes): {error}") from error
    _check_model(proto, what)
    return proto


def _check_model(proto: Any, what: str) -> None:
    if not proto.ir_version or not proto.graph.output:
        raise ModelImportError(f"{what} is not an ONNX model, or it is truncated: it has no graph with an output")


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph, including those in attributes and sub-graphs."""
    yield from graph.initializer
    yield from _dense_parts(graph.sparse_initializer)
    yield from _attribute_tensors([a for node in graph.node for a in node.attribute])


def _attribute_tensors(attributes: Iterable[Any]) -> Iterator[Any]:
    for a in attributes:
        if a.HasField("t"):
            yield a.t
        yield from a.tensors
        yield from _dense_parts([*([a.sparse_tensor] if a.HasField("sparse_tensor") else []), *a.sparse_tensors])
        for inner in [*([a.g] if a.HasField("g") else []), *a.graphs]:
            yield from _tensors(inner)


def _dense_parts(sparse: Iterable[Any]) -> Iterator[Any]:
    """The values and the indices of sparse tensors."""
    for s in sparse:
        yield from (s.values, s.indices)


def _outside(proto: Any) -> list[Any]:
    """All tensors of the graph and the functions of a model whose elements are in external files."""
    in_functions = [a for f in proto.functions for a in (*[a for node in f.node for a in node.attribute], *f.attribute_proto)]
    return [t for t in (*_tensors(proto.graph), *_attribute_tensors(in_functions)) if t.data_location == _WEIGHTS]


def _check_no_outside_weights(proto: Any) -> None:
    outside = [t.name for t in _outside(proto)]
    if outside:
        raise ModelImportError(
            f"the weights of {len(outside)} tensors ({outside[0]!r}, ...) are in external files, whose folder is unknown. "
            "Pass the path of the model, or a model with its weights loaded (onnx.load)"
        )


def _check_inside(tensor: Any, path: Path) -> None:
    location = {e.key: e.value for e in tensor.external_data}.get("location", "")
    folder = path.parent.resolve()
    there = (folder / location).resolve()
    if not location or not there.is_relative_to(folder) or there == folder:
        raise ModelImportError(
            f"{path}: the weights of {tensor.name!r} are at {location!r}, outside the model's folder; they must be in that folder"
        )
    if not there.is_file():
        raise ModelImportError(f"{path}: the weights of {tensor.name!r} should be in {there}, which is not a file")


Shape = tuple[Index, ...]
Known = np.ndarray | Sequence[np.ndarray]
"""The value of an input: an array, or those of a sequence."""
Extents = Sequence[int | str]
"""The shape of an element of a sequence; a text is the name of a size."""


@dataclass(frozen=True)
class InputType:
    """The declared type of an input of a model.

    Attributes:
        dtype: element type.
        dims: dimensions; None if they are not declared.
        is_sequence: whether it is a sequence, or an optional of one.
        is_optional: whether it is an optional.
    """

    dtype: str | NarrowType
    dims: Sequence[Any] | None
    is_sequence: bool
    is_optional: bool

    @property
    def dtype_name(self) -> str:
        """Name of the element type."""
        return self.dtype if isinstance(self.dtype, str) else self.dtype.name

    @property
    def shape(self) -> list[Any]:
        """The dimensions as ints and names."""
        return [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in self.dims or ()]

    def fits(self, shape: Sequence[int | str]) -> bool:
        """Whether a tensor may have a shape."""
        if self.dims is None:
            return True
        return len(self.dims) == len(shape) and all(isinstance(e, str) or e == n for e, n in zip(self.shape, shape, strict=True))


@dataclass(frozen=True)
class Input:
    """An input of a model.

    Attributes:
        name: its name.
        type: its declared type.
        tensors: shapes or values of its tensors; None for an optional without an element.
    """

    name: str
    type: InputType
    tensors: Sequence[Shape | np.ndarray] | None


def initializer(tensor: Any) -> np.ndarray:
    """The elements of a TensorProto; UnsupportedNode for an unsupported element type."""
    onnx = onnx_package()
    if tensor.data_type not in DTYPES and tensor.data_type not in TYPES:
        name = onnx.TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in onnx.TensorProto.DataType.values() else "unknown"
        raise UnsupportedNode(f"element type {name.lower()} of the tensor {tensor.name!r}")
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise ModelImportError(f"the tensor {tensor.name!r} does not hold the elements it declares: {error}") from error


def model_inputs(
    graph: Any, shapes: Mapping[str, int], constants: Mapping[str, Known], sequences: Mapping[str, Sequence[Extents] | None]
) -> list[Input]:
    """Each input that is not an initializer.

    Raises:
        ModelImportError: an input is empty or has another type, or `shapes`, `constants` or `sequences` contain an unknown name or do not
            match the input.
    """
    weights = {t.name for t in graph.initializer}
    symbols = _Symbols(shapes)
    made = [_input(given, symbols, constants, sequences) for given in graph.input if given.name not in weights or given.name in constants]
    _check_names("shapes", "symbolic dimension", shapes, list(symbols.names))
    _check_names("constants", "input", constants, [i.name for i in graph.input])
    composite = [i.name for i in made if i.type.is_sequence or i.type.is_optional]
    _check_names("sequences", "sequence or optional as an input", sequences, composite)
    return made


def _input(given: Any, symbols: _Symbols, constants: Mapping[str, Known], sequences: Mapping[str, Sequence[Extents] | None]) -> Input:
    name, declared = given.name, _input_type(given)
    if name in constants:
        return Input(name, declared, _known(name, constants[name], declared))
    if name in sequences and (declared.is_sequence or declared.is_optional):
        return Input(name, declared, _element_shapes(name, sequences[name], declared, symbols))
    if declared.is_sequence:
        absent = f", or {name!r}: None without an element" if declared.is_optional else ""
        raise ModelImportError(
            f"input {name!r} is a sequence; give the shapes of its elements: sequences={{{name!r}: [shape, ...]}}{absent}"
        )
    if declared.dims is None:
        way = f"give it: sequences={{{name!r}: [shape]}}" if declared.is_optional else "its number of dimensions must be known"
        raise ModelImportError(f"input {name!r} has no shape; {way}")
    return Input(name, declared, [tuple([_extent(d, f"{name}_{i}", name, symbols) for i, d in enumerate(declared.dims)])])


def _input_type(given: Any) -> InputType:
    inner, is_sequence, is_optional = nested_type(given.type)
    kind = inner.WhichOneof("value")
    if kind != "tensor_type":
        outer = "".join([w for w, holds in (("an optional of ", is_optional), ("a sequence of ", is_sequence)) if holds])
        found = "has no type" if kind is None else kind.removesuffix("_type")
        raise ModelImportError(f"input {given.name!r} is not a tensor but {outer}{found}")
    tensor = inner.tensor_type
    number = tensor.elem_type
    if number not in DTYPES and number not in TYPES:
        raise ModelImportError(f"input {given.name!r} has the unsupported ONNX element type number {tensor.elem_type}")
    dims = tensor.shape.dim if tensor.HasField("shape") else None
    return InputType(DTYPES[number] if number in DTYPES else TYPES[number], dims, is_sequence, is_optional)


class _Symbols:
    """The symbolic dimensions of the inputs.

    Args:
        shapes: extents by symbolic dimension.
    """

    def __init__(self, shapes: Mapping[str, int]) -> None:
        self.shapes = shapes
        self.sizes: dict[str, Var] = {}
        self.names: dict[str, None] = {}

    def extent(self, symbol: str) -> Index:
        """The extent that `shapes` gives, else a size variable."""
        self.names[symbol] = None
        if symbol not in self.shapes:
            return self.sizes.setdefault(symbol, Var(symbol))
        if self.shapes[symbol] < 1:
            raise ModelImportError(f"shapes: the extent of {symbol!r} must be at least 1, got {self.shapes[symbol]}")
        return int(self.shapes[symbol])


def _extent(dim: Any, default: str, owner: str, symbols: _Symbols) -> Index:
    if not dim.HasField("dim_value"):
        return symbols.extent(dim.dim_param or default)
    if dim.dim_value < 1:
        raise ModelImportError(f"input {owner!r} has the extent {dim.dim_value}: empty tensors are not supported")
    return int(dim.dim_value)


def _element_shapes(name: str, given: Sequence[Extents] | None, declared: InputType, symbols: _Symbols) -> list[Shape] | None:
    """The shapes of the elements of a sequence or optional; None if there is no element."""
    if given is None:
        if not declared.is_optional:
            raise ModelImportError(f"sequences: the input {name!r} is not an optional, so it must have a list of shapes")
        return None
    if not isinstance(given, (list, tuple)) or not all(isinstance(s, (list, tuple)) for s in given):
        raise ModelImportError(f"sequences: the input {name!r} must have a list of shapes, got {given!r}")
    if not declared.is_sequence and len(given) != 1:
        raise ModelImportError(f"sequences: the input {name!r} is an optional tensor, so it must have one shape, got {len(given)}")
    made = []
    for shape in given:
        if not all(isinstance(e, str) or (isinstance(e, int) and e > 0) for e in shape):
            raise ModelImportError(f"sequences: a shape consists of extents of at least 1 and names of sizes; {name!r} has {shape!r}")
        if not declared.fits(shape):
            raise ModelImportError(f"sequences: the tensors of {name!r} have the shape {declared.shape}, got {list(shape)}")
        made.append(tuple([symbols.extent(e) if isinstance(e, str) else int(e) for e in shape]))
    return made


def _known(name: str, given: Known, declared: InputType) -> list[np.ndarray]:
    """The values of an input's tensors."""
    if isinstance(given, (list, tuple)) != declared.is_sequence:
        found = "a sequence, so it must be a list of arrays" if declared.is_sequence else "a tensor, so it must be an array"
        raise ModelImportError(f"constants: the input {name!r} is {found}")
    arrays: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for array in arrays:
        if array.dtype.name != declared.dtype_name or not declared.fits(array.shape):
            raise ModelImportError(
                f"constants: the input {name!r} is {declared.dtype_name}{declared.shape}, got {array.dtype}{list(array.shape)}"
            )
    return [np.asarray(a) for a in arrays]


def _check_names(what: str, kind: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ModelImportError(f"{what}: the model has no {kind} {name!r}.{hint} It has: {', '.join(known) or 'none'}")
