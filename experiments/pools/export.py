"""dataset export: a record table with the features of every candidate as named columns, for models and tools from elsewhere.

A candidate's features follow from the script of its workload, the steps of its trace and its target with all facts: all of them are in the
table, so that an export needs neither the machine nor the rules that made the space.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

import tunesmith
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.datasets.record_columns import groups, template
from tunesmith.datasets.record_table import RecordTable
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import parse_function
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.sketch import Sketch, make_sketch
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, TunesmithError, UserError

PREFIX = "feature."
"""Of the names of feature columns; what follows are the names of `FeatureProgram.program_names`."""


@dataclass(frozen=True)
class Exported:
    """A table with features.

    Attributes:
        table: lines in the order they had, feature columns behind the others; NaN where a candidate has no features.
        without: so many lines have none, and why: reason -> lines.
    """

    table: RecordTable
    without: dict[str, int]


def with_features(table: RecordTable) -> Exported:
    """The table with a column for each feature of a program's vector, the analytic cost and its terms among them.

    Args:
        table: with programs and targets.
    Raises:
        UserError: no line has features.
        RecordError: a line is damaged.
    """
    names: tuple[str, ...] = ()
    values: npt.NDArray[np.float32] = np.zeros((len(table), 0), np.float32)
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
            raise UserError(
                "the table has targets whose programs have other features: export the targets one by one (`dataset split --by target`)"
            )
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


def _groups(table: RecordTable) -> dict[tuple[str, ...], npt.NDArray[np.int64]]:
    """The lines of each workload, target and steps.  A sketch's name alone would not do: another version may have meant other steps."""
    steps = [json.dumps(template(_steps(at, text))) for at, text in enumerate(table.frame["trace"])]
    keys = pd.DataFrame({"workload": table.frame["workload"], "target": table.frame["target"], "steps": steps})
    return groups(keys, list(keys.columns))


def _steps(line: int, text: str) -> list[object]:
    steps = json_lines.parse(text.encode())
    if not isinstance(steps, list):
        raise RecordError(f"line {line} of the table: its trace is no list of steps")
    return steps


def _feature_program(table: RecordTable, digest: str, key: str, steps: str) -> FeatureProgram:
    known = table.workloads.get(digest)
    if known is None:
        raise UserError(f"the table has no program of the workload {digest}")
    sketch = sketch_of(parse_function(known.script), Trace.from_json(json.loads(steps)))
    return sketch.features(Target.from_json(table.targets[key]))


def sketch_of(func: PrimFunc, trace: Trace) -> Sketch:
    """The sketch that steps make of a function, their decisions left open.

    Raises:
        ScheduleError: a step refuses.
        RecordError: a step is no primitive's.
    """

    def replay(schedule: Schedule) -> None:
        for instruction in trace.instructions:
            apply_instruction(schedule, instruction, None)

    return make_sketch("", func, replay)


def _rows(table: RecordTable, lines: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    rows = table.frame["row"].iloc[lines].tolist()
    if any(len(r) != width for r in rows):
        raise UserError(f"rows have other than {width} values, which is what the sketch samples")
    return np.array(rows, np.int64).reshape(len(rows), width)
