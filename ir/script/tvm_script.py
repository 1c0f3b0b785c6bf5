"""Translate scripts that TVM prints into scripts of tunesmith, as syntax trees.

The dialects differ in names and declarations only; positions are kept, so that messages point into the original text.  Source: TVMScript
of TVM 0.27 (`tirx`) and of earlier versions (`tir`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

MARKS = ("from tvm", "sblock", "s_tir", "match_buffer", "I.ir_module", "T.reads", "T.writes", "tir.", "T.Select", "T.target", "root")
"""A text without any of these is not translated."""

_NAMES = {
    "sblock": "block",
    "sblock_alloc_buffer": "alloc_buffer",
    "sblock_attr": "block_attr",
    "Cast": "cast",
    "Select": "select",
}
_DECORATOR_OPTIONS = {"s_tir", "private", "check_well_formed", "persistent"}
_ATTRIBUTES = {"tirx.noalias", "tir.noalias", "tirx.is_scheduled", "tir.is_scheduled", "global_symbol", "s_tir", "target"}
"""Attributes of functions that hold of every function here, repeat the name, or name the target, which is an argument of compilation."""
_MODULE_STATEMENTS = {"module_attrs", "module_global_infos"}


def is_tvm_script(text: str) -> bool:
    """Whether a text may be in TVM's dialect."""
    return any(mark in text for mark in MARKS)


def translated(tree: ast.Module) -> ast.Module:
    """The tree in tunesmith's dialect; changes `tree`.

    The regions of `T.reads` and `T.writes` are left out, because they are computed from the accesses, and attributes of a module.  A
    parameter `a: T.handle` with `A = T.match_buffer(a, ...)` becomes `A: T.Buffer(...)`, sizes `n = T.int32()` become the last parameters,
    the name of a size in a shape becomes the size, and a block "root" becomes its body.
    """
    sizes = {t.id: s for s in tree.body if is_size(s) for t in s.targets if isinstance(t, ast.Name)}  # type: ignore[attr-defined]
    tree.body = [s for s in tree.body if not is_size(s)]
    out: ast.Module = _Translator(sizes).visit(tree)
    return ast.fix_missing_locations(out)


def is_size(s: ast.stmt) -> bool:
    """Whether the statement is `n = TypeVar("n")`, a size of several functions."""
    f = s.value.func if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call) else None
    return isinstance(f, ast.Name) and f.id == "TypeVar"


class _Translator(ast.NodeTransformer):
    """Translates the functions of a text; `sizes` are the declarations of sizes at its top, by name."""

    def __init__(self, sizes: dict[str, ast.stmt]) -> None:
        self.sizes = sizes

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.decorator_list = [_renamed_module(d) for d in node.decorator_list]
        node.body = [s for s in node.body if not (isinstance(s, ast.Expr) and _word(s.value, "I") in _MODULE_STATEMENTS)]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.decorator_list = [_without_options(d) for d in node.decorator_list]
        node.body = _unrooted(node.body)
        _bind_handles(node)
        _pass_sizes(node)
        _pass_sizes_of_text(node, self.sizes)
        out: Any = self.generic_visit(node)
        out.body = out.body or [ast.copy_location(ast.Pass(), node)]
        return out

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "T":
            node.attr = _NAMES.get(node.attr, node.attr)
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        if _word(node.value) in ("reads", "writes"):
            return None
        if _word(node.value) == "func_attr" and (left := _other_attributes(node.value)) is not None:
            if not left.keys:
                return None
            node.value.args = [left]  # type: ignore[attr-defined]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if _word(node) in ("Buffer", "match_buffer", "alloc_buffer", "sblock_alloc_buffer"):
            node.args = [_sizes(a) for a in node.args]
            for k in node.keywords:
                k.value = _sizes(k.value) if k.arg == "shape" else k.value
        if _word(node) == "reinterpret" and len(node.args) == 2:
            node.args, node.keywords = node.args[1:], [ast.copy_location(ast.keyword("dtype", node.args[0]), node)]
        return self.generic_visit(node)


def _word(e: ast.AST | None, namespace: str = "T") -> str:
    """The word of `T.word(...)`."""
    f = e.func if isinstance(e, ast.Call) else None
    return f.attr if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == namespace else ""


def _renamed_module(d: ast.expr) -> ast.expr:
    f = d.func if isinstance(d, ast.Call) else d
    if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in ("I", "tvm") and f.attr == "ir_module":
        f.value.id = "T"
        return f
    return d


def _without_options(d: ast.expr) -> ast.expr:
    if _word(d) == "prim_func" and isinstance(d, ast.Call):
        d.keywords = [k for k in d.keywords if k.arg not in _DECORATOR_OPTIONS]
        return d if d.keywords or d.args else d.func
    return d


