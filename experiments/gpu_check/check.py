"""Run the sections of a GPU check in order, and print the table of results."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tunesmith.experiments.gpu_check import gpu_state
from tunesmith.experiments.gpu_check.correctness import conformance
from tunesmith.experiments.gpu_check.session import Session
from tunesmith.experiments.gpu_check.shared_memory import cycles_by_pattern
from tunesmith.experiments.gpu_check.table import table
from tunesmith.experiments.gpu_check.tuning import best_programs, is_cold, names, tune_all
from tunesmith.measure.calibration.gpu import RATES, device_rates
from tunesmith.support.registry import resolve
from tunesmith.support.worker_pool import WorkerPool

SHARES = {"machine": 0.06, "calibration": 0.15, "conformance": 0.2, "models": 0.3, "tuning": 1.0, "peers": 1.0}
"""The sections, with the maximum fraction of the run's time for each; also limited by the remaining time."""
_LEAST_FOR_BASELINES = 0.18
"""Minimum fraction of the run's time for the comparison; tuning reserves more, and is stopped here."""
_ROUNDS = 9
_BASELINES = "tunesmith.experiments.gpu_check.torch_baselines:Baselines"
_MODELS = "tunesmith.experiments.gpu_check.torch_models:models"
_START_S = 90.0
"""Time limit for importing torch and opening the device."""


def main(given: argparse.Namespace) -> int:
    """Run the requested sections; returns 0 if nothing failed."""
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "output.txt").write_text("", encoding="utf-8")
    session = Session(
        given.kind, given.out, given.seconds, given.trials, tuple(given.workloads or ()), tuple(given.models or ()), given.model_seconds
    )
    work: dict[str, Callable[[Session, dict[str, Any]], None]] = {
        "machine": machine,
        "calibration": calibration,
        "conformance": conformance,
        "models": lambda s, found: resolve(_MODELS)(s, found),  # needs torch
        "tuning": tune_all,
        "peers": baselines,
    }
    interrupted = False
    try:
        for name in [s for s in SHARES if s in given.only]:
            if name != "machine" and session.left() < 5:
                session.failures[name] = "no time was left"
                continue
            reserved = _LEAST_FOR_BASELINES * session.seconds if name == "tuning" and "peers" in given.only else 0.0
            session.section(name, work[name], min(SHARES[name] * session.seconds, session.left() - reserved))
    except KeyboardInterrupt:
        interrupted = True
        session.say("interrupted; results so far:")
    session.save()
    rates = session.results.get("calibration", {}).get("rates") or _rates(session)
    text = table(session.results, rates, session.failures)
    (session.out / "table.md").write_text(text + "\n", encoding="utf-8")
    session.say(f"done; everything is in {session.out}")
    print("\n" + text, flush=True)
    wrong = session.results.get("conformance", {})
    failed = session.failures or wrong.get("rows_wrong") or wrong.get("tests_ok") is False
    return 130 if interrupted else 1 if failed else 0


def machine(session: Session, found: dict[str, Any]) -> None:
    """Record the software, the device and the target."""
    found["python"] = platform.python_version()
    found["gpu"] = gpu_state.describe() if session.kind == "cuda" else []
    for line in found["gpu"]:
        session.say(f"  {line}")
    found["attributes"] = asdict(session.attributes)
    session.say("  " + ", ".join([f"{k} {v}" for k, v in found["attributes"].items() if v is not None]))
    target = session.detected()
    found["target"] = str(target)
    session.say(f"target: {target}")


def calibration(session: Session, found: dict[str, Any]) -> None:
    """Measure the rates of the device and set them in the target; rates of shared memory are only recorded."""
    session.target = target = session.detected()  # estimates, in case the measurement fails
    rates = device_rates(target, refresh=True, progress=session.say)
    session.target = target = target.with_attributes(**rates.facts())
    found |= {"rates": rates.facts(), "copies": rates.copies, "notes": rates.notes}
    estimates = session.detected()
    for name in RATES:
        value = rates.facts().get(name)
        shown = "not measured" if value is None else f"{value:.5g}"
        session.say(f"  {name}: {shown} (estimate {getattr(estimates, name):.5g})")
    session.say("  copies: " + ", ".join([f"{n >> 20} MB {rate:.0f} GB/s" for n, rate in rates.copies]))
    session.save()
    if target.base != "cuda":
        return
    found["lds_128_cycles"] = cycles_by_pattern(target)
    for name, cycles in found["lds_128_cycles"].items():
        session.say(f"  a warp's load of 128 bits from shared memory, {name}: {cycles:.2f} cycles, {512 / cycles:.0f} B requested a cycle")


