"""Propose candidates by Optuna samplers over the domains of the sketches, through the ask-and-tell interface.

**Columns** are integers: the index of a value in its Param's domain.  Domains are sorted and about evenly spaced on a logarithmic scale,
so steps are comparable across the domain.  Objective values are logarithms of seconds, minimised.

**Sketches.**  Samplers that model conditional columns (`tpe`, `random`) get one study: the sketch is a categorical parameter, followed by
the columns of the chosen sketch (define-by-run), whose names are prefixed with the sketch's name.  Samplers of fixed numeric spaces
(`cmaes`, `gp`, `qmc`) get one study per sketch, and a bandit chooses the study: each sketch first gets one proposal, then the next goes
to the sketch with the highest

    log(best of all / best of the sketch) + 0.5 sqrt(log(proposals) / proposals of the sketch),

the bound of UCB1 (Auer et al., 2002) applied to the best value instead of the mean.

**Constraints.**  Optuna supports only box constraints.  A proposal is repaired by `ParamSpace.nearest`, and the value of the repaired row
is reported:

- as the value of *the proposed trial* for `cmaes`, whose generations consist of its own proposals (Baldwinian repair);
- as *a trial at the repaired row*, added to the study, for all others; the proposed trial is closed as failed, which samplers ignore.
  The study then holds each measurement at the row that was measured (Lamarckian repair).

Failed candidates are reported as pruned to `tpe`, which ranks them after all others.  To samplers that ignore pruned trials they are
reported as twice the slowest time in the study, with a minimum of two seconds.

**Repeats.**  No candidate is measured twice.  A proposal whose repaired row was measured before is answered at once with its measurement,
and another proposal is requested.  After too many repeats, an unseen row near the last proposal is used instead.

TPE: Bergstra et al., NeurIPS 2011; CMA-ES with margin for integers: Hamano et al., GECCO 2022; Optuna: Akiba et al., KDD 2019.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from tunesmith.search.samplers.history import History, candidate_of
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.space.sketch import Sketch
from tunesmith.search.task import Task
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.seeds import derive, stream

EXPLORE = 0.5
"""Exploration weight of the bandit: a sketch with 10 of 100 proposals is preferred to one that is at most 1.4 times faster."""
REPEATS = 3
"""Maximum proposals per requested candidate; in the last third, unseen neighbours replace repeats."""
NEIGHBOURS = 32
"""Number of mutants searched for an unseen row."""
SLOWEST = 0.0
"""Initial logarithm of the slowest time in a study; the value of a failed candidate is derived from it."""


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna", "an Optuna sampler") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings: many of Optuna's samplers and options warn at every construction that they are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True, slots=True)
class Kind:
    """How an Optuna sampler is constructed and how results are reported to it; see the module docstring.

    Attributes:
        make: constructs the sampler from Optuna's module `samplers` and a 32-bit seed.
        joint: one study for all sketches instead of one per sketch.
        moved: results of repaired proposals are reported at the repaired row instead of the proposed one.
        pruned: failures are reported as pruned instead of as slow.
    """

    make: Callable[[Any, int], Any]
    joint: bool = False
    moved: bool = True
    pruned: bool = False


KINDS: dict[str, Kind] = {
    "tpe": Kind(lambda s, seed: s.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True), joint=True, pruned=True),
    "cmaes": Kind(lambda s, seed: s.CmaEsSampler(seed=seed, with_margin=True, warn_independent_sampling=False), moved=False),
    "gp": Kind(lambda s, seed: s.GPSampler(seed=seed)),
    "qmc": Kind(lambda s, seed: s.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)),
    "random": Kind(lambda s, seed: s.RandomSampler(seed=seed), joint=True),
}
"""The supported samplers by name.  For another one, pass a `Kind`."""


@dataclass(slots=True)
class _Study:
    """An Optuna study with its sketches, number of proposals and slowest value."""

    study: Any
    sketches: tuple[int, ...]
    proposals: int = 0
    slowest: float = SLOWEST


@dataclass(slots=True)
class _PendingTrial:
    """A trial without a result."""

    study: _Study
    trial: Any
    moved: bool
    """Whether its candidate's row differs from the proposed one."""


