"""Parse calls in expressions: value functions of the `T` namespace, intrinsics, vector loads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.ir import poly as ip
from tunesmith.ir.buffer import Buffer, BufferLoad, load
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Ramp, cast
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.intrinsics import INTRINSICS, refused_operand
from tunesmith.ir.poly import Poly
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.naming import MAX_NAME
from tunesmith.ir.script.parser_expr import ExprParser, Parsed
from tunesmith.ir.script.printer_expr import FOLDED, call_dtype
from tunesmith.ir.script.tvm_functions import FUNCTIONS, RENAMED, refusal
from tunesmith.support import dtype as dt
from tunesmith.support.nearest_name import nearest_name


class CallParser(ExprParser):
    """Parser of calls."""

    def call(self, e: ast.Call) -> Parsed:
        """Parse a call of a T function, or a vector load."""
        name = self.t_name(e.func)
        if name is None:
            if isinstance(e.func, ast.Attribute) and e.func.attr == "vload" and isinstance(e.func.value, ast.Name):
                return self._vload(e, e.func.value)
            self.fail(
                e, f"`{shorten(ast.unparse(e.func))}` cannot be called in a script", "Values come from T.* functions and from buffers."
            )
        f = _CALLS.get(name) or FUNCTIONS.get(name)
        if f is not None:
            return f(self, e)
        name = RENAMED.get(name, name)
        if name in INTRINSICS:
            return self._intrinsic(e, name)
        if name in dt.SCALARS:
            return self._scalar(e, name)
        if (why := refusal(name)) is not None:
            self.fail(e.func, f"T.{shorten(name)} is not supported", f"{why[0].upper()}{why[1:]}.")
        near = nearest_name(name, [*_CALLS, *INTRINSICS])
        self.fail(e.func, f"T.{shorten(name)} is not a value function of the script", f"Did you mean T.{near}?" if near else "")

    def _vload(self, e: ast.Call, target: ast.Name) -> Expr:
        b = self.buffer(target, "read")
        if not isinstance(b, Buffer):
            self.fail(target, "a view has no vload", f"Write {b.buffer.name}.vload(...).")
        a = self.arguments(e, ("indices", "lanes", "stride", "mask"), 1)
        plain = self.make(e, load, b, *[self.index(i) for i in self.items(a["indices"], "the indices")])
        lanes = self.integer(a["lanes"], "lanes") if "lanes" in a else 1
        stride, mask = [self.index(a[k]) if k in a else None for k in ("stride", "mask")]
        return BufferLoad(b, plain.indices, lanes, stride, mask)

    def _intrinsic(self, e: ast.Call, name: str) -> Expr:
        known = INTRINSICS[name]
        if len(e.args) != known.arity:
            self.fail(e, f"T.{name} takes {known.arity} argument{'s' if known.arity > 1 else ''}, got {len(e.args)}")
        bound = self.arguments(e, [*[f"x{i}" for i in range(known.arity)], "dtype"], known.arity)
        given = [self.expr(a) for a in e.args]
        like = next((v.dtype for v in given if isinstance(v, Expr)), None)
        args = tuple([self.typed(a, v, like) for a, v in zip(e.args, given, strict=True)])
        if args and (why := refused_operand(name, args[0].dtype)):
            self.fail(e, f"T.{name} {why}")
        dtype = self.dtype(bound["dtype"]) if "dtype" in bound else call_dtype(name, args[0].dtype if args else "int32")
        return Call(name, args, dtype)

    def _scalar(self, e: ast.Call, name: str) -> Expr:
        a = self.arguments(e, ("value",), 1)["value"]
        if isinstance(a, ast.Constant) and a.value in ("inf", "-inf", "nan") and dt.is_float(name):
            return Const(float(a.value), name)
        v = self.expr(a)
        if self.source.tvm and isinstance(v, Poly) and name in ("int32", dt.INDEX):
            return v
        return cast(name, v) if isinstance(v, Expr) else self.literal(a, v, name)

    def _const(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("value", "dtype"), 2)
        dtype, v = self.dtype(a["dtype"]), a["value"]
        if isinstance(v, ast.Constant) and v.value in ("inf", "-inf", "nan") and dt.is_float(dtype):
            return Const(float(v.value), dtype)
        number = self.expr(v)
        if isinstance(number, Expr):
            self.fail(v, "T.const takes a number")
        return Const(self.literal(v, number, dtype).value, dtype)

    def _index(self, e: ast.Call) -> Expr:
        return self.index(self.arguments(e, ("value",), 1)["value"])

    def _raw_binary(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("op", "a", "b"), 3)
        op = self.text(a["op"], "op")
        if op not in FOLDED:
            self.fail(a["op"], f"T.binary is for unfolded index arithmetic: op is one of {', '.join(sorted(FOLDED))}")
        x, y = self.value(a["a"], dt.INDEX), self.value(a["b"], dt.INDEX)
        if not x.dtype == y.dtype == dt.INDEX:
            self.fail(e, f"T.binary takes two values of {dt.INDEX}, got {x.dtype} and {y.dtype}")
        return Binary(op, x, y)

    def _pow(self, e: ast.Call) -> Parsed:
        a = self.arguments(e, ("a", "b"), 2)
        return self.combine(e, "pow", self.expr(a["a"]), self.expr(a["b"]))

    def _ceildiv(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("a", "b"), 2)
        return self.make(e, ip.ceildiv, self.index(a["a"]), self.index(a["b"]))

    def _cast(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("dtype", "value"), 2)
        first, second = a["dtype"], a["value"]
        if isinstance(second, ast.Constant) and isinstance(second.value, str):  # TVM accepts both orders
            first, second = second, first
        dtype, value = self.dtype(first), self.value(second)
        if self.source.tvm and isinstance(value, Poly) and dtype in ("int32", dt.INDEX):
            return value
        return Cast(dtype, value)

    def _select(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("cond", "a", "b"), 3)
        return self._choose(e, a["cond"], a["a"], a["b"])

    def _broadcast(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("value", "lanes"), 2)
        return Broadcast(self.value(a["value"]), self.integer(a["lanes"], "lanes"))

    def _ramp(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("base", "stride", "lanes"), 3)
        return Ramp(self.index(a["base"]), self.index(a["stride"]), self.integer(a["lanes"], "lanes"))

    def _is_negative(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("index", "lanes", "stride"), 1)
        lanes = self.integer(a["lanes"], "lanes") if "lanes" in a else 1
        return IsNegative(self.index(a["index"]), lanes, self.index(a["stride"]) if "stride" in a else None)

    def _indirect_index(self, e: ast.Call) -> Expr:
        a = self.arguments(e, ("value", "extent", "body"), 3)
        body = a["body"]
        args = body.args.args if isinstance(body, ast.Lambda) else []
        if not isinstance(body, ast.Lambda) or len(args) != 1 or ast.unparse(body.args) != args[0].arg:
            self.fail(body, "the last argument of T.lookup is a lambda of one variable", "T.lookup(value, extent, lambda v: X[v])")
        value, extent, name = self.index_value(a["value"]), self.index(a["extent"]), args[0].arg
        if name in self.scope or name in self.hidden:
            self.fail(body, f"the name `{shorten(name)}` is already in use")
        if len(name) > MAX_NAME:
            self.fail(body, f"the name {shorten(name)} is too long")
        var = IndirectVar(name)
        self.scope[name] = ip.poly(var)
        self.enter(body)
        made = self.value(body.body)
        self.leave()
        del self.scope[name]
        return IndirectIndex(var, extent, value, made)

    def index_value(self, e: ast.expr) -> Expr:
        """Parse the value of an indirect index."""
        value = self.value(e, dt.INDEX)
        if value.dtype != dt.INDEX:
            self.fail(e, f"the value of T.lookup must be {dt.INDEX}, got {value.dtype}", f'Write T.cast("{dt.INDEX}", ...).')
        return value

    def _extremum(self, e: ast.Call) -> Parsed:
        op = e.func.attr  # type: ignore[attr-defined]
        if e.keywords or len(e.args) < 2:
            self.fail(e, f"T.{op} takes two or more positional arguments")
        vs = [self.expr(a) for a in e.args]
        if all(isinstance(v, Poly) or type(v) is int for v in vs) and any(isinstance(v, Poly) for v in vs):
            self.spend(e, op, vs)
            return self.make(e, ip.CHECKED[op], *vs)
        out = vs[0]
        for v in vs[1:]:
            out = self.combine(e, op, out, v)
        return out


_CALLS: Mapping[str, Callable[[CallParser, Any], Parsed]] = {
    "min": CallParser._extremum,
    "max": CallParser._extremum,
    "pow": CallParser._pow,
    "ceildiv": CallParser._ceildiv,
    "select": CallParser._select,
    "if_then_else": CallParser._select,
    "cast": CallParser._cast,
    "Cast": CallParser._cast,
    "Broadcast": CallParser._broadcast,
    "Ramp": CallParser._ramp,
    "lt0": CallParser._is_negative,
    "lookup": CallParser._indirect_index,
    "index": CallParser._index,
    "const": CallParser._const,
    "binary": CallParser._raw_binary,
}
