"""Define tensors by a shape and the formula of one element, and create functions with loops from them.

Names and semantics are those of TVM's `te` (Chen et al., OSDI 2018, after Halide's separation of algorithm and schedule):

    A, B = placeholder((m, k), name="A"), placeholder((k, n), name="B")
    r = reduce_axis(k, "k")
    C = compute((m, n), lambda i, j: sum(A[i, r] * B[r, j], axis=r), name="C")
    func = create_prim_func([A, B, C], name="matmul")

Each `compute` becomes one block with the name of its tensor, inside one serial loop for each axis, named after the parameters of the
lambda.  Reductions are `sum`, `prod`, `max` and `min`; `scan` computes an axis in order; the elementwise functions are re-exported from
`ir.expr`.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import (
    Binary,
    Const,
    Expr,
    Not,
    Value,
    call,
    cast,
    compare,
    conjunction,
    const,
    equal,
    maximum,
    minimum,
    power,
    require_condition,
    select,
)
from tunesmith.ir.expression_size import size_of
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.poly import Index, Poly, Var, poly
from tunesmith.ir.visit import walk_objects
from tunesmith.ops.create_prim_func import create_prim_func
from tunesmith.ops.divide_formula import divide_formula
from tunesmith.ops.intrinsic_functions import FUNCTIONS
from tunesmith.ops.tensor import ReduceAxis, Reduction, Scan, Scatter, SpatialAxis, Tensor, variables_of
from tunesmith.ops.tensor import default_loops as default_loops
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError
from tunesmith.support.nearest_name import did_you_mean

__all__ = [
    "Tensor",
    "all",
    "any",
    "call",
    "cast",
    "compute",
    "const",
    "create_prim_func",
    "equal",
    "if_then_else",
    "logical_not",
    "lookup",
    "max",
    "maximum",
    "min",
    "minimum",
    "not_equal",
    "placeholder",
    "pow",
    "prod",
    "reduce_axis",
    "scan",
    "scatter",
    "select",
    "sum",
    "var",
]


def __getattr__(name: str) -> Callable[..., Expr]:
    """Resolve `te.exp` to the function of the intrinsic `exp`."""
    if name not in FUNCTIONS:
        raise AttributeError(
            f"te has no {name}; its functions are {', '.join(__all__)}, and the intrinsics {', '.join(sorted(FUNCTIONS))}."
            + did_you_mean(name, [*__all__, *FUNCTIONS])
        )
    return FUNCTIONS[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *FUNCTIONS})


def var(name: str) -> Poly:
    """A dynamic size: `create_prim_func` makes it a scalar parameter of the function."""
    return poly(Var(name))


def placeholder(shape: Index | Iterable[Index], dtype: str = "float32", name: str = "placeholder") -> Tensor:
    """An input tensor.

    Args:
        shape: extents, ints or index expressions; a single extent for a vector, () for a scalar.
        dtype: scalar element type.
        name: name of the parameter.
    """
    return Tensor(name, _shape(shape, f"placeholder {name}"), dtype)


def reduce_axis(extent: Index | tuple[Index, Index], name: str = "r") -> Poly:
    """An axis to reduce over, for use in the formula and as `axis=` of a reduction.

    Args:
        extent: number of iterations, or the range (0, extent).
        name: name of the loop.
    """
    if isinstance(extent, tuple):
        if len(extent) != 2 or poly(extent[0]) != 0:
            raise ScriptError(
                f"reduce_axis {name}: a range is (0, extent), got {extent!r}; loops start at 0, so add the start to the index"
            )
        extent = extent[1]
    return poly(ReduceAxis(name, _shape(extent, f"reduce_axis {name}")[0]))


def compute(
    shape: Index | Iterable[Index],
    fcompute: Callable[..., Value],
    name: str = "compute",
    *,
    axes: Sequence[str] | None = None,
    dtype: str | None = None,
) -> Tensor:
    """The tensor whose element at i, j, ... is fcompute(i, j, ...).

    A formula that exceeds the limits of an expression becomes several stages (`divide_formula`).

    Args:
        shape: extents; () for a scalar.
        fcompute: takes one index expression for each dimension and returns the element: an expression, a reduction, or, if
            `dtype` is given, a number.
        name: name of the tensor and its block.
        axes: names of the spatial loops; by default the parameters of `fcompute`, or i, j, k, l if it takes `*indices`.
        dtype: required type of the element.
    Raises:
        ScriptError: `fcompute` does not fit the shape, a reduction is not the whole formula or its axes are not results of
            `reduce_axis`, an axis that is not reduced is used, or types are mixed.
    """
    extents = _shape(shape, f"compute {name}")
    variables = tuple([SpatialAxis(n) for n in _axis_names(fcompute, len(extents), f"compute {name}", axes)])
    made = fcompute(*[poly(v) for v in variables])
    if isinstance(made, (int, float)):
        if dtype is None:
            raise ScriptError(f"compute {name}: the element is the number {made!r}; give its type with dtype=")
        made = const(made, dtype)
    if not isinstance(made, Expr):
        raise ScriptError(f"compute {name}: the function must return an expression, got {type(made).__name__}: {made!r}")
    if dtype is not None and made.dtype != dtype:
        raise ScriptError(f"compute {name}: the element is {made.dtype}, not {dtype}; write an explicit cast")
    _check_formula(made, variables, f"compute {name}")
    parts = itertools.count()

    def stage(part: Expr) -> Expr:
        t = Tensor(f"{name}_{next(parts)}", extents, part.dtype, variables, part)
        return BufferLoad(t, tuple([poly(v) for v in variables]))

    reduced = made.axes if isinstance(made, Reduction) else ()
    made = divide_formula(made, name, frozenset(reduced), stage)
    return Tensor(name, extents, made.dtype, variables, made)


def scan(
    shape: Index | Iterable[Index],
    update: Callable[..., Value],
    init: Value,
    *,
    axis: int = -1,
    reverse: bool = False,
    name: str = "scan",
    dtype: str = "float32",
) -> Tensor:
    """The tensor whose element at i, j, ... is update(previous, i, j, ...), where `previous` is the element before it along `axis`.

    The elements along the axis are computed in order, each once: a cumulative sum of n numbers is n additions.  All other axes are
    independent.  For example,

        C = scan((m, n), lambda previous, i, j: previous + A[i, j], 0.0, axis=1)

    Args:
        shape: extents, at least one.
        update: takes the previous element, as an expression, and one index expression for each dimension, and returns the element.
        init: `previous` of the first element: a number, or an expression without indices of the scan.
        axis: the dimension, counted from the end if negative.
        reverse: the first element is the last along the axis, and the element before i is i + 1.
        name: name of the tensor and its block.
        dtype: type of the elements, and of `init` if that is a number.
    Raises:
        ScriptError: as `compute`; the axis is not one of the shape; `init` or the update is of another type; the update is a reduction,
            or exceeds the limits of an expression.
    """
    extents = _shape(shape, f"scan {name}")
    if not -len(extents) <= axis < len(extents):
        raise ScriptError(f"scan {name}: axis={axis} is not an axis of {len(extents)} dimensions")
    axis %= len(extents)
    first = const(init, dtype) if isinstance(init, (int, float)) else init
    if not isinstance(first, Expr) or first.dtype != dtype:
        got = first.dtype if isinstance(first, Expr) else repr(init)
        raise ScriptError(f"scan {name}: init is an expression or a number of type {dtype}, got {got}. Pass dtype=, or cast it")
    variables = tuple([SpatialAxis(n) for n in _axis_names(update, len(extents), f"scan {name}", None, "the previous element")])
    v = poly(variables[axis])
    at = [poly(x) for x in variables]
    at[axis] = extents[axis] - 1 - v if reverse else v
    made = Tensor(name, extents, dtype, variables)
    before = (*at[:axis], at[axis] + 1 if reverse else v - 1, *at[axis + 1 :])
    element = update(select(0 < v, BufferLoad(made, before), first), *at)
    element = const(element, dtype) if isinstance(element, (int, float)) else element
    if not isinstance(element, Expr) or element.dtype != dtype:
        got = element.dtype if isinstance(element, Expr) else f"{type(element).__name__}: {element!r}"
        raise ScriptError(f"scan {name}: the update must return an expression of type {dtype}, got {got}")
    if isinstance(element, Reduction):
        raise ScriptError(f"scan {name}: the update is a reduction; move it to a separate compute and read its result")
    _check_formula(element, variables, f"scan {name}")
    if not size_of(element).fits:
        raise ScriptError(f"scan {name}: the update is too deep or too large an expression; compute parts of it before, in a compute")
    made.value = Scan(element, axis, reverse)
    return made


def scatter(
    initial: Callable[..., Value] | Tensor,
    extents: Index | Iterable[Index],
    at: Callable[..., Sequence[Index | Expr]],
    update: Callable[..., Value],
    *,
    shape: Index | Iterable[Index] | None = None,
    where: Callable[..., Expr] | None = None,
    name: str = "scatter",
    dtype: str | None = None,
) -> Tensor:
    """A tensor whose elements are updated one after the other, at places that may be data (histogram, scatter, index_put).

    For each i, j, ... in `extents`, in row-major order, the element at at(i, j, ...) becomes update(old, i, j, ...).  For example, the
    number of occurrences of each value of an int64 tensor X below 64:

        Y = scatter(lambda b: te.const(0, "int32"), n, lambda i: (X[i],), lambda old, i: old + 1, shape=64)

    Args:
        initial: the formula of an element before all updates, or a tensor to copy.
        extents: extents of the updates.
        at: takes one index expression for each extent, and returns an index for each dimension of the result: an index expression, or
            a value of type int64.  A value must be at least 0 and less than the dimension, even where `where` is false: clamp it if it
            may not be.
        update: takes the old element and the index expressions, and returns the new element.
        shape: extents of the result; by default those of the tensor `initial`.
        where: takes the index expressions, and returns the condition of an update; by default each is made.
        name: name of the tensor and of the block of the updates; the block of the first values is `<name>_initial`.
        dtype: type of the elements, if `initial` returns a number.
    Raises:
        ScriptError: as `compute`; the number of indices is not the number of dimensions, a formula is a reduction or exceeds the limits
            of an expression, or the types of `initial` and `update` differ.
    """
    what = f"scatter {name}"
    if isinstance(initial, Tensor):
        given, shape = initial, initial.shape if shape is None else shape
        first = compute(shape, lambda *i: given[i], f"{name}_initial")
    elif shape is None:
        raise ScriptError(f"{what}: the shape is not known. Pass shape=, or a tensor as the initial value")
    else:
        first = compute(shape, initial, f"{name}_initial", dtype=dtype)
    if first.is_ordered:
        raise ScriptError(f"{what}: the initial value must be a formula without reduction; compute it before, and pass the tensor")
    sizes = _shape(extents, what)
    axes = tuple([SpatialAxis(n) for n in _axis_names(at, len(sizes), what, None)])
    made = Tensor(name, first.shape, first.dtype, first.axes)
    found = at(*[poly(v) for v in axes])
    if not isinstance(found, (tuple, list)) or len(found) != len(made.shape):
        raise ScriptError(f"{what}: at must return a tuple of {len(made.shape)} indices, got {found!r}")
    bound: list[IndirectVar] = []
    values: list[Expr] = []
    limits: list[Poly] = []
    indices: list[Poly] = []
    for d, e in enumerate(found):
        if isinstance(e, Expr) and not isinstance(e, Poly):
            if e.dtype != dt.INDEX:
                raise ScriptError(f"{what}: index {d} is a value of type {e.dtype}; cast it to {dt.INDEX}")
            bound.append(IndirectVar("index"))
            values.append(e)
            limits.append(made.shape[d])
            indices.append(poly(bound[-1]))
        else:
            indices.append(poly(e))
    condition = None if where is None else where(*[poly(v) for v in axes])
    element = update(BufferLoad(made, tuple(indices)), *[poly(v) for v in axes])
    element = const(element, made.dtype) if isinstance(element, (int, float)) else element
    if not isinstance(element, Expr) or element.dtype != made.dtype:
        got = element.dtype if isinstance(element, Expr) else f"{type(element).__name__}: {element!r}"
        raise ScriptError(f"{what}: the update must return an expression of type {made.dtype}, got {got}")
    if condition is not None and (not isinstance(condition, Expr) or condition.dtype != "bool"):
        raise ScriptError(f"{what}: where must return a condition, got {condition!r}")
    for e in (*values, BufferLoad(made, tuple(indices)), element, *([condition] if condition is not None else [])):
        if isinstance(e, Reduction):
            raise ScriptError(f"{what}: a formula is a reduction; move it to a separate compute and read its result")
        _check_formula(e, axes, what)
        if not size_of(e).fits:
            raise ScriptError(f"{what}: a formula is too deep or too large an expression; compute parts of it before, in a compute")
    assert first.value is not None
    made.value = Scatter(first.value, axes, sizes, tuple(bound), tuple(values), tuple(limits), tuple(indices), condition, element)
    return made


def sum(value: Expr, axis: Poly | Sequence[Poly] = ()) -> Expr:
    """The sum of `value` over `axis`, one or several results of `reduce_axis`, in the type of `value`."""
    return _reduction("add", "sum", value, axis)


def prod(value: Expr, axis: Poly | Sequence[Poly] = ()) -> Expr:
    """The product of `value` over `axis`; see `sum`."""
    return _reduction("mul", "prod", value, axis)


def max(value: Expr, axis: Poly | Sequence[Poly] = ()) -> Expr:
    """The largest `value` over `axis`; see `sum`.  `maximum` is the larger of two."""
    return _reduction("max", "max", value, axis)


def min(value: Expr, axis: Poly | Sequence[Poly] = ()) -> Expr:
    """The smallest `value` over `axis`; see `sum`.  `minimum` is the smaller of two."""
    return _reduction("min", "min", value, axis)


def all(*conditions: Expr) -> Expr:
    """Whether all conditions hold; conditions that are constant true are left out."""
    for c in conditions:
        require_condition(c, "all")
    return conjunction(tuple([c for c in conditions if not (isinstance(c, Const) and c.value)]))


def any(*conditions: Expr) -> Expr:
    """Whether a condition holds; false if there is none."""
    for c in conditions:
        require_condition(c, "any")
    return functools.reduce(functools.partial(Binary, "or"), conditions) if conditions else Const(False, "bool")


def logical_not(condition: Expr) -> Expr:
    """Whether a condition does not hold."""
    require_condition(condition, "logical_not")
    return Not(condition)


def not_equal(a: Value, b: Value) -> Expr:
    """The bool expression a != b; `!=` itself compares the objects."""
    return compare("ne", a, b)


def pow(a: Value, b: Value) -> Expr:
    """`a` to the power of `b`, also `a ** b`: a product for the exponents 0 to 4; other exponents are for floats."""
    return power(a, b)


def if_then_else(condition: Expr, a: Value, b: Value) -> Expr:
    """`a` where the condition holds, else `b`; the other side is not evaluated, so it may read out of range.  TVM's name of `select`."""
    return select(condition, a, b)


