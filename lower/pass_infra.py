"""What a pass is: a named function from PrimFunc to PrimFunc for a target, and a pipeline, a list of passes that reads as the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from tunesmith.ir.expression_size import check_size
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import UserError

STAGES = ("SCHEDULED", "OPAQUE", "FLAT", "VECTOR")
"""SCHEDULED: loops around blocks.  OPAQUE: no blocks, allocations placed.  FLAT: one-dimensional buffers.
VECTOR: no vectorised or unrolled loops."""


class Instrument(Protocol):
    """Watches passes; must not change anything."""

    def after(self, name: str, before: PrimFunc, after: PrimFunc, seconds: float) -> None:
        """Called behind every pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite of a function.

    Attributes:
        name: folder.file of the pass, the label in dumps, times and errors.
        run: the rewrite.
        needs: the stage the function must be in.
        gives: the stage it is in afterwards.
    """

    name: str
    run: Callable[[PrimFunc, Target], PrimFunc]
    needs: str
    gives: str

    def __call__(self, func: PrimFunc, target: Target) -> PrimFunc:
        return self.run(func, target)


def function_pass(needs: str, gives: str | None = None) -> Callable[[Callable[[PrimFunc, Target], PrimFunc]], Pass]:
    """Make a function a pass; without `gives` the stage stays."""

    def wrap(f: Callable[[PrimFunc, Target], PrimFunc]) -> Pass:
        return Pass(f.__module__.rpartition(".")[2], f, needs, gives or needs)

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
        stage = passes[0].needs
        for p in passes:
            if STAGES.index(p.needs) > STAGES.index(stage):
                raise ValueError(f"pass {p.name} needs stage {p.needs}, but the pipeline is at {stage} there")
            stage = max(stage, p.gives, key=STAGES.index)
        self.passes = passes

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
        for p in self.passes:
            watchers = _instruments.get()
            start = time.perf_counter()
            out = p(func, target)
            if not isinstance(out, PrimFunc):
                found = "None" if out is None else f"a {type(out).__name__}"
                raise UserError(f"the pass {p.name!r} returned {found} for {func.name}: a pass returns the PrimFunc that it makes")
            for w in watchers:
                w.after(p.name, func, out, time.perf_counter() - start)
            func = out
        return func

    def without(self, name: str) -> Pipeline:
        """The pipeline minus one pass, wherever it stands.  UserError if there is no such pass."""
        self._check(name)
        return Pipeline(*[p for p in self.passes if p.name != name])

    def insert_after(self, name: str, *new: Pass) -> Pipeline:
        """The pipeline with passes behind the one called `name`, wherever it stands.  UserError if there is no such pass."""
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
