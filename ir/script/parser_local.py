"""Parse declarations in bodies: allocations, let-bound values, scalar variables, views of buffers, thread axes.

A declaration holds to the end of its body.  Values that TVM binds by `T.let` are stored to a scalar buffer, or written where they are used
if no store between changes what they read; scalar variables are buffers without dimensions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import SCOPES, Buffer, BufferLoad
from tunesmith.ir.expr import Expr
from tunesmith.ir.gpu import AXES
from tunesmith.ir.poly import Poly, Var, poly, product
from tunesmith.ir.script.buffer_view import BufferView, held
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.naming import MAX_NAME
from tunesmith.ir.script.parser_calls import CallParser
from tunesmith.ir.script.tvm_buffer import check_options, is_data_alignment, without_options
from tunesmith.ir.stmt import Allocate, Block, BufferStore, For, Seq, Stmt, seq, store
from tunesmith.ir.visit import transform, walk_objects
from tunesmith.support import dtype as dt

MAX_INLINED = 64
"""Maximum nodes that writing a let-bound value where it is used may add."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in scope: `var` runs over [0, extent), and its name in the text means `var * step + start`."""

    var: Var
    extent: Poly
    start: Poly
    step: int = 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A declaration: its name, and what the statements after it become."""

    name: str
    around: Callable[[Stmt], Stmt]


class LocalParser(CallParser):
    """Parser of declarations; `loops` are the loops in scope, `locals` the names of loop and iteration variables."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loops: dict[str, Loop] = {}
        self.locals: set[str] = set()
        self.thread_axes: dict[str, str] = {}
        """The axes of names from `x = T.env_thread(axis)`."""

    # ---- scope -----------------------------------------------------------------------------------------------------

    def declare(self, at: ast.AST, name: str, value: Expr | Buffer | BufferView) -> None:
        """Bring `name` into scope; an error if it is already in scope."""
        if len(name) > MAX_NAME:
            self.fail(at, f"the name `{shorten(name)}` is longer than {MAX_NAME} characters")
        if name == self.alias:
            self.fail(at, f"`{name}` is the script's namespace and cannot be a variable")
        if name in self.scope:
            kind = "variable" if isinstance(self.scope[name], Expr) else "buffer"
            self.fail(at, f"`{name}` already names a {kind} in scope here", "Choose another name.")
        self.scope[name] = value

    def release(self, names: Sequence[str]) -> None:
        """End the scope of `names`."""
        for n in names:
            del self.scope[n]
            self.loops.pop(n, None)
            self.locals.discard(n)

    def targets(self, e: ast.expr) -> list[str]:
        """The names on the left of `=` or after `for`."""
        elts = e.elts if isinstance(e, (ast.Tuple, ast.List)) else [e]
        names: list[str] = []
        for x in elts:
            if not isinstance(x, ast.Name):
                self.fail(x, "a variable name is needed here")
            if x.id in names:
                self.fail(x, f"the name `{shorten(x.id)}` appears twice")
            names.append(x.id)
        if not names:
            self.fail(e, "a variable name is needed here")
        return names

    # ---- buffers ---------------------------------------------------------------------------------------------------

    def new_buffer(self, call: ast.Call, name: str) -> Buffer:
        """The buffer declared by `T.Buffer(...)`, `T.alloc_buffer(...)` or `T.allocate(...)`."""
        call, options = without_options(call)
        a = self.arguments(call, ("shape", "dtype", "scope", "pad", "align", "name"), 1)
        shape = a["shape"]
        dims = [self.index(d) for d in (shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape])]
        for p in dims:
            if p.const is not None and p.const < 0:
                self.fail(shape, f"buffer {shorten(name)} has the negative extent {p.const}", "An extent is at least 0.")
        dtype = self.dtype(a["dtype"]) if "dtype" in a else "float32"
        scope = self.text(a["scope"], "scope") if "scope" in a else "global"
        if scope not in SCOPES:
            self.fail(a["scope"], f"unknown storage scope {shorten(scope)!r}", f"Scopes are {', '.join(SCOPES)}.")
        pad = self.index(a["pad"]) if "pad" in a else 0
        if "name" in a:
            name = self.text(a["name"], "the name of a buffer")
            if len(name) > MAX_NAME:
                self.fail(a["name"], f"the name `{shorten(name)}` is longer than {MAX_NAME} characters")
        align = self.alignments(a["align"]) if "align" in a and not (self.source.tvm and is_data_alignment(a["align"])) else ()
        made = self.make(call, Buffer, name, dims, dtype, scope, pad, align)
        check_options(self, options, made)
        return made

    def alignments(self, e: ast.expr) -> list[tuple[int, Poly, Poly]]:
        """Parse `[(axis, factor, offset), ...]`."""
        out = []
        for x in e.elts if isinstance(e, ast.List) else [e]:
            if not isinstance(x, ast.Tuple) or len(x.elts) != 3 or (axis := self.index(x.elts[0]).const) is None:
                self.fail(x, "an alignment is (axis, factor, offset)", "Write align=[(-2, 32, 8)]: rows are 8 + 32 * n apart.")
            out.append((axis, self.index(x.elts[1]), self.index(x.elts[2])))
        return out

    # ---- declarations ----------------------------------------------------------------------------------------------

    def opened(self, s: ast.stmt, rest: Sequence[ast.stmt]) -> Opened | None:
        """The declaration `s`, with its name in scope; None if it is another statement.  `rest` are the statements after it."""
        if isinstance(s, ast.AnnAssign):
            return self._typed_name(s, rest)
        if isinstance(s, ast.Assign):
            return self.declared(s.value, s.targets, s)
        t = self.t_call(s.value) if isinstance(s, ast.Expr) else None
        if t is not None and t[0] == "launch_thread":
            return self._launch(t[1], None, s)
        return None

    def declared(self, value: ast.expr, targets: Sequence[ast.expr], at: ast.stmt) -> Opened | None:
        """The declaration `target = value`; None if the value declares nothing."""
        t = self.t_call(value)
        if t is None:
            return self._reshaped_view(value, targets, at)
        word, call = t
        if word == "launch_thread":
            return self._launch(call, targets, at)
        if word in ("decl_buffer", "Buffer"):
            data = next((k.value for k in call.keywords if k.arg == "data"), None)
            if data is not None and not (isinstance(data, ast.Constant) and data.value is None):
                return self._alias(call, data, targets, at)
            call = _without(call, "data")
        if word == "match_buffer":
            return self._region(call, targets, at)
        if word in ("allocate", "decl_buffer", "Buffer") or (word == "alloc_buffer" and self.source.tvm):
            name = self._one_name(targets, at, word)
            buffer = self.new_buffer(call, name)
            self.declare(targets[0], name, buffer)
            return Opened(name, lambda rest: Allocate(buffer, rest))
        if word == "bind":
            name = self._one_name(targets, at, word)
            return self._bound(name, self.arguments(call, ("value",), 1)["value"], None, targets[0])
        return None

    def _one_name(self, targets: Sequence[ast.expr], at: ast.stmt, word: str) -> str:
        names = self.targets(targets[0]) if len(targets) == 1 else []
        if len(names) != 1:
            self.fail(at, f"T.{word} allocates one buffer: `x = T.{word}(...)` or `with T.{word}(...) as x:`")
        return names[0]

    def _launch(self, call: ast.Call, targets: Sequence[ast.expr] | None, at: ast.stmt) -> Opened:
        """Parse `x = T.launch_thread(axis, extent)`: the rest is the body of a bound loop."""
        a = self.arguments(call, ("axis", "extent"), 2)
        axis, first = "", a["axis"]
        if isinstance(first, ast.Name) and first.id in self.thread_axes and targets is None:
            name = first.id
            axis = self.thread_axes[name]
        else:
            name = self._one_name(targets or [], at, "launch_thread")
            axis = self.text(first, "the axis of a thread")
        if axis not in AXES:
            self.fail(first, f"unknown thread axis {shorten(axis)!r}", f"Thread axes are {', '.join(AXES)}.")
        loop = self.loops[name] = Loop(Var(name), self.index(a["extent"]), poly(0))
        self.declare(first, name, poly(loop.var))
        self.locals.add(name)
        return Opened(name, lambda rest: For(loop.var, loop.extent, rest, "thread", axis))

    # ---- views -----------------------------------------------------------------------------------------------------

    def _reshaped_view(self, value: ast.expr, targets: Sequence[ast.expr], at: ast.stmt) -> Opened | None:
        """Parse `B = A.view(64, 64)`."""
        f = value.func if isinstance(value, ast.Call) else None
        if not isinstance(f, ast.Attribute) or f.attr != "view" or not isinstance(f.value, ast.Name) or not isinstance(value, ast.Call):
            return None
        if value.keywords:
            self.fail(value, "a view takes the extents of its shape only", f"Write {f.value.id}.view(...) with numbers.")
        shape = tuple([self.index(x) for x in value.args])
        return self._view(BufferView(self.buffer(f.value, "viewed"), shape, None), value, targets, at)

    def _alias(self, call: ast.Call, data: ast.expr, targets: Sequence[ast.expr], at: ast.stmt) -> Opened:
        """Parse `B = T.decl_buffer(shape, dtype, data=A.data)`."""
        of = self.buffer(data.value if isinstance(data, ast.Attribute) and data.attr == "data" else data, "viewed")
        own = self.new_buffer(_without(call, "data"), "view")
        if own.dtype != of.dtype:
            self.fail(call, f"a view of type {own.dtype} of {held(of).name}, whose elements are {of.dtype}", "Use T.reinterpret(...).")
        return self._view(BufferView(of, own.shape, None), call, targets, at)

    def _view(self, view: BufferView, call: ast.Call, targets: Sequence[ast.expr], at: ast.stmt) -> Opened:
        have, needed = product(view.of.shape), product(view.shape)
        if have != needed and (have.const is None or needed.const is None or needed.const > have.const):
            self.fail(call, f"a view of {needed} elements of {view.buffer.name}, which has {have}")
        return self._named(view, targets, at)

    def _region(self, call: ast.Call, targets: Sequence[ast.expr], at: ast.stmt) -> Opened:
        """Parse `B = T.match_buffer(A[i * 16:i * 16 + 16, 0:16], (16, 16), dtype)`."""
        if not call.args or not isinstance(call.args[0], ast.Subscript):
            self.fail(call, "T.match_buffer in a body takes a region of a buffer", "Write T.match_buffer(A[0:16, 0:16], (16, 16), dtype).")
        region = call.args[0]
        of = self.buffer(region.value, "viewed")
        items = region.slice.elts if isinstance(region.slice, ast.Tuple) else [region.slice]
        if len(items) != len(of.shape):
            self.fail(region, f"the region has {len(items)} dimensions and {held(of).name} has {len(of.shape)}")
        starts, extents = [], []
        for x in items:
            begin, end = (x.lower, x.upper) if isinstance(x, ast.Slice) else (x, None)
            if isinstance(x, ast.Slice) and (begin is None or end is None or x.step is not None):
                self.fail(region, "a region has a first and a last index in each dimension", "Write A[0:16, 0:16].")
            assert begin is not None
            starts.append(self.index(begin))
            extents.append(poly(1) if end is None else self.index(end) - starts[-1])
        own = self.new_buffer(_without(ast.copy_location(ast.Call(call.func, call.args[1:], call.keywords), call), *_PLACE), "view")
        skipped = len(extents) - len(own.shape)
        fits = skipped >= 0 and all(e == 1 for e in extents[:skipped]) and list(own.shape) == extents[skipped:] and own.dtype == of.dtype
        if not fits:
            what = f"a view ({', '.join(map(str, own.shape))}) of {own.dtype} of a region of extents ({', '.join(map(str, extents))})"
            self.fail(call, f"{what} of {of.dtype}", "The extents and the type of a view are those of its region.")
        return self._named(BufferView(of, own.shape, tuple(starts)), targets, at)

    def _named(self, view: BufferView, targets: Sequence[ast.expr], at: ast.stmt) -> Opened:
        name = self._one_name(targets, at, "match_buffer")
        self.declare(targets[0], name, view)
        return Opened(name, lambda rest: rest)

    def check_view(self, e: ast.expr, view: BufferView, indices: list[Poly | None]) -> None:
        """Refuse an index that certainly leaves a view: a linear one of loops that all run, without a condition around it."""
        last: dict[Any, int] = {x.var: n - 1 for x in self.loops.values() if (n := x.extent.const) is not None and n > 0}
        if self.guards or len(last) < len(self.loops):
            return
        for p, extent in zip(indices, view.shape, strict=True):
            if p is None or extent.const is None or any(len(m) > 1 or m[0] not in last for m, _ in p.terms if m):
                continue
            reached = [(k, k) if not m else (min(k * last[m[0]], 0), max(k * last[m[0]], 0)) for m, k in p.terms]
            low, high = sum(a for a, _ in reached), sum(b for _, b in reached)
            if low < 0 or high >= extent.const:
                what = f"the index {p} of a view takes the value {low if low < 0 else high}, and its extent is {extent.const}"
                self.fail(e, what, "Declare the view with the extent that is accessed.")

    # ---- values and variables --------------------------------------------------------------------------------------

    def _typed_name(self, s: ast.AnnAssign, rest: Sequence[ast.stmt]) -> Opened:
        """Parse `x: T.let[T.float32] = value`, `x: T.float32 = value`, and the scalar variable `x: T.float32`."""
        name = self.targets(s.target)[0]
        let = isinstance(s.annotation, ast.Subscript) and self.t_name(s.annotation.value) == "let"
        kind = self.t_name(s.annotation.slice if isinstance(s.annotation, ast.Subscript) and let else s.annotation)
        if kind == "let":
            kind, let = None, True
        elif kind not in dt.SCALARS:
            self.fail(
                s.annotation, f"`{shorten(ast.unparse(s.annotation))}` is no type of a variable", "Write x: T.let[T.float32] = value."
            )
        if s.value is None and let:
            self.fail(s, f"`{shorten(name)}` has no value", f"Write {shorten(name)}: T.let[T.{kind}] = value.")
        if s.value is not None and (let or not _is_assigned(name, rest)):
            return self._bound(name, s.value, kind, s.target)
        value = None if s.value is None else self.value(s.value, kind)
        buffer = Buffer(name, (), kind or "int32", "register")
        self.declare(s.target, name, BufferView(buffer, (), ()))
        first = None if value is None else self.stored(s.target, buffer, [], s.value or s, value)
        return Opened(name, lambda body: Allocate(buffer, seq([first, body])))

    def _bound(self, name: str, e: ast.expr, dtype: str | None, at: ast.expr) -> Opened:
        """Bind a value to a name: an index is a polynomial, another value is in a scalar buffer or is written where it is used."""
        v = self.expr(e)
        if isinstance(v, Poly) or (type(v) is int and dtype in (None, "int32", dt.INDEX)):
            self.declare(at, name, poly(v) if type(v) is int else v)  # type: ignore[arg-type]
            self.locals.add(name)
            return Opened(name, lambda rest: rest)
        value = self.typed(e, v, dtype)
        if dtype is not None and value.dtype != dtype:
            self.fail(e, f"`{shorten(name)}` is of type {dtype} and its value of type {value.dtype}", f'Write T.cast("{dtype}", value).')
        if dt.lanes(value.dtype) > 1:
            self.fail(e, f"`{shorten(name)}` is a vector of type {value.dtype}", "Write the expression where it is used.")
        buffer = Buffer(name, (), value.dtype, "register")
        self.declare(at, name, BufferView(buffer, (), ()))
        return Opened(name, lambda rest: bound_value(buffer, value, rest))

    def stored(self, target: ast.expr, buffer: Buffer, indices: list[Poly], at: ast.AST, value: Expr) -> BufferStore:
        """The store of a value, whose type must be that of the buffer."""
        made = self.make(target, store, buffer, indices, value)
        if dt.element(value.dtype) != buffer.dtype:
            what = f"a value of type {value.dtype} is stored to buffer `{buffer.name}` of type {buffer.dtype}"
            self.fail(at, what, f'Write T.cast("{buffer.dtype}", value).')
        return made


