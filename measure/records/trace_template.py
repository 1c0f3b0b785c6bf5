"""Name the part of a trace that all candidates of a sketch share."""

from __future__ import annotations

from collections.abc import Sequence


def template(trace: Sequence[object]) -> list[object]:
    """The steps of a trace without their decisions, common to all candidates of a sketch."""
    return [step[:3] if isinstance(step, list) and str(step[0]).startswith("sample_") else step for step in trace]
