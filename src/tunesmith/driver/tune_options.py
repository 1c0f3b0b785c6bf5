"""Group the options of a search, its budget and its method, and decide its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.build import check_runs_here
from tunesmith.driver.compile import as_target
from tunesmith.ir.target.target import Target
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.space.rules_table import Rule
from tunesmith.search.task_scheduler import Allocator
from tunesmith.support.arguments import as_count, refuse_fields
from tunesmith.support.errors import UserError

if TYPE_CHECKING:
    from tunesmith.costmodel.models.model import CostModel


@refuse_fields
@dataclass(frozen=True, slots=True)
class Budget:
    """When a search ends.  Without `total_trials`, `seconds` and `min_gain`, each workload gets `trials`.

    Attributes:
        trials: measured candidates per workload, including those in the log; by default 128, or no bound if `total_trials`, `seconds` or
            `min_gain` is given.
        total_trials: measured candidates of all workloads together, including those in the log.
        seconds: no batch starts later than this.  A resumed run has the full time again.
        early_stop: a workload stops when its best has not improved by 1 % over this number of trials.
        min_gain: a workload stops when doubling its trials is expected to save less than this share of its time, such as 0.01; the
            expectation follows from its curve and those of the other workloads (`search.power_law`).
    """

    trials: int | None = None
    total_trials: int | None = None
    seconds: float | None = None
    early_stop: int | None = None
    min_gain: float | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the workloads share a budget."""
        return self.total_trials is not None or self.seconds is not None


@refuse_fields
@dataclass(frozen=True, slots=True)
class Search:
    """How candidates are searched for.

    Attributes:
        sampler: proposes candidates: a name, `"path.py:Class"`, or a class.
        model: the cost model, for samplers that use one: a registered name, `"path.py:Class"`, the file of a saved model, which is
            trained further, or a factory.
        seed: equal seeds propose equal candidates, as long as the measurements are equal.
        batch: candidates per turn of a workload, built and measured together; by default `default_batch` of its trials.
        rules: rules of the space: functions, `"path.py:function"`, or names in `search.space.rules_table.SEARCH_RULES`.  They replace the
            rules of the target, which are the default; name those too to keep them.
        leaders: number of best candidates that are verified and timed interleaved at the end; 0 disables this.
        allocation: the allocator of batches: "gain", "gradient" (Ansor's), "round-robin", or an `Allocator`.  By default the gain if the
            budget is shared, else round-robin.
        weights: occurrences of workloads in the optimised program, by name; by default 1.  Round-robin ignores them.
        transfer: also try candidates that were fast for similar workloads, of the same run or in the log.
        error_growth: largest rounding errors of candidates, relative to direct sums of the same type: 1 leaves out algorithms with larger
            errors (docs/precision.md).
        check_models: compare each model before and after the search as a whole, and withdraw records that made it slower; on CPUs, for
            models with constant shapes.  It takes some seconds after the budget.
    """

    sampler: str | type[Sampler] = "evolutionary"
    model: str | Callable[..., CostModel] = "xgb"
    seed: int = 0
    batch: int | None = None
    rules: Sequence[str | Rule] | None = None
    leaders: int = 4
    allocation: str | Allocator | None = None
    weights: Mapping[str, float] | None = field(default=None)
    error_growth: float = ERROR_GROWTH
    check_models: bool = True
    transfer: bool = True


BATCH, TURNS = 32, 4
"""The batch of a long search, and the minimum number of turns of a short one: the sampler learns between turns."""
FIRST = 8
"""The first batch of a workload whose share of a budget is not known before; the model learns from this number of measurements."""


def default_batch(trials: int | None) -> int:
    """Candidates per turn of a workload with this number of trials; None if only time limits them."""
    return BATCH if trials is None else max(1, min(BATCH, trials // TURNS))


EARLIER = {
    "records": "log=...",
    "trials": "budget=N or budget=Budget(trials=N)",
    **{name: f"budget=Budget({name}=...)" for name in ("total_trials", "seconds", "early_stop")},
    **{f.name: f"search=Search({f.name}=...)" for f in fields(Search)},
}
"""Keywords of `tune` in version 0.1, and of `compile` -> how the argument is passed."""


def as_budget(budget: Budget | int | None) -> Budget:
    """The budget; a number is `trials`.  UserError for anything else."""
    if isinstance(budget, Budget):
        return budget
    try:
        return Budget(None if budget is None else as_count("budget", budget))
    except UserError:
        raise UserError(f"budget={budget!r:.200}: expected Budget(trials=..., seconds=...) or a number of trials, at least 1") from None


def as_search(search: Search | str | type[Sampler] | None) -> Search:
    """The search; a name or a class is the sampler.  UserError for anything else."""
    if isinstance(search, Search):
        return search
    if search is None:
        return Search()
    if isinstance(search, (str, type)):
        return Search(search)
    raise UserError(f"search={search!r}: expected Search(sampler=..., model=...), or a sampler")


def grouped(**options: Any) -> dict[str, Any]:
    """Keyword arguments of `tune` from flat options, as a command line has them: those of `Budget` and `Search` are grouped."""
    out = dict(options)
    for name, kind in (("budget", Budget), ("search", Search)):
        given = {f.name: out.pop(f.name) for f in fields(kind) if f.name in out}
        if given:
            out[name] = kind(**given)
    return out


def target_here(target: str | Target | None) -> Target:
    """The target of runners on this machine, calibrated unless it is an object, given or current.  BuildError if it does not run here."""
    found = as_target(target)
    check_kind(found)
    check_runs_here(found)
    if isinstance(target, Target) or (target is None and Target.current() is not None):
        return found
    calibrated: Target = backend_of(found).part("calibrated")(found)
    return calibrated


def target_remote(target: str | Target | None) -> Target:
    """The target of remote runners, which reject other targets; only this machine can be calibrated here."""
    named, here = (Target.current() or Target.detect()) if target is None else Target(target), Target.detect()
    is_here = named.is_cpu and (named.mcpu, named.num_cores) == (here.mcpu, here.num_cores)
    return target_here(target) if is_here else named
