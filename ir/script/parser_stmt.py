"""Parse statements: loops, blocks, stores, branches, allocations."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.gpu import AXES
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Poly, Var, ceildiv, poly
from tunesmith.ir.script.buffer_view import BufferView
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.parser_expr import OPERATORS, Element, Parsed
from tunesmith.ir.script.parser_local import LocalParser, Loop, Opened
from tunesmith.ir.script.tvm_functions import is_refused
from tunesmith.ir.stmt import TENSORIZED, Annotations, BindIndex, BufferStore, Evaluate, For, If, Seq, Stmt, While, barrier
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt

LOOPS = {
    "serial": "serial",
    "parallel": "parallel",
    "vectorized": "vectorized",
    "unroll": "unrolled",
    "unrolled": "unrolled",
    "tensorized": TENSORIZED,
    "thread_binding": "thread",
}
MAX_ALLOCATIONS = 256
"""Maximum allocations in a body: each nests the statements after it, and passes walk programs recursively."""

_WORDS: dict[type, str] = {
    ast.Return: "return",
    ast.FunctionDef: "a function inside a function",
    ast.AsyncFunctionDef: "async def",
    ast.ClassDef: "class",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Try: "try",
    ast.Raise: "raise",
    ast.Assert: "assert",
    ast.Delete: "del",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Break: "break",
    ast.Continue: "continue",
    ast.Pass: "pass",
    ast.AnnAssign: "an assignment with a type",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.Match: "match",
}
_DERIVED = {"reads", "writes"}
_HEADER = {"where", "block_attr"}
_WITH = ("block", "init", "seq", "lookup")
_DECLARING = ("allocate", "decl_buffer", "launch_thread", "LetStmt", "let")
_HINTS = ("storage_scope", "storage_alignment", "double_buffer_scope", "buffer_dim_align", "hand_threaded", "compute_scope", "device_scope")
"""Attributes of statements that hints for TVM's passes have, besides those that begin with `pragma_`."""


def statement_word(s: ast.AST) -> str:
    """The common name of this kind of Python statement."""
    return _WORDS.get(type(s), type(s).__name__)


