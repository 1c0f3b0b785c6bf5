"""Run operators with torch: eager, with packed weights of oneDNN and MKL, and compiled by Inductor; on CPUs and NVIDIA GPUs."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.measure.baselines.torch_functions import arranged, channels_last, memory_formats, torch_function
from tunesmith.support import dtype as dt

_Run = Callable[[], Any]
_PACKED = ("float32", "bfloat16", "float16")
"""Types for which oneDNN packs weights."""
_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8")


class TorchBaseline(Baseline):
    """torch without its compiler.  Convolutions and dense layers have several variants; the fastest is used."""

    name: ClassVar[str] = "torch"
    package: ClassVar[str] = "torch"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """All variants in torch for this operator and dtype."""
        if call.dtype not in _DTYPES or not call.is_common:
            return []
        import torch

        torch.set_num_threads(self.threads)
        return _variants(call, "cpu")

    def low_precision_variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """Products of bytes without epilogue (`_int_mm`), and what torch has for floats, if the result has the type of the operands."""
        import torch

        torch.set_num_threads(self.threads)
        types = call.types
        if types is None or not call.is_common:
            return []
        if dt.is_float(types.lhs):
            return _variants(call, "cpu") if types.out == types.lhs else []
        return _integer_products(call)


class TorchCudaBaseline(Baseline):
    """torch on the first NVIDIA GPU without its compiler: cuBLAS and cuDNN with algorithm search; float32 without tf32."""

    name: ClassVar[str] = "torch_cuda"
    package: ClassVar[str] = "torch"

    def available(self) -> str | None:
        """None if torch is installed, built for CUDA, and finds a GPU."""
        return super().available() or _without_cuda()

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """All variants in torch for this operator and dtype."""
        if call.dtype not in _DTYPES or not call.is_common:
            return []
        _set_exact_float32()
        return [_on_gpu(v) for v in _variants(call, "cuda")]


class TorchCompileCudaBaseline(Baseline):
    """torch.compile on the first NVIDIA GPU: Inductor generates Triton kernels, and calls cuBLAS and cuDNN."""

    name: ClassVar[str] = "torch_compile_cuda"
    package: ClassVar[str] = "torch"

    def available(self) -> str | None:
        """None if torch finds a GPU and Triton is installed."""
        missing = super().available() or _without_cuda()
        return missing or (None if importlib.util.find_spec("triton") else "torch.compile needs triton on a GPU, which is not installed")

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator; for convolutions one per memory format."""
        if call.dtype not in _DTYPES or not call.is_common:
            return []
        _set_exact_float32()
        return [_on_gpu(v) for v in _compiled_variants(call, "cuda")]


class TorchCompileBaseline(Baseline):
    """torch.compile with frozen weights (Inductor generates C++, and calls oneDNN and MKL).  Needs a C++ compiler."""

    name: ClassVar[str] = "torch_compile"
    package: ClassVar[str] = "torch"

    def available(self) -> str | None:
        """None if torch and a C++ compiler are installed."""
        if not any(shutil.which(compiler) for compiler in ("g++", "clang++", "c++")):
            return "torch.compile needs a C++ compiler, but none is on the path"
        return super().available()

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator; for convolutions one per memory format."""
        if call.dtype not in _DTYPES or not call.is_common:
            return []
        import torch

        torch.set_num_threads(self.threads)
        return _compiled_variants(call, "cpu")


def _without_cuda() -> str | None:
    """Reason why torch has no GPU; None if it has one."""
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no NVIDIA GPU here"


def _set_exact_float32() -> None:
    """Disable tf32, and let cuDNN benchmark its algorithms."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def _on_gpu(v: PreparedCall) -> PreparedCall:
    """The same call, completed by a GPU synchronisation."""
    import torch

    return replace(v, finish=torch.cuda.synchronize)


def _variants(call: OperatorCall, device: str) -> list[PreparedCall]:
    """Variants without the compiler."""
    if call.name == "conv2d":
        return _conv2d(call, device)
    if call.name == "dense":
        return [PreparedCall(variant, run, _array) for variant, run in _dense(call, device)]
    run = _eager(call, device)
    return _functions(call, device) if run is None else [PreparedCall("eager", run, _array)]


def _functions(call: OperatorCall, device: str) -> list[PreparedCall]:
    """Operators with one function, for images in each memory format."""
    function = torch_function(call)
    if function is None:
        return []
    variants: list[PreparedCall] = []
    for name, memory in memory_formats(call).items():
        t = _in_format(call, memory, device)
        variants.append(PreparedCall(f"eager, {name}" if name else "eager", lambda t=t: function(**t), _output(call)))  # type: ignore[misc]
    return variants


