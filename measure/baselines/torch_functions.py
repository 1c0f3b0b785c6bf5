"""Map operators to functions of torch, with images and filters in torch's order: batch, channels, dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.measure.baselines.operator_call import OperatorCall

Function = Callable[..., Any]
"""Takes tensors by the names of the operator's inputs."""


def is_image(call: OperatorCall) -> bool:
    """Whether X and the result are images, which torch stores with channels first or last."""
    return call.name.startswith(("conv", "max_pool", "avg_pool")) or call.name in ("group_norm", "instance_norm")


def channels_last(call: OperatorCall) -> bool:
    """Whether the workload has its channels last."""
    return is_image(call) and call.text("layout").endswith("C")


def arranged(call: OperatorCall, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors in torch's order, as views."""
    if not channels_last(call):
        return dict(tensors)
    moved: dict[str, Function] = {"X": lambda x: x.movedim(-1, 1), "W": lambda w: w.movedim((-1, -2), (0, 1))}
    return {name: moved[name](t) if name in moved else t for name, t in tensors.items()}


def torch_function(call: OperatorCall) -> Function | None:
    """The operator as a function of torch; None if torch has none for it, or not for this form."""
    made = _FUNCTIONS.get(call.name)
    return None if made is None else made(call)


def memory_formats(call: OperatorCall) -> dict[str, Any]:
    """The memory formats of the images of an operator, by name; only None for other operators."""
    import torch

    if not is_image(call):
        return {"": None}
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(call.inputs["X"].ndim)
    return {"contiguous": torch.contiguous_format} | ({} if last is None else {"channels_last": last})


def _convolution(call: OperatorCall) -> Function:
    import torch

    stride, pad, dilation, groups, relu = (call.number(name) for name in ("stride", "pad", "dilation", "groups", "relu"))
    function: Any = getattr(torch, call.name)

    def conv(X: Any, W: Any, bias: Any = None) -> Any:
        y = function(X, W, bias, stride, pad, dilation, groups)
        return torch.relu(y) if relu else y

    return conv


def _transposed(call: OperatorCall) -> Function:
    import torch

    stride, pad, added, dilation, groups, relu = (
        call.number(name) for name in ("stride", "pad", "output_pad", "dilation", "groups", "relu")
    )
    function: Any = getattr(torch, f"conv_transpose{call.name[4:6]}")

    def conv(X: Any, W: Any, bias: Any = None) -> Any:
        y = function(X, W, bias, stride, pad, added, groups, dilation)
        return torch.relu(y) if relu else y

    return conv


def _pool(call: OperatorCall) -> Function:
    import torch.nn.functional as F

    function: Any = getattr(F, call.name)
    kernel, stride, pad = call.window, call.number("stride"), call.number("pad")
    if call.name.startswith("max"):
        return lambda X: function(X, kernel, stride, pad)
    counted = bool(call.number("count_include_pad"))
    return lambda X: function(X, kernel, stride, pad, count_include_pad=counted)


def _along(name: str) -> Callable[[OperatorCall], Function]:
    """A function along one axis."""

    def made(call: OperatorCall) -> Function:
        import torch

        function, axis = getattr(torch, name), call.number("axis")
        return lambda X: function(X, axis)

    return made


def _argsort(call: OperatorCall) -> Function:
    import torch

    axis, descending = call.number("axis"), bool(call.number("descending"))
    return lambda X: torch.sort(X, dim=axis, descending=descending, stable=True).indices


def _topk(call: OperatorCall) -> Function:
    import torch

    k, axis = call.number("k"), call.number("axis")
    return lambda X: torch.topk(X, k, axis).indices


def _values_along(name: str) -> Callable[[OperatorCall], Function]:
    """A function along one axis that returns values and their positions."""

    def made(call: OperatorCall) -> Function:
        import torch

        function, axis = getattr(torch, name), call.number("axis")
        return lambda X: function(X, axis).values

    return made


def _prod(call: OperatorCall) -> Function | None:
    import torch

    axes = call.axes("axis")
    if len(axes) > 1:
        return None
    return (lambda X: torch.prod(X, axes[0])) if axes else torch.prod


def _variance(call: OperatorCall) -> Function:
    import torch

    axes, correction = call.axes("axis") or None, call.number("correction")
    return lambda X: torch.var(X, axes, correction=correction)


def _rms_norm(call: OperatorCall) -> Function:
    import torch.nn.functional as F

    shape, eps = (call.number("n"),), call.real("eps")
    return lambda X, gamma: F.rms_norm(X, shape, gamma, eps)


def _group_norm(call: OperatorCall) -> Function:
    import torch.nn.functional as F

    groups, eps = call.number("groups"), call.real("eps")
    return lambda X, gamma, beta: F.group_norm(X, groups, gamma, beta, eps)


def _instance_norm(call: OperatorCall) -> Function:
    import torch.nn.functional as F

    eps = call.real("eps")
    return lambda X, gamma, beta: F.instance_norm(X, weight=gamma, bias=beta, eps=eps)


def _attention(call: OperatorCall) -> Function:
    import torch.nn.functional as F

    causal = bool(call.number("causal"))
    return lambda Q, K, V: F.scaled_dot_product_attention(Q, K, V, is_causal=causal)


def _resize(call: OperatorCall) -> Function | None:
    """torch rounds down to the nearest pixel, and interpolates with half-pixel or aligned coordinates."""
    import torch.nn.functional as F

    size, mode, coordinates = (call.number("oh"), call.number("ow")), call.text("mode"), call.text("coordinates")
    if mode == "nearest":
        return (lambda X: F.interpolate(X, size, mode="nearest")) if coordinates == "asymmetric" else None
    if coordinates == "asymmetric":
        return None
    return lambda X: F.interpolate(X, size, mode="bilinear", align_corners=coordinates == "align_corners")


def _matrix_norm(call: OperatorCall) -> Function:
    import torch

    return lambda X: torch.linalg.matrix_norm(X)


def _gather(call: OperatorCall) -> Function:
    import torch

    return lambda X, index: torch.index_select(X, 0, index)


def _embedding(call: OperatorCall) -> Function:
    import torch.nn.functional as F

    return lambda index, W: F.embedding(index, W)


_FUNCTIONS: dict[str, Callable[[OperatorCall], Function | None]] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _convolution),
    **dict.fromkeys(["conv1d_transpose", "conv2d_transpose", "conv3d_transpose"], _transposed),
    **{f"{kind}_pool{rank}d": _pool for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{name: _along(name) for name in ("argmax", "argmin", "log_softmax", "softmax", "cumsum", "cumprod", "logcumsumexp")},
    **{name: _values_along(name) for name in ("cummax", "cummin")},
    "argsort": _argsort,
    "topk": _topk,
    "prod": _prod,
    "variance": _variance,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "attention": _attention,
    "resize2d": _resize,
    "matrix_norm": _matrix_norm,
    "gather": _gather,
    "embedding": _embedding,
}