class StmtParser(LocalParser):
    """Parser of statements."""

    # ---- bodies ----------------------------------------------------------------------------------------------------

    def body(self, stmts: Sequence[ast.stmt], at: ast.AST) -> Stmt:
        """Parse the statements of a body."""
        return self.sequence(self.statements(stmts), at)

    def sequence(self, stmts: list[Stmt], at: ast.AST) -> Stmt:
        """`stmts` as one statement."""
        if not stmts:
            self.fail(at, "this body has no statement")
        return stmts[0] if len(stmts) == 1 else Seq(tuple(stmts))

    def statements(self, stmts: Sequence[ast.stmt]) -> list[Stmt]:
        """Parse each statement; the body of a declaration, such as `x = T.allocate(...)`, is all following statements."""
        out: list[Stmt] = []
        open_: list[tuple[Opened, ast.stmt, list[Stmt]]] = []
        levels = min(len(stmts), 1)
        if levels:
            self.enter(stmts[0])
        for n, s in enumerate(stmts):
            opened = self.opened(s, stmts[n + 1 :])
            if opened is not None:
                open_.append((opened, s, out))
                if len(open_) > MAX_ALLOCATIONS:
                    self.fail(
                        s,
                        f"more than {MAX_ALLOCATIONS} buffers are allocated in one body",
                        "Use T.alloc_buffer at the top of the function.",
                    )
                out = []
            elif (made := self.statement(s)) is not None:
                out.append(made)
        for opened, s, before in reversed(open_):
            made = opened.around(self.sequence(out, s))
            before += made.stmts if type(made) is Seq else [made]
            out = before
            self.release([opened.name])
        self.leave(levels)
        return out

    def statement(self, s: ast.stmt) -> Stmt | None:
        """Parse a statement; None for one without an effect here."""
        f = _STMT.get(type(s))
        if f is None:
            self.fail(
                s,
                f"unsupported statement in a script: {statement_word(s)}",
                "Statements are for, while, with, if, stores to buffers, and T.evaluate(...).",
            )
        made: Stmt | None = f(self, s)
        return made

    # ---- annotations -----------------------------------------------------------------------------------------------

    def notes(self, e: ast.expr) -> Annotations:
        """Parse `{"key": value}`; values are text, index expressions, or bools, which are 1 and 0."""
        if not isinstance(e, ast.Dict):
            self.fail(e, 'annotations must be a literal dict: {"key": value}')
        out: dict[str, str | Poly] = {}
        for k, v in zip(e.keys, e.values, strict=True):
            if k is None:
                self.fail(e, "`**` is not supported in annotations")
            key = self.text(k, "the key of an annotation")
            if key in out:
                self.fail(k, f"the annotation {shorten(key)!r} appears twice")
            out[key] = self._note(key, v)
        return tuple(sorted(out.items()))

    def _note(self, key: str, e: ast.expr) -> str | Poly:
        if isinstance(e, ast.Constant) and isinstance(e.value, str):
            return self.text(e, "an annotation")
        is_number = not isinstance(e, (ast.List, ast.Tuple, ast.Dict)) and not (isinstance(e, ast.Constant) and e.value is None)
        v = self.expr(e) if is_number else None
        if self.source.tvm and (v is None or isinstance(v, float) or (isinstance(v, Const) and dt.is_float(v.dtype))):
            return ast.unparse(e)
        if v is None:
            self.fail(e, f"the annotation {shorten(key)!r} is no text and no integer", "Delete it, or write text.")
        is_bool = isinstance(v, bool) or (isinstance(v, Const) and v.dtype == "bool")
        return poly(int(v.value if isinstance(v, Const) else v)) if is_bool else self.index(e)  # type: ignore[arg-type]

    def attributes(self, s: ast.stmt, word: str) -> ast.expr | None:
        """The dict of `T.block_attr({...})` or `T.func_attr({...})`."""
        t = self.t_call(s.value) if isinstance(s, ast.Expr) else None
        return self.arguments(t[1], ("attributes",), 1)["attributes"] if t is not None and t[0] == word else None

    # ---- loops -----------------------------------------------------------------------------------------------------

    def _for(self, s: ast.For) -> Stmt:
        if s.orelse:
            self.fail(s.orelse[0], "`else` after a loop is not supported")
        names = self.targets(s.target)
        ranges, kind, thread, annotations = self._range(s.iter)
        if len(ranges) != len(names):
            self.fail(s.target, f"{len(names)} loop variables for {len(ranges)} extents")
        self.enter(s, len(names))
        loops = []
        for name, (extent, start, step) in zip(names, ranges, strict=True):
            loop = self.loops[name] = Loop(Var(name), extent, start, step)
            self.declare(s.target, name, poly(loop.var) * step + start)
            self.locals.add(name)
            loops.append(loop)
        out = self.body(s.body, s)
        self.release(names)
        self.leave(len(names))
        if self.source.tvm and kind == "parallel" and any(type(n) is BindIndex for n in walk_objects(out)):
            kind = "serial"  # TVM takes it on trust that iterations store to different elements, here a scatter is not parallel
        for loop in reversed(loops):
            out = For(loop.var, loop.extent, out, kind, thread, annotations)
        return out

    def _range(self, e: ast.expr) -> tuple[list[tuple[Poly, Poly, int]], str, str | None, Annotations]:
        """Parse the right side of `for ... in`: (extent, start, step) of each loop, kind, thread axis, annotations."""
        plain = isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id == "range"
        t = ("range", e) if plain else self.t_call(e)
        if t is None or t[0] not in ("range", "grid", *LOOPS):
            self.fail(e, "this is not a loop range", f"Loops run over range(n), {', '.join(f'T.{n}' for n in ('grid', *LOOPS))}.")
        word, call = t
        assert isinstance(call, ast.Call)
        if word == "grid":
            if call.keywords or not call.args:
                self.fail(e, "T.grid takes extents only")
            return [(self._extent(x, poly(0), x), poly(0), 1) for x in call.args], "serial", None, ()
        kind = "serial" if plain else LOOPS[word]
        count = len(call.args)
        if kind == "thread" and count and isinstance(call.args[-1], ast.Constant) and isinstance(call.args[-1].value, str):
            count -= 1
        if count > 3:
            self.fail(e, "a loop takes (stop), (start, stop) or (start, stop, step)")
        names = ["start", "stop", "step"][:count] if count > 1 else ["stop"]
        more = [] if plain else ["thread", "annotations"] if kind == "thread" else ["annotations"]
        more += [] if plain or count == 3 else ["step"]
        a = self.arguments(call, names + more, len(names) + (kind == "thread"))
        thread = self.text(a["thread"], "thread") if "thread" in a else None
        if thread is not None and thread not in AXES:
            self.fail(a["thread"], f"unknown thread axis {shorten(thread)!r}", f"Thread axes are {', '.join(AXES)}.")
        start = self.index(a["start"]) if "start" in a else poly(0)
        extent = self._extent(a["stop"], start, e)
        step = self.integer(a["step"], "the step of a loop") if "step" in a else 1
        steps = extent if step == 1 else self.make(e, ceildiv, extent, poly(step))
        return [(steps, start, step)], kind, thread, self.notes(a["annotations"]) if "annotations" in a else ()

    def _extent(self, stop: ast.expr, start: Poly, at: ast.expr) -> Poly:
        extent: Poly = self.index(stop) - start
        if extent.const is not None and extent.const < 0:
            self.fail(at, f"this loop has the negative extent {extent.const}")
        return extent

    # ---- with -----------------------------------------------------------------------------------------------------

    def _with(self, s: ast.With) -> Stmt:
        item = s.items[0]
        t = self.t_call(item.context_expr)
        if len(s.items) != 1 or t is None or t[0] not in (*_WITH, *_DECLARING, "attr"):
            self.fail(s, "unsupported `with`", "Write with T.block(name), T.init(), T.allocate(...) as x, T.lookup(...) as v, or T.seq().")
        word, call = t
        if word == "lookup":
            return self._bind_index(s, call, item.optional_vars)
        if word in _DECLARING:
            return self._with_declaration(s, word, call, item.optional_vars)
        if item.optional_vars is not None:
            self.fail(item.optional_vars, f"T.{word} has no `as`")
        if word == "init":
            self.fail(s, "T.init must appear at the top of a T.block, after its T.axis lines")
        if word == "seq":
            self.arguments(call, (), 0)
            return Seq(tuple(self.statements(s.body)))
        if word == "attr":
            self._hint(call)
            return self.body(s.body, s)
        return self.block(s, call)

    def _with_declaration(self, s: ast.With, word: str, call: ast.Call, target: ast.expr | None) -> Stmt:
        """Parse `with T.allocate(...) as x:`; the declaration holds for the body."""
        if word in ("LetStmt", "let"):
            inner = "value" if target is not None else "name"
            a = self.arguments(call, ("value",) if inner == "value" else ("name", "value"), 1 if inner == "value" else 2)
            at = a["name"] if target is None else target
            opened = self._bound(self.targets(at)[0], a["value"], None, at)
        else:
            if target is None and word != "launch_thread":
                self.fail(s, "this buffer has no name", f"Write `with T.{word}(...) as x:`.")
            found = self._launch(call, None, s) if target is None else self.declared(call, [target], s)
            assert found is not None
            opened = found
        out = opened.around(self.body(s.body, s))
        self.release([opened.name])
        return out

    def _hint(self, call: ast.Call) -> None:
        """Check that `T.attr({"key": value})` or `T.attr(node, "key", value)` is a hint for TVM's passes, which may be left out."""
        first = call.args[0] if call.args else None
        keys = (
            first.keys if isinstance(first, ast.Dict) else call.args[1:2] if len(call.args) == 3 else [k.value for k in call.keywords[:1]]
        )
        for k in keys or [None]:
            key = k.value if isinstance(k, ast.Constant) else None
            if not isinstance(key, str) or not (key in _HINTS or key.startswith(("pragma_", "meta_schedule."))):
                what = f"T.attr {shorten(str(key))!r} is not supported" if isinstance(key, str) else "T.attr needs the key of an attribute"
                self.fail(k or call, what, "Print the program before the pass of TVM that adds it, or delete it if it is a hint.")

    def _bind_index(self, s: ast.With, call: ast.Call, target: ast.expr | None) -> Stmt:
        """Parse `with T.lookup(value, extent) as v:`."""
        names = [] if target is None else self.targets(target)
        if len(names) != 1:
            self.fail(s, "this index has no name, or several", "Write `with T.lookup(value, extent) as v:`.")
        a = self.arguments(call, ("value", "extent"), 2)
        value, extent = self.index_value(a["value"]), self.index(a["extent"])
        var = IndirectVar(names[0])
        assert target is not None
        self.declare(target, names[0], poly(var))
        self.enter(s)
        inner = self.body(s.body, s)
        self.leave()
        self.release(names)
        return BindIndex(var, extent, value, inner)

    def block(self, s: ast.With, call: ast.Call) -> Stmt:
        """Parse `with T.block(name):`; implemented in parser_block.py."""
        raise NotImplementedError

    # ---- stores, branches, effects ---------------------------------------------------------------------------------

    def _assign(self, s: ast.Assign) -> Stmt | None:
        if len(s.targets) != 1:
            self.fail(s, "a store has one target")
        target = s.targets[0]
        if isinstance(target, ast.Subscript):
            at = self.subscript(target, self._target(target))
            return self._store(target, at, s.value, self.value(s.value, at.buffer.dtype))
        held = self.scope.get(target.id) if isinstance(target, ast.Name) else None
        if isinstance(held, BufferView) and not held.shape:
            at = self.element(target, held, [])
            return self._store(target, at, s.value, self.value(s.value, at.buffer.dtype))
        f = s.value.func if isinstance(s.value, ast.Call) else None
        if isinstance(f, ast.Attribute) and self.t_name(f.value) == "axis":
            self.fail(s, "T.axis lines must appear at the top of a `with T.block(...)`, before all other statements")
        t = self.t_call(s.value)
        if t is not None and t[0] == "env_thread" and isinstance(target, ast.Name):
            self.thread_axes[target.id] = self.text(self.arguments(t[1], ("axis",), 1)["axis"], "the axis of a thread")
            return None
        if t is not None and t[0] == "alloc_buffer":
            self.fail(s, "T.alloc_buffer must appear at the top level of the function", "Use `x = T.allocate(...)` for a local buffer.")
        if t is not None and t[0] in ("param", "int64"):
            self.fail(s, f"T.{t[0]} declares a name of the whole function and must appear at its top level")
        self.fail(
            target,
            "only elements of buffers can be assigned to",
            "Store to a buffer: `x[0] = ...` with x = T.allocate((1,), dtype), or write the expression where it is used.",
        )

    def _target(self, e: ast.Subscript) -> Buffer | BufferView:
        if isinstance(e.value, ast.Name) and e.value.id not in self.scope:
            self.fail(
                e.value,
                f"assignment to `{shorten(e.value.id)}`, which is not a declared buffer",
                "Declare it as a parameter (T.Buffer) or with T.alloc_buffer at the top of the function.",
            )
        return self.buffer(e.value, "written")

    def _store(self, target: ast.expr, at: Element, e: ast.expr, value: Expr) -> Stmt:
        """The store of `value`, which is parsed from `e`, with the indices that are data bound around it."""
        if at.lanes > 1 and dt.lanes(value.dtype) != at.lanes:
            self.fail(e, f"a value of {dt.lanes(value.dtype)} lanes is stored to {at.lanes} elements", "Write T.Broadcast(value, lanes).")
        plain = self.stored(target, at.buffer, list(at.indices), e, value)
        out: Stmt = plain if at.lanes == 1 else BufferStore(at.buffer, plain.indices, value, at.stride)
        for var, extent, index in reversed(at.bound):
            out = BindIndex(var, extent, index, out)
        return out

    def _aug_assign(self, s: ast.AugAssign) -> Stmt:
        if not isinstance(s.target, ast.Subscript):
            self.fail(s.target, "only elements of buffers can be assigned to")
        at = self.subscript(s.target, self._target(s.target))
        op = OPERATORS.get(type(s.op))
        if op is None:
            self.fail(s, "the operator `@` is not supported", "Write the loops and the sum.")
        old: Parsed = BufferLoad(at.buffer, at.indices, at.lanes, at.stride)
        new = self.combine(s, op, old, self.expr(s.value))
        return self._store(s.target, at, s.value, self.typed(s.value, new, at.buffer.dtype))

    def _while(self, s: ast.While) -> Stmt:
        if s.orelse:
            self.fail(s.orelse[0], "`else` after a loop is not supported")
        cond = self.condition(s.test)
        self.guards += 1
        body = self.body(s.body, s)
        self.guards -= 1
        return While(cond, body)

    def _if(self, s: ast.If) -> Stmt:
        cond = self.condition(s.test)
        self.guards += 1
        then = self.body(s.body, s)
        orelse = self.body(s.orelse, s) if s.orelse else None
        self.guards -= 1
        return If(cond, then, orelse)

    def _expression(self, s: ast.Expr) -> Stmt | None:
        e = s.value
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr == "vstore":
            return self._vstore(e, e.func.value)
        t = self.t_call(e)
        if t is None:
            self.fail(s, "an expression has no effect as a statement", "Store it to a buffer.")
        word, call = t
        if word == "evaluate":
            value = self.arguments(call, ("value",), 1)["value"]
            return None if isinstance(value, ast.Constant) and value.value == 0 and self.source.tvm else Evaluate(self.value(value))
        if word == "tvm_storage_sync":
            return barrier()
        if word in INTRINSICS and INTRINSICS[word].effect:
            return Evaluate(self.value(call))
        if word == "attr":
            self._hint(call)
            return None
        if word in _DERIVED:
            self.fail(s, f"T.{word} is not supported: it is inferred from the body of the block", "Delete this line.")
        if word in _HEADER:
            self.fail(s, f"T.{word} must appear once, at the top of a `with T.block(...)`, after the T.axis lines")
        if word == "func_attr":
            self.fail(s, "T.func_attr must appear at the top level of the function")
        if is_refused(word):
            self.call(call)
        self.fail(s, f"T.{shorten(word)} is not a statement of the script", "T.evaluate(x) runs an expression for its effect.")

    def _vstore(self, e: ast.Call, target: ast.expr) -> Stmt:
        buffer = self.buffer(target, "written")
        if not isinstance(buffer, Buffer):
            self.fail(target, "a view has no vstore", f"Write {buffer.buffer.name}.vstore(...).")
        a = self.arguments(e, ("indices", "value", "stride", "mask"), 2)
        indices = [self.index(i) for i in self.items(a["indices"], "the indices")]
        plain = self.stored(target, buffer, indices, a["value"], self.value(a["value"], buffer.dtype))
        stride, mask = [self.index(a[k]) if k in a else None for k in ("stride", "mask")]
        return BufferStore(buffer, plain.indices, plain.value, stride, mask)


_STMT: Mapping[type, Any] = {
    ast.For: StmtParser._for,
    ast.With: StmtParser._with,
    ast.Assign: StmtParser._assign,
    ast.AugAssign: StmtParser._aug_assign,
    ast.If: StmtParser._if,
    ast.While: StmtParser._while,
    ast.Expr: StmtParser._expression,
}
