"""Run operators and ONNX models with onnxruntime's CPU provider (MLAS); constants are initialisers, so that they are packed ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.baselines.onnx_model import DATA_TYPES
from tunesmith.measure.baselines.onnx_operators import OperatorModel, integer_product, operator_model, prepacked_product
from tunesmith.measure.baselines.operator_call import OperatorCall


class OnnxRuntimeBaseline(Baseline):
    """onnxruntime on the CPU (MLAS).  In matrix products B is an input, so packing it is part of the call."""

    name: ClassVar[str] = "onnxruntime"
    package: ClassVar[str] = "onnxruntime"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator."""
        if call.dtype not in DATA_TYPES or not call.is_common:
            return []
        model = self.model(call)
        if model is None:
            return []
        run = _session(model, self.threads)
        return [] if run is None else [run]

    def low_precision_variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """Products of bytes without epilogue; onnxruntime's CPU provider has no 16-bit contractions."""
        model = self.integer_model(call)
        run = None if model is None else _session(model, self.threads)
        return [] if run is None else [run]

    def integer_model(self, call: OperatorCall) -> OperatorModel | None:
        """The model of a product of bytes; None if it is not supported."""
        return integer_product(call)

    def model(self, call: OperatorCall) -> OperatorModel | None:
        """The model of an operator; None if it is not supported."""
        return operator_model(call)

    def onnx_call(self, path: str, inputs: Sequence[np.ndarray]) -> ModelCall | None:
        """The model of an ONNX file."""
        return session_call(path, inputs, self.threads, "f32")


class OnnxRuntimePrepackedBaseline(OnnxRuntimeBaseline):
    """Matrix products of onnxruntime with constant B, packed outside the call.  Other operators are excluded: they are always packed."""

    name: ClassVar[str] = "onnxruntime_prepacked"

    def integer_model(self, call: OperatorCall) -> OperatorModel | None:
        """The model of a product of bytes with a constant B."""
        return integer_product(call, prepacked=True)

    def model(self, call: OperatorCall) -> OperatorModel | None:
        """The model of a matrix product with a constant B."""
        return prepacked_product(call)

    def onnx_call(self, path: str, inputs: Sequence[np.ndarray]) -> ModelCall | None:
        """None: `onnxruntime` packs the constants of a model."""
        return None


def session_call(path: str, inputs: Sequence[np.ndarray], threads: int, precision: str) -> ModelCall:
    """A session of the CPU provider for an ONNX file.

    Args:
        path: the file.
        inputs: its inputs, in order.
        threads: number of threads.
        precision: the precision that the file asks for.
    """
    import onnxruntime as ort

    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session: Any = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)}

    def run() -> Any:
        return session.run(None, feed)

    return ModelCall(run, run, precision)


def _session(model: OperatorModel, threads: int) -> PreparedCall | None:
    """Compile the model; inputs and output are bound to memory once, so that a run copies nothing."""
    import onnxruntime as ort

    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        session: Any = ort.InferenceSession(model.encode(), options, providers=["CPUExecutionProvider"])
    except errors.NotImplemented:  # in ONNX for this dtype, but not in onnxruntime
        return None
    except errors.InvalidGraph as error:
        if "Type Error" in str(error):  # not in ONNX for this dtype
            return None
        raise
    binding: Any = session.io_binding()
    for name, value in model.inputs.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    result: Any = ort.OrtValue.ortvalue_from_numpy(model.output)
    binding.bind_ortvalue_output("Y", result)

    def run() -> object:
        session.run_with_iobinding(binding)
        return result

    def output(value: Any) -> np.ndarray:
        return model.result(value.numpy())

    return PreparedCall(model.variant, run, output)
