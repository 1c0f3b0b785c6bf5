"""Generate the Python source that the interpreter executes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.ir.buffer import TILE_SCOPE, Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import PRIVATE_SCOPES, SHARED_SCOPES
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.interpreter.memory import INFIX, InterpretError, ProgramPoint, poisoned, round_bfloat16, runtime
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.poly import Atom, Op, Param, Poly, Var, evaluate
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, Evaluate, For, If, Seq, Stmt, While
from tunesmith.ir.visit import walk
from tunesmith.support import dtype as dt

_MAX_LOOPS = 12
"""Python compiles at most 20 nested loops; deeper loops are outlined to separate functions."""
_MAX_INDENT = 60
_OWN = (*PRIVATE_SCOPES, *SHARED_SCOPES)
_PRIVATE = {"parallel": _OWN, "blockIdx": _OWN, "vthread": ("register", TILE_SCOPE, "local"), "vectorized": ()}
"""Storage scopes private to each iteration of a loop, by loop kind."""


class Compiler:
    """Generates Python source for a function; `env` is the namespace of the generated code."""

    def __init__(self, func: PrimFunc, values: Mapping[Var, int], check_races: bool) -> None:
        self.func, self.values, self.check_races = func, values, check_races
        self.env: dict[str, Any] = dict(runtime())
        self.lines: list[str] = []
        self.done: list[str] = []
        self.indent, self.loops, self.count = 1, 0, 0
        self.vars: dict[Atom, str] = {}
        self.arrays: dict[Buffer, str] = {}
        self.dims: dict[Buffer, list[str]] = {}
        self.locals: list[str] = []
        self.path: list[str] = []
        self.known: dict[tuple[int, str | None], str] = {}
        """Names of the expressions of the current statement, by identity: expanded intrinsics share subexpressions."""
        self.races: list[tuple[str, str, set[Buffer]]] = []
        """Enclosing loops whose iterations may run concurrently: (tracker, kind, buffers private to an iteration)."""

    # ---- memory and names

    def memory(self, b: Buffer, given: np.ndarray | None) -> np.ndarray:
        """The array of a parameter or an allocation of the function."""
        shape = tuple([self.number(s, f"the shape of {b.name}") for s in b.shape])
        kind = dt.to_numpy(b.dtype)
        if given is None:
            array = poisoned(shape, kind)
        else:
            array = np.array(given)
            if array.shape != shape or array.dtype != kind:
                raise InterpretError(
                    f"function {self.func.name}: the buffer {b.name} is {b.dtype} of shape {shape}, stored as {kind},"
                    f" and got an array of {array.dtype} with shape {array.shape}"
                )
            if b.dtype == "bfloat16":
                array = round_bfloat16(array)
        name = self.arrays[b] = self.fresh(b.name)
        self.env[name] = array
        self.dims[b] = [str(n) for n in shape]
        return array

    def number(self, p: Poly, what: str) -> int:
        missing = [v for v in p.vars if v not in self.values]
        if missing:
            raise InterpretError(f"function {self.func.name}: {what}, {p}, needs a value of {missing[0]!r} in `values`")
        return evaluate(p, self.values)

    def fresh(self, name: str) -> str:
        """A new Python name derived from `name`."""
        self.count += 1
        return f"_{re.sub(r'[^0-9a-zA-Z_]', '_', name)}_{self.count}"

    def local(self, name: str) -> str:
        made = self.fresh(name)
        self.locals.append(made)
        return made

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def temp(self, text: str) -> str:
        name = self.fresh("t")
        self.line(f"{name} = {text}")
        return name

    def hoist(self, value: Any) -> str:
        name = self.fresh("c")
        self.env[name] = value
        return name

    def point(self, buffer: Buffer | None = None) -> str:
        names = {n: v.name for v, n in self.vars.items() if isinstance(v, Var)}
        return self.hoist(ProgramPoint(self.func.name, "/" + "/".join(self.path), names, buffer))

    def compile(self) -> Any:
        self.stmt(self.func.body)
        source = "\n".join([*self.done, "def main():", *self.lines, "main()"])
        return compile(source, f"<interpreter of {self.func.name}>", "exec")

    # ---- index expressions

    def index(self, p: Poly) -> str:
        """Python source of an index expression, in parentheses unless it is a name or number."""
        if not isinstance(p, Poly):
            raise InterpretError(f"an index expression was expected in {self.func.name}, got {type(p).__name__}")
        if p.const is not None:
            return str(p.const) if p.const >= 0 else f"({p.const})"
        terms = []
        for m, c in p.terms:
            factors = [self.atom(a) for a in m]
            terms.append("*".join(factors if c == 1 and m else [str(c), *factors]))
        return terms[0] if len(terms) == 1 and p.as_atom() is not None else f"({' + '.join(terms)})"

    def atom(self, a: Atom) -> str:
        if type(a) is Op:
            x = [self.index(y) for y in a.args]
            if a.op not in ("min", "max") and a.args[1].const is None:
                return f"index_{a.op}({x[0]}, {x[1]})"
            if a.op == "floordiv":
                return f"({x[0]} // {x[1]})"
            if a.op == "ceildiv":
                return f"(-(-{x[0]} // {x[1]}))"
            return f"({x[0]} % {x[1]})" if a.op == "mod" else f"{a.op}({', '.join(x)})"
        name = self.vars.get(a)
        if name is not None:
            return name
        if a not in self.values:
            what = "Param" if isinstance(a, Param) else "variable"
            raise InterpretError(f"function {self.func.name}: the {what} {a!r} has no value: it is not bound here and not in `values`")
        return f"({int(self.values[a])})"

    def simple(self, p: Poly) -> str:
        """A name or number with the value of an index expression."""
        text = self.index(p)
        return text if re.fullmatch(r"\w+", text) else self.temp(text)

    # ---- statements

    def stmt(self, s: Stmt) -> None:
        write = self._STMTS.get(type(s))
        if write is None:
            raise InterpretError(f"function {self.func.name}: {type(s).__name__} is not a statement that can be interpreted")
        self.known = {}
        if self.loops >= _MAX_LOOPS or self.indent >= _MAX_INDENT:
            self.outlined(write, s)
        else:
            write(self, s)

    def outlined(self, write: Callable[[Any, Any], None], s: Stmt) -> None:
        """Write `s` to a new function that takes all local names."""
        name = self.fresh("part")
        header = f"{name}({', '.join(self.locals)})"
        outer = self.lines, self.indent, self.loops
        self.lines, self.indent, self.loops = [f"def {header}:"], 1, 0
        write(self, s)
        self.done += self.lines
        self.lines, self.indent, self.loops = outer
        self.line(header)

    def _for(self, s: For) -> None:
        kind = "thread" if s.kind == "thread" else s.kind
        if kind == "thread":
            kind = (s.thread or "").partition(".")[0]
            if kind not in ("blockIdx", "vthread"):
                raise InterpretError(
                    f"function {self.func.name}: the loop {s.var} is bound to {s.thread}, and threads of a block synchronize:"
                    " use ir.interpreter.threads.run_threads, or interpret the program before the loop is bound"
                )
        extent = self.index(s.extent)
        self.path.append(s.var.name)
        mark = len(self.locals)
        tracked = self.check_races and kind in _PRIVATE
        if tracked:
            tracker = self.local("races")
            where = f"the {kind} loop {s.var} of function {self.func.name}"
            self.line(f"{tracker} = Races({where!r})")
            private = self.private_to(s, kind)
            self.races.append((tracker, kind, set(private)))
        var = self.vars[s.var] = self.local(s.var.name)
        self.line(f"for {var} in range({extent}):")
        self.indent += 1
        self.loops += 1
        if tracked:
            self.line(f"{tracker}.iteration = {var}")
            # Values of other iterations must not be visible, which may run on other threads.  Outer loops may pass on the other buffers.
            for b in private:
                if self.loops == 1 or b.scope in _PRIVATE[kind]:
                    self.line(f"poison({self.arrays[b]})")
        self.stmt(s.body)
        self.indent -= 1
        self.loops -= 1
        if tracked:
            self.races.pop()
        del self.locals[mark:], self.vars[s.var]
        self.path.pop()

    def private_to(self, s: For, kind: str) -> list[Buffer]:
        """Buffers private to an iteration: those of private scopes, and intermediates used only inside a parallel loop."""

        def used(n: Stmt) -> list[Buffer]:
            return [x.buffer for x in walk(n) if isinstance(x, (BufferLoad, BufferStore))]

        inside = used(s.body)
        local = set(self.func.allocs) if kind == "parallel" else set()
        everywhere = used(self.func.body)
        return [
            b
            for b in dict.fromkeys(inside)
            if b in self.arrays and (b.scope in _PRIVATE[kind] or (b in local and inside.count(b) == everywhere.count(b)))
        ]

    def _block(self, s: Block) -> None:
        if len(s.iters) != len(s.bindings):
            raise InterpretError(
                f"function {self.func.name}: block {s.name} has {len(s.iters)} iteration variables and {len(s.bindings)} bindings"
            )
        self.path.append(s.name)
        indent, mark = self.indent, len(self.locals)
        if s.predicate:
            self.line(f"if {' and '.join([self.index(p) + ' < 0' for p in s.predicate])}:")
            self.indent += 1
        bindings = [self.index(b) for b in s.bindings]
        extents = [self.index(i.extent) for i in s.iters]
        names = [self.local(i.var.name) for i in s.iters]
        for i, name, binding in zip(s.iters, names, bindings, strict=True):
            self.vars[i.var] = name
            self.line(f"{name} = {binding}")
        if names:
            inside = " and ".join([f"0 <= {n} < {e}" for n, e in zip(names, extents, strict=True)])
            self.line(f"if not ({inside}): {self.point()}.binding({_tuple(names)}, {_tuple(extents)})")
        if s.init is not None:
            first = " and ".join([f"{n} == 0" for i, n in zip(s.iters, names, strict=True) if i.kind == "R"])
            self.line(f"if {first or 'True'}:")
            self.indent += 1
            self.stmt(s.init)
            self.indent -= 1
        self.stmt(s.body)
        self.indent = indent
        del self.locals[mark:]
        for i in s.iters:
            del self.vars[i.var]
        self.path.pop()

    def _seq(self, s: Seq) -> None:
        self.line("pass")
        for x in s.stmts:
            self.stmt(x)

    def _if(self, s: If) -> None:
        self.line(f"if {self.condition(s.cond)}:")
        self.indent += 1
        self.stmt(s.then)
        self.indent -= 1
        if s.orelse is not None:
            self.line("else:")
            self.indent += 1
            self.stmt(s.orelse)
            self.indent -= 1

    def _while(self, s: While) -> None:
        self.line("while True:")
        self.indent += 1
        self.loops += 1
        self.line(f"if not ({self.condition(s.cond)}): break")
        self.stmt(s.body)
        self.indent -= 1
        self.loops -= 1

    def _allocate(self, s: Allocate) -> None:
        b, mark = s.buffer, len(self.locals)
        self.dims[b] = []
        for extent in s.buffer.shape:
            text = self.index(extent)
            if extent.const is None:
                dim = self.local("dim")
                self.line(f"{dim} = {text}")
                text = dim
            self.dims[b].append(text)
        name = self.arrays[b] = self.local(b.name)
        self.line(f"{name} = poisoned({_tuple(self.dims[b])}, {str(dt.to_numpy(b.dtype))!r})")
        for _, _, inner in self.races:
            inner.add(b)
        self.stmt(s.body)
        del self.locals[mark:], self.arrays[b], self.dims[b]

    def _evaluate(self, s: Evaluate) -> None:
        self.line("pass")
        if not (type(s.value) is Call and intrinsic(s.value.name).effect):
            self.value(s.value, None)

    def _store(self, s: BufferStore) -> None:
        dtype = s.value.dtype
        if dt.element(dtype) != s.buffer.dtype:
            raise InterpretError(f"function {self.func.name}: a value of {dtype} is stored to {s.buffer!r}")
        value = self.value(s.value, None)
        array, index, point = self.access(s)
        if dt.lanes(dtype) == 1:
            self.checked(s.buffer, index, point, "store to")
            self.line(f"{array}[{_tuple(index)}] = {value}")
            self.track("write", s.buffer, _tuple(index))
            return
        stride, mask = "1" if s.stride is None else self.index(s.stride), "None" if s.mask is None else self.index(s.mask)
        at = self.temp(f"lanes({array}, {point}, 'store to', {_tuple(index)}, {dt.lanes(dtype)}, {stride}, {mask}, None)")
        self.line(f"{array}[{at}[0]] = {value}[{at}[1]]")
        self.track("write_lanes", s.buffer, at)

    # ---- memory accesses

    def access(self, s: BufferStore | BufferLoad) -> tuple[str, list[str], str]:
        """Names of the array, the indices and the location of an access."""
        if s.buffer not in self.arrays or len(s.indices) != len(s.buffer.shape):
            raise InterpretError(
                f"function {self.func.name}: {len(s.indices)} indices into {s.buffer!r}, which is not allocated here with that rank"
            )
        return self.arrays[s.buffer], [self.simple(i) for i in s.indices], self.point(s.buffer)

    def checked(self, b: Buffer, index: list[str], point: str, what: str) -> None:
        if index:
            inside = " and ".join([f"0 <= {i} < {n}" for i, n in zip(index, self.dims[b], strict=True)])
            self.line(f"if not ({inside}): {point}.outside({what!r}, {_tuple(index)}, {_tuple(self.dims[b])})")

    def track(self, method: str, b: Buffer, at: str) -> None:
        for tracker, kind, inner in self.races:
            if b not in inner and b.scope not in _PRIVATE[kind]:
                self.line(f"{tracker}.{method}({self.hoist(b)}, {at})")

    # ---- values

    def condition(self, e: Expr) -> str:
        return f"{self.index(e.index)} < 0" if type(e) is IsNegative and e.lanes == 1 else self.value(e, None)

    def value(self, e: Expr, active: str | None) -> str:
        """Write code for `e` and return the name of its value, a numpy scalar or an array of lanes.

        `active` is the name of the active lanes inside a side of a vector Select; None means all lanes.
        """
        known = self.known.get((id(e), active))
        if known is not None:
            return known
        write = self._VALUES.get(type(e))
        if write is None:
            raise InterpretError(f"function {self.func.name}: {type(e).__name__} is not a value that can be interpreted")
        name = self.known[id(e), active] = write(self, e, active)
        return name

    def side(self, name: str, e: Expr, active: str | None, lanes: str = "") -> None:
        """Write a side of a Select into `name`, indented; its subexpressions are not reused outside."""
        outer = self.known
        self.known = dict(outer)
        self.indent += 1
        self.line(f"{name}{lanes} = {self.value(e, active)}{lanes}")
        self.indent -= 1
        self.known = outer

    def rounded(self, dtype: str, text: str) -> str:
        return self.temp(f"round_bfloat16({text})" if dtype.startswith("bfloat16") else text)

    def _poly(self, e: Poly, active: str | None) -> str:
        return self.temp(f"int64({self.index(e)})")

    def _const(self, e: Const, active: str | None) -> str:
        value = dt.to_numpy(e.dtype).type(e.value)
        return self.hoist(round_bfloat16(value) if e.dtype == "bfloat16" else value)

    def _binary(self, e: Binary, active: str | None) -> str:
        a, b = self.value(e.a, active), self.value(e.b, active)
        infix = INFIX.get(e.op)
        return self.rounded(e.dtype, f"{a} {infix} {b}" if infix else f"binary_{e.op}({a}, {b})")

    def _not(self, e: Not, active: str | None) -> str:
        return self.temp(f"logical_not({self.value(e.a, active)})")

    def _is_negative(self, e: IsNegative, active: str | None) -> str:
        if e.lanes == 1:
            return self.temp(f"bool_({self.index(e.index)} < 0)")
        stride = "1" if e.stride is None else self.index(e.stride)
        return self.temp(f"ramp({self.index(e.index)}, {stride}, {e.lanes}) < 0")

    def _select(self, e: Select, active: str | None) -> str:
        lanes = dt.lanes(e.cond.dtype)
        if lanes == 1:
            cond, name = self.condition(e.cond), self.fresh("t")
            for head, side in ((f"if {cond}:", e.a), ("else:", e.b)):
                self.line(head)
                self.side(name, side, active)
            return name
        cond = self.value(e.cond, active)
        name = self.temp(f"zeros({lanes}, {str(dt.to_numpy(e.dtype))!r})")
        for text, side in ((cond, e.a), (f"~{cond}", e.b)):
            wanted = self.temp(text if active is None else f"{text} & {active}")
            self.line(f"if {wanted}.any():")
            self.side(name, side, wanted, f"[{wanted}]")
        return name

    def _cast(self, e: Cast, active: str | None) -> str:
        return self.rounded(e.dtype, f"{self.value(e.a, active)}.astype({str(dt.to_numpy(e.dtype))!r})")

    def _call(self, e: Call, active: str | None) -> str:
        known = intrinsic(e.name)
        if known.effect or len(e.args) != known.arity:
            raise InterpretError(f"function {self.func.name}: {e.name} of {len(e.args)} arguments has no value")
        args = [self.value(a, active) for a in e.args]
        if e.name == "reinterpret":
            return self.temp(f"reinterpret({args[0]}, {e.args[0].dtype!r}, {e.dtype!r})")
        text = f"{self.hoist(known.numpy)}({', '.join(args)})"
        return self.rounded(e.dtype, text if dt.is_float(e.dtype) else f"{text}.astype({str(dt.to_numpy(e.dtype))!r})")

    def _broadcast(self, e: Broadcast, active: str | None) -> str:
        return self.temp(f"full({e.lanes}, {self.value(e.a, active)})")

    def _ramp(self, e: Ramp, active: str | None) -> str:
        return self.temp(f"ramp({self.index(e.base)}, {self.index(e.stride)}, {e.lanes})")

    def _load(self, e: BufferLoad, active: str | None) -> str:
        array, index, point = self.access(e)
        if e.lanes == 1:
            self.checked(e.buffer, index, point, "load of")
            self.track("read", e.buffer, _tuple(index))
            return self.temp(f"{array}[{_tuple(index)}]")
        stride, mask = "1" if e.stride is None else self.index(e.stride), "None" if e.mask is None else self.index(e.mask)
        at = self.temp(f"lanes({array}, {point}, 'load of', {_tuple(index)}, {e.lanes}, {stride}, {mask}, {active})")
        self.track("read_lanes", e.buffer, at)
        name = self.temp(f"zeros({e.lanes}, {array}.dtype)")
        self.line(f"{name}[{at}[1]] = {array}[{at}[0]]")
        return name

    def _bind_index(self, s: BindIndex) -> None:
        mark = len(self.locals)
        self._bound_index(s, None)
        self.stmt(s.body)
        del self.locals[mark:], self.vars[s.var]

    def _indirect_index(self, e: IndirectIndex, active: str | None) -> str:
        name = self._bound_index(e, active)
        out = self.indirect_body(e, active)
        self.locals.remove(name)
        del self.vars[e.var]
        return out

    def _bound_index(self, e: IndirectIndex | BindIndex, active: str | None) -> str:
        name, extent = self.local(e.var.name), self.index(e.extent)
        self.line(f"{name} = int({self.value(e.value, active)})")
        self.line(f"if not 0 <= {name} < {extent}: {self.point()}.indirect_index({name}, {extent})")
        self.vars[e.var] = name
        return name

    def indirect_body(self, e: IndirectIndex, active: str | None) -> str:
        """The body of an indirect index.  Its subexpressions are not reused outside, where another one may share its parts and variable."""
        outer, self.known = self.known, dict(self.known)
        out = self.value(e.body, active)
        self.known = outer
        return out

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
    _VALUES: Mapping[type, Callable[[Any, Any, str | None], str]] = {
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


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
