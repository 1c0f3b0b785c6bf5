"""Read files of script text, such as TVM prints: they are parsed and never run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.tvm_script import is_size
from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean

NAMESPACES = ("T", "I", "G")
"""The names that scripts use without an import: printers write their imports as comments."""


def is_script(text: str) -> bool:
    """Whether a Python text is script text: decorated functions and classes alone, whose T, I and G it does not import.

    An import from tvm counts as none, because the text is TVM's then.
    """
    body = _statements(text)
    definitions = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    rest = [n for n in body if not isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    return bool(definitions) and all(_is_decorated(n) for n in definitions) and all(_is_tvm_import(n) or is_size(n) for n in rest)


def load_script(spec: str) -> PrimFunc | IRModule | None:
    """The function or module that `path.py:name` names in a file of script text; None if the file is something else.

    A name of the class of a module, or of a graph function, is the whole module.

    Raises:
        UserError: the file has no such name.
        ScriptError: the text is no program.
    """
    path, _, name = spec.rpartition(":")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):  # the loader of Python files reports them
        return None
    if not is_script(text):
        return None
    mod = parse_module(text, path)
    classes = [n.name for n in _statements(text) if isinstance(n, ast.ClassDef)]
    found = mod.get(name)
    if isinstance(found, PrimFunc):
        return found
    if name in classes or isinstance(found, GraphFunc):
        return mod
    known = [*mod, *classes]
    raise UserError(f"{spec!r}: the script {path} has no {name!r}, but {', '.join(known)}.{did_you_mean(name, known)}")


def parse_module(text: str, file: str) -> IRModule:
    """The module of a text, or its functions as a module; `tunesmith show LOG --script` prints a function for each workload.

    Raises:
        UserError: two functions have one name.
        ScriptError: the text is no program.
    """
    if len(functions := _functions(text)) < 2:
        found = parse(text, file)
        return found if isinstance(found, IRModule) else IRModule({found.name: found})
    parsed: list[Any] = [parse(function, file) for function in functions]
    names = [f.name for f in parsed]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{file}: two functions are named {twice}: rename one, or pass them one at a time")
    return IRModule(dict(zip(names, parsed, strict=True)))


def _functions(text: str) -> list[str]:
    """The texts of the functions if there is nothing else in the text but imports, each on its lines; [] otherwise."""
    statements = _statements(text)
    sizes = [n.lineno - 1 for n in statements if is_size(n)]
    body = [n for n in statements if not isinstance(n, (ast.Import, ast.ImportFrom)) and not is_size(n)]
    if not all(isinstance(node, ast.FunctionDef) for node in body):
        return []
    lines = text.splitlines()
    starts = [min([node.lineno, *[d.lineno for d in node.decorator_list]]) - 1 for node in body if isinstance(node, ast.FunctionDef)]
    ends = [*starts[1:], len(lines)]
    return [
        "\n".join([x if n in sizes or n >= start else "" for n, x in enumerate(lines[:end])])
        for start, end in zip(starts, ends, strict=True)
    ]


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser of scripts reports them
        return []


def _is_decorated(d: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether all decorators are of the script's namespaces, and there is one."""
    found = [e.func if isinstance(e, ast.Call) else e for e in d.decorator_list]
    return bool(found) and all(isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in NAMESPACES for f in found)


def _is_tvm_import(n: ast.stmt) -> bool:
    names = [a.name for a in n.names] if isinstance(n, ast.Import) else [n.module or ""] if isinstance(n, ast.ImportFrom) else [""]
    return all(name.partition(".")[0] in ("tvm", "__future__") for name in names)
