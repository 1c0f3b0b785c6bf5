"""Say how many measurements of a data set are clean, and what to do if few are."""

from __future__ import annotations

from tunesmith.display.tables import plural

FEW_CLEAN = 0.5
"""Share of clean measurements below which a report advises."""


def noise_remark(clean: int, total: int, advice: str) -> str:
    """`790 of 2080 measurements are clean (38%)`, with the advice if fewer than `FEW_CLEAN` are; empty without measurements.

    Args:
        clean: measurements that no other process disturbed.
        total: all measurements with a time.
        advice: a sentence that says what to do, without a full stop.
    """
    if not total:
        return ""
    text = f"{clean} of {plural(total, 'measurement')} {'is' if total == 1 else 'are'} clean ({clean / total:.0%})"
    return text if clean >= FEW_CLEAN * total else f"{text}: the others were disturbed by other processes. {advice}"
