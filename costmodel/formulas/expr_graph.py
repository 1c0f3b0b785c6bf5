"""Build hash-consed expression graphs over the Params of a sketch, evaluated for a million configurations.

Features and analytic costs of a candidate are formulas over its row of integers.  They are written with ordinary operators on `Num`,
and equal subexpressions become one node.  A graph becomes bytecode that a vector machine in LLVM code interprets
(codegen/vector_vm/compile.py), or is interpreted by numpy here, as the reference and the fallback.  Values are float64, in which integers
below 2**53 are exact, so that ceil-divisions are too.  Truth values are 1.0 and 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np

from tunesmith.ir.arith.array_eval import live
from tunesmith.ir.poly import Atom, Op, Param, Poly
from tunesmith.support.array_types import Float64Array, IntArray
from tunesmith.support.errors import InternalError, UserError

Node = tuple[str, tuple[float, ...]]
"""("const", (value,)), ("param", (column,)), or an operation on the indices of earlier nodes."""
Rows = IntArray

OPERATIONS = ("add", "sub", "mul", "div", "min", "max", "gt", "eq", "where", "floordiv", "ceildiv", "mod", "slog2")
"""slog2(x) is log2(x + 1), Ansor's logarithm of counts; where(c, a, b) is a if c > 0."""

_COMMUTATIVE = frozenset({"add", "mul", "min", "max", "eq"})
CHUNK = 2048
"""Rows per chunk in numpy: a temporary takes 16 KB, so that a hundred live ones stay in the L2 cache."""