def _unrooted(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements, with those of the block "root" in its place."""
    out: list[ast.stmt] = []
    for s in body:
        call = s.items[0].context_expr if isinstance(s, ast.With) and len(s.items) == 1 else None
        named = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
        is_root = _word(call) in ("block", "sblock") and isinstance(named, ast.Constant) and named.value == "root"
        out += [x for x in s.body if not _is_root_attribute(x)] if is_root and isinstance(s, ast.With) else [s]
    return out


def _is_root_attribute(s: ast.stmt) -> bool:
    """Whether the statement annotates the root block: hints for postprocessors of MetaSchedule."""
    return isinstance(s, ast.Expr) and _word(s.value) in ("block_attr", "sblock_attr")


def _bind_handles(d: ast.FunctionDef) -> None:
    """Declare parameters as the buffers that they are matched with."""
    handles = {a.arg: a for a in d.args.args if isinstance(a.annotation, ast.Attribute) and a.annotation.attr == "handle"}
    rest: list[ast.stmt] = []
    for s in d.body:
        call = s.value if isinstance(s, ast.Assign) else None
        if isinstance(call, ast.Call) and _word(call) == "match_buffer" and isinstance(s, ast.Assign) and call.args:
            target, handle = s.targets[0], call.args[0]
            if isinstance(target, ast.Name) and isinstance(handle, ast.Name) and handle.id in handles:
                parameter = handles.pop(handle.id)
                parameter.arg = target.id
                call.args = call.args[1:]
                call.func.attr = "Buffer"  # type: ignore[attr-defined]
                parameter.annotation = call
                if target.id not in {n.id for earlier in rest for n in ast.walk(earlier) if isinstance(n, ast.Name)}:
                    continue
                # The parser refuses a declaration after a use.
                late = ast.Attribute(ast.Name("T", ast.Load()), "match_buffer", ast.Load())
                s.value = ast.copy_location(ast.Call(late, [], []), call)
        rest.append(s)
    d.body = rest


def _pass_sizes(d: ast.FunctionDef) -> None:
    """Make the sizes `n = T.int32()` the last parameters."""
    lets = [n for n in ast.walk(d) if isinstance(n, ast.Call) and _word(n) == "Let"]
    keys = [k for n in lets for w in n.keywords if isinstance(w.value, ast.Dict) for k in w.value.keys]
    bound = {k.id for k in keys if isinstance(k, ast.Name)}
    rest: list[ast.stmt] = []
    for s in d.body:
        target = s.targets[0] if isinstance(s, ast.Assign) else None
        is_size = isinstance(s, ast.Assign) and _word(s.value) in ("int32", "int64") and not s.value.args  # type: ignore[attr-defined]
        if isinstance(target, ast.Name) and target.id in bound:
            continue  # a name of T.Let
        if is_size and isinstance(target, ast.Name):
            d.args.args.append(ast.copy_location(ast.arg(target.id, ast.copy_location(_int64(), s)), s))
        else:
            rest.append(s)
    d.body = rest


def _pass_sizes_of_text(d: ast.FunctionDef, sizes: dict[str, ast.stmt]) -> None:
    """Make the sizes of the text that the function uses its last parameters."""
    used = {n.id for n in ast.walk(d) if isinstance(n, ast.Name)} - {a.arg for a in d.args.args}
    for name, s in sizes.items():
        if name in used:
            d.args.args.append(ast.copy_location(ast.arg(name, ast.copy_location(_int64(), s)), s))


def _int64() -> ast.expr:
    return ast.Attribute(ast.Name("T", ast.Load()), "int64", ast.Load())


def _other_attributes(call: ast.expr) -> ast.Dict | None:
    """The attributes of a function that are not in `_ATTRIBUTES`; None if they are not a literal."""
    given = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
    if not isinstance(given, ast.Dict):
        return None
    pairs = [(k, v) for k, v in zip(given.keys, given.values, strict=True) if not (isinstance(k, ast.Constant) and k.value in _ATTRIBUTES)]
    return ast.copy_location(ast.Dict([k for k, _ in pairs], [v for _, v in pairs]), given)


def _sizes(shape: ast.expr) -> ast.expr:
    """A shape in which names of sizes are not quoted."""
    if isinstance(shape, ast.Tuple):
        shape.elts = [
            ast.copy_location(ast.Name(e.value, ast.Load()), e) if isinstance(e, ast.Constant) and isinstance(e.value, str) else e
            for e in shape.elts
        ]
    return shape