def lookup(value: Expr, extent: Index, body: Callable[[Poly], Expr], name: str = "at") -> Expr:
    """body(v), where v is an indirect index: its value is computed or loaded first.

    Args:
        value: the index, of type int64; it must be in [0, extent) in every call, so clamp it if callers may pass other values.
        extent: extent of the dimension that v indexes.
        body: the formula, which uses v in indices.
        name: name of v.
    """
    if not isinstance(value, Expr) or value.dtype != dt.INDEX:
        got = value.dtype if isinstance(value, Expr) else repr(value)
        raise ScriptError(f"lookup {name}: the index must be an expression of type {dt.INDEX}, got {got}")
    var = IndirectVar(name)
    return IndirectIndex(var, _shape(extent, f"lookup {name}")[0], value, body(poly(var)))


def _shape(shape: Index | Iterable[Index], what: str) -> tuple[Poly, ...]:
    extents = tuple([poly(e) for e in ((shape,) if isinstance(shape, (int, Integral, Poly, Var)) else shape)])
    for e in extents:
        if e.const is not None and e.const < 1:
            raise ScriptError(f"{what}: the extent {e} is not positive")
        if builtins.any(isinstance(v, (SpatialAxis, ReduceAxis)) for v in e.vars):
            raise ScriptError(f"{what}: the extent {e} depends on an axis; it may depend on sizes only")
    return extents


