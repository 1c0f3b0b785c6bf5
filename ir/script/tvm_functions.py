"""Parse value functions with the names of TVMScript: TVM's names of operations, and reasons for those that have no equivalent."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tunesmith.ir.expr import Const, Expr, Not, cast
from tunesmith.ir.expression_size import check_size
from tunesmith.ir.poly import Op, Poly
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.parser_expr import ExprParser, Parsed
from tunesmith.support import dtype as dt
from tunesmith.support.registry import FUNCTION, Registry

RENAMED: Mapping[str, str] = {"fabs": "abs", "nearbyint": "round", "rint": "round"}
"""TVM's name of an intrinsic -> the name here."""

_ONE_OPERATION: Mapping[str, str] = {
    "floordiv": "floordiv",
    "floormod": "mod",
    "power": "pow",
    "bitwise_and": "bitand",
    "bitwise_or": "bitor",
    "bitwise_xor": "bitxor",
    "shift_left": "shl",
    "shift_right": "shr",
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "FloorDiv": "floordiv",
    "FloorMod": "mod",
    "Min": "min",
    "Max": "max",
    "EQ": "eq",
    "NE": "ne",
    "LT": "lt",
    "LE": "le",
    "GT": "gt",
    "GE": "ge",
}
_TRIGONOMETRY = "tunesmith.graph.operators.trigonometry"
FORMULAS: Registry[Callable[..., Expr]] = Registry(
    "script formula",
    {
        **{name: f"tunesmith.ops.formulas:{name}" for name in ("divide", "expm1", "fmod", "log1p")},
        **{name: f"{_TRIGONOMETRY}:{name}" for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")},
        **{name: f"{_TRIGONOMETRY}:{name}" for name in ("atan2", "hypot")},
    },
    contract=FUNCTION,
)
"""Functions that become an expression of several operations, which is made by formulas of operators."""
_OF_TWO = ("atan2", "divide", "fmod", "hypot")
_OF_INTEGERS = ("divide", "fmod")

_LIBRARY = "functions of other libraries are called by graph functions, not by scripts"
_BITS = "it counts bits, for which the script has no operation"
_VALUE = "write it with the functions of T"
REFUSED: Mapping[str, str] = {
    "exp10": f"{_VALUE}: T.pow(T.float32(10.0), x)",
    "log10": f"{_VALUE}: T.log(x) * 0.4342944819032518",
    **dict.fromkeys(("clz", "popcount"), _BITS),
    **dict.fromkeys(("call_packed", "call_cpacked", "call_packed_lowered", "call_intrin", "Call"), _LIBRARY),
    **dict.fromkeys(("Shuffle", "vectorlow", "vectorhigh", "vectorcombine"), "write the elements one by one"),
    "tvm_thread_allreduce": "it is a reduction of threads after lowering: print the program before LowerThreadAllreduce, with a bound loop",
    "Assert": "calls check their arguments already: delete it",
}
"""Names of TVM that have no equivalent, with the reason and the replacement."""
_LOWERED = (
    "tvm_",
    "ptx_",
    "mma_",
    "simdgroup_",
    "cuda_",
    "call_",
    "mem_",
    "async_",
    "tma_",
    "start_profile",
    "end_profile",
    "dma_",
    "anylist_",
)
"""How names of instructions of TVM's lowered programs begin."""

_C_NAMES = (
    "exp exp2 log log2 tanh erf sin cos sqrt floor ceil trunc copysign fma pow fmod acos acosh asin asinh atan atanh cosh sinh tan atan2 "
    "hypot expm1 log1p rint nearbyint fabs"
).split()
EXTERNAL: Mapping[str, str] = {f"{name}{suffix}": RENAMED.get(name, name) for name in _C_NAMES for suffix in ("", "f")}
"""Functions of the C library that a call of an external function means -> the function of `T`."""


def refusal(name: str) -> str | None:
    """The reason why a name of TVM has no equivalent, with the replacement; None for other names."""
    if name not in REFUSED and name.startswith(_LOWERED):
        return "it belongs to TVM's lowered programs: print the program before it is lowered"
    return REFUSED.get(name)


def is_refused(name: str) -> bool:
    """Whether a call of the name, as a statement, is one that the parser of calls explains."""
    return refusal(name) is not None or name in ("call_extern", "call_pure_extern")


def _operands(p: ExprParser, e: ast.Call) -> tuple[Parsed, Parsed]:
    a = p.arguments(e, ("a", "b"), 2)
    return p.expr(a["a"]), p.expr(a["b"])


def _operation(op: str, p: ExprParser, e: ast.Call) -> Parsed:
    a, b = _operands(p, e)
    if isinstance(a, Poly) and type(b) is int and b >= 0:  # index arithmetic stays an index
        if op in ("shl", "shr") and b < 63:
            return p.combine(e, "mul" if op == "shl" else "floordiv", a, 2**b)
        if op == "bitand" and (b + 1) & b == 0:
            return p.combine(e, "mod", a, b + 1)
    return p.combine(e, op, a, b)


def _truncated(op: str, p: ExprParser, e: ast.Call) -> Parsed:
    """`op`, floordiv or mod, of indices that are never negative: rounding to zero is rounding down; for data, by a formula."""
    a, b = _operands(p, e)
    name, instead = ast.unparse(e.func), "T.floordiv" if op == "floordiv" else "T.floormod"
    if any(isinstance(v, float) or (isinstance(v, Expr) and not dt.is_int(v.dtype)) for v in (a, b)):
        p.fail(e, f"{name} is for integers", "Write a / b or T.fmod(a, b) for floats.")
    if not (_is_natural(a) and _is_natural(b)):
        if any(isinstance(v, Expr) for v in (a, b)) and not any(isinstance(v, Poly) for v in (a, b)):
            return _formula("divide" if op == "floordiv" else "fmod", p, e)
        what = f"{name} rounds to 0, and an operand of it may be negative: the script has divisions that round down only"
        p.fail(e, what, f"Write {instead}(a, b) if both are at least 0.")
    return p.combine(e, op, a, b)


def _divided(op: str, p: ExprParser, e: ast.Call) -> Parsed:
    """`T.Div` and `T.Mod`: the quotient of floats, else as `_truncated`."""
    a, b = _operands(p, e)
    is_float = any(isinstance(v, float) or (isinstance(v, Expr) and dt.is_float(v.dtype)) for v in (a, b))
    return p.combine(e, "div", a, b) if is_float and op == "floordiv" else _truncated(op, p, e)


def _is_natural(v: Parsed | Poly) -> bool:
    """Whether an integer is at least 0 for all values of variables, which are at least 0."""
    if isinstance(v, Poly):
        return all(c > 0 and all(not isinstance(a, Op) or _is_natural_operation(a) for a in m) for m, c in v.terms)
    if isinstance(v, Expr):
        return dt.is_unsigned(v.dtype) or (isinstance(v, Const) and v.value >= 0)
    return v >= 0


def _is_natural_operation(a: Op) -> bool:
    if a.op == "mod":
        return _is_natural(a.args[1])
    natural = [_is_natural(x) for x in a.args]
    return any(natural) if a.op == "max" else all(natural)


def _limit(sign: int, p: ExprParser, e: ast.Call) -> Parsed:
    """`T.min_value(dtype)` and `T.max_value(dtype)`: the finite limits of a type."""
    a = p.arguments(e, ("dtype",), 1)["dtype"]
    name = dt.element(p.dtype(a))
    if name == "bool":
        return Const(sign > 0, "bool")
    if name == "bfloat16":
        return Const(sign * float(2**128 - 2**120), name)
    if dt.is_float(name):
        return Const(sign * float(np.finfo(name).max), name)
    limits = np.iinfo(name)
    return Const(int(limits.max if sign > 0 else limits.min), name)


def _infinity(p: ExprParser, e: ast.Call) -> Parsed:
    a = p.arguments(e, ("dtype",), 1)["dtype"]
    name = dt.element(p.dtype(a))
    if not dt.is_float(name):
        p.fail(a, f"{name} has no infinity", f"Write T.max_value({name!r}).")
    return Const(float("inf"), name)


def _likely(p: ExprParser, e: ast.Call) -> Parsed:
    return p.condition(p.arguments(e, ("condition",), 1)["condition"])


def _bitwise_not(p: ExprParser, e: ast.Call) -> Parsed:
    v = p.value(p.arguments(e, ("x",), 1)["x"])
    return p.combine(e, "bitxor", v, 2 ** dt.bits(v.dtype) - 1 if dt.is_unsigned(v.dtype) else -1)


def _junction(kind: type[ast.And] | type[ast.Or], p: ExprParser, e: ast.Call) -> Parsed:
    a = p.arguments(e, ("a", "b"), 2)
    return p.expr(ast.copy_location(ast.BoolOp(kind(), [a["a"], a["b"]]), e))


def _formula(name: str, p: ExprParser, e: ast.Call) -> Parsed:
    """The formula of a function, for 16-bit floats in float32."""
    names = ("a", "b") if name in _OF_TWO else ("x",)
    given = p.arguments(e, names, len(names))
    parsed = [p.expr(given[n]) for n in names]
    like = next((v.dtype for v in parsed if isinstance(v, Expr)), None)
    args = [p.typed(given[n], v, like) for n, v in zip(names, parsed, strict=True)]
    dtype = args[0].dtype
    if any(a.dtype != dtype for a in args) or not (dt.is_float(dtype) or (name in _OF_INTEGERS and dt.is_int(dtype))):
        got = " and ".join([a.dtype for a in args])
        p.fail(e, f"{ast.unparse(e.func)} takes {'numbers' if name in _OF_INTEGERS else 'floats'} of one type, got {got}", "Write a cast.")
    wide = "float32" if dt.is_float(dtype) and dt.bits(dtype) == 16 else dtype
    made = cast(dtype, FORMULAS.get(name)(*[cast(wide, a) for a in args]))
    p.make(e, check_size, made, f"{ast.unparse(e.func)} of this operand")
    return made


def _extern(p: ExprParser, e: ast.Call) -> Parsed:
    """`T.call_extern(dtype, name, ...)` of a function of the C library."""
    if len(e.args) < 2 or e.keywords:
        p.fail(e, f"{ast.unparse(e.func)} takes a dtype, a name and arguments")
    dtype, name = p.dtype(e.args[0]), p.text(e.args[1], "the name of an external function")
    known = EXTERNAL.get(name.removeprefix("llvm."))
    if known is None:
        have = ", ".join(sorted(_C_NAMES))
        what = f"the external function {shorten(name)!r} has no meaning in a program"
        p.fail(e.args[1], what, f"Known are {have}. A graph function calls those of other libraries (docs/extending.md).")
    inner = ast.copy_location(ast.Call(ast.copy_location(ast.Attribute(e.func.value, known, ast.Load()), e), e.args[2:], []), e)  # type: ignore[attr-defined]
    out = p.typed(e, p.expr(inner), dtype)
    if out.dtype != dtype:
        p.fail(e, f"{ast.unparse(e.func)} of {dtype}, but {name} of these arguments is {out.dtype}", "Cast the arguments.")
    return out


def _let(p: ExprParser, e: ast.Call) -> Parsed:
    """Parse `T.Let(body, where={x: value})`: the values are written where they are used, because nothing is stored between."""
    a = p.arguments(e, ("body", "where"), 2)
    where = a["where"]
    if not isinstance(where, ast.Dict) or not where.keys:
        p.fail(where, "T.Let binds names by a dict", "Write T.Let(body, where={x: value}).")
    names: list[str] = []
    for k, v in zip(where.keys, where.values, strict=True):
        if not isinstance(k, ast.Name) or k.id in p.scope or k.id in p.hidden:
            p.fail(k or where, "T.Let binds names that are not in use", "Choose another name.")
        value = p.expr(v)
        p.scope[k.id] = value if isinstance(value, Expr) else p.typed(v, value)
        names.append(k.id)
    out = p.expr(a["body"])
    for name in names:
        del p.scope[name]
    if isinstance(out, Expr):
        p.make(e, check_size, out, "the body of T.Let with its values")
    return out


def _negation(p: ExprParser, e: ast.Call) -> Parsed:
    return Not(p.condition(p.arguments(e, ("a",), 1)["a"]))


FUNCTIONS: Mapping[str, Callable[[Any, ast.Call], Parsed]] = {
    **{name: partial(_operation, op) for name, op in _ONE_OPERATION.items()},
    **{name: partial(_formula, name) for name in FORMULAS if name != "divide"},
    "truncdiv": partial(_truncated, "floordiv"),
    "truncmod": partial(_truncated, "mod"),
    "Div": partial(_divided, "floordiv"),
    "Mod": partial(_divided, "mod"),
    "min_value": partial(_limit, -1),
    "max_value": partial(_limit, 1),
    "infinity": _infinity,
    "likely": _likely,
    "bitwise_not": _bitwise_not,
    "And": partial(_junction, ast.And),
    "Or": partial(_junction, ast.Or),
    "Not": _negation,
    "Let": _let,
    **dict.fromkeys(("call_extern", "call_pure_extern", "call_llvm_pure_intrin", "call_llvm_intrin"), _extern),
}
"""Parsers by TVM's name."""
