"""Evaluate a described program directly, statement by statement, and track which elements are initialised.

Independent of the parser, the IR and the interpreter: only `program.py` and `numbers.py` are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunesmith.support.seeds import stream
from tunesmith.testing.program_fuzz import numbers
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.numbers import FLOATS, Undecided

Env = dict[str, int]
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Memory:
    """A buffer: elements in row-major order, error bounds (for floats), and whether each is initialised."""

    dtype: str
    shape: tuple[int, ...]
    values: list[Any]
    errors: list[float]
    known: bytearray

    def copy(self) -> Memory:
        """A copy."""
        return Memory(self.dtype, self.shape, list(self.values), list(self.errors), bytearray(self.known))

    def offset(self, indices: tuple[int, ...]) -> int:
        """Flat offset of an element."""
        at = 0
        for i, n in zip(indices, self.shape, strict=True):
            if not 0 <= i < n:
                raise Undecided("out of bounds")
            at = at * n + i
        return at

    def array(self) -> Array:
        """The elements as a numpy array, bfloat16 as float32."""
        return np.array(self.values, storage(self.dtype)).reshape(self.shape)

    def bound(self) -> Array:
        """The error bounds."""
        return np.array(self.errors or [0.0] * len(self.values)).reshape(self.shape)


def storage(dtype: str) -> str:
    """The numpy type that stores a type."""
    return "float32" if dtype == "bfloat16" else dtype


@dataclass(slots=True)
class State:
    """Memory of all buffers during one call."""

    sizes: Env
    memory: dict[str, Memory] = field(default_factory=dict)
    steps: int = 0

    def copy(self) -> State:
        """A copy."""
        return State(dict(self.sizes), {k: m.copy() for k, m in self.memory.items()}, self.steps)


MAX_STEPS = 20_000
"""Maximum number of block instances of a program."""


def start(program: p.Program, binding: tuple[int, ...], seed: int) -> State:
    """The state before a call."""
    state = State(dict(zip(program.sizes, binding, strict=True)))
    for b in program.buffers:
        declare(state, b, seed)
    return state


def declare(state: State, b: p.Buffer, seed: int) -> None:
    """Add a buffer with its contents before the call."""
    shape = tuple([index(e, state.sizes) for e in b.shape])
    count = int(np.prod(shape, dtype=np.int64))
    if b.role == "scratch":
        state.memory[b.name] = Memory(b.dtype, shape, [0] * count, [0.0] * count if b.dtype in FLOATS else [], bytearray(count))
        return
    values = initial(b, shape, seed)
    errors = [0.0] * count if b.dtype in FLOATS else []
    state.memory[b.name] = Memory(b.dtype, shape, values.reshape(-1).tolist(), errors, bytearray(b"\1") * count)


def initial(b: p.Buffer, shape: tuple[int, ...], seed: int) -> Array:
    """Contents of a parameter before the call."""
    rng = stream(seed, "program_fuzz.data", b.name)
    kind = storage(b.dtype)
    if b.data == "index":
        return rng.integers(0, b.bound, shape).astype(kind)
    if b.dtype == "bool":
        return rng.integers(0, 2, shape).astype(kind)
    if b.dtype in FLOATS:
        values = rng.integers(-4, 5, shape).astype("float64")
        if b.data == "fractions":
            values = values + rng.integers(0, 8, shape) / 8
        elif b.data in ("tiny", "huge"):
            least, most = numbers.EXPONENTS[b.dtype]
            scale = 2.0 ** (least - 4) if b.data == "tiny" else 2.0 ** (most - 4)
            low, high = (8, 16) if b.data == "huge" else (1, 4)  # reciprocals are denormal for huge, infinite for tiny
            values = rng.integers(low, high, shape) * scale * rng.choice([-1.0, 1.0], shape)
        elif b.data == "wild":
            tiny = float(np.finfo(kind).tiny) if b.dtype != "bfloat16" else 2.0**-126
            odd = [tiny / 4, -tiny / 8, tiny, 0.1, -1e-3, 3.0, 250.0, -0.0, tiny * 3]
            values = np.where(rng.random(shape) < 0.7, np.array(odd)[rng.integers(0, len(odd), shape)], values)
        rounded = [numbers.rounded(float(x), b.dtype) for x in values.reshape(-1)]
        return np.array(rounded, kind).reshape(shape)
    low, high = numbers.limits(b.dtype)
    small = rng.integers(max(low, -7), 8, shape)
    if b.data != "wild":
        return small.astype(kind)
    odd_ints = [low, high, low + 1, high - 1, 0, high // 2 + 3, max(low, -1), max(low, -2), 100]
    picked = [odd_ints[int(i)] for i in rng.integers(0, len(odd_ints), int(np.prod(shape)))]
    wild = np.array(picked, kind).reshape(shape)
    return np.where(rng.random(shape) < 0.6, wild, small.astype(kind))


def run(program: p.Program, binding: tuple[int, ...], seed: int) -> State:
    """The state after a call.  Raises Undecided if the program has no unique result."""
    state = start(program, binding, seed)
    for n in program.body:
        nest(n, state)
    return state


def nest(n: p.Nest, state: State) -> None:
    """Execute a loop nest."""
    _nest(n, dict(state.sizes), state)


def _nest(n: p.Nest, env: Env, state: State) -> None:
    if isinstance(n, p.Loop):
        for i in range(index(n.extent, env)):
            env[n.var] = i
            for m in n.body:
                _nest(m, env, state)
        return
    state.steps += 1
    if state.steps > MAX_STEPS:
        raise Undecided("too many steps")
    if not all(value(c, env, state) for c in n.under):
        return
    for g in n.guards:
        if not numbers.compare(g.op, index(g.a, env), index(g.b, env)):
            return
    inner = dict(state.sizes)
    first = True
    for a in n.axes:
        v = inner[a.name] = index(a.binding, env)
        if not 0 <= v < index(a.extent, env):
            raise Undecided("binding out of range")
        first = first and (a.kind == "S" or v == 0)
    if n.init and first:
        _statements(n.init, inner, state)
    _statements(n.body, inner, state)


def _statements(body: tuple[p.Statement, ...], env: Env, state: State) -> None:
    for s in body:
        if isinstance(s, p.If):
            _statements(s.then if value(s.cond, env, state) else s.orelse, env, state)
            continue
        v = value(s.value, env, state)
        m = state.memory[s.buffer]
        at = m.offset(tuple([index(i, env) for i in s.indices]))
        if type(v) is tuple:
            m.values[at], m.errors[at] = v
        else:
            m.values[at] = v
        m.known[at] = 1


def index(e: p.Index, env: Mapping[str, int]) -> int:
    """The value of an index expression."""
    if type(e) is p.Name:
        return env[e.name]
    if type(e) is p.Num:
        return e.value
    assert type(e) is p.Arith
    a, b = index(e.a, env), index(e.b, env)
    op = e.op
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if op in ("//", "%"):
        if b <= 0:
            raise Undecided("index division by zero or less")
        return a // b if op == "//" else a % b
    return min(a, b) if op == "min" else max(a, b)


def value(e: p.Value, env: Env, state: State) -> Any:
    """The value of an expression: bool, int, or (float, error)."""
    return _VALUES[type(e)](e, env, state)


def _literal(e: p.Literal, env: Env, state: State) -> Any:
    return (numbers.rounded(float(e.value), e.dtype), 0.0) if e.dtype in FLOATS else e.value


def _load(e: p.Load, env: Env, state: State) -> Any:
    m = state.memory[e.buffer]
    at = m.offset(tuple([index(i, env) for i in e.indices]))
    if not m.known[at]:
        raise Undecided("uninitialised read")
    return (m.values[at], m.errors[at]) if m.errors else m.values[at]


def _binary(e: p.Binary, env: Env, state: State) -> Any:
    a, b = value(e.a, env, state), value(e.b, env, state)
    if type(a) is tuple:
        return numbers.float_operation(e.op, a, b, e.dtype)
    if e.dtype == "bool":
        return bool(a & b if e.op in ("&", "min") else a | b if e.op in ("|", "max") else a ^ b)
    return numbers.integer_operation(e.op, a, b, e.dtype)


def _compare(e: p.Compare, env: Env, state: State) -> bool:
    a, b = value(e.a, env, state), value(e.b, env, state)
    return numbers.compare_floats(e.op, a, b) if type(a) is tuple else numbers.compare(e.op, a, b)


def _logic(e: p.Logic, env: Env, state: State) -> bool:
    a, b = value(e.a, env, state), value(e.b, env, state)
    return bool(a and b) if e.op == "and" else bool(a or b)


def _function(e: p.Function, env: Env, state: State) -> Any:
    args = [value(a, env, state) for a in e.args]
    if e.name == "isnan":
        return bool(args[0][0] != args[0][0])
    if e.name == "abs" and type(args[0]) is not tuple:
        return numbers.wrap(abs(args[0]), e.dtype)
    return numbers.float_function(e.name, args, e.dtype)


def _indirect_index(e: p.IndirectIndex, env: Env, state: State) -> Any:
    at = value(e.value, env, state)
    if not 0 <= at < index(e.extent, env):
        raise Undecided("lookup out of range")
    return value(e.body, {**env, e.name: at}, state)


_VALUES: dict[type, Callable[[Any, Env, State], Any]] = {
    p.Literal: _literal,
    p.Load: _load,
    p.Binary: _binary,
    p.Compare: _compare,
    p.IndexCompare: lambda e, env, state: numbers.compare(e.op, index(e.a, env), index(e.b, env)),
    p.Logic: _logic,
    p.Not: lambda e, env, state: not value(e.a, env, state),
    p.Select: lambda e, env, state: value(e.a if value(e.cond, env, state) else e.b, env, state),
    p.Cast: lambda e, env, state: numbers.cast(value(e.a, env, state), e.a.dtype, e.dtype),
    p.IndexValue: lambda e, env, state: numbers.cast(index(e.index, env), "int64", e.dtype),
    p.Function: _function,
    p.IndirectIndex: _indirect_index,
}
