"""Define the intrinsics as functions of `te`: `te.exp(x)` is `te.call("exp", x)`, with checks, a signature and a docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from tunesmith.ir.expr import Expr, Symbolic, Value, as_expr, call
from tunesmith.ir.intrinsics import INTRINSICS, Intrinsic, refused_operand
from tunesmith.ir.script.printer_expr import call_dtype
from tunesmith.support.errors import ScriptError


def _call(known: Intrinsic, operands: tuple[Value, ...], dtype: str | None) -> Expr:
    name = f"te.{known.name}"
    if len(operands) != known.arity:
        takes = f"{known.arity} operand{'s' * (known.arity != 1)}"
        raise ScriptError(f"{name} takes {takes}, {name}({', '.join(known.operand_names)}), got {len(operands)}")
    given = [x.as_expr() if isinstance(x, Symbolic) else x for x in operands]
    like = next((x.dtype for x in given if isinstance(x, Expr)), None)
    if like is None and given:
        number = next((x for x in given if isinstance(x, (int, float))), None)
        if number is not None:
            instead = f"compute it in Python, or write te.const({number!r}, dtype)"
            raise ScriptError(f"{name} takes expressions, got the number {number!r}: {instead}")
    args = [as_expr(x, like or "float32") for x in given]
    if args and (why := refused_operand(known.name, args[0].dtype)):
        raise ScriptError(f"{name} {why}")
    return call(known.name, *args, dtype=dtype or call_dtype(known.name, args[0].dtype if args else "int32"))


def _result_rule(known: Intrinsic) -> str:
    """The sentence about the type of the result."""
    if known.effect:
        return "The call has an effect and no value."
    if known.name == "isnan":
        return "The result is a bool."
    if known.concatenates:
        return "The result has the lanes of all operands."
    if known.reduces:
        return "The result has the element type of the operand."
    return "The result has the type of the first operand."


def _function(known: Intrinsic) -> Callable[..., Expr]:
    def function(*operands: Value, dtype: str | None = None) -> Expr:
        return _call(known, operands, dtype)

    names = known.operand_names
    kinds = inspect.Parameter
    kind = kinds.VAR_POSITIONAL if known.arity > 3 else kinds.POSITIONAL_ONLY
    positional = [kinds(n.removeprefix("*"), kind, annotation="Expr") for n in names]
    option = kinds("dtype", kinds.KEYWORD_ONLY, default=None, annotation="str | None")
    function.__name__ = function.__qualname__ = known.name
    function.__module__ = "tunesmith.te"
    function.__signature__ = inspect.Signature([*positional, option], return_annotation="Expr")  # type: ignore[attr-defined]
    rest = " Numbers take the type of the other operands." if known.arity > 1 else ""
    operands = f"    {', '.join(names)}: elements of tensors, or expressions of them.{rest}\n" if names else ""
    function.__doc__ = (
        f"{known.meaning}  In scripts `T.{known.name}({', '.join(names)})`.\n\nArgs:\n{operands}    dtype: type of the result, if it is "
        f"another one.  {_result_rule(known)}\nRaises:\n    ScriptError: another number of operands, or operands that are no expressions.\n"
    )
    return function


FUNCTIONS: Mapping[str, Callable[..., Expr]] = {name: _function(known) for name, known in INTRINSICS.items()}
"""The functions by name."""