def bound_value(buffer: Buffer, value: Expr, rest: Stmt) -> Stmt:
    """`rest` with the loads of `buffer`, a scalar, replaced by `value`, unless a store may change it or it is large.

    The value may be written where it is used up to the first store to a buffer that it reads, because a store follows its value.
    """
    if any(type(n) is Block for n in walk_objects(rest)):
        return Allocate(buffer, seq([store(buffer, (), value), rest]))
    read = {n.buffer for n in walk_objects(value) if type(n) is BufferLoad}
    stmts = rest.stmts if type(rest) is Seq else (rest,)
    uses = [sum(type(n) is BufferLoad and n.buffer is buffer for n in walk_objects(s)) for s in stmts]
    last = max([i for i, n in enumerate(uses) if n], default=-1)
    before = stmts[: last if last >= 0 and type(stmts[last]) is BufferStore else last + 1]
    changed = any(type(n) is BufferStore and n.buffer in read for s in before for n in walk_objects(s))
    size = sum(1 for _ in walk_objects(value)) * (sum(uses) - 1)
    if changed or size > MAX_INLINED or any(type(n) is BufferStore and n.buffer is buffer for n in walk_objects(rest)):
        return Allocate(buffer, seq([store(buffer, (), value), rest]))
    return transform(rest, {BufferLoad: lambda n, recurse: value if n.buffer is buffer else n.map_children(recurse)})


_PLACE = ("strides", "elem_offset", "offset_factor")
"""Names for the place of a region in memory, which follows from the region."""


def _without(call: ast.Call, *names: str) -> ast.Call:
    """The call without some keywords."""
    return ast.copy_location(ast.Call(call.func, call.args, [k for k in call.keywords if k.arg not in names]), call)


def _is_assigned(name: str, stmts: Sequence[ast.stmt]) -> bool:
    found = (n for s in stmts for n in ast.walk(s) if isinstance(n, (ast.Assign, ast.AugAssign)))
    targets = (t for n in found for t in (n.targets if isinstance(n, ast.Assign) else [n.target]))
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)
