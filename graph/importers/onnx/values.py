"""Fold constants and shape computations during import: a tensor is a constant, a list of sizes, or a value of known type.

Models compute shapes with tensors: Shape, Gather, Concat, then Reshape.  A call with constant operands is folded with the operator's
numpy reference; a call on sizes is computed with index expressions.  The shape operand of a Reshape is thus a list of numbers and
size variables, independent of how it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.node import Constant, Operand, TensorType, Value
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Index, Op, Poly, Var, floordiv, maximum, minimum, mod, poly, product
from tunesmith.ir.visit import walk
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

MOST_CREATED = 1 << 16
"""Maximum elements of a folded constant without operands (full, arange); larger ones are computed at run time."""

MOST_GROWN = 1 << 20
"""Maximum elements of a folded result of operators that repeat elements."""

MOST_LISTED = 256
"""Maximum elements of a tensor of sizes that repeats others; a larger one is a tensor."""

MOST_READ = 16
"""Maximum elements of a tensor that are read one by one as sizes."""

_GROWING = frozenset({"broadcast_to", "tile", "full", "arange", "eye", "one_hot", "pad"})


_RANGES: WeakKeyDictionary[Var, tuple[int, int | None]] = WeakKeyDictionary()
"""Bounds of the sizes that are known only when the model runs: those that are read from tensors, and numbers of iterations."""


def declare(size: Var, most: int | None = None) -> Var:
    """Declare that a size is known only within the model: at least 0, and at most `most`."""
    _RANGES[size] = (0, most)
    return size


def is_read(p: Index) -> bool:
    """Whether an index expression depends on a size that is known only within the model."""
    return any(v in _RANGES for v in poly(p).vars)


@dataclass(frozen=True, eq=False)
class Sizes:
    """An integer tensor whose elements are index expressions.

    Attributes:
        elements: object array of `Poly`.
        dtype: integer type in the model.
    """

    elements: np.ndarray
    dtype: str = "int64"

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        return TensorType.of(self.elements.shape, self.dtype)


Datum = Value | Constant | Sizes
"""A tensor of the model during import."""

MISSING = object()
"""Placeholder for a tensor computed by an unsupported node."""


class UnsupportedNode(Exception):
    """A node cannot be imported.

    Args:
        reason: one sentence.
        wanted: model inputs whose values are needed at import.
    """

    def __init__(self, reason: str, wanted: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wanted = tuple(wanted)


class _UndecidedError(Exception):
    """The result is not a list of index expressions and has to be computed with tensors."""


def sizes(elements: Any, dtype: str = "int64") -> Datum:
    """A tensor of sizes (ints or index expressions, nested like its shape); a constant if all are numbers."""
    array = np.asarray(elements, dtype=object) if not isinstance(elements, np.ndarray) else elements
    if array.dtype != object:
        array = array.astype(object)
    flat = [poly(e) if isinstance(e, (Poly, int)) else poly(int(e)) for e in array.ravel()]
    if all(e.const is not None for e in flat):
        return Constant("size", np.array([e.as_int() for e in flat], dtype=dt.to_numpy(dtype)).reshape(array.shape))
    kept = np.empty(len(flat), dtype=object)
    kept[:] = flat
    return Sizes(kept.reshape(array.shape), dtype)


def least(p: Poly) -> int | None:
    """A lower bound of an index expression over sizes, which are >= 1, or >= 0 if they are read; None if unknown."""
    low = 0
    for monomial, c in p.terms:
        if not monomial:
            low += c
            continue
        if c < 0:
            most = _RANGES.get(monomial[0], (0, None))[1] if len(monomial) == 1 and isinstance(monomial[0], Var) else None
            if most is None:
                return None
            low += c * most
            continue
        bounds = [_least_atom(a) for a in monomial]
        if any(b is None for b in bounds):
            return None
        low += c * int(np.prod([b for b in bounds if b is not None]))
    return low


def _least_atom(atom: Any) -> int | None:
    if not isinstance(atom, Op):
        return _RANGES.get(atom, (1, None))[0]
    bounds = [least(a) for a in atom.args]
    if atom.op == "max":
        known = [b for b in bounds if b is not None]
        return max(known) if known and max(known) >= 0 else None
    return 0 if all(b is not None and b >= 0 for b in bounds) else None


def _divided(a: Poly, b: Poly) -> Poly:
    if a.const is not None and b.const:
        quotient = abs(a.const) // abs(b.const)
        return poly(quotient if (a.const < 0) == (b.const < 0) else -quotient)
    if (least(b) or 0) < 1 or (least(a) or -1) < 0:
        raise _UndecidedError
    return floordiv(a, b)


def _remainder(a: Poly, b: Poly) -> Poly:
    if (least(b) or 0) < 1:
        raise _UndecidedError
    return mod(a, b)


def _sign(p: Poly) -> int:
    """-1, 0 or 1 if the sign is known."""
    if p.const is not None:
        return (p.const > 0) - (p.const < 0)
    low, high = least(p), least(-p)
    if low is not None and low > 0:
        return 1
    if high is not None and high > 0:
        return -1
    raise _UndecidedError


def _elementwise(f: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def apply(*arrays: np.ndarray) -> np.ndarray:
        inputs = np.broadcast_arrays(*arrays)
        out = np.empty(inputs[0].shape, dtype=object)
        for at in np.ndindex(out.shape):
            out[at] = f(*[x[at] for x in inputs])
        return out

    return apply


def _where(condition: Poly, a: Poly, b: Poly) -> Poly:
    return a if _sign(condition) else b


def _reduced(f: Callable[[list[Poly]], Poly]) -> Callable[..., np.ndarray]:
    def apply(x: np.ndarray, *, axes: Any, keepdims: bool) -> np.ndarray:
        if x.ndim != 1 or x.size == 0:
            raise _UndecidedError
        out = np.empty((1,) if keepdims else (), dtype=object)
        out[...] = f(list(x))
        return out

    return apply


def _total(xs: list[Poly]) -> Poly:
    return sum(xs, poly(0))


def _sliced(x: np.ndarray, *, axes: Any, begin: Any, end: Any, strides: Any) -> np.ndarray:
    bounds = [*begin, *end, *(strides or ())]
    if any(isinstance(v, Poly) for v in bounds):
        raise _UndecidedError
    at: list[slice] = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        step = strides[i] if strides else 1
        at[axis] = slice(begin[i], None if step < 0 and end[i] < 0 else end[i], step)
    return x[tuple(at)]


def _cast(x: np.ndarray, *, dtype: str) -> np.ndarray:
    if not dt.is_int(dtype):
        raise _UndecidedError
    return x


def _taken(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    if any(not isinstance(i, Poly) or i.const is None for i in indices.ravel()):
        raise _UndecidedError
    at = np.array([i.const for i in indices.ravel()], dtype=np.int64).reshape(indices.shape)
    return np.asarray(np.take(x, at, axis=axis), dtype=object)


def _split(x: np.ndarray, *, sizes: Any, axis: int) -> list[np.ndarray]:
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


_ON_SIZES: dict[str, Callable[..., Any]] = {
    "add": _elementwise(lambda a, b: a + b),
    "subtract": _elementwise(lambda a, b: a - b),
    "multiply": _elementwise(lambda a, b: a * b),
    "divide": _elementwise(_divided),
    "floor_divide": _elementwise(_divided),
    "mod": _elementwise(_remainder),
    "maximum": _elementwise(lambda a, b: maximum(a, b)),
    "minimum": _elementwise(lambda a, b: minimum(a, b)),
    "neg": _elementwise(lambda a: -a),
    "abs": _elementwise(lambda a: a if _sign(a) >= 0 else -a),
    "where": _elementwise(_where),
    "equal": _elementwise(lambda a, b: _sign(a - b) == 0),
    "not_equal": _elementwise(lambda a, b: _sign(a - b) != 0),
    "less": _elementwise(lambda a, b: _sign(a - b) < 0),
    "less_equal": _elementwise(lambda a, b: _sign(a - b) <= 0),
    "greater": _elementwise(lambda a, b: _sign(a - b) > 0),
    "greater_equal": _elementwise(lambda a, b: _sign(a - b) >= 0),
    "prod": _reduced(product),
    "sum": _reduced(_total),
    "max": _reduced(lambda xs: maximum(*xs)),
    "min": _reduced(lambda xs: minimum(*xs)),
    "identity": lambda x: x,
    "cast": _cast,
    "reshape": lambda x, *, shape: x.reshape(shape),
    "permute_dims": lambda x, *, axes: np.transpose(x, axes),
    "expand_dims": lambda x, *, axes: np.expand_dims(x, tuple(axes)),
    "squeeze": lambda x, *, axes: np.squeeze(x, tuple(axes)),
    "broadcast_to": lambda x, *, shape: np.broadcast_to(x, shape),
    "concat": lambda *xs, axis: np.concatenate(xs, axis=axis),
    "flip": lambda x, *, axes: np.flip(x, axes),
    "tile": lambda x, *, repeats: np.tile(x, repeats),
    "strided_slice": _sliced,
    "take": _taken,
    "split": _split,
}
"""Operators on object arrays of index expressions, as used in shape computations."""

_LINKED = frozenset({"concat", "expand_dims", "reshape", "squeeze"})

_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})


class FoldingBuilder:
    """Builder of graph operator calls that folds known results.  Each operator is a method.

    Args:
        region: builder of the region.
        outer: the enclosing builder, for an inner region.
    """

    def __init__(self, region: RegionBuilder, outer: FoldingBuilder | None = None) -> None:
        self.region = region
        self.hint: str | None = None
        self.origins: dict[Value, frozenset[str]] = outer.origins if outer else {}
        self.functions: dict[str, PrimFunc] = outer.functions if outer else {}
        self.computed: dict[Any, Any] = dict(outer.computed) if outer else {}
        """Results of computations that converters share, visible in inner regions but not outside."""
        self._tensors: dict[Var, Value] = dict(outer._tensors) if outer else {}
        self._sources: dict[Var, frozenset[str]] = outer._sources if outer else {}

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        if operator.startswith("_") or operator not in GRAPH_OPERATORS:
            raise AttributeError(f"{type(self).__name__} has no method {operator!r}, and no operator has this name")
        return lambda *args, **attrs: self.call(operator, *args, **attrs)

    def constant(self, data: Any, dtype: str | None = None) -> Constant:
        """A constant tensor."""
        return Constant(self.hint or "c", np.asarray(data, dtype=None if dtype is None else dt.to_numpy(dtype)))

    def call(self, operator: str, *args: Datum, **attrs: Any) -> Any:
        """Apply an operator and return its result, or a tuple of results.

        Raises:
            ScriptError: an operand or attribute is invalid.
        """
        known = GRAPH_OPERATORS.get(operator)
        made: Sequence[Datum] | None = self._on_sizes(operator, args, dict(known.bind(attrs)))
        if made is None:
            operands = [self.operand(a) for a in args]
            made = self._folded(operator, operands, attrs)
            if made is None:
                result = self.region.call(operator, *operands, name=self.hint or operator, **attrs)
                made = result if isinstance(result, tuple) else (result,)
                self._remember(made, operands)
        if operator in _LINKED and isinstance(made[0], Value) and dt.is_int(made[0].type.dtype):
            self._link(operator, args, made[0])
        return made[0] if len(made) == 1 else tuple(made)

    def call_function(
        self, func: PrimFunc, args: Sequence[Datum], types: Sequence[TensorType], sizes: Sequence[Index] = ()
    ) -> tuple[Value, ...]:
        """Call a function that is added to the module."""
        self.functions.setdefault(func.name, func)
        operands = [self.operand(a) for a in args]
        made = self.region.call_function(func.name, operands, types, sizes, self.hint)
        self._remember(made, operands)
        return made

    def read_size(self, value: Datum, name: str = "n", most: int | None = None) -> Poly | int:
        """A scalar as a size: what is known of it, or what is read when the model runs, at least 0, and at most `most`."""
        known = known_ints(value)
        if known is not None:
            return known[0]
        assert isinstance(value, Value)
        root = self._root(value)
        if ("size", root) not in self.computed:
            scalar = root if not root.type.shape else self.call("reshape", root, shape=())
            wide = scalar if scalar.type.dtype == "int64" else self.call("cast", scalar, dtype="int64")
            size = declare(self.region.read_size(wide, name), most)
            self.computed["size", root] = poly(size)
            self._tensors[size] = wide
            self._sources[size] = self.origins.get(root, frozenset())
        found: Poly = self.computed["size", root]
        return found

    def elements(self, datum: Datum) -> tuple[Poly | int | Value, ...] | None:
        """The flat elements of an integer tensor: those that are not known are scalars; None for a tensor of unknown or large size."""
        known = known_ints(datum)
        if known is not None:
            return known
        assert isinstance(datum, Value)
        if ("elements", datum) not in self.computed:
            count = product(datum.type.shape).const
            if count is None or count > MOST_READ:
                return None
            if count == 1:
                return (self._root(datum),)
            flat = self.call("reshape", datum, shape=(count,))
            parts = [self.call("strided_slice", flat, axes=(0,), begin=(i,), end=(i + 1,)) for i in range(count)]
            self.computed["elements", datum] = tuple([self.call("reshape", p, shape=()) for p in parts])
        found: tuple[Poly | int | Value, ...] = self.computed["elements", datum]
        return found

    def number_is(self, size: Var, tensor: Value) -> None:
        """Record the int64[] that has the value of a size."""
        self._tensors[size] = tensor

    def _root(self, value: Value) -> Value:
        """The value of one element that this one is a view of."""
        while ("view", value) in self.computed:
            value = self.computed["view", value]
        return value

    def _link(self, operator: str, args: Sequence[Datum], made: Value) -> None:
        """Record the elements of a small tensor of integers, if it is computed from numbers."""
        if operator != "concat":
            if isinstance(args[0], Value) and product(made.type.shape) == 1:
                self.computed["view", made] = args[0]
        elif len(made.type.shape) == 1 and (made.type.shape[0].const or MOST_READ + 1) <= MOST_READ:
            parts = [self.elements(a) for a in args]
            if all(p is not None for p in parts):
                self.computed["elements", made] = tuple([e for p in parts for e in p or ()])

    def operand(self, datum: Datum) -> Operand:
        """The tensor as an operand; sizes become `size_value` calls."""
        if not isinstance(datum, Sizes):
            return datum
        if datum.elements.ndim == 0:
            return self._size(datum.elements.item(), datum.dtype)
        parts = [self.call("reshape", self._size(e, datum.dtype), shape=(1,)) for e in datum.elements.ravel()]
        joined = parts[0] if len(parts) == 1 else self.call("concat", *parts, axis=0)
        return joined if datum.elements.ndim == 1 else self.call("reshape", joined, shape=datum.elements.shape)

    def wanted(self, datum: Datum) -> tuple[str, ...]:
        """The model inputs that a tensor depends on, sorted by name."""
        return tuple(sorted(self.origins.get(datum, frozenset()))) if isinstance(datum, Value) else ()

    def wanted_for(self, data: Sequence[Any]) -> tuple[str, ...]:
        """The model inputs on whose values sizes, or the shapes of tensors, depend, sorted by name."""
        sizes = {v for d in data if isinstance(d, Value) for e in d.type.shape for v in e.vars}
        sizes.update(v for d in data if isinstance(d, Poly) for v in d.vars)
        return tuple(sorted(frozenset().union(*[self._sources.get(v, frozenset()) for v in sizes])))

    def assume(self, condition: Expr) -> bool:
        """Add an assumption on sizes to the function; False if it is constant, on sizes that are read, or in an inner region."""
        if not isinstance(self.region, GraphBuilder) or isinstance(condition, Const):
            return False
        if any(is_read(p) for p in walk(condition) if isinstance(p, Poly)):
            return False
        self.region.assume(condition)
        return True

    def remember(self, results: Sequence[Value], inputs: Sequence[Datum]) -> None:
        """Record that results bound elsewhere depend on `inputs`."""
        self._remember(results, inputs)

    def _size(self, value: Poly, dtype: str) -> Operand:
        if value.const is not None:
            return self.constant(value.const, dtype)
        tensor = self._tensors.get(v) if (v := value.as_var()) is not None else None
        if tensor is not None:
            return tensor if dtype == "int64" else self.call("cast", tensor, dtype=dtype)
        return self.region.call("size_value", value=value, dtype=dtype, name="size")

    def _remember(self, results: Sequence[Datum], operands: Sequence[Datum]) -> None:
        origin = frozenset().union(*[self.origins.get(o, frozenset()) for o in operands if isinstance(o, Value)])
        if origin:
            self.origins.update({r: origin for r in results if isinstance(r, Value)})

    def _on_sizes(self, operator: str, args: Sequence[Datum], attrs: dict[str, Any]) -> Sequence[Datum] | None:
        if operator not in _ON_SIZES or not any(isinstance(a, Sizes) for a in args):
            return None
        numbers = attrs.get("shape", attrs.get("repeats", ()))
        if any(isinstance(n, Poly) for n in numbers) or (operator in _GROWING and np.prod(numbers, dtype=float) > MOST_LISTED):
            return None
        if not all(isinstance(a, Sizes) or (isinstance(a, Constant) and a.data.dtype.kind in "iub") for a in args):
            return None
        try:
            made = _ON_SIZES[operator](*[_elements(a) for a in args], **attrs)
        except _UndecidedError:
            return None
        arrays = made if isinstance(made, list) else [made]
        if operator in _COMPARISONS:
            return [self.constant(a.astype(bool)) for a in arrays]
        first = next(a.dtype for a in args if isinstance(a, Sizes))
        dtype = attrs["dtype"] if operator == "cast" else first
        return [sizes(a, dtype) for a in arrays]

    def _folded(self, operator: str, operands: Sequence[Operand], attrs: dict[str, Any]) -> Sequence[Datum] | None:
        if not all(isinstance(o, Constant) for o in operands):
            return None
        if operator == "dequantize" and len(operands[0].type.shape) > 1:
            return None  # weights: a pass computes their contractions in integers (graph.passes.integer_contractions)
        known = GRAPH_OPERATORS.get(operator)
        bound = known.bind(attrs)
        if any(_has_size(v) or v == "bfloat16" for _, v in bound):  # numpy has no bfloat16; references use float32
            return None
        if operator in _GROWING:
            limit = MOST_GROWN if operands else MOST_CREATED
            extents = [t.shape for t in known.infer([o.type for o in operands], bound)] if _positive(operands, attrs) else []
            if any(product(shape).as_int() > limit for shape in extents):
                return None
        try:
            with np.errstate(all="ignore"):
                made = known.reference(*[o.data for o in operands if isinstance(o, Constant)], **dict(bound))
        except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
            types = ", ".join([str(o.type) for o in operands])
            raise ScriptError(f"{operator}({types}) cannot be computed: {error}") from error
        return [Constant(self.hint or operator, np.asarray(m)) for m in (made if isinstance(made, (tuple, list)) else (made,))]


def _elements(datum: Datum) -> np.ndarray:
    if isinstance(datum, Sizes):
        return datum.elements
    assert isinstance(datum, Constant)
    out = np.empty(datum.data.shape, dtype=object)
    for at in np.ndindex(out.shape):
        out[at] = poly(int(datum.data[at]))
    return out


def _has_size(value: Any) -> bool:
    return isinstance(value, Poly) or (isinstance(value, tuple) and any(_has_size(v) for v in value))


def _positive(operands: Sequence[Operand], attrs: dict[str, Any]) -> bool:
    """Whether all tensors of the call are non-empty, which type inference requires."""
    numbers = attrs.get("shape", attrs.get("repeats", ()))
    return all(o.data.size for o in operands if isinstance(o, Constant)) and all(n != 0 for n in numbers)


def known_ints(datum: Datum) -> tuple[Poly | int, ...] | None:
    """The flat elements of an integer tensor (ints and index expressions) if known, else None."""
    if isinstance(datum, Constant):
        return tuple([int(v) for v in datum.data.ravel()])
    if isinstance(datum, Sizes):
        return tuple([e if e.const is None else e.const for e in datum.elements.ravel()])
    return None
