"""Synthetic pools: a real task's space with an invented time for each row, so that an arena can be tried without measuring.

The landscape is a bowl on a logarithmic scale with a ridge for each pair of neighbouring columns, a level for each sketch, and a
rough surface.  It is a formula: anyone can compute the time of any row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tunesmith.experiments.arena.pool import Measurement, Pool, make_pool
from tunesmith.ir.script.printer import script
from tunesmith.search.space.param_space import Rows
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import derive, stream

Floats = npt.NDArray[np.float64]

BASE = 1e-5
"""Seconds at the bottom of the bowl."""


def synthetic_seconds(sketch: str, rows: Rows, seed: int = 0, roughness: float = 0.1, failures: float = 0.05) -> Floats:
    """Invented times of rows, [N]; inf for failures.

    Args:
        sketch: its name, which selects the landscape together with the seed.
        rows: [N, P].
        seed: of the landscape.
        roughness: a row's time is this much longer at most than the smooth landscape has it.
        failures: share of the rows that fail.
    """
    rng = stream(seed, "synthetic pool", sketch)
    columns = rows.shape[1]
    center, width = rng.uniform(0.0, 6.0, columns), rng.uniform(0.05, 0.3, columns)
    tilt = rng.uniform(-0.1, 0.1, max(columns - 1, 0))
    level = rng.uniform(0.0, 1.0)
    away = np.log2(1.0 + rows) - center
    cost = level + (width * away**2).sum(axis=1) + np.abs((tilt * away[:, :-1] * away[:, 1:]).sum(axis=1))
    noise = _noise(rows, derive(seed, "synthetic pool", sketch, "noise"))
    fails = _noise(rows, derive(seed, "synthetic pool", sketch, "failures")) < failures
    return np.where(fails, np.inf, BASE * (1.0 + cost) * (1.0 + roughness * noise))


def synthetic_pool(task: Task, rows: int, seed: int = 0, roughness: float = 0.1, failures: float = 0.05) -> Pool:
    """A pool of about so many rows of each sketch of a task, distinct; other arguments as for `synthetic_seconds`.

    Raises:
        UserError: `rows` is below 1, or all of them fail.
    """
    if rows < 1:
        raise UserError(f"a pool has at least 1 row of each sketch, not {rows}")
    measurements: list[Measurement] = []
    for s in task.space.sketches:
        rng = stream(seed, "synthetic pool", s.name, "rows")
        drawn = np.unique(s.space.sample(2 * rows, rng), axis=0)
        kept = drawn[np.sort(rng.permutation(len(drawn))[:rows])]
        trace = s.trace.to_json()
        seconds = synthetic_seconds(s.name, kept, seed, roughness, failures)
        measurements += [Measurement(s.name, trace, tuple(r), float(x)) for r, x in zip(kept.tolist(), seconds, strict=True)]
    return make_pool(task.name, script(task.func), task.target.to_json(facts=True), measurements)


def _noise(rows: Rows, key: int) -> Floats:
    """A number in [0, 1) for each row that depends on its integers alone (splitmix64, Steele et al., OOPSLA 2014)."""
    h = np.full(len(rows), np.uint64(key))
    for column in np.ascontiguousarray(rows, np.int64).view(np.uint64).T:
        h = (h ^ column) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
    return np.asarray((h >> np.uint64(11)) * 2.0**-53)
