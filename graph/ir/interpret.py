"""The meaning of graph functions: every operator by its numpy reference, every TIR function by the TIR interpreter.

It is the oracle that executors and passes are compared with; nothing in it is made to be fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, CallFunction, Constant, If, Operand, Region, TensorType, Value
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter import interpret as interpret_tir
from tunesmith.ir.poly import Var, evaluate
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import store
from tunesmith.support import dtype as dt
from tunesmith.support.errors import InternalError, RunError

Arrays = Mapping[str, np.ndarray] | Sequence[np.ndarray]


def run(func: GraphFunc, arrays: Arrays, mod: Mapping[str, Any] | None = None, sizes: Mapping[Var, int] | None = None) -> list[np.ndarray]:
    """What a call of `func` returns.

    Args:
        func: any function that `verify` accepts.
        arrays: arguments in order, or by the names of the parameters; bfloat16 is held in float32 arrays.
        mod: where functions that it calls are found.
        sizes: values of sizes that no parameter has as an extent by itself, which a primitive function may have.
    Returns:
        The results, in arrays of their own.
    Raises:
        RunError: an argument has another shape or type than its parameter, an assumption does not hold, or there is no such function.
    """
    given = _in_order(func, arrays)
    known = dict(sizes or {})
    _check_arguments(func, given, known)
    try:
        results = _Frame(mod or {}, known, dict(zip(func.params, given, strict=True))).region(func.body)
    except RecursionError:
        raise RunError(f"{func.name}: its functions call each other without an end, or nest too deeply") from None
    return [np.array(r) for r in results]


def _in_order(func: GraphFunc, arrays: Arrays) -> list[np.ndarray]:
    names = [p.name for p in func.params]
    if isinstance(arrays, Mapping):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise RunError(f"{func.name}: several parameters are named {', '.join(twice)}; give the arrays in order")
        unknown, missing = sorted(set(arrays) - set(names)), [n for n in names if n not in arrays]
        if unknown or missing:
            what = f"no parameter is named {', '.join(unknown)}" if unknown else f"no array is given for {', '.join(missing)}"
            raise RunError(f"{func.name}: {what}; its parameters are {', '.join(names) or 'none'}")
        arrays = [arrays[n] for n in names]
    if len(arrays) != len(names):
        raise RunError(f"{func.name} takes {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
    return [np.asarray(a) for a in arrays]


def _check_arguments(func: GraphFunc, given: Sequence[np.ndarray], sizes: dict[Var, int]) -> None:
    """Refuse arrays that are not what the parameters say; `sizes` gets the values of the sizes that they bind."""
    for p, a in zip(func.params, given, strict=True):
        if a.dtype != dt.to_numpy(p.type.dtype) or a.ndim != len(p.type.shape):
            raise RunError(f"{func.name}: the parameter {p.name} is {p.type}, got an array of {_described(a)}")
        for e, n in zip(p.type.shape, a.shape, strict=True):
            v = e.as_var()
            if v is not None:
                sizes.setdefault(v, n)
    unbound = [v for v in (*func.bound_sizes, *func.sizes) if v not in sizes]
    if unbound:
        raise RunError(f"{func.name}: the size {unbound[0]} must be given with `sizes`: no parameter has it as an extent by itself")
    for p, a in zip(func.params, given, strict=True):
        wanted = tuple([evaluate(e, sizes) for e in p.type.shape])
        if a.shape != wanted:
            bound = ", ".join([f"{v} = {n}" for v, n in sizes.items()])
            with_ = f" with {bound}" if bound else ""
            raise RunError(f"{func.name}: the parameter {p.name} is {p.type}{with_}, that is {wanted}, got an array of {_described(a)}")
    for condition in func.assumptions:
        if not _holds(condition, sizes):
            bound = ", ".join([f"{v} = {n}" for v, n in sizes.items()])
            raise RunError(f"{func.name}: the call does not keep to the assumption {script(condition)}: {bound}")


def _described(a: np.ndarray) -> str:
    return f"{a.dtype}[{', '.join(map(str, a.shape))}]"


def _holds(condition: Expr, sizes: Mapping[Var, int]) -> bool:
    """The value of a condition on sizes, by a TIR function that stores it."""
    out = Buffer("holds", (), "bool")
    func = PrimFunc("assumption", (out, *sizes), (), store(out, (), condition))
    return bool(interpret_tir.run(func, [], sizes)[0])


class _Frame:
    """One call.

    Attributes:
        mod: functions by name.
        sizes: their values in this call.
        env: arrays of the values computed so far.
    """

    def __init__(self, mod: Mapping[str, Any], sizes: Mapping[Var, int], env: dict[Operand, np.ndarray]) -> None:
        self.mod, self.sizes, self.env = mod, sizes, env

    def array(self, o: Operand) -> np.ndarray:
        return o.data if isinstance(o, Constant) else self.env[o]

    def region(self, region: Region) -> list[np.ndarray]:
        for b in region.bindings:
            op = b.operation
            if isinstance(op, If):
                made: Sequence[np.ndarray] = self.region(op.then if self.array(op.condition)[()] else op.otherwise)
            else:
                args = [self.array(a) for a in op.args]
                made = self.operator(op, args, b.results) if isinstance(op, Call) else self.function(op, args)
            self.env.update(zip(b.results, made, strict=True))
        return [self.array(r) for r in region.results]

    def operator(self, op: Call, args: list[np.ndarray], results: tuple[Value, ...]) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            made = GRAPH_OPERATORS.get(op.operator).evaluate(args, op.attrs, self.sizes)
        wanted = [self.expected(v.type) for v in results]
        if [(a.shape, a.dtype) for a in made] != wanted:
            raise InternalError(
                f"the numpy reference of {op.operator} computes {', '.join(map(_described, made))}, and its type is"
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
        """The values that a call gives to sizes."""
        if len(op.sizes) != len(sizes):
            raise RunError(f"{op.function} takes {len(sizes)} sizes, got {len(op.sizes)}")
        return {v: evaluate(e, self.sizes) for v, e in zip(sizes, op.sizes, strict=True)}
