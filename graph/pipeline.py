"""Module passes and pipelines of them: the compiler from graph functions to scheduled TIR functions, as a list.

A module pass takes a module and the target.  TIR passes and pipelines (`lower.passes`) may stand in the same list: they are applied
to every PrimFunc.  Passes are ordinary values, which users insert, drop and reorder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target import Target
from tunesmith.lower.passes import Pass, Pipeline
from tunesmith.support.errors import UserError

Run = Callable[[IRModule, Target], IRModule]
Watch = Callable[[str, IRModule, IRModule, float], None]
"""Called behind every pass with its name, the module before and after, and seconds."""


@dataclass(frozen=True, slots=True)
class ModulePass:
    """One rewrite of a module.

    Attributes:
        name: the label in dumps, times and errors.
        run: the rewrite; it must not change the module that it is given.
    """

    name: str
    run: Run

    def __call__(self, mod: IRModule, target: Target) -> IRModule:
        return self.run(mod, target)


def module_pass(run: Callable[[IRModule], IRModule]) -> ModulePass:
    """A pass of a function that does not look at the target."""
    return ModulePass(run.__name__, lambda mod, target: run(mod))


AnyPass = ModulePass | Pass | Pipeline


class ModulePipeline:
    """Passes in order.

    Args:
        passes: module passes, and TIR passes, which are applied to every PrimFunc.
    """

    def __init__(self, *passes: AnyPass) -> None:
        self.passes = tuple([p if isinstance(p, ModulePass) else _on_functions(p) for p in passes])

    def __call__(self, mod: IRModule, target: Target, watch: Watch | None = None) -> IRModule:
        """The module after all passes."""
        for p in self.passes:
            start = time.perf_counter()
            out = p(mod, target)
            if watch is not None:
                watch(p.name, mod, out, time.perf_counter() - start)
            mod = out
        return mod

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes, in order."""
        return tuple([p.name for p in self.passes])

    def without(self, *names: str) -> ModulePipeline:
        """The pipeline minus some passes.  UserError if there is no such pass."""
        self._check(names)
        return ModulePipeline(*[p for p in self.passes if p.name not in names])

    def insert_after(self, name: str, *new: AnyPass) -> ModulePipeline:
        """The pipeline with passes behind the one called `name`.  UserError if there is no such pass."""
        self._check((name,))
        at = self.names.index(name) + 1
        return ModulePipeline(*self.passes[:at], *new, *self.passes[at:])

    def _check(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self.names:
                raise UserError(f"the pipeline has no pass {name!r}; it has {', '.join(self.names)}")


def _on_functions(p: Pass | Pipeline) -> ModulePass:
    def run(mod: IRModule, target: Target) -> IRModule:
        return mod.update({name: p(f, target) for name, f in mod.items() if isinstance(f, PrimFunc)})

    return ModulePass(p.name if isinstance(p, Pass) else "lower", run)
