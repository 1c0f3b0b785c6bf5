"""Run ONNX's backend tests on tunesmith: `Backend` implements the interface of `onnx.backend.test.BackendTest`.

    import onnx.backend.test
    from tunesmith.testing.onnx_backend import Backend
    globals().update(onnx.backend.test.BackendTest(Backend, __name__).include("_cpu").test_cases)

Some node tests pass shapes or axes as inputs, which are needed at import: such a model is imported again for each set of values.  Likewise
for the shapes of models with sequences, which are lists of arrays, or optionals, where None is one without an element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.importers.onnx.errors import OnnxImportError
from tunesmith.graph.importers.onnx.importer import SEQUENCES, from_onnx
from tunesmith.graph.importers.onnx.narrow import TYPES, narrow_type, stored
from tunesmith.graph.importers.onnx.sequences import nested_type
from tunesmith.graph.ir import interpret
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.errors import MissingExtraError, ModelImportError

Execute = Callable[[IRModule, Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Function that computes the results of a module's function `main` from its inputs."""


def interpreted(mod: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Results computed with the operators' numpy references."""
    return interpret.run(mod["main"], list(inputs), mod)


def compiled(mod: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Results of compiled code with default schedules; bfloat16 arrays are unsupported, since numpy has no such type."""
    main = mod["main"]
    if any(v.type.dtype == "bfloat16" for v in (*main.params, *main.results)):
        raise unsupported("bfloat16 inputs or outputs of a compiled model, since numpy has no bfloat16")
    model = compile_model(mod, Target.detect(), untuned=default_schedule)
    made = model(*inputs)
    return made if isinstance(made, tuple) else (made,)


def unsupported(reason: object) -> Exception:
    """The exception that marks a backend test as unsupported."""
    try:
        from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "Running ONNX's backend tests") from error
    return BackendIsNotSupposedToImplementIt(str(reason))


def _bfloat16() -> np.dtype[Any]:
    """The numpy type that ONNX's tests use for bfloat16."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "Running ONNX's backend tests") from error
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))


class PreparedModel:
    """An executable model.

    Args:
        model: an `onnx.ModelProto`.
        execute: see `Execute`.
    """

    def __init__(self, model: Any, execute: Execute) -> None:
        weights = {t.name for t in model.graph.initializer}
        self.names = [i.name for i in model.graph.input if i.name not in weights]
        self.frozen: list[str] = [i.name for i in model.graph.input if _is_empty(i)]
        self._composite = [i.name for i in model.graph.input if i.type.WhichOneof("value") != "tensor_type"]
        self._bfloat16 = _bfloat16()
        self._model = model
        self._execute = execute
        self._modules: dict[Hashable, IRModule] = {}
        if not self.frozen and not self._composite:
            self._import_once()

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **_: Any) -> list[Any]:
        """The outputs for inputs in the model's order or by name."""
        values = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(self.names, inputs, strict=False))
        module = self._module(values)
        main = module["main"]
        params = [_storage(a) for n in self.names if n not in self.frozen for a in arrays_of(values[n])]
        made = iter(zip(self._execute(module, params), [r.type.dtype for r in main.results], strict=True))
        lengths = json.loads(main.attr(SEQUENCES) or "{}")
        outputs: list[Any] = []
        for output in self._model.graph.output:
            tensor = nested_type(output.type)[0].tensor_type
            arrays = [self._of_type(np.asarray(a), dtype, tensor.elem_type) for a, dtype in islice(made, lengths.get(output.name, 1))]
            outputs.append(arrays if output.name in lengths else arrays[0])
        return outputs

    def _of_type(self, array: np.ndarray, dtype: str, number: int) -> np.ndarray:
        kind = TYPES.get(number)
        if kind is None:
            return array.astype(self._bfloat16) if dtype == "bfloat16" else array
        import onnx

        found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
        return array.astype(found) if kind.is_integer else array.view(found)

    def _import_once(self) -> None:
        """Import once in advance, to raise errors that no input values can resolve."""
        try:
            self._modules[()] = from_onnx(self._model)
        except OnnxImportError as error:
            if not error.wanted:
                raise
            self.frozen += error.wanted

    def _module(self, values: Mapping[str, Any]) -> IRModule:
        """The module for the values of inputs needed at import; each import may reveal more such inputs."""
        sequences = {n: _shapes(values[n]) for n in self._composite}
        while True:
            sizes = self._sizes(values) if sequences else {}
            frozen = [(n, [(a.dtype.str, a.shape, a.tobytes()) for a in arrays_of(values[n])]) for n in self.frozen]
            key = repr((frozen, sequences, sizes)) if frozen or sequences else ()
            if key in self._modules:
                return self._modules[key]
            constants = {n: arrays_of(values[n]) if isinstance(values[n], list) else np.asarray(values[n]) for n in self.frozen}
            try:
                self._modules[key] = from_onnx(self._model, sizes, constants=constants, sequences=sequences)
            except OnnxImportError as error:
                more = [n for n in error.wanted if n not in self.frozen]
                if not more:
                    raise unsupported(error) from error
                self.frozen += more
            except ModelImportError as error:
                raise unsupported(error) from error

    def _sizes(self, values: Mapping[str, Any]) -> dict[str, int]:
        """The symbolic dimensions of the tensors that are not known at import."""
        tensors = [i for i in self._model.graph.input if i.name in self.names and i.name not in (*self.frozen, *self._composite)]
        dims = [(d.dim_param, n) for i in tensors for d, n in zip(i.type.tensor_type.shape.dim, np.shape(values[i.name]), strict=True)]
        return {symbol: n for symbol, n in dims if symbol}


def arrays_of(value: Any) -> list[np.ndarray]:
    """The arrays of a tensor, a sequence or an optional."""
    if value is None:
        return []
    return [np.asarray(a) for a in value] if isinstance(value, list) else [np.asarray(value)]


def _shapes(value: Any) -> list[tuple[int, ...]] | None:
    """The shapes of the tensors of a sequence or an optional; None for one without an element."""
    return None if value is None else [a.shape for a in arrays_of(value)]


def _storage(array: np.ndarray) -> np.ndarray:
    """The array, with bfloat16 converted to float32 for the numpy references, and elements of narrow types as bytes."""
    if narrow_type(array) is not None:
        return stored(array)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _is_empty(given: Any) -> bool:
    return any(d.HasField("dim_value") and d.dim_value == 0 for d in given.type.tensor_type.shape.dim)


class Backend:
    """Duck-typed `onnx.backend.base.Backend`, so that `onnx` is imported only when needed."""

    execute: Execute = staticmethod(interpreted)

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **_: Any) -> bool:
        """True; unsupported models raise in `prepare`."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> PreparedModel:
        """Import a model.

        Raises:
            BackendIsNotSupposedToImplementIt: the model is unsupported.
        """
        try:
            return PreparedModel(model, cls.execute)
        except ModelImportError as error:
            raise unsupported(error) from error

    @classmethod
    def run_model(cls, model: Any, inputs: Sequence[np.ndarray], device: str = "CPU", **options: Any) -> list[np.ndarray]:
        """Import and run a model."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU."""
        return device.partition(":")[0] == "CPU"


def backend(execute: Execute) -> type[Backend]:
    """A `Backend` subclass that runs modules with `execute`."""
    return type("Backend", (Backend,), {"execute": staticmethod(execute)})
