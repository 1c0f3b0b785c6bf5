"""Render a described program as script text."""

from __future__ import annotations

import math

from tunesmith.testing.program_fuzz import program as p


def render(program: p.Program, name: str = "f") -> str:
    """The script text of the program."""
    params = [f"{b.name}: T.Buffer({_buffer(b)})" for b in program.params]
    lines = ["@T.prim_func", f"def {name}({', '.join([*params, *[f'{n}: T.int64' for n in program.sizes]])}):"]
    lines += [f"    {b.name} = T.alloc_buffer({_buffer(b)})" for b in program.buffers if b.role == "scratch"]
    for n in program.body:
        lines += _indent(_nest(n))
    return "\n".join(lines) + "\n"


def _buffer(b: p.Buffer) -> str:
    shape = f"({', '.join(map(index, b.shape))}{',' if len(b.shape) == 1 else ''})"
    scope = f', scope="{b.scope}"' if b.scope != "global" else ""
    return f'{shape}, "{b.dtype}"{scope}{f", pad={b.pad}" if b.pad else ""}'


def _indent(lines: list[str]) -> list[str]:
    return ["    " + x for x in lines]


def _nest(n: p.Nest) -> list[str]:
    if isinstance(n, p.Loop):
        return [f"for {n.var} in T.serial({index(n.extent)}):", *_indent([x for m in n.body for x in _nest(m)])]
    made = _plain(n) if n.is_plain else _block(n)
    for c in reversed(n.under):
        made = [f"if {value(c)}:", *_indent(made)]
    return made


def _plain(n: p.Block) -> list[str]:
    body: tuple[p.Statement, ...] = n.body
    for a in n.axes:
        body = p.replaced(body, a.name, a.binding)
    lines = _statements(body)
    for g in reversed(n.guards):
        lines = [f"if {value(g)}:", *_indent(lines)]
    return lines


def _block(n: p.Block) -> list[str]:
    lines = [f'with T.block("{n.name}"):']
    for a in n.axes:
        lines.append(f"    {a.name} = T.axis.{'spatial' if a.kind == 'S' else 'reduce'}({index(a.extent)}, {index(a.binding)})")
    if n.guards:
        lines.append(f"    T.where({' and '.join([f'{index(g.a)} {g.op} {index(g.b)}' for g in n.guards])})")
    if n.init:
        lines += ["    with T.init():", *_indent(_indent(_statements(n.init)))]
    return lines + _indent(_statements(n.body))


def _statements(body: tuple[p.Statement, ...]) -> list[str]:
    lines: list[str] = []
    for s in body:
        if isinstance(s, p.Store):
            lines.append(f"{s.buffer}[{_indices(s.indices)}] = {value(s.value)}")
            continue
        lines += [f"if {value(s.cond)}:", *_indent(_statements(s.then))]
        if s.orelse:
            lines += ["else:", *_indent(_statements(s.orelse))]
    return lines


def _indices(indices: tuple[p.Index, ...]) -> str:
    return ", ".join(map(index, indices)) if indices else "()"


def index(e: p.Index) -> str:
    """Script text of an index expression."""
    if isinstance(e, p.Num):
        return str(e.value) if e.value >= 0 else f"({e.value})"
    if isinstance(e, p.Name):
        return e.name
    if e.op in ("min", "max"):
        return f"T.{e.op}({index(e.a)}, {index(e.b)})"
    return f"({index(e.a)} {e.op} {index(e.b)})"


def value(e: p.Value) -> str:
    """Script text of a value expression."""
    match e:
        case p.Literal():
            text = str(e.value) if not isinstance(e.value, float) or math.isfinite(e.value) else f'"{e.value}"'
            return f"T.{e.dtype}({text})"
        case p.Load():
            return f"{e.buffer}[{_indices(e.indices)}]"
        case p.Binary():
            return f"T.{e.op}({value(e.a)}, {value(e.b)})" if e.op in ("min", "max") else f"({value(e.a)} {e.op} {value(e.b)})"
        case p.IndexCompare():
            return f"({index(e.a)} {e.op} {index(e.b)})"
        case p.Compare() | p.Logic():
            return f"({value(e.a)} {e.op} {value(e.b)})"
        case p.Not():
            return f"(not {value(e.a)})"
        case p.Select():
            if e.style == "ternary":
                return f"({value(e.a)} if {value(e.cond)} else {value(e.b)})"
            return f"T.{'select' if e.style == 'select' else 'if_then_else'}({value(e.cond)}, {value(e.a)}, {value(e.b)})"
        case p.Cast():
            return f'T.cast("{e.dtype}", {value(e.a)})'
        case p.IndexValue():
            return f'T.cast("{e.dtype}", {f"T.index({index(e.index)})" if isinstance(e.index, p.Num) else index(e.index)})'
        case p.Function():
            return f"T.{e.name}({', '.join(map(value, e.args))})"
        case p.IndirectIndex():
            return f"T.lookup({value(e.value)}, {index(e.extent)}, lambda {e.name}: {value(e.body)})"
