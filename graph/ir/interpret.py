"""Interpret graph functions with the numpy references of operators and the TIR interpreter for TIR functions.

The interpreter is the oracle for tests of executors and passes; it is not optimised for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, If, Loop, Operand, ReadSize, Region, TensorType, Value, While
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter import interpret as interpret_tir
from tunesmith.ir.poly import Var, evaluate
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import store
from tunesmith.runtime.arrays import in_float32
from tunesmith.support import dtype as dt
from tunesmith.support.errors import InternalError, RunError

Arrays = Mapping[str, np.ndarray] | Sequence[np.ndarray]


Watch = Callable[[Binding, Sequence[np.ndarray]], None]
"""Takes a binding that was computed, and its results, which it must not modify."""


def run(
    func: GraphFunc,
    arrays: Arrays,
    mod: Mapping[str, Any] | None = None,
    sizes: Mapping[Var, int] | None = None,
    watch: Watch | None = None,
) -> list[np.ndarray]:
    """Call `func` with these arrays.

    Args:
        func: any function that `verify` accepts.
        arrays: arguments in order, or by parameter name; bfloat16 is stored in float32 arrays.
        mod: module of the called functions.
        sizes: values of sizes that are no extent of a parameter by themselves; only a primitive function may have such sizes.
        watch: called after each binding of `func`, those of its branches and loops included, in the order of execution.
    Returns:
        The results, in new arrays.
    Raises:
        RunError: shape or type of an argument differs from its parameter, an assumption does not hold, or a called function does not
            exist.
    """
    given = _in_order(func, arrays)
    known = dict(sizes or {})
    _check_arguments(func, given, known)
    try:
        results = _Frame(mod or {}, known, dict(zip(func.params, given, strict=True)), watch).region(func.body)
    except RecursionError:
        raise RunError(f"{func.name}: infinite recursion of its functions, or calls nested too deeply") from None
    return [np.array(r) for r in results]


def _in_order(func: GraphFunc, arrays: Arrays) -> list[np.ndarray]:
    names = [p.name for p in func.params]
    if isinstance(arrays, Mapping):
        duplicates = sorted({n for n in names if names.count(n) > 1})
        if duplicates:
            raise RunError(f"{func.name}: several parameters are named {', '.join(duplicates)}; pass the arrays in order")
        unknown, missing = sorted(set(arrays) - set(names)), [n for n in names if n not in arrays]
        if unknown or missing:
            fault = f"no parameter is named {', '.join(unknown)}" if unknown else f"missing array for {', '.join(missing)}"
            raise RunError(f"{func.name}: {fault}; its parameters are {', '.join(names) or 'none'}")
        arrays = [arrays[n] for n in names]
    if len(arrays) != len(names):
        raise RunError(f"{func.name} takes {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
    return [np.asarray(a) for a in arrays]


def _check_arguments(func: GraphFunc, given: Sequence[np.ndarray], sizes: dict[Var, int]) -> None:
    """Raise RunError for arrays that do not match the parameters; add the sizes bound by the arrays to `sizes`."""
    for p, a in zip(func.params, given, strict=True):
        if a.dtype != dt.to_numpy(p.type.dtype) or a.ndim != len(p.type.shape):
            raise RunError(f"{func.name}: the parameter {p.name} is {p.type}, got an array of {_described(a)}")
        for e, n in zip(p.type.shape, a.shape, strict=True):
            v = e.as_var()
            if v is not None:
                sizes.setdefault(v, n)
    unbound = [v for v in (*func.bound_sizes, *func.sizes) if v not in sizes]
    if unbound:
        raise RunError(f"{func.name}: pass the size {unbound[0]} with `sizes`: no parameter has it as an extent by itself")
    for p, a in zip(func.params, given, strict=True):
        expected = tuple([evaluate(e, sizes) for e in p.type.shape])
        if a.shape != expected:
            bound = ", ".join([f"{v} = {n}" for v, n in sizes.items()])
            with_ = f" with {bound}" if bound else ""
            raise RunError(f"{func.name}: the parameter {p.name} is {p.type}{with_}, that is {expected}, got an array of {_described(a)}")
    for condition in func.assumptions:
        if not _holds(condition, sizes):
            bound = ", ".join([f"{v} = {n}" for v, n in sizes.items()])
            raise RunError(f"{func.name}: the call violates the assumption {script(condition)}: {bound}")


def _described(a: np.ndarray) -> str:
    return f"{a.dtype}[{', '.join(map(str, a.shape))}]"


def _holds(condition: Expr, sizes: Mapping[Var, int]) -> bool:
    """The value of a condition on sizes, computed by a TIR function that stores it."""
    out = Buffer("holds", (), "bool")
    func = PrimFunc("assumption", (out, *sizes), (), store(out, (), condition))
    return bool(interpret_tir.run(func, [], sizes)[0])


class _Frame:
    """The state of one call.

    Attributes:
        mod: functions by name.
        sizes: values of the sizes.
        env: arrays of the values computed so far.
        watch: called after each binding.
    """

    def __init__(
        self, mod: Mapping[str, Any], sizes: Mapping[Var, int], env: dict[Operand, np.ndarray], watch: Watch | None = None
    ) -> None:
        self.mod, self.sizes, self.env, self.watch = mod, sizes, env, watch

    def array(self, o: Operand) -> np.ndarray:
        return in_float32(o.data) if isinstance(o, Constant) else self.env[o]

    def region(self, region: Region) -> list[np.ndarray]:
        for b in region.bindings:
            op = b.operation
            if isinstance(op, If):
                made: Sequence[np.ndarray] = self.region(op.then if self.array(op.condition)[()] else op.otherwise)
            elif isinstance(op, Loop):
                made = self.loop(op)
            elif isinstance(op, While):
                made = self.while_loop(op)
            elif isinstance(op, ReadSize):
                made = self.read_size(op)
            else:
                args = [self.array(a) for a in op.args]
                made = self.operator(op, args, b.results) if isinstance(op, Call) else self.function(op, args)
            self.env.update(zip(b.results, made, strict=True))
            if self.watch is not None:
                self.watch(b, made)
        return [self.array(r) for r in region.results]

    def loop(self, op: Loop) -> list[np.ndarray]:
        outside, carried, rows = self.sizes, [self.array(o) for o in op.initial], []
        for t in range(op.trips):
            self.sizes = {**outside, op.index: t}
            self.env.update(zip(op.params, carried, strict=True))
            made = self.region(op.body)
            carried = made[: len(op.params)]
            rows.append(made[len(op.params) :])
        self.sizes = outside
        return [*carried, *[np.stack(column) for column in zip(*rows, strict=True)]]

    def while_loop(self, op: While) -> list[np.ndarray]:
        carried = [self.array(o) for o in op.initial]
        while True:
            self.env.update(zip(op.params, carried, strict=True))
            if not self.region(op.condition)[0][()]:
                return carried
            carried = self.region(op.body)

    def read_size(self, op: ReadSize) -> tuple[()]:
        found = int(self.array(op.value)[()])
        if found < 0:
            raise RunError(f"the size {op.size} is read from a tensor, which must be at least 0, and is {found}")
        if op.at_most is not None and found > (most := evaluate(op.at_most, self.sizes)):
            raise RunError(f"the size {op.size} is read from a tensor, which must be at most {most}, and is {found}")
        self.sizes = {**self.sizes, op.size: found}
        return ()

    def operator(self, op: Call, args: list[np.ndarray], results: tuple[Value, ...]) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            try:
                made = GRAPH_OPERATORS.get(op.operator).evaluate(args, op.attrs, self.sizes)
            except (ValueError, IndexError) as error:  # of numpy, such as an index out of range, or the argmax of no elements
                raise RunError(f"{op.operator} of {', '.join(map(_described, args))} cannot be computed: {error}") from error
        expected = [self.expected(v.type) for v in results]
        if [(a.shape, a.dtype) for a in made] != expected:
            raise InternalError(
                f"the numpy reference of {op.operator} computes {', '.join(map(_described, made))}; the inferred type is"
                f" {', '.join([repr(v.type) for v in results])}"
            )
        return made

    def expected(self, t: TensorType) -> tuple[tuple[int, ...], np.dtype]:
        return tuple([evaluate(e, self.sizes) for e in t.shape]), dt.to_numpy(t.dtype)

    def function(self, op: CallFunction, args: list[np.ndarray]) -> Sequence[np.ndarray]:
        if op.function not in self.mod:
            raise RunError(f"the module has no function {op.function!r}; it has {', '.join(self.mod) or 'none'}")
        f = self.mod[op.function]
        if isinstance(f, GraphFunc):
            return run(f, args, self.mod, self.bound(op, f.bound_sizes if op.sizes else ()))
        if not isinstance(f, PrimFunc):
            raise RunError(f"{op.function} is a {type(f).__name__}; a graph function calls a PrimFunc or a GraphFunc")
        memory = interpret_tir.run(f, args, self.bound(op, [p for p in f.params if isinstance(p, Var)]))
        return memory[len(args) :]

    def bound(self, op: CallFunction, sizes: Sequence[Var]) -> dict[Var, int]:
        """The values that a call passes for sizes."""
        if len(op.sizes) != len(sizes):
            raise RunError(f"{op.function} takes {len(sizes)} sizes, got {len(op.sizes)}")
        return {v: evaluate(e, self.sizes) for v, e in zip(sizes, op.sizes, strict=True)}
