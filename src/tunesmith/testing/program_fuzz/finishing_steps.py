"""Generate the annotations that end a random schedule."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.schedule.schedule import Schedule
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.steps import LoopRef, Step


def finishing_steps(c: Choices, s: Schedule) -> list[Step]:
    """Annotations for the loops of every block, as in good schedules: vectorize inside, unroll around, parallelize outside."""
    steps = []
    for b in s.blocks():
        depth = len(s.loops_of(b.name))
        if not depth:
            continue
        if c.chance(0.5):
            steps.append(Step("split", (("loop", LoopRef(b.name, depth - 1)), ("factors", (None, c.one([2, 3, 4, 5, 8]))))))
            depth += 1
        steps.append(Step("vectorize", (("loop", LoopRef(b.name, depth - 1)),)))
        in_registers = any(a.buffer.scope == "register" for a in (*reads(b), *writes(b))) and c.chance(0.85)
        for at in range(depth - 1) if in_registers else [depth - 2] if depth > 1 and c.chance(0.6) else []:
            steps.append(Step("unroll", (("loop", LoopRef(b.name, at)),)))
        if depth > 1 and c.chance(0.3):
            steps.append(Step("parallel", (("loop", LoopRef(b.name, 0)),)))
    return steps
