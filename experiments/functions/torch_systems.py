"""Compare and time one function in this process: tunesmith, torch eager and torch.compile in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tunesmith
from tunesmith.driver.compiled import CompiledModule
from tunesmith.experiments.functions.function import Function
from tunesmith.experiments.functions.registry import FUNCTIONS
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.runtime.threads import set_num_threads
from tunesmith.runtime.timing import Samples, TimingPolicy, interleaved
from tunesmith.search.analytic_schedule import analytic_schedule

Call = Callable[[], object]
Prepared = tuple[Call, Callable[[], Sequence[np.ndarray]]]
"""A call, and a function that returns its outputs."""


class Job(NamedTuple):
    """A function to time.

    Attributes:
        name: name in the registry.
        sizes: sizes of the program; the defaults if empty.
        log: records to compile with; None for an untuned program.
        limit_s: limit of the time of each system.
    """

    name: str
    sizes: tuple[int, ...] = ()
    log: str | None = None
    limit_s: float = 12.0


def target_of(threads: int) -> Target:
    """This machine with some of its cores."""
    here = Target.detect()
    return here if here.num_cores == threads else here.with_attributes(num_cores=threads)


class Systems:
    """Runs jobs; the factory of a worker process.

    Args:
        threads: number of threads of each system.
        inductor: whether torch.compile is a system.
    """

    def __init__(self, threads: int, inductor: bool = True) -> None:
        self.target, self.inductor = target_of(threads), inductor
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        set_num_threads(threads)

    def __call__(self, job: tuple[Any, ...]) -> dict[str, Any]:
        """Compare the outputs of all systems with those of torch eager, then time those that agree.

        Returns:
            By system: `us`, the least and the median time of a call; `differences`, relative to the largest element, None if infinite;
            `errors`, why a system was not timed.  `clean` is whether all samples are from quiet windows.  `coverage` is the result of the
            record lookup of ours.
        """
        given = Job(*job)
        f = FUNCTIONS[given.name]
        func = f.build(*given.sizes)
        inputs, outputs = f.arguments(func, np.random.default_rng(0))
        tensors = [torch.from_numpy(x).clone() for x in inputs]
        expected = _arrays(f.torch(*tensors))
        coverage: list[str] = []
        prepare: dict[str, Callable[[], Prepared]] = {
            "ours": lambda: _ours(self._compiled(func, given.log, coverage), tensors, outputs),
            "first": lambda: _ours(tunesmith.build(analytic_schedule(func, self.target), self.target), tensors, outputs),
        }
        if self.inductor:
            prepare["inductor"] = lambda: _inductor(f, tensors)
        calls: dict[str, Call] = {"eager": lambda: f.torch(*tensors)}
        differences: dict[str, float | None] = {}
        errors: dict[str, str] = {}
        for system, make in prepare.items():
            try:
                call, results = make()
                call()
                difference = f.difference(results(), expected)
            except Exception as error:  # any failure of a system is a result
                errors[system] = f"{type(error).__name__}: {error}"[:2000]
                continue
            differences[system] = difference if np.isfinite(difference) else None
            if difference <= f.tolerance:
                calls[system] = call
            else:
                errors[system] = f"wrong result: differs from torch by {difference:.2g} of the largest element, allowed are {f.tolerance:g}"
        times = interleaved(calls, TimingPolicy(limit_s=given.limit_s))
        return {
            "us": {system: _microseconds(t) for system, t in times.items()},
            "clean": all(t.clean for t in times.values()),
            "differences": differences,
            "errors": errors,
            "coverage": coverage,
        }

    def _compiled(self, func: PrimFunc, log: str | None, coverage: list[str]) -> CompiledModule:
        """The function as a user compiles it: untuned, or with the records of a log, which a failed search may not have written."""
        if log is None:
            return tunesmith.compile(func, self.target)
        compiled = tunesmith.compile(func, self.target, log if Path(log).exists() else Database())
        coverage += [str(c) for c in compiled.coverage]
        return compiled


def _ours(module: CompiledModule, inputs: Sequence[torch.Tensor], outputs: Sequence[np.ndarray]) -> Prepared:
    """The inputs of torch, and outputs in its memory, which is aligned for vectors; new, so that a missing store is found."""
    mine = [torch.from_numpy(x).clone().fill_(-1).numpy() for x in outputs]
    return module.bind(*[x.numpy() for x in inputs], *mine), lambda: mine


def _inductor(f: Function, tensors: Sequence[torch.Tensor]) -> Prepared:
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: f.torch(*given), dynamic=False)
    return lambda: compiled(*tensors), lambda: _arrays(compiled(*tensors))


def eager_results(f: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What torch computes."""
    return _arrays(f.torch(*[torch.from_numpy(x) for x in inputs]))


def _arrays(results: Any) -> list[np.ndarray]:
    return [x.numpy() for x in (results if isinstance(results, tuple) else (results,))]


def _microseconds(samples: Samples) -> dict[str, float]:
    return {"least": samples.minimum * 1e6, "median": samples.median * 1e6}