class Num:
    """A node of a graph, with operators; Python numbers as operands become constants."""

    __slots__ = ("dag", "id")

    def __init__(self, dag: Dag, id: int) -> None:
        self.dag = dag
        self.id = id

    @property
    def const(self) -> float | None:
        """The value of a constant, else None."""
        op, args = self.dag.nodes[self.id]
        return args[0] if op == "const" else None

    def __add__(self, other: Num | float) -> Num:
        return self.dag.make("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Num | float) -> Num:
        return self.dag.make("sub", self, other)

    def __rsub__(self, other: float) -> Num:
        return self.dag.make("sub", other, self)

    def __mul__(self, other: Num | float) -> Num:
        return self.dag.make("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Num | float) -> Num:
        return self.dag.make("div", self, other)

    def __rtruediv__(self, other: float) -> Num:
        return self.dag.make("div", other, self)

    def __gt__(self, other: Num | float) -> Num:
        """1 if self > other."""
        return self.dag.make("gt", self, other)

    def __lt__(self, other: Num | float) -> Num:
        """1 if self < other."""
        return self.dag.make("gt", other, self)

    def __bool__(self) -> bool:
        raise InternalError("a node of a graph has no truth value: use dag.where(condition, a, b)")

    def __repr__(self) -> str:
        return f"Num({self.dag.nodes[self.id]})"


class Dag:
    """An expression graph over the columns of a configuration table; nodes are added on demand.

    Args:
        params: the columns.
    """

    def __init__(self, params: Sequence[Param]) -> None:
        self.params = tuple(params)
        self.nodes: list[Node] = []
        self._columns: dict[Atom, int] = {p: j for j, p in enumerate(self.params)}
        self._number: dict[Node, int] = {}
        self._made: dict[tuple[object, ...], Num] = {}
        self._constants: dict[float, int] = {}
        self._polys: dict[Poly, Num] = {}
        self._truths: set[int] = set()
        self.zero, self.one = self.const(0.0), self.const(1.0)
        self._truths |= {self.zero.id, self.one.id}

    def const(self, value: float) -> Num:
        """A constant."""
        made = self._node("const", (float(value),))
        self._constants[value] = made.id
        return made

    def make(self, op: str, *operands: Num | float) -> Num:
        """An operation, folded if all operands are constants or an identity applies."""
        ids = [x.id if isinstance(x, Num) else self._constants.get(x) or self.const(x).id for x in operands]
        key = (op, *ids)
        known = self._made.get(key)  # most requests are repeated
        if known is None:
            known = self._made[key] = self._make(op, [Num(self, i) for i in ids])
        return known

    def _make(self, op: str, xs: list[Num]) -> Num:
        values = [x.const for x in xs]
        if all(v is not None for v in values):
            return self.const(_apply(op, values))  # type: ignore[arg-type]
        known = self._identity(op, xs, values)
        if known is not None:
            return known
        ids = [x.id for x in xs]
        if op in _COMMUTATIVE:
            ids.sort()
        out = self._node(op, tuple(ids))
        if (
            op in ("gt", "eq")
            or (op in ("mul", "max", "min") and self._truths.issuperset(ids))
            or (op == "sub" and values[0] == 1 and ids[1] in self._truths)
        ):
            self._truths.add(out.id)
        return out

    def _identity(self, op: str, xs: list[Num], values: list[float | None]) -> Num | None:
        """The operand or constant that the operation is trivially equal to, else None."""
        a, b = xs[0], xs[-1]
        x, y = values[0], values[-1]
        if op == "mul":
            return b if x == 1 else a if y == 1 else self.zero if x == 0 or y == 0 else None
        if op == "add":
            return b if x == 0 else a if y == 0 else None
        if op == "sub":
            return a if y == 0 else self.zero if a.id == b.id else None
        if op in ("div", "floordiv", "ceildiv"):
            return a if y == 1 and op == "div" else self.zero if x == 0 else None
        if op == "where":
            return (xs[1] if x > 0 else xs[2]) if x is not None else xs[1] if xs[1].id == xs[2].id else None
        if op in ("min", "max"):
            return a if a.id == b.id else self._truth_bound(op, a, b)
        return None

    def _truth_bound(self, op: str, a: Num, b: Num) -> Num | None:
        """min or max of a truth value and 0 or 1."""
        for t, c in ((a, b), (b, a)):
            if t.id in self._truths and c.const in (0.0, 1.0):
                return t if (op == "max") == (c.const == 0.0) else c
        return None

    def _node(self, op: str, args: tuple[float, ...]) -> Num:
        key = (op, args)
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self.nodes)
            self.nodes.append(key)
        return Num(self, found)

    def minimum(self, a: Num | float, b: Num | float) -> Num:
        """Minimum of two values."""
        return self.make("min", a, b)

    def maximum(self, a: Num | float, b: Num | float) -> Num:
        """Maximum of two values."""
        return self.make("max", a, b)

    def where(self, condition: Num, a: Num | float, b: Num | float) -> Num:
        """`a` if condition > 0, else `b`."""
        return self.make("where", condition, a, b)

    def equal(self, a: Num | float, b: Num | float) -> Num:
        """1 if a == b."""
        return self.make("eq", a, b)

    def floordiv(self, a: Num | float, b: Num | float) -> Num:
        """a // b."""
        return self.make("floordiv", a, b)

    def ceildiv(self, a: Num | float, b: Num | float) -> Num:
        """ceil(a / b)."""
        return self.make("ceildiv", a, b)

    def slog2(self, a: Num) -> Num:
        """log2(a + 1), a >= 0."""
        return self.make("slog2", a)

    def product(self, xs: Sequence[Num]) -> Num:
        """The product; 1 if empty."""
        out = self.one
        for x in xs:
            out = out * x
        return out

    def total(self, xs: Sequence[Num]) -> Num:
        """The sum; 0 if empty."""
        out = self.zero
        for x in xs:
            out = out + x
        return out

    def largest(self, xs: Sequence[Num]) -> Num:
        """The maximum of values >= 0; 0 if empty."""
        out = self.zero
        for i, x in enumerate(xs):
            out = x if i == 0 else self.maximum(out, x)
        return out

    def poly(self, p: Poly) -> Num:
        """An index expression over Params only.

        Raises:
            UserError: it contains a loop variable, or a Param that is not a column.
        """
        done = self._polys.get(p)
        if done is None:
            done = self.zero
            for monomial, c in p.terms:
                term = self.product([self._atom(a, p) for a in monomial])
                done = done + term * c if c > 0 else done - term * -c
            self._polys[p] = done
        return done

    def _atom(self, a: Atom, where: Poly) -> Num:
        if type(a) is Op:
            return reduce(partial(self.make, a.op), [self.poly(x) for x in a.args])
        if a not in self._columns:
            raise UserError(
                f"the expression {where!r} contains {a!r}, which is not a column of this sketch "
                f"(columns: {', '.join(p.name for p in self.params) or 'none'}); pass every Param of the program in `params`"
            )
        return self._node("param", (float(self._columns[a]),))

    def live(self, roots: Sequence[Num]) -> list[int]:
        """The nodes that `roots` depend on, operands before users."""
        return live([r.id for r in roots], lambda i: _operands(self.nodes[i]))


def _operands(node: Node) -> tuple[int, ...]:
    return () if node[0] in ("const", "param") else node[1]  # type: ignore[return-value]


def _apply(op: str, v: list[float]) -> float:
    """An operation on numbers, with the semantics of the array operation."""
    if op in _ON_FLOATS:
        return _ON_FLOATS[op](*v)
    if op == "where":
        return v[1] if v[0] > 0 else v[2]
    if op == "slog2":
        return math.log2(v[0] + 1)
    if v[1] == 0:
        return 0.0
    if op == "div":
        return v[0] / v[1]
    return float(
        math.floor(v[0] / v[1])
        if op == "floordiv"
        else math.ceil(v[0] / v[1])
        if op == "ceildiv"
        else v[0] - math.floor(v[0] / v[1]) * v[1]
    )


_ON_FLOATS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "gt": lambda a, b: float(a > b),
    "eq": lambda a, b: float(a == b),
}
_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


