"""Translate sizes of exported torch programs (symbols, sympy expressions, guards, ranges) to index expressions.

torch.export represents shapes as sympy expressions with its own functions, and its guards as Python text
(`L['ids'].size()[1] == L['pos'].size()[0]`).  Both are translated by walking their trees, without evaluating foreign code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tunesmith.graph.ir.node import Operand
from tunesmith.ir.expr import Binary, Const, Expr, Not
from tunesmith.ir.poly import Poly, Var, ceildiv, evaluate, floordiv, less_than, maximum, minimum, mod, poly, product
from tunesmith.support.errors import ModelImportError


class Sizes:
    """The size symbols of an exported program and their size variables."""

    def __init__(self) -> None:
        self.variables: dict[str, Var] = {}
        self.example: dict[Var, int] = {}
        self.least: dict[str, int] = {}
        """Lower bounds that the user gave to symbols; a bound of 2 in torch's ranges may be its convention only."""
        self._linear: dict[str, tuple[Var, int, int]] = {}
        self.data: dict[str, Poly] = {}
        """Symbols whose values are read from tensors, in the region that is converted."""
        self.tensors: dict[str, Operand] = {}
        """Symbols for elements of tensors, as int64[] or float64[]."""

    @contextmanager
    def region(self) -> Iterator[None]:
        """Forget the symbols that are defined within the context: those of an inner region are not known outside."""
        kept = dict(self.data), dict(self.tensors)
        try:
            yield
        finally:
            self.data, self.tensors = kept

    def reads_data(self, *sizes: Poly) -> bool:
        """Whether one of the sizes depends on data."""
        return any(v not in self._entry for e in sizes for v in e.vars)

    @property
    def _entry(self) -> set[Var]:
        return set(self.variables.values())

    def declare(self, size: Any, name: str | None = None) -> None:
        """Create a variable for a symbol that is an input extent; no effect for numbers and compound expressions."""
        if isinstance(size, int) or not size.node.expr.is_Symbol or str(size.node.expr) in self.variables:
            return
        symbol = str(size.node.expr)
        taken = {v.name for v in self.variables.values()}
        self.variables[symbol] = Var(name if name and name not in taken else symbol)
        self._remember(self.variables[symbol], size)

    def declare_linear(self, size: Any, name: str) -> None:
        """Create a variable for an extent c * s + d of a symbol s that is no extent itself: s is (extent - d) // c."""
        if isinstance(size, int) or len(size.node.expr.free_symbols) != 1:
            return
        expr, (symbol,) = size.node.expr, size.node.expr.free_symbols
        if str(symbol) in self.variables or str(symbol) in self._linear or is_unbacked(str(symbol)) or not expr.is_polynomial(symbol):
            return
        factor, offset = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
        if not (factor.is_Integer and offset.is_Integer and int(factor) > 0 and (expr - factor * symbol - offset).expand() == 0):
            return
        made = Var(name)
        self.variables[name] = made
        self._linear[str(symbol)] = (made, int(factor), int(offset))
        self._remember(made, size)

    def _remember(self, variable: Var, size: Any) -> None:
        if size.node.hint is not None:
            self.example[variable] = int(size.node.hint)

    def divided(self) -> list[str]:
        """The sizes that are computed from extents by a division, for error messages."""
        return [f"{floordiv(poly(v) - d, poly(c))}, of an input with the extent {v.name}" for v, c, d in self._linear.values() if c > 1]

    def bound_to(self, symbol: Any) -> tuple[Var, int, int] | None:
        """The variable of a symbol s, and the numbers c and d for which the variable is c * s + d; None if the symbol has no variable."""
        found = self.variables.get(str(symbol))
        return self._linear.get(str(symbol)) if found is None else (found, 1, 0)

    def poly(self, size: Any) -> Poly:
        """A torch size (int or SymInt) as an index expression; ModelImportError if it depends on data."""
        return poly(int(size)) if isinstance(size, int) else self.of_sympy(size.node.expr)

    def is_negative(self, size: Poly) -> bool:
        """Whether a size is negative for the example inputs; torch decides by these during tracing and adds guards."""
        return evaluate(size, self.example) < 0 if size.const is None else size.const < 0

    def of_sympy(self, expr: Any) -> Poly:
        """A sympy integer expression as an index expression."""
        if expr.is_Integer:
            return poly(int(expr))
        expr = self._in_extents(expr)
        if expr.is_Symbol:
            if str(expr) in self.data:
                return self.data[str(expr)]
            bound = self.bound_to(expr)
            if bound is None:
                raise ModelImportError(_unbound(str(expr)))
            return floordiv(poly(bound[0]) - bound[2], poly(bound[1]))
        kind = type(expr).__name__
        if kind in _ROUNDED and type(expr.args[0]).__name__ == "IntTrueDiv":
            return _ROUNDED[kind](*[self.of_sympy(a) for a in expr.args[0].args])
        if kind not in _ARITHMETIC:
            raise ModelImportError(f"the size {expr} contains {kind}, which index expressions do not support")
        return _ARITHMETIC[kind](*[self.of_sympy(a) for a in expr.args])

    def _in_extents(self, expr: Any) -> Any:
        """An expression with symbols replaced by the extents that they are linear in, if this leaves no fractions: 4 h is 2 (2 h)."""
        for symbol in [s for s in expr.free_symbols if str(s) in self._linear]:
            variable, factor, offset = self._linear[str(symbol)]
            made = expr.subs(symbol, (symbol.func(variable.name, integer=True) - offset) / factor).expand()
            if not any(number.is_Rational and not number.is_Integer for number in made.atoms()):
                expr = made
        return expr

    def condition(self, expr: Any) -> Expr:
        """A sympy condition on sizes as an expression."""
        kind = type(expr).__name__
        if kind in ("BooleanTrue", "BooleanFalse"):
            return Const(kind == "BooleanTrue", "bool")
        if kind in _RELATIONS:
            return relation(_RELATIONS[kind], *[self.of_sympy(a) for a in expr.args])
        if kind in ("And", "Or", "Not"):
            return logic(kind, [self.condition(a) for a in expr.args])
        raise ModelImportError(f"the condition {expr} is not a condition on sizes")

    def range_conditions(self, ranges: Mapping[Any, Any]) -> list[Expr]:
        """Conditions from symbol ranges.  torch traces with sizes >= 2, and accepts 0 and 1 all the same, as its own input check does:
        a lower bound of 2 counts if the user gave it.  `small_size_conditions` excludes the small sizes at which the program fails."""
        found = []
        for variable, factor, offset in self._linear.values():
            found.append(relation("eq", mod(poly(variable) - offset, poly(factor)), poly(0)))
            found.append(relation("ge", poly(variable), poly(offset)))
        for symbol in sorted(ranges, key=str):
            if not symbol.is_Symbol or self.bound_to(symbol) is None:
                continue
            size, least, most = self.of_sympy(symbol), self.least_of(symbol, ranges), ranges[symbol].upper
            if least > 0:
                found.append(relation("ge", size, poly(least)))
            if most.is_Integer and int(most) < 2**31:
                found.append(relation("le", size, poly(int(most))))
        return found

    def least_of(self, symbol: Any, ranges: Mapping[Any, Any]) -> int:
        """The lower bound of a symbol without the convention that sizes are at least 2."""
        bound = max(int(ranges[symbol].lower), 0)
        return max(bound if bound != 2 else 0, self.least.get(str(symbol), 0))

    def guard(self, text: str, inputs: Mapping[str, Any]) -> Expr:
        """The condition of a torch.export guard.

        Args:
            text: Python expression over `L`, the arguments of `forward` by name.
            inputs: the value of `L`, with each tensor replaced by the tuple of its extents.
        Raises:
            ModelImportError: the guard is not a condition on sizes.
        """
        made = _Guard(text, inputs).value(ast.parse(text, mode="eval").body)
        if isinstance(made, bool):
            return Const(made, "bool")
        if not isinstance(made, Expr) or isinstance(made, Poly):
            raise _no_guard(text)
        return made


