"""Tune the functions of a module as a pass: `GRAPH + TuneFunctions("log.jsonl", budget=64) + ApplyRecords("log.jsonl")`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import ClassVar

from tunesmith.driver.size_buckets import Sizes
from tunesmith.driver.tune import COLD_BYTES, tune
from tunesmith.driver.tune_options import Budget, Search, as_search
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import CallFunction, all_bindings
from tunesmith.graph.tuning.apply_records import ApplyRecords
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database


@dataclass(frozen=True, slots=True)
class TuneFunctions:
    """A module pass that tunes each function without a usable record, writes the log, and returns the module unchanged.

    Functions whose records are usable cost nothing, so a second run measures only what is new.  Put it after the passes that make
    PrimFuncs, and `ApplyRecords` of the same log after it.

    Args:
        log: file of records, read first and then appended to; it is made if it does not exist.
        budget: when the search ends, as for `tune`; a number is the trials of each function.
        search: sampler, cost model, seed and the rest of the method, as for `tune`; functions that a model calls often have more weight.
        sizes: dynamic sizes to tune for, as for `tune`; without them functions with dynamic shapes are left as they are.
        workers: compiling processes, as for `tune`.
        policy: how candidates are measured; by default with the weights of a model not in the caches.
        progress: show progress on standard error.
    Raises:
        UserError, RecordError, BuildError: as `tune`, when the pass runs.
    """

    log: str | PathLike[str]
    budget: Budget | int = 64
    search: Search | str | None = None
    sizes: Sizes | None = None
    workers: int | str | None = None
    policy: MeasurePolicy | None = None
    progress: bool = True

    name: ClassVar[str] = "tune_functions"

    def __call__(self, mod: IRModule, target: Target) -> IRModule:
        """Tune for a target, and return the module."""
        Path(self.log).parent.mkdir(parents=True, exist_ok=True)
        Path(self.log).touch()
        missing = self.without_record(mod, target)
        if missing:
            calls = Counter(
                b.operation.function
                for f in mod.values()
                if isinstance(f, GraphFunc)
                for b in all_bindings(f.body)
                if isinstance(b.operation, CallFunction)
            )
            search = as_search(self.search)
            given = dict(search.weights or {})
            # The name of a function with dynamic shapes in a search has the sizes that it is tuned for.
            weights = {f.name: given.get(f.name, float(calls[f.name] or 1)) for f in missing if not sizes_of(f)}
            policy = self.policy
            if policy is None and any(isinstance(f, GraphFunc) for f in mod.values()):
                policy = MeasurePolicy(race=RacePolicy(constant_bytes=COLD_BYTES))
            tune(
                missing,
                target,
                self.log,
                budget=self.budget,
                search=dataclasses.replace(search, weights=weights),
                sizes=self.sizes if any(map(sizes_of, missing)) else None,
                workers=self.workers,
                policy=policy,
                progress=self.progress,
            )
        return mod

    def without_record(self, mod: IRModule, target: Target) -> list[PrimFunc]:
        """The functions that the pass tunes."""
        records = ApplyRecords(Database.from_log(self.log), target)
        found = []
        for name, f in mod.items():
            if isinstance(f, PrimFunc) and (self.sizes is not None or not sizes_of(f)):
                _, coverage = records.find(name, f, target)
                if any(c.status in ("missing", "refused") for c in coverage):
                    found.append(f)
        return found
