"""Decide the target of a search: that of this machine with measured rates, or that of remote runners."""

from __future__ import annotations

from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.build import check_runs_here
from tunesmith.driver.compile import as_target
from tunesmith.ir.target.target import Target


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
