"""Print graph functions as script text with Python syntax, which `script_parser.parse` parses to an equal function.

    @G.function(sizes=("n",))
    def main(x: G.Tensor((n, 64), "float32"), c: G.Tensor((), "bool")):
        G.assume(n <= 512)
        weight = G.constant("ab12cd34ab12cd34", (64, 64), "float32")
        two = G.constant(2.0, (), "float32")
        y = G.matmul(x, weight)
        a, b = G.split(y, sizes=(32, 32), axis=1)
        z = G.call("fused_add", (a, b), G.Tensor((n, 32), "float32"), sizes=(n,))
        if c:
            t = G.relu(z)
            r = t
        else:
            r = two
        for t, h_0 in G.loop(8, r):
            step = G.row(z, index=t)
            h_1 = G.add(h_0, step)
            h, rows = h_1, step
        for s_0 in G.while_loop(h):
            bound = G.less(s_0, two)
            more = G.any(bound, axes=(0, 1))
            while more:
                s_1 = G.add(s_0, two)
                s = s_1
        m = G.read_size(count)
        e = G.full(shape=(m,), value=1.0)
        return s, rows, e

The last statement of a branch names the results of the `if`; both branches assign the same names.  The last statement of a loop names its
results: the carried values after it, and the rows of all iterations.  A `while_loop` computes its condition, and runs the block under
`while` if it holds.  Attributes with their default value are omitted.  Constants of more than 16 elements are referenced by digest; their
data are stored separately (`large_constants`).
Index arithmetic is written as in TIR scripts (`T.min(n, 64)`).
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tunesmith.graph.ir.node import (
    Attribute,
    Call,
    CallFunction,
    Constant,
    If,
    Loop,
    Operand,
    ReadSize,
    Region,
    TensorType,
    While,
    all_bindings,
    constants,
    defined_sizes,
    expressions,
)
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import conjunction
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.script.naming import Names, free_names, identifier
from tunesmith.ir.script.printer import quoted
from tunesmith.ir.script.printer_expr import ExprPrinter

if TYPE_CHECKING:
    from tunesmith.graph.ir.function import GraphFunc

WORDS = frozenset({"Tensor", "assume", "call", "constant", "function", "inf", "loop", "nan", "operator", "read_size", "while_loop"})
"""Names in `G.` that are not operators; an operator with such a name is written `G.operator("call")(x)`."""
_INLINE = 16
_WRAP = 120


def script_of(func: GraphFunc) -> str:
    """The script text of `func`."""
    return "\n".join(lines(func))


def lines(func: GraphFunc, depth: int = 0) -> list[str]:
    """The lines of the script text, indented by `depth` levels."""
    printer = _Printer()
    printer.function(func, depth)
    return printer.lines


def large_constants(func: GraphFunc) -> dict[str, np.ndarray]:
    """The constants that the text of `func` does not contain, by digest; a parser of the text needs them."""
    return {c.digest: c.data for c in constants(func.body) if _elements(c.data) is None}


class _Names(Names):
    """Unique names, never released and never `G`; efficient for thousands of requests of the same name."""

    def __init__(self) -> None:
        super().__init__()
        self._used.add("G")
        self._next: dict[str, int] = {}

    def bind(self, thing: Any) -> str:
        base = word = identifier(thing.name)
        n = self._next.get(base, 0)
        while word in self._used:
            n += 1
            word = f"{base}_{n}"
        self._next[base] = n
        self._used.add(word)
        self.name[thing] = word
        return word


class _Printer(ExprPrinter):
    """Print one function; output is appended to `lines`."""

    names: _Names

    def __init__(self) -> None:
        super().__init__(frozenset())
        self.names = _Names()
        self.lines: list[str] = []

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def function(self, f: GraphFunc, depth: int) -> None:
        """Print `f`."""
        sizes = [self.bind_var(v, size=True) for v in _sizes(f)]
        name = identifier(f.name)
        options = [] if name == f.name else [f"name={quoted(f.name)}"]
        if sizes:
            options.append(f"sizes={_tuple([quoted(s) for s in sizes])}")
        if f.attrs:
            options.append("attrs={" + ", ".join([f"{quoted(k)}: {quoted(v)}" for k, v in f.attrs]) + "}")
        self._line(depth, f"@G.function({', '.join(options)})" if options else "@G.function")
        params = [f"{self.names.bind(p)}: {self.type(p.type)}" for p in f.params]
        line = f"def {name}({', '.join(params)}):"
        if len(line) > _WRAP:
            self._line(depth, f"def {name}(")
            for p in params:
                self._line(depth + 1, f"{p},")
            line = "):"
        self._line(depth, line)
        depth += 1
        for condition in f.assumptions:
            self._line(depth, f"G.assume({self.value(condition)})")
        for c in constants(f.body):
            self._line(depth, f"{self.names.bind(c)} = {self.constant(c)}")
        self.region(f.body, depth)
        self._line(depth, f"return {self.operands(f.results)}")

    def region(self, region: Region, depth: int) -> None:
        """Print the bindings of a region."""
        for b in region.bindings:
            names = ", ".join([self.names.bind(v) for v in b.results])
            op = b.operation
            if isinstance(op, If):
                for head, inner in ((f"if {self.operand(op.condition)}:", op.then), ("else:", op.otherwise)):
                    self._line(depth, head)
                    self.region(inner, depth + 1)
                    self._line(depth + 1, f"{names} = {self.operands(inner.results)}")
            elif isinstance(op, Loop):
                targets = ", ".join([self.bind_var(op.index, size=True), *[self.names.bind(p) for p in op.params]])
                stores = [f"stores={_tuple(map(quoted, op.stores))}"] if op.stores else []
                self._line(depth, f"for {targets} in G.loop({', '.join([str(op.trips), *map(self.operand, op.initial), *stores])}):")
                self.region(op.body, depth + 1)
                self._line(depth + 1, f"{names} = {self.operands(op.body.results)}")
            elif isinstance(op, While):
                targets = ", ".join([self.names.bind(p) for p in op.params])
                self._line(depth, f"for {targets} in G.while_loop({self.operands(op.initial)}):")
                self.region(op.condition, depth + 1)
                self._line(depth + 1, f"while {self.operands(op.condition.results)}:")
                self.region(op.body, depth + 2)
                self._line(depth + 2, f"{names} = {self.operands(op.body.results)}")
            elif isinstance(op, ReadSize):
                most = "" if op.at_most is None else f", at_most={self.index(op.at_most)}"
                self._line(depth, f"{self.bind_var(op.size, size=True)} = G.read_size({self.operand(op.value)}{most})")
            else:
                types = tuple([v.type for v in b.results])
                self._line(depth, f"{names} = {self.call(op) if isinstance(op, Call) else self.call_function(op, types)}")

    # ---- operations --------------------------------------------------------------------------------------------------

    def call(self, op: Call) -> str:
        """A call of an operator, with the attributes that differ from their defaults."""
        defaults = GRAPH_OPERATORS.get(op.operator).attributes if op.operator in GRAPH_OPERATORS else {}
        given = [(key, self.attribute(v)) for key, v in op.attrs]
        options = [f"{key}={text}" for key, text in given if key not in defaults or text != self.attribute(defaults[key])]
        plain = op.operator == identifier(op.operator) and op.operator not in WORDS and not keyword.iskeyword(op.operator)
        head = f"G.{op.operator}" if plain else f"G.operator({quoted(op.operator)})"
        return f"{head}({', '.join([*map(self.operand, op.args), *options])})"

    def call_function(self, op: CallFunction, types: tuple[TensorType, ...]) -> str:
        """A call of a function of the module: name, operands, result types and sizes."""
        made = [self.type(t) for t in types]
        parts = [quoted(op.function), _tuple([self.operand(a) for a in op.args]), made[0] if len(made) == 1 else _tuple(made)]
        if op.sizes:
            parts.append(f"sizes={_tuple([self.index(s) for s in op.sizes])}")
        return f"G.call({', '.join(parts)})"

    def operand(self, o: Operand) -> str:
        """The assigned name of an operand; its own name if it is bound nowhere."""
        return self.names.name.get(o) or identifier(o.name)

    def operands(self, values: Iterable[Operand]) -> str:
        """The assigned names of several operands."""
        return ", ".join([self.operand(o) for o in values])

    def type(self, t: TensorType) -> str:
        """`G.Tensor((n, 64), "float32")`."""
        return f"G.Tensor({_tuple([self.index(e) for e in t.shape])}, {quoted(t.dtype)})"

    def constant(self, c: Constant) -> str:
        """A constant: its elements or its digest, and its type."""
        inner = _elements(c.data)
        return f"G.constant({quoted(c.digest) if inner is None else inner}, {_tuple(map(str, c.data.shape))}, {quoted(c.type.dtype)})"

    def attribute(self, value: Attribute | object) -> str:
        """An attribute, or a default value, which may be a list or the marker for required attributes."""
        if isinstance(value, (tuple, list)):
            return _tuple([self.attribute(v) for v in value])
        if isinstance(value, Poly):
            return self.index(value)
        return quoted(value) if isinstance(value, str) else _number(value)


def _sizes(f: GraphFunc) -> tuple[Var, ...]:
    """The sizes that a call binds, then the unbound sizes of an ill-formed function."""
    used = [e for p in f.params for e in p.type.shape]
    for b in all_bindings(f.body):
        op = b.operation
        used += [e for v in b.results for e in v.type.shape]
        used += op.sizes if isinstance(op, CallFunction) else expressions(tuple([v for _, v in op.attrs])) if isinstance(op, Call) else ()
    bound = f.bound_sizes
    inner = defined_sizes(f.body)
    return (*bound, *[v for v in free_names(conjunction(f.assumptions), bound, used)[0] if v not in inner])


def _tuple(items: Iterable[str]) -> str:
    parts = list(items)
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _number(x: object) -> str:
    if isinstance(x, float) and not math.isfinite(x):
        return "G.nan" if x != x else "G.inf" if x > 0 else "-G.inf"
    return repr(x)


def _elements(data: np.ndarray) -> str | None:
    """The elements of a small array as nested lists of numbers that parse back exactly; None for other arrays."""
    if data.size > _INLINE or any(e > _INLINE for e in data.shape):
        return None
    texts = np.empty(data.shape, dtype=object)
    for i, x in np.ndenumerate(data):
        text = _element(x)
        if text is None:
            return None
        texts[i] = text
    return _nested(texts.tolist())


def _nested(x: str | list[Any]) -> str:
    return x if isinstance(x, str) else f"[{', '.join([_nested(y) for y in x])}]"


def _element(x: Any) -> str | None:
    """The shortest text that parses back to the same bits as `x`; None for a NaN with a non-default payload."""
    if not isinstance(x, np.floating):
        return repr(x.item())
    if not np.isfinite(x):
        return _number(float(x)) if type(x)(float(x) if x == x else math.nan).tobytes() == x.tobytes() else None
    short = str(x)  # the shortest decimal of this type; it is parsed as float64 first, and double rounding could change the value
    return repr(float(short)) if type(x)(float(short)).tobytes() == x.tobytes() else repr(float(x))
