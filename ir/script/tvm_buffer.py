"""Check the options of TVM's buffer declarations that describe memory: only dense row-major buffers exist here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Const
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.parser_expr import ExprParser

_DENSE = (
    "Buffers are dense and row-major: declare one with the shape of its memory, and compute the index, or copy the array before the call."
)


def _check_strides(p: ExprParser, e: ast.expr, b: Buffer) -> None:
    given = p.items(e, "strides")
    if not given:
        return
    if any(isinstance(x, ast.Constant) and isinstance(x.value, str) for x in given):
        p.fail(e, f"the strides of buffer {shorten(b.name)} are not known", _DENSE)
    strides = [p.index(x) for x in given]
    same = len(strides) == len(b.shape) and all(x == y or n == 1 for x, y, n in zip(strides, b.strides, b.shape, strict=True))
    if not same:
        p.fail(e, f"buffer {shorten(b.name)} has the strides {strides!r}; those of its shape are {list(b.strides)!r}", _DENSE)


def _check_offset(p: ExprParser, e: ast.expr, b: Buffer) -> None:
    v = p.expr(e)
    if (v.value if isinstance(v, Const) else v) != 0:
        p.fail(e, f"buffer {shorten(b.name)} begins at an offset", "Delete this argument: the array of the call is the whole buffer.")


def _check_number(p: ExprParser, e: ast.expr, b: Buffer) -> None:
    """Any multiple is one of the alignment that tunesmith computes."""
    p.integer(e, "this option of a buffer", 0)


def _check_type(p: ExprParser, e: ast.expr, b: Buffer) -> None:
    if p.text(e, "buffer_type") not in ("", "default"):
        p.fail(e, f"buffer {shorten(b.name)} has dimensions that may be broadcast", _DENSE)


def _check_separators(p: ExprParser, e: ast.expr, b: Buffer) -> None:
    if p.items(e, "axis_separators"):
        p.fail(e, f"the memory of buffer {shorten(b.name)} has several dimensions", _DENSE)


OPTIONS: Mapping[str, Callable[[ExprParser, ast.expr, Buffer], None]] = {
    "strides": _check_strides,
    "elem_offset": _check_offset,
    "byte_offset": _check_offset,
    "offset_factor": _check_number,
    "data_alignment": _check_number,
    "buffer_type": _check_type,
    "axis_separators": _check_separators,
}


def is_data_alignment(e: ast.expr) -> bool:
    """Whether `align=` is TVM's alignment of the data, a number; here it is a list of alignments of dimensions."""
    return isinstance(e, ast.Constant) and type(e.value) is int


def without_options(call: ast.Call) -> tuple[ast.Call, dict[str, ast.expr]]:
    """The declaration without the options of TVM, and these; None is their default."""
    options = {k.arg: k.value for k in call.keywords if k.arg in OPTIONS}
    if not options:
        return call, {}
    rest = ast.copy_location(ast.Call(call.func, call.args, [k for k in call.keywords if k.arg not in options]), call)
    return rest, {name or "": e for name, e in options.items() if not (isinstance(e, ast.Constant) and e.value is None)}


def check_options(p: ExprParser, options: Mapping[str, ast.expr], b: Buffer) -> None:
    """Refuse options that do not describe the memory of `b`."""
    for name, e in options.items():
        OPTIONS[name](p, e, b)
