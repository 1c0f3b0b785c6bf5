"""Compile programs, models and records to functions in this process, deterministically.

`compile` applies the records of a log and chooses a schedule for uncovered functions; `build` takes programs as they are.  Neither
searches: equal inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import overload

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.build import build as build_any
from tunesmith.driver.compile_model import compile_model
from tunesmith.driver.compile_records import compile_records
from tunesmith.driver.compiled import CompiledModule, CompiledProgram
from tunesmith.driver.workloads import WorkloadLike, find_module
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.offload.external_codegen import EXTERNAL_CODEGENS, Codegen
from tunesmith.graph.passes.to_mixed_precision import Precision, with_precision
from tunesmith.graph.tuning.apply_records import ApplyRecords, Coverage
from tunesmith.ir.analysis.out_of_bounds import check_out_of_bounds
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.remarks import checked
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import ModulePass, Pipeline
from tunesmith.lower.pipelines import CPU_CHECKED
from tunesmith.measure.records.database import Database
from tunesmith.ops.gather import reported_indices
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.schedule.independence import check_marked_loops
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.search.analytic_schedule import untuned_choice
from tunesmith.support.arguments import as_factor, refuse_keywords
from tunesmith.support.errors import BuildError, UserError

Records = Database | str | PathLike[str] | Sequence[str | PathLike[str]]
"""A log, several logs, or a loaded database."""


@overload
def compile(
    mod: PrimFunc | Schedule | Sequence[Tensor],
    target: str | Target | None = None,
    records: Records | None = None,
    strict: bool = False,
    *,
    bounds_check: bool = False,
    error_growth: float = ERROR_GROWTH,
    lowering: Pipeline | None = None,
) -> CompiledModule: ...


@overload
def compile(
    mod: WorkloadLike | Schedule,
    target: str | Target | None = None,
    records: Records | None = None,
    strict: bool = False,
    executor: str | None = None,
    offload: Sequence[Codegen] | None = None,
    name: str | None = None,
    bounds_check: bool = False,
    precision: Precision | None = None,
    error_growth: float = ERROR_GROWTH,
    place: Mapping[str, str | Target] | None = None,
    pipeline: Pipeline | None = None,
    lowering: Pipeline | None = None,
) -> CompiledProgram: ...


@refuse_keywords(log="records=...")
def compile(
    mod: WorkloadLike | Schedule,
    target: str | Target | None = None,
    records: Records | None = None,
    strict: bool = False,
    executor: str | None = None,
    offload: Sequence[Codegen] | None = None,
    name: str | None = None,
    bounds_check: bool = False,
    precision: Precision | None = None,
    error_growth: float = ERROR_GROWTH,
    place: Mapping[str, str | Target] | None = None,
    pipeline: Pipeline | None = None,
    lowering: Pipeline | None = None,
) -> CompiledProgram:
    """Compile functions, or a model, with the best schedules in a log.

    Args:
        mod: a model, which is a module with the graph function `main` (`from_torch`, `from_onnx`), or a PrimFunc, a module of them, an
            operator's text (`"matmul(m=512,n=512,k=512)"`), `"path.py:function"`, a list of tensors (inputs and then outputs), or a
            Schedule.
        target: target of the code; by default that of the `with target:` around, else this machine.  A GPU is first accessed when a
            function is called.
        records: the log, or a list of logs.
            A function without a usable record (applied, verified, lowered and built) gets the schedule that the analytic model predicts
            to be fastest, reported in `coverage`; on GPUs a default schedule.  Programs that are scheduled already are compiled as they
            are, as `build` compiles all programs.
        strict: refuse functions without a record; unreadable lines of a log are a warning.
        executor: for a model: "graph" for static shapes, "vm" for all; by default the first that supports it.  "aot", for static
            shapes, emits one C function for the whole model.
        offload: for a model: external code generators of the operators that they support, such as ("blas",); by default those of
            `target.libs`.
        name: for a model with executor="aot": prefix of its C function names; by default "model".
        bounds_check: check every index at run time, on CPUs: an access out of bounds raises RunError, with the buffer, the index and the
            extent, and is not executed.  The same holds for an out-of-range index of a model, which is otherwise clamped (reads) or
            skipped (writes).  The code is serial and slow.
        precision: for a model: "f32" (the default), "bf16" or "bf16x3", or policies by the names of weights, as in
            `{"*": "bf16", "classifier.*": "f32"}`.  See `with_precision`, and docs/precision.md.
        error_growth: largest rounding errors of schedules, relative to direct sums of the same type.  1 excludes algorithms that compute
            with fewer products and larger errors (Winograd, Strassen); slower records are used in place of theirs.
        place: for a model: targets of functions by patterns of their names, `{"fused_softmax*": "llvm"}`; tensors are copied where host
            and device meet.  Functions that a device does not support run on the host, as the coverage says.
        pipeline: for a model: passes to functions without schedules, in place of `tunesmith.passes.GRAPH`.  A pass that schedules, such as
            `ApplyRecords`, may be part of it.
        lowering: passes from scheduled functions to the input of code generation, in place of those of the target
            (`tunesmith.passes.CPU`, `GPU`).  Records are measured with those of the target.  `PassContext` steers both.
    Returns:
        A CompiledModel for a model, a CompiledModule for functions; both have the calls of `Compiled` and the results of the lookup.
    Raises:
        RecordError: the log cannot be read; or, if strict, functions have no usable record: all are listed.
        BuildError: a function cannot be compiled for the target.
        ScriptError: an index is certainly out of bounds.
        UserError: `mod` cannot be compiled.
    """
    target = as_target(target)
    check_kind(target)
    _check_pipelines(pipeline, lowering, bounds_check)
    growth = as_factor("error_growth", error_growth, "it is a factor of the errors of direct sums, at least 1")
    chosen = partial(untuned_choice, error_growth=growth)
    libs = _libraries(target) if offload is None else offload
    module = _module(mod)
    if precision is not None:
        module = with_precision(module, precision)
    if isinstance(module.get("main"), GraphFunc):
        if not backend_of(target).models:
            raise BuildError(f"the backend of {target.kind} compiles no models: compile its functions one by one, or take Target.detect()")
        placed = _places(place)
        if name is not None and executor != "aot":
            raise UserError(f'name={name!r} requires executor="aot", whose functions other languages call')
        if bounds_check and executor == "aot":
            raise UserError('bounds_check=True raises errors in Python, and executor="aot" makes a C function: take executor="graph"')
        database = None if records is None else open_records(records)
        make = partial(
            compile_model,
            module,
            target,
            database,
            strict,
            executor,
            offload=libs,
            name=name or "model",
            error_growth=growth,
            place=placed,
        )
        if pipeline is not None:
            make = partial(make, pipeline=pipeline)
        if lowering is not None:
            make = partial(make, lowering=lowering)
        if not bounds_check:
            return make(untuned=chosen)
        if backend_of(target).device or placed:
            raise BuildError("bounds_check=True: checks are generated for CPUs only. Compile the model for this machine, without place=")
        with reported_indices():
            return make(lowering=CPU_CHECKED, untuned=_unscheduled)
    if executor is not None or offload or name is not None or place or pipeline is not None:
        options = {"place": place, "executor": executor, "offload": offload, "name": name}
        given = next((f"{key}={value!r}" for key, value in options.items() if value), "pipeline=")
        raise UserError(f"{given} is for models; this module has no graph function `main`")
    found = _remarks(module)
    if not isinstance(mod, Schedule):
        _check_marks(module)
    if strict and records is None:
        raise UserError("strict=True refuses functions without a record, and no records were given: pass records=")
    if isinstance(mod, Schedule) or (bounds_check and records is None):
        return _load(_artifact(module, target, bounds_check, lowering), target, (), found, module)
    _functions(module)
    untuned = _unscheduled if bounds_check else chosen
    artifact, applied = compile_records(
        ApplyRecords(Database() if records is None else open_records(records), target, strict, untuned, growth),
        module,
        target,
        lambda m: _artifact(m, target, bounds_check, lowering),
        lambda f: build_any([f], target, packing="both", bounds_check=bounds_check, lowering=lowering),
    )
    return _load(artifact, target, () if records is None else applied.coverage, found, module)


def build(
    func: PrimFunc | IRModule | Schedule,
    target: str | Target | None = None,
    *,
    bounds_check: bool = False,
    lowering: Pipeline | None = None,
) -> CompiledModule:
    """Compile programs exactly as they are, for example schedules written by hand.

    Args:
        func: a function, a module or a Schedule.
        target: target of the code; by default that of the `with target:` around, else this machine.
        bounds_check: check every index at run time: see `compile`.
        lowering: passes in place of those of the target: see `compile`.
    Raises:
        BuildError: a function cannot be compiled for the target.
        ScriptError: an index is certainly out of bounds.
        ScheduleError: a loop that the program itself marks parallel or vectorized carries a dependence.
        UserError: `func` is not a program.
    """
    if not isinstance(func, (PrimFunc, IRModule, Schedule)):
        raise UserError(f"build takes a PrimFunc, an IRModule or a Schedule, not a {type(func).__name__}. compile takes more")
    target = as_target(target)
    check_kind(target)
    _check_pipelines(None, lowering, bounds_check)
    module = _module(func)
    found = _remarks(module)
    if not isinstance(func, Schedule):
        _check_marks(module)
    return _load(_artifact(module, target, bounds_check, lowering), target, (), found, module)


def as_target(target: str | Target | None) -> Target:
    """Parse a target; None is that of the `with` statement around, else this machine, and a device kind alone is its first device."""
    if target is None:
        return Target.current() or Target.detect()
    if isinstance(target, Target):
        return target
    named = Target(target)
    return backend_of(named).detect(named.base) if target == named.base else named


def _places(place: Mapping[str, str | Target] | None) -> dict[str, Target]:
    """The targets of `place=`.  UserError for anything but a mapping from patterns to targets."""
    if place is not None and not isinstance(place, Mapping):
        raise UserError(f'place={place!r:.200}: it maps patterns of function names to targets, such as {{"op_softmax*": "llvm"}}')
    for pattern in place or ():
        if not isinstance(pattern, str):
            raise UserError(f"place={place!r:.200}: {pattern!r:.80} is no pattern of function names")
    return {pattern: as_target(t) for pattern, t in (place or {}).items()}


def _libraries(target: Target) -> tuple[str, ...]:
    """The external code generators that the target names.  UserError if there is no such one."""
    for name in target.libs:
        if name not in EXTERNAL_CODEGENS:
            known = ", ".join(EXTERNAL_CODEGENS)
            raise UserError(f"the target has libs={name}, for which there is no external code generator. There are: {known}")
    return target.libs


def open_records(records: Records) -> Database:
    """Load the database of one or several logs.

    Raises:
        RecordError: the file does not exist, or the argument is not a path.
    """
    return records if isinstance(records, Database) else Database.from_log(records)


def _check_pipelines(pipeline: object, lowering: object, bounds_check: bool) -> None:
    """Raise UserError for what is no pipeline, and for passes that bounds_check=True replaces."""
    for key, given in (("pipeline", pipeline), ("lowering", lowering)):
        if given is not None and not isinstance(given, Pipeline):
            raise UserError(f"{key}={given!r:.200}: give a tunesmith.Pipeline, such as tunesmith.passes.GRAPH + my_pass")
    module_passes = [p.name for p in lowering.passes if isinstance(p, ModulePass)] if isinstance(lowering, Pipeline) else []
    if module_passes:
        raise UserError(
            f"lowering= has passes of whole modules ({module_passes[0]}): those of models are the argument pipeline=, and lowering= takes "
            "passes of functions, such as tunesmith.passes.CPU"
        )
    if isinstance(pipeline, Pipeline) and "legalise" not in pipeline.names and "flatten_buffers" in pipeline.names:
        raise UserError(
            "pipeline= has the passes of scheduled functions (flatten_buffers): those are the argument lowering=, and pipeline= takes the "
            "passes of a model, such as tunesmith.passes.GRAPH"
        )
    if bounds_check and lowering is not None:
        raise UserError("bounds_check=True has passes of its own: without it, lowering= replaces the passes")


def _unscheduled(func: PrimFunc, target: Target) -> PrimFunc:
    """The function itself: code with index checks is serial, and a schedule's register tiles may have dynamic extents there."""
    return func


