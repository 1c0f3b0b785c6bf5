"""Fuzz many seeds in a pool of workers, with a journal of finished seeds and a summary of failures."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tunesmith.support.worker_pool import JobResult, WorkerPool
from tunesmith.testing.program_fuzz.minimise import crash, in_pool, minimise
from tunesmith.testing.program_fuzz.program import Program
from tunesmith.testing.program_fuzz.reproduction import describe, write
from tunesmith.testing.program_fuzz.worker import Failure, Outcome, Trial

FACTORY = "tunesmith.testing.program_fuzz.worker:factory"
PROGRAM_SECONDS = 60.0


@dataclass(slots=True)
class Totals:
    """Sums over programs."""

    programs: int = 0
    sequences: int = 0
    applied: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    seeds: dict[str, list[str]] = field(default_factory=dict)
    """The first seeds of each kind of failure, as `seed/schedule`."""

    def add(self, entry: dict[str, Any]) -> None:
        """Add a journal entry."""
        self.programs += 1
        self.sequences += entry["sequences"]
        for name in ("applied", "refused", "discarded"):
            getattr(self, name).update(entry[name])
        add_seconds(self.seconds, entry["seconds"])
        for kind, schedule, _ in entry["failures"]:
            self.failures[kind] += 1
            seeds = self.seeds.setdefault(kind, [])
            if len(seeds) < 8:
                seeds.append(f"{entry['seed']}/{schedule}")


class Campaign:
    """A set of seeds checked by workers.

    Args:
        out: folder for the journal and reproductions.
        workers: number of processes.
        schedules: schedules per program; the first one is empty.
        keep: failures per kind that are minimised and written.
        minimise_seconds: time limit of each minimisation.
    """

    def __init__(self, out: Path, workers: int, schedules: int = 6, keep: int = 3, minimise_seconds: float = 30.0) -> None:
        self.out, self.workers, self.schedules = out, workers, schedules
        self.keep, self.minimise_seconds = keep, minimise_seconds
        self.totals = Totals()
        self.examples: dict[str, list[Failure]] = {}
        self.partial: dict[int, Outcome] = {}
        out.mkdir(parents=True, exist_ok=True)
        self.journal = out / "journal.jsonl"
        self.done = self._resume()

    def _resume(self) -> set[int]:
        """Seeds in the journal; a truncated last line is ignored."""
        done = set()
        if self.journal.exists():
            text = self.journal.read_text(encoding="utf-8")
            if text and not text.endswith("\n"):  # an interrupted write; start a new line
                self.journal.write_text(text + "\n", encoding="utf-8")
            for line in text.splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if entry["seed"] not in done:
                    done.add(entry["seed"])
                    self.totals.add(entry)
        return done

    def run(self, seeds: Iterable[int], progress: Callable[[Totals], None]) -> None:
        """Check all seeds that are not in the journal.  Ctrl-C stops the run; finished seeds are kept."""
        left = deque([s for s in seeds if s not in self.done])
        if not left:
            return
        tickets: dict[int, tuple[int, int]] = {}
        with WorkerPool(FACTORY, self.workers, env=WORKER_ENV) as pool, self.journal.open("a", encoding="utf-8") as journal:
            while left or tickets:
                while left and len(tickets) < 2 * self.workers:
                    seed = left.popleft()
                    tickets[self._submit(pool, seed, 0)] = seed, 0
                result = pool.next_result()
                if result is None:
                    break
                seed, first = tickets.pop(result.ticket)
                again = self._take(seed, first, result)
                if again is not None:
                    tickets[self._submit(pool, seed, again)] = seed, again
                    continue
                outcome = self.partial.pop(seed)
                self._keep(outcome)
                entry = self.entry(outcome)
                journal.write(json.dumps(entry) + "\n")
                journal.flush()
                self.totals.add(entry)
                progress(self.totals)

    def _submit(self, pool: WorkerPool, seed: int, first: int) -> int:
        return pool.submit(("program", seed, self.schedules, first), timeout=PROGRAM_SECONDS)

    def _take(self, seed: int, first: int, result: JobResult) -> int | None:
        """Record a result; returns the schedule to continue with after a crash, or None."""
        total = self.partial.setdefault(seed, Outcome(seed))
        if result.error is None:
            assert isinstance(result.value, Outcome)
            _merge(total, result.value)
            return None
        schedule, finding = crash(result)
        schedule = max(schedule, first)
        total.failures.append(Failure(seed, schedule, finding, Trial(_EMPTY, seed, (), "")))
        # If the unscheduled program crashes, so do all its schedules.
        return schedule + 1 if 0 < schedule < self.schedules - 1 else None

    def _keep(self, o: Outcome) -> None:
        """Keep the first failures of each kind as examples."""
        for f in o.failures:
            kept = self.examples.setdefault(f.finding.kind, [])
            if len(kept) < self.keep:
                kept.append(f)

    @staticmethod
    def entry(o: Outcome) -> dict[str, Any]:
        """The journal entry of a program."""
        return {
            "seed": o.seed,
            "sequences": o.sequences,
            "applied": o.applied,
            "refused": o.refused,
            "discarded": o.discarded,
            "seconds": {k: round(v, 4) for k, v in o.seconds.items()},
            "failures": [[f.finding.kind, f.schedule, [x.primitive for x in f.trial.steps]] for f in o.failures],
        }

    def reproduce(self, log: Callable[[str], None], kinds: int | None = None) -> None:
        """Minimise the kept failures, of at most `kinds` kinds, and write them as scripts to `out/failures`."""
        with WorkerPool(FACTORY, 1, env=WORKER_ENV) as pool:
            for kind, failures in sorted(self.examples.items())[:kinds]:
                for n, f in enumerate(failures):
                    trial = f.trial if f.trial.target else recover(f.seed, f.schedule, pool)
                    if trial is None:
                        log(f"{kind}: seed {f.seed} could not be regenerated")
                        continue
                    small, finding = minimise(trial, kind, partial(in_pool, pool=pool, kind=kind), self.minimise_seconds)
                    path = write(self.out / "failures", n, small, finding or f.finding)
                    note = "" if finding else " (not reproduced in isolation)"
                    log(f"{path}{note}\n{describe(small, finding or f.finding)}\n")


def recover(seed: int, schedule: int, pool: WorkerPool) -> Trial | None:
    """The trial of a schedule whose worker crashed, with its steps applied again without building."""
    pool.submit(("steps", seed, schedule), timeout=PROGRAM_SECONDS)
    result = pool.next_result()
    return result.value if result is not None and isinstance(result.value, Trial) else None


def add_seconds(total: dict[str, float], more: dict[str, float]) -> None:
    """Add the seconds per phase."""
    for phase, n in more.items():
        total[phase] = total.get(phase, 0.0) + n


def _merge(total: Outcome, part: Outcome) -> None:
    total.sequences += part.sequences
    total.failures += part.failures
    total.applied += part.applied
    total.refused += part.refused
    add_seconds(total.seconds, part.seconds)
    total.discarded = part.discarded


_EMPTY = Program((), ())
"""Placeholder for a program that was lost with its worker."""
WORKER_ENV = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"}


def table(t: Totals) -> str:
    """The totals as a text table."""
    per = t.sequences / max(1e-9, sum(t.seconds.values()))
    lines = [f"programs {t.programs}, compiled sequences {t.sequences}, {per:.1f} sequences per worker second"]
    lines.append("seconds: " + ", ".join([f"{k} {v:.0f}" for k, v in sorted(t.seconds.items(), key=lambda kv: -kv[1])]))
    lines.append("discarded attempts of the generator: " + (", ".join([f"{k} {v}" for k, v in t.discarded.most_common()]) or "none"))
    refused: dict[str, Counter[str]] = {}
    for key, n in t.refused.items():
        head, _, label = key.partition(": ")
        refused.setdefault(head, Counter())[label] += n
    lines.append(f"\n{'primitive':24} {'applied':>8} {'refused':>8}  by label")
    for name in sorted({*t.applied, *refused}):
        labels = refused.get(name, Counter())
        text = ", ".join([f"{k} {n}" for k, n in labels.most_common(8)])
        lines.append(f"{name:24} {t.applied[name]:8} {labels.total():8}  {text}")
    lines.append(f"\nfailures: {t.failures.total()} of {len(t.failures)} kinds")
    for kind, n in t.failures.most_common():
        lines.append(f"{n:6}  {kind}   [{', '.join(t.seeds[kind])}]")
    return "\n".join(lines)
