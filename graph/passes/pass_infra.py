"""Define module passes and pipelines, which compile graph functions to scheduled TIR functions.

A module pass takes a module and the target.  A pipeline may also contain TIR passes and pipelines (`lower.pass_infra`), which are applied
to every PrimFunc.  Passes are ordinary values, which users insert, remove and reorder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Protocol

from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pass, Pipeline
from tunesmith.lower.pass_options import Configurable, Option, check_parameters, name_of
from tunesmith.lower.renamed_passes import did_you_mean_pass
from tunesmith.support.errors import UserError

Watch = Callable[[str, IRModule, IRModule, float], None]
"""Callback after every pass: name of the pass, module before, module after, duration in seconds."""


@dataclass(frozen=True, slots=True)
class ModulePass(Configurable):
    """One rewrite of a module: `run(mod, target, **options)`, which must not modify its argument.

    Raises:
        UserError: a function with other parameters, or as `Configurable`.
    """

    def __post_init__(self) -> None:
        Configurable.__post_init__(self)
        check_parameters(self.run, "mod, target")

    def __call__(self, mod: IRModule, target: Target) -> IRModule:
        out: IRModule = self.run(mod, target, **dict(self.options))
        return out


def module_pass(run: Callable[..., IRModule]) -> ModulePass:
    """A module pass from a function that does not depend on the target; its keyword-only parameters are the options.

    Raises:
        UserError: the function does not take `(mod)`, or as `Configurable`.
    """

    @wraps(run)
    def without_target(mod: IRModule, target: Target, **options: Option) -> IRModule:
        return run(mod, **options)

    made = ModulePass(name_of(run), without_target)
    check_parameters(run, "mod")
    return made


class NamedPass(Protocol):
    """A callable with the signature of a module pass and a name, such as `ApplyRecords`."""

    @property
    def name(self) -> str: ...
    def __call__(self, mod: IRModule, target: Target, /) -> IRModule: ...


AnyPass = ModulePass | Pass | Pipeline | NamedPass


class ModulePipeline:
    """A sequence of passes.

    Args:
        passes: module passes, and TIR passes, which are applied to every PrimFunc.
    Raises:
        UserError: an argument is not a pass.
    """

    def __init__(self, *passes: AnyPass) -> None:
        self.passes = tuple([_module_pass(p) for p in passes])

    def __call__(self, mod: IRModule, target: Target, watch: Watch | None = None) -> IRModule:
        """Run all passes and return the resulting module.  UserError if a pass does not return an IRModule."""
        for p in self.passes:
            start = time.perf_counter()
            out = p(mod, target)
            if not isinstance(out, IRModule):
                raise UserError(f"the pass {p.name!r} returned {_shown(out)}: a module pass must return the new IRModule")
            if watch is not None:
                watch(p.name, mod, out, time.perf_counter() - start)
            mod = out
        return mod

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes, in order."""
        return tuple([p.name for p in self.passes])

    def without(self, *names: str) -> ModulePipeline:
        """The pipeline without the named passes.  UserError if a pass does not exist."""
        self._check(names)
        return ModulePipeline(*[p for p in self.passes if p.name not in names])

    def insert_after(self, name: str, *new: AnyPass) -> ModulePipeline:
        """The pipeline with passes inserted after the pass `name`.  UserError if the pass does not exist."""
        self._check((name,))
        at = self.names.index(name) + 1
        return ModulePipeline(*self.passes[:at], *new, *self.passes[at:])

    def _check(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self.names:
                raise UserError(f"the pipeline has no pass {name!r}; it has {', '.join(self.names)}.{did_you_mean_pass(name, self.names)}")


def _module_pass(p: AnyPass) -> ModulePass:
    if isinstance(p, ModulePass):
        return p
    if isinstance(p, (Pass, Pipeline)):
        return _on_functions(p)
    name = getattr(p, "name", None)
    if not callable(p) or not isinstance(name, str):
        raise UserError(
            f"{p!r} is not a pass: use ModulePass(name, run) with run(mod, target), module_pass(run) with run(mod), or, for a pass of "
            "functions, lower.pass_infra.function_pass"
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
                    raise UserError(f"the pass {name!r} returned {_shown(out)} for {key}: a pass of functions must return the new PrimFunc")
        return mod.update(functions)

    return ModulePass(name, run)


def _shown(out: object) -> str:
    return "None" if out is None else f"a {type(out).__name__}"
