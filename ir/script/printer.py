"""Print programs as script text, in the style of TVMScript; `parser.parse` reads it back to an equal program.

The text depends on the structure and the names of the program only, not on the creation order of its parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Param, Poly, Var
from tunesmith.ir.script.diagnostics import CLOSE, OPEN, underlined
from tunesmith.ir.script.naming import MAX_NAME, free_names, identifier
from tunesmith.ir.script.printer_expr import ExprPrinter
from tunesmith.ir.stmt import TENSORIZED, Allocate, Annotations, BindIndex, Block, BufferStore, Evaluate, For, If, Iter, Seq, Stmt, While
from tunesmith.support.errors import ScriptError

if TYPE_CHECKING:
    from tunesmith.ir.function import IRModule, PrimFunc

KINDS = {
    "serial": "T.serial",
    "parallel": "T.parallel",
    "vectorized": "T.vectorized",
    "unrolled": "T.unroll",
    "thread": "T.thread_binding",
    TENSORIZED: "T.tensorized",
}

_PLAIN_TEXT = re.compile(r"[\w .:;,+*/=<>()\[\]{}@!?#$%&|^~-]*", re.ASCII)
_WRAP = 120


@runtime_checkable
class Printable(Protocol):
    """A function or a module, which calls the printer method for its kind."""

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Append the lines to the printer, indented by `depth` steps; `name` replaces the object's own name."""


def script(obj: Printable | Stmt | Expr, underline: Collection[Any] = ()) -> str:
    """The script text of `obj`.

    Args:
        obj: a function or module, whose text parses back, or a statement or expression, printed without declarations.
        underline: nodes to underline with carets, below the line they start on; compared by identity.

    Raises:
        ScriptError: `obj` has no script form.
    """
    printer = Printer(frozenset(map(id, underline)))
    if isinstance(obj, Printable):
        obj.print_on(printer, 0)
    elif isinstance(obj, (Stmt, Expr)):
        printer.fragment(obj)
    else:
        raise ScriptError(f"{type(obj).__name__} has no script form; expected a PrimFunc, IRModule, statement or expression")
    text = "\n".join(printer.lines)
    return underlined(text) if underline else text


def quoted(text: str) -> str:
    """A Python string literal, in double quotes if that needs no escape."""
    return f'"{text}"' if _PLAIN_TEXT.fullmatch(text) else repr(text)


