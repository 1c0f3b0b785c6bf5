"""Parse statements: loops, blocks, stores, branches, allocations."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import SCOPES, Buffer
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.gpu import AXES
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.naming import MAX_NAME
from tunesmith.ir.script.parser_calls import CallParser
from tunesmith.ir.script.parser_expr import OPERATORS, Parsed
from tunesmith.ir.script.tvm_buffer import check_options, without_options
from tunesmith.ir.stmt import TENSORIZED, Allocate, Annotations, BindIndex, BufferStore, Evaluate, For, If, Seq, Stmt, store
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
    ast.While: "while",
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


def statement_word(s: ast.AST) -> str:
    """The common name of this kind of Python statement."""
    return _WORDS.get(type(s), type(s).__name__)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in scope: `var` runs over [0, extent), and its name in the text means `var + start`."""

    var: Var
    extent: Poly
    start: Poly


class StmtParser(CallParser):
    """Parser of statements; `loops` are the loops in scope, `locals` the names of loop and iteration variables."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loops: dict[str, Loop] = {}
        self.locals: set[str] = set()

    # ---- scope -----------------------------------------------------------------------------------------------------

    def declare(self, at: ast.AST, name: str, value: Poly | Buffer) -> None:
        """Bring `name` into scope; an error if it is already in scope."""
        if len(name) > MAX_NAME:
            self.fail(at, f"the name `{shorten(name)}` is longer than {MAX_NAME} characters")
        if name == self.alias:
            self.fail(at, f"`{name}` is the script's namespace and cannot be a variable")
        if name in self.scope:
            kind = "buffer" if isinstance(self.scope[name], Buffer) else "variable"
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
        """Parse each statement; the body of `x = T.allocate(...)` is all following statements."""
        out: list[Stmt] = []
        open_: list[tuple[str, Buffer, ast.stmt, list[Stmt]]] = []
        levels = min(len(stmts), 1)
        if levels:
            self.enter(stmts[0])
        for s in stmts:
            t = self.t_call(s.value) if isinstance(s, ast.Assign) else None
            if t is not None and t[0] == "allocate":
                name, buffer = self._allocation(t[1], s.targets, s)  # type: ignore[attr-defined]
                open_.append((name, buffer, s, out))
                if len(open_) > MAX_ALLOCATIONS:
                    self.fail(
                        s,
                        f"more than {MAX_ALLOCATIONS} buffers are allocated in one body",
                        "Use T.alloc_buffer at the top of the function.",
                    )
                out = []
            else:
                out.append(self.statement(s))
        for name, buffer, s, before in reversed(open_):
            before.append(Allocate(buffer, self.sequence(out, s)))
            out = before
            self.release([name])
        self.leave(levels)
        return out

    def statement(self, s: ast.stmt) -> Stmt:
        """Parse a statement."""
        f = _STMT.get(type(s))
        if f is None:
            self.fail(
                s,
                f"unsupported statement in a script: {statement_word(s)}",
                "Statements are for, with, if, stores to buffers, and T.evaluate(...).",
            )
        made: Stmt = f(self, s)
        return made

    # ---- buffers and annotations -----------------------------------------------------------------------------------

    def new_buffer(self, call: ast.Call, name: str) -> Buffer:
        """The buffer declared by `T.Buffer(...)`, `T.alloc_buffer(...)` or `T.allocate(...)`."""
        call, options = without_options(call)
        a = self.arguments(call, ("shape", "dtype", "scope", "pad", "align", "name"), 1)
        shape = a["shape"]
        dims = [self.index(d) for d in (shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape])]
        for p in dims:
            if p.const is not None and p.const < 0:
                self.fail(shape, f"buffer {shorten(name)} has the negative extent {p.const}")
        dtype = self.dtype(a["dtype"]) if "dtype" in a else "float32"
        scope = self.text(a["scope"], "scope") if "scope" in a else "global"
        if scope not in SCOPES:
            self.fail(a["scope"], f"unknown storage scope {shorten(scope)!r}", f"Scopes are {', '.join(SCOPES)}.")
        pad = self.index(a["pad"]) if "pad" in a else 0
        if "name" in a:
            name = self.text(a["name"], "the name of a buffer")
            if len(name) > MAX_NAME:
                self.fail(a["name"], f"the name `{shorten(name)}` is longer than {MAX_NAME} characters")
        align = self.alignments(a["align"]) if "align" in a else ()
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
        if isinstance(e, (ast.List, ast.Tuple, ast.Dict)) or (isinstance(e, ast.Constant) and e.value is None):
            self.fail(e, f"the annotation {shorten(key)!r} is no text and no integer", "Delete it, or write text.")
        v = self.expr(e)
        is_bool = isinstance(v, bool) or (isinstance(v, Const) and v.dtype == "bool")
        return poly(int(v.value if isinstance(v, Const) else v)) if is_bool else self.index(e)  # type: ignore[arg-type]

    def _allocation(self, call: ast.Call, targets: Sequence[ast.expr], at: ast.stmt) -> tuple[str, Buffer]:
        names = self.targets(targets[0]) if len(targets) == 1 else []
        if len(names) != 1:
            self.fail(at, "T.allocate allocates one buffer: `x = T.allocate(...)` or `with T.allocate(...) as x:`")
        buffer = self.new_buffer(call, names[0])
        self.declare(targets[0], names[0], buffer)
        return names[0], buffer

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
        for name, (extent, start) in zip(names, ranges, strict=True):
            loop = self.loops[name] = Loop(Var(name), extent, start)
            self.declare(s.target, name, poly(loop.var) + start)
            self.locals.add(name)
            loops.append(loop)
        out = self.body(s.body, s)
        self.release(names)
        self.leave(len(names))
        for loop in reversed(loops):
            out = For(loop.var, loop.extent, out, kind, thread, annotations)
        return out

    def _range(self, e: ast.expr) -> tuple[list[tuple[Poly, Poly]], str, str | None, Annotations]:
        """Parse the right side of `for ... in`: (extent, start) of each loop, kind, thread axis, annotations."""
        plain = isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id == "range"
        t = ("range", e) if plain else self.t_call(e)
        if t is None or t[0] not in ("range", "grid", *LOOPS):
            self.fail(e, "this is not a loop range", f"Loops run over range(n), {', '.join(f'T.{n}' for n in ('grid', *LOOPS))}.")
        word, call = t
        assert isinstance(call, ast.Call)
        if word == "grid":
            if call.keywords or not call.args:
                self.fail(e, "T.grid takes extents only")
            return [(self._extent(x, poly(0), x), poly(0)) for x in call.args], "serial", None, ()
        kind = "serial" if plain else LOOPS[word]
        count = len(call.args)
        if kind == "thread" and count and isinstance(call.args[-1], ast.Constant) and isinstance(call.args[-1].value, str):
            count -= 1
        if count > 2:
            self.fail(e, "a loop takes (stop) or (start, stop); steps are always 1")
        names = ["start", "stop"] if count == 2 else ["stop"]
        more = [] if plain else ["thread", "annotations"] if kind == "thread" else ["annotations"]
        a = self.arguments(call, names + more, len(names) + (kind == "thread"))
        thread = self.text(a["thread"], "thread") if "thread" in a else None
        if thread is not None and thread not in AXES:
            self.fail(a["thread"], f"unknown thread axis {shorten(thread)!r}", f"Thread axes are {', '.join(AXES)}.")
        start = self.index(a["start"]) if "start" in a else poly(0)
        extent = self._extent(a["stop"], start, e)
        return [(extent, start)], kind, thread, self.notes(a["annotations"]) if "annotations" in a else ()

    def _extent(self, stop: ast.expr, start: Poly, at: ast.expr) -> Poly:
        extent: Poly = self.index(stop) - start
        if extent.const is not None and extent.const < 0:
            self.fail(at, f"this loop has the negative extent {extent.const}")
        return extent

    # ---- with -----------------------------------------------------------------------------------------------------

    def _with(self, s: ast.With) -> Stmt:
        item = s.items[0]
        t = self.t_call(item.context_expr)
        if len(s.items) != 1 or t is None or t[0] not in ("block", "allocate", "init", "seq", "lookup"):
            self.fail(s, "unsupported `with`", "Write with T.block(name), T.init(), T.allocate(...) as x, T.lookup(...) as v, or T.seq().")
        word, call = t
        if word == "lookup":
            return self._bind_index(s, call, item.optional_vars)
        if word == "allocate":
            if item.optional_vars is None:
                self.fail(s, "this buffer has no name", "Write `with T.allocate(...) as x:`.")
            name, buffer = self._allocation(call, [item.optional_vars], s)
            inner = self.body(s.body, s)
            self.release([name])
            return Allocate(buffer, inner)
        if item.optional_vars is not None:
            self.fail(item.optional_vars, f"T.{word} has no `as`")
        if word == "init":
            self.fail(s, "T.init must appear at the top of a T.block, after its T.axis lines")
        if word == "seq":
            self.arguments(call, (), 0)
            return Seq(tuple(self.statements(s.body)))
        return self.block(s, call)

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

    def _assign(self, s: ast.Assign) -> Stmt:
        if len(s.targets) != 1:
            self.fail(s, "a store has one target")
        target = s.targets[0]
        if isinstance(target, ast.Subscript):
            buffer = self._target(target)
            return self._store(target, buffer, self.subscript(target), s.value, self.value(s.value, buffer.dtype))
        f = s.value.func if isinstance(s.value, ast.Call) else None
        if isinstance(f, ast.Attribute) and self.t_name(f.value) == "axis":
            self.fail(s, "T.axis lines must appear at the top of a `with T.block(...)`, before all other statements")
        t = self.t_call(s.value)
        if t is not None and t[0] == "alloc_buffer":
            self.fail(s, "T.alloc_buffer must appear at the top level of the function", "Use `x = T.allocate(...)` for a local buffer.")
        if t is not None and t[0] in ("param", "int64"):
            self.fail(s, f"T.{t[0]} declares a name of the whole function and must appear at its top level")
        self.fail(
            target,
            "only elements of buffers can be assigned to",
            "Store to a buffer: `x[0] = ...` with x = T.allocate((1,), dtype), or write the expression where it is used.",
        )

    def _target(self, e: ast.Subscript) -> Buffer:
        if isinstance(e.value, ast.Name) and e.value.id not in self.scope:
            self.fail(
                e.value,
                f"assignment to `{shorten(e.value.id)}`, which is not a declared buffer",
                "Declare it as a parameter (T.Buffer) or with T.alloc_buffer at the top of the function.",
            )
        return self.buffer(e.value, "written")

    def _store(self, target: ast.expr, buffer: Buffer, indices: list[Poly], at: ast.expr, value: Expr) -> BufferStore:
        made = self.make(target, store, buffer, indices, value)
        if dt.element(value.dtype) != buffer.dtype:
            what = f"a value of type {value.dtype} is stored to buffer `{buffer.name}` of type {buffer.dtype}"
            self.fail(at, what, f'Write T.cast("{buffer.dtype}", value).')
        return made

    def _aug_assign(self, s: ast.AugAssign) -> Stmt:
        if not isinstance(s.target, ast.Subscript):
            self.fail(s.target, "only elements of buffers can be assigned to")
        buffer = self._target(s.target)
        indices = self.subscript(s.target)
        op = OPERATORS.get(type(s.op))
        if op is None:
            self.fail(s, "the operator `@` is not supported", "Write the loops and the sum.")
        old: Parsed = self.make(s.target, buffer.__getitem__, tuple(indices))
        new = self.combine(s, op, old, self.expr(s.value))
        return self._store(s.target, buffer, indices, s.value, self.typed(s.value, new, buffer.dtype))

    def _if(self, s: ast.If) -> Stmt:
        cond = self.condition(s.test)
        then = self.body(s.body, s)
        return If(cond, then, self.body(s.orelse, s) if s.orelse else None)

    def _expression(self, s: ast.Expr) -> Stmt:
        e = s.value
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr == "vstore":
            return self._vstore(e, e.func.value)
        t = self.t_call(e)
        if t is None:
            self.fail(s, "an expression has no effect as a statement", "Store it to a buffer.")
        word, call = t
        if word == "evaluate":
            return Evaluate(self.value(self.arguments(call, ("value",), 1)["value"]))
        if word in INTRINSICS and INTRINSICS[word].effect:
            return Evaluate(self.value(call))
        if word in _DERIVED:
            self.fail(s, f"T.{word} is not supported: it is inferred from the body of the block", "Delete this line.")
        if word in _HEADER:
            self.fail(s, f"T.{word} must appear once, at the top of a `with T.block(...)`, after the T.axis lines")
        if word == "func_attr":
            self.fail(s, "T.func_attr must appear at the top level of the function")
        self.fail(s, f"T.{shorten(word)} is not a statement of the script", "T.evaluate(x) runs an expression for its effect.")

    def _vstore(self, e: ast.Call, target: ast.expr) -> Stmt:
        buffer = self.buffer(target, "written")
        a = self.arguments(e, ("indices", "value", "stride", "mask"), 2)
        indices = [self.index(i) for i in self.items(a["indices"], "the indices")]
        plain = self._store(target, buffer, indices, a["value"], self.value(a["value"], buffer.dtype))
        stride, mask = [self.index(a[k]) if k in a else None for k in ("stride", "mask")]
        return BufferStore(buffer, plain.indices, plain.value, stride, mask)


_STMT: Mapping[type, Any] = {
    ast.For: StmtParser._for,
    ast.With: StmtParser._with,
    ast.Assign: StmtParser._assign,
    ast.AugAssign: StmtParser._aug_assign,
    ast.If: StmtParser._if,
    ast.Expr: StmtParser._expression,
}
