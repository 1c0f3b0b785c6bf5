"""Emit expressions in LLVM IR, one method per node; shared subtrees and loads are emitted once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tunesmith.codegen.cpu.active_lanes import active_lanes
from tunesmith.codegen.cpu.order import NESTED, needs_branch, operands_first
from tunesmith.codegen.cpu.strided_pieces import STRIDES
from tunesmith.codegen.llvm.kernel.cast import convert, in_float32, rounded_operand
from tunesmith.codegen.llvm.kernel.division import divided, positively_divided
from tunesmith.codegen.llvm.kernel.dot_product import DOT_PRODUCTS, dot_product
from tunesmith.codegen.llvm.kernel.fold import folded
from tunesmith.codegen.llvm.kernel.masks import with_inactive_ones
from tunesmith.codegen.llvm.kernel.scale import scaled
from tunesmith.codegen.llvm.kernel.shift import shifted
from tunesmith.codegen.llvm.kernel.strided_load import strided_load
from tunesmith.codegen.llvm.text import literal, llvm_type, suffix, vector_literal
from tunesmith.ir.arith.divisors import is_usual_divisor
from tunesmith.ir.arith.interval import Range, bounds
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.poly import ONE, Op, Poly, Var, poly, split_constant
from tunesmith.ir.stmt import BindIndex
from tunesmith.ir.visit import substitute
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError, InternalError

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor"}
_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_UNKNOWN = (-(1 << 63), (1 << 63) - 1)
_UNARY = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}


class ExprEmitter:
    """Emitter of expressions into a growing function body.

    A value computed in a control-flow region is valid in the regions inside it, not after it: `_known` holds the values that are valid now,
    `_regions` the keys that each open region has added, and `loads` the values that depend on memory, by buffer.  `slots` maps the register
    buffers that `sroa` is to turn into values to the number of elements that each must hold.
    """

    def __init__(self, declares: set[str], has_avx512: bool) -> None:
        self.lines: list[str] = []
        self.declares = declares
        self.has_avx512 = has_avx512
        self.count = 0
        self.env: dict[Var, str] = {}
        self.ranges: dict[Var, tuple[int, int]] = {}
        self.base: dict[Buffer, str] = {}
        self.slots: dict[Buffer, int] = {}
        self.loads: list[dict[Buffer, dict[Any, str]]] = [{}]
        self._known: dict[Any, str] = {}
        self._regions: list[list[Any]] = [[]]
        self._declared: set[str] = set()
        self._nested = 0

    # ---- plumbing ------------------------------------------------------------------------------------------------------

    def fresh(self, hint: str = "v") -> str:
        """A fresh SSA name."""
        self.count += 1
        return f"%{hint}{self.count}"

    def op(self, text: str) -> str:
        """Emit an instruction with a result."""
        r = self.fresh()
        self.lines.append(f"  {r} = {text}")
        return r

    def do(self, text: str) -> None:
        """Emit an instruction without a result."""
        self.lines.append(f"  {text}")

    def call(self, dtype: str, name: str, args: list[tuple[str, str]]) -> str:
        """Call a declared function; args are (LLVM type, value)."""
        if name not in self._declared:
            self._declared.add(name)
            self.declares.add(f"declare {dtype} @{name}({', '.join([t for t, _ in args])})")
        text = f"call {dtype} @{name}({', '.join([f'{t} {v}' for t, v in args])})"
        if dtype == "void":
            self.do(text)
            return ""
        return self.op(text)

    def _memo(self, key: Any, make: Callable[[], str]) -> str:
        r = self._known.get(key)
        if r is None:
            r = make()
            self.remember(key, r)
        return r

    def remember(self, key: Any, value: str) -> None:
        """Record `value` as the value of `key` until this region ends."""
        self._known[key] = value
        self._regions[-1].append(key)

    def _close(self) -> None:
        for key in self._regions.pop():
            del self._known[key]

    # ---- indices -------------------------------------------------------------------------------------------------------

    def index(self, p: Poly) -> str:
        """An i64 value."""
        c = p.const
        if c is not None:
            return str(c)
        return self._memo(p, lambda: self._index(p))

    def _index(self, p: Poly) -> str:
        total: str | None = None
        offset = 0
        for m, c in p.terms:
            if not m:
                offset = c
                continue
            t: str | None = None
            for v in map(self._atom, m):
                t = v if t is None else self.op(f"mul nsw i64 {t}, {v}")
            assert t is not None
            if c != 1:
                t = self.op(f"mul nsw i64 {t}, {c}")
            total = t if total is None else self.op(f"add nsw i64 {total}, {t}")
        assert total is not None
        return self.op(f"add nsw i64 {total}, {offset}") if offset else total

    def _atom(self, a: Any) -> str:
        if type(a) is not Op:
            if a not in self.env:
                raise InternalError(f"loop variable {a.name} is used outside its loop")
            return self.env[a]
        return self._memo(a, lambda: self._operation(a))

    def _operation(self, a: Op) -> str:
        if a.op in ("min", "max"):
            r = self.index(a.args[0])
            for x in a.args[1:]:
                y = self.index(x)
                c = self.op(f"icmp {'slt' if a.op == 'min' else 'sgt'} i64 {r}, {y}")
                r = self.op(f"select i1 {c}, i64 {r}, i64 {y}")
            return r
        x, d = a.args
        if not self._at_least(d, 1):
            return self._any_division(a.op, x, d)
        x, op = (x + d - 1, "floordiv") if a.op == "ceildiv" else (x, a.op)
        return positively_divided(op, self.index(x), self.index(d), d.const, lambda: self._at_least(x, 0), self.op)

    def _range(self, p: Poly) -> Range:
        """Lowest and highest value, as far as known."""
        return bounds(p, self.ranges) if all(v in self.ranges for v in p.vars) else _UNKNOWN

    def _at_least(self, x: Poly, low: int) -> bool:
        return x.const >= low if x.const is not None else self._range(x)[0] >= low

    def _any_division(self, op: str, x: Poly, d: Poly) -> str:
        """Division by a divisor that may be 0 or less: the guard that excludes this may come after the division."""
        if op == "ceildiv":
            return self.op(f"sub i64 0, {self._any_division('floordiv', -x, d)}")
        unsigned = self._at_least(x, 0) and self._at_least(d, 0)
        return divided(op, "i64", self.index(x), self.index(d), unsigned, self.op)

    # ---- addresses -----------------------------------------------------------------------------------------------------

    def address(self, buffer: Buffer, p: Poly) -> str:
        """The pointer to element `p`: a pointer for the varying part, which loops carry, plus a constant offset."""
        known = self._known.get((buffer, p))
        if known is not None:
            return known
        varying, c = split_constant(p)
        root = self.pointer(buffer, varying)
        if not c:
            return root
        at = self.op(f"getelementptr inbounds i8, ptr {root}, i64 {c * dt.nbytes(buffer.dtype)}")
        self.remember((buffer, p), at)
        return at

    def pointer(self, buffer: Buffer, p: Poly) -> str:
        """The pointer to element `p`, which has no constant term."""
        if not p.terms:
            return self.base[buffer]
        return self._memo((buffer, p), lambda: self._pointer(buffer, p))

    def _pointer(self, buffer: Buffer, p: Poly) -> str:
        return self.op(f"getelementptr inbounds {llvm_type(buffer.dtype)}, ptr {self.base[buffer]}, i64 {self.index(p)}")

    def mask(self, count: Poly, lanes: int) -> str:
        """The vector of i1 whose first `count` lanes are true."""
        c = count.const
        if c is not None:
            return vector_literal(["true" if i < c else "false" for i in range(lanes)], "i1")
        return self._memo(("mask", count, lanes), lambda: self._mask(count, lanes))

    def _mask(self, count: Poly, lanes: int) -> str:
        n = self.op(f"trunc i64 {self.index(count)} to i32")
        ids = vector_literal([str(i) for i in range(lanes)], "i32")
        return self.op(f"icmp slt <{lanes} x i32> {ids}, {self._splat('i32', n, lanes)}")

    def _splat(self, element: str, value: str, lanes: int) -> str:
        v = f"<{lanes} x {element}>"
        one = self.op(f"insertelement {v} poison, {element} {value}, i64 0")
        return self.op(f"shufflevector {v} {one}, {v} poison, <{lanes} x i32> zeroinitializer")

    # ---- expressions ---------------------------------------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """The SSA value of an expression."""
        t = type(e)
        if isinstance(e, Const):
            return literal(e.value, e.dtype)
        if isinstance(e, Poly):
            return self.index(e)
        if isinstance(e, BufferLoad):
            return self._load(e)
        if isinstance(e, Broadcast) and type(e.a) is Const:
            return vector_literal([literal(e.a.value, e.a.dtype)] * e.lanes, llvm_type(e.a.dtype))
        if isinstance(e, Broadcast):
            scalar = self.value(e.a)
            return self._memo(("splat", scalar, e.dtype), lambda: self._splat(llvm_type(e.a.dtype), scalar, e.lanes))
        for table in self.loads:
            known = table.get(_NOWHERE, _NONE).get(e)
            if known is not None:
                return known
        self._nested += 1
        if self._nested > NESTED:
            for part in operands_first(e, self._is_computed):
                self.value(part)
        r = _EMIT[t](self, e)
        self._nested -= 1
        self.loads[-1].setdefault(_NOWHERE, {})[e] = r
        return r

    def _is_computed(self, e: Any) -> bool:
        """Whether the value is available, computed in this region or an enclosing one."""
        if type(e) is BufferLoad:
            return any((e.indices[0], e.lanes, e.stride, e.mask) in table.get(e.buffer, _NONE) for table in self.loads)
        return any(e in table.get(_NOWHERE, _NONE) for table in self.loads)

    def _load(self, e: BufferLoad) -> str:
        key = (e.indices[0], e.lanes, e.stride, e.mask)
        for table in self.loads:
            known = table.get(e.buffer, _NONE).get(key)
            if known is not None:
                return known
        r = self.loads[-1].setdefault(e.buffer, {})[key] = self._emit_load(e)
        return r

    def _emit_load(self, e: BufferLoad) -> str:
        scalar = llvm_type(e.buffer.dtype)
        if e.buffer not in self.base:
            raise BuildError(f"the buffer {e.buffer.name} of scope {e.buffer.scope} is read by other code than tensor intrinsics")
        if e.buffer.dtype == "bool":
            raise BuildError("the LLVM backend does not support tensors of bools; run the lowering pipeline first")
        size = dt.nbytes(e.buffer.dtype)
        mask = active_lanes(e.mask, e.lanes)
        if mask is not None and mask.const == 0:
            return "zeroinitializer"
        at = self.address(e.buffer, e.indices[0])
        if e.lanes == 1:
            return self.op(f"load {scalar}, ptr {at}, align {size}")
        vec = f"<{e.lanes} x {scalar}>"
        if e.stride == ONE:
            # A masked load would keep a register buffer in memory.  Uses of the inactive lanes are masked themselves.
            if mask is None or self.is_whole(e.buffer, e.indices[0], e.lanes, mask):
                return self.op(f"load {vec}, ptr {at}, align {self.alignment(e.buffer, e.indices[0], e.lanes)}")
            m = self.mask(mask, e.lanes)
            args = [("ptr", at), ("i32", str(size)), (f"<{e.lanes} x i1>", m), (vec, "zeroinitializer")]
            return self.call(vec, f"llvm.masked.load.{suffix(e.dtype)}.p0", args)
        step = None if e.stride is None else e.stride.const
        if mask is None and step in STRIDES and e.buffer.scope != "register":
            return strided_load(scalar, size, e.lanes, step, at, self.op)
        m = self.mask(mask if mask is not None else poly(e.lanes), e.lanes)
        args = [(f"<{e.lanes} x ptr>", self.strided(e, at)), ("i32", str(size)), (f"<{e.lanes} x i1>", m), (vec, "zeroinitializer")]
        return self.call(vec, f"llvm.masked.gather.{suffix(e.dtype)}.v{e.lanes}p0", args)

    def strided(self, e: Any, at: str) -> str:
        """The vector of addresses of a strided access."""
        lanes = dt.lanes(e.dtype if isinstance(e, BufferLoad) else e.value.dtype)
        step = self.index((ONE if e.stride is None else e.stride) * dt.nbytes(e.buffer.dtype))
        ids = vector_literal([str(i) for i in range(lanes)], "i64")
        offsets = self.op(f"mul <{lanes} x i64> {ids}, {self._splat('i64', step, lanes)}")
        return self.op(f"getelementptr i8, ptr {at}, <{lanes} x i64> {offsets}")

    def alignment(self, buffer: Buffer, p: Poly, lanes: int) -> int:
        """Known alignment in bytes: one element; a whole vector for aligned accesses to register buffers."""
        size = dt.nbytes(buffer.dtype)
        if buffer.scope == "register" and p.const is not None and p.const % lanes == 0:
            return size * lanes
        return size

    def is_whole(self, buffer: Buffer, p: Poly, lanes: int, mask: Poly) -> bool:
        """Whether a masked vector at element `p` may be accessed unmasked: in a register buffer, which is enlarged for it."""
        held = self.slots.get(buffer)
        if held is None:
            return False
        last = buffer.shape[0].as_int() - 1
        low, high = bounds(p, self.ranges) if all(v in self.ranges for v in p.vars) else (-1, last)
        if mask.const is None and not 0 <= low <= high <= last:
            return False  # with no active lane the index may be out of range
        self.slots[buffer] = max(held, min(high, last) + lanes)
        return True

    def forget(self, buffer: Buffer) -> None:
        """Invalidate loads of a buffer, and all computed values, after a store to it."""
        for table in self.loads:
            table.pop(buffer, None)
            table.pop(_NOWHERE, None)

    def enter(self) -> None:
        """Begin a control-flow region."""
        self._regions.append([])
        self.loads = [{}]

    def leave(self) -> None:
        """End a control-flow region."""
        self._close()
        self.loads = [{}]

    # ---- node by node --------------------------------------------------------------------------------------------------

    def _binary(self, e: Binary) -> str:
        if dt.element(e.a.dtype) == "bfloat16" and (e.op in _FLOAT or e.op in _COMPARE or e.op in ("min", "max")):
            return self.value(in_float32(e))
        ty = llvm_type(e.a.dtype)
        fp = dt.is_float(e.a.dtype)
        unsigned = dt.is_unsigned(e.a.dtype) or dt.element(e.a.dtype) == "bool"  # true is the bit 1, which is -1 as a signed number
        if e.op in _COMPARE:
            kind = _COMPARE[e.op]
            sign = "" if kind in ("eq", "ne") else "u" if unsigned else "s"
            cmp = f"fcmp {'u' if kind == 'ne' else 'o'}{kind}" if fp else f"icmp {sign}{kind}"
            return self.op(f"{cmp} {ty} {self.value(e.a)}, {self.value(e.b)}")
        if e.op in ("and", "or"):
            return self.op(f"{e.op} {ty} {self.value(e.a)}, {self.value(e.b)}")
        if fp and e.op in ("min", "max"):
            return self._float_extremum(e, ty)
        a, b = self.value(e.a), self.value(e.b)
        if fp and e.op in _FLOAT:
            b = with_inactive_ones(e.b, b, self.mask, self.op) if e.op == "div" else b
            return self.op(f"{_FLOAT[e.op]} {ty} {a}, {b}")
        if e.op in ("min", "max"):
            return self.call(ty, f"llvm.{'u' if unsigned else 's'}{e.op}.{suffix(e.a.dtype)}", [(ty, a), (ty, b)])
        if e.op in ("shl", "shr"):
            return shifted(e, a, b, self.op)
        if e.op in _INT and not fp:
            return self.op(f"{_INT[e.op]} {ty} {a}, {b}")
        if e.op in ("floordiv", "mod") and not fp:
            return divided(e.op, ty, a, b, unsigned, self.op, is_usual_divisor(e.b, self._range))
        raise BuildError(f"the LLVM backend has no code for `{e.op}` on {e.a.dtype}; expand it in lowering first")

    def _float_extremum(self, e: Binary, ty: str) -> str:
        """Minimum or maximum that propagates NaN.  One comparison suffices if `b` is a constant; a variable `b` needs a second test."""
        plain = e.b.a if type(e.b) is Broadcast else e.b
        safe = type(plain) is Const and plain.value == plain.value
        return self._larger(e.op, ty, dt.lanes(e.dtype), self.value(e.a), self.value(e.b), safe)

    def _larger(self, op: str, ty: str, lanes: int, a: str, b: str, safe: bool) -> str:
        """max or min of a and b; `safe` if b is never NaN."""
        bit = f"<{lanes} x i1>" if lanes > 1 else "i1"
        c = self.op(f"fcmp {'ogt' if op == 'min' else 'olt'} {ty} {a}, {b}")
        m = self.op(f"select {bit} {c}, {ty} {b}, {ty} {a}")
        return m if safe else self.op(f"select {bit} {self.op(f'fcmp uno {ty} {b}, {b}')}, {ty} {b}, {ty} {m}")

    def _not(self, e: Not) -> str:
        ones = "true" if dt.lanes(e.dtype) == 1 else vector_literal(["true"] * dt.lanes(e.dtype), "i1")
        return self.op(f"xor {llvm_type(e.dtype)} {self.value(e.a)}, {ones}")

    def _is_negative(self, e: IsNegative) -> str:
        if e.lanes == 1:
            return self.op(f"icmp slt i64 {self.index(e.index)}, 0")
        ramp = self._ramp(Ramp(e.index, ONE if e.stride is None else e.stride, e.lanes))
        return self.op(f"icmp slt <{e.lanes} x i64> {ramp}, zeroinitializer")

    def _ramp(self, e: Ramp) -> str:
        ids = vector_literal([str(i) for i in range(e.lanes)], "i64")
        steps = self.op(f"mul <{e.lanes} x i64> {ids}, {self._splat('i64', self.index(e.stride), e.lanes)}")
        return self.op(f"add <{e.lanes} x i64> {steps}, {self._splat('i64', self.index(e.base), e.lanes)}")

    def _select(self, e: Select) -> str:
        c = self.value(e.cond)
        if dt.lanes(e.cond.dtype) == 1 and needs_branch(e, self._is_computed):
            return self._branch_select(e, c)
        ty = llvm_type(e.dtype)
        return self.op(f"select {llvm_type(e.cond.dtype)} {c}, {ty} {self.value(e.a)}, {ty} {self.value(e.b)}")

    def _branch_select(self, e: Select, c: str) -> str:
        """Branch on a scalar condition in front of a load, because the address of the other side may be out of range."""
        yes, no, end = self.label("then"), self.label("else"), self.label("join")
        self.do(f"br i1 {c}, label %{yes}, label %{no}")
        out: list[tuple[str, str]] = []
        for name, side in ((yes, e.a), (no, e.b)):
            self.start(name)
            keep = self.loads
            self._regions.append([])
            self.loads = [*keep, {}]
            v = self.value(side)
            self.loads = keep
            self._close()
            out.append((v, self.block))
            self.do(f"br label %{end}")
        self.start(end)
        return self.op(f"phi {llvm_type(e.dtype)} " + ", ".join(f"[ {v}, %{b} ]" for v, b in out))

    block = "entry"

    def label(self, hint: str) -> str:
        """A fresh label."""
        self.count += 1
        return f"{hint}{self.count}"

    def start(self, name: str) -> None:
        """Begin the basic block `name`."""
        self.lines.append(f"{name}:")
        self.block = name

    def _cast(self, e: Cast) -> str:
        x = rounded_operand(e)
        if x is not None:
            wide = dt.vector("int32", dt.lanes(e.dtype))
            near = self.call(llvm_type(wide), f"llvm.lrint.{suffix(wide)}.{suffix(x.dtype)}", [(llvm_type(x.dtype), self.value(x))])
            return convert(self.op, near, wide, e.dtype)
        return convert(self.op, self.value(e.a), e.a.dtype, e.dtype)

    def _call(self, e: Call) -> str:
        if e.name not in ("reinterpret", *DOT_PRODUCTS) and dt.element(e.args[0].dtype) == "bfloat16":
            return self.value(in_float32(e))
        ty = llvm_type(e.dtype)
        if e.name == "abs" and dt.is_int(e.dtype):
            a = self.value(e.args[0])
            return a if dt.is_unsigned(e.dtype) else self.call(ty, f"llvm.abs.{suffix(e.dtype)}", [(ty, a), ("i1", "false")])
        if e.name in _UNARY:
            return self.call(ty, f"llvm.{_UNARY[e.name]}.{suffix(e.dtype)}", [(ty, self.value(e.args[0]))])
        if e.name in ("fma", "copysign"):
            return self.call(ty, f"llvm.{e.name}.{suffix(e.dtype)}", [(ty, self.value(a)) for a in e.args])
        if e.name == "isnan":
            src = llvm_type(e.args[0].dtype)
            v = self.value(e.args[0])
            return self.op(f"fcmp uno {src} {v}, {v}")
        if e.name == "reinterpret":
            return self.op(f"bitcast {llvm_type(e.args[0].dtype)} {self.value(e.args[0])} to {ty}")
        if e.name == "ldexp":
            return self._ldexp(e, ty)
        if e.name.startswith("reduce_"):
            return self._reduce(e)
        if e.name in DOT_PRODUCTS:
            return dot_product(e, [self.value(a) for a in e.args], self.op, self.call)
        raise BuildError(
            f"the LLVM backend has no code for the intrinsic {e.name!r} on {e.dtype}; it should have been expanded in lowering"
        )

    def _ldexp(self, e: Call, ty: str) -> str:
        x, n = self.value(e.args[0]), self.value(e.args[1])
        if self.has_avx512 and e.dtype == "float32x16":
            full = [(ty, x), (ty, n), (ty, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]
            return self.call(ty, "llvm.x86.avx512.mask.scalef.ps.512", full)
        return scaled(self.op, self.call, e.dtype, x, n)

    def _reduce(self, e: Call) -> str:
        src = e.args[0]
        vt, st, v = llvm_type(src.dtype), llvm_type(e.dtype), self.value(e.args[0])
        if not dt.is_float(e.dtype):
            sign = "u" if dt.is_unsigned(e.dtype) else "s"
            kind = {"reduce_add": "add", "reduce_max": f"{sign}max", "reduce_min": f"{sign}min"}[e.name]
            return self.call(st, f"llvm.vector.reduce.{kind}.{suffix(src.dtype)}", [(vt, v)])
        if e.name == "reduce_add":
            name = f"llvm.vector.reduce.fadd.{suffix(src.dtype)}"
            self.declares.add(f"declare {st} @{name}({st}, {vt})")
            return self.op(f"call reassoc {st} @{name}({st} {literal(-0.0, e.dtype)}, {vt} {v})")
        larger = partial(self._larger, e.name.removeprefix("reduce_"))
        return folded(lambda ty, lanes, a, b: larger(ty, lanes, a, b, False), src.dtype, v, self.op)

    def _indirect_index(self, e: IndirectIndex) -> str:
        return self.value(substitute(e.body, {e.var: poly(self.indirect_var(e))}))

    def indirect_var(self, e: IndirectIndex | BindIndex) -> IndirectVar:
        """A fresh variable with the value of an index: addresses are memoised by index, and copies of an index share its variable."""
        var = IndirectVar(e.var.name)
        self.env[var] = self.value(e.value)
        self.ranges[var] = (0, max(bounds(e.extent, self.ranges)[1] - 1, 0))
        return var


_NOWHERE = Buffer("nowhere", (1,))
"""Key of values that may depend on loads of any buffer."""
_NONE: dict[Any, str] = {}

_EMIT: dict[type, Callable[[ExprEmitter, Any], str]] = {
    Binary: ExprEmitter._binary,
    Not: ExprEmitter._not,
    IsNegative: ExprEmitter._is_negative,
    Ramp: ExprEmitter._ramp,
    Select: ExprEmitter._select,
    Cast: ExprEmitter._cast,
    Call: ExprEmitter._call,
    IndirectIndex: ExprEmitter._indirect_index,
}
