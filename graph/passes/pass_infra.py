"""Module passes and pipelines of them: the compiler from graph functions to scheduled TIR functions, as a list.

A module pass takes a module and the target.  TIR passes and pipelines (`lower.pass_infra`) may stand in the same list: they are applied
to every PrimFunc.  Passes are ordinary values, which users insert, drop and reorder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pass, Pipeline
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


class NamedPass(Protocol):
    """Whatever is called as a module pass is and has a name, such as `ApplyRecords`."""

    @property
    def name(self) -> str: ...
    def __call__(self, mod: IRModule, target: Target, /) -> IRModule: ...


AnyPass = ModulePass | Pass | Pipeline | NamedPass


class ModulePipeline:
    """Passes in order.

    Args:
        passes: module passes, and TIR passes, which are applied to every PrimFunc.
    Raises:
        UserError: one is no pass.
    """

    def __init__(self, *passes: AnyPass) -> None:
        self.passes = tuple([_module_pass(p) for p in passes])

    def __call__(self, mod: IRModule, target: Target, watch: Watch | None = None) -> IRModule:
        """The module after all passes.  UserError if one of them returns anything else."""
        for p in self.passes:
            start = time.perf_counter()
            out = p(mod, target)
            if not isinstance(out, IRModule):
                raise UserError(f"the pass {p.name!r} returned {_shown(out)}: a module pass returns the IRModule that it makes")
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


def _module_pass(p: AnyPass) -> ModulePass:
    if isinstance(p, ModulePass):
        return p
    if isinstance(p, (Pass, Pipeline)):
        return _on_functions(p)
    name = getattr(p, "name", None)
    if not callable(p) or not isinstance(name, str):
        raise UserError(
            f"{p!r} is no pass: a module pass is ModulePass(name, run), with run(mod, target), or module_pass(run), with run(mod); a pass "
            "of functions is what lower.pass_infra.function_pass makes"
        )
    return ModulePass(name, p)


def _on_functions(p: Pass | Pipeline) -> ModulePass:
    name = p.name if isinstance(p, Pass) else "lower"

    def run(mod: IRModule, target: Target) -> IRModule:
        functions = {}
        for key, f in mod.items():
            if isinstance(f, PrimFunc):
                functions[key] = out = p(f, target)
                if not isinstance(out, PrimFunc):
                    raise UserError(
                        f"the pass {name!r} returned {_shown(out)} for {key}: a pass of functions returns the PrimFunc that it makes"
                    )
        return mod.update(functions)

    return ModulePass(name, run)


def _shown(out: object) -> str:
    return "None" if out is None else f"a {type(out).__name__}"