@dataclass(slots=True)
class _Columns:
    """The columns of a sketch as Optuna parameters."""

    prefix: str
    names: tuple[str, ...]
    domains: tuple[tuple[int, ...], ...]
    indices: tuple[dict[int, int], ...] = field(repr=False)

    @classmethod
    def of(cls, sketch: Sketch) -> _Columns:
        params = sketch.space.params
        names = tuple(f"{sketch.name}/{i}:{p.name}" for i, p in enumerate(params))
        domains = tuple(p.domain for p in params)
        return cls(sketch.name, names, domains, tuple({v: i for i, v in enumerate(d)} for d in domains))


class OptunaSampler(Sampler):
    """An Optuna sampler, see the module docstring.

    Args:
        task: the task to sample.
        seed: seed of the search.
        kind: a name of `KINDS`, or a `Kind`.
    Raises:
        UserError: the name is unknown, or Optuna or a package that the sampler needs is not installed.
    """

    def __init__(self, task: Task, seed: int = 0, kind: str | Kind = "tpe") -> None:
        if isinstance(kind, str) and kind not in KINDS:
            raise UserError(f"unknown Optuna sampler {kind!r}; known: {', '.join(sorted(KINDS))}. For another one, pass a Kind")
        self._optuna = _optuna()
        self.task, self.seed = task, seed
        self._kind = KINDS[kind] if isinstance(kind, str) else kind
        self._name = kind if isinstance(kind, str) else "kind"
        self._history = History(task)
        self._columns = [_Columns.of(s) for s in task.space.sketches]
        every = range(len(self._columns))
        self._studies = [self._new_study(tuple(every))] if self._kind.joint else [self._new_study((k,)) for k in every]
        self._study_of = {k: s for s in self._studies for k in s.sketches}
        self._best: dict[int, float] = {}
        self._pending: dict[Candidate, list[_PendingTrial]] = {}
        self._round = 0

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "optuna", self._name, self.task.digest, self._round)
        self._round += 1
        batch: list[Candidate] = []
        for attempt in range(REPEATS * n):
            if len(batch) >= n:
                break
            with _quiet():
                self._propose(batch, rng, last=attempt >= (REPEATS - 1) * n)
        self._history.fill(batch, n, rng)
        return batch

    def tell(self, results: Sequence[Result]) -> None:
        self._history.tell(results)
        with _quiet():
            for r in results:
                self._tell(r)

    def _new_study(self, sketches: tuple[int, ...]) -> _Study:
        seed = derive(self.seed, "optuna", self._name, self.task.digest, *sketches, bits=31)
        with _quiet():
            try:
                sampler = self._kind.make(self._optuna.samplers, seed)
            except ImportError as error:
                raise UserError(f"the Optuna sampler {self._name!r} needs a package that is not installed: {error}") from error
            return _Study(self._optuna.create_study(sampler=sampler, direction="minimize"), sketches)

    def _propose(self, batch: list[Candidate], rng: np.random.Generator, last: bool) -> None:
        """Request one proposal; append its candidate to the batch, or report the known result of its row."""
        study = self._next_study()
        study.proposals += 1
        trial = study.study.ask()
        k, row = self._suggested(study, trial)
        space = self.task.space.sketches[k].space
        repaired = space.nearest(row[None, :], rng)
        candidate = candidate_of(k, repaired[0])
        seen = candidate in self._history.seen
        if seen and last:
            near = space.nearest(space.mutate(np.repeat(repaired, NEIGHBOURS, axis=0), rng), rng)
            candidate = next((c for c in (candidate_of(k, r) for r in near) if c not in self._history.seen), candidate)
            seen = candidate in self._history.seen
        pending = _PendingTrial(study, trial, candidate.row != tuple(row.tolist()))
        if not seen:
            self._history.take(candidate, batch)
            self._pending[candidate] = [pending]
        elif candidate in self._pending:
            self._pending[candidate].append(pending)
        else:
            self._close(pending, self._known(candidate), repeated=True)

    def _next_study(self) -> _Study:
        """The study that gets the next proposal."""
        fresh = next((s for s in self._studies if not s.proposals), None)
        if fresh is not None or len(self._studies) == 1:
            return fresh or self._studies[0]
        total = sum(s.proposals for s in self._studies)
        leader = min(self._best.values(), default=0.0)

        def bound(s: _Study) -> float:
            behind = self._best.get(s.sketches[0], leader if not self._best else max(self._best.values())) - leader
            return EXPLORE * math.sqrt(math.log(total) / s.proposals) - behind

        return max(self._studies, key=bound)

    def _suggested(self, study: _Study, trial: Any) -> tuple[int, np.ndarray]:
        k = study.sketches[0]
        if len(study.sketches) > 1:
            prefix = trial.suggest_categorical("sketch", [self._columns[i].prefix for i in study.sketches])
            k = next(i for i in study.sketches if self._columns[i].prefix == prefix)
        c = self._columns[k]
        indices = [trial.suggest_int(name, 0, len(d) - 1) for name, d in zip(c.names, c.domains, strict=True)]
        return k, np.array([d[i] for d, i in zip(c.domains, indices, strict=True)], np.int64)

    def _known(self, candidate: Candidate) -> float | None:
        seconds = self._history.measured.get(candidate)
        return None if seconds is None else math.log(seconds)

    def _tell(self, result: Result) -> None:
        c, value = result.candidate, None if result.seconds is None else math.log(result.seconds)
        study = self._study_of[c.sketch]
        if value is not None:
            self._best[c.sketch] = min(value, self._best.get(c.sketch, math.inf))
            study.slowest = max(study.slowest, value)
        pending = self._pending.pop(c, [])
        for i, p in enumerate(pending):
            self._close(p, value, repeated=i > 0)
        if not pending or (self._kind.moved and pending[0].moved):
            self._add(study, c, value)

    def _close(self, p: _PendingTrial, value: float | None, repeated: bool) -> None:
        """Report the result of a trial that Optuna proposed."""
        states = self._optuna.trial.TrialState
        if self._kind.moved and (p.moved or repeated):
            p.study.study.tell(p.trial, state=states.FAIL)
        elif value is None and self._kind.pruned:
            p.study.study.tell(p.trial, state=states.PRUNED)
        else:
            p.study.study.tell(p.trial, self._failed(p.study) if value is None else value)

    def _add(self, study: _Study, c: Candidate, value: float | None) -> None:
        """Add a trial that Optuna did not propose: at a repaired row, or of an earlier run."""
        columns = self._columns[c.sketch]
        if any(v not in indices for v, indices in zip(c.row, columns.indices, strict=True)):
            return  # a row of another version of the space
        whole = self._optuna.distributions.IntDistribution
        params: dict[str, Any] = {n: p[v] for n, p, v in zip(columns.names, columns.indices, c.row, strict=True)}
        spaces: dict[str, Any] = {n: whole(0, len(d) - 1) for n, d in zip(columns.names, columns.domains, strict=True)}
        if len(study.sketches) > 1:
            names = [self._columns[i].prefix for i in study.sketches]
            params["sketch"] = columns.prefix
            spaces["sketch"] = self._optuna.distributions.CategoricalDistribution(names)
        if value is None and self._kind.pruned:
            ended: dict[str, Any] = {"state": self._optuna.trial.TrialState.PRUNED}
        else:
            ended = {"value": self._failed(study) if value is None else value}
        study.study.add_trial(self._optuna.trial.create_trial(params=params, distributions=spaces, **ended))

    def _failed(self, study: _Study) -> float:
        return study.slowest + math.log(2.0)


class OptunaTPESampler(OptunaSampler):
    """Tree-structured Parzen estimator (`optuna-tpe`)."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "tpe")


class OptunaCMAESSampler(OptunaSampler):
    """Covariance matrix adaptation evolution strategy, one study per sketch (`optuna-cmaes`)."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "cmaes")


class OptunaGPSampler(OptunaSampler):
    """Bayesian optimisation with a Gaussian process, one study per sketch (`optuna-gp`).  Needs SciPy and torch, and 1 s per proposal."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "gp")


class OptunaQMCSampler(OptunaSampler):
    """Scrambled Sobol sequence, one study per sketch, independent of results (`optuna-qmc`).  Needs SciPy."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "qmc")


class OptunaRandomSampler(OptunaSampler):
    """Uniform over the box of domains, then repaired (`optuna-random`); `random` is uniform over admissible rows."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "random")
