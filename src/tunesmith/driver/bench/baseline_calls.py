"""Map workloads of the operator library to baseline calls, with the baselines' names of operators and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.measure.baselines.operators import OPERATORS, Param
from tunesmith.ops.workload import Workload


@dataclass(frozen=True)
class BaselineCall:
    """Arguments of `Baseline.prepare`: operator, parameters, inputs by name."""

    op: str
    params: Mapping[str, Param]
    inputs: Mapping[str, np.ndarray]


def baseline_call(w: Workload, inputs: Sequence[np.ndarray]) -> BaselineCall | None:
    """The baseline call of a workload; None if the baselines lack the operator, or its form.

    Args:
        w: the workload.
        inputs: its inputs, in order.
    """
    if w.name not in OPERATORS:
        return None
    named = {spec.name: array for spec, array in zip(w.inputs, inputs, strict=True)}
    p = {name: value for name, value in w.params.items() if name != "dtype"}
    if w.name in ("matmul", "batch_matmul"):
        if p.pop("ta") or p.pop("tb"):
            return None
        return BaselineCall(w.name, _plain(p), named)
    if w.name == "dense":
        return BaselineCall(w.name, _plain(p), {"X" if name == "A" else name: array for name, array in named.items()})
    if w.name == "conv2d":
        return None if p.pop("residual") else BaselineCall(w.name, _plain(p), _with_group_axis(named, nhwc=p["layout"] == "NHWC"))
    if w.name == "sum":
        return _sum(w, named)
    if w.name in ("relu", "add"):
        if p.get("other"):
            return None
        return BaselineCall(w.name, {f"d{i}": extent for i, extent in enumerate(named[w.inputs[0].name].shape)}, named)
    return BaselineCall(w.name, _plain(p), named)


def _sum(w: Workload, named: Mapping[str, np.ndarray]) -> BaselineCall | None:
    """The call of a sum; baselines support only matrices, along one axis or both."""
    axes = w.params["axis"]
    (x,) = named.values()
    if x.ndim != 2 or not isinstance(axes, tuple):
        return None
    return BaselineCall("sum", {"m": x.shape[0], "n": x.shape[1], "axis": "all" if not axes else str(axes[0])}, named)


def _with_group_axis(named: Mapping[str, np.ndarray], nhwc: bool) -> dict[str, np.ndarray]:
    """Add the axis of length 1 that baselines expect in the filter of a depthwise convolution."""
    w = named["W"]
    if w.ndim == 3:
        w = w[:, :, None, :] if nhwc else w[:, None, :, :]
    return {**named, "W": w}


def _plain(params: Mapping[str, object]) -> dict[str, Param]:
    """Convert the parameters that are neither integers nor strings to strings, as baselines expect."""
    return {name: value if isinstance(value, (int, str)) else str(value) for name, value in params.items()}
