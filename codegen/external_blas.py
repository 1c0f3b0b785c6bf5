"""Offload dense layers to a BLAS: find a shared library, emit calls of its `cblas_sgemm` or `cblas_dgemm`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.codegen.llvm.text import literal, llvm_type
from tunesmith.ir.target.target import Target
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.shared_libraries import load_library
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError, RunError

LIBRARIES = ("libopenblas.so.0", "libopenblas.so", "libscipy_openblas.so", "libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1")
"""File names, tried in this order: the system's OpenBLAS, the OpenBLAS of the wheel `scipy-openblas32`, MKL."""
PREFIXES = ("", "scipy_")
"""Symbol prefixes: the wheel has one, to avoid symbol conflicts with another OpenBLAS in the process."""
GEMM = {"float32": "cblas_sgemm", "float64": "cblas_dgemm"}

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112


@dataclass(frozen=True, slots=True)
class Blas:
    """A CBLAS with 32-bit sizes.

    Attributes:
        soname: file name or path of the shared library.
        prefix: prefix of its function names.
    """

    soname: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Dense:
    """C[m, n] = A[m, k] B[k, n] + bias; operands are given by argument position, and the result is the last argument.

    Attributes:
        m: rows of the result.
        n: columns of the result.
        k: length of the reduction.
        dtype: float32 or float64.
        a: position of A.
        b: position of B.
        a_transposed: A is stored as [k, m].
        b_transposed: B is stored as [n, k].
        bias: position of the bias, None if there is none.
        bias_rows: rows of the bias: 1 if all rows of the result share it, else m.
    """

    m: int
    n: int
    k: int
    dtype: str
    a: int
    b: int
    a_transposed: bool = False
    b_transposed: bool = False
    bias: int | None = None
    bias_rows: int = 1


def find_blas(libraries: Iterable[str] = LIBRARIES) -> Blas:
    """The first library that can be loaded and has `cblas_sgemm` and `cblas_dgemm`.

    Args:
        libraries: file names and paths, in order.
    Raises:
        BuildError: there is none; the message lists the attempts and says how to install one.
    """
    tried = []
    for name in libraries:
        try:
            library = load_library(name)
        except RunError as error:
            tried.append(str(error).splitlines()[-1].strip())
            continue
        for prefix in PREFIXES:
            if all(hasattr(library, prefix + function) for function in GEMM.values()):
                return Blas(name, prefix)
        tried.append(f"{name}: no symbol {' or '.join(p + GEMM['float32'] for p in PREFIXES)}")
    lines = "\n  ".join(tried)
    raise BuildError(
        "no BLAS found to offload dense layers to. Install one:  pip install 'tunesmith[blas]'  or  apt install libopenblas0,"
        f" or pass the path of a library: BlasCodegen('/path/of/library.so'). Tried:\n  {lines}"
    )


def dense_object(name: str, dense: Dense, specs: Sequence[ParamSpec], blas: Blas, target: Target) -> bytes:
    """An object with the entry point `__tvm_ffi_NAME` and the function `NAME_kernel`, whose arguments are operand and result addresses.

    Args:
        name: name of the function.
        dense: the layer to compute.
        specs: specifications of its arguments.
        blas: the library to call.
        target: kind llvm.
    Raises:
        BuildError: an extent does not fit in 32 bits.
    """
    if max(dense.m, dense.n, dense.k) >= 1 << 31:
        raise BuildError(f"{name}: {dense.m} x {dense.n} x {dense.k} has an extent that does not fit the 32-bit sizes of the BLAS")
    kernel = f"{name}_kernel"
    return compile_object(dense_text(kernel, dense, blas) + emit_entry(name, kernel, specs), llvm_options(target))


def dense_text(kernel: str, dense: Dense, blas: Blas) -> str:
    """LLVM IR text of `void kernel(ptr, ...)`."""
    element = llvm_type(dense.dtype)
    types = ["i32"] * 6 + [element, "ptr", "i32", "ptr", "i32", element, "ptr", "i32"]
    operands = 1 + max(dense.a, dense.b, -1 if dense.bias is None else dense.bias)
    result = f"%p{operands}"
    values = [
        str(_ROW_MAJOR),
        str(_TRANSPOSED if dense.a_transposed else _PLAIN),
        str(_TRANSPOSED if dense.b_transposed else _PLAIN),
        *map(str, (dense.m, dense.n, dense.k)),
        literal(1.0, dense.dtype),
        f"%p{dense.a}",
        str(dense.m if dense.a_transposed else dense.k),
        f"%p{dense.b}",
        str(dense.k if dense.b_transposed else dense.n),
        literal(0.0 if dense.bias is None else 1.0, dense.dtype),
        result,
        str(dense.n),
    ]
    gemm = blas.prefix + GEMM[dense.dtype]
    arguments = ", ".join(f"{t} {v}" for t, v in zip(types, values, strict=True))
    parameters = ", ".join(f"ptr %p{i}" for i in range(operands + 1))
    return "\n".join(
        [
            f"declare void @{gemm}({', '.join(types)})",
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
            f"define void @{kernel}({parameters}) {{",
            "start:",
            *_bias(dense, result),
            f"  call void @{gemm}({arguments})",
            "  ret void",
            "}",
            "",
        ]
    )


def _bias(dense: Dense, result: str) -> list[str]:
    """Instructions that copy the bias to the result; GEMM then accumulates into it."""
    if dense.bias is None:
        return []
    row = dense.n * dt.nbytes(dense.dtype)
    if dense.bias_rows > 1 or dense.m == 1:
        return [f"  call void @llvm.memcpy.p0.p0.i64(ptr {result}, ptr %p{dense.bias}, i64 {row * dense.m}, i1 false)"]
    return [
        "  br label %rows",
        "rows:",
        "  %i = phi i64 [ 0, %start ], [ %next, %rows ]",
        f"  %at = mul i64 %i, {row}",
        f"  %row = getelementptr i8, ptr {result}, i64 %at",
        f"  call void @llvm.memcpy.p0.p0.i64(ptr %row, ptr %p{dense.bias}, i64 {row}, i1 false)",
        "  %next = add i64 %i, 1",
        f"  %more = icmp ult i64 %next, {dense.m}",
        "  br i1 %more, label %rows, label %product",
        "product:",
    ]
