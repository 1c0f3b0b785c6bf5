from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
import numpy as np
import pytest
import tvm_ffi

from tunesmith.codegen.cpu.entry_points import dlpack_dtype
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.module import CompiledFunction, Module
from tunesmith.runtime.object_loader import load_object
from tunesmith.support.errors import BuildError, RunError


def compile_text(text: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.verify()
    return bytes(machine.emit_object(module))


def kernel(count: int) -> str:
    """A kernel that increments the first byte of its last argument, so that a test can check whether it ran."""
    last = count - 1
    return f"""
define void @kernel({", ".join(f"ptr noalias %a{i}" for i in range(count))}) {{
  %old = load i8, ptr %a{last}
  %new = add i8 %old, 1
  store i8 %new, ptr %a{last}
  ret void
}}
"""


def function(*params: ParamSpec, name: str = "f") -> CompiledFunction:
    return Module.from_object(compile_text(kernel(len(params)) + emit_entry(name, "kernel", params)))[name]


@pytest.fixture(scope="module")
def matmul() -> CompiledFunction:
    return function(
        ParamSpec("A", "float32", (4, 8)),
        ParamSpec("B", "float32", (8, 6)),
        ParamSpec("C", "float32", (4, 6), written=True),
        name="matmul",
    )


def good() -> list[np.ndarray]:
    return [np.zeros((4, 8), "float32"), np.zeros((8, 6), "float32"), np.zeros((4, 6), "float32")]


def refusal(call: Callable[..., object], arguments: Sequence[object]) -> str:
    with pytest.raises(RunError) as caught:
        call(*arguments)
    return str(caught.value)


def test_good_arguments_reach_the_kernel(matmul: CompiledFunction) -> None:
    arguments = good()
    matmul(*arguments)
    assert arguments[2].view("uint8")[0, 0] == 1
    assert not arguments[0].any() and not arguments[1].any()


def test_number_of_arguments(matmul: CompiledFunction) -> None:
    usage = "matmul(A: float32[4, 8], B: float32[8, 6], C: float32[4, 6])"
    assert refusal(matmul, good()[:2]) == f"matmul: expected 3 argument(s), got 2; signature: {usage}"
    assert refusal(matmul, []) == f"matmul: expected 3 argument(s), got 0; signature: {usage}"
    assert "got 4" in refusal(matmul, [*good(), 1])


@pytest.mark.parametrize(
    ("value", "kind"),
    [(3, "int"), (2.5, "float"), (True, "bool"), (None, "None"), ("text", "ffi.SmallStr"), ("x" * 99, "ffi.String"), ([1, 2], "ffi.Array")],
)
def test_kind_of_an_argument(matmul: CompiledFunction, value: object, kind: str) -> None:
    a, _, c = good()
    hint = "pass a tensor (numpy, torch or any other DLPack array)"
    assert refusal(matmul, [a, value, c]) == f"matmul: argument 1 (B): expected float32[8, 6], got a value of type {kind}: {hint}"


@pytest.mark.parametrize(
    ("dtype", "shown"), [("float64", "float64"), ("int32", "int32"), ("uint8", "uint8"), ("complex64", "complex64"), ("bool", "bool8")]
)
def test_dtype(matmul: CompiledFunction, dtype: str, shown: str) -> None:
    a, b, c = good()
    assert refusal(matmul, [a, b.astype(dtype), c]) == f"matmul: argument 1 (B): expected float32[8, 6], got dtype {shown}"


@pytest.mark.parametrize("shape", [(8, 5), (7, 6), (6, 8), (48,), (8, 6, 1), (1, 8, 6), (), (0, 6), (1,) * 32])
def test_shape(matmul: CompiledFunction, shape: tuple[int, ...]) -> None:
    a, _, c = good()
    wanted = f"matmul: argument 1 (B): expected float32[8, 6], got shape {list(shape)}"
    assert refusal(matmul, [a, np.zeros(shape, "float32"), c]) == wanted


def test_rank_beyond_the_limit_of_a_message(matmul: CompiledFunction) -> None:
    a, _, c = good()
    text = refusal(matmul, [a, np.zeros((1,) * 40, "float32"), c])
    assert text.endswith("got shape [" + "1, " * 32 + "...]")


def test_strides(matmul: CompiledFunction) -> None:
    a, _, c = good()
    hint = " (in elements): it must be contiguous and row-major, pass a copy (numpy.ascontiguousarray)"
    want = "matmul: argument 1 (B): expected float32[8, 6], got strides "
    assert refusal(matmul, [a, np.zeros((6, 8), "float32").T, c]) == want + "[1, 8]" + hint
    assert refusal(matmul, [a, np.zeros((8, 12), "float32")[:, ::2], c]) == want + "[12, 2]" + hint
    assert refusal(matmul, [a, np.zeros((8, 7), "float32")[:, :6], c]) == want + "[7, 1]" + hint
    assert refusal(matmul, [a, np.zeros((8, 6), "float32")[::-1], c]) == want + "[-6, 1]" + hint
    assert refusal(matmul, [a, np.broadcast_to(np.zeros(6, "float32"), (8, 6)).view(), c]).startswith("matmul: argument 1 is a read-only")


def test_strides_of_single_elements_are_ignored() -> None:
    call = function(ParamSpec("A", "float32", (1, 5, 1), written=True))
    call(np.zeros((3, 5, 4), "float32")[::3, :, ::4].copy())
    odd = np.lib.stride_tricks.as_strided(np.zeros(99, "float32"), (1, 5, 1), (44, 4, 12))
    call(odd)
    assert odd.view("uint8").flat[0] == 1
    assert "got strides [99, 2, 7]" in refusal(call, [np.lib.stride_tricks.as_strided(np.zeros(99, "float32"), (1, 5, 1), (396, 8, 28))])


def test_shared_memory(matmul: CompiledFunction) -> None:
    block = np.zeros(200, "float32")
    a = good()[0]
    inside = block[10:58].reshape(8, 6)
    want = "matmul: argument 2 (C): expected float32[4, 6], got memory that it shares with argument 1 (B), and one of the two is written"
    for start in (10, 33, 57):
        assert refusal(matmul, [a, inside, block[start : start + 24].reshape(4, 6)]).startswith(want)
    matmul(a, inside, block[58:82].reshape(4, 6))
    call = function(ParamSpec("A", "int8", (4,), written=True), ParamSpec("B", "int8", (4,)))
    data = np.zeros(4, "int8")
    assert "argument 1 (B): expected int8[4], got memory that it shares with argument 0 (A)" in refusal(call, [data, data])


def test_inputs_may_alias() -> None:
    call = function(ParamSpec("A", "int8", (4,)), ParamSpec("B", "int8", (4,)), ParamSpec("C", "int8", (4,), written=True))
    data, out = np.zeros(4, "int8"), np.zeros(4, "int8")
    call(data, data, out)
    assert out[0] == 1


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "float64", "bool"])
def test_every_dtype_of_numpy(dtype: str) -> None:
    call = function(ParamSpec("A", dtype, (3,)))
    data = np.zeros(3, dtype)
    call(data)
    assert data.view("uint8")[0] == 1
    other = np.zeros(3, "int32")
    assert f"expected {dtype}[3], got dtype int32" in refusal(call, [other])


