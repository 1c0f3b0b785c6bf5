"""Describe the spelling differences of CUDA C and OpenCL C in one table, so that one printer emits both."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tunesmith.ir.interpreter.memory import round_bfloat16
from tunesmith.support import dtype as dt

_FLOAT_MATHS = ("exp", "exp2", "log", "log2", "tanh", "erf", "sin", "cos", "sqrt", "rsqrt", "floor", "ceil", "trunc", "copysign", "fma")
HALVES = ("float16", "bfloat16")
"""Stored as 16 bits in memory, computed as float in expressions, rounded after each operation."""


@dataclass(frozen=True)
class Dialect:
    """One kernel language.

    Attributes:
        name: `cuda` or `opencl`.
        types: C scalar type by dtype.
        vectors: name of each available vector type by (dtype, lanes).
        spaces: address space qualifier of pointers by scope.
        shared: prefix of a declaration in shared memory.
        thread, block: thread index in a block and block index in the grid, along x, y, z.
        barrier, unroll: statements.
        functions: function names of intrinsics by (name, double precision).
        prelude: start of every program.
        halves: conversions of 16-bit floats, for programs that use them.
    """

    name: str
    types: Mapping[str, str]
    vectors: Mapping[tuple[str, int], str]
    spaces: Mapping[str, str]
    shared: str
    thread: tuple[str, str, str]
    block: tuple[str, str, str]
    barrier: str
    unroll: str
    restrict: str
    prelude: str
    halves: str
    functions: Mapping[tuple[str, bool], str] = field(default_factory=dict)

    def vector(self, dtype: str, parts: list[str]) -> str:
        """A vector value built from its lanes."""
        name = self.vectors[dtype, len(parts)]
        return f"make_{name}({', '.join(parts)})" if self.name == "cuda" else f"({name})({', '.join(parts)})"

    def pointer(self, dtype: str, lanes: int, scope: str, address: str, constant: bool) -> str:
        """Dereference of an address as a vector of elements."""
        name = self.vectors[dtype, lanes]
        space = self.spaces.get(scope, "")
        return f"*({space}{'const ' if constant else ''}{name}*)({address})"

    def number(self, value: float | int | bool, dtype: str) -> str:
        """A literal of the dtype."""
        if dtype == "bool":
            return "1" if value else "0"
        if dt.is_int(dtype):
            text = str(int(value))
            if dt.bits(dtype) < 64:
                if value == -(2**31):
                    return f"({text[:-1]}7 - 1)"  # 2147483648 is no int in C
                return f"{text}u" if dtype == "uint32" else text if value >= 0 else f"({text})"
            suffix = ("ULL" if dt.is_unsigned(dtype) else "LL") if self.name == "cuda" else ("UL" if dt.is_unsigned(dtype) else "L")
            return f"({text}{suffix})" if value != -(2**63) else f"(-{2**63 - 1}{suffix} - 1)"
        if dtype == "float64":
            return self._special(float(value), True) or repr(float(value))
        rounded = rounded_to(float(value), dtype)
        text = self._special(rounded, False) or f"{shortest_float32(rounded)}f"
        return f"({text})" if text.startswith("-") else text

    def floored(self, kind: str) -> tuple[str, str]:
        """Helper functions on floats: remainder of a floored division, and its quotient as in exact arithmetic."""
        t, double = self.types[kind], kind == "float64"
        zero, one, half = (self.number(x, kind) for x in (0.0, 1.0, 0.5))
        sign, floor = self.functions["copysign", double], self.functions["floor", double]
        rest = "fmod" if double or self.name == "opencl" else "fmodf"
        return (
            f"TS_INLINE {t} ts_mod_{kind}({t} a, {t} b) {{ {t} r = {rest}(a, b); "
            f"return b == {zero} ? r : r != {zero} ? ((b < {zero}) != (r < {zero}) ? r + b : r) : {sign}({zero}, b); }}",
            f"TS_INLINE {t} ts_quotient_{kind}({t} a, {t} b) {{ if (b == {zero}) return a / b; {t} r = {rest}(a, b), q = (a - r) / b; "
            f"if (r != {zero} && (b < {zero}) != (r < {zero})) q -= {one}; if (q == {zero}) return {sign}({zero}, a / b); "
            f"{t} f = {floor}(q); return q - f > {half} ? f + {one} : f; }}",
        )

    def to_odd(self) -> str:
        """A helper that rounds double to float and sets the last bit if the result is inexact, so that a second rounding is correct."""
        t = self.types["float64"]
        as_float, as_bits = ("__uint_as_float", "__float_as_uint") if self.name == "cuda" else ("as_float", "as_uint")
        return (
            f"TS_INLINE float ts_to_odd({t} x) {{ float y = (float)x; unsigned int u = {as_bits}(y); "
            f"if (x != x || ({t})y == x || (u & 1u) || (u & 0x7f800000u) == 0x7f800000u) return y; "
            f"return {as_float}((x > 0) == (({t})y < x) ? u + 1u : u - 1u); }}"
        )

    def _special(self, value: float, double: bool) -> str:
        if math.isfinite(value):
            return ""
        bits = struct.unpack("q" if double else "i", struct.pack("d" if double else "f", value))[0]
        if self.name == "cuda":
            return f"__longlong_as_double({bits}LL)" if double else f"__int_as_float({bits})"
        return f"as_double({bits}L)" if double else f"as_float({bits})"


def rounded_to(value: float, dtype: str) -> float:
    """The value of a literal of at most 32 bits, rounded to its dtype."""
    with np.errstate(over="ignore"):
        held = dt.to_numpy(dtype).type(value)
    return float(round_bfloat16(held) if dtype == "bfloat16" else held)


def shortest_float32(value: float) -> str:
    """The shortest decimal text of a float32."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
            break
    return text if any(c in text for c in ".en") else f"{text}.0"


