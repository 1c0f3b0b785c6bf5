"""Say how many measurements of a data set are clean, and what to do if few are."""

from __future__ import annotations

from tunesmith.display.tables import plural

LEAST_CLEAN = 0.5
"""Share of clean measurements below which a report advises, or gives no verdict."""

RETAKE = "Measure them again on a quiet machine: `tunesmith dataset build --retake` with the same arguments repeats disturbed ones"
"""The advice for tables and pools of measurements."""


def noise_remark(clean: int, total: int, advice: str, doubtful: str = "") -> str:
    """`790 of 2080 measurements are clean (38%)`, with the advice if fewer than `LEAST_CLEAN` are; empty without measurements.

    Args:
        clean: measurements that no other process disturbed.
        total: all measurements with a time.
        advice: a sentence that says what to do, without a full stop.
        doubtful: a clause that names results which come from disturbed measurements; the advice then follows in any case.
    """
    if not total:
        return ""
    text = f"{clean} of {plural(total, 'measurement')} {'is' if total == 1 else 'are'} clean ({clean / total:.0%})"
    if clean >= LEAST_CLEAN * total and not doubtful:
        return text
    return f"{text}: the others were disturbed by other processes{f'; {doubtful}' if doubtful else ''}. {advice}"


def clean_share(clean: int, total: int) -> str:
    """`38%` for a column of a table; `-` without measurements."""
    return f"{clean / total:.0%}" if total else "-"
