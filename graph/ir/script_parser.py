"""Graph functions from text: reads what `script_printer` writes, and what people type in the same form.

The text is read with `ast` and never evaluated.  Whatever it holds, the answer is a function or a ScriptError that points to the fault.
Types of results are inferred while the text is read; the rest of what a function must keep to is told by `verify`.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Attribute, Binding, Call, CallFunction, Constant, If, Operand, Operation, Region, TensorType, Value
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.ir.script_printer import WORDS
from tunesmith.graph.ir.verify import BOOL, infer
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.script import parser as script_parser
from tunesmith.ir.script.diagnostics import Source, shorten
from tunesmith.ir.script.naming import MAX_NAME, identifier
from tunesmith.ir.script.parser_calls import CallParser
from tunesmith.ir.script.parser_scope import Budget
from tunesmith.ir.script.parser_stmt import statement_word
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError

MAX_RANK = 32
"""Dimensions of a constant: they nest lists."""

Names = tuple[str, ...]


def parse(text: str, constants: Mapping[str, np.ndarray] | None = None, file: str = "<script>") -> GraphFunc:
    """The graph function that `text` describes.

    Args:
        text: one `@G.function`, as `script_printer.script_of` writes it.
        constants: data of the constants that the text names by their digest (`script_printer.large_constants`).
        file: what messages call the text.
    Raises:
        ScriptError: the text is no graph function, or data of a constant are missing or others; the message shows the place.
    """
    found = script_parser.parse(text, file, constants)
    if not isinstance(found, GraphFunc):
        raise ScriptError(f"{file}: a graph function (@G.function) is expected, found a {type(found).__name__}")
    return found


def parse_function(source: Source, budget: Budget, d: ast.FunctionDef, constants: Mapping[str, Any]) -> GraphFunc:
    """The graph function `d` of a text; how `ir.script.parser` reads one under `@G.function`."""
    return _GraphParser(source, budget, constants).function(d)


class _GraphParser(CallParser):
    """Parses one function.  Sizes stand in the scope of index expressions, tensors in `values`."""

    def __init__(self, source: Source, budget: Budget, constants: Mapping[str, Any]) -> None:
        super().__init__(source, budget)
        self.constants = constants
        self.values: dict[str, Operand] = {}
        self.assumptions: list[Expr] = []

    # ---- names -------------------------------------------------------------------------------------------------------

    def declare(self, at: ast.AST, name: str, value: Operand | Poly) -> None:
        """Bring `name` into scope; refused when it already means something."""
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

    def lookup(self, e: ast.Name, kind: str = "name") -> Poly | Buffer | int | float | str:
        """A size; a tensor cannot stand in an index expression."""
        if e.id in self.values:
            self.fail(e, f"`{e.id}` is a tensor; only sizes and numbers can stand here")
        return super().lookup(e, kind)

    def operand(self, e: ast.expr) -> Operand:
        """The tensor that `e` names."""
        if not isinstance(e, ast.Name):
            hint = 'Give a number or the result of a call a name first: `c = G.constant(2.0, (), "float32")`; attributes are given by name.'
            self.fail(e, "an operand is the name of a tensor", hint)
        found = self.values.get(e.id)
        if found is None:
            near = difflib.get_close_matches(e.id, self.values, 1, 0.5) if len(e.id) <= MAX_NAME else []
            what = "is a size, not a tensor" if e.id in self.scope else "is not bound here"
            self.fail(e, f"`{shorten(e.id)}` {what}", f"Did you mean `{near[0]}`?" if near else "")
        return found

    def g_name(self, e: ast.AST | None) -> str | None:
        """`x` when `e` is spelled `G.x`, else None."""
        return e.attr if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.value.id == "G" else None

    def g_call(self, e: ast.AST | None, name: str) -> ast.Call | None:
        """`e` when it is a call of `G.name`."""
        return e if isinstance(e, ast.Call) and self.g_name(e.func) == name else None

    # ---- functions ---------------------------------------------------------------------------------------------------

    def function(self, d: ast.FunctionDef) -> GraphFunc:
        """The function `d`."""
        a = d.args
        extra = next((x for x in (a.vararg, a.kwarg, *a.kwonlyargs, *a.posonlyargs, *a.defaults, *a.kw_defaults) if x), None)
        if extra is not None:
            self.fail(extra, "parameters have no defaults, no `*` and no `/`")
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
                body[-1] if body else d, "the last statement of a graph function returns its results", "Write `return y`, or `return y, z`."
            )
        results = self.results(body[-1].value)
        return GraphFunc(name, params, Region(tuple(bindings), results), attrs, tuple(self.assumptions))

    def _decorator(self, d: ast.FunctionDef) -> tuple[str, tuple[tuple[str, str], ...]]:
        e = d.decorator_list[0]
        options = self.arguments(e, ("name", "sizes", "attrs"), 0) if isinstance(e, ast.Call) else {}
        if isinstance(e, ast.Call) and e.args:
            self.fail(e.args[0], "the arguments of @G.function are given by name", 'Write @G.function(sizes=("n",)).')
        name = self.text(options["name"], "the name of a function") if "name" in options else d.name
        if not name:
            self.fail(options["name"], "the name of a function is not empty")
        for x in self.items(options["sizes"], "the sizes") if "sizes" in options else ():
            size = self.text(x, "the name of a size")
            if size != identifier(size):
                self.fail(x, f"the name of a size is an identifier, got {shorten(size)!r}")
            self.declare(x, size, poly(Var(size)))
        attrs: dict[str, str] = {}
        given = options.get("attrs", ast.Dict([], []))
        if not isinstance(given, ast.Dict):
            self.fail(given, "the attributes of a function are a dict of texts")
        for k, v in zip(given.keys, given.values, strict=True):
            key = self.text(k, "the key of an attribute") if k is not None else self.fail(v, "`**` is not supported here")
            if key in attrs:
                self.fail(v, f"the attribute {shorten(key)!r} stands here twice")
            attrs[key] = self.text(v, "an attribute of a function")
        return name, tuple(sorted(attrs.items()))

    def text(self, e: ast.expr, what: str) -> str:
        """A text constant; there are no names of texts in a graph function."""
        if not isinstance(e, ast.Constant):
            self.fail(e, f"{what} must be text in quotes")
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
            self.fail(s, "only G.assume(condition) may stand here alone", "Give the results of a call names.")
        at = self.arguments(call, ("condition",), 1)["condition"]
        condition = self.condition(at)
        if condition.dtype != "bool":
            self.fail(at, f"an assumption is one condition, got {condition.dtype}")
        self.assumptions.append(condition)

    def type(self, e: ast.expr) -> TensorType:
        """`G.Tensor((n, 64), "float32")`."""
        call = self.g_call(e, "Tensor")
        if call is None:
            self.fail(e, "the type of a tensor is needed here", 'Write G.Tensor((1, 64), "float32").')
        a = self.arguments(call, ("shape", "dtype"), 1)
        shape = [self.index(x) for x in self.items(a["shape"], "the shape")]
        return self.make(e, TensorType.of, shape, self.dtype(a["dtype"]) if "dtype" in a else "float32")

    # ---- statements --------------------------------------------------------------------------------------------------

    def results(self, e: ast.expr) -> tuple[Operand, ...]:
        """`x`, or `x, y`."""
        elts = e.elts if isinstance(e, ast.Tuple) else [e]
        if not elts:
            self.fail(e, "there must be at least one result")
        return tuple([self.operand(x) for x in elts])

    def statement(self, s: ast.stmt) -> tuple[Names, list[Binding]]:
        """A statement that gives names to tensors: the names, and the bindings made (none for a constant)."""
        if isinstance(s, ast.If):
            return self._if(s)
        if isinstance(s, ast.Expr):
            self.fail(s, "only names given to results, and G.assume at the top, may stand here")
        if not isinstance(s, ast.Assign) or len(s.targets) != 1:
            what = "several `=`" if isinstance(s, ast.Assign) else statement_word(s)
            self.fail(
                s, f"unsupported in a graph function: {what}", "Its statements are `y = G.relu(x)`, `if c:` with `else:`, and `return y`."
            )
        names = self._targets(s.targets[0])
        constant = self.g_call(s.value, "constant")
        if constant is not None:
            if len(names) != 1:
                self.fail(s.targets[0], "a constant has one name")
            self.declare(s.targets[0], names[0], self._constant_tensor(constant, names[0]))
            return names, []
        if not isinstance(s.value, ast.Call):
            hint = "A tensor has one name; only the last statement of a branch names what the `if` results in: `r = x`."
            self.fail(s.value, "an operation is needed here", hint)
        operation, types = self._operation(s.value)
        return names, [self._bind(s.targets[0], names, operation, types)]

    def _targets(self, e: ast.expr) -> Names:
        elts = e.elts if isinstance(e, (ast.Tuple, ast.List)) else [e]
        names = [x.id if isinstance(x, ast.Name) else self.fail(x, "a name is needed here") for x in elts]
        if not names:
            self.fail(e, "a name is needed here")
        return tuple(names)

    def _bind(self, at: ast.AST, names: Names, operation: Operation, types: Sequence[TensorType]) -> Binding:
        if len(names) != len(types):
            what = operation.operator if isinstance(operation, Call) else "this"
            self.fail(at, f"{shorten(what)} has {len(types)} results, and {len(names)} names are given to them")
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
            self.fail(s, "an `if` has an `else:`", "Both give values to the same names.")
        names, then = self._branch(s.body)
        others, otherwise = self._branch(s.orelse)
        if names != others:
            self.fail(
                s.orelse[-1],
                f"the last statements of the branches name different results: {shorten(', '.join(names))} and {shorten(', '.join(others))}",
                "Both name what the `if` results in.",
            )
        types, theirs = [[r.type for r in region.results] for region in (then, otherwise)]
        if types != theirs:
            self.fail(s.orelse[-1], f"the branches have results of different types: {types} and {theirs}")
        self.leave()
        return names, [self._bind(s, names, If(condition, then, otherwise), types)]

    def _branch(self, body: list[ast.stmt]) -> tuple[Names, Region]:
        """A branch and the names of its results, which its last statement gives: to tensors (`r = t`), or to what it binds."""
        outside = dict(self.values)
        bindings = [b for s in body[:-1] for b in self.statement(s)[1]]
        last = body[-1]
        if isinstance(last, ast.Assign) and len(last.targets) == 1 and isinstance(last.value, (ast.Name, ast.Tuple)):
            names, results = self._targets(last.targets[0]), self.results(last.value)
            if len(names) != len(results):
                self.fail(last, f"{len(results)} tensors cannot be given {len(names)} names")
        else:
            names, more = self.statement(last)
            bindings += more
            results = tuple([self.values[n] for n in names])
        self.values = outside
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
            self.fail(e.func, f"`{shorten(ast.unparse(e.func))}` is no operation", "Operators are spelled G.relu(x).")
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
        """A number, a text, a size, None, or a tuple of those."""
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
        """The float that `e` spells: `1.5`, `-1.5`, `G.inf`, `-G.inf`, `G.nan`; None when it is something else."""
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
        if dt.lanes(dtype) != 1 or dtype not in (dt.to_numpy(dtype).name, "bool"):
            self.fail(a["dtype"], f"numpy has no arrays of {dtype}, so there are no constants of it")
        if len(shape) > MAX_RANK:
            self.fail(a["shape"], f"a constant has at most {MAX_RANK} dimensions")
        data = a["data"]
        if isinstance(data, ast.Constant) and isinstance(data.value, str):
            return self._large_constant(data, data.value, name, shape, dtype)
        flat: list[bool | int | float] = []
        self._flatten(data, shape, dtype, flat)
        with np.errstate(all="ignore"):
            array = np.array(flat, dt.to_numpy(dtype))
            for x, number in zip(flat, array, strict=True):
                if np.isinf(number) and not np.isinf(x):
                    self.fail(data, f"the number {x} does not fit in {dtype}")
        return Constant(name, self.make(data, _shaped, array, shape))

    def _flatten(self, e: ast.expr, shape: tuple[int, ...], dtype: str, out: list[bool | int | float]) -> None:
        """Append the numbers in nested lists of this shape."""
        if shape:
            elts = self.items(e, "the elements of a constant")
            if len(elts) != shape[0]:
                self.fail(e, f"the shape says {shape[0]} elements here, found {len(elts)}")
            for x in elts:
                self._flatten(x, shape[1:], dtype, out)
            return
        number = self._float(e)
        if number is None:
            v = self.expr(e)
            if isinstance(v, Expr):
                self.fail(e, "an element of a constant is a number")
            number = v
        if dtype == "bool" and not isinstance(number, bool):
            self.fail(e, "an element of a bool constant is True or False")
        c: Const = self.literal(e, number, dtype)
        out.append(c.value)

    def _large_constant(self, at: ast.Constant, digest: str, name: str, shape: tuple[int, ...], dtype: str) -> Constant:
        data = self.constants.get(digest)
        if data is None:
            hint = "Give the data with parse(text, constants={digest: array})."
            self.fail(at, f"the data of the constant {shorten(digest)!r} are not given", hint)
        c = self.make(at, Constant, name, np.asarray(data))
        wanted = self.make(at, TensorType.of, shape, dtype)
        given = self.make(at, lambda: c.type)
        if given != wanted:
            self.fail(at, f"the constant {shorten(digest)!r} is {wanted} here, and its data are {given}")
        if c.digest != digest:
            self.fail(at, f"the data given for the constant {shorten(digest)!r} are others: their digest is {c.digest}")
        return c


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as e:  # extents beside a 0 that numpy does not hold
        raise ScriptError(f"numpy has no arrays of the shape {shape}: {e}") from e
