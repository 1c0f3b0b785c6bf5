"""Register the baselines by name, without importing them; other packages add baselines by entry points (`tunesmith.baseline`)."""

from __future__ import annotations

from tunesmith.measure.baselines.baseline import Baseline
from tunesmith.support.registry import Registry, derived_from

BASELINES: Registry[type[Baseline]] = Registry(
    "baseline",
    {
        "jax": "tunesmith.measure.baselines.jax:JaxBaseline",
        "ncnn": "tunesmith.measure.baselines.ncnn:NcnnBaseline",
        "onnxruntime": "tunesmith.measure.baselines.onnxruntime:OnnxRuntimeBaseline",
        "onnxruntime_prepacked": "tunesmith.measure.baselines.onnxruntime:OnnxRuntimePrepackedBaseline",
        "openvino": "tunesmith.measure.baselines.openvino:OpenVinoBaseline",
        "openvino_default": "tunesmith.measure.baselines.openvino:OpenVinoDefaultBaseline",
        "openblas": "tunesmith.measure.baselines.numpy:NumpyBaseline",
        "torch": "tunesmith.measure.baselines.torch:TorchBaseline",
        "torch_compile_cuda": "tunesmith.measure.baselines.torch:TorchCompileCudaBaseline",
        "torch_cuda": "tunesmith.measure.baselines.torch:TorchCudaBaseline",
        "torch_compile": "tunesmith.measure.baselines.torch:TorchCompileBaseline",
        "tvm": "tunesmith.measure.baselines.tvm:TvmBaseline",
        "tvm_tuned": "tunesmith.measure.baselines.tvm:TvmTunedBaseline",
    },
    formerly="peer",
    contract=derived_from(Baseline),
)


def create_baseline(name: str, threads: int) -> Baseline:
    """The baseline of that name, with this number of threads.  Its `available()` reports whether it can be used.

    Raises:
        UserError: there is no such baseline; the message lists the available names.
    """
    return BASELINES.get(name)(threads)
