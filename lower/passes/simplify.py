"""Simplify expressions, guards and loops under the ranges of loop variables and symbolic sizes."""

from __future__ import annotations

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier


@function_pass(requires="SCHEDULED")
def simplify(func: PrimFunc, target: Target) -> PrimFunc:
    """Simplify the whole function (see `lower.simplifier`)."""
    body = Simplifier(symbol_ranges(func))(func.body)
    return with_body(func, seq([]) if body is None else body)
