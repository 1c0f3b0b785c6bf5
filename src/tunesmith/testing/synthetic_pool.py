"""Create synthetic tabular benchmarks: the space of a real task with a computed time per configuration, to replay searches.

The landscape is a quadratic bowl in log2 coordinates with a ridge per pair of neighbouring columns, a base level per sketch and
bounded noise.  It is a formula, so the time of any configuration can be computed.
"""

from __future__ import annotations

import numpy as np

from tunesmith.experiments.arena.pool import Measurement, Pool, make_pool
from tunesmith.ir.script.printer import script
from tunesmith.search.space.param_space import Rows
from tunesmith.search.task import Task
from tunesmith.support.array_types import Float64Array
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import derive, stream

BASE = 1e-5
"""Seconds at the minimum of the bowl."""


def synthetic_seconds(sketch: str, rows: Rows, seed: int = 0, roughness: float = 0.1, failures: float = 0.05) -> Float64Array:
    """Synthetic times of configurations, [N]; inf for failures.

    Args:
        sketch: sketch name, which together with the seed selects the landscape.
        rows: configurations, [N, P].
        seed: landscape seed.
        roughness: maximum relative increase of a time by noise.
        failures: fraction of failing configurations.
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
    """A tabular benchmark with up to `rows` distinct configurations per sketch of a task; other arguments as in `synthetic_seconds`.

    Raises:
        UserError: `rows` is below 1, or all configurations fail.
    """
    if rows < 1:
        raise UserError(f"a pool needs at least 1 row per sketch, got {rows}")
    measurements: list[Measurement] = []
    for s in task.space.sketches:
        rng = stream(seed, "synthetic pool", s.name, "rows")
        drawn = np.unique(s.space.sample(2 * rows, rng), axis=0)
        kept = drawn[np.sort(rng.permutation(len(drawn))[:rows])]
        trace = s.trace.to_json()
        seconds = synthetic_seconds(s.name, kept, seed, roughness, failures)
        measurements += [Measurement(s.name, trace, tuple(r), float(x)) for r, x in zip(kept.tolist(), seconds, strict=True)]
    return make_pool(task.name, script(task.func), task.target.to_json(facts=True), measurements)


def _noise(rows: Rows, key: int) -> Float64Array:
    """A number in [0, 1) per configuration that depends only on its integers (splitmix64, Steele et al., OOPSLA 2014)."""
    h = np.full(len(rows), np.uint64(key))
    for column in np.ascontiguousarray(rows, np.int64).view(np.uint64).T:
        h = (h ^ column) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
    return np.asarray((h >> np.uint64(11)) * 2.0**-53)
