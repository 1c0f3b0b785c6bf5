"""The sections of a check in their order, and the table at the end."""

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
from tunesmith.support.worker_pool import WorkerPool

SHARES = {"machine": 0.06, "calibration": 0.15, "conformance": 0.2, "tuning": 1.0, "peers": 1.0}
"""The sections, and what part of the run's time each may take; never more than what is left."""
_LEAST_FOR_PEERS = 0.18
"""Of the run's time; tuning plans to leave more, and is cut off here."""
_ROUNDS = 9
_PEERS = "tunesmith.experiments.gpu_check.torch_peers:Baselines"
_START_S = 90.0
"""Until torch is imported and the device is open."""


def main(given: argparse.Namespace) -> int:
    """Run what was asked for; 0 if nothing failed."""
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "output.txt").write_text("", encoding="utf-8")
    session = Session(given.kind, given.out, given.seconds, given.trials, tuple(given.workloads or ()))
    work: dict[str, Callable[[Session, dict[str, Any]], None]] = {
        "machine": machine,
        "calibration": calibration,
        "conformance": conformance,
        "tuning": tune_all,
        "peers": peers,
    }
    interrupted = False
    try:
        for name in [s for s in SHARES if s in given.only]:
            if name != "machine" and session.left() < 5:
                session.failures[name] = "no time was left"
                continue
            kept = _LEAST_FOR_PEERS * session.seconds if name == "tuning" and "peers" in given.only else 0.0
            session.section(name, work[name], min(SHARES[name] * session.seconds, session.left() - kept))
    except KeyboardInterrupt:
        interrupted = True
        session.say("interrupted; what there is:")
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
    """What runs here."""
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
    """Rates of the device, which the target has from now on; those of shared memory are only told."""
    session.target = target = session.detected()  # with estimates, if nothing else comes
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
        session.say(f"  a warp's load of 128 bits from shared memory, {name}: {cycles:.2f} cycles, {512 / cycles:.0f} B asked for a cycle")


def peers(session: Session, found: dict[str, Any]) -> None:
    """Our best programs and torch's ways on the same GPU, in turns."""
    found["tasks"] = {}
    programs = best_programs(session)
    for text, program in programs.items():
        if isinstance(program, str):
            session.say(f"  {text}: no program of ours: {program}")
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
            # A second time without the compiler, if that may be what took too long or broke the process: the others are not lost with it.
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
    return WorkerPool(_PEERS, 1, (session.kind,), start_timeout=_START_S)


def _graph_launch(session: Session, pool: WorkerPool, found: dict[str, Any]) -> None:
    """What a kernel costs within a CUDA graph, by an empty one."""
    (result,) = pool.run([("graph_launch_us", (session.target.arch,))], timeout=60.0)
    found["graph_launch_us"] = result.value
    shown = f"{result.value:.2f} us" if result.error is None else f"not measured: {result.error}: {result.message[:300]}"
    session.say(f"  an empty kernel in a CUDA graph: {shown}")


def _compiler_works(session: Session, pool: WorkerPool, found: dict[str, Any]) -> bool:
    """Whether torch.compile works here; it takes its time for the first function."""
    (tried,) = pool.run([("try_compiler", ())], timeout=max(10.0, min(60.0, session.left() / 2)))
    found["compiler"] = tried.value if tried.error is None else f"{tried.error}: {tried.message.strip()[-1500:]}"
    session.say(f"  torch.compile, its first function: {f'{tried.value:.1f} s' if tried.error is None else found['compiler']}")
    return tried.error is None


def _compare(
    session: Session, pool: WorkerPool, text: str, program: Any, limit: float, compiler: bool, entry: dict[str, Any]
) -> tuple[bool, bool]:
    """(there is a result, the process of the peers had better not be used any more) of one workload; the result is in `entry`."""
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
        return False, result.error == "error"  # in all other cases the process is gone already
    value: Any = result.value
    left_out |= value.pop("left_out")
    entry |= value
    shown = ", ".join([f"{who} {sorted(t)[len(t) // 2] * 1e6:.2f} us" for who, t in value["times"].items() if t])
    session.say(f"  {text}: {shown} ({time.monotonic() - start:.1f} s)")
    for who, why in left_out.items():
        session.say(f"    {who} left out: {why.strip().splitlines()[-1][:300] if why.strip() else why}")
    for who, why in value["not_captured"].items():
        session.say(f"    {who} could not be captured into a graph, so that starting calls from Python is part of its time: {why[:300]}")
    if session.kind == "cuda":
        state = [f"{when} {gpu_state.GpuState(**value[when])}" for when in ("before", "after")]
        session.say(f"    {', '.join(state)}; {value['retaken']} samples taken again; calls {value['calls']}")
    return True, bool(value["tainted"])


def _rates(session: Session) -> dict[str, float]:
    """Of the target as it is, if it is known."""
    try:
        return {name: float(getattr(session.target, name)) for name in RATES}
    except Exception:
        return {}
