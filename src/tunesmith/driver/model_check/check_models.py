"""Compare the models of a search before and after it; see `check_model`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tunesmith.display.model_check import ModelCheck
from tunesmith.driver.model_check.check_model import can_check, check_model
from tunesmith.driver.search_run import unexpected
from tunesmith.driver.workloads import module_of
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import Record
from tunesmith.search.analytic_schedule import schedule_by_cost, untuned_choice
from tunesmith.search.space_pool import SpacePool
from tunesmith.search.task import Task
from tunesmith.support.errors import TunesmithError


def whole_models(workloads: Iterable[object]) -> list[IRModule]:
    """The models among workloads that can be compared as a whole."""
    modules = [module_of(w) for w in workloads]
    return [m for m in modules if m is not None and can_check(m)]


def check_models(
    models: Sequence[IRModule],
    target: Target,
    before: Database,
    after: Database,
    tasks: Sequence[Task],
    growth: float,
    journal: RecordLog | None,
    search_s: float,
    spaces: SpacePool,
    say: Callable[[str], None],
) -> tuple[tuple[ModelCheck, ...], list[str]]:
    """Compare the models before and after the search; functions without a record are scheduled in the spaces of the search.

    Args:
        models: the models.
        target: this machine.
        before: records from before the search.
        after: records after it; receives the choices and withdrawals.
        tasks: the tasks of the search.
        growth: limit of rounding errors.
        journal: the log that receives them, too; None for none.
        search_s: seconds that the search took.
        spaces: generates the spaces that the search has not needed.
        say: shows what happens next.
    Returns:
        The comparisons, and a note if one of them failed or Ctrl-C ended them: the search is complete, and its report is not lost.
    """
    known = {task.digest: task for task in tasks}
    chosen: dict[str, PrimFunc] = {}

    def untuned(func: PrimFunc, target: Target) -> PrimFunc:
        digest = structural.digest(func)
        if digest not in chosen:
            task = known.get(digest)
            has_space = task is not None and task.has_space
            chosen[digest] = schedule_by_cost(task) if has_space and task is not None else untuned_choice(func, target, growth).func
        return chosen[digest].with_(name=func.name)

    def log(record: Record) -> None:
        if journal is not None:
            journal.append(record)

    found: list[ModelCheck] = []
    try:
        spaces.generate([task for task in tasks if not task.has_space])
        for m in models:
            check = check_model(m, target, before, after, untuned, growth, log, search_s, say)
            found += [] if check is None else [check]
    except KeyboardInterrupt:
        return tuple(found), ["interrupted while the model was compared as a whole; the search is complete"]
    except TunesmithError as error:
        return tuple(found), [f"the model could not be compared as a whole: {error}"]
    except Exception as error:  # a bug must not lose the report of the search
        return tuple(found), [f"the model could not be compared as a whole: {unexpected(error)}"]
    finally:
        spaces.close()
    return tuple(found), []