def _compiled_variants(call: OperatorCall, device: str) -> list[PreparedCall]:
    function = _formula(call)
    if function is None:
        return []
    return [_compiled(call, function, name or "compiled", memory, device) for name, memory in memory_formats(call).items()]


def _tensors(call: OperatorCall, device: str) -> dict[str, Any]:
    """Copies in torch's own memory, which is aligned for vectors; for products of halves all in that type."""
    import torch

    half = _dtype(call.dtype) if call.types is not None and dt.is_float(call.dtype) else None
    return {name: torch.from_numpy(value).clone().to(device, half) for name, value in call.inputs.items()}


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _array(value: Any) -> np.ndarray:
    """The elements; bfloat16 as float32."""
    array: np.ndarray = (value.float() if value.dtype == _dtype("bfloat16") else value).cpu().numpy()
    return array


def _integer_products(call: OperatorCall) -> list[PreparedCall]:
    """The product of bytes in int32, with the right factor in both orders of its axes."""
    import torch

    plain = call.name in ("matmul", "dense") and call.activation == "none" and "bias" not in call.inputs
    if not plain or call.types is None or call.types.rhs != "int8":
        return []
    a, b = _tensors(call, "cpu").values()
    out = torch.empty(call.output, dtype=torch.int32)
    orders = {"_int_mm": b, "_int_mm, columns of B adjacent": b.t().contiguous().t()}
    return [PreparedCall(name, lambda w=w: torch._int_mm(a, w, out=out), _array) for name, w in orders.items()]  # type: ignore[misc]


def _eager(call: OperatorCall, device: str) -> _Run | None:
    """Operators with one eager function; outputs are preallocated where the function supports it."""
    import torch

    t = _tensors(call, device)
    out = torch.empty(call.output, dtype=_dtype(call.dtype), device=device)
    if call.name == "matmul":
        return lambda: torch.mm(t["A"], t["B"], out=out)
    if call.name == "batch_matmul":
        return lambda: torch.bmm(t["A"], t["B"], out=out)
    if call.name == "add":
        return lambda: torch.add(t["A"], t["B"], out=out)
    if call.name == "relu":
        return lambda: torch.clamp_min(t["X"], 0, out=out)
    if call.name == "softmax":
        axis = call.number("axis")
        return lambda: torch.softmax(t["X"], axis, out=out)
    if call.name == "sum":
        axes = call.axes("axis")
        if not axes:
            return lambda: torch.sum(t["X"], dtype=out.dtype)
        return lambda: torch.sum(t["X"], axes, dtype=out.dtype, out=out)
    if call.name == "layer_norm":
        shape, eps = (call.number("n"),), call.real("eps")
        return lambda: torch.nn.functional.layer_norm(t["X"], shape, t["gamma"], t["beta"], eps)
    return None


def _activate(name: str) -> Callable[[Any], Any]:
    """The activation, in place where torch supports it."""
    import torch

    known: dict[str, Callable[[Any], Any]] = {"relu": torch.relu_, "gelu": torch.nn.functional.gelu}
    return known.get(name, lambda y: y)


def _dense(call: OperatorCall, device: str) -> list[tuple[str, _Run]]:
    """Linear on W[n,k], addmm on W[k,n], and both libraries' linear on packed weights."""
    import torch

    t = _tensors(call, device)
    x, w, bias = t["A"], t["W"], t.get("bias")
    w_nk = w.t().contiguous()
    activation = call.activation
    activate = _activate(activation)
    out = torch.empty(call.output, dtype=x.dtype, device=device)
    linear = torch.nn.functional.linear
    variants: list[tuple[str, _Run]] = [("eager linear", lambda: activate(linear(x, w_nk, bias)))]
    if bias is None:
        variants.append(("eager mm", lambda: activate(torch.mm(x, w, out=out))))
    else:
        variants.append(("eager addmm", lambda: activate(torch.addmm(bias, x, w, out=out))))
    if call.dtype not in _PACKED or device != "cpu":
        return variants
    onednn, mkl, rows = torch.ops.mkldnn, torch.ops.mkl, call.number("m")
    if torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise") and hasattr(onednn, "_reorder_linear_weight"):
        packed = onednn._reorder_linear_weight(w_nk, rows)
        algorithm = "none" if activation == "gelu" else ""  # exact gelu
        variants.append(("oneDNN, weights packed ahead", lambda: onednn._linear_pointwise(x, packed, bias, activation, [], algorithm)))
    if (
        call.dtype == "float32"
        and torch.backends.mkl.is_available()
        and hasattr(mkl, "_mkl_linear")
        and hasattr(mkl, "_mkl_reorder_linear_weight")
    ):
        packed_mkl = mkl._mkl_reorder_linear_weight(w_nk, rows)
        variants.append(("MKL, weights packed ahead", lambda: activate(mkl._mkl_linear(x, packed_mkl, w_nk, bias, rows))))
    return variants


