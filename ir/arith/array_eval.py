"""Evaluate polynomials over Params for arrays of configurations, compiled once and vectorized over rows.

A configuration of a sketch is a row of integers and a constraint is a polynomial over its columns, so that the legality of a population is
array arithmetic.  Values are exact in int64; common subexpressions are computed once; rows are processed in chunks, so that temporaries
stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce

import numpy as np

from tunesmith.ir.poly import Atom, Op, Param, Poly
from tunesmith.support.array_types import Int64Array, IntArray
from tunesmith.support.errors import ScriptError

Values = Int64Array

CHUNK = 4096
"""Rows per chunk: a temporary is 32 KB."""

_UFUNCS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def compile_polys(polys: Sequence[Poly], params: Sequence[Param]) -> Callable[[IntArray], Values]:
    """Compile a function that evaluates all of `polys` for every row.

    Args:
        polys: expressions over Params only; all their values and intermediate values must fit into 63 bits.
        params: the columns of a row, in order.

    Returns:
        A thread-safe function from rows, integers [N, len(params)], to values, int64 [N, len(polys)].  A division by 0 gives 0.

    Raises:
        ScriptError: an expression contains a loop variable, or a Param that is not a column.  The function raises it for rows of another
            width.
    """
    code = _ValueNumbering(params)
    roots = [code.poly(p) for p in polys]
    return _SlotProgram(code, roots)


class _ValueNumbering:
    """Value numbering: each distinct operation on the same operands has one number.

    `steps[i]` computes value i: ("column", j), ("const", c), or (op, a, b) on earlier values.
    """

    def __init__(self, params: Sequence[Param]) -> None:
        self.columns: dict[Atom, int] = {p: j for j, p in enumerate(params)}
        self.steps: list[tuple[str, int, int]] = []
        self._number: dict[tuple[str, int, int], int] = {}
        self._memo: dict[Poly, int] = {}

    def value(self, op: str, a: int, b: int = 0) -> int:
        """The number of an operation.  Operands of commutative operations are sorted; operations on two constants are folded."""
        if op in _UFUNCS and a > b:
            a, b = b, a
        if op not in ("const", "column") and self.steps[a][0] == "const" and self.steps[b][0] == "const":
            return self.value("const", _fold(op, self.steps[a][1], self.steps[b][1]))
        key = (op, a, b)
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self.steps)
            self.steps.append(key)
        return found

    def poly(self, p: Poly) -> int:
        done = self._memo.get(p)
        if done is not None:
            return done
        total: int | None = None
        for monomial, c in p.terms:
            term: int | None = None
            for atom in monomial:
                x = self.atom(atom, p)
                term = x if term is None else self.value("mul", term, x)
            k = self.value("const", c)
            term = k if term is None else term if c == 1 else self.value("mul", term, k)
            total = term if total is None else self.value("add", total, term)
        out = self.value("const", 0) if total is None else total
        self._memo[p] = out
        return out

    def atom(self, a: Atom, where: Poly) -> int:
        if type(a) is Op:
            return reduce(partial(self.value, a.op), [self.poly(x) for x in a.args])
        if a not in self.columns:
            known = ", ".join(p.name for p in self.columns if isinstance(p, Param)) or "none"
            raise ScriptError(
                f"{where!r} contains {a!r}, which is not a column of the rows; columns are {known}. Only Params can be evaluated for rows"
            )
        return self.value("column", self.columns[a])


def _fold(op: str, a: int, b: int) -> int:
    if op == "add":
        return a + b
    if op == "mul":
        return a * b
    if op == "min" or op == "max":
        return min(a, b) if op == "min" else max(a, b)
    if b == 0:
        return 0
    return a // b if op == "floordiv" else a % b if op == "mod" else -(-a // b)


class _SlotProgram:
    """The live steps in order, with a slot for each value; slots are reused after the last use of their value."""

    def __init__(self, code: _ValueNumbering, roots: list[int]) -> None:
        self.width = len(code.columns)
        self.roots = roots
        needed = live(roots, lambda i: _operands(code.steps[i]))
        last = {x: i for i in needed for x in _operands(code.steps[i])}
        last.update(dict.fromkeys(roots, len(code.steps)))
        self.constant = {i: code.steps[i][1] for i in needed if code.steps[i][0] == "const"}
        self.slot: dict[int, int] = {}
        self.order: list[tuple[str, int, int, int]] = []
        free: list[int] = []
        count = 0
        for i in needed:
            op, a, b = code.steps[i]
            if op == "const":
                continue
            if free:
                self.slot[i] = free.pop()
            else:
                self.slot[i] = count
                count += 1
            self.order.append((op, i, a, b))
            # Released after the result has its slot: the result must not overwrite an operand, because ceildiv reads its operands twice.
            free.extend(self.slot[x] for x in sorted(set(_operands(code.steps[i]))) if last[x] == i and x in self.slot)
        self.slots = count

    def __call__(self, rows: IntArray) -> Values:
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise ScriptError(f"expected rows of {self.width} columns, [N, {self.width}], got an array of shape {list(rows.shape)}")
        n = len(rows)
        out = np.empty((len(self.roots), n), np.int64)
        store = np.empty((self.slots, min(n, CHUNK)), np.int64)
        with np.errstate(divide="ignore"):
            for low in range(0, n, CHUNK):
                high = min(low + CHUNK, n)
                self._chunk(rows[low:high], store[:, : high - low], out[:, low:high])
        # Column-major, so that a test of one column reads contiguous memory.
        return out.T

    def _chunk(self, rows: IntArray, store: Values, out: Values) -> None:
        slot, constant = self.slot, self.constant
        for op, i, a, b in self.order:
            to = store[slot[i]]
            if op == "column":
                to[:] = rows[:, a]
                continue
            x = constant[a] if a in constant else store[slot[a]]
            y = constant[b] if b in constant else store[slot[b]]
            if op == "floordiv":
                np.floor_divide(x, y, out=to)
            elif op == "mod":
                np.remainder(x, y, out=to)
            elif op == "ceildiv":
                np.negative(x, out=to)
                np.floor_divide(to, y, out=to)
                np.negative(to, out=to)
            else:
                _UFUNCS[op](x, y, out=to)
        for k, r in enumerate(self.roots):
            out[k] = constant[r] if r in constant else store[slot[r]]


def _operands(step: tuple[str, int, int]) -> tuple[int, ...]:
    return () if step[0] in ("const", "column") else step[1:]


def live(roots: Iterable[int], operands: Callable[[int], Iterable[int]]) -> list[int]:
    """The numbers of the values that `roots` depend on, ascending: operands before users, if users have the higher numbers."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack.extend(operands(i))
    return sorted(seen)
