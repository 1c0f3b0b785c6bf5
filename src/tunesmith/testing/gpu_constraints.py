"""Compare the device-limit constraints of a GPU sketch with lowering: both must accept and refuse the same configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.codegen.device.build import device_source
from tunesmith.ir.arith.array_eval import compile_polys
from tunesmith.ir.target.target import Target
from tunesmith.search.space.rules.gpu_limits import LEGAL
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.array_types import BoolArray, Int64Array
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Agreement of constraints and lowering.

    Attributes:
        both_accept: number of configurations that both accept.
        both_refuse: number of configurations that both refuse.
        wrongly_refused: configurations that only the constraints refuse.
        wrongly_accepted: configurations that only lowering refuses, with its reason.
    """

    both_accept: int
    both_refuse: int
    wrongly_refused: tuple[tuple[int, ...], ...]
    wrongly_accepted: tuple[tuple[tuple[int, ...], str], ...]


def compare_constraints(sketch: Sketch, target: Target, rows: Int64Array) -> Verdicts:
    """Compare the device-limit constraints (`gpu_limits.LEGAL`) with lowering and code generation of each configuration.

    Args:
        sketch: sketch of a GPU rule.
        target: target with the device limits.
        rows: configurations in the Params' domains, [N, P], admissible or not.
    """
    allowed = legal(sketch, rows)
    accept = refuse = 0
    refused: list[tuple[int, ...]] = []
    accepted: list[tuple[tuple[int, ...], str]] = []
    for row, may in zip(rows, allowed, strict=True):
        numbers = tuple(int(x) for x in row)
        try:
            device_source(sketch.concretize(numbers), target)
        except BuildError as error:
            if may:
                accepted.append((numbers, str(error)))
            refuse += not may
        else:
            if not may:
                refused.append(numbers)
            accept += bool(may)
    return Verdicts(accept, refuse, tuple(refused), tuple(accepted))


def legal(sketch: Sketch, rows: Int64Array) -> BoolArray:
    """Whether the device-limit constraints accept each configuration, [N]."""
    mine = [c for c in sketch.constraints if c.label in LEGAL]
    values = compile_polys([c.expr for c in mine], sketch.params)(rows)
    return np.asarray((values <= 0).all(axis=1))


def domain_rows(sketch: Sketch, n: int, rng: np.random.Generator) -> Int64Array:
    """Random configurations in the Params' domains, [n, P], admissible or not."""
    columns: Sequence[Int64Array] = [np.array(p.domain, np.int64)[rng.integers(len(p.domain), size=n)] for p in sketch.params]
    return np.stack(columns, axis=1)
