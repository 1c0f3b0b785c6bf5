"""optuna-...: any sampler of Optuna over the sketches' own domains, through ask and tell.

**Columns** are whole numbers, the place of a value in its Param's domain: domains are sorted and about evenly spaced on a logarithmic
scale, so that a step means the same everywhere.  Values are logarithms of seconds, and are minimised.

**Sketches.**  Samplers that model conditional columns (`tpe`, `random`) get one study: the sketch is a categorical choice, and the
columns of the chosen sketch follow, define-by-run, their names prefixed with the sketch's.  Samplers of fixed numeric spaces (`cmaes`,
`gp`, `qmc`) get a study for each sketch, and a bandit says whose turn it is: each sketch first gets one proposal, then the next goes
to the highest of

    log(best of all / best of the sketch) + 0.5 sqrt(log(proposals) / proposals of the sketch),

the bound of UCB1 (Auer et al., 2002) on what counts here, the best and not the mean.

**Constraints.**  Optuna knows boxes only.  A proposal is repaired by `ParamSpace.nearest`, and the value of the repaired row is told:

- to *the trial as it was proposed* for `cmaes`, whose generations consist of its own proposals (Baldwinian repair);
- to *a trial at the repaired row*, added to the study, for all others, while the proposed one is closed as failed, which samplers
  pass over: the study then holds what was measured where it was measured (Lamarckian repair).

Candidates that failed are told as pruned to `tpe`, which ranks them behind all others; to samplers that pass over pruned trials they
are told as twice as slow as the slowest that the study has seen, or as one second if that is more.

**Repeats.**  No candidate is measured twice.  A proposal whose repaired row was measured before is answered at once with what it
measured, and another is asked for.  If that goes on, an unseen row near the last one takes its place.

TPE: Bergstra et al., NeurIPS 2011; CMA-ES with margin for whole numbers: Hamano et al., GECCO 2022; Optuna: Akiba et al., KDD 2019.
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
"""Weight of the bandit's doubt: a sketch tried ten times in a hundred is preferred to one that is at most 1.4 times faster."""
REPEATS = 3
"""Proposals asked for, for each that is wanted, before unseen rows near seen ones take their place."""
NEIGHBOURS = 32
"""Mutants looked through for an unseen one."""
SLOWEST = 0.0
"""Logarithm of the seconds that a failed candidate has at least."""


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna", "an Optuna sampler") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Half of Optuna's samplers and options warn that they are experimental each time they are made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True, slots=True)
class Kind:
    """How an Optuna sampler is made and fed; see the module's text.

    Attributes:
        make: from Optuna's module `samplers` and a seed of 32 bits.
        joint: one study for all sketches, rather than one for each.
        moved: a repaired proposal is told at the repaired row, rather than as it was proposed.
        pruned: failures are told as pruned, rather than as slow.
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
"""The samplers that are known by name.  For another one, pass a `Kind` of its own."""


@dataclass(slots=True)
class _Study:
    """A study of Optuna, and how often it was asked."""

    study: Any
    sketches: tuple[int, ...]
    asked: int = 0
    slowest: float = SLOWEST


@dataclass(slots=True)
class _Open:
    """A proposal that waits for its result."""

    study: _Study
    trial: Any
    moved: bool
    """Whether its candidate is another row than was proposed."""


@dataclass(slots=True)
class _Columns:
    """The columns of a sketch as Optuna sees them."""

    prefix: str
    names: tuple[str, ...]
    domains: tuple[tuple[int, ...], ...]
    places: tuple[dict[int, int], ...] = field(repr=False)

    @classmethod
    def of(cls, sketch: Sketch) -> _Columns:
        params = sketch.space.params
        names = tuple(f"{sketch.name}/{i}:{p.name}" for i, p in enumerate(params))
        domains = tuple(p.domain for p in params)
        return cls(sketch.name, names, domains, tuple({v: i for i, v in enumerate(d)} for d in domains))


class OptunaSampler(Sampler):
    """See the module's text.

    Args:
        task: what is sampled.
        seed: of the search.
        kind: a name of `KINDS`, or a `Kind`.
    Raises:
        UserError: there is no such name, or Optuna, or what the sampler needs, is not installed.
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
        self._open: dict[Candidate, list[_Open]] = {}
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
        """One proposal: into the batch, or answered with what is known of its row."""
        turn = self._turn()
        turn.asked += 1
        trial = turn.study.ask()
        k, row = self._suggested(turn, trial)
        space = self.task.space.sketches[k].space
        repaired = space.nearest(row[None, :], rng)
        candidate = candidate_of(k, repaired[0])
        seen = candidate in self._history.seen
        if seen and last:
            near = space.nearest(space.mutate(np.repeat(repaired, NEIGHBOURS, axis=0), rng), rng)
            candidate = next((c for c in (candidate_of(k, r) for r in near) if c not in self._history.seen), candidate)
            seen = candidate in self._history.seen
        waiting = _Open(turn, trial, candidate.row != tuple(row.tolist()))
        if not seen:
            self._history.take(candidate, batch)
            self._open[candidate] = [waiting]
        elif candidate in self._open:
            self._open[candidate].append(waiting)
        else:
            self._close(waiting, self._known(candidate), repeated=True)

    def _turn(self) -> _Study:
        """The study whose turn it is."""
        fresh = next((s for s in self._studies if not s.asked), None)
        if fresh is not None or len(self._studies) == 1:
            return fresh or self._studies[0]
        total = sum(s.asked for s in self._studies)
        leader = min(self._best.values(), default=0.0)

        def bound(s: _Study) -> float:
            behind = self._best.get(s.sketches[0], leader if not self._best else max(self._best.values())) - leader
            return EXPLORE * math.sqrt(math.log(total) / s.asked) - behind

        return max(self._studies, key=bound)

    def _suggested(self, turn: _Study, trial: Any) -> tuple[int, np.ndarray]:
        k = turn.sketches[0]
        if len(turn.sketches) > 1:
            prefix = trial.suggest_categorical("sketch", [self._columns[i].prefix for i in turn.sketches])
            k = next(i for i in turn.sketches if self._columns[i].prefix == prefix)
        c = self._columns[k]
        places = [trial.suggest_int(name, 0, len(d) - 1) for name, d in zip(c.names, c.domains, strict=True)]
        return k, np.array([d[i] for d, i in zip(c.domains, places, strict=True)], np.int64)

    def _known(self, candidate: Candidate) -> float | None:
        seconds = self._history.measured.get(candidate)
        return None if seconds is None else math.log(seconds)

    def _tell(self, result: Result) -> None:
        c, value = result.candidate, None if result.seconds is None else math.log(result.seconds)
        study = self._study_of[c.sketch]
        if value is not None:
            self._best[c.sketch] = min(value, self._best.get(c.sketch, math.inf))
            study.slowest = max(study.slowest, value)
        waiting = self._open.pop(c, [])
        for i, w in enumerate(waiting):
            self._close(w, value, repeated=i > 0)
        if not waiting or (self._kind.moved and waiting[0].moved):
            self._add(study, c, value)

    def _close(self, w: _Open, value: float | None, repeated: bool) -> None:
        """End a trial that was asked for."""
        states = self._optuna.trial.TrialState
        if self._kind.moved and (w.moved or repeated):
            w.study.study.tell(w.trial, state=states.FAIL)
        elif value is None and self._kind.pruned:
            w.study.study.tell(w.trial, state=states.PRUNED)
        else:
            w.study.study.tell(w.trial, self._failed(w.study) if value is None else value)

    def _add(self, study: _Study, c: Candidate, value: float | None) -> None:
        """Add a trial that Optuna did not propose: at a repaired row, or one of an earlier run."""
        columns = self._columns[c.sketch]
        if any(v not in places for v, places in zip(c.row, columns.places, strict=True)):
            return  # a row of another version of the space
        whole = self._optuna.distributions.IntDistribution
        params: dict[str, Any] = {n: p[v] for n, p, v in zip(columns.names, columns.places, c.row, strict=True)}
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
    """optuna-tpe: the tree-structured Parzen estimator."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "tpe")


class OptunaCMAESSampler(OptunaSampler):
    """optuna-cmaes: the covariance matrix adaptation evolution strategy, sketch by sketch."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "cmaes")


class OptunaGPSampler(OptunaSampler):
    """optuna-gp: Bayesian optimisation with a Gaussian process, sketch by sketch; needs SciPy and torch, and a second a proposal."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "gp")


class OptunaQMCSampler(OptunaSampler):
    """optuna-qmc: a scrambled Sobol sequence, sketch by sketch, which learns nothing; needs SciPy."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "qmc")


class OptunaRandomSampler(OptunaSampler):
    """optuna-random: uniform over boxes and then repaired, unlike `random`, which is uniform over admissible rows."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed, "random")