def _module(mod: WorkloadLike | Schedule) -> IRModule:
    return mod.mod if isinstance(mod, Schedule) else find_module(mod)


def _remarks(module: IRModule) -> tuple[str, ...]:
    """The remarks about the functions of a module.  Raises ScriptError for invalid programs."""
    return tuple([f"{f.name}: {r}" for f in module.values() if isinstance(f, PrimFunc) for r in checked(f)])


def _check_marks(module: IRModule) -> None:
    for f in module.values():
        if isinstance(f, PrimFunc):
            check_marked_loops(f)


def _load(artifact: Artifact, target: Target, coverage: tuple[Coverage, ...], found: tuple[str, ...], source: IRModule) -> CompiledModule:
    functions = [f for f in source.values() if isinstance(f, PrimFunc)]
    module: CompiledModule = backend_of(target).part("load")(artifact, coverage, found, functions)
    return module


def _artifact(module: IRModule, target: Target, bounds_check: bool, lowering: Pipeline | None = None) -> Artifact:
    functions = _functions(module)
    for f in functions:
        check_out_of_bounds(f)
    return build_any(functions, target, packing="both", bounds_check=bounds_check, lowering=lowering)


def _functions(module: IRModule) -> list[PrimFunc]:
    """The functions of a module; BuildError if there is none."""
    functions = [f for f in module.values() if isinstance(f, PrimFunc)]
    if not functions and len(module):
        raise BuildError(
            "the module is a model, and has no PrimFunc that could be built as it is. Take tunesmith.compile, which lowers its operators, "
            "with the records of tunesmith.tune"
        )
    if not functions:
        raise BuildError("there is nothing to compile: the module has no PrimFunc")
    return functions
