"""Define passes, and pipelines of passes.

A pass is a rewrite with a name and options, its keyword-only parameters: of functions (PrimFunc -> PrimFunc), which also requires a stage
of lowering and provides one, or of modules (IRModule -> IRModule).  A pipeline is a list of passes of both kinds.  Both are values, which
users combine and edit; `PassContext` steers them from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar, overload

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expression_size import check_size
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.node import CHECK
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.lower.instrument import observed
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_options import Configurable, Option, check_parameters, name_of
from tunesmith.lower.renamed_passes import did_you_mean_pass
from tunesmith.lower.stages import STAGES, check_stage
from tunesmith.support.errors import TunesmithError, UserError
from tunesmith.support.user_code import shown


@dataclass(frozen=True, slots=True)
class Pass(Configurable):
    """One rewrite of a function, or a check of it: `run(func, target, **options)`.

    Attributes:
        requires: the stage the function must be in.
        provides: the stage it is in afterwards; a pass that leads to a later stage is never left out.
        adds_parameters: whether it adds parameters, which the entry points of the code generator pass.
    Raises:
        UserError: no such stage, a result in an earlier stage, a function with other parameters, or as `Configurable`.
    """

    requires: str
    provides: str
    adds_parameters: bool = field(default=False, kw_only=True)

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
        if self.provides != self.requires and not self.needed_by:
            object.__setattr__(self, "needed_by", f"passes and code generators that need stage {self.provides}")

    def __call__(self, func: PrimFunc, target: Target) -> PrimFunc:
        """The rewritten function.

        Raises:
            UserError: the result is no PrimFunc, or has another name or other parameters.  Buffers that are parameters may change their
                shapes and types, as by `flatten_buffers`, but not their names and sizes in bytes.
        """
        out = _called(self, func, target)
        if not isinstance(out, PrimFunc):
            raise UserError(f"the pass {self.name!r} returned {_shown(out)} for {func.name}: a pass returns the PrimFunc that it makes")
        if out is not func:
            _check_interface(self.name, func, out, self.adds_parameters)
        return out


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
        out = _called(self, mod, target)
        if not isinstance(out, IRModule):
            raise UserError(f"the pass {self.name!r} returned {_shown(out)}: a module pass must return the new IRModule")
        return out


def function_pass(
    requires: str, provides: str | None = None, *, level: int = 1, needed_by: str = "", adds_parameters: bool = False
) -> Callable[[Callable[..., PrimFunc]], Pass]:
    """Make a function a pass of the same name; without `provides` the stage stays.

    Keyword-only parameters of the function are the options of the pass, and `level` and `needed_by` say whether it may be left out: see
    `Configurable`.  `adds_parameters` is for a pass whose code generator passes more buffers than callers do.

    Raises:
        UserError: as `Pass`, or an object without a name.
    """
    if callable(requires):
        raise UserError(f"function_pass needs a stage: write @function_pass(requires={STAGES[0]!r}), one of {', '.join(STAGES)}")

    def wrap(f: Callable[..., PrimFunc]) -> Pass:
        stages = requires, requires if provides is None else provides
        return Pass(name_of(f), f, *stages, level=level, needed_by=needed_by, adds_parameters=adds_parameters)

    return wrap


@overload
def module_pass(run: Callable[..., IRModule], *, level: int = 1, needed_by: str = "") -> ModulePass: ...
@overload
def module_pass(*, level: int = 1, needed_by: str = "") -> Callable[[Callable[..., IRModule]], ModulePass]: ...


def module_pass(
    run: Callable[..., IRModule] | None = None, *, level: int = 1, needed_by: str = ""
) -> ModulePass | Callable[[Callable[..., IRModule]], ModulePass]:
    """A module pass from a function that does not depend on the target; its keyword-only parameters are the options.

    Args:
        run: the function; without it the result is a decorator.
        level: see `Configurable`.
        needed_by: see `Configurable`.
    Raises:
        UserError: the function does not take `(mod)`, or as `Configurable`.
    """

    def wrap(f: Callable[..., IRModule]) -> ModulePass:
        @wraps(f)
        def without_target(mod: IRModule, target: Target, **options: Option) -> IRModule:
            return f(mod, **options)

        made = ModulePass(name_of(f), without_target, level=level, needed_by=needed_by)
        check_parameters(f, "mod")
        return made

    return wrap if run is None else wrap(run)


class NamedPass(Protocol):
    """A callable with the signature of a module pass and a name, such as `ApplyRecords`."""

    @property
    def name(self) -> str: ...
    def __call__(self, mod: IRModule, target: Target, /) -> IRModule: ...


IR = TypeVar("IR", PrimFunc, IRModule)


class Pipeline:
    """Passes in order.  Composition checks that each pass of functions finds the stage it needs.

    A pipeline is a value: edits return new ones, `a + b` runs both, and equal passes make equal pipelines.  Called with a module, it
    applies passes of functions to each PrimFunc.

    Args:
        passes: passes of functions or modules, `NamedPass` objects, and pipelines, whose passes are inserted.
    Raises:
        UserError: an argument is no pass, or needs a later stage than the passes before it provide.
    """

    __slots__ = ("passes", "stages")

    passes: tuple[Pass | ModulePass, ...]
    stages: tuple[str, ...]
    """The stage of functions after each pass."""

    def __init__(self, *passes: AnyPass) -> None:
        found = [p for given in passes for p in _passes_of(given)]
        stage = next((p.requires for p in found if isinstance(p, Pass)), STAGES[0])
        stages = []
        for p in found:
            if isinstance(p, Pass):
                if STAGES.index(p.requires) > STAGES.index(stage):
                    raise UserError(
                        f"the pass {p.name!r} needs stage {p.requires}, but the pipeline is at {stage} there: move it behind a pass that "
                        f"provides {p.requires}"
                    )
                stage = max(stage, p.provides, key=STAGES.index)
            stages.append(stage)
        self.passes, self.stages = tuple(found), tuple(stages)

    def __call__(self, program: IR, target: Target) -> IR:
        """The program after all passes that the current `PassContext` does not leave out.

        Args:
            program: a function, if all passes are passes of functions, or a module.
            target: what is compiled for.
        Raises:
            ScriptError: an expression is too deep or too large for them.
            UserError: the program is something else, one of the passes returns something else, or the context does not fit the pipeline.
            InstrumentError: an instrument of the context fails.
        """
        if not isinstance(target, Target):
            raise UserError(f"a pipeline takes a program and a Target, not {target!r:.100}: make one with Target(...)")
        context = PassContext.current()
        chosen = [(context.configured(p), stage) for p, stage in zip(self.passes, self.stages, strict=False) if context.runs(p)]
        self._check_program(program)
        is_checked = False
        for p, stage in chosen:
            if isinstance(p, Pass) and not is_checked:
                _check_sizes(program)
                is_checked = True
            program = observed(context.instruments, p.name, program, _Run(p, program, target, stage), not p.needed_by)
        return program

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes, in order."""
        return tuple([p.name for p in self.passes])

    def without(self, *names: str, which: int | None = None) -> Pipeline:
        """The pipeline without the named passes, at every position, or only at occurrence `which` of each, counted from 0 or, if negative,
        from the end.  UserError if there is no such pass."""
        gone = {at for name in names for at in self._positions(name, which)}
        return Pipeline(*[p for at, p in enumerate(self.passes) if at not in gone])

    def insert_before(self, name: str, *new: AnyPass, which: int | None = None) -> Pipeline:
        """The pipeline with passes inserted before the one called `name`; positions and errors as for `without`."""
        return self._edited(name, which, lambda p: (*new, p))

    def insert_after(self, name: str, *new: AnyPass, which: int | None = None) -> Pipeline:
        """The pipeline with passes inserted after the one called `name`; positions and errors as for `without`."""
        return self._edited(name, which, lambda p: (p, *new))

    def replace(self, name: str, *new: AnyPass, which: int | None = None) -> Pipeline:
        """The pipeline with passes in place of the one called `name`; positions and errors as for `without`."""
        return self._edited(name, which, lambda p: new)

    def __add__(self, other: AnyPass) -> Pipeline:
        return Pipeline(self, other)

    def __radd__(self, other: AnyPass) -> Pipeline:
        return Pipeline(other, self)

    def __iter__(self) -> Iterator[Pass | ModulePass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    def __eq__(self, other: object) -> bool:
        return self.passes == other.passes if isinstance(other, Pipeline) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return "".join(["Pipeline(\n", *[f"    {p},\n" for p in self.passes], ")"]) if self.passes else "Pipeline()"

    def _edited(self, name: str, which: int | None, made: Callable[[AnyPass], tuple[AnyPass, ...]]) -> Pipeline:
        at = self._positions(name, which)
        return Pipeline(*[new for i, p in enumerate(self.passes) for new in (made(p) if i in at else (p,))])

    def _positions(self, name: str, which: int | None) -> list[int]:
        """The positions of the passes called `name`, or of one of them."""
        found = [at for at, known in enumerate(self.names) if known == name]
        if not found:
            known = list(dict.fromkeys(self.names))
            raise UserError(f"the pipeline has no pass {name!r}; it has {', '.join(known) or 'none'}.{did_you_mean_pass(name, known)}")
        if which is None:
            return found
        if isinstance(which, bool) or not isinstance(which, int) or not -len(found) <= which < len(found):
            raise UserError(f"which={which!r:.60}: the pipeline has the pass {name!r} {len(found)} time(s), numbered from 0")
        return [found[which]]

    def _check_program(self, program: object) -> None:
        if isinstance(program, PrimFunc):
            other = next((p for p in self.passes if not isinstance(p, Pass)), None)
            if other is not None:
                raise UserError(
                    f"the pass {other.name!r} takes a module, and the pipeline got the function {program.name}: IRModule([func])"
                )
        elif not isinstance(program, IRModule):
            raise UserError(f"a pipeline takes a PrimFunc or an IRModule, not {shown(program)}")


AnyPass = Pass | ModulePass | Pipeline | NamedPass


@dataclass(frozen=True, slots=True)
class _Run:
    """A call of a pass in a pipeline, without arguments."""

    p: Pass | ModulePass
    program: Any
    target: Target
    stage: str

    def __call__(self) -> Any:
        p, program = self.p, self.program
        if isinstance(p, ModulePass):
            return p(program, self.target)
        if isinstance(program, PrimFunc):
            return self._function(p, program)
        changed = {name: self._function(p, f) for name, f in program.items() if isinstance(f, PrimFunc)}
        return program.update(changed) if any(f is not program[name] for name, f in changed.items()) else program

    def _function(self, p: Pass, func: PrimFunc) -> PrimFunc:
        out = p(func, self.target)
        if CHECK:
            check_stage(out, self.stage, p.name)
        return out


def _called(p: Pass | ModulePass, program: PrimFunc | IRModule, target: Target) -> Any:
    """What the function of a pass returns; its exceptions get a note with the name of the pass."""
    try:
        return p.run(program, target, **dict(p.options))
    except Exception as error:
        if not isinstance(error, TunesmithError):
            error.add_note(f"in the pass {p.name!r}")
        raise


def _check_interface(name: str, func: PrimFunc, out: PrimFunc, adds_parameters: bool) -> None:
    """UserError if a pass changed what callers of a function rely on, or its result has no body."""
    if out.name != func.name:
        raise UserError(f"the pass {name!r} renamed {func.name} to {out.name!r:.60}: a pass keeps the name, which callers use")
    if not isinstance(out.body, Stmt):
        raise UserError(f"the pass {name!r} returned {func.name} with {_shown(out.body)} as its body: the body is a statement")
    if out.params is func.params:
        return
    given = out.params
    if adds_parameters:
        given = tuple([p for p in given if any(_same(q, p) for q in func.params)])
    if not isinstance(given, tuple) or len(given) != len(func.params) or not all(map(_same, func.params, given)):
        before, after = [f"({', '.join([repr(p) for p in f.params])})" for f in (func, out)]
        raise UserError(
            f"the pass {name!r} changed the parameters of {func.name} from {before} to {after:.400}: a pass keeps them in order, because "
            "callers give arguments by position. Allocate other buffers in the function"
        )


def _same(before: Buffer | Var, after: object) -> bool:
    """Whether arguments for one parameter are good for another."""
    if not isinstance(before, Buffer) or not isinstance(after, Buffer):
        return before is after
    return before is after or (before.name == after.name and before.scope == after.scope and before.nbytes == after.nbytes)


def _check_sizes(program: PrimFunc | IRModule) -> None:
    """ScriptError if an expression of a function is too deep or too large for passes."""
    for func in [program] if isinstance(program, PrimFunc) else program.values():
        if isinstance(func, PrimFunc):
            _check_function(func)


def _check_function(func: PrimFunc) -> None:
    stack: list[Stmt] = [func.body]
    while stack:
        n = stack.pop()
        if type(n) is BufferStore:
            check_size(n.value, f"{func.name}: the value stored to {n.buffer.name}")
        else:
            n.each_child(lambda k: stack.append(k) if isinstance(k, Stmt) else None)


def _passes_of(given: Any) -> tuple[Pass | ModulePass, ...]:
    if isinstance(given, Pipeline):
        return given.passes
    if isinstance(given, (Pass, ModulePass)):
        return (given,)
    name = getattr(given, "name", None)
    if isinstance(given, type) or not callable(given) or not isinstance(name, str):
        raise UserError(
            f"{given!r:.200} is not a pass: make one of a function with module_pass or function_pass, or use ModulePass(name, run) with "
            "run(mod, target)"
        )
    return (ModulePass(name, given),)


def _shown(out: object) -> str:
    return "None" if out is None else f"a {type(out).__name__}"
