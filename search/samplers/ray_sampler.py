"""Run a sampler in a Ray actor, for samplers whose proposals need much time or memory.

The actor receives the workload as text and derives the same space from it.  A sampler's proposals depend only on its seed and on the
sequence of its `ask` and `tell` calls.  If the actor is lost, a new one is brought to the same state by replaying the calls, and the
search continues unchanged.
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
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler, SamplerStatistics
from tunesmith.search.space.rules_table import Rule
from tunesmith.search.task import Task
from tunesmith.support.errors import RunError

if TYPE_CHECKING:
    from tunesmith.costmodel.models.model import CostModel

Call = tuple[str, int | tuple[Result, ...]]
"""One call of the sampler: `("ask", n)` or `("tell", results)`."""

_MAX_LOST = 2
"""Lost actors after which a call is not retried: the sampler itself is the likely cause."""


@dataclass(frozen=True, slots=True)
class _MissingCalls:
    """The answer of an actor that has executed only the first `calls` calls of the history."""

    calls: int


class RaySampler(Sampler):
    """A proxy for a sampler in a Ray actor, with the same proposals as the sampler in this process.

    Args:
        cluster: the cluster that runs the actor.
        task: the task to sample.
        sampler: the sampler, see `find_sampler`.
        model: the learned cost model, for samplers that use one, see `find_model`.  Sampler and model must be available on the actor's
            node.
        seed: seed of the search.
        cpus: CPUs reserved for the actor in Ray; 0 allows it to share a node with builders.
        timeout: limit in seconds for one `ask` or `tell`.
        start_timeout: limit in seconds for the start of the actor.

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
        self._cluster = cluster  # keeps the cluster alive as long as its actors
        self._timeout = timeout
        self._calls: list[Call] = []
        self._space = _space_digest(task)
        self._statistics: SamplerStatistics | None = None
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
        self._pool = ActorPool(_SamplerActor, (settings,), 1, "sampler", cpus=cpus, accept=self._refusal, start_timeout=start_timeout)

    def ask(self, n: int) -> list[Candidate]:
        """See `Sampler.ask`.

        Raises:
            RunError: the sampler failed, exceeded its timeout, or lost its actor repeatedly in this call.
        """
        candidates, self._statistics = cast(tuple[list[Candidate], SamplerStatistics | None], self._call(("ask", n)))
        return candidates

    def tell(self, results: Sequence[Result]) -> None:
        """See `Sampler.tell`.

        Raises:
            RunError: see `ask`.
        """
        self._call(("tell", tuple(results)))

    def statistics(self) -> SamplerStatistics | None:
        """The statistics of the sampler in the actor after its last `ask`; None before the first one."""
        return self._statistics

    def close(self) -> None:
        """Stop the actor.  Repeated calls have no effect."""
        self._pool.close()

    def _call(self, call: Call) -> object:
        answer = self._do("call", len(self._calls), call)
        for _ in range(_MAX_LOST):
            if not isinstance(answer, _MissingCalls):
                break
            # A new actor: replay the calls of the lost one.
            self._do("repeat", answer.calls, tuple(self._calls[answer.calls :]))
            answer = self._do("call", len(self._calls), call)
        if isinstance(answer, _MissingCalls):
            raise RunError(f"the sampler lost its Ray actor repeatedly in call {len(self._calls)} ({call[0]!r})")
        self._calls.append(call)
        return answer

    def _do(self, method: str, *arguments: object) -> object:
        (job,) = self._pool.run([Job(method, arguments, self._timeout)])
        if job.error is not None:
            raise RunError(f"the sampler failed in its Ray actor: {job.message}\n{job.detail}".rstrip())
        return job.value

    def _refusal(self, handshake: Handshake) -> str | None:
        if handshake.facts["space"] == self._space:
            return None
        return (
            "it derives another space from the workload. Rules must depend on their arguments alone; "
            "tabular benchmarks cannot be sampled in an actor"
        )


@dataclass(frozen=True, slots=True)
class _Settings:
    """The arguments of a sampler in serialisable form."""

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
        """The task, without its reference, which samplers do not use."""
        target = Target.from_json(json.loads(self.target))
        return Task(self.name, parse_function(self.script), target, None, self.flops, self.weight, self.rules, self.ranges)


class _SamplerActor(Actor):
    """The actor that holds the sampler."""

    def __init__(self, settings: _Settings) -> None:
        task = settings.task()
        self._space = _space_digest(task)
        self._sampler = make_sampler(settings.sampler, task, partial(make_model, settings.model, settings.seed), settings.seed)
        self._done = 0

    def facts(self) -> dict[str, object]:
        """The digest of the space."""
        return {"space": self._space}

    def call(self, at: int, call: Call) -> object:
        """Execute a call of the sampler; `_MissingCalls` if the number of earlier calls is not `at`."""
        if self._done != at:
            return _MissingCalls(self._done)
        return self._do(call)

    def repeat(self, at: int, calls: Sequence[Call]) -> None:
        """Replay the calls from position `at`; no effect if the number of earlier calls is not `at`."""
        if self._done == at:
            for call in calls:
                self._do(call)

    def _do(self, call: Call) -> object:
        kind, what = call
        answer: object = None
        if kind == "ask":
            candidates = self._sampler.ask(cast(int, what))
            answer = candidates, self._sampler.statistics()
        else:
            self._sampler.tell(list(cast(tuple[Result, ...], what)))
        self._done += 1
        return answer


def _space_digest(task: Task) -> str:
    """Digest of the names, traces and row counts of all sketches, in order, because candidates refer to sketches by position."""
    sketches = [[s.name, trace, s.space.size()] for s, trace in zip(task.space.sketches, task.measured.traces, strict=True)]
    return blake2b(json.dumps(sketches).encode(), digest_size=16).hexdigest()