def _unbound(symbol: str) -> str:
    if is_unbacked(symbol):
        return "a size in it depends on data in a way that is not supported; use torch.where"
    return f"the size {symbol} is not itself the extent of an input; add an input with this extent, or make the others multiples of it"


def is_unbacked(symbol: str) -> bool:
    """Whether a torch symbol stands for a number computed from data."""
    return symbol.startswith(("u", "zu"))


def _power(base: Poly, exponent: Poly) -> Poly:
    if exponent.const is None or exponent.const < 0:
        raise ModelImportError(f"the size {base}**{exponent} has an exponent that is not a natural number")
    return product([base] * exponent.const)


def _add(*terms: Poly) -> Poly:
    return sum(terms, poly(0))


_ARITHMETIC: dict[str, Callable[..., Poly]] = {
    "Add": _add,
    "Mul": lambda *xs: product(xs),
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "CeilDiv": ceildiv,
    "Mod": mod,
    "PythonMod": mod,
    "Max": maximum,
    "Min": minimum,
    "Pow": _power,
    "PowByNatural": _power,
    "ModularIndexing": lambda x, d, m: mod(floordiv(x, d), m),
    "Identity": lambda x: x,
}
_ROUNDED: dict[str, Callable[..., Poly]] = {"TruncToInt": floordiv, "FloorToInt": floordiv, "CeilToInt": ceildiv}
_RELATIONS = {
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
}


