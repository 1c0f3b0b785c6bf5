"""Vary random programs for the comparison of backends: choices by scalar conditions, and names that code generators use themselves."""

from __future__ import annotations

import re
from dataclasses import replace

from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.generate_value import SPECIAL, STYLES
from tunesmith.testing.program_fuzz.numbers import FLOATS

NAMES = (
    *("EOF", "NULL", "RAND_MAX", "SIZE_MAX", "EXIT_SUCCESS", "INT64_C", "stdin", "errno", "size_t", "int", "auto", "restrict", "nullptr"),
    *("f_kernel", "f_kernel_busy", "f_kernel_arena", "f_kernel_i1", "f_kernel_i1_share", "f_kernel_v0", "arena", "busy", "share", "kernel"),
    *("workspace", "threads", "context", "first", "last", "extent", "own", "run_parallel", "free", "shared_bytes", "m1", "l0", "v1", "v2"),
    *("float32x8", "load_float32x8", "add_int32", "sub_float32", "x_EOF", "x_int", "é", "ß", "i1_share", "main", "linux", "abs", "t", "c"),
)
"""Names of C and its library, of generated functions and of variables in generated code."""


def with_choices(program: p.Program, c: Choices) -> p.Program:
    """The program with some stored values replaced by choices between them and another value, by an element of an input."""
    inputs = [b for b in program.buffers if b.role == "input" and b.data not in SPECIAL]
    return replace(program, body=tuple([_nest(n, inputs, c) for n in program.body])) if inputs else program


def with_names(text: str, program: p.Program, c: Choices) -> str:
    """The text of a program with other names of buffers and loops."""
    own = [b.name for b in program.buffers] + sorted(set(re.findall(r"for (\w+) in", text)))
    words = set(re.findall(r"\w+", text))
    new = dict(zip(c.shuffled(own), [n for n in c.shuffled(NAMES) if n not in words], strict=False))
    return re.sub(r"\w+", lambda found: new.get(found[0], found[0]), text)


def _nest(n: p.Nest, inputs: list[p.Buffer], c: Choices) -> p.Nest:
    if isinstance(n, p.Loop):
        return replace(n, body=tuple([_nest(x, inputs, c) for x in n.body]))
    return n if n.init else replace(n, body=tuple([_statement(s, inputs, c) for s in n.body]))


def _statement(s: p.Statement, inputs: list[p.Buffer], c: Choices) -> p.Statement:
    if not isinstance(s, p.Store) or c.chance(0.4):
        return s
    dtype = s.value.dtype
    b = c.one(inputs)
    element: p.Value = p.Load(b.name, (p.Num(0),) * len(b.shape), b.dtype)
    cond = element if b.dtype == "bool" else p.Compare(c.one(["<", ">=", "!="]), element, _number(c.integer(0, 2), b.dtype))
    if dtype == "bool":
        other: p.Value = p.Not(s.value) if c.chance(0.5) else p.Literal(c.chance(0.5), dtype)
    else:
        number = _number(c.integer(0, 3), dtype)
        other = p.Binary(c.one(["max", "-", "+"]), number, s.value, dtype) if c.chance(0.5) else number
    a, b_side = (s.value, other) if c.chance(0.5) else (other, s.value)
    return replace(s, value=p.Select(cond, a, b_side, c.one(STYLES), dtype))


def _number(value: int, dtype: str) -> p.Literal:
    return p.Literal(float(value) if dtype in FLOATS else value, dtype)
