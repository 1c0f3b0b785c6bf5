"""The peers by name.  Importing this table imports none of them; other packages add peers by entry points (`tunesmith.peer`)."""

from __future__ import annotations

from tunesmith.measure.baselines.baseline import Baseline
from tunesmith.support.registry import Registry

BASELINES: Registry[type[Baseline]] = Registry(
    "baseline",
    {
        "jax": "tunesmith.measure.baselines.jax:JaxBaseline",
        "onnxruntime": "tunesmith.measure.baselines.onnxruntime:OnnxRuntimeBaseline",
        "onnxruntime_prepacked": "tunesmith.measure.baselines.onnxruntime:OnnxRuntimePrepackedBaseline",
        "openblas": "tunesmith.measure.baselines.numpy:NumpyBaseline",
        "torch": "tunesmith.measure.baselines.torch:TorchBaseline",
        "torch_compile_cuda": "tunesmith.measure.baselines.torch:TorchCompileCudaBaseline",
        "torch_cuda": "tunesmith.measure.baselines.torch:TorchCudaBaseline",
        "torch_compile": "tunesmith.measure.baselines.torch:TorchCompileBaseline",
        "tvm": "tunesmith.measure.baselines.tvm:TvmBaseline",
        "tvm_tuned": "tunesmith.measure.baselines.tvm:TvmTunedBaseline",
    },
)


ON_GPU = {"torch": "torch_cuda", "torch_compile": "torch_compile_cuda"}
"""Peers that are asked for by name where the target is an NVIDIA GPU, and who they are there."""


def create_baseline(name: str, threads: int) -> Baseline:
    """The peer of that name, to run on so many threads.  Whether it can be used tells its `available()`.

    Raises:
        UserError: there is no such peer; the message lists the known ones.
    """
    return BASELINES.get(name)(threads)