class NumpyProgram:
    """Interpreter of graph roots over whole arrays: the reference for the vector machine.

    Args:
        dag: the graph.
        roots: nodes to evaluate.
    """

    def __init__(self, dag: Dag, roots: Sequence[Num]) -> None:
        self.width = len(dag.params)
        self.roots = [r.id for r in roots]
        self.constants = {i: dag.nodes[i][1][0] for i in dag.live(roots) if dag.nodes[i][0] == "const"}
        order = [i for i in dag.live(roots) if i not in self.constants]
        last = {x: i for i in order for x in _operands(dag.nodes[i])}
        last.update(dict.fromkeys(self.roots, len(dag.nodes)))
        self.slot: dict[int, int] = {}
        self.steps: list[tuple[str, int, tuple[int, ...]]] = []
        free: list[int] = []
        self.slots = 0
        for i in order:
            if not free:
                free.append(self.slots)
                self.slots += 1
            self.slot[i] = free.pop()
            op, args = dag.nodes[i]
            self.steps.append((op, self.slot[i], tuple(int(a) for a in args)))
            # Freed after the result has its slot, because some operations write it before reading all operands.
            free.extend(self.slot[x] for x in sorted(set(_operands(dag.nodes[i]))) if last[x] == i and x in self.slot)

    def __call__(self, rows: Rows) -> Float64Array:
        """Values of the roots, float64 [len(roots), N], for rows [N, P]."""
        out = np.empty((len(self.roots), len(rows)))
        store = np.empty((self.slots, min(len(rows), CHUNK)))
        with np.errstate(all="ignore"):  # inadmissible rows may divide by 0
            for low in range(0, len(rows), CHUNK):
                part = rows[low : low + CHUNK]
                self._chunk(part, store[:, : len(part)], out[:, low : low + CHUNK])
        return out

    def _chunk(self, rows: Rows, store: Float64Array, out: Float64Array) -> None:
        def value(i: int) -> Float64Array | float:
            return self.constants[i] if i in self.constants else store[self.slot[i]]

        for op, slot, args in self.steps:
            to = store[slot]
            if op == "param":
                to[:] = rows[:, args[0]]
                continue
            x = [value(a) for a in args]
            if op in _UFUNCS:
                _UFUNCS[op](*x, out=to)
            elif op == "gt" or op == "eq":
                to[:] = x[0] > x[1] if op == "gt" else x[0] == x[1]
            elif op == "where":
                to[:] = np.where(x[0] > 0, x[1], x[2])
            elif op == "slog2":
                np.add(x[0], 1.0, out=to)
                np.log2(to, out=to)
            else:
                np.divide(x[0], x[1], out=to)
                (np.ceil if op == "ceildiv" else np.floor)(to, out=to)
                if op == "mod":
                    np.multiply(to, x[1], out=to)
                    np.subtract(x[0], to, out=to)
        for k, r in enumerate(self.roots):
            out[k] = value(r)