def baselines(session: Session, found: dict[str, Any]) -> None:
    """Time the best programs and torch's implementations on the same GPU, interleaved."""
    found["tasks"] = {}
    programs = best_programs(session)
    for text, program in programs.items():
        if isinstance(program, str):
            session.say(f"  {text}: no tuned program: {program}")
    pool = _spawn(session)
    try:
        (facts,) = pool.run([("facts", ())], timeout=60.0)
        found["versions"] = facts.value if facts.error is None else facts.message
        session.say(f"  {found['versions']}")
        if session.kind == "cuda":
            _graph_launch(session, pool, found)
        compiler = session.kind == "cuda" and _compiler_works(session, pool, found)
        for i, text in enumerate(names(session)):
            limit = max(5.0, (session.left() - 5.0) / (len(programs) - i))
            if session.left() < 8:
                session.failures["peers"] = f"no time was left from {text} on"
                break
            entry = found["tasks"].setdefault(text, {})
            # Retry without torch.compile if it may have timed out or broken the process, to keep the other results.
            for with_compiler in (True, False) if compiler else (False,):
                done, corrupted = _compare(session, pool, text, programs[text], limit, with_compiler, entry)
                session.save()
                if corrupted:
                    pool.close()
                    pool = _spawn(session)
                if done or session.left() < 8:
                    break
    finally:
        pool.close()


def _spawn(session: Session) -> WorkerPool:
    return WorkerPool(_BASELINES, 1, (session.kind,), start_timeout=_START_S)


def _graph_launch(session: Session, pool: WorkerPool, found: dict[str, Any]) -> None:
    """Measure the cost of a kernel in a CUDA graph with an empty kernel."""
    (result,) = pool.run([("graph_launch_us", (session.target.arch,))], timeout=60.0)
    found["graph_launch_us"] = result.value
    shown = f"{result.value:.2f} us" if result.error is None else f"not measured: {result.error}: {result.message[:300]}"
    session.say(f"  an empty kernel in a CUDA graph: {shown}")


def _compiler_works(session: Session, pool: WorkerPool, found: dict[str, Any]) -> bool:
    """Whether torch.compile works here; its first function takes a while."""
    (tried,) = pool.run([("try_compiler", ())], timeout=max(10.0, min(60.0, session.left() / 2)))
    found["compiler"] = tried.value if tried.error is None else f"{tried.error}: {tried.message.strip()[-1500:]}"
    session.say(f"  torch.compile, its first function: {f'{tried.value:.1f} s' if tried.error is None else found['compiler']}")
    return tried.error is None


def _compare(
    session: Session, pool: WorkerPool, text: str, program: Any, limit: float, compiler: bool, entry: dict[str, Any]
) -> tuple[bool, bool]:
    """Compare one workload in `entry`; returns whether there is a result, and whether the baselines' process must be replaced."""
    data = None
    left_out: dict[str, str] = entry.setdefault("left_out", {})
    if isinstance(program, str):
        left_out["ours"] = program
    else:
        record, artifact = program
        data = artifact.data
        entry |= {name: artifact.facts.get(name) for name in ("registers", "spill_bytes", "stack_bytes", "shared_bytes")}
        entry |= {"sketch": record.sketch, "searched_us": record.seconds * 1e6, "row": list(record.row)}
    start = time.monotonic()
    arguments = (text, data, is_cold(session, text), _ROUNDS, limit, compiler)
    (result,) = pool.run([("compare", arguments)], timeout=max(10.0, min(2 * limit, session.left())))
    if result.error is not None:
        left_out["torch.compile" if compiler else "all"] = f"{result.error}: {result.message}"
        session.say(f"  {text}: FAILED{' with torch.compile' if compiler else ''}: {result.error}: {result.message}")
        return False, result.error == "error"  # in all other cases the process has already ended
    value: Any = result.value
    left_out |= value.pop("left_out")
    entry |= value
    shown = ", ".join([f"{system} {sorted(t)[len(t) // 2] * 1e6:.2f} us" for system, t in value["times"].items() if t])
    session.say(f"  {text}: {shown} ({time.monotonic() - start:.1f} s)")
    for system, why in left_out.items():
        session.say(f"    {system} skipped: {why.strip().splitlines()[-1][:300] if why.strip() else why}")
    for system, why in value["not_captured"].items():
        session.say(f"    {system} could not be captured into a graph, so its time includes the launch from Python: {why[:300]}")
    if session.kind == "cuda":
        state = [f"{when} {gpu_state.GpuState(**value[when])}" for when in ("before", "after")]
        session.say(f"    {', '.join(state)}; {value['retaken']} samples repeated; calls {value['calls']}")
    return True, bool(value["tainted"])


def _rates(session: Session) -> dict[str, float]:
    """Rates of the current target, if known."""
    try:
        return {name: float(getattr(session.target, name)) for name in RATES}
    except Exception:
        return {}
