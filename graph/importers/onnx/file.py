"""Read and validate ONNX files, their inputs and their tensors.

Files are untrusted: they may be truncated, refer to weights outside their folder, or lack declared data.  Each of these raises a
`ModelImportError` that names the problem.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.narrow import TYPES, NarrowType
from tunesmith.graph.importers.onnx.node import DTYPES
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


Input = tuple[str, tuple[Index, ...], str | NarrowType]
"""Name, shape and element type of an input of a model."""


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


def model_inputs(graph: Any, shapes: Mapping[str, int], constants: Mapping[str, np.ndarray]) -> list[Input]:
    """Each input that is neither an initializer nor in `constants`.

    Raises:
        ModelImportError: an input is empty or not a tensor, or `shapes` or `constants` contain an unknown name.
    """
    weights = {t.name for t in graph.initializer}
    sizes: dict[str, Var] = {}
    known: dict[str, None] = {}
    made = []
    for given in graph.input:
        if given.name in weights and given.name not in constants:
            continue
        dtype, dims = _tensor_type(given)
        if given.name in constants:
            _check_constant(given.name, constants[given.name], dtype if isinstance(dtype, str) else dtype.name, dims)
            continue
        extents = tuple([_extent(d, f"{given.name}_{i}", given.name, shapes, sizes, known) for i, d in enumerate(dims)])
        made.append((given.name, extents, dtype))
    _check_names("shapes", "symbolic dimension", shapes, list(known))
    _check_names("constants", "input", constants, [i.name for i in graph.input])
    return made


def _tensor_type(given: Any) -> tuple[str | NarrowType, list[Any]]:
    kind = given.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ModelImportError(f"input {given.name!r} is not a tensor but {'has no type' if kind is None else kind.removesuffix('_type')}")
    tensor = given.type.tensor_type
    number = tensor.elem_type
    if number not in DTYPES and number not in TYPES:
        raise ModelImportError(f"input {given.name!r} has the unsupported ONNX element type number {tensor.elem_type}")
    if not tensor.HasField("shape"):
        raise ModelImportError(f"input {given.name!r} has no shape; its number of dimensions must be known")
    return DTYPES[number] if number in DTYPES else TYPES[number], list(tensor.shape.dim)


def _extent(dim: Any, default: str, owner: str, shapes: Mapping[str, int], sizes: dict[str, Var], known: dict[str, None]) -> Index:
    if dim.HasField("dim_value"):
        if dim.dim_value < 1:
            raise ModelImportError(f"input {owner!r} has the extent {dim.dim_value}: empty tensors are not supported")
        return int(dim.dim_value)
    symbol = dim.dim_param or default
    known[symbol] = None
    if symbol in shapes:
        if shapes[symbol] < 1:
            raise ModelImportError(f"shapes: the extent of {symbol!r} must be at least 1, got {shapes[symbol]}")
        return int(shapes[symbol])
    return sizes.setdefault(symbol, Var(symbol))


def _check_constant(name: str, array: np.ndarray, dtype: str, dims: list[Any]) -> None:
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
    fits = len(shape) == array.ndim and all(isinstance(e, str) or e == n for e, n in zip(shape, array.shape, strict=True))
    if array.dtype.name != dtype or not fits:
        raise ModelImportError(f"constants: the input {name!r} is {dtype}{shape}, got {array.dtype}{list(array.shape)}")


def _check_names(what: str, kind: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ModelImportError(f"{what}: the model has no {kind} {name!r}.{hint} It has: {', '.join(known) or 'none'}")
