"""Parse scripts into programs: `parse` for text, `parse_python` for a decorated Python function.

The text is parsed with `ast` and never evaluated, because it may come from a log.  The result is a program or a ScriptError with the
position of the error.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, Protocol

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Param, Var, poly
from tunesmith.ir.script.diagnostics import Source, SourceError, shorten
from tunesmith.ir.script.parser_block import BlockParser
from tunesmith.ir.script.parser_scope import Budget
from tunesmith.ir.script.parser_stmt import statement_word
from tunesmith.ir.script.tvm_script import is_tvm_script, translated
from tunesmith.ir.stmt import Annotations
from tunesmith.support.errors import ScriptError
from tunesmith.support.registry import FUNCTION, Registry

MAX_TEXT = 16_000_000
MAX_DOMAIN = 65_536
"""Limits: characters of a text, values of a Param."""


class FunctionReader(Protocol):
    """Parser of functions with a decorator other than `@T.prim_func`; the result has a `name`.

    `constants` are arrays that the text refers to by digest.
    """

    def __call__(self, source: Source, budget: Budget, d: ast.FunctionDef, constants: Mapping[str, Any]) -> Any: ...


_SYNTAX = "Correct this line; a script of TVM is printed by mod.script()."


DIALECTS: Registry[FunctionReader] = Registry(
    "script dialect", {"G.function": "tunesmith.graph.ir.script_parser:parse_function"}, contract=FUNCTION
)
"""Readers by decorator."""


def parse(text: str, file: str = "<script>", constants: Mapping[str, Any] | None = None) -> PrimFunc | IRModule | Any:
    """Parse a script that contains one function, such as a `@T.prim_func`, or one `@T.ir_module` class of functions.

    Import statements around it are left out: a script is read and never run.

    Args:
        text: script in the format of `printer.script`.
        file: name of the text in messages.
        constants: arrays that functions of a dialect refer to by digest.

    Raises:
        ScriptError: the text is not a program; the message shows the position.
    """
    if not isinstance(text, str):
        raise ScriptError(f"a script is text, got {type(text).__name__}")
    source, tree = _read(text, file, 1)
    definitions = [s for s in tree.body if not isinstance(s, (ast.Import, ast.ImportFrom))]
    if len(definitions) != 1:
        at = definitions[1] if definitions else None
        found = f"one function or module is expected, found {len(definitions)} statements"
        raise source.error(at, found, "Put several functions into a @T.ir_module class.")
    try:
        return _program(source, Budget(len(text)), definitions[0], constants or {})
    except RecursionError:
        raise _too_deep(source) from None


def parse_python(func: FunctionType, local: Mapping[str, object]) -> PrimFunc:
    """Parse the source of a decorated Python function; the function is never run.

    Args:
        func: the function; its source may use int, float and str constants of its closure and globals.
        local: the local names at the decorator, for constants that occur in annotations only.
    """
    try:
        text, first = "".join(inspect.getsourcelines(func)[0]), func.__code__.co_firstlineno
        file = inspect.getsourcefile(func) or "<script>"
    except (OSError, TypeError) as e:
        raise ScriptError(
            f"the source of {func.__name__} cannot be found ({e}); put it into a file, or parse its text with script.parser.parse"
        ) from e
    cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))

    def constant(name: str) -> object:
        if name in cells:
            try:
                return cells[name].cell_contents
            except ValueError:  # not assigned yet
                return None
        return local.get(name, func.__globals__.get(name))

    source, tree = _read(textwrap.dedent(text), file, first)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise source.error(definition, "T.prim_func decorates a function")
    alias, name = _decorator(definition)
    try:
        return FunctionParser(source, Budget(len(text)), constant, alias).function(definition, name)
    except RecursionError:
        raise _too_deep(source) from None


def _read(text: str, file: str, first_line: int) -> tuple[Source, ast.Module]:
    """The syntax tree; every error of the Python parser becomes a ScriptError."""
    if len(text) > MAX_TEXT:
        raise ScriptError(f"{file}: the text has {len(text)} characters; at most {MAX_TEXT} are read")
    source = Source.of(text, file, first_line)
    try:
        tree = ast.parse(text)
        return (replace(source, tvm=True), translated(tree)) if is_tvm_script(text) else (source, tree)
    except SyntaxError as e:
        line, column = min(e.lineno or 1, len(source.lines)), max((e.offset or 1) - 1, 0)
        end = (e.end_offset or 0) - 1 if e.end_lineno == e.lineno else -1
        raise source.error_at(line, column, max(end, column + 1), f"Python syntax: {shorten(e.msg or '', 200)}", _SYNTAX) from None
    except (RecursionError, MemoryError):
        raise _too_deep(source) from None
    except ValueError as e:  # null bytes, lone surrogates
        raise source.error(None, f"this is not text that Python reads: {shorten(str(e), 100)}") from None


def _too_deep(source: Source) -> SourceError:
    return source.error(None, "the text is nested too deeply")


def _decorator(d: ast.FunctionDef | ast.ClassDef) -> tuple[str, ast.expr | None]:
    """The name of the namespace in `@T.prim_func`, and the argument of `@T.prim_func(name=...)`."""
    for e in d.decorator_list:
        f = e.func if isinstance(e, ast.Call) else e
        name = next((k.value for k in e.keywords if k.arg == "name"), None) if isinstance(e, ast.Call) else None
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.attr == "prim_func":
            return f.value.id, name
    return "T", None


def _program(source: Source, budget: Budget, d: ast.stmt, constants: Mapping[str, Any]) -> PrimFunc | IRModule | Any:
    if isinstance(d, ast.FunctionDef):
        return _function(source, budget, d, constants)
    if not isinstance(d, ast.ClassDef):
        raise source.error(
            d, f"unsupported at the top of a script: {statement_word(d)}", "A script is a @T.prim_func function or a @T.ir_module class."
        )
    if d.bases or d.keywords or [ast.unparse(x) for x in d.decorator_list] != ["T.ir_module"]:
        raise source.error(d, "a module is a class without bases under the decorator @T.ir_module", "Or @I.ir_module.")
    functions: dict[str, Any] = {}
    for i, s in enumerate(d.body):
        if isinstance(s, ast.Pass) or (i == 0 and _is_docstring(s)):
            continue
        if not isinstance(s, ast.FunctionDef):
            raise source.error(s, f"unsupported in a module: {statement_word(s)}", "A module holds @T.prim_func functions.")
        f = _function(source, budget, s, constants)
        if f.name in functions:
            raise source.error(s, f"the module has two functions named {shorten(f.name)!r}", "Rename one.")
        functions[f.name] = f
    return IRModule(functions)


def _function(source: Source, budget: Budget, d: ast.FunctionDef, constants: Mapping[str, Any]) -> PrimFunc | Any:
    """Parse a function of a text, with the decorator `@T.prim_func` or that of a dialect."""
    e = d.decorator_list[0] if len(d.decorator_list) == 1 else None
    f = e.func if isinstance(e, ast.Call) else e
    word = f"{f.value.id}.{f.attr}" if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) else ""
    if word == "T.prim_func" and (f is e or (isinstance(e, ast.Call) and not e.args and [k.arg for k in e.keywords] == ["name"])):
        return FunctionParser(source, budget).function(d, _decorator(d)[1])
    if word != "T.prim_func" and word in DIALECTS:
        return DIALECTS.get(word)(source, budget, d, constants)
    raise source.error(
        e or d, f"the function {shorten(d.name)} needs the decorator @T.prim_func and no other", "Or @T.prim_func(name=...)."
    )


def _is_docstring(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)


class FunctionParser(BlockParser):
    """Parser of a function: symbolic sizes and Params first, because shapes in the signature use them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._allocs: list[Buffer] = []
        self._attrs: Annotations | None = None

    def function(self, d: ast.FunctionDef, name: ast.expr | None = None) -> PrimFunc:
        """Parse the function `d`, exported as `name` if that is given."""
        a = d.args
        extra = (
            a.vararg
            or a.kwarg
            or next(iter(a.kwonlyargs + a.posonlyargs), None)
            or next((x for x in (*a.defaults, *a.kw_defaults) if x), None)
        )
        if extra is not None:
            self.fail(extra, "parameters have no defaults, no `*` and no `/`")
        exported = d.name if name is None else self.text(name, "the name of a function")
        rest = list(d.body[1:] if _is_docstring(d.body[0]) else d.body)
        self._check_order(rest)
        rest = [s for s in rest if not self._size(s)]
        types = [(x, self._annotation(x)) for x in a.args]
        params: dict[str, Buffer | Var] = {x.arg: self._scalar_param(x, t) for x, t in types if not self._is_buffer(t)}
        for x, t in types:
            if self._is_buffer(t):
                assert isinstance(t, ast.Call)
                b = params[x.arg] = self.new_buffer(t, x.arg)
                self.declare(x, x.arg, b)
        rest = [s for s in rest if not self._declaration(s)]
        body = self.body(rest, d)
        return PrimFunc(exported, tuple([params[x.arg] for x in a.args]), tuple(self._allocs), body, self._attrs or ())

    def _check_order(self, stmts: Sequence[ast.stmt]) -> None:
        """Refuse a buffer that is used before the statement of the function that declares it."""
        used: dict[str, ast.Name] = {}
        for s in stmts:
            t = self.t_call(s.value) if isinstance(s, ast.Assign) else None
            if t is not None and t[0] in ("alloc_buffer", "match_buffer"):
                for x in s.targets:  # type: ignore[attr-defined]
                    if isinstance(x, ast.Name) and x.id in used:
                        self.fail(used[x.id], f"`{shorten(x.id)}` is used before its T.{t[0]}", "Declare it first.")
            for n in ast.walk(s):
                if isinstance(n, ast.Name):
                    used.setdefault(n.id, n)

    # ---- signature -------------------------------------------------------------------------------------------------

    def _annotation(self, x: ast.arg) -> ast.expr:
        """The type of a parameter; quoted types, which Python needs for names declared later, are parsed too."""
        t = x.annotation
        if isinstance(t, ast.Constant) and isinstance(t.value, str):
            try:
                inner = ast.parse(t.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self.fail(t, "this type is not a Python expression")
            for n in ast.walk(inner):
                ast.copy_location(n, t)
            t = inner
        if t is None:
            self.fail(
                x, f"the parameter `{shorten(x.arg)}` has no type", 'Write T.Buffer((m, n), "float32"), or T.int64 for a symbolic size.'
            )
        return t

    def _is_buffer(self, t: ast.expr) -> bool:
        call = self.t_call(t)
        return call is not None and call[0] == "Buffer"

    def _scalar_param(self, x: ast.arg, t: ast.expr) -> Var:
        call = self.t_call(t)
        if self.t_name(t) == "int64":
            v = Var(x.arg)
        elif call is not None and call[0] == "param":
            v = self._param(call[1])
        else:
            hint = "Parameters are T.Buffer(shape, dtype), T.int64, or T.param(name, values); pass another scalar as a buffer of shape ()."
            self.fail(t, f"the parameter `{shorten(x.arg)}` has an unsupported type", hint)
        self.declare(x, x.arg, poly(v))
        return v

    # ---- declarations ----------------------------------------------------------------------------------------------

    def _size(self, s: ast.stmt) -> bool:
        """Parse `n = T.int64()` or `t = T.param(...)`; False if `s` is neither."""
        t = self.t_call(s.value) if isinstance(s, ast.Assign) and not isinstance(s.targets[0], ast.Subscript) else None
        if t is None or t[0] not in ("int64", "param"):
            return False
        word, call = t
        name = self._single(s, word)
        if word == "int64":
            self.arguments(call, (), 0)
        self.declare(s, name, poly(self._param(call) if word == "param" else Var(name)))
        return True

    def _declaration(self, s: ast.stmt) -> bool:
        """Parse `x = T.alloc_buffer(...)` or `T.func_attr({...})`; False if `s` is neither."""
        attrs = self.attributes(s, "func_attr")
        if attrs is not None:
            if self._attrs is not None:
                self.fail(s, "T.func_attr appears twice", "Put all attributes into one dict.")
            self._attrs = self.notes(attrs)
            return True
        t = self.t_call(s.value) if isinstance(s, ast.Assign) else None
        if t is None or t[0] != "alloc_buffer":
            return False
        name = self._single(s, "alloc_buffer")
        b = self.new_buffer(t[1], name)
        self.declare(s, name, b)
        self._allocs.append(b)
        return True

    def _single(self, s: Any, word: str) -> str:
        names = self.targets(s.targets[0])
        if len(names) != 1 or len(s.targets) != 1:
            self.fail(s, f"T.{word} declares one name")
        return names[0]

    def _param(self, call: ast.Call) -> Param:
        """Parse `T.param("t", [1, 2, 4])` or `T.param("t", range(1, 65))`."""
        a = self.arguments(call, ("name", "domain"), 2)
        name, d = self.text(a["name"], "the name of a Param"), a["domain"]
        if isinstance(d, ast.Call) and isinstance(d.func, ast.Name) and d.func.id == "range" and not d.keywords and 1 <= len(d.args) <= 3:
            bounds = [self.integer(x, "a bound of the values", 1 if i == 2 else 0) for i, x in enumerate(d.args)]
            values: range | list[int] = range(*bounds)
        else:
            values = [self.integer(x, "a value of a Param", 0) for x in self.items(d, "the values of a Param")]
        if len(values) > MAX_DOMAIN:
            self.fail(d, f"a Param has at most {MAX_DOMAIN} values")
        return self.make(call, Param, name, values)