def _in_format(call: OperatorCall, memory: Any, device: str) -> dict[str, Any]:
    """The tensors in torch's order of axes; images and filters have memory of the given format."""
    t = arranged(call, _tensors(call, device))
    if memory is None:
        return t
    return {name: v.contiguous(memory_format=memory) if v.ndim == t["X"].ndim else v for name, v in t.items()}


def _output(call: OperatorCall) -> Callable[[Any], np.ndarray]:
    """The conversion of a result to an array in the layout of the workload."""
    return (lambda y: _array(y.movedim(1, -1))) if channels_last(call) else _array


def _conv2d(call: OperatorCall, device: str) -> list[PreparedCall]:
    """Eager and packed variants, in both memory formats."""
    import torch

    stride, pad, dilation = ([call.number(name)] * 2 for name in ("stride", "pad", "dilation"))
    groups, activate, output = call.number("groups"), _activate(call.activation), _output(call)
    onednn = torch.ops.mkldnn
    has_packed = (
        device == "cpu" and call.dtype in _PACKED and torch.backends.mkldnn.is_available() and hasattr(onednn, "_convolution_pointwise")
    )
    variants: list[PreparedCall] = []
    for name, memory in memory_formats(call).items():
        t = _in_format(call, memory, device)
        x, w, bias = t["X"], t["W"], t.get("bias")

        def eager(x: Any = x, w: Any = w, bias: Any = bias) -> Any:
            return activate(torch.conv2d(x, w, bias, stride, pad, dilation, groups))

        variants.append(PreparedCall(f"eager, {name}", eager, output))
        if not has_packed:
            continue
        reorder = torch._C._nn.mkldnn_reorder_conv2d_weight
        packed = reorder(w.contiguous().to_mkldnn(), pad, stride, dilation, groups, list(x.shape))

        def prepacked(x: Any = x, packed: Any = packed, bias: Any = bias) -> Any:
            return onednn._convolution_pointwise(x, packed, bias, pad, stride, dilation, groups, call.activation, [], "")

        variants.append(PreparedCall(f"oneDNN, weights packed ahead, {name}", prepacked, output))
    return variants


def _compiled(call: OperatorCall, function: Callable[..., Any], variant: str, memory: Any, device: str) -> PreparedCall:
    """The operator as a module with frozen constants, compiled for static shapes."""
    import torch

    t = _in_format(call, memory, device)
    module = _module(function, {name: t.pop(name) for name in call.constants}).eval()
    torch._dynamo.reset()
    compiled = torch.compile(module, dynamic=False, options={"freezing": True})

    def run() -> Any:
        with torch.no_grad():
            return compiled(**t)

    return PreparedCall(variant, run, _output(call))


def _module(function: Callable[..., Any], constants: dict[str, Any]) -> Any:
    import torch

    class Operator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in constants.items():
                self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

        def forward(self, **inputs: Any) -> Any:
            return function(**inputs, **dict(self.named_parameters()))

    return Operator()


def _formula(call: OperatorCall) -> Callable[..., Any] | None:
    """The operator in typical user code; None if torch has no function for it."""
    import torch
    import torch.nn.functional as F

    if call.name in ("matmul", "batch_matmul"):
        return lambda A, B: torch.matmul(A, B)
    if call.name == "add":
        return lambda A, B: A + B
    if call.name == "relu":
        return lambda X: torch.relu(X)
    if call.name == "sum":
        axes = call.axes("axis") or tuple(range(call.inputs["X"].ndim))
        return lambda X: torch.sum(X, axes, dtype=X.dtype)
    if call.name == "layer_norm":
        shape, eps = (call.number("n"),), call.real("eps")
        return lambda X, gamma, beta: F.layer_norm(X, shape, gamma, beta, eps)
    if call.name == "dense":
        known: dict[str, Callable[[Any], Any]] = {"relu": torch.relu, "gelu": F.gelu}
        activation = known.get(call.activation, lambda y: y)
        return lambda A, W, bias=None: activation(F.linear(A, W.t(), bias))
    return torch_function(call)
