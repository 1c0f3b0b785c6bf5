"""Expand elementary functions into arithmetic without branches: intrinsics marked `expanded`, and `pow`, `//` and `%` of floats.

The trees use only lane-wise operations of vector units: fma, mul, add, div, sqrt, select, compare, trunc, copysign, integer
shifts, `reinterpret`, and `ldexp` where the result may be denormal.  float16 and bfloat16 compute in float32.  sin, cos and
pow of float32 compute partly in float64, so they have no float64 form; the others have one with longer polynomials.

A tree shares its parts as Python objects; its text is hundreds of times larger.  So a consumer must evaluate each object once, and
expansion runs after all passes that walk expressions without memoization: last, before code generation.
`vector_math_tables.OPERATIONS` lists the number of operations of each expansion.

Accuracy is given as the largest |result - exact| in units of the last place (ulp) of the exact result, for denormal results in
units of the smallest number.  The float32 figures of functions of one argument were measured over all 2**32 arguments; the
float64 forms stay below 2.5 ulp on samples.  They require that each operation rounds once: a code generator must not split an
fma, fuse a mul with an add (sin and cos fail then), reassociate, or flush denormals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.ir.expr import Binary, Broadcast, Call, Const, Expr, Not, call, cast, compare, const, equal, select
from tunesmith.lower import vector_math_tables as tables
from tunesmith.lower.vector_math_tables import FLOAT32, FLOAT64, FloatTables
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

NAN = float("nan")
INF = float("inf")


class Lanes:
    """Arithmetic on one vector (or scalar) type; literals are broadcast, and equal literals are one object."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.element, self.count = dt.split(dtype)
        self._literals: dict[tuple[str, int | float], Expr] = {}

    @property
    def tables(self) -> FloatTables:
        """The constants of this float type."""
        return FLOAT32 if self.element == "float32" else FLOAT64

    @property
    def word(self) -> str:
        """The unsigned integer type with the width of a lane."""
        return f"uint{dt.bits(self.element)}"

    def __call__(self, value: float) -> Expr:
        """The float literal."""
        return self._literal(self.element, value)

    def bits(self, value: int) -> Expr:
        """The literal of the word type."""
        return self._literal(self.word, value)

    def _literal(self, element: str, value: int | float) -> Expr:
        key = (element, value)
        if key not in self._literals:
            one = const(value, element)
            self._literals[key] = one if self.count == 1 else Broadcast(one, self.count)
        return self._literals[key]

    def to_bits(self, x: Expr) -> Expr:
        """The bits of a float as an unsigned integer."""
        return call("reinterpret", x, dtype=dt.vector(self.word, self.count))

    def from_bits(self, bits: Expr) -> Expr:
        """The float with these bits."""
        return call("reinterpret", bits, dtype=self.dtype)

    def clamp(self, x: Expr, low: float | None, high: float | None) -> Expr:
        """x within [low, high]; NaN stays NaN.  The form gives one instruction per side on x86, unlike IEEE minimum."""
        if low is not None:
            x = select(x < self(low), self(low), x)
        if high is not None:
            x = select(x > self(high), self(high), x)
        return x

    def polynomial(self, x: Expr, coefficients: Sequence[float]) -> Expr:
        """Horner's scheme, lowest power first: the fewest operations; independent vectors hide its latency."""
        out = self(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            out = fma(out, x, self(c))
        return out


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", a, b, c)


def _rsqrt(v: Lanes, x: Expr) -> Expr:
    """1 / sqrt(x): -inf at -0, NaN below; float32: at most 1.5 ulp, also for denormal arguments."""
    return v(1.0) / call("sqrt", x)


def _exp_positive(v: Lanes, x: Expr, high: float) -> Expr:
    """e**x for x <= high, by Cody and Waite: x = n ln 2 + r, both products exact through fma; a NaN stays NaN."""
    t = v.tables
    x = v.clamp(x, t.exp_range[0], high)
    n = fma(x, v(t.log2e), v(t.magic)) - v(t.magic)
    r = fma(n, v(-t.ln2_tail), fma(n, v(-t.ln2), x))
    return call("ldexp", v.polynomial(r, t.exp), n)


def _exp(v: Lanes, x: Expr) -> Expr:
    """e**x; float32: at most 2.2 ulp, also where the result is denormal; e**0 = 1."""
    return _exp_positive(v, x, v.tables.exp_range[1])


def _exp2(v: Lanes, x: Expr) -> Expr:
    """2**x; float32: at most 1.9 ulp, also where the result is denormal; exact for integers."""
    t = v.tables
    x = v.clamp(x, *t.exp2_range)
    n = (x + v(t.magic)) - v(t.magic)
    return call("ldexp", v.polynomial(x - n, t.exp2), n)


def _sigmoid(v: Lanes, x: Expr) -> Expr:
    """1 / (1 + e**-x) as t / (1 + t), t = e**x, accurate for small results; float32: at most 3.5 ulp, also where it is denormal."""
    t = _exp_positive(v, x, tables.SIGMOID_END)
    return t / (t + v(1.0))


def _power_of_two(v: Lanes, shifted: Expr, one: int) -> Expr:
    """2**n for normal results, where `shifted` is n + magic and `one` the bits of 1 (of -1: the result is -2**n)."""
    return v.from_bits(Binary("shl", v.to_bits(shifted), v.bits(v.tables.mantissa)) + v.bits(one))


def _expm1_reduced(v: Lanes, r: Expr, scale: float = 1.0) -> Expr:
    """(e**(scale r) - 1) / scale for |scale r| <= ln(2)/2."""
    q = v.polynomial(r, [c * scale ** (k + 1) for k, c in enumerate(v.tables.expm1)])
    return fma(r, r * q, r)


def _tanh(v: Lanes, x: Expr) -> Expr:
    """tanh x = s / (s + 1) with s = (e**2|x| - 1) / 2, never above 1; float32: at most 2.6 ulp, -0 and denormals preserved."""
    t = v.tables
    a = v.clamp(call("abs", x), None, t.tanh_end)
    shifted = fma(a, v(2 * t.log2e), v(t.magic))
    r = fma(shifted - v(t.magic), v(-t.ln2 / 2), a)
    power = _power_of_two(v, shifted, t.bias << t.mantissa)
    s = fma(power, _expm1_reduced(v, r, 2.0), fma(power, v(0.5), v(-0.5)))
    return call("copysign", s / (s + v(1.0)), x)


def _erf(v: Lanes, x: Expr) -> Expr:
    """erf |x| = 1 - e**u, where u = log(erfc |x|) is nearly a polynomial; float32: at most 3.2 ulp, -0 and denormals preserved."""
    t = v.tables
    a = v.clamp(call("abs", x), None, t.erf_end)
    u = a * v.polynomial(a, [-c for c in t.erf])
    shifted = fma(u, v(t.log2e), v(t.magic))
    r = fma(shifted - v(t.magic), v(-t.ln2), u)
    negative_power = _power_of_two(v, shifted, (t.bias << t.mantissa) | 1 << (dt.bits(v.element) - 1))
    return call("copysign", fma(negative_power, _expm1_reduced(v, r), negative_power + v(1.0)), x)


def _split_exponent(v: Lanes, x: Expr) -> tuple[Expr, Expr]:
    """(e, f) with x = 2**e (1 + f) and 1 + f in [sqrt(1/2), sqrt(2)), for finite x > 0, also denormal; undefined for others."""
    t = v.tables
    denormal = x < v(t.tiny)
    normal = select(denormal, x * v(2.0**t.mantissa), x)
    one = t.bias << t.mantissa
    moved = v.to_bits(normal) + v.bits(one - t.sqrt_half)
    # Integer to float with one `or` and a subtraction: the exponent goes below the leading bit of 2**mantissa.
    base = 2.0**t.mantissa + t.bias
    whole = v.from_bits(Binary("bitor", Binary("shr", moved, v.bits(t.mantissa)), v.bits((t.bias + t.mantissa) << t.mantissa)))
    e = whole - select(denormal, v(base + t.mantissa), v(base))
    f = v.from_bits(Binary("bitand", moved, v.bits((1 << t.mantissa) - 1)) + v.bits(t.sqrt_half)) - v(1.0)
    return e, f


def _log1p_reduced(v: Lanes, f: Expr) -> Expr:
    """log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)]."""
    return fma(f, f * v.polynomial(f, v.tables.log), f)


def _log_domain(v: Lanes, x: Expr, finite: Expr) -> Expr:
    """`finite` for finite x > 0; -inf at zero, NaN below; infinity and NaN unchanged."""
    edge = select(equal(x, v(0.0)), v(-INF), v(NAN))
    return select(x > v(0.0), select(x < v(INF), finite, x), edge)


def _log(v: Lanes, x: Expr) -> Expr:
    """Natural logarithm; float32: at most 1.2 ulp, also for denormal arguments; log(1) = 0."""
    e, f = _split_exponent(v, x)
    return _log_domain(v, x, fma(e, v(v.tables.ln2), _log1p_reduced(v, f)))


def _log2(v: Lanes, x: Expr) -> Expr:
    """Logarithm to base 2; float32: at most 2.2 ulp, also for denormal arguments; exact for powers of two."""
    e, f = _split_exponent(v, x)
    return _log_domain(v, x, fma(_log1p_reduced(v, f), v(v.tables.log2e), e))


def _half_turns(v: Lanes, x: Expr, size: Expr, quarter: bool) -> tuple[Expr, Expr]:
    """(r, s): x [+ pi/2 when `quarter`] = k pi + r with |r| < 0.626 pi, and the parity of k as sign bit s.  `size` is |x|.

    In float64 with 1/pi as head and tail, x / pi is known to 2**-56 of a half turn, enough for the float32 nearest to a multiple
    of pi/2.  For large x the leading bits of 1/pi give whole turns and are omitted (the idea of Payne and Hanek), by a choice of
    head and tail instead of a loop over words, so the bound holds for every float32.
    """
    d = Lanes(dt.vector("float64", v.count))
    head, minus_tail = d(tables.HALF_TURNS[-1][0]), d(-tables.HALF_TURNS[-1][1])
    for limit, (h, low) in reversed(list(zip(tables.TURN_LIMITS, tables.HALF_TURNS[:-1], strict=True))):
        near = size < v(limit)
        head, minus_tail = select(near, d(h), head), select(near, d(-low), minus_tail)
    wide = cast(d.dtype, x)
    rounded = wide * head
    # Minus the rounding error of the product, which fma gives exactly, and minus the tail.
    excess = fma(wide, minus_tail, fma(wide, head * d(-1.0), rounded))
    shifted = (rounded + d(0.5) if quarter else rounded) + d(FLOAT64.magic)
    k = shifted - d(FLOAT64.magic)
    left = (rounded - (k - d(0.5) if quarter else k)) - excess
    low_word = cast(dt.vector("uint32", v.count), d.to_bits(shifted))
    return cast(v.dtype, left * d(tables.PI)), Binary("shl", low_word, v.bits(31))


def _sin_reduced(v: Lanes, r: Expr) -> Expr:
    """sin r for |r| < 0.626 pi."""
    square = r * r
    return fma(r * square, v.polynomial(square, tables.SIN), r)


def _sin(v: Lanes, x: Expr) -> Expr:
    """sin x, float32 only: at most 2.4 ulp for every finite x (2.1 for |x| < 2**50), NaN for infinities; -0 and denormals preserved."""
    size = call("abs", x)
    r, sign = _half_turns(v, size, size, quarter=False)
    # Reduce |x| and restore the sign, or -0 would become +0.
    own = Binary("bitand", v.to_bits(x), v.bits(1 << 31))
    return v.from_bits(Binary("bitxor", Binary("bitxor", v.to_bits(_sin_reduced(v, r)), sign), own))


def _cos(v: Lanes, x: Expr) -> Expr:
    """cos x, float32 only: at most 2.4 ulp for every finite x (2.1 for |x| < 2**50), NaN for infinities."""
    r, sign = _half_turns(v, x, call("abs", x), quarter=True)
    return v.from_bits(Binary("bitxor", v.to_bits(_sin_reduced(v, r)), sign))


def _constant_power(v: Lanes, x: Expr, y: float) -> Expr:
    """x**y for y in MULTIPLIED_EXPONENTS, by multiplications or a root, also for integers; float32: at most 2.0 ulp."""
    if y == 0:
        return v(1)
    if abs(y) == 0.5:
        # pow(-0, 0.5) is +0 and pow(-inf, 0.5) is +inf, unlike the square root.
        root = select(equal(x, v(-INF)), v(INF), call("sqrt", x + v(0.0)))
        return root if y > 0 else v(1.0) / root
    base = x if y > 0 else v(1.0) / x
    times = abs(int(y))
    if times == 1:
        return base
    square = base * base
    return square if times == 2 else square * base if times == 3 else square * square


def _pow(v: Lanes, x: Expr, y: Expr) -> Expr:
    """x**y by the rules of C99, float32 only: at most 1.0 ulp on 10**8 random pairs.  2**(y log2 |x|), with y log2 |x| in float64."""
    d = Lanes(dt.vector("float64", v.count))
    size = call("abs", x)
    e, f = _split_exponent(v, size)
    e = select(size < v(INF), select(size > v(0.0), e, v(-INF)), size)
    wide = cast(d.dtype, f)
    log2 = fma(wide, d.polynomial(wide, tables.POW_LOG2), cast(d.dtype, e))
    # An exponent of 2**40 gives 0, 1 or infinity like an infinite exponent, and 0 instead of NaN when multiplied by log2(1) = 0.
    t = log2 * cast(d.dtype, v.clamp(y, -(2.0**40), 2.0**40))
    t = d.clamp(t, *FLOAT32.exp2_range)
    n = (t + d(FLOAT64.magic)) - d(FLOAT64.magic)
    positive = call("ldexp", v.polynomial(cast(v.dtype, t - n), tables.POW_EXP2), cast(v.dtype, n))
    return _pow_edges(v, x, y, positive)


def _pow_edges(v: Lanes, x: Expr, y: Expr, positive: Expr) -> Expr:
    """x**y from |x|**y: the sign for odd y, NaN for a fractional power of a negative number, 1 for y = 0 or x = 1."""
    half = y * v(0.5)
    fractional = compare("ne", call("trunc", y), y)
    odd = Binary("and", Not(fractional), compare("ne", call("trunc", half), half))
    signed = select(odd, call("copysign", positive, x), positive)
    invalid = Binary("and", fractional, Binary("and", x < v(0.0), x > v(-INF)))
    return select(Binary("or", equal(y, v(0.0)), equal(x, v(1.0))), v(1.0), select(invalid, v(NAN), signed))


def expand_floored(node: Binary) -> Expr:
    """`a // b` or `a % b` of floats by floored division in float64, as in Python; a remainder is NaN for quotients from 2**52 on.

    The quotient is an integer: 1 // 0.1 is 9, as 0.1 is more than a tenth, while 1 / 0.1 rounds to 10.
    """
    v = Lanes(dt.vector("float64", dt.lanes(node.dtype)))
    x, y = cast(v.dtype, node.a), cast(v.dtype, node.b)
    q = call("floor", x / y)
    # Exact where |q| < 2**52.  0 times an infinite divisor would be NaN.
    r = select(equal(q, v(0.0)), x, fma(q, y * v(-1.0), x))
    too_large = Binary("and", compare("ne", r, v(0.0)), compare("ne", r < v(0.0), y < v(0.0)))
    if node.op == "mod":
        rest = select(too_large, r + y, r)
        return cast(node.dtype, select(call("abs", q) < v(2.0**52), rest, v(NAN)))
    known = select(compare("ne", r, r), r, select(too_large, q - v(1.0), q))
    return cast(node.dtype, select(equal(y, v(0.0)), x / y, known))


_RULES: dict[str, Callable[[Lanes, Expr], Expr]] = {
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log2": _log2,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "sin": _sin,
    "cos": _cos,
    "rsqrt": _rsqrt,
}


def _working_type(dtype: str) -> str:
    """The type of the computation: float32 for float16 and bfloat16, else `dtype` itself."""
    element, count = dt.split(dtype)
    return dt.vector("float32" if element in ("float16", "bfloat16") else element, count)


def _refuse_types(name: str, dtype: str) -> None:
    """Raise BuildError if `name` has no expansion for `dtype`."""
    if not dt.is_float(dtype):
        raise BuildError(f"{name} of {dtype}: elementary functions take floats; cast the operand to float32 first")
    if dt.element(dtype) == "float64" and name in ("sin", "cos", "pow"):
        hint = f", or use one of the exponents {', '.join(map(str, tables.MULTIPLIED_EXPONENTS))}" if name == "pow" else ""
        raise BuildError(
            f"{name} of {dtype} has no expansion into arithmetic: that of float32 computes in float64, and float64 has no wider type. "
            f"Cast the operand to float32{hint}"
        )


def expand_call(node: Call) -> Expr:
    """The arithmetic of an intrinsic marked `expanded`; `node` itself for other intrinsics.

    Raises:
        BuildError: the operand is not a float, or the call is sin or cos of float64.
    """
    rule = _RULES.get(node.name)
    if rule is None:
        return node
    _refuse_types(node.name, node.dtype)
    v = Lanes(_working_type(node.dtype))
    return cast(node.dtype, rule(v, cast(v.dtype, node.args[0])))


def expand_pow(node: Binary) -> Expr:
    """The arithmetic of `a pow b`: multiplications or a root for the constant exponents in MULTIPLIED_EXPONENTS, else by logarithm.

    Raises:
        BuildError: float64 with another exponent, or integers with an exponent other than 0, 1, 2, 3 and 4.
    """
    v = Lanes(_working_type(node.dtype))
    x, y = cast(v.dtype, node.a), cast(v.dtype, node.b)
    exponent = node.b.a if type(node.b) is Broadcast else node.b
    if type(exponent) is Const and exponent.value in tables.MULTIPLIED_EXPONENTS:
        times = exponent.value
        if dt.is_float(v.dtype) or (dt.is_int(v.dtype) and times >= 0):
            return cast(node.dtype, _constant_power(v, x, times))
    if dt.is_int(node.dtype):
        raise BuildError(
            f"pow of {node.dtype} is built only for the constant exponents 0, 1, 2, 3 and 4; cast the operands to float32 first"
        )
    _refuse_types("pow", node.dtype)
    return cast(node.dtype, _pow(v, x, y))


def expand(e: Call | Binary) -> Expr:
    """The arithmetic of a call or operation that `is_expanded`.

    Raises:
        BuildError: see `expand_call` and `expand_pow`.
    """
    return expand_call(e) if isinstance(e, Call) else expand_pow(e) if e.op == "pow" else expand_floored(e)


def is_expanded(e: object) -> bool:
    """Whether the node is a call or operation that must be expanded."""
    if type(e) is Call:
        return e.name in _RULES
    return type(e) is Binary and (e.op == "pow" or (e.op in ("floordiv", "mod") and dt.is_float(e.dtype)))