def test_dlpack_codes() -> None:
    assert dlpack_dtype("float32") == 2 | 32 << 8 | 1 << 16
    assert dlpack_dtype("bfloat16") == 4 | 16 << 8 | 1 << 16
    assert dlpack_dtype("uint8") == 1 | 8 << 8 | 1 << 16
    assert dlpack_dtype("bool") == 6 | 8 << 8 | 1 << 16


def test_misaligned_memory() -> None:
    call = function(ParamSpec("A", "float64", (2,)))
    bytes_ = np.zeros(64, "uint8")
    shift = next(i for i in range(8) if (bytes_.ctypes.data + i) % 8 == 4)
    text = refusal(call, [bytes_[shift : shift + 16].view("float64")])
    assert f"got the address {bytes_.ctypes.data + shift:#x}, which is not a multiple of the element size 8: pass a copy" in text


def test_scalars_and_empty_arrays() -> None:
    call = function(ParamSpec("A", "float32", (3, 0, 5)), ParamSpec("B", "float32", (), written=True))
    scalar = np.zeros((), "float32")
    call(np.zeros((3, 0, 5), "float32"), scalar)
    assert scalar.tobytes()[0] == 1
    assert "argument 0 (A): expected float32[3, 0, 5], got shape [3, 1, 5]" in refusal(call, [np.zeros((3, 1, 5), "float32"), scalar])
    assert "argument 1 (B): expected float32[], got shape [1]" in refusal(call, [np.zeros((3, 0, 5), "float32"), np.zeros(1, "float32")])


class RawTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class RawAny(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


RAW_DTYPE = {"code": 2, "bits": 32, "lanes": 1}


def raw_call(params: Sequence[ParamSpec], tensor: RawTensor | None) -> str:
    """Call the entry of one parameter as C would, with a bare DLTensor*, and return the message of the error it raises."""
    loaded = load_object(compile_text(kernel(1) + emit_entry("f", "kernel", params)))
    entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)(loaded.address("__tvm_ffi_f"))
    argument = RawAny(7, 0, None if tensor is None else ctypes.addressof(tensor))
    result = RawAny(0, 0, None)
    if entry(None, ctypes.addressof(argument), 1, ctypes.addressof(result)) == 0:
        return ""
    handle = ctypes.c_void_p()
    tvm_ffi.LIB.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    assert handle.value is not None
    # TVMFFIErrorCell after a header of 24 bytes: kind {data, size}, message {data, size}.
    message = ctypes.string_at(*(ctypes.cast(handle.value + 24 + 16, ctypes.POINTER(ctypes.c_size_t))[i] for i in range(2))).decode()
    tvm_ffi.LIB.TVMFFIObjectDecRef(handle)
    return message


def raw_tensor(data: int | None, shape: Sequence[int], strides: Sequence[int] | None = None, **fields: int) -> RawTensor:
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
    return RawTensor(data, ndim=len(shape), shape=extents, strides=steps, **({"device_type": 1} | RAW_DTYPE | fields))


def test_bare_tensors_of_c_callers() -> None:
    param = [ParamSpec("A", "float32", (2, 3))]
    data = np.zeros(64, "uint8")
    start = data.ctypes.data
    assert raw_call(param, raw_tensor(start, (2, 3))) == ""
    assert data[0] == 1
    assert raw_call(param, raw_tensor(start, (2, 3), (3, 1), byte_offset=8)) == ""
    assert data[8] == 1
    prefix = "f: argument 0 (A): expected float32[2, 3], got "
    assert raw_call(param, None) == prefix + "a null pointer"
    assert raw_call(param, raw_tensor(None, (2, 3))) == prefix + "a null pointer"
    no_shape = raw_tensor(start, (2, 3))
    no_shape.shape = None
    assert raw_call(param, no_shape) == prefix + "a null pointer"
    assert raw_call(param, raw_tensor(start, (2, 3), byte_offset=2)).startswith(prefix + f"the address {start + 2:#x}, which is not")
    assert raw_call(param, raw_tensor(start, (2, 3), lanes=4)) == prefix + "dtype float32x4"
    assert raw_call(param, raw_tensor(start, (2, 3), code=10, bits=8)) == prefix + "DLPack dtype code 10 with 8 bits"
    device = "memory of DLPack device type 2, index 1: pass a tensor in CPU memory (device type 1)"
    assert raw_call(param, raw_tensor(start, (2, 3), device_type=2, device_id=1)) == prefix + device
    assert raw_call([ParamSpec("A", "float32", (2, 0))], raw_tensor(start, (2, 0), (7, 7))) == ""


def test_kinds_of_error() -> None:
    library = function(ParamSpec("A", "float32", (2,)))
    with pytest.raises(TypeError, match="got dtype float64"):
        library.ffi(np.zeros(2))
    with pytest.raises(ValueError, match=r"got shape \[3\]"):
        library.ffi(np.zeros(3, "float32"))
    with pytest.raises(TypeError, match=r"f: expected 1 argument\(s\), got 0"):
        library.ffi()


def test_entries_of_one_module_share_their_declarations() -> None:
    declared: set[str] = set()
    text = kernel(1)
    text += emit_entry("first", "kernel", [ParamSpec("A", "int8", (2,))], declared)
    text += emit_entry("second", "kernel", [ParamSpec("B", "int8", (3,))], declared)
    assert text.count("declare") == 1
    module = Module.from_object(compile_text(text))
    assert module.functions == ("first", "second")
    module["second"](np.zeros(3, "int8"))
    assert "second: argument 0 (B): expected int8[3], got shape [2]" in refusal(module["second"], [np.zeros(2, "int8")])
    with pytest.raises(BuildError, match="two functions of one module are called 'first'"):
        emit_entry("first", "kernel", [], declared)


def test_function_without_parameters() -> None:
    text = "define void @kernel() {\n  ret void\n}\n" + emit_entry("f", "kernel", [])
    call = Module.from_object(compile_text(text))["f"]
    assert call() is None
    assert refusal(call, [1]) == "f: expected 0 argument(s), got 1; signature: f()"


def test_unusual_names() -> None:
    call = function(ParamSpec('50% "b\\n" é', "int8", (2,)))
    assert refusal(call, [1]).startswith('f: argument 0 (50% "b\\n" é): expected int8[2]')
    for name in ("a-b", "1st", "", "x y"):
        with pytest.raises(BuildError, match="cannot name an exported function"):
            emit_entry(name, "kernel", [])


def test_text_is_deterministic(assert_golden: Callable[..., None]) -> None:
    assert_golden(emit_entry("vadd", "vadd_kernel", [ParamSpec("A", "float32", (2, 3)), ParamSpec("s", "int64", (), written=True)]))
