"""A sampler that thinks in a Ray actor: proposals that take long, or much memory, are made where there is room for them.

The actor is told the workload as text and derives the same space from it.  A sampler's proposals follow from its seed and from what it was
asked and told, in order; so when the actor is lost, another is brought to the same state by repeating that, and the search does not notice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from tunesmith.costmodel.models.registry import find_model, make_model
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.measure.ray.ray_actor_pool import Actor, ActorPool, Handshake, Job
from tunesmith.measure.ray.ray_cluster import RayCluster
from tunesmith.search.samplers.registry import find_sampler, make_sampler
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.space.rules_table import Rule
from tunesmith.search.task import Task
from tunesmith.support.errors import RunError

if TYPE_CHECKING:
    from tunesmith.costmodel.models.model import CostModel

Call = tuple[str, int | tuple[Result, ...]]
"""What a sampler went through: `("ask", n)` or `("tell", results)`."""

_LIVES = 2
"""Actors that may be lost over one call before the sampler itself is to blame."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What the actor's sampler has done so far, as a drafter counts it."""

    drafted: int
    scored: int
    draft_seconds: float


@dataclass(frozen=True, slots=True)
class _Behind:
    """The answer of an actor that has not been through everything that came before."""

    calls: int


class RaySampler(Sampler):
    """Stands for a sampler in an actor; proposes what that sampler would propose here.

    Args:
        cluster: where the actor lives.
        task: what is sampled.
        sampler: what proposes candidates, see `find_sampler`.
        model: the learned cost model, for samplers that use one, see `find_model`.  What they name must be there on the actor's node.
        seed: of the search.
        cpus: that the actor takes, as Ray counts them; 0 lets it live beside builders.
        timeout: seconds that one proposal, or learning from one batch, may take.
        start_timeout: seconds in which the actor must have started.

    Raises:
        UserError: there is no such sampler or model.
    """

    def __init__(
        self,
        cluster: RayCluster,
        task: Task,
        sampler: str | type[Sampler] = "evolutionary",
        model: str | Callable[..., CostModel] = "xgb",
        seed: int = 0,
        *,
        cpus: int = 0,
        timeout: float = 1800.0,
        start_timeout: float = 120.0,
    ) -> None:
        self._cluster = cluster  # which lives as long as its actors
        self._timeout = timeout
        self._past: list[Call] = []
        self._space = _space_digest(task)
        self.drafter: Effort | None = None
        """What the sampler has done, for reports; None before the first proposal and for samplers that do not draft."""
        settings = _Settings(
            task.name,
            task.measured.script,
            json.dumps(task.target.to_json(facts=True)),
            task.flops,
            task.weight,
            task.rules,
            dict(task.ranges),
            find_sampler(sampler),
            find_model(model),
            seed,
        )
        self._crew = ActorPool(_SamplerActor, (settings,), 1, "sampler", cpus=cpus, accept=self._refusal, start_timeout=start_timeout)

    def ask(self, n: int) -> list[Candidate]:
        """See `Sampler.ask`.

        Raises:
            RunError: the sampler failed, took too long, or lost its actor over this again and again.
        """
        candidates, self.drafter = cast(tuple[list[Candidate], Effort | None], self._call(("ask", n)))
        return candidates

    def tell(self, results: Sequence[Result]) -> None:
        """See `Sampler.tell`.

        Raises:
            RunError: as `ask`.
        """
        self._call(("tell", tuple(results)))

    def close(self) -> None:
        """End the actor.  Closing twice is fine."""
        self._crew.close()

    def _call(self, call: Call) -> object:
        answer = self._do("call", len(self._past), call)
        for _ in range(_LIVES):
            if not isinstance(answer, _Behind):
                break
            # A new actor: it has to live through what the lost one had.
            self._do("repeat", answer.calls, tuple(self._past[answer.calls :]))
            answer = self._do("call", len(self._past), call)
        if isinstance(answer, _Behind):
            raise RunError(f"the sampler lost its Ray actor again and again over call {len(self._past)}, which was to {call[0]}")
        self._past.append(call)
        return answer

    def _do(self, method: str, *arguments: object) -> object:
        (job,) = self._crew.run([Job(method, arguments, self._timeout)])
        if job.error is not None:
            raise RunError(f"the sampler failed in its Ray actor: {job.message}\n{job.detail}".rstrip())
        return job.value

    def _refusal(self, greeting: Handshake) -> str | None:
        if greeting.facts["space"] == self._space:
            return None
        return "it derives another space from the workload. Rules must follow from their arguments alone, and pools are sampled here"


@dataclass(frozen=True, slots=True)
class _Settings:
    """What makes a sampler, as data and names."""

    name: str
    script: str
    target: str
    flops: int
    weight: float
    rules: tuple[Rule, ...] | None
    ranges: dict[str, Range]
    sampler: type[Sampler]
    model: Callable[..., CostModel]
    seed: int

    def task(self) -> Task:
        """The task; it has no reference, which samplers do not look at."""
        target = Target.from_json(json.loads(self.target))
        return Task(self.name, parse_function(self.script), target, None, self.flops, self.weight, self.rules, self.ranges)


class _SamplerActor(Actor):
    """The process of a sampler."""

    def __init__(self, settings: _Settings) -> None:
        task = settings.task()
        self._space = _space_digest(task)
        self._sampler = make_sampler(settings.sampler, task, partial(make_model, settings.model, settings.seed), settings.seed)
        self._calls = 0

    def facts(self) -> dict[str, object]:
        """The identity of the space."""
        return {"space": self._space}

    def call(self, at: int, call: Call) -> object:
        """Do what is asked or told; `_Behind` if fewer than `at` calls came before."""
        if self._calls != at:
            return _Behind(self._calls)
        return self._do(call)

    def repeat(self, at: int, past: Sequence[Call]) -> None:
        """Live through a part of the past that begins at call `at`; nothing if that is not where this actor stands."""
        if self._calls == at:
            for call in past:
                self._do(call)

    def _do(self, call: Call) -> object:
        kind, what = call
        answer: object = None
        if kind == "ask":
            candidates = self._sampler.ask(cast(int, what))
            drafter = getattr(self._sampler, "drafter", None)
            answer = candidates, None if drafter is None else Effort(drafter.drafted, drafter.scored, drafter.draft_seconds)
        else:
            self._sampler.tell(list(cast(tuple[Result, ...], what)))
        self._calls += 1
        return answer


def _space_digest(task: Task) -> str:
    """Of all sketches in order, names, traces and numbers of rows: candidates name a sketch by its position."""
    sketches = [[s.name, trace, s.space.size()] for s, trace in zip(task.space.sketches, task.measured.traces, strict=True)]
    return blake2b(json.dumps(sketches).encode(), digest_size=16).hexdigest()
