"""Show programs between passes as script text."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.ir.function import IRModule, PrimFunc

Program = PrimFunc | IRModule
Write = Callable[[str], object]
"""Takes one text, without the end of its last line."""


def print_text(text: str) -> None:
    """Print a text on standard output."""
    sys.stdout.write(f"{text}\n")


def program_text(program: Program) -> str:
    """The script of a program; that of its only function if a module has one."""
    functions = list(program.values()) if isinstance(program, IRModule) else [program]
    return str(functions[0]) if len(functions) == 1 and isinstance(functions[0], (PrimFunc, GraphFunc)) else str(program)


def program_name(program: Program) -> str:
    """The name of a function; `module` for a module of several."""
    return program.name if isinstance(program, PrimFunc) else next(iter(program)) if len(program) == 1 else "module"


def program_diff(before: str, after: str, name: str) -> str:
    """The lines that differ between two scripts as a unified diff; empty if they are equal."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), "before", name, lineterm="", n=2))