def _axis_names(formula: Callable[..., object], rank: int, what: str, given: Sequence[str] | None, *before: str) -> list[str]:
    """The names of the axes; the formula takes the arguments `before`, and then one index for each axis."""
    kinds = inspect.Parameter
    takes = list(inspect.signature(formula).parameters.values())
    variadic = builtins.any(p.kind is kinds.VAR_POSITIONAL for p in takes)
    named = [p.name for p in takes if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) and p.default is kinds.empty]
    if len(named) < len(before) and not variadic:
        raise ScriptError(f"{what}: the function takes {' and '.join(before)}, and then {rank} indices")
    named = named[len(before) :]
    if len(named) > rank or (len(named) < rank and not variadic):
        also = f", after {' and '.join(before)}" if before else ""
        raise ScriptError(f"{what}: the shape has {rank} dimensions and the function takes {len(named)} indices{also}")
    if given is not None:
        if len(given) != rank:
            raise ScriptError(f"{what}: the shape has {rank} dimensions, and axes= has {len(given)} names")
        return list(given)
    if variadic:
        return default_loops(rank)
    return named


def _reduction(op: str, word: str, value: Expr, axis: Poly | Sequence[Poly]) -> Reduction:
    if isinstance(value, Tensor):
        name = value.name
        raise ScriptError(f"{word}: an element is reduced, not the tensor {name}: index it, as in {word}({name}[i, r], axis=r)")
    if not isinstance(value, Expr):
        raise ScriptError(f"{word}: an expression is reduced, got {value!r}{_of_two(word)}")
    if value.dtype == "bool":
        raise ScriptError(f"{word}: values of type bool cannot be reduced; cast them to an integer type")
    if not isinstance(axis, (Poly, Var, list, tuple)):
        got = f"a value of type {axis.dtype}" if isinstance(axis, Expr) else repr(axis)
        raise ScriptError(f"{word}: axis= takes results of reduce_axis, got {got}{_of_two(word)}")
    axes: list[ReduceAxis] = []
    for a in [axis] if isinstance(axis, (Poly, Var)) else axis:
        v = a.as_var() if isinstance(a, Poly) else a
        if not isinstance(v, ReduceAxis):
            raise ScriptError(f"{word}: axis={a!r} is not an axis to reduce over; make one with reduce_axis(extent, name){_of_two(word)}")
        if v in axes:
            raise ScriptError(f"{word}: the axis {v} is listed twice")
        axes.append(v)
    if not axes:
        raise ScriptError(f"{word}: no axis is given. Pass axis=reduce_axis(extent, name), one or several")
    return Reduction(op, value, tuple(axes))


