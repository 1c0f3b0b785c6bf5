"""Declare expressions.  Index arithmetic is a `Poly` (poly.py) in normal form; all other expressions are trees.

Every expression has a `dtype`.  Operators build expressions.  `==` is identity, so comparisons are written `equal(a, b)`;
`bool(expr)` raises, because a Python `if` on a symbolic value is always a mistake.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Union

from tunesmith.ir.node import Node, node
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

if TYPE_CHECKING:
    from tunesmith.ir.poly import Poly

Value = Union["Expr", int, float, bool]

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "pow", "bitand", "bitor", "bitxor", "shl", "shr")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LOGIC = ("and", "or")
BITWISE = {"bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>"}
"""Python's operators of bits, which are logical operations for bools."""
_OF_BOOLS = {"bitand": "and", "min": "and", "bitor": "or", "max": "or", "bitxor": "ne"}
"""Operations on numbers that bools have too, and the node each becomes; false is less than true."""
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", **BITWISE}
MAX_FACTORS = 4
"""Largest exponent for which a power is a product."""

_OF_NUMPY = {"absolute": "abs", "fabs": "abs", "rint": "round"}
"""numpy functions whose intrinsic has another name."""


def apply_ufunc(ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
    """Implement numpy's `__array_ufunc__` on expressions: numpy operators apply elementwise, other numpy functions are rejected.

    Raises:
        ScriptError: the function is not an operator; the message names the replacement.
    """
    import numpy as np  # imported late: programs without numpy operands do not need it

    from tunesmith.ir.intrinsics import INTRINSICS

    boxed = []
    for x in inputs:
        if hasattr(type(x), "__array_ufunc__") and not isinstance(x, (np.ndarray, np.generic)):
            box = np.empty((), object)
            box[()] = x
            x = box
        boxed.append(x)
    try:
        return getattr(ufunc, method)(*boxed, **settings)
    except TypeError as error:
        name = _OF_NUMPY.get(ufunc.__name__, ufunc.__name__)
        instead = f"te.{name}, in scripts T.{name}" if name in INTRINSICS else "operators and the functions of te, in scripts of T"
        raise ScriptError(f"numpy.{ufunc.__name__} takes numbers, not symbolic expressions: use {instead}") from error


class Symbolic:
    """Base class of symbolic values: expressions, and the atoms of index arithmetic such as loop variables."""

    __slots__ = ()

    def as_expr(self) -> Expr:
        """The expression with this value."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        return apply_ufunc(ufunc, method, *inputs, **settings)


class Expr(Node, Symbolic):
    """Base class of expressions."""

    __slots__ = ()
    dtype: str

    def as_expr(self) -> Expr:
        """This expression."""
        return self

    def __bool__(self) -> bool:
        raise ScriptError(
            "a symbolic expression has no truth value in Python. Instead of `a if cond else b`, max(a, b) and min(a, b) write "
            "te.select(cond, a, b), te.maximum(a, b) and te.minimum(a, b); in scripts T.select, T.max and T.min, or an If statement. "
            "Instead of `p and q`, `p or q`, `not p` and `a < b < c` write te.all(p, q), te.any(p, q), te.logical_not(p) and "
            "te.all(a < b, b < c), or p & q, p | q and ~p. ir.structural.equal(a, b) compares programs"
        )

    def __float__(self) -> float:
        raise ScriptError(
            "a symbolic expression has no value in Python: functions of math and float() take numbers. Use those of te, such as te.exp, "
            "in scripts T.exp"
        )

    def astype(self, dtype: str) -> Expr:
        """The value converted to `dtype`; see `cast`."""
        return cast(dtype, self)

    def __add__(self, other: Value) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Value) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Value) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Value) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Value) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Value) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Value) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Value) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Value) -> Expr:
        return binary("mod", self, other)

    def __pow__(self, other: Value) -> Expr:
        return power(self, other)

    def __rpow__(self, other: Value) -> Expr:
        return power(other, self)

    def __neg__(self) -> Expr:
        return binary("sub", const(0, self.dtype), self)

    def __invert__(self) -> Expr:
        if dt.element(self.dtype) == "bool":
            return Not(self)
        return bitwise("bitxor", self, 2 ** dt.bits(self.dtype) - 1 if dt.is_unsigned(self.dtype) else -1)

    def __and__(self, other: Value) -> Expr:
        return bitwise("bitand", self, other)

    def __rand__(self, other: Value) -> Expr:
        return bitwise("bitand", other, self)

    def __or__(self, other: Value) -> Expr:
        return bitwise("bitor", self, other)

    def __ror__(self, other: Value) -> Expr:
        return bitwise("bitor", other, self)

    def __xor__(self, other: Value) -> Expr:
        return bitwise("bitxor", self, other)

    def __rxor__(self, other: Value) -> Expr:
        return bitwise("bitxor", other, self)

    def __lshift__(self, other: Value) -> Expr:
        return bitwise("shl", self, other)

    def __rlshift__(self, other: Value) -> Expr:
        return bitwise("shl", other, self)

    def __rshift__(self, other: Value) -> Expr:
        return bitwise("shr", self, other)

    def __rrshift__(self, other: Value) -> Expr:
        return bitwise("shr", other, self)

    def __lt__(self, other: Value) -> Expr:
        return compare("lt", self, other)

    def __le__(self, other: Value) -> Expr:
        return compare("le", self, other)

    def __gt__(self, other: Value) -> Expr:
        return compare("gt", self, other)

    def __ge__(self, other: Value) -> Expr:
        return compare("ge", self, other)


@node
class Const(Expr):
    """A literal: bool, int or float.  NaN and infinities are allowed for floats."""

    value: bool | int | float
    dtype: str


@node
class Binary(Expr):
    """`a op b`, both of the same dtype.  Integer `floordiv` and `mod` round to minus infinity; `div` is for floats only."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        found = _first_operand(self.a).dtype
        return dt.vector("bool", dt.lanes(found)) if self.op in COMPARISONS else found


@node
class Not(Expr):
    """Logical negation of a bool."""

    a: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return _first_operand(self.a).dtype


@node
class IsNegative(Expr):
    """The index condition `index < 0`; with `lanes` > 1 the bool vector `index + lane * stride < 0`."""

    index: Poly
    lanes: int = 1
    stride: Poly | None = None

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return dt.vector("bool", self.lanes)


@node
class Select(Expr):
    """`a` where `cond` holds, else `b`.  Only the chosen side is evaluated: the other may contain an out-of-range load."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return _first_operand(self.a).dtype


def _first_operand(e: Expr) -> Expr:
    """Follow first operands while they determine the dtype, iteratively: a long sum is deeper than Python's stack."""
    while True:
        if not isinstance(e, (Binary, Select, Not)) or (isinstance(e, Binary) and e.op in COMPARISONS):
            return e
        e = e.a


@node
class Cast(Expr):
    """Value conversion.  Float to int truncates toward zero."""

    dtype: str
    a: Expr


@node
class Call(Expr):
    """Call of an intrinsic of `intrinsics.py`."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@node
class Broadcast(Expr):
    """A scalar repeated in all `lanes`."""

    a: Expr
    lanes: int

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return dt.vector(self.a.dtype, self.lanes)


@node
class Ramp(Expr):
    """The index vector `base + lane * stride`."""

    base: Poly
    stride: Poly
    lanes: int

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return dt.vector(dt.INDEX, self.lanes)


def const(value: bool | int | float, dtype: str) -> Const:
    """A literal of `dtype`.  Ints are converted for float types; a float with a fraction is rejected for int types."""
    scalar = dt.element(dtype)
    if dt.is_float(scalar):
        return Const(float(value), scalar)
    if scalar == "bool":
        return Const(bool(value), scalar)
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        raise ScriptError(f"the literal {value} is not a value of {scalar}")
    return Const(int(value), scalar)


def as_expr(value: Value, dtype: str) -> Expr:
    """`value` itself if it is an expression, else a literal of `dtype`."""
    if isinstance(value, Expr):
        return value
    try:
        return const(value, dtype)
    except (TypeError, ValueError):
        kind, name = type(value).__name__, getattr(value, "name", None)
        what = f"the {kind} {name}: index it, as in {name}[...]" if name else f"{value!r:.100} ({kind})"
        raise ScriptError(f"an operand is an element or a number, got {what}") from None


def _pair(a: Value, b: Value, what: str) -> tuple[Expr, Expr]:
    a, b = [x.as_expr() if isinstance(x, Symbolic) else x for x in (a, b)]
    like = a if isinstance(a, Expr) else b
    if not isinstance(like, Expr):
        number = f": write te.const({a!r}, dtype)" if isinstance(a, (int, float)) else ""
        raise ScriptError(f"{what}: at least one operand must be an expression, got {a!r} and {b!r}{number}")
    x, y = as_expr(a, like.dtype), as_expr(b, like.dtype)
    if dt.element(x.dtype) != dt.element(y.dtype):
        raise ScriptError(f"{what}: operands have different types {x.dtype} and {y.dtype}; write an explicit cast")
    return x, y


def binary(op: str, a: Value, b: Value) -> Expr:
    """`a op b` of the same dtype; two index polynomials give an index polynomial.

    Raises:
        ScriptError: mixed types, or arithmetic of bools.
    """
    x, y = _pair(a, b, op)
    if dt.element(x.dtype) == "bool":
        if op not in _OF_BOOLS:
            raise ScriptError(f"`{_SIGNS.get(op, op)}` is for numbers, got a condition; cast it to an integer type")
        return Binary(_OF_BOOLS[op], x, y)
    done = _index_operation(op, x, y)
    if done is not None:
        return done
    if op == "div" and not dt.is_float(x.dtype):
        raise ScriptError(f"`/` is for floats, got {x.dtype}; use // for integers")
    return Binary(op, x, y)


def power(a: Value, b: Value) -> Expr:
    """`a` to the power of `b`: a product if `b` is the number 1, 2, 3 or 4, and 1 if it is 0; else the operation `pow`, for floats only.

    Raises:
        ScriptError: mixed types, or integers with another exponent.
    """
    number = b.value if isinstance(b, Const) else b
    if isinstance(a, Expr) and dt.element(a.dtype) != "bool" and isinstance(number, (int, float)) and number in range(MAX_FACTORS + 1):
        square = a * a if number > 1 else a
        return const(1, a.dtype) if number == 0 else square if number < 3 else square * a if number == 3 else square * square
    x, y = _pair(a, b, "pow")
    if not dt.is_float(x.dtype):
        raise ScriptError(
            f"the power of a value of type {x.dtype} takes the exponents 0 to {MAX_FACTORS}, as numbers: write products, or cast the "
            "operands to float32"
        )
    return Binary("pow", x, y)


def bitwise(op: str, a: Value, b: Value) -> Expr:
    """`a op b` for bitand, bitor, bitxor, shl and shr: of integers bit by bit, of bools the logical operation, as in numpy.

    Raises:
        ScriptError: mixed types, floats, or a shift of bools.
    """
    sign = BITWISE[op]
    if any(isinstance(e, Expr) and dt.element(e.dtype) == "bool" for e in (a, b)):
        if op in ("shl", "shr"):
            raise ScriptError(f"`{sign}` is for integers, got a condition; cast it to an integer type")
        for e in (a, b):
            require_condition(e, f"`{sign}` of conditions")
        return binary(op, *_pair(a, b, f"`{sign}`"))
    x, y = _pair(a, b, f"`{sign}`")
    if not dt.is_int(x.dtype):
        raise ScriptError(f"`{sign}` is for integers and conditions, got {x.dtype}")
    return binary(op, x, y)


def compare(op: str, a: Value, b: Value) -> Expr:
    """The bool `a op b`; op is one of lt, le, gt, ge, eq, ne."""
    x, y = _pair(a, b, op)
    done = _index_operation(op, x, y)
    return Binary(op, x, y) if done is None else done


def _index_operation(op: str, x: Expr, y: Expr) -> Expr | None:
    if x.dtype != dt.INDEX:
        return None
    done = index_operation(x, op, x, y)
    return index_operation(y, op, x, y) if done is None else done


@functools.singledispatch
def index_operation(operand: Expr, op: str, a: Expr, b: Expr) -> Expr | None:
    """`a op b` in the normal form of index arithmetic, where `operand` is `a` or `b`; None if it has none.

    A generic function: poly.py implements it for its own class and for literals.
    """
    return None


def conjunction(conds: tuple[Expr, ...]) -> Expr:
    """The conjunction of `conds`; true if empty."""
    if not conds:
        return Const(True, "bool")
    out = conds[0]
    for c in conds[1:]:
        out = Binary("and", out, c)
    return out


def require_condition(cond: object, what: str) -> None:
    """Raise ScriptError unless `cond` is an expression of type bool; `what` names the function that takes it."""
    if isinstance(cond, bool):
        raise ScriptError(
            f"{what}: the condition is the Python value {cond}, no expression: `==` and `!=` of expressions compare the objects. "
            "Write te.equal(a, b) or te.not_equal(a, b)"
        )
    if not isinstance(cond, Expr) or dt.element(cond.dtype) != "bool":
        got = cond.dtype if isinstance(cond, Expr) else f"{type(cond).__name__}: {cond!r}"
        raise ScriptError(f"{what} needs a bool condition, got {got}")


def select(cond: Expr, a: Value, b: Value) -> Expr:
    """`a` where `cond`, else `b`."""
    require_condition(cond, "select")
    x, y = _pair(a, b, "select")
    return Select(cond, x, y)


def cast(dtype: str, a: Expr) -> Expr:
    """`a` converted to `dtype`; `a` itself if it already has that dtype."""
    if not isinstance(dtype, str) or not isinstance(a, Expr):
        raise ScriptError(f"cast({dtype!r}, {a!r}): cast takes an element type and an expression, as in cast('float32', x)")
    dt.split(dtype)
    return a if a.dtype == dtype else Cast(dtype, a)


def minimum(a: Value, b: Value) -> Expr:
    """The smaller operand; NaN if either is NaN (the IEEE 754 minimum of signed zeros is not guaranteed).  False is less than true."""
    return binary("min", a, b)


def maximum(a: Value, b: Value) -> Expr:
    """The larger operand; see `minimum`."""
    return binary("max", a, b)


def equal(a: Value, b: Value) -> Expr:
    """The bool expression `a == b`."""
    return compare("eq", a, b)


def call(name: str, *args: Expr, dtype: str | None = None) -> Expr:
    """Call intrinsic `name` with `args`; the result has the first argument's dtype unless `dtype` is given."""
    return Call(name, args, dtype or args[0].dtype)