def _vectors(words: Mapping[str, str], widths: tuple[int, ...]) -> dict[tuple[str, int], str]:
    """Vector types of up to 16 bytes."""
    return {(d, n): f"{w}{n}" for d, w in words.items() for n in widths if n * dt.nbytes(d) <= 16}


_CUDA_TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "float32": "float",
    "float64": "double",
}
_OPENCL_TYPES = _CUDA_TYPES | {
    "int8": "char",
    "uint8": "uchar",
    "uint16": "ushort",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float16": "ushort",
    "bfloat16": "ushort",
}
_CUDA_WORDS = {"float32": "float", "float64": "double", "int32": "int", "uint32": "uint", "int64": "longlong", "uint64": "ulonglong"}
_OPENCL_WORDS = _CUDA_WORDS | {"int64": "long", "uint64": "ulong"}

_CUDA_HALVES = """\
TS_INLINE float ts_from_float16(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
TS_INLINE unsigned short ts_to_float16(float x) { unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
TS_INLINE float ts_from_bfloat16(unsigned short x) { return __uint_as_float((unsigned int)x << 16); }
TS_INLINE unsigned int ts_bits(float x) { return __float_as_uint(x); }
"""
_OPENCL_HALVES = """\
TS_INLINE float ts_from_float16(ushort x) { return vload_half(0, (const half*)&x); }
TS_INLINE ushort ts_to_float16(float x) { ushort y; vstore_half_rte(x, 0, (half*)&y); return y; }
TS_INLINE float ts_from_bfloat16(ushort x) { return as_float((uint)x << 16); }
TS_INLINE uint ts_bits(float x) { return as_uint(x); }
"""

CUDA = Dialect(
    name="cuda",
    types=_CUDA_TYPES,
    vectors=_vectors(_CUDA_WORDS, (2, 4)),
    spaces={},
    shared="__shared__ __align__(16) ",
    thread=("(int)threadIdx.x", "(int)threadIdx.y", "(int)threadIdx.z"),
    block=("(int)blockIdx.x", "(int)blockIdx.y", "(int)blockIdx.z"),
    barrier="__syncthreads();",
    unroll='_Pragma("unroll")',
    restrict="__restrict__",
    prelude="#define TS_INLINE static __device__ __forceinline__\n",
    halves=_CUDA_HALVES,
    functions={
        **{(n, False): f"{n}f" for n in _FLOAT_MATHS},
        **{(n, True): n for n in _FLOAT_MATHS},
        ("round", False): "rintf",
        ("round", True): "rint",
        ("pow", False): "powf",
        ("pow", True): "pow",
        ("abs", False): "fabsf",
        ("abs", True): "fabs",
        ("ldexp", False): "ldexpf",
        ("ldexp", True): "ldexp",
    },
)
OPENCL = Dialect(
    name="opencl",
    types=_OPENCL_TYPES,
    vectors=_vectors(_OPENCL_WORDS, (2, 4)),
    spaces={"global": "__global ", "shared": "__local ", "shared.dyn": "__local "},
    shared="__local ",
    thread=("(int)get_local_id(0)", "(int)get_local_id(1)", "(int)get_local_id(2)"),
    block=("(int)get_group_id(0)", "(int)get_group_id(1)", "(int)get_group_id(2)"),
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    unroll="__attribute__((opencl_unroll_hint))",
    restrict="restrict",
    prelude="#pragma OPENCL FP_CONTRACT OFF\n#define TS_INLINE static inline\n",
    halves=_OPENCL_HALVES,
    functions={
        **{(n, double): n for n in (*_FLOAT_MATHS, "pow", "ldexp") for double in (False, True)},
        ("round", False): "rint",
        ("round", True): "rint",
        ("abs", False): "fabs",
        ("abs", True): "fabs",
    },
)

HELPERS = """\
TS_INLINE float ts_round_float16(float x) { return ts_from_float16(ts_to_float16(x)); }
TS_INLINE unsigned short ts_to_bfloat16(float x) {
  unsigned int u = ts_bits(x);
  return x != x ? (unsigned short)0x7fc0 : (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
TS_INLINE float ts_round_bfloat16(float x) { return ts_from_bfloat16(ts_to_bfloat16(x)); }
"""
"""Conversions that both languages define identically; they use the dialect's own conversions."""
