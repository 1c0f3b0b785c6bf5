"""Register the baselines by name, without importing them; other packages add baselines by entry points (`tunesmith.baseline`)."""

from __future__ import annotations

import re

from tunesmith.measure.baselines.baseline import Baseline
from tunesmith.measure.records.environment import package_version
from tunesmith.support.errors import UserError
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


def described_baselines() -> list[tuple[str, str, str]]:
    """Name, state and description of each baseline: the package with its version or `not installed`, and the docstring's first sentence.

    No library is imported, so that an installed one may be unavailable.  The state of a baseline that cannot be loaded is `unusable`, and
    its description the reason.
    """
    found = []
    for name in BASELINES.names():
        try:
            kind = BASELINES.get(name)
        except UserError as error:
            found.append((name, "unusable", str(error)))
            continue
        version = package_version(kind.package)
        first = re.split(r"\.\s|\.$", (kind.__doc__ or "").strip().partition("\n")[0])[0]
        found.append((name, f"{kind.package} {version}", first))
    return found
