"""Define the conversions of float16 and bfloat16 in C: values are stored as 16 bits and computed as float.

Conversions round once, to the nearest value, ties to even.  They are integer arithmetic, or instructions of F16C and AVX-512.
"""

from __future__ import annotations

from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.support import dtype as dt

_FROM_FLOAT16 = """\
static inline float from_float16(uint16_t x) {
#ifdef __F16C__
  typedef short eight __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps((eight){(short)x})[0];
#else
  const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, rest = x & 0x7fffu;
  if (rest >= 0x7c00u) return float32_of_bits_uint32(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 0x400000u : 0));
  if (rest >= 0x400u) return float32_of_bits_uint32(sign | ((rest << 13) + 0x38000000u));
  return float32_of_bits_uint32(sign | uint32_of_bits_float32((float)rest * 0x1p-24f));
#endif
}"""
_TO_FLOAT16 = """\
static inline uint16_t to_float16(float x) {
#ifdef __F16C__
  typedef float four __attribute__((vector_size(16)));
  return (uint16_t)__builtin_ia32_vcvtps2ph((four){x}, 0)[0];
#else
  uint32_t u = uint32_of_bits_float32(x), sign = u >> 16 & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
  if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (u < 0x38800000u) return (uint16_t)(sign | (uint32_of_bits_float32(float32_of_bits_uint32(u) + 0.5f) - 0x3f000000u));
  return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1u) - 0x38000000u) >> 13);
#endif
}"""
_FROM_BFLOAT16 = "static inline float from_bfloat16(uint16_t x) { return float32_of_bits_uint32((uint32_t)x << 16); }"
_TO_BFLOAT16 = """\
static inline uint16_t to_bfloat16(float x) {
  const uint32_t u = uint32_of_bits_float32(x);
  return x != x ? 0x7fc0u : (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}"""
_TO_ODD = """\
static inline float to_odd(double x) {
  const float y = (float)x;
  const uint32_t u = uint32_of_bits_float32(y);
  if (x != x || (double)y == x || (u & 1u) || (u & 0x7f800000u) == 0x7f800000u) return y;
  return float32_of_bits_uint32((x > 0) == ((double)y < x) ? u + 1u : u - 1u);
}"""
"""Rounds to float, and sets the last bit of an inexact result, so that a second rounding is correct."""

_TEXTS = {"from_float16": _FROM_FLOAT16, "to_float16": _TO_FLOAT16, "from_bfloat16": _FROM_BFLOAT16, "to_bfloat16": _TO_BFLOAT16}
_WIDE = {
    ("from_float16", 16): ("__AVX512F__", "__builtin_ia32_vcvtph2ps512_mask((int16x16)as, (float32x16){0}, -1, 4)"),
    ("to_float16", 16): ("__AVX512F__", "(uint16x16)__builtin_ia32_vcvtps2ph512_mask(as, 0, (int16x16){0}, -1)"),
    ("from_float16", 8): ("__F16C__", "__builtin_ia32_vcvtph2ps256((int16x8)as)"),
    ("to_float16", 8): ("__F16C__", "(uint16x8)__builtin_ia32_vcvtps2ph256(as, 0)"),
}
"""Conversions of whole vectors by one instruction: the macro of a compiler that has it, and the value."""


def half_to_float(prelude: Prelude, half: str, lanes: int) -> str:
    """The name of a function from stored bits to float32."""
    return _converter(prelude, f"from_{half}", "uint16", "float32", lanes)


def float_to_half(prelude: Prelude, half: str, lanes: int) -> str:
    """The name of a function from float32 to stored bits."""
    return _converter(prelude, f"to_{half}", "float32", "uint16", lanes)


def rounded_to_half(prelude: Prelude, half: str, lanes: int) -> str:
    """The name of a function that rounds float32 to the precision of a 16-bit float."""
    to, back = float_to_half(prelude, half, lanes), half_to_float(prelude, half, lanes)
    suffix = "" if lanes == 1 else f"x{lanes}"
    t = prelude.type_of(dt.vector("float32", lanes))
    name = f"round_{half}{suffix}"
    return prelude.define(name, f"static inline {t} {name}({t} x) {{ return {back}({to}(x)); }}")


def double_to_half(prelude: Prelude, lanes: int) -> str:
    """The name of a function from float64 to a float32 that rounds to float16 as the float64 does."""
    prelude.reinterpret("float32", "uint32")
    prelude.reinterpret("uint32", "float32")
    prelude.define("to_odd", _TO_ODD)
    return "to_odd" if lanes == 1 else prelude.lanewise(f"to_oddx{lanes}", "float32", [("float64", "a")], "to_odd(a)", lanes)


def _converter(prelude: Prelude, name: str, old: str, new: str, lanes: int) -> str:
    prelude.reinterpret("float32", "uint32")
    prelude.reinterpret("uint32", "float32")
    prelude.define(name, _TEXTS[name])
    if lanes == 1:
        return name
    vector = f"{name}x{lanes}"
    wide = _WIDE.get((name, lanes))
    native = [(f"defined({wide[0]})", wide[1])] if wide is not None else []
    prelude.type_of(dt.vector("int16", lanes))
    return prelude.lanewise(vector, new, [(old, "a")], f"{name}(a)", lanes, native)