def _of_two(word: str) -> str:
    """The function that combines two operands, for a reduction that was called with them."""
    instead = {"max": "te.maximum(a, b)", "min": "te.minimum(a, b)", "sum": "a + b", "prod": "a * b"}[word]
    return f". te.{word}(value, axis=r) reduces over an axis; of two operands write {instead}"


def _check_formula(made: Expr, variables: tuple[SpatialAxis, ...], what: str) -> None:
    """Refuse nested reductions, variables of other computes and buffers that are not tensors."""
    reduced = made.axes if isinstance(made, Reduction) else ()
    for n in walk_objects(made.value if isinstance(made, Reduction) else made):
        if isinstance(n, Reduction):
            raise ScriptError(
                f"{what}: a reduction over {', '.join(a.name for a in n.axes)} is nested in a formula;"
                " it must be the whole formula, so move it to a separate compute and read its result"
            )
        if isinstance(n, BufferLoad) and not isinstance(n.buffer, Tensor):
            raise ScriptError(f"{what}: {n.buffer.name} is a buffer, not a tensor; make it with placeholder or compute")
        for v in variables_of(n):
            if isinstance(v, ReduceAxis) and v not in reduced:
                raise ScriptError(f"{what}: the formula uses the axis {v}, which is not reduced; add it to axis=")
            if isinstance(v, SpatialAxis) and v not in variables:
                raise ScriptError(f"{what}: the formula uses the index {v} of another compute")
