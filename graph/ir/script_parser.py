"""Parse graph functions from the script text that `script_printer` writes.

The text is parsed with `ast` and never evaluated.  For any text the result is a function or a ScriptError that points to the fault.
Result types are inferred during parsing; `verify` checks the other rules of functions.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import (
    Attribute,
    Binding,
    Call,
    CallFunction,
    Constant,
    If,
    Loop,
    Operand,
    Operation,
    ReadSize,
    Region,
    TensorType,
    Value,
    While,
)
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.ir.script_printer import WORDS
from tunesmith.graph.ir.verify import BOOL, SIZE, infer
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.script import parser as script_parser
from tunesmith.ir.script.buffer_view import BufferView
from tunesmith.ir.script.diagnostics import Source, shorten
from tunesmith.ir.script.naming import MAX_NAME, identifier
from tunesmith.ir.script.parser_calls import CallParser
from tunesmith.ir.script.parser_scope import Budget
from tunesmith.ir.script.parser_stmt import statement_word
from tunesmith.runtime.arrays import in_bfloat16
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError
from tunesmith.support.nearest_name import nearest_name

MAX_RANK = 32
"""Maximum number of dimensions of a constant; each one is a level of nested lists."""

Names = tuple[str, ...]


def parse(text: str, constants: Mapping[str, np.ndarray] | None = None, file: str = "<script>") -> GraphFunc:
    """The graph function that `text` describes.

    Args:
        text: one `@G.function`, as `script_printer.script_of` writes it.
        constants: data of the constants that the text references by digest (`script_printer.large_constants`).
        file: name of the text in messages.
    Raises:
        ScriptError: the text is no graph function, or the data of a constant are missing or do not match; the message shows the location.
    """
    found = script_parser.parse(text, file, constants)
    if not isinstance(found, GraphFunc):
        raise ScriptError(f"{file}: expected a graph function (@G.function), found a {type(found).__name__}")
    return found


def parse_function(source: Source, budget: Budget, d: ast.FunctionDef, constants: Mapping[str, Any]) -> GraphFunc:
    """The graph function `d` of a text; called by `ir.script.parser` for definitions under `@G.function`."""
    return _GraphParser(source, budget, constants).function(d)


class _GraphParser(CallParser):
    """Parse one function.  Sizes are stored in the scope of index expressions, tensors in `values`."""

    def __init__(self, source: Source, budget: Budget, constants: Mapping[str, Any]) -> None:
        super().__init__(source, budget)
        self.constants = constants
        self.values: dict[str, Operand] = {}
        self.assumptions: list[Expr] = []

    # ---- names -------------------------------------------------------------------------------------------------------

    def declare(self, at: ast.AST, name: str, value: Operand | Poly) -> None:
        """Add `name` to the scope; fails if it is already defined."""
        if len(name) > MAX_NAME:
            self.fail(at, f"the name `{shorten(name)}` is longer than {MAX_NAME} characters")
        if name in ("G", self.alias):
            self.fail(at, f"`{name}` is a namespace of the script and cannot be a variable")
        if name in self.scope or name in self.values:
            self.fail(at, f"`{name}` already names a {'size' if name in self.scope else 'tensor'} in scope here", "Choose another name.")
        if isinstance(value, Poly):
            self.scope[name] = value
        else:
            self.values[name] = value

    def lookup(self, e: ast.Name, kind: str = "name") -> Expr | Buffer | BufferView | int | float | str:
        """A size; a tensor is not allowed in an index expression."""
        if e.id in self.values:
            self.fail(e, f"`{e.id}` is a tensor; only sizes and numbers are allowed here")
        return super().lookup(e, kind)

    def operand(self, e: ast.expr) -> Operand:
        """The tensor named `e`."""
        if not isinstance(e, ast.Name):
            hint = 'Name a number or the result of a call first: `c = G.constant(2.0, (), "float32")`; attributes are passed by name.'
            self.fail(e, "an operand must be the name of a tensor", hint)
        found = self.values.get(e.id)
        if found is None:
            near = nearest_name(e.id, self.values, 0.5)
            fault = "is a size, not a tensor" if e.id in self.scope else "is not bound here"
            self.fail(e, f"`{shorten(e.id)}` {fault}", f"Did you mean `{near}`?" if near else "")
        return found

    def g_name(self, e: ast.AST | None) -> str | None:
        """`x` if `e` is `G.x`, else None."""
        return e.attr if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.value.id == "G" else None

    def g_call(self, e: ast.AST | None, name: str) -> ast.Call | None:
        """`e` if it is a call of `G.name`, else None."""
        return e if isinstance(e, ast.Call) and self.g_name(e.func) == name else None

    # ---- functions ---------------------------------------------------------------------------------------------------

    def function(self, d: ast.FunctionDef) -> GraphFunc:
        """Parse the function `d`."""
        a = d.args
        extra = next((x for x in (a.vararg, a.kwarg, *a.kwonlyargs, *a.posonlyargs, *a.defaults, *a.kw_defaults) if x), None)
        if extra is not None:
            self.fail(extra, "parameters must not have defaults, `*` or `/`")
        name, attrs = self._decorator(d)
        params = tuple([self._param(x) for x in a.args])
        body = list(d.body)
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
            del body[0]
        while body and isinstance(body[0], ast.Expr):
            self._assume(body.pop(0))
        bindings = [b for s in body[:-1] for b in self.statement(s)[1]]
        if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
            self.fail(
                body[-1] if body else d,
                "the last statement of a graph function must return its results",
                "Write `return y`, or `return y, z`.",
            )
        results = self.results(body[-1].value)
        return GraphFunc(name, params, Region(tuple(bindings), results), attrs, tuple(self.assumptions))

    def _decorator(self, d: ast.FunctionDef) -> tuple[str, tuple[tuple[str, str], ...]]:
        e = d.decorator_list[0]
        options = self.arguments(e, ("name", "sizes", "attrs"), 0) if isinstance(e, ast.Call) else {}
        if isinstance(e, ast.Call) and e.args:
            self.fail(e.args[0], "the arguments of @G.function are passed by name", 'Write @G.function(sizes=("n",)).')
        name = self.text(options["name"], "the name of a function") if "name" in options else d.name
        if not name:
            self.fail(options["name"], "the name of a function must not be empty")
        for x in self.items(options["sizes"], "the sizes") if "sizes" in options else ():
            size = self.text(x, "the name of a size")
            if size != identifier(size):
                self.fail(x, f"the name of a size must be an identifier, got {shorten(size)!r}")
            self.declare(x, size, poly(Var(size)))
        attrs: dict[str, str] = {}
        given = options.get("attrs", ast.Dict([], []))
        if not isinstance(given, ast.Dict):
            self.fail(given, "the attributes of a function must be a dict of strings")
        for k, v in zip(given.keys, given.values, strict=True):
            key = self.text(k, "the key of an attribute") if k is not None else self.fail(v, "`**` is not supported here")
            if key in attrs:
                self.fail(v, f"duplicate attribute {shorten(key)!r}")
            attrs[key] = self.text(v, "an attribute of a function")
        return name, tuple(sorted(attrs.items()))

    def text(self, e: ast.expr, what: str) -> str:
        """A string literal; a graph function has no variables that hold strings."""
        if not isinstance(e, ast.Constant):
            self.fail(e, f"{what} must be a quoted string")
        return super().text(e, what)

    def _param(self, x: ast.arg) -> Value:
        if x.annotation is None:
            self.fail(x, f"the parameter `{shorten(x.arg)}` has no type", 'Write x: G.Tensor((1, 64), "float32").')
        value = Value(x.arg, self.type(x.annotation))
        self.declare(x, x.arg, value)
        return value

    def _assume(self, s: ast.stmt) -> None:
        call = self.g_call(s.value, "assume") if isinstance(s, ast.Expr) else None
        if call is None:
            self.fail(s, "only G.assume(condition) is allowed as an expression statement", "Assign the results of a call to names.")
        at = self.arguments(call, ("condition",), 1)["condition"]
        condition = self.condition(at)
        if condition.dtype != "bool":
            self.fail(at, f"an assumption must be a scalar condition, got {condition.dtype}")
        self.assumptions.append(condition)

    def type(self, e: ast.expr) -> TensorType:
        """`G.Tensor((n, 64), "float32")`."""
        call = self.g_call(e, "Tensor")
        if call is None:
            self.fail(e, "expected the type of a tensor", 'Write G.Tensor((1, 64), "float32").')
        a = self.arguments(call, ("shape", "dtype"), 1)
        shape = [self.index(x) for x in self.items(a["shape"], "the shape")]
        return self.make(e, TensorType.of, shape, self.dtype(a["dtype"]) if "dtype" in a else "float32")

    # ---- statements --------------------------------------------------------------------------------------------------

    def results(self, e: ast.expr) -> tuple[Operand, ...]:
        """`x`, or `x, y`."""
        elts = e.elts if isinstance(e, ast.Tuple) else [e]
        if not elts:
            self.fail(e, "expected at least one result")
        return tuple([self.operand(x) for x in elts])

    def statement(self, s: ast.stmt) -> tuple[Names, list[Binding]]:
        """Parse a statement that names tensors; the names and the new bindings (none for a constant)."""
        if isinstance(s, ast.If):
            return self._if(s)
        if isinstance(s, ast.For):
            return self._loop(s)
        if isinstance(s, ast.Expr):
            self.fail(s, "only assignments are allowed here, and G.assume at the start of the function")
        if not isinstance(s, ast.Assign) or len(s.targets) != 1:
            what = "several `=`" if isinstance(s, ast.Assign) else statement_word(s)
            self.fail(
                s,
                f"unsupported in a graph function: {what}",
                "Statements are `y = G.relu(x)`, `if c:` with `else:`, `for t, h in G.loop(8, x):`, and `return y`.",
            )
        names = self._targets(s.targets[0])
        size = self.g_call(s.value, "read_size")
        if size is not None:
            return (), [self._read_size(s.targets[0], names, size)]
        constant = self.g_call(s.value, "constant")
        if constant is not None:
            if len(names) != 1:
                self.fail(s.targets[0], "a constant must have one name")
            self.declare(s.targets[0], names[0], self._constant_tensor(constant, names[0]))
            return names, []
        if not isinstance(s.value, ast.Call):
            hint = "A tensor has one name; only the last statement of a branch may name results of the `if`: `r = x`."
            self.fail(s.value, "expected an operation", hint)
        operation, types = self._operation(s.value)
        return names, [self._bind(s.targets[0], names, operation, types)]

    def _targets(self, e: ast.expr) -> Names:
        elts = e.elts if isinstance(e, (ast.Tuple, ast.List)) else [e]
        names = [x.id if isinstance(x, ast.Name) else self.fail(x, "expected a name") for x in elts]
        if not names:
            self.fail(e, "expected a name")
        return tuple(names)

    def _bind(self, at: ast.AST, names: Names, operation: Operation, types: Sequence[TensorType]) -> Binding:
        if len(names) != len(types):
            what = operation.operator if isinstance(operation, Call) else "this"
            self.fail(at, f"{shorten(what)} has {len(types)} results, but {len(names)} names are assigned")
        values = tuple([Value(n, t) for n, t in zip(names, types, strict=True)])
        for v in values:
            self.declare(at, v.name, v)
        return Binding(values, operation)

    def _if(self, s: ast.If) -> tuple[Names, list[Binding]]:
        self.enter(s)
        condition = self.operand(s.test)
        if condition.type != BOOL:
            self.fail(s.test, f"the condition of an `if` must be {BOOL}, got {condition.type}")
        if not s.orelse:
            self.fail(s, "an `if` must have an `else:`", "Both branches assign the same names.")
        names, then = self._branch(s.body)
        others, otherwise = self._branch(s.orelse)
        if names != others:
            self.fail(
                s.orelse[-1],
                f"the last statements of the branches name different results: {shorten(', '.join(names))} and {shorten(', '.join(others))}",
                "Both must name the results of the `if`.",
            )
        types, other_types = [[r.type for r in region.results] for region in (then, otherwise)]
        if types != other_types:
            self.fail(s.orelse[-1], f"the result types of the branches differ: {types} and {other_types}")
        self.leave()
        return names, [self._bind(s, names, If(condition, then, otherwise), types)]

    def _loop(self, s: ast.For) -> tuple[Names, list[Binding]]:
        """`for t, h in G.loop(8, h_0):`, with the carried values after the number of the iteration."""
        self.enter(s)
        if self.g_call(s.iter, "while_loop") is not None:
            return self._while_loop(s)
        call = self.g_call(s.iter, "loop")
        if call is None or not call.args or s.orelse:
            self.fail(
                s.iter,
                "a loop is over the number of iterations and the initial values",
                "Write `for t, h in G.loop(8, h_0):`, or `for h in G.while_loop(h_0):` with `while c:` as its last statement.",
            )
        trips = self.integer(call.args[0], "the number of iterations", 1)
        initial = tuple([self.operand(x) for x in call.args[1:]])
        stores: tuple[str, ...] = ()
        for k in call.keywords:
            if k.arg != "stores":
                self.fail(k.value, "a loop has no other argument by name than `stores`")
            stores = tuple([self.text(x, "the name of a function") for x in self.items(k.value, "the functions")])
        index, *carried = self._targets(s.target)
        outside, sizes = dict(self.values), dict(self.scope)
        counter = Var(index)
        self.declare(s.target, index, poly(counter))
        params = self._carried(s, carried, initial)
        names, body = self._branch(s.body)
        self._restore(outside, sizes)
        if [r.type for r in body.results[: len(params)]] != [p.type for p in params]:
            self.fail(s.body[-1], f"the first {len(params)} results of a loop are the next carried values, with the types of the initial")
        op = Loop(counter, trips, initial, params, body, stores)
        self.leave()
        return names, [self._bind(s, names, op, op.types)]

    def _while_loop(self, s: ast.For) -> tuple[Names, list[Binding]]:
        """`for h in G.while_loop(h_0):`, whose last statement is `while c:`."""
        call, last = self.g_call(s.iter, "while_loop"), s.body[-1]
        assert call is not None
        if call.keywords or s.orelse or not isinstance(last, ast.While) or last.orelse:
            self.fail(s, "a while_loop computes its condition, and its last statement is `while c:`", "It takes the initial values.")
        initial = tuple([self.operand(x) for x in call.args])
        outside, sizes = dict(self.values), dict(self.scope)
        params = self._carried(s, list(self._targets(s.target)), initial)
        inside = dict(self.values)
        bindings = [b for x in s.body[:-1] for b in self.statement(x)[1]]
        decided = self.operand(last.test)
        if decided.type != BOOL:
            self.fail(last.test, f"the condition of a loop must be {BOOL}, got {decided.type}")
        self._restore(inside, sizes)
        names, body = self._branch(last.body)
        self._restore(outside, sizes)
        if [r.type for r in body.results] != [p.type for p in params]:
            self.fail(last.body[-1], "the results of a while_loop are the next carried values, with the types of the initial ones")
        op = While(initial, params, Region(tuple(bindings), (decided,)), body)
        self.leave()
        return names, [self._bind(s, names, op, op.types)]

    def _carried(self, s: ast.For, names: Sequence[str], initial: Sequence[Operand]) -> tuple[Value, ...]:
        """The values that a loop carries, declared."""
        if len(names) != len(initial):
            self.fail(s.target, f"the loop names {len(names)} carried values, and has {len(initial)} initial ones")
        params = tuple([Value(name, o.type) for name, o in zip(names, initial, strict=True)])
        for p in params:
            self.declare(s.target, p.name, p)
        return params

    def _restore(self, values: Mapping[str, Operand], sizes: Mapping[str, Any]) -> None:
        """Leave a region: only these names are in scope."""
        self.values = dict(values)
        self.scope.clear()
        self.scope.update(sizes)

    def _read_size(self, at: ast.expr, names: Names, call: ast.Call) -> Binding:
        given = self.arguments(call, ("value", "at_most"), 1)
        value = self.operand(given["value"])
        at_most = self.index(given["at_most"]) if "at_most" in given else None
        if value.type != SIZE or len(names) != 1:
            self.fail(at, f"one size is read from {SIZE}, got {value.type}")
        self.declare(at, names[0], poly(size := Var(names[0])))
        return Binding((), ReadSize(value, size, at_most))

    def _branch(self, body: list[ast.stmt]) -> tuple[Names, Region]:
        """A branch and the names of its results, from its last statement: an assignment of tensors (`r = t`), or a binding."""
        outside, sizes = dict(self.values), dict(self.scope)
        bindings = [b for s in body[:-1] for b in self.statement(s)[1]]
        last = body[-1]
        if isinstance(last, ast.Assign) and len(last.targets) == 1 and isinstance(last.value, (ast.Name, ast.Tuple)):
            names, results = self._targets(last.targets[0]), self.results(last.value)
            if len(names) != len(results):
                self.fail(last, f"cannot assign {len(results)} tensors to {len(names)} names")
        else:
            names, more = self.statement(last)
            bindings += more
            results = tuple([self.values[n] for n in names])
        self._restore(outside, sizes)
        return names, Region(tuple(bindings), results)

    # ---- operations --------------------------------------------------------------------------------------------------

    def _operation(self, e: ast.Call) -> tuple[Operation, tuple[TensorType, ...]]:
        """A call of an operator or of a function of the module, and the types of its results."""
        inner = self.g_call(e.func, "operator")
        name = self.g_name(e.func)
        if inner is not None:
            name = self.text(self.arguments(inner, ("name",), 1)["name"], "the name of an operator")
        elif name == "call":
            return self._call_function(e)
        elif name is None or name in WORDS:
            self.fail(e.func, f"`{shorten(ast.unparse(e.func))}` is not an operation", "Write operators as G.relu(x).")
        if len(name) > MAX_NAME:
            self.fail(e.func, f"the name of the operator is longer than {MAX_NAME} characters")
        try:
            operator = GRAPH_OPERATORS.get(name)
        except UserError as error:
            self.fail(e.func, str(error))
        args = tuple([self.operand(x) for x in e.args])
        given: dict[str, Attribute] = {}
        for k in e.keywords:
            if k.arg is None:
                self.fail(k.value, "`**` is not supported here")
            given[k.arg] = self.attribute(k.value)
        attrs = self.make(e, operator.bind, given)
        return Call(name, args, attrs), self.make(e, infer, name, [a.type for a in args], attrs)

    def _call_function(self, e: ast.Call) -> tuple[Operation, tuple[TensorType, ...]]:
        a = self.arguments(e, ("function", "operands", "types", "sizes"), 3)
        args = tuple([self.operand(x) for x in self.items(a["operands"], "the operands")])
        several = a["types"].elts if isinstance(a["types"], (ast.Tuple, ast.List)) else [a["types"]]
        types = tuple([self.type(t) for t in several])
        sizes = tuple([self.index(x) for x in self.items(a["sizes"], "the sizes")]) if "sizes" in a else ()
        return CallFunction(self.text(a["function"], "the name of a function"), args, sizes), types

    def attribute(self, e: ast.expr) -> Attribute:
        """A number, a string, a size, None, or a tuple of these."""
        if isinstance(e, (ast.Tuple, ast.List)):
            self.enter(e)
            made = tuple([self.attribute(x) for x in e.elts])
            self.leave()
            return made
        if isinstance(e, ast.Constant) and (e.value is None or isinstance(e.value, (bool, float, str))):
            return e.value
        number = self._float(e)
        if number is not None:
            return number
        p = self.index(e)
        return p if p.const is None else p.const

    def _float(self, e: ast.expr) -> float | None:
        """The value of a float literal (`1.5`, `-1.5`, `G.inf`, `-G.inf`, `G.nan`); None for other expressions."""
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub) and not isinstance(e.operand, ast.UnaryOp):
            inner = self._float(e.operand)
            return None if inner is None else -inner
        if self.g_name(e) in ("inf", "nan"):
            return float(self.g_name(e) or "")
        return e.value if isinstance(e, ast.Constant) and isinstance(e.value, float) else None

    # ---- constants ---------------------------------------------------------------------------------------------------

    def _constant_tensor(self, e: ast.Call, name: str) -> Constant:
        a = self.arguments(e, ("data", "shape", "dtype"), 3)
        shape = tuple([self.integer(x, "an extent of a constant", 0) for x in self.items(a["shape"], "the shape")])
        dtype = self.dtype(a["dtype"])
        if dt.lanes(dtype) != 1:
            self.fail(a["dtype"], f"constants of {dtype} are not supported: numpy has no such arrays")
        if len(shape) > MAX_RANK:
            self.fail(a["shape"], f"a constant must have at most {MAX_RANK} dimensions")
        data = a["data"]
        if isinstance(data, ast.Constant) and isinstance(data.value, str):
            return self._large_constant(data, data.value, name, shape, dtype)
        flat: list[bool | int | float] = []
        self._flatten(data, shape, dtype, flat)
        with np.errstate(all="ignore"):
            array = in_bfloat16(np.array(flat, np.float32)) if dtype == "bfloat16" else np.array(flat, dt.to_numpy(dtype))
            for x, number in zip(flat, array, strict=True):
                if np.isinf(number) and not np.isinf(x):
                    self.fail(data, f"the number {x} does not fit in {dtype}")
        return Constant(name, self.make(data, _shaped, array, shape))

    def _flatten(self, e: ast.expr, shape: tuple[int, ...], dtype: str, out: list[bool | int | float]) -> None:
        """Append the numbers in nested lists of this shape to `out`."""
        if shape:
            elts = self.items(e, "the elements of a constant")
            if len(elts) != shape[0]:
                self.fail(e, f"expected {shape[0]} elements for this shape, found {len(elts)}")
            for x in elts:
                self._flatten(x, shape[1:], dtype, out)
            return
        number = self._float(e)
        if number is None:
            v = self.expr(e)
            if isinstance(v, Expr):
                self.fail(e, "an element of a constant must be a number")
            number = v
        if dtype == "bool" and not isinstance(number, bool):
            self.fail(e, "an element of a bool constant must be True or False")
        c: Const = self.literal(e, number, dtype)
        out.append(c.value)

    def _large_constant(self, at: ast.Constant, digest: str, name: str, shape: tuple[int, ...], dtype: str) -> Constant:
        data = self.constants.get(digest)
        if data is None:
            hint = "Pass the data with parse(text, constants={digest: array})."
            self.fail(at, f"missing data of the constant {shorten(digest)!r}", hint)
        c = self.make(at, Constant, name, np.asarray(data))
        expected = self.make(at, TensorType.of, shape, dtype)
        given = self.make(at, lambda: c.type)
        if given != expected:
            self.fail(at, f"the constant {shorten(digest)!r} is {expected} here, but its data are {given}")
        if c.digest != digest:
            self.fail(at, f"the data passed for the constant {shorten(digest)!r} have another digest, {c.digest}")
        return c


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as e:  # with a 0 among the extents, others may be too large for numpy
        raise ScriptError(f"numpy has no arrays of the shape {shape}: {e}") from e
