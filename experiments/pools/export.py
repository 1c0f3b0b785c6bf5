"""Export a record table with the features of every candidate as named columns, for other models and tools.

A candidate's features follow from the script of its workload, the steps of its trace and its target with machine rates.  The table
contains all of them, so an export needs neither the machine nor the rules of the space.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

import tunesmith
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.datasets.record_columns import groups
from tunesmith.datasets.record_table import RecordTable
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.records.trace_template import template
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.sketch import Sketch, make_sketch
from tunesmith.support import json_lines
from tunesmith.support.array_types import Float32Array, Int64Array
from tunesmith.support.errors import RecordError, TunesmithError, UserError

PREFIX = "feature."
"""Prefix of feature columns, followed by a name of `FeatureProgram.program_names`."""


@dataclass(frozen=True)
class Exported:
    """A table with feature columns.

    Attributes:
        table: lines in their original order, with feature columns after the others; NaN for candidates without features.
        without: number of lines without features, by reason.
    """

    table: RecordTable
    without: dict[str, int]


def with_features(table: RecordTable) -> Exported:
    """Add a column for each feature of a program's vector, including the analytic cost and its terms.

    Args:
        table: table with programs and targets.
    Raises:
        UserError: no line has features.
        RecordError: a line is damaged.
    """
    names: tuple[str, ...] = ()
    values: Float32Array = np.zeros((len(table), 0), np.float32)
    without: dict[str, int] = {}
    for (digest, key, steps), lines in _groups(table).items():
        try:
            program = _feature_program(table, digest, key, steps)
            rows = _rows(table, lines, len(program.analysis.params))
        except TunesmithError as error:
            reason = f"{table.frame['name'].iloc[lines[0]]}: {str(error).splitlines()[0]}"
            without[reason] = without.get(reason, 0) + len(lines)
            continue
        if not names:
            names = program.program_names
            values = np.full((len(table), len(names)), np.nan, np.float32)
        elif names != program.program_names:
            raise UserError("the targets of the table have different features: export them one by one (`dataset split --by target`)")
        values[lines] = program.program(rows)
    if not names:
        raise UserError(f"no line of the table has features: {'; '.join(without) or 'it is empty'}")
    known = [c for c in table.frame.columns if not c.startswith(PREFIX)]
    columns = pd.DataFrame(values, columns=[PREFIX + n for n in names])
    out = RecordTable(pd.concat([table.frame[known], columns], axis=1), table.workloads, table.targets, table.sketches)
    out.notes = {
        **table.notes,
        "features": {"columns": list(columns.columns), "schema": SCHEMA_VERSION, "tunesmith": tunesmith.__version__},
    }
    return Exported(out, without)


def _groups(table: RecordTable) -> dict[tuple[str, ...], Int64Array]:
    """The lines of each workload, target and steps.  A sketch name is not enough, because other versions may use it for other steps."""
    steps = [json.dumps(template(_steps(at, text))) for at, text in enumerate(table.frame["trace"])]
    keys = pd.DataFrame({"workload": table.frame["workload"], "target": table.frame["target"], "steps": steps})
    return groups(keys, list(keys.columns))


def _steps(line: int, text: str) -> list[object]:
    steps = json_lines.parse(text.encode())
    if not isinstance(steps, list):
        raise RecordError(f"line {line} of the table: its trace is not a list of steps")
    return steps


def _feature_program(table: RecordTable, digest: str, key: str, steps: str) -> FeatureProgram:
    known = table.workloads.get(digest)
    if known is None:
        raise UserError(f"the table has no program of the workload {digest}")
    sketch = sketch_of(parse_function(known.script), Trace.from_json(json.loads(steps)))
    return sketch.features(Target.from_json(table.targets[key]))


def sketch_of(func: PrimFunc, trace: Trace) -> Sketch:
    """The sketch of a function and steps, with undecided parameters.

    Raises:
        ScheduleError: a step refuses.
        RecordError: a step is not a known primitive.
    """

    def replay(schedule: Schedule) -> None:
        for instruction in trace.instructions:
            apply_instruction(schedule, instruction, None)

    return make_sketch("", func, replay)


def _rows(table: RecordTable, lines: Int64Array, width: int) -> Int64Array:
    rows = table.frame["row"].iloc[lines].tolist()
    if any(len(r) != width for r in rows):
        raise UserError(f"some rows do not have the {width} values that the sketch samples")
    return np.array(rows, np.int64).reshape(len(rows), width)