def relation(op: str, a: Poly, b: Poly) -> Expr:
    """The condition `a op b` for an operator of `_RELATIONS`."""
    if op in ("eq", "ne"):
        distance = (a - b).const
        if distance is not None:
            return Const((distance == 0) == (op == "eq"), "bool")
        both = Binary("and", less_than(a, b + 1), less_than(b, a + 1))
        return both if op == "eq" else Not(both)
    return {
        "lt": lambda: less_than(a, b),
        "le": lambda: less_than(a, b + 1),
        "gt": lambda: less_than(b, a),
        "ge": lambda: less_than(b, a + 1),
    }[op]()


def logic(kind: str, parts: Sequence[Expr]) -> Expr:
    """The conjunction (And), disjunction (Or) or negation (Not) of conditions, folded where constants determine it."""
    if kind == "Not":
        (part,) = parts
        return Const(not part.value, "bool") if isinstance(part, Const) else Not(part)
    deciding = kind == "Or"  # the value of a part that determines the result
    if any(isinstance(p, Const) and p.value == deciding for p in parts):
        return Const(deciding, "bool")
    rest = [p for p in parts if not isinstance(p, Const)]
    if not rest:
        return Const(not deciding, "bool")
    made = rest[0]
    for part in rest[1:]:
        made = Binary(kind.lower(), made, part)
    return made


def _no_guard(text: str) -> ModelImportError:
    return ModelImportError(
        f"torch.export assumed `{text}`, which is not a condition on input sizes and cannot be checked at run time."
        " Trace with a model that does not depend on it, or give the size a fixed value in dynamic_shapes"
    )


class _Guard:
    """Evaluator for the text of one guard."""

    def __init__(self, text: str, inputs: Mapping[str, Any]) -> None:
        self.text, self.inputs = text, inputs

    def value(self, node: ast.expr) -> Any:
        """The value of an expression: a bool, a condition, a size, or an element of the inputs."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value if isinstance(node.value, bool) else poly(node.value)
        if isinstance(node, ast.Subscript):
            return self._path(node)
        if isinstance(node, ast.BoolOp):
            return logic(type(node.op).__name__, [self._condition(v) for v in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return logic("Not", [self._condition(node.operand)])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._size(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op).__name__ in _OPERATIONS:
            return _OPERATIONS[type(node.op).__name__](self._size(node.left), self._size(node.right))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise _no_guard(self.text)

    def _comparison(self, node: ast.Compare) -> Expr:
        values = [self._size(n) for n in (node.left, *node.comparators)]
        ops = [_COMPARISONS.get(type(op).__name__) for op in node.ops]
        if None in ops:
            raise _no_guard(self.text)
        return logic("And", [relation(str(op), a, b) for op, a, b in zip(ops, values[:-1], values[1:], strict=True)])

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and not node.args:
            return self.value(node.func.value)  # inputs hold tensors as tuples of extents
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        make = _ARITHMETIC.get({"max": "Max", "min": "Min"}.get(name, name))
        if make is None:
            raise _no_guard(self.text)
        return make(*[self._size(a) for a in node.args])

    def _path(self, node: ast.Subscript) -> Any:
        """`L['x'][0]`; elements of `*args` are also named `args_0`, elements of `**kwargs` by their keywords."""
        key = node.slice.value if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, (str, int)) else None
        if isinstance(node.value, ast.Name) and node.value.id == "L":
            return self.inputs.get(str(key), _VariadicArgument(str(key)))
        of = self.value(node.value)
        if isinstance(of, _VariadicArgument):
            found = self.inputs.get(f"{of.name}_{key}", self.inputs.get(str(key)))
            if found is not None:
                return found
        try:
            return of[key]
        except (LookupError, TypeError):
            raise _no_guard(self.text) from None

    def _size(self, node: ast.expr) -> Poly:
        made = self.value(node)
        if not isinstance(made, (Poly, int)):
            raise _no_guard(self.text)
        return poly(made)

    def _condition(self, node: ast.expr) -> Expr:
        made = self.value(node)
        if isinstance(made, Expr) and not isinstance(made, Poly):
            return made
        if isinstance(made, bool):
            return Const(made, "bool")
        raise _no_guard(self.text)


class _VariadicArgument:
    """A variadic argument, `*args` or `**kwargs`, whose name is not in the program."""

    def __init__(self, name: str) -> None:
        self.name = name


_OPERATIONS: dict[str, Callable[[Poly, Poly], Poly]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mult": lambda a, b: a * b,
    "FloorDiv": floordiv,
    "Mod": mod,
    "Pow": _power,
}
_COMPARISONS = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
