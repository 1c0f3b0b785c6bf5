"""Decide the target of a search: that of this machine with measured rates, or that of remote runners."""

from __future__ import annotations

from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.build import check_runs_here
from tunesmith.driver.compile import as_target
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import BuildError


def target_here(target: str | Target | None) -> Target:
    """The target of candidates that this machine runs, with measured rates.  BuildError if it cannot run them."""
    if target is not None:
        check_kind(as_target(target))
    if isinstance(target, Target) or (target is None and Target.current() is not None):
        given = as_target(target)
        _check_measurable(given)
        return given
    parsed = as_target(target)
    _check_measurable(parsed)
    found: Target = backend_of(parsed).part("calibrated")(parsed)
    return found


def _check_measurable(target: Target) -> None:
    """Refuse a target whose candidates cannot be measured here.  Raises BuildError."""
    try:
        check_runs_here(target)
    except BuildError as error:
        raise BuildError(
            f'{error} Candidates are measured where they run: tune on that machine, or with Ray workers on such machines (workers="ray"), '
            "and pass the log to tunesmith.compile(..., target, records=log), which needs no such machine"
        ) from error


def target_remote(target: str | Target | None) -> Target:
    """The target of remote runners, which reject other targets; only this machine can be calibrated here."""
    named, here = (Target.current() or Target.detect()) if target is None else Target(target), Target.detect()
    is_here = named.is_cpu and (named.mcpu, named.num_cores) == (here.mcpu, here.num_cores)
    return target_here(target) if is_here else named
