"""Collect the vector types and small functions that a program uses, so that its text defines these and no others.

Operations that C has on vectors (GCC and Clang: `vector_size`, `__builtin_shufflevector`, `__builtin_convertvector`) are written as
operators; all others are loops over the lanes of a vector, which both compilers turn into vector instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.codegen.c.dialect import Dialect
from tunesmith.codegen.c.division import floor_division
from tunesmith.codegen.c.host.text import check_lanes, scalar_type
from tunesmith.support import dtype as dt

_SIGNED = {"add": "+", "sub": "-", "mul": "*"}
_UNARY = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}
_FMA = {
    "float32x16": ("__AVX512F__", "vfmaddps512_mask", ", -1, 4"),
    "float64x8": ("__AVX512F__", "vfmaddpd512_mask", ", -1, 4"),
    "float32x8": ("__FMA__", "vfmaddps256", ""),
    "float64x4": ("__FMA__", "vfmaddpd256", ""),
    "float32x4": ("__FMA__", "vfmaddps", ""),
    "float64x2": ("__FMA__", "vfmaddpd", ""),
}
"""Instructions of x86 as GCC names them, which compiles them faster than a loop: the macro that it defines if it has one, and arguments."""
_MASKED = {
    "float32x16": "ups512",
    "float64x8": "upd512",
    "int32x16": "dqusi512",
    "uint32x16": "dqusi512",
    "float32x8": "ups256",
    "float32x4": "ups128",
}
"""Masked loads and stores of AVX-512 as GCC names them; those of int64 take `long long`, which is not int64_t everywhere."""
_DIVISION = Dialect(
    name="c",
    types={t: scalar_type(t) for t in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    vectors={},
    spaces={},
    shared="",
    thread=("", "", ""),
    block=("", "", ""),
    barrier="",
    unroll="",
    restrict="restrict",
    prelude="",
    halves="",
)
"""What `floor_division` needs to spell its helpers in C11."""


class Prelude:
    """The definitions that a program needs, in an order in which each follows those that it uses."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._functions: dict[str, str] = {}

    def text(self) -> str:
        """All definitions."""
        return "\n".join([*self._types.values(), *self._functions.values()])

    def type_of(self, dtype: str) -> str:
        """The C type of values of a dtype; vector types are defined on first use."""
        element, lanes = dt.split(dtype)
        if lanes == 1:
            return scalar_type(dtype)
        if dtype not in self._types:
            check_lanes(dtype)
            size = lanes * dt.nbytes(element)
            self._types[dtype] = f"typedef {scalar_type(element)} {dtype} __attribute__((vector_size({size}), may_alias));"
        return dtype

    def define(self, name: str, text: str) -> str:
        """Define a function, once; returns its name."""
        self._functions.setdefault(name, text)
        return name

    def has(self, name: str) -> bool:
        """Whether a function is defined."""
        return name in self._functions

    def lanewise(
        self,
        name: str,
        result: str,
        operands: Sequence[tuple[str, str]],
        formula: str,
        lanes: int,
        native: Sequence[tuple[str, str]] = (),
    ) -> str:
        """Define a function that computes each lane by a formula, or a scalar function if there is one lane.

        Args:
            name: its name.
            result: element dtype of the result.
            operands: element dtype and name of each operand.
            formula: in terms of the names of the operands.
            lanes: lanes of operands and result.
            native: conditions of the preprocessor, and the value of all lanes under each, in terms of the names followed by s.
        """
        if self.has(name):
            return name
        if lanes == 1:
            given = ", ".join(f"{self.type_of(t)} {x}" for t, x in operands)
            return self.define(name, f"static inline {self.type_of(result)} {name}({given}) {{ return {formula}; }}")
        given = ", ".join(f"{self.type_of(dt.vector(t, lanes))} {x}s" for t, x in operands)
        out = self.type_of(dt.vector(result, lanes))
        inside = [*[f"const {scalar_type(t)} {x} = {x}s[l];" for t, x in operands], f"r[l] = {formula};"]
        lines = [f"{out} r;", _lanes(lanes, *inside), "return r;"]
        if native:
            cases = [(f"#{'elif' if k else 'if'} {condition}", f"return {value};") for k, (condition, value) in enumerate(native)]
            lines = [*[line for case in cases for line in case], "#else", *lines, "#endif"]
        return self._function(f"{out} {name}({given})", name, *lines)

    def _function(self, head: str, name: str, *lines: str) -> str:
        inside = [line if line.startswith("#") else f"  {line}" for line in lines]
        return self.define(name, "\n".join([f"static inline {head} {{", *inside, "}"]))

    # ---- memory --------------------------------------------------------------------------------------------------------

    def unaligned(self, dtype: str) -> str:
        """A vector type with the alignment of its elements, for memory."""
        name = f"{self.type_of(dtype)}_u"
        if name not in self._types:
            size, aligned = dt.nbytes(dt.element(dtype)) * dt.lanes(dtype), dt.nbytes(dt.element(dtype))
            attributes = f"vector_size({size}), aligned({aligned}), may_alias"
            self._types[name] = f"typedef {scalar_type(dt.element(dtype))} {name} __attribute__(({attributes}));"
        return name

    def load(self, dtype: str) -> str:
        """`load_T(p)`."""
        t, u, element = self.type_of(dtype), self.unaligned(dtype), scalar_type(dt.element(dtype))
        return self.define(f"load_{t}", f"static inline {t} load_{t}(const {element} *p) {{ return *(const {u} *)p; }}")

    def store(self, dtype: str) -> str:
        """`store_T(p, v)`."""
        t, u, element = self.type_of(dtype), self.unaligned(dtype), scalar_type(dt.element(dtype))
        return self.define(f"store_{t}", f"static inline void store_{t}({element} *p, {t} v) {{ *({u} *)p = v; }}")

    def load_first(self, dtype: str) -> str:
        """`load_first_T(p, n)`: the first n elements, and zeros."""
        t, element, lanes = self.type_of(dtype), scalar_type(dt.element(dtype)), dt.lanes(dtype)
        name = f"load_first_{t}"
        loop = [f"{t} r;", _lanes(lanes, "r[l] = l < n ? p[l] : 0;"), "return r;"]
        if dtype not in _MASKED:
            return self._function(f"{t} {name}(const {element} *p, int n)", name, *loop)
        one = f"return ({t})__builtin_ia32_load{_MASKED[dtype]}_mask((const void *)p, ({_signed(dtype)}){{0}}, {_bits(lanes)});"
        self.type_of(_signed(dtype))
        return self._function(f"{t} {name}(const {element} *p, int n)", name, *_on_avx512(dtype, one, loop))

    def store_first(self, dtype: str) -> str:
        """`store_first_T(p, n, v)`: store the first n lanes."""
        t, element, lanes = self.type_of(dtype), scalar_type(dt.element(dtype)), dt.lanes(dtype)
        name = f"store_first_{t}"
        loop = [_lanes(lanes, "if (l < n) p[l] = v[l];")]
        if dtype not in _MASKED:
            return self._function(f"void {name}({element} *p, int n, {t} v)", name, *loop)
        one = f"__builtin_ia32_store{_MASKED[dtype]}_mask((void *)p, ({_signed(dtype)})v, {_bits(lanes)});"
        self.type_of(_signed(dtype))
        return self._function(f"void {name}({element} *p, int n, {t} v)", name, *_on_avx512(dtype, one, loop))

    def gather(self, dtype: str) -> str:
        """`gather_T(p, step, n)`: n elements that are `step` apart, and zeros."""
        t, element, lanes = self.type_of(dtype), scalar_type(dt.element(dtype)), dt.lanes(dtype)
        name = f"gather_{t}"
        head = f"{t} {name}(const {element} *p, int64_t step, int n)"
        return self._function(head, name, f"{t} r;", _lanes(lanes, "r[l] = l < n ? p[l * step] : 0;"), "return r;")

    def scatter(self, dtype: str) -> str:
        """`scatter_T(p, step, n, v)`: store n lanes, `step` apart, in their order."""
        t, element = self.type_of(dtype), scalar_type(dt.element(dtype))
        name = f"scatter_{t}"
        return self._function(f"void {name}({element} *p, int64_t step, int n, {t} v)", name, _lanes("n", "p[l * step] = v[l];"))

    # ---- lanes ---------------------------------------------------------------------------------------------------------

    def splat(self, dtype: str) -> str:
        """`splat_T(x)`: all lanes are x."""
        t, element, lanes = self.type_of(dtype), scalar_type(dt.element(dtype)), dt.lanes(dtype)
        return self._function(f"{t} splat_{t}({element} x)", f"splat_{t}", f"return ({t}){{{', '.join(['x'] * lanes)}}};")

    def first(self, bits: int, lanes: int) -> str:
        """`first_T(n)`: the mask whose first n lanes are -1, the others 0."""
        t = self.type_of(dt.vector(f"int{bits}", lanes))
        return self._function(f"{t} first_{t}(int n)", f"first_{t}", f"{t} r;", _lanes(lanes, "r[l] = l < n ? -1 : 0;"), "return r;")

    def negative(self, lanes: int) -> str:
        """`negative_int64xL(x, step)`: the mask of lanes l for which x + l * step is negative."""
        t = self.type_of(dt.vector("int64", lanes))
        loop = _lanes(lanes, "r[l] = x + l * step < 0 ? -1 : 0;")
        return self._function(f"{t} negative_{t}(int64_t x, int64_t step)", f"negative_{t}", f"{t} r;", loop, "return r;")

    def ramp(self, lanes: int) -> str:
        """`ramp_int64xL(x, step)`."""
        t = self.type_of(dt.vector("int64", lanes))
        loop = _lanes(lanes, "r[l] = x + l * step;")
        return self._function(f"{t} ramp_{t}(int64_t x, int64_t step)", f"ramp_{t}", f"{t} r;", loop, "return r;")

    def select(self, dtype: str) -> str:
        """`select_T(mask, a, b)`, with a mask of lanes as wide as those of the operands."""
        element, lanes = dt.split(dtype)
        operands = [(f"int{dt.bits(element)}", "c"), (element, "a"), (element, "b")]
        return self.lanewise(f"select_{dtype}", element, operands, "c ? a : b", lanes)

    def shuffle(self, dtype: str, a: str, b: str, picks: Sequence[int]) -> str:
        """Lanes of two vectors."""
        self.type_of(dtype)
        return f"__builtin_shufflevector({a}, {b}, {', '.join(map(str, picks))})"

    # ---- arithmetic ----------------------------------------------------------------------------------------------------

    def wrapping(self, op: str, dtype: str) -> str:
        """`add_T`, `sub_T`, `mul_T` of integers that wrap around, which C leaves undefined for signed types."""
        name, element = f"{op}_{dtype}", dt.element(dtype)
        word = dt.vector(f"uint{dt.bits(element)}", dt.lanes(dtype))
        if dt.lanes(dtype) == 1 and dt.bits(element) < 32:
            word = "uint32"
        t, unsigned = self.type_of(dtype), self.type_of(word)
        formula = f"({t})(({unsigned})a {_SIGNED[op]} ({unsigned})b)"
        return self.define(name, f"static inline {t} {name}({t} a, {t} b) {{ return {formula}; }}")

    def difference(self, dtype: str) -> str:
        """`sub_T` of scalar floats with a constant 0 on the left: GCC 12 reads `0 - x` as `-x` if x cannot be -0, which is -0 if x is 0."""
        return self.lanewise(f"sub_{dtype}", dtype, [(dtype, "a"), (dtype, "b")], "a - b", 1)

    def extreme(self, op: str, dtype: str) -> str:
        """`min_T` and `max_T`; those of floats are NaN if an operand is."""
        element, lanes = dt.split(dtype)
        sign = "<" if op == "min" else ">"
        if dt.is_float(element):
            formula = f"b != b ? b : a {'>' if op == 'min' else '<'} b ? b : a"
        else:
            formula = f"a {sign} b ? a : b"
        return self.lanewise(f"{op}_{dtype}", element, [(element, "a"), (element, "b")], formula, lanes)

    def unary(self, name: str, dtype: str) -> str:
        """Square root, absolute value and roundings."""
        element, lanes = dt.split(dtype)
        if dt.is_float(element):
            formula = f"__builtin_{_UNARY[name]}{'' if element == 'float64' else 'f'}(a)"
        else:
            word = f"uint{dt.bits(element)}" if dt.bits(element) >= 32 else "uint32"
            formula = f"a < 0 ? ({scalar_type(element)})(0 - ({scalar_type(word)})a) : a"
        return self.lanewise(f"{name}_{dtype}", element, [(element, "a")], formula, lanes)

    def copysign(self, dtype: str) -> str:
        """`copysign_T(a, b)`."""
        element, lanes = dt.split(dtype)
        formula = f"__builtin_copysign{'' if element == 'float64' else 'f'}(a, b)"
        return self.lanewise(f"copysign_{dtype}", element, [(element, "a"), (element, "b")], formula, lanes)

    def fma(self, dtype: str) -> str:
        """`fma_T(a, b, c)`: a * b + c with one rounding."""
        element, lanes = dt.split(dtype)
        formula = f"__builtin_fma{'' if element == 'float64' else 'f'}(a, b, c)"
        native = [("__has_builtin(__builtin_elementwise_fma)", "__builtin_elementwise_fma(as, bs, cs)")]
        if dtype in _FMA:
            condition, builtin, rest = _FMA[dtype]
            native.append((f"defined({condition})", f"__builtin_ia32_{builtin}(as, bs, cs{rest})"))
        return self.lanewise(f"fma_{dtype}", element, [(element, x) for x in "abc"], formula, lanes, native)

    def division(self, op: str, dtype: str, usual: bool) -> str:
        """Floor division and its remainder: see `codegen.c.division`."""
        element, lanes = dt.split(dtype)
        name, text = floor_division(op, element, _DIVISION, usual)
        self.define(name, text.replace("TS_INLINE", "static inline"))
        if lanes == 1:
            return name
        vector = f"{op}{'' if usual else '_any'}_{dtype}"
        return self.lanewise(vector, element, [(element, "a"), (element, "b")], f"{name}(a, b)", lanes)

    def shift(self, op: str, dtype: str) -> str:
        """`shl_T` and `shr_T`; counts beyond the width leave only the sign."""
        element, lanes = dt.split(dtype)
        bits, t = dt.bits(element), scalar_type(element)
        word = scalar_type(f"uint{max(bits, 32)}")
        unsigned = dt.is_unsigned(element)
        counts = f"({scalar_type(f'uint{bits}')})b"
        if op == "shl":
            formula = f"{counts} < {bits} ? ({t})(({word})a << b) : 0"
        else:
            beyond = "0" if unsigned else f"({t})(a >> {bits - 1})"
            formula = f"{counts} < {bits} ? ({t})(a >> b) : {beyond}"
        return self.lanewise(f"{op}_{dtype}", element, [(element, "a"), (element, "b")], formula, lanes)

    def scaled(self, dtype: str) -> str:
        """`ldexp_T(a, n)` for integers n that are stored as floats: two products by powers of two, of which the first is exact."""
        element, lanes = dt.split(dtype)
        double = element == "float64"
        bias, shift, t = (1023, 52, "int64") if double else (127, 23, "int32")
        power = self.reinterpret(t, element)
        low, high = -2 * bias + 4, 2 * bias
        scalar = self._function(
            f"{scalar_type(element)} ldexp_{element}({scalar_type(element)} a, {scalar_type(element)} n)",
            f"ldexp_{element}",
            f"const {scalar_type(t)} whole = ({scalar_type(t)})(n > {low} ? n < {high} ? n : {high} : {low}), half = whole >> 1;",
            f"return a * {power}((half + {bias}) << {shift}) * {power}((whole - half + {bias}) << {shift});",
        )
        if lanes == 1:
            return scalar
        one = "__builtin_ia32_scalefps512_mask(as, ns, (float32x16){0}, -1, 4)"
        native = [("defined(__AVX512F__)", one)] if dtype == "float32x16" else []
        return self.lanewise(f"ldexp_{dtype}", element, [(element, "a"), (element, "n")], f"{scalar}(a, n)", lanes, native)

    def reinterpret(self, old: str, new: str) -> str:
        """`NEW_from_bits_of_OLD(x)`, of scalars."""
        name, a, b = f"{new}_of_bits_{old}", scalar_type(old), scalar_type(new)
        return self.define(name, f"static inline {b} {name}({a} x) {{ {b} r; __builtin_memcpy(&r, &x, sizeof r); return r; }}")

    def reduction(self, op: str, dtype: str) -> str:
        """`reduce_OP_T(v)`: all lanes, combined by halves."""
        element, lanes = dt.split(dtype)
        name, t = f"reduce_{op}_{dtype}", self.type_of(dtype)
        if self.has(name):
            return name
        half = dt.vector(element, lanes // 2)
        if lanes == 2:
            a, b = "v[0]", "v[1]"
        else:
            a, b = [self.shuffle(half, "v", "v", range(start, start + lanes // 2)) for start in (0, lanes // 2)]
        self.type_of(half)
        if op != "add":
            joined = f"{self.extreme(op, half)}({a}, {b})"
        elif dt.is_float(element):
            joined = f"{a} + {b}"
        else:
            joined = f"{self.wrapping('add', half)}({a}, {b})"
        rest = joined if lanes == 2 else f"{self.reduction(op, half)}({joined})"
        return self.define(name, f"static inline {scalar_type(element)} {name}({t} v) {{ return {rest}; }}")


def _lanes(count: int | str, *statements: str) -> str:
    """A loop over the lanes of a vector."""
    return f"for (int l = 0; l < {count}; ++l) {statements[0] if len(statements) == 1 else '{ ' + ' '.join(statements) + ' }'}"


def _bits(lanes: int) -> str:
    """The mask of the first n lanes, for instructions of AVX-512."""
    return f"(1 << (n < 0 ? 0 : n > {lanes} ? {lanes} : n)) - 1"


def _signed(dtype: str) -> str:
    """The type that the instructions of AVX-512 take for a vector."""
    return dtype.removeprefix("u")


def _on_avx512(dtype: str, one: str, loop: list[str]) -> list[str]:
    """An instruction of AVX-512 where GCC has it, else a loop."""
    macro = "__AVX512F__" if dt.lanes(dtype) * dt.nbytes(dt.element(dtype)) == 64 else "__AVX512VL__"
    return [f"#if defined({macro}) && !defined(__clang__)", one, "#else", *loop, "#endif"]
