"""Define passes, pipelines of passes, and instruments that watch them.

A pass is a function from PrimFunc to PrimFunc for a target, with a name, the stage it requires, the stage it provides, and options: its
keyword-only parameters.  A pipeline is a list of passes that reads as the compiler.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

from tunesmith.ir.expression_size import check_size
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.node import CHECK
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.lower.stages import STAGES, check_stage
from tunesmith.support.errors import UserError

Option = bool | int | float | str
"""A value of an option."""


class Instrument(Protocol):
    """Watches passes; must not change anything."""

    def after(self, name: str, before: PrimFunc, after: PrimFunc, seconds: float) -> None:
        """Called behind every pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite of a function, or a check of it.

    Attributes:
        name: name of its function, the label in dumps, times and errors.
        run: the rewrite, `run(func, target, **options)`.
        requires: the stage the function must be in.
        provides: the stage it is in afterwards.
        options: values of keyword-only parameters of `run`; defaults are not listed.
    """

    name: str
    run: Callable[..., PrimFunc]
    requires: str
    provides: str
    options: tuple[tuple[str, Option], ...] = ()

    def __call__(self, func: PrimFunc, target: Target) -> PrimFunc:
        return self.run(func, target, **dict(self.options))

    def __str__(self) -> str:
        given = ",".join([f"{k}={v}" for k, v in self.options])
        return f"{self.name}{{{given}}}" if given else self.name

    @property
    def defaults(self) -> dict[str, Option]:
        """The options and their default values."""
        found = inspect.signature(self.run).parameters.values()
        return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}

    def with_options(self, **options: Option) -> Pass:
        """The pass with other options.

        Raises:
            UserError: there is no such option, or its value has another type than the default.
        """
        known = self.defaults
        for key, value in options.items():
            if key not in known:
                raise UserError(f"the pass {self.name!r} has no option {key!r}; it has {', '.join(known) or 'none'}")
            if type(value) is not type(known[key]):
                wanted = type(known[key]).__name__
                raise UserError(f"the option {key!r} of the pass {self.name!r} is of type {wanted}, got {value!r}")
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))


def function_pass(requires: str, provides: str | None = None) -> Callable[[Callable[..., PrimFunc]], Pass]:
    """Make a function a pass of the same name; without `provides` the stage stays.

    Keyword-only parameters of the function are the options of the pass.
    """

    def wrap(f: Callable[..., PrimFunc]) -> Pass:
        return Pass(f.__name__, f, requires, provides or requires)

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
    """Passes in order.  Composition checks that each pass finds the stage it needs."""

    def __init__(self, *passes: Pass) -> None:
        stage = passes[0].requires if passes else STAGES[0]
        stages = []
        for p in passes:
            if STAGES.index(p.requires) > STAGES.index(stage):
                raise ValueError(f"pass {p.name} needs stage {p.requires}, but the pipeline is at {stage} there")
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
            raise UserError(f"the pipeline has no pass {name!r}; it has {', '.join(dict.fromkeys(known))}")


def names(passes: Sequence[Pass]) -> list[str]:
    """The names of passes."""
    return [p.name for p in passes]
