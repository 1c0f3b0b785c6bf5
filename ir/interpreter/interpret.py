"""Interpret programs on numpy arrays: the reference semantics, and the oracle of all fuzzing.

`run` translates the program to plain Python over numpy scalars and executes it, statement by statement in program order.  Every access and
every block binding is checked, memory is poisoned before its first write, and each operation is computed in its declared type.  The result
is the definition that code generators are tested against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.memory import InterpretError
from tunesmith.ir.interpreter.source import Compiler
from tunesmith.ir.poly import Param, Var

__all__ = ["InterpretError", "match_arrays", "run"]


def run(
    func: PrimFunc,
    arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray],
    values: Mapping[Var, int] | None = None,
    *,
    check_races: bool = False,
) -> list[np.ndarray]:
    """The contents of the buffer parameters of `func` after a call.

    Args:
        func: any program that `verify` accepts, at any stage of lowering.
        arrays: buffer parameters by name, or in order; they are copied.  Omitted parameters (outputs) start poisoned: NaN for floats, the
            bytes A5 for integers, true for bool.  bfloat16 is stored in float32 arrays.
        values: the value of every Param and scalar parameter.
        check_races: also reject a program in which two iterations of a parallel, vectorized or thread loop access the same element and at
            least one of them writes it.  Thread-private scratch is poisoned in each iteration.

    Returns:
        One array per buffer parameter, in order.

    Raises:
        InterpretError: an access or a binding out of range, a race, an integer shift by too much, wrong arguments, or a threadIdx loop:
            `threads.run_threads` runs threads that synchronize.
    """
    known = dict(values or {})
    for v, n in known.items():
        if isinstance(v, Param) and n not in v.domain:
            raise InterpretError(f"the value {n} is not in the domain of the Param {v}: {v.domain}")
    made = Compiler(func, known, check_races)
    memory = [made.memory(b, given) for b, given in match_arrays(func, arrays)]
    for b in func.allocs:
        made.memory(b, None)
    code = made.compile()
    with np.errstate(all="ignore"):
        try:
            exec(code, made.env)
        except (ArithmeticError, ValueError) as e:
            raise InterpretError(f"function {func.name} computes something undefined: {e}") from e
    return memory


def match_arrays(func: PrimFunc, arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[tuple[Buffer, np.ndarray | None]]:
    """Buffer parameters with their arrays, by name or in order; None for omitted parameters."""
    buffers = [p for p in func.params if isinstance(p, Buffer)]
    names = [b.name for b in buffers]
    if isinstance(arrays, Mapping):
        unknown = sorted(set(arrays) - set(names))
        twice = sorted({n for n in names if n in arrays and names.count(n) > 1})
        if unknown or twice:
            what = f"no parameter is named {', '.join(unknown)}" if unknown else f"two parameters are named {', '.join(twice)}"
            raise InterpretError(f"function {func.name}: {what}; buffer parameters are {', '.join(names)}")
        return [(b, arrays.get(b.name)) for b in buffers]
    if len(arrays) > len(buffers):
        raise InterpretError(f"function {func.name} has {len(buffers)} buffer parameters ({', '.join(names)}) and got {len(arrays)} arrays")
    return [(b, arrays[i] if i < len(arrays) else None) for i, b in enumerate(buffers)]
