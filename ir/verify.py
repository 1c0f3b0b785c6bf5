"""Verify that a program is well formed, and report the first violation with its path.

`verify` is total: any combination of nodes is either accepted or rejected with a ScriptError.  It checks form, not legality: whether
iterations may run in parallel is decided by the dependence analyses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import ARITHMETIC, COMPARISONS, LOGIC, Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.expression_size import check_size
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import AXES
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.intrinsics import INTRINSICS, PREFETCHES, refused_operand
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Param, Poly, Var
from tunesmith.ir.remarks import refuse_uninitialised
from tunesmith.ir.stmt import FOR_KINDS, Allocate, BindIndex, Block, BufferStore, Evaluate, For, If, Iter, Seq, While
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def verify(func: PrimFunc) -> None:
    """Raise ScriptError, naming the path, if `func` is not well formed.

    Checks: every variable and buffer is used inside its binder, and no variable is bound twice; block names are unique; the body of a
    block uses only its iteration variables, its init no reduction variable; indices match the buffer's rank; types and lanes of values
    agree; no expression is too deep or too large for the passes; loop kinds, thread tags and annotations are known and well typed; and
    no local buffer is updated without being initialised.
    """
    if type(func) is not PrimFunc:
        raise ScriptError(f"verify takes a PrimFunc, got {type(func).__name__}")
    _Verifier(func).function()
    refuse_uninitialised(func)


_INT_RANGES = {
    t: (0, 2 ** dt.bits(t) - 1) if dt.is_unsigned(t) else (-(2 ** (dt.bits(t) - 1)), 2 ** (dt.bits(t) - 1) - 1)
    for t in dt.SCALARS
    if dt.is_int(t)
}
_INTEGER_ONLY = ("bitand", "bitor", "bitxor", "shl", "shr")


class _Verifier:
    """State of the walk: variables and buffers in scope, and the path from the function to the current node, for messages."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.path: list[str] = []
        self.scope: frozenset[Any] = frozenset()
        """Variables in scope; Params may be used everywhere."""
        self.everywhere: frozenset[Any] = frozenset()
        self.bound: set[Any] = set()
        self.buffers: set[Any] = set()
        self.reductions: frozenset[Any] = frozenset()
        """The reduction variables of an enclosing init, which must not be used there; for the message."""
        self.blocks: set[str] = set()
        self.threads: tuple[str, ...] = ()
        self.params: dict[tuple[str, tuple[int, ...]], Param] = {}
        self.seen: dict[int, str] = {}
        """Types of the expressions of the current statement, by identity: expanded intrinsics share subexpressions."""

    def fail(self, message: str) -> ScriptError:
        return ScriptError(f"{message}\nin function {self.func.name}, at /{'/'.join(self.path)}")

    def function(self) -> None:
        f = self.func
        if not isinstance(f.name, str) or not f.name:
            raise self.fail(f"the name of a function must be text and not empty, got {f.name!r}")
        for p in self.items(f.params, "the parameters"):
            if isinstance(p, Var):
                self.bind(p, "scalar parameter")
            elif not isinstance(p, Buffer):
                raise self.fail(f"a parameter is a Buffer or a Var, got {_kind(p)}")
            elif p.pad.const != 0 or p.align:
                found = f"align={[*map(tuple, p.align)]}" if p.align else f"pad={p.pad}"
                raise self.fail(f"the parameter {p.name} has {found}; only allocations can be padded, arguments have no padding")
        self.everywhere = self.scope
        for b in (*[p for p in f.params if isinstance(p, Buffer)], *self.items(f.allocs, "the allocations")):
            self.buffer(b)
        self.annotations(f.attrs)
        strange = sorted(set(f.constants) - {p.name for p in f.params if isinstance(p, Buffer)})
        if strange:
            rest = "is not a buffer parameter" if len(strange) == 1 else "are not buffer parameters"
            raise self.fail(f"the attribute `constants` names {', '.join(strange)}, which {rest}")
        self.stmt(f.body)

    # ---- small checks

    def items(self, xs: Any, what: str) -> tuple[Any, ...]:
        if type(xs) is not tuple:
            raise self.fail(f"{what} must be a tuple, got {_kind(xs)}")
        return xs

    def bind(self, v: Any, what: str) -> None:
        if not isinstance(v, Var) or isinstance(v, Param):
            raise self.fail(f"a {what} must be a Var, got {_kind(v)}")
        if v in self.bound:
            raise self.fail(f"the variable {v} is bound twice; a copied loop or block needs new variables (visit.fresh_copy)")
        self.bound.add(v)
        self.scope = self.scope | {v}

    def buffer(self, b: Any) -> None:
        if not isinstance(b, Buffer):
            raise self.fail(f"a buffer was expected, got {_kind(b)}")
        if b in self.buffers:
            raise self.fail(f"the buffer {b.name} is declared twice")
        for s in b.sizes:
            self.index(s, f"the shape of {b.name}")
        for s in (*b.shape, b.pad):
            if s.const is not None and s.const < 0:
                raise self.fail(f"the buffer {b.name} has the negative extent {s}")
        for a in b.align:
            if not -len(b.shape) <= a.axis < -1 or (a.factor.const is not None and a.factor.const < 1):
                what = f"axis is in [{-len(b.shape)}, -2], because elements of the last dimension are adjacent, and factor is at least 1"
                raise self.fail(f"the buffer {b.name} has the alignment {tuple(a)}; {what}")
        self.buffers.add(b)

    def index(self, p: Any, what: str) -> None:
        if type(p) is not Poly:
            raise self.fail(f"{what} must be an index expression (Poly), got {_kind(p)}")
        if p.vars <= self.scope:
            return
        for v in sorted(p.vars - self.scope, key=lambda v: v.key):
            if isinstance(v, Param):
                other = self.params.setdefault((v.name, v.domain), v)
                if other is not v:
                    raise self.fail(f"two different Params have the name {v.name} and one domain; rename one")
            elif v in self.reductions:
                raise self.fail(f"{what} uses the reduction variable {v} in the init, which runs before the reduction")
            elif v in self.bound:
                raise self.fail(f"{what}, {p}, uses the variable {v} outside its binder")
            else:
                raise self.fail(f"{what}, {p}, uses the variable {v}, which nothing binds")

    def annotations(self, notes: Any) -> None:
        if not notes and notes == ():
            return
        keys = []
        for note in self.items(notes, "annotations"):
            if type(note) is not tuple or len(note) != 2 or not isinstance(note[0], str):
                raise self.fail(f"an annotation is a pair (text, value), got {note!r}")
            key, value = note
            keys.append(key)
            if not isinstance(value, str):
                self.index(value, f"the annotation {key}")
        if any(a >= b for a, b in pairwise(keys)):
            raise self.fail(f"annotations must be sorted by key, each key once, got {', '.join(keys)}")

    # ---- statements

    def stmt(self, s: Any) -> None:
        check = self._STMTS.get(type(s))
        if check is None:
            raise self.fail(f"a statement was expected, got {_kind(s)}")
        self.seen = {}
        check(self, s)

    def _for(self, s: For) -> None:
        outer, threads = self.scope, self.threads
        self.path.append(str(s.var))
        self.index(s.extent, "the loop extent")
        if s.kind not in FOR_KINDS:
            raise self.fail(f"unknown loop kind {s.kind!r}; kinds are {', '.join(FOR_KINDS)}")
        if s.kind == "thread":
            if s.thread not in AXES:
                raise self.fail(f"unknown thread tag {s.thread!r}; tags are {', '.join(AXES)}")
            if s.thread in threads and not s.thread.startswith("threadIdx"):
                raise self.fail(f"the thread tag {s.thread} is bound by two nested loops")
            self.threads = (*threads, s.thread)
        elif s.thread is not None:
            raise self.fail(f"a {s.kind} loop has the thread tag {s.thread}; only loops of kind thread have one")
        self.annotations(s.annotations)
        self.bind(s.var, "loop variable")
        self.stmt(s.body)
        self.scope, self.threads = outer, threads
        self.path.pop()

    def _block(self, s: Block) -> None:
        outer, forbidden = self.scope, self.reductions
        if not isinstance(s.name, str) or not s.name:
            raise self.fail(f"the name of a block must be text and not empty, got {s.name!r}")
        self.path.append(s.name)
        if s.name in self.blocks:
            raise self.fail(f"two blocks are named {s.name}; block names must be unique")
        self.blocks.add(s.name)
        if len(self.items(s.iters, "iteration variables")) != len(self.items(s.bindings, "bindings")):
            raise self.fail(f"{len(s.iters)} iteration variables have {len(s.bindings)} bindings")
        for p in s.bindings:
            self.index(p, "a binding")
        for p in self.items(s.predicate, "the predicate"):
            self.index(p, "the predicate")
        self.annotations(s.annotations)
        inside = self._iters(s)
        if s.init is not None:
            self.reductions = frozenset([i.var for i in s.iters if i.kind == "R"])
            self.scope = inside - self.reductions
            self.path.append("init")
            self.stmt(s.init)
            self.path.pop()
            self.reductions = frozenset()
        self.scope = inside
        self.stmt(s.body)
        self.scope, self.reductions = outer, forbidden
        self.path.pop()

    def _iters(self, s: Block) -> frozenset[Any]:
        """The variables in scope in the body of the block."""
        for i in s.iters:
            if type(i) is not Iter:
                raise self.fail(f"an iteration variable is an Iter, got {_kind(i)}")
            if i.kind not in ("S", "R"):
                raise self.fail(f"the kind of the iteration variable {i.var} is S or R, got {i.kind!r}")
            self.index(i.extent, f"the extent of {i.var}")
        self.scope = self.everywhere
        for i in s.iters:
            self.bind(i.var, "iteration variable")
        return self.scope

    def _seq(self, s: Seq) -> None:
        if not self.items(s.stmts, "the statements of a Seq"):
            raise self.fail("a Seq must hold at least one statement")
        for x in s.stmts:
            self.stmt(x)

    def _if(self, s: If) -> None:
        if self.value(s.cond) != "bool":
            raise self.fail(f"the condition of an If must be a bool, got {s.cond.dtype}")
        self.stmt(s.then)
        if s.orelse is not None:
            self.stmt(s.orelse)

    def _while(self, s: While) -> None:
        if self.value(s.cond) != "bool":
            raise self.fail(f"the condition of a While must be a bool, got {s.cond.dtype}")
        for n in walk_objects(s.body):
            if isinstance(n, Block) or (isinstance(n, For) and n.kind == "thread"):
                found = f"the block {n.name}" if isinstance(n, Block) else f"the loop {n.var}, which is bound to {n.thread}"
                raise self.fail(f"a While contains {found}: put the While inside")
        self.stmt(s.body)

    def _allocate(self, s: Allocate) -> None:
        self.buffer(s.buffer)
        self.stmt(s.body)
        self.buffers.remove(s.buffer)

    def _evaluate(self, s: Evaluate) -> None:
        self.value(s.value)

    def _store(self, s: BufferStore) -> None:
        if isinstance(s.value, Expr):
            with suppress(TypeError, AttributeError):  # fields that are not nodes are rejected below
                check_size(s.value, f"the value stored to {_name(s.buffer)}")
        dtype = self.value(s.value)
        self.access(s, f"the store to {_name(s.buffer)}")
        if dt.element(dtype) != s.buffer.dtype:
            raise self.fail(f"a value of {dtype} is stored to {s.buffer!r}; write an explicit cast")
        self.vector_part(s, dt.lanes(dtype), f"the store to {s.buffer.name}")

    # ---- memory

    def access(self, s: BufferStore | BufferLoad, what: str) -> None:
        b = s.buffer
        if not isinstance(b, Buffer) or b not in self.buffers:
            raise self.fail(f"{what} uses a buffer that is neither a parameter nor allocated here: {b!r}")
        if len(self.items(s.indices, f"the indices of {what}")) != len(b.shape):
            raise self.fail(f"{what} has {len(s.indices)} indices and the buffer {len(b.shape)} dimensions")
        for p in s.indices:
            self.index(p, f"an index of {what}")

    def vector_part(self, s: BufferStore | BufferLoad, lanes: int, what: str) -> None:
        if lanes == 1:
            if s.stride is not None or s.mask is not None:
                raise self.fail(f"{what} is scalar and has a stride or a mask")
            return
        if not s.indices:
            raise self.fail(f"{what} is a vector and the buffer has no dimension")
        for p, part in ((s.stride, "stride"), (s.mask, "mask")):
            if p is not None:
                self.index(p, f"the {part} of {what}")

    # ---- values

    def value(self, e: Any) -> str:
        """Check an expression and return its dtype."""
        known = self.seen.get(id(e))
        if known is not None:
            return known
        check = self._VALUES.get(type(e))
        if check is None:
            raise self.fail(f"a value expression was expected, got {_kind(e)}")
        dtype = self.seen[id(e)] = check(self, e)
        return dtype

    def values(self, es: Iterable[Any]) -> list[str]:
        return [self.value(e) for e in es]

    def dtype(self, dtype: Any) -> str:
        if not isinstance(dtype, str):
            raise self.fail(f"a dtype is text such as float32, got {dtype!r}")
        try:
            count = dt.lanes(dtype)
        except ScriptError as e:
            raise self.fail(str(e)) from None
        if count < 1:
            raise self.fail(f"the dtype {dtype} has no lanes")
        return dtype

    def lanes(self, n: Any, what: str) -> int:
        if type(n) is not int or n < 1:
            raise self.fail(f"{what} has {n!r} lanes; lanes are an int >= 1")
        return n

    def _poly(self, e: Poly) -> str:
        self.index(e, "an index used as a value")
        return dt.INDEX

    def _const(self, e: Const) -> str:
        dtype, v = self.dtype(e.dtype), e.value
        if dtype == "bool":
            fits = isinstance(v, bool)
        elif dtype in _INT_RANGES:
            low, high = _INT_RANGES[dtype]
            fits = type(v) is int and low <= v <= high
        else:
            fits = dt.lanes(dtype) == 1 and isinstance(v, float)
        if not fits:
            raise self.fail(f"the literal {v!r} is not a value of {dtype}")
        return dtype

    def _binary(self, e: Binary) -> str:
        a, b = self.value(e.a), self.value(e.b)
        if a != b:
            raise self.fail(f"the operands of {e.op} have different types {a} and {b}")
        scalar = dt.element(a)
        if e.op in LOGIC:
            fits = scalar == "bool"
        elif e.op in COMPARISONS:
            return dt.vector("bool", dt.lanes(a))
        elif e.op not in ARITHMETIC:
            raise self.fail(f"unknown operator {e.op!r}; operators are {', '.join((*ARITHMETIC, *COMPARISONS, *LOGIC))}")
        elif e.op in _INTEGER_ONLY:
            fits = dt.is_int(scalar)
        else:
            fits = dt.is_float(scalar) if e.op == "div" else scalar != "bool"
        if not fits:
            raise self.fail(f"the operator {e.op} is not defined for {a}")
        return a

    def _not(self, e: Not) -> str:
        a = self.value(e.a)
        if dt.element(a) != "bool":
            raise self.fail(f"Not needs a bool, got {a}")
        return a

    def _is_negative(self, e: IsNegative) -> str:
        self.index(e.index, "an index condition")
        if self.lanes(e.lanes, "an index condition") == 1 and e.stride is not None:
            raise self.fail("a scalar index condition has a stride")
        if e.stride is not None:
            self.index(e.stride, "the stride of an index condition")
        return dt.vector("bool", e.lanes)

    def _select(self, e: Select) -> str:
        cond, a, b = self.values((e.cond, e.a, e.b))
        if dt.element(cond) != "bool":
            raise self.fail(f"the condition of a Select must be a bool, got {cond}")
        if a != b:
            raise self.fail(f"the sides of a Select have different types {a} and {b}")
        if dt.lanes(cond) not in (1, dt.lanes(a)):
            raise self.fail(f"a Select of {a} has a condition of {dt.lanes(cond)} lanes")
        return a

    def _cast(self, e: Cast) -> str:
        dtype, a = self.dtype(e.dtype), self.value(e.a)
        if dt.lanes(dtype) != dt.lanes(a):
            raise self.fail(f"a Cast from {a} to {dtype} changes the number of lanes")
        return dtype

    def _call(self, e: Call) -> str:
        dtype, args = self.dtype(e.dtype), self.values(self.items(e.args, "the arguments of a Call"))
        known = INTRINSICS.get(e.name) if isinstance(e.name, str) else None
        if known is None:
            raise self.fail(f"unknown intrinsic {e.name!r}; known are {', '.join(sorted(INTRINSICS))}")
        if len(args) != known.arity:
            raise self.fail(f"the intrinsic {e.name} takes {known.arity} arguments and got {len(args)}")
        if known.operands:
            wanted = [dt.vector(t, n * dt.lanes(dtype)) for t, n in known.operands]
            if args != wanted:
                raise self.fail(f"the intrinsic {e.name} to {dtype} takes {', '.join(wanted)} and got {', '.join(args)}")
        elif len(set(args)) > 1:
            raise self.fail(f"the arguments of {e.name} have different types {', '.join(args)}")
        if known.reduces:
            fits = dt.lanes(args[0]) > 1 and dtype == dt.element(args[0])
        elif e.name == "reinterpret":
            fits = dt.lanes(dtype) * dt.bits(dtype) == dt.lanes(args[0]) * dt.bits(args[0])
        elif known.concatenates:
            fits = dtype == dt.vector(dt.element(args[0]), dt.lanes(args[0]) * known.arity)
        elif not args:
            fits = True
        elif e.name == "isnan":
            fits = dtype == dt.vector("bool", dt.lanes(args[0]))
        elif e.name in PREFETCHES:
            fits = type(e.args[0]) is BufferLoad
        else:
            fits = dtype == args[0]
        if not fits or (args and refused_operand(e.name, args[0])):
            raise self.fail(f"the intrinsic {e.name} does not take {args[0]} to {dtype}")
        return dtype

    def _broadcast(self, e: Broadcast) -> str:
        a = self.value(e.a)
        if dt.lanes(a) != 1:
            raise self.fail(f"Broadcast repeats a scalar, got {a}")
        return dt.vector(a, self.lanes(e.lanes, "Broadcast"))

    def _ramp(self, e: Ramp) -> str:
        self.index(e.base, "the base of a Ramp")
        self.index(e.stride, "the stride of a Ramp")
        return dt.vector(dt.INDEX, self.lanes(e.lanes, "Ramp"))

    def _bind_index(self, s: BindIndex) -> None:
        if any(type(n) is Block for n in walk_objects(s.body)):
            raise self.fail(f"the indirect index {s.var} of stores contains a block: bind it inside the block")
        outer = self.scope
        self._bound_index(s)
        self.stmt(s.body)
        self.scope = outer

    def _indirect_index(self, e: IndirectIndex) -> str:
        outer = self.scope
        self._bound_index(e)
        dtype = self.value(e.body)
        self.scope = outer
        return dtype

    def _bound_index(self, e: IndirectIndex | BindIndex) -> None:
        """Check an indirect index, and bring its variable into scope."""
        self.index(e.extent, "the extent of an indirect index")
        if not isinstance(e.var, IndirectVar):
            raise self.fail(f"an indirect index binds an IndirectVar, got {_kind(e.var)}")
        if e.var in self.scope:
            raise self.fail(f"the variable {e.var} of an indirect index is already bound outside of it")
        if self.value(e.value) != dt.INDEX:
            raise self.fail(f"the value of an indirect index must be {dt.INDEX}, got {self.value(e.value)}")
        self.scope = self.scope | {e.var}
        self.bound.add(e.var)

    def _load(self, e: BufferLoad) -> str:
        what = f"the load of {_name(e.buffer)}"
        self.access(e, what)
        self.vector_part(e, self.lanes(e.lanes, what), what)
        return dt.vector(e.buffer.dtype, e.lanes)

    _STMTS: Mapping[type, Callable[[Any, Any], None]] = {
        For: _for,
        Block: _block,
        Seq: _seq,
        If: _if,
        While: _while,
        Allocate: _allocate,
        Evaluate: _evaluate,
        BindIndex: _bind_index,
        BufferStore: _store,
    }
    _VALUES: Mapping[type, Callable[[Any, Any], str]] = {
        Poly: _poly,
        Const: _const,
        Binary: _binary,
        Not: _not,
        IsNegative: _is_negative,
        Select: _select,
        Cast: _cast,
        Call: _call,
        Broadcast: _broadcast,
        Ramp: _ramp,
        BufferLoad: _load,
        IndirectIndex: _indirect_index,
    }


def _name(b: Any) -> str:
    return b.name if isinstance(b, Buffer) else _kind(b)


def _kind(x: object) -> str:
    if x is None:
        return "None"
    name = type(x).__name__
    if isinstance(x, (Node, Buffer, Var)):
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
    return f"the {name} {x!r}"
