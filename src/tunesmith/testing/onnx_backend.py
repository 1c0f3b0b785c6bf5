"""Run ONNX's backend tests on tunesmith: `Backend` implements the interface of `onnx.backend.test.BackendTest`.

    import onnx.backend.test
    from tunesmith.testing.onnx_backend import Backend
    globals().update(onnx.backend.test.BackendTest(Backend, __name__).include("_cpu").test_cases)

Some node tests pass shapes or axes as inputs, which are needed at import: such a model is imported again for each set of values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.importers.onnx.errors import OnnxImportError
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.importers.onnx.narrow import TYPES, narrow_type, stored
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
        self._bfloat16 = _bfloat16()
        self._model = model
        self._execute = execute
        self._modules: dict[tuple[Any, ...], IRModule] = {}
        if not self.frozen:
            self._import_once()

    def run(self, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray], **_: Any) -> list[np.ndarray]:
        """The outputs for inputs in the model's order or by name."""
        arrays = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(self.names, inputs, strict=False))
        module = self._module(arrays)
        params = [_storage(arrays[n]) for n in self.names if n not in self.frozen]
        made = self._execute(module, params)
        types = [r.type.dtype for r in module["main"].results]
        return [self._of_type(np.asarray(a), dtype, o) for a, dtype, o in zip(made, types, self._model.graph.output, strict=True)]

    def _of_type(self, array: np.ndarray, dtype: str, output: Any) -> np.ndarray:
        kind = TYPES.get(output.type.tensor_type.elem_type)
        if kind is None:
            return array.astype(self._bfloat16) if dtype == "bfloat16" else array
        import onnx

        found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type))
        return array.astype(found) if kind.is_integer else array.view(found)

    def _import_once(self) -> None:
        """Import once in advance, to raise errors that no input values can resolve."""
        try:
            self._modules[()] = from_onnx(self._model)
        except OnnxImportError as error:
            if not error.wanted:
                raise
            self.frozen += error.wanted

    def _module(self, arrays: Mapping[str, np.ndarray]) -> IRModule:
        """The module for the values of inputs needed at import; each import may reveal more such inputs."""
        while True:
            constants = {n: np.asarray(arrays[n]) for n in self.frozen}
            key = tuple([(n, a.dtype.str, a.shape, a.tobytes()) for n, a in constants.items()])
            if key in self._modules:
                return self._modules[key]
            try:
                self._modules[key] = from_onnx(self._model, constants=constants)
            except OnnxImportError as error:
                more = [n for n in error.wanted if n not in self.frozen]
                if not more:
                    raise unsupported(error) from error
                self.frozen += more
            except ModelImportError as error:
                raise unsupported(error) from error


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
