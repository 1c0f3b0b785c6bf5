"""Define passes, pipelines of passes, and instruments that watch them.

A pass is a function from PrimFunc to PrimFunc for a target, with a name, the stage it requires, the stage it provides, and options: its
keyword-only parameters.  A pipeline is a list of passes that reads as the compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from tunesmith.ir.expression_size import check_size
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.node import CHECK
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_options import Configurable, check_parameters, name_of
from tunesmith.lower.renamed_passes import did_you_mean_pass
from tunesmith.lower.stages import STAGES, check_stage
from tunesmith.support.errors import UserError


class Instrument(Protocol):
    """Watches passes; must not change anything."""

    def after(self, name: str, before: PrimFunc, after: PrimFunc, seconds: float) -> None:
        """Called behind every pass."""


@dataclass(frozen=True, slots=True)
class Pass(Configurable):
    """One rewrite of a function, or a check of it: `run(func, target, **options)`.

    Attributes:
        requires: the stage the function must be in.
        provides: the stage it is in afterwards.
    Raises:
        UserError: no such stage, a result in an earlier stage, a function with other parameters, or as `Configurable`.
    """

    requires: str
    provides: str

    def __post_init__(self) -> None:
        Configurable.__post_init__(self)
        check_parameters(self.run, "func, target")
        for given in (self.requires, self.provides):
            if given not in STAGES:
                raise UserError(f"the pass {self.name!r}: there is no stage {given!r}. Stages are {', '.join(STAGES)}")
        if STAGES.index(self.provides) < STAGES.index(self.requires):
            raise UserError(
                f"the pass {self.name!r} requires {self.requires} and provides {self.provides}, which is earlier: a pass never leads back. "
                f"Without provides= the function stays in {self.requires}"
            )

    def __call__(self, func: PrimFunc, target: Target) -> PrimFunc:
        out: PrimFunc = self.run(func, target, **dict(self.options))
        return out


def function_pass(requires: str, provides: str | None = None) -> Callable[[Callable[..., PrimFunc]], Pass]:
    """Make a function a pass of the same name; without `provides` the stage stays.

    Keyword-only parameters of the function are the options of the pass: see `Configurable`.

    Raises:
        UserError: as `Pass`, or an object without a name.
    """
    if callable(requires):
        raise UserError(f"function_pass needs a stage: write @function_pass(requires={STAGES[0]!r}), one of {', '.join(STAGES)}")

    def wrap(f: Callable[..., PrimFunc]) -> Pass:
        return Pass(name_of(f), f, requires, requires if provides is None else provides)

    return wrap


_instruments: ContextVar[tuple[Instrument, ...]] = ContextVar("instruments", default=())


@contextmanager
def pass_context(*instruments: Instrument) -> Iterator[None]:
    """While the context is open every pass is shown to `instruments`."""
    token = _instruments.set((*_instruments.get(), *instruments))
    try:
        yield
    finally:
        _instruments.reset(token)


class Pipeline:
    """Passes in order.  Composition checks that each pass finds the stage it needs.

    Raises:
        UserError: an argument is no pass, or needs a later stage than the passes before it provide.
    """

    def __init__(self, *passes: Pass) -> None:
        for p in passes:
            if not isinstance(p, Pass):
                raise UserError(f"{p!r:.200} is no pass of functions: use what function_pass makes, and *PIPELINE.passes for a pipeline")
        stage = passes[0].requires if passes else STAGES[0]
        stages = []
        for p in passes:
            if STAGES.index(p.requires) > STAGES.index(stage):
                raise UserError(
                    f"the pass {p.name!r} needs stage {p.requires}, but the pipeline is at {stage} there: move it behind a pass that "
                    f"provides {p.requires}"
                )
            stage = max(stage, p.provides, key=STAGES.index)
            stages.append(stage)
        self.passes = passes
        self.stages = tuple(stages)

    def __call__(self, func: PrimFunc, target: Target) -> PrimFunc:
        """The function after all passes.

        Raises:
            ScriptError: an expression is too deep or too large for them.
            UserError: one of them returns something else.
        """
        stack: list[Stmt] = [func.body]
        while stack:
            n = stack.pop()
            if type(n) is BufferStore:
                check_size(n.value, f"{func.name}: the value stored to {n.buffer.name}")
            else:
                n.each_child(lambda k: stack.append(k) if isinstance(k, Stmt) else None)
        for p, stage in zip(self.passes, self.stages, strict=True):
            watchers = _instruments.get()
            start = time.perf_counter()
            out = p(func, target)
            if not isinstance(out, PrimFunc):
                found = "None" if out is None else f"a {type(out).__name__}"
                raise UserError(f"the pass {p.name!r} returned {found} for {func.name}: a pass returns the PrimFunc that it makes")
            if CHECK:
                check_stage(out, stage, p.name)
            for w in watchers:
                w.after(p.name, func, out, time.perf_counter() - start)
            func = out
        return func

    def without(self, name: str) -> Pipeline:
        """The pipeline without the pass called `name`, at every position.  UserError if there is no such pass."""
        self._check(name)
        return Pipeline(*[p for p in self.passes if p.name != name])

    def insert_after(self, name: str, *new: Pass) -> Pipeline:
        """The pipeline with passes inserted after the one called `name`, at every position.  UserError if there is no such pass."""
        self._check(name)
        out: list[Pass] = []
        for p in self.passes:
            out.append(p)
            if p.name == name:
                out.extend(new)
        return Pipeline(*out)

    def _check(self, name: str) -> None:
        known = names(self.passes)
        if name not in known:
            raise UserError(f"the pipeline has no pass {name!r}; it has {', '.join(dict.fromkeys(known))}.{did_you_mean_pass(name, known)}")


def names(passes: Sequence[Pass]) -> list[str]:
    """The names of passes."""
    return [p.name for p in passes]