class Printer(ExprPrinter):
    """Printer of statements, functions and modules, which appends to `lines`."""

    def __init__(self, marks: frozenset[int]) -> None:
        super().__init__(marks)
        self.lines: list[str] = []
        self._extents: dict[Var, Poly] = {}

    def _line(self, depth: int, text: str, node: Any = None) -> None:
        if node is not None and id(node) in self.marks:
            head, newline, rest = text.partition("\n")
            text = f"{OPEN}{head}{CLOSE}{newline}{rest}"
        self.lines.append("    " * depth + text)

    # ---- functions -------------------------------------------------------------------------------------------------

    def module(self, mod: IRModule) -> None:
        """Print every function of `mod`; ScriptError if one has no script form."""
        self._line(0, "@T.ir_module", mod)
        self._line(0, "class Module:")
        for i, (name, f) in enumerate(mod.items()):
            if i:
                self.lines.append("")
            if not isinstance(f, Printable):
                raise ScriptError(
                    f"function {name!r} of the module is a {type(f).__name__}, which has no script form: it has no method print_on"
                )
            inner = Printer(self.marks)
            f.print_on(inner, 1, name)
            self.lines += inner.lines
        if not mod:
            self._line(1, "pass")

    def function(self, f: PrimFunc, depth: int) -> None:
        """Print `f`, indented by `depth` steps."""
        shapes = [s for b in f.buffers for s in b.sizes] + [v for _, v in f.attrs if isinstance(v, Poly)]
        sizes, strays = free_names(f.body, [*f.params, *f.allocs], shapes)
        for p in f.params:
            if isinstance(p, Buffer):
                self.names.bind(p)
            else:
                self.bind_var(p, size=True)
        for v in sizes:
            self.bind_var(v, size=True)
        for b in (*f.allocs, *strays):
            self.names.bind(b)

        name = identifier(f.name)
        self._line(depth, "@T.prim_func" if name == f.name else f"@T.prim_func(name={quoted(f.name)})")
        params = [self._param(p) for p in f.params]
        line = f"def {name}({', '.join(params)}):"
        if len(line) > _WRAP:
            line = f"def {name}(\n" + "".join(f"{'    ' * (depth + 1)}{p},\n" for p in params) + "    " * depth + "):"
        self._line(depth, line, f)
        depth += 1
        if f.attrs:
            self._line(depth, f"T.func_attr({self._notes(f.attrs)})")
        for v in sizes:
            self._line(depth, f"{self.var(v)} = {self._param_type(v) if isinstance(v, Param) else 'T.int64()'}")
        for b in f.allocs:
            self._line(depth, f"{self.names.name[b]} = T.alloc_buffer({self._buffer(b)})")
        self._body(f.body, depth)

    def fragment(self, n: Stmt | Expr) -> None:
        """Print a single statement or expression."""
        sizes, strays = free_names(n, (), ())
        for b in strays:
            self.names.bind(b)
        for v in sizes:
            self.bind_var(v, size=True)
        if isinstance(n, Stmt):
            self._body(n, 0)
        else:
            self.lines.append(self.value(n))

    def _param(self, p: Buffer | Var) -> str:
        if isinstance(p, Buffer):
            return f"{self.names.name[p]}: T.Buffer({self._buffer(p)})"
        return f"{self.var(p)}: {self._param_type(p) if isinstance(p, Param) else 'T.int64'}"

    def _param_type(self, p: Param) -> str:
        d = p.domain
        step = d[1] - d[0] if len(d) > 8 else 0
        if step and d == tuple(range(d[0], d[-1] + 1, step)):
            return f"T.param({quoted(p.name)}, range({d[0]}, {d[-1] + 1}{f', {step}' if step > 1 else ''}))"
        return f"T.param({quoted(p.name)}, {list(d)})"

    def _buffer(self, b: Buffer) -> str:
        shape = ", ".join([self.index(s) for s in b.shape]) + ("," if len(b.shape) == 1 else "")
        scope = f', scope="{b.scope}"' if b.scope != "global" else ""
        pad = f", pad={self.index(b.pad)}" if b.pad != 0 else ""
        if b.align:
            pad += f", align=[{', '.join([f'({a.axis}, {self.index(a.factor)}, {self.index(a.offset)})' for a in b.align])}]"
        # The name must survive parsing, because names of blocks and buffers are derived from it.
        name = f", name={quoted(b.name)}" if self.names.name.get(b, b.name) != b.name and len(b.name) <= MAX_NAME else ""
        return f'({shape}), "{b.dtype}"' + scope + pad + name

    def _notes(self, notes: Annotations) -> str:
        return "{" + ", ".join([f"{quoted(k)}: {quoted(v) if isinstance(v, str) else self.index(v)}" for k, v in notes]) + "}"

    # ---- statements ------------------------------------------------------------------------------------------------

    def _body(self, s: Stmt, depth: int) -> None:
        """Print the statements of a body; a Seq has no line of its own."""
        if type(s) is Seq and len(s.stmts) > 1 and id(s) not in self.marks:
            for x in s.stmts[:-1]:
                self._stmt(x, depth, False)
            self._stmt(s.stmts[-1], depth, True)
        else:
            self._stmt(s, depth, True)

    def _stmt(self, s: Stmt, depth: int, last: bool) -> None:
        """Print a statement; `last` means that it ends its body, so that a scope may extend to the end of the body."""
        f = _STMT.get(type(s))
        if f is None:
            raise ScriptError(f"the statement {type(s).__name__} has no script form")
        f(self, s, depth, last)

    def _seq(self, s: Seq, depth: int, last: bool) -> None:
        # A Seq directly in a Seq, or with a single statement: valid, though `seq()` does not create it.
        self._line(depth, "with T.seq():", s)
        for x in s.stmts:
            self._stmt(x, depth + 1, x is s.stmts[-1])
        if not s.stmts:
            self._line(depth + 1, "pass")

    def _plain(self, s: Stmt) -> bool:
        return type(s) is For and s.kind == "serial" and s.thread is None and not s.annotations and id(s) not in self.marks

    def _for(self, s: For, depth: int, last: bool) -> None:
        loops = [s]
        if self._plain(s):
            bound = {s.var}
            while self._plain(loops[-1].body) and loops[-1].body.extent.vars.isdisjoint(bound):  # type: ignore[attr-defined]
                loops.append(loops[-1].body)  # type: ignore[arg-type]
                bound.add(loops[-1].var)
        extents = ", ".join([self.index(x.extent) for x in loops])
        targets = []
        for x in loops:
            targets.append(self.bind_var(x.var))
            self._extents[x.var] = x.extent
        call = "T.grid" if len(loops) > 1 else KINDS[s.kind]
        if s.thread is not None:
            extents += f", {quoted(s.thread)}"
        if s.annotations:
            extents += f", annotations={self._notes(s.annotations)}"
        self._line(depth, f"for {', '.join(targets)} in {call}({extents}):", s)
        self._body(loops[-1].body, depth + 1)
        self.names.release([x.var for x in loops])
        for x in loops:
            del self._extents[x.var]

    def _block(self, s: Block, depth: int, last: bool) -> None:
        self._line(depth, f"with T.block({quoted(s.name)}):", s)
        depth += 1
        bindings = [self.index(b) for b in s.bindings]
        for i in s.iters:
            self.bind_var(i.var)
        self._iters(s, bindings, depth)
        for p in s.predicate:
            self._line(depth, f"T.where({self.negative(p)})", p)
        if s.annotations:
            self._line(depth, f"T.block_attr({self._notes(s.annotations)})")
        if s.init is not None:
            self._line(depth, "with T.init():")
            self._body(s.init, depth + 1)
        self._body(s.body, depth)
        self.names.release([i.var for i in s.iters])

    def _iters(self, s: Block, bindings: list[str], depth: int) -> None:
        """Print the T.axis lines; two or more consecutive loop variables are combined to a `remap`."""
        run: list[tuple[Iter, str]] = []

        def flush() -> None:
            if len(run) > 1:
                targets, kinds = ", ".join([self.var(i.var) for i, _ in run]), "".join([i.kind for i, _ in run])
                self._line(depth, f'{targets} = T.axis.remap("{kinds}", [{", ".join([b for _, b in run])}])')
            elif run:
                single(*run[0])
            run.clear()

        def single(i: Iter, text: str) -> None:
            axis = "T.axis.spatial" if i.kind == "S" else "T.axis.reduce"
            self._line(depth, f"{self.var(i.var)} = {axis}({self.index(i.extent)}, {text})", i)

        for i, binding, text in zip(s.iters, s.bindings, bindings, strict=True):
            loop = binding.as_var()
            if loop is not None and self._extents.get(loop) == i.extent and id(i) not in self.marks:
                run.append((i, text))
            else:
                flush()
                single(i, text)
        flush()

    def _store(self, s: BufferStore, depth: int, last: bool) -> None:
        name = self.buffer_name(s.buffer)
        value = self.value(s.value)
        if s.stride is None and s.mask is None:
            self._line(depth, f"{name}[{self.indices(s.indices)}] = {value}", s)
        else:
            lanes = self.lane_arguments(1, s.stride, s.mask)
            self._line(depth, f"{name}.vstore([{', '.join([self.index(i) for i in s.indices])}], {value}{lanes})", s)

    def _if(self, s: If, depth: int, last: bool) -> None:
        word = "if"
        while True:
            self._line(depth, f"{word} {self.value(s.cond)}:", s)
            self._body(s.then, depth + 1)
            if type(s.orelse) is not If:
                break
            s, word = s.orelse, "elif"
        if s.orelse is not None:
            self._line(depth, "else:")
            self._body(s.orelse, depth + 1)

    def _while(self, s: While, depth: int, last: bool) -> None:
        self._line(depth, f"while {self.value(s.cond)}:", s)
        self._body(s.body, depth + 1)

    def _allocate(self, s: Allocate, depth: int, last: bool) -> None:
        call = f"T.allocate({self._buffer(s.buffer)})"
        name = self.names.bind(s.buffer)
        if last:
            self._line(depth, f"{name} = {call}", s)
            self._body(s.body, depth)
        else:
            self._line(depth, f"with {call} as {name}:", s)
            self._body(s.body, depth + 1)
        self.names.release([s.buffer])

    def _bind_index(self, s: BindIndex, depth: int, last: bool) -> None:
        value, extent = self.value(s.value), self.index(s.extent)
        self._line(depth, f"with T.lookup({value}, {extent}) as {self.bind_var(s.var)}:", s)
        self._body(s.body, depth + 1)
        self.names.release([s.var])

    def _evaluate(self, s: Evaluate, depth: int, last: bool) -> None:
        self._line(depth, f"T.evaluate({self.value(s.value)})", s)


_STMT: dict[type, Callable[[Printer, Any, int, bool], None]] = {
    For: Printer._for,
    Block: Printer._block,
    BufferStore: Printer._store,
    If: Printer._if,
    While: Printer._while,
    Seq: Printer._seq,
    Allocate: Printer._allocate,
    Evaluate: Printer._evaluate,
    BindIndex: Printer._bind_index,
}
