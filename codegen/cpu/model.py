"""Describe a model that is compiled ahead of time to one C function, and check that all its functions are compiled with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.runtime.executor.aot_executor import program_name
from tunesmith.runtime.executor.bound_program import COPY
from tunesmith.runtime.executor.executable import VERSION
from tunesmith.support.errors import BuildError, RunError

IF, ELSE, END = "(if)", "(else)", "(end)"
"""Rows of a program around the calls of a branch; the operand of the first is a bool."""
LOOP, LEAVE, AGAIN = "(loop)", "(leave)", "(again)"
"""Rows around the calls of a `while` loop, which ends at LEAVE if its operand, a bool, does not hold."""
CONTROL = frozenset((IF, ELSE, END, LOOP, LEAVE, AGAIN))


HEADERS = frozenset(
    """alloca assert complex ctype errno features fenv float inttypes iso646 limits locale malloc math memory omp pthread setjmp signal
    stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar
    unistd wchar wctype""".split()
)
"""Names of system headers: a model of such a name would have a header that C files include in place of that of the system."""


def aot_program(program: dict[str, Any], name: str, target: Target) -> dict[str, Any]:
    """The program of an executable of kind "aot".

    Args:
        program: program of the graph executor.
        name: prefix of the C functions.
        target: target of the code.
    Raises:
        BuildError: the name is not a C identifier.
    """
    made = {
        "version": VERSION,
        "name": name,
        "target": str(target),
        "inputs": program["inputs"],
        "outputs": program["outputs"],
        "workspace": program["arena"],
    }
    try:
        program_name(made)
    except RunError as error:
        raise BuildError(str(error)) from error
    return made


def check_complete(program: dict[str, Any], funcs: Sequence[PrimFunc]) -> None:
    """Refuse a model that calls functions of another object.  Raises BuildError."""
    missing = sorted({call[0] for call in program["calls"]} - {f.name for f in funcs} - {COPY} - CONTROL)
    if missing:
        raise BuildError(
            f"a model is compiled ahead of time as one object, and {', '.join(missing)} would be called in another one: "
            'compile without offload, or for executor="graph"'
        )
