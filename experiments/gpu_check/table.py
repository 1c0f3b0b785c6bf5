"""Format the results of a check as a table, and evaluate its target marks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.experiments.gpu_check.tuning import COMPUTE
from tunesmith.ops.workload import workload

GEMM_MARK, MEMORY_MARK, TRIALS_MARK = 0.80, 0.90, 3.0
DIFFERS = 1e-3
"""Outputs whose difference exceeds this fraction of the root mean square are different results: lower precision, or an error."""

_HEAD = ("task", "ours us", "baselines us", "baseline/ours", "rate", "of peak", "sketch", "regs", "spill", "errors")

_MODELS_HEAD = ("model", "ours us", "baselines us", "baseline/ours", "error", "copied of inputs and outputs", "compiled in s")


def table(results: Mapping[str, Any], rates: Mapping[str, float], failures: Mapping[str, str]) -> str:
    """The results as a Markdown table with aligned columns, with notes and marks.

    Args:
        results: results by section, as in a session.
        rates: rates of the device: peak_gflops, dram_gbs.
        failures: reasons of failed sections.
    """
    tasks, baselines = results.get("tuning", {}).get("tasks", {}), results.get("peers", {}).get("tasks", {})
    rows = [_row(text, tasks.get(text, {}), baselines.get(text, {}), rates) for text in dict.fromkeys([*tasks, *baselines])]
    lines = _aligned([_HEAD, *rows]) if rows else ["no workload was tuned or compared"]
    if models := results.get("models"):
        lines += ["", *_aligned([_MODELS_HEAD, *[_model_row(name, m) for name, m in models.items() if isinstance(m, Mapping)]])]
    notes = [f"{name} failed: {why.splitlines()[0][:300]}" for name, why in failures.items()]
    notes += [
        f"{text}: {system} skipped: {why.strip().splitlines()[-1][:200]}"
        for text, p in baselines.items()
        for system, why in p.get("left_out", {}).items()
    ]
    for text, p in baselines.items():
        notes += [f"{text}: {system} DIFFERS from ours by {d:.1e}" for system, d in p.get("differences", {}).items() if not d <= DIFFERS]
        notes += [f"{text}: {system} was not captured: its time includes the launch from Python" for system in p.get("not_captured", {})]
    return "\n".join([*lines, *[f"! {note}" for note in notes], "", *marks(results)])


def marks(results: Mapping[str, Any]) -> list[str]:
    """The three marks: reached, not reached, or not measured."""
    baselines = results.get("peers", {}).get("tasks", {})
    gemm = {t: _ratio(p, "cuBLAS") for t, p in baselines.items() if t.startswith("matmul(")}
    memory = {t: _ratio(p, "torch.compile") for t, p in baselines.items() if t.partition("(")[0] not in COMPUTE}
    rate = results.get("tuning", {}).get("trials_per_s")
    return [
        _mark(f"GEMM, each at least {GEMM_MARK:.2f} of cuBLAS", gemm, GEMM_MARK),
        _mark(f"memory-bound, each at least {MEMORY_MARK:.2f} of torch.compile", memory, MEMORY_MARK),
        f"mark: at least {TRIALS_MARK:.0f} trials/s: "
        + ("not measured" if rate is None else f"{'reached' if rate >= TRIALS_MARK else 'NOT reached'} ({rate:.2f})"),
    ]


def _mark(what: str, ratios: Mapping[str, float | None], least: float) -> str:
    known = [r for r in ratios.values() if r is not None]
    if not known:
        return f"mark: {what}: not measured"
    mean = statistics.geometric_mean(known)
    shown = f"{min(known):.2f} .. {max(known):.2f}, geometric mean {mean:.2f}, {len(known)} of {len(ratios)} measured"
    state = "NOT reached" if min(known) < least else "reached" if len(known) == len(ratios) else "reached as far as measured"
    return f"mark: {what}: {state} ({shown})"


def _ratio(p: Mapping[str, Any], baseline: str) -> float | None:
    """Time of a baseline over ours; None unless both were timed and agree."""
    times, wrong = p.get("times", {}), p.get("differences", {}).get(baseline, 0.0)
    if not times.get("ours") or not times.get(baseline) or not wrong <= DIFFERS:
        return None
    return statistics.median(times[baseline]) / statistics.median(times["ours"])


def _row(text: str, task: Mapping[str, Any], p: Mapping[str, Any], rates: Mapping[str, float]) -> tuple[str, ...]:
    w = workload(text)
    times = {system: statistics.median(t) for system, t in p.get("times", {}).items() if t}
    ours = times.pop("ours", None)
    seconds = ours if ours is not None else task["best_us"] * 1e-6 if task.get("best_us") else None
    rate, share = "-", "-"
    if seconds:
        if w.name in COMPUTE:
            rate, share = f"{w.flops / seconds * 1e-12:.3g} TFLOP/s", _share(w.flops / seconds * 1e-9, rates.get("peak_gflops"))
        else:
            rate, share = f"{w.nbytes / seconds * 1e-9:.4g} GB/s", _share(w.nbytes / seconds * 1e-9, rates.get("dram_gbs"))
    errors = task.get("errors", {})
    return (
        text,
        "-" if seconds is None else f"{seconds * 1e6:.2f}" + ("" if ours is not None else " (search)"),
        ", ".join([f"{system} {t * 1e6:.2f}" for system, t in times.items()]) or "-",
        ", ".join([f"{t / ours:.2f}" for t in times.values()]) if ours and times else "-",
        rate,
        share,
        str(p.get("sketch") or task.get("sketch") or "-"),
        _number(p.get("registers")),
        _number(p.get("spill_bytes")),
        f"{sum(errors.values())} of {task['trials']}" if task else "-",
    )


def _model_row(name: str, m: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" not in m:
        return (name, *["-"] * 3, str(m.get("failed", m.get("skipped")))[:200], "-", "-")
    times = {k.removesuffix("_us").replace("_", " "): v for k, v in m.items() if k.endswith("_us") and isinstance(v, float)}
    untuned = times.pop("ours")
    ours = times.pop("ours tuned", untuned)
    return (
        name,
        f"{ours:.0f}" + (f" ({untuned:.0f} without records)" if ours is not untuned else ""),
        ", ".join([f"{system} {t:.0f}" for system, t in times.items()]) or "-",
        ", ".join([f"{t / ours:.2f}" for t in times.values()]) or "-",
        f"{m['error']:.1e}",
        f"{m['copied'] / m['edges']:.0%}",
        f"{m['compile_s']:.1f}",
    )


def _share(rate: float, of: float | None) -> str:
    return "-" if not of else f"{rate / of:.0%}"


def _number(value: object) -> str:
    return "-" if not isinstance(value, int | float) else f"{value:.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
