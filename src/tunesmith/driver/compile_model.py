"""Compile a graph function to an executable model: graph passes, schedules from a log, code generation, executor.

Nothing is searched, and random draws have a fixed seed: equal models, logs and targets give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.cpu.model import HEADERS
from tunesmith.codegen.llvm.export import export_library, export_object
from tunesmith.driver.compile_records import compile_records
from tunesmith.driver.compiled import CompiledProgram
from tunesmith.driver.roofline import Roofline, roofline
from tunesmith.graph.emit.graph_program import emit_aot_program, emit_graph_program
from tunesmith.graph.emit.vm_program import emit_vm_program
from tunesmith.graph.ir import structural
from tunesmith.graph.ir.calls import called_functions, recursive_functions
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import If, ReadSize, While, all_bindings
from tunesmith.graph.offload.external_codegen import Codegen, ExternalCodegen, compile_external, external_functions, find_codegen
from tunesmith.graph.passes.dead_code import dead_code, without_unused_functions
from tunesmith.graph.passes.inline_functions import inline_functions
from tunesmith.graph.passes.insert_transfers import insert_transfers
from tunesmith.graph.passes.pack_constants import pack_constants
from tunesmith.graph.passes.pipelines import GRAPH, offloading
from tunesmith.graph.passes.place_functions import place_functions, target_of, with_devices
from tunesmith.graph.tuning.apply_records import ApplyRecords, Coverage, Untuned
from tunesmith.graph.tuning.choose_parts import choose_parts
from tunesmith.ir.analysis.out_of_bounds import check_out_of_bounds
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import IR, Pipeline
from tunesmith.measure.calibration.cpu import machine_rates
from tunesmith.measure.records.database import Database
from tunesmith.runtime.executor.aot_executor import program_name
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.executor import Executor
from tunesmith.runtime.executor.refused_executor import RefusedExecutor
from tunesmith.runtime.model import Model
from tunesmith.runtime.model_function import ModelFunction
from tunesmith.runtime.module import load_executable
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.search.analytic_schedule import untuned_choice
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import BuildError, OtherMachineError, RecordError, RunError, UserError

EMITTERS = {"graph": emit_graph_program, "vm": emit_vm_program, "aot": emit_aot_program}
"""Emitters from a module in lowered form to a program, by kind of executor; the "aot" program is compiled with the functions."""


class CompiledModel(Model, CompiledProgram):
    """A model compiled in this process.  One for another machine can be exported; calls raise OtherMachineError.

    Attributes:
        executor: runs the executable.
        executable: program, constants and code, as data.
        coverage: the result of the record lookup for each TIR function; functions of external code generators have the status "external".
        module: the scheduled functions and the graph that calls them, for inspection and further passes.
        target: the target of the code.
    """

    def __init__(
        self,
        executable: Executable,
        coverage: tuple[Coverage, ...],
        module: IRModule,
        target: Target,
        unscheduled: IRModule,
        lowering: Pipeline,
        missing: BuildError | None = None,
    ) -> None:
        super().__init__(_executor(executable, missing))
        self.executable = executable
        self.coverage = coverage
        self.module = module
        self.target = target
        self._unscheduled = unscheduled
        self._lowering = lowering
        self._missing = missing

    def roofline(self, *arrays: object, repeats: int = 10) -> Roofline:
        """The time of each function beside the least time that this machine needs for it, with rates measured now (about 2 s).

        Functions that compute with fewer products (Winograd, Strassen) may take less than the least time of direct sums.  Products of
        bfloat16 and bytes, too: the peak is that of float32.

        Args:
            arrays: the inputs; if omitted, those that were set.
            repeats: number of timed runs.
        Raises:
            RunError: an input does not match its parameter, or the rates cannot be measured.
            UserError: `repeats` is not an integer of at least 1.
        """
        repeats = as_count("repeats", repeats)
        rates = machine_rates(self.target, refresh=True)
        return roofline(self.profile(*arrays, repeats=repeats), self._unscheduled, rates, self.target)

    @property
    def source(self) -> str:
        """The text of all functions, printed again: C, CUDA C, OpenCL C or LLVM IR, one text after the other for several targets."""
        return "\n".join([self._source(functions, target) for target, functions in _by_target(self.module, self.target)])

    def _source(self, functions: Sequence[PrimFunc], target: Target) -> str:
        backend = backend_of(target)
        if backend.device or self._lowering is backend.pipeline:
            return backend.source(functions, target)
        return _built(functions, target, "call", self._lowering).source

    def __getitem__(self, name: str) -> ModelFunction:
        """The function `main`, with the interface of the functions of modules; a model has no other.

        Raises:
            RunError: another name.
        """
        try:
            return super().__getitem__(name)
        except RunError as error:
            calls = [f for f in self.module if isinstance(self.module[f], PrimFunc)]
            one = name if name in calls else calls[0] if calls else None
            hint = f": compile one of them alone, as tunesmith.compile(model.module[{one!r}])" if calls else ""
            raise RunError(f"{error}. It calls {', '.join(calls) or 'no function'}{hint}") from None

    def export_library(self, path: str | PathLike[str], parameters: str = "inside", header: str | PathLike[str] | None = None) -> Path:
        """Write a shared library that `load_module` loads, with or without the compiler installed.

        A library for executor="aot" can also be called from C, without Python and TVM-FFI.

        Args:
            path: path of the library.
            parameters: storage of the weights: "inside" the library, or "beside" it in `PATH.params`.
            header: path of a C header to write, for executor="aot".
        Raises:
            BuildError: the library cannot be linked or written.
        """
        self._check_compiled()
        return export_library(path, [], self.executable, parameters, header)

    def export_object(self, path: str | PathLike[str], header: str | PathLike[str] | None = None) -> Path:
        """Write a relocatable object with the whole model, for executor="aot", to link statically into a C program.

        Args:
            path: path of the object.
            header: path of a C header to write.
        Raises:
            BuildError: the model was compiled for another executor, or the object cannot be linked or written.
        """
        self._check_compiled()
        return export_object(path, self.executable, header)

    def _check_compiled(self) -> None:
        """Raise BuildError if the C text of the model was not compiled, since no compiler for the target was found."""
        if self._missing is not None:
            raise BuildError(f"{self._missing}. export_c needs no compiler")

    def export_c(self, folder: str | PathLike[str], parameters: str = "beside") -> tuple[Path, ...]:
        """Write the model as C files without dependencies, for a target of kind c and executor="aot"; returns their paths.

        A program calls the functions of the header, which are those of a library that `export_library` writes.  The files have the code
        that was compiled, whatever the current `PassContext`.

        Args:
            folder: folder of the files, which are named like the model.
            parameters: storage of the weights: in a binary file "beside" the C files, or "inside" a C file, as numbers.
        Raises:
            BuildError: the model was compiled for another kind of target or another executor, or the files cannot be written.
        """
        export = backend_of(self.target).export_c
        if export is None or self.executable.kind != "aot":
            raise BuildError(
                f'C files are written for models that were compiled for a target of kind c and executor="aot", not for {self.target} and '
                f"executor={self.executable.kind!r}"
            )
        functions = [f for f in self.module.values() if isinstance(f, PrimFunc)]
        program, constants = emit_aot_program(self.module)
        name = program_name(self.executable.program)
        return export(folder, functions, program, constants, name, self.target, self._lowering, parameters)


class _LoweredOnce(Pipeline):
    """A pipeline that lowers each function once, so that files that are exported later have the code that was compiled."""

    __slots__ = ("_made",)

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._made: dict[int, tuple[object, object]] = {}

    def __call__(self, program: IR, target: Target) -> IR:
        found = self._made.get(id(program))
        if found is None:
            found = self._made[id(program)] = program, super().__call__(program, target)
        return found[1]  # type: ignore[return-value]  # made from `program`


def _executor(executable: Executable, missing: BuildError | None) -> Executor:
    """The executor; for a model of another machine, or without code, one that refuses to run it."""
    if missing is not None:
        return RefusedExecutor(executable, str(missing))
    try:
        return load_executable(executable)
    except OtherMachineError as error:
        return RefusedExecutor(executable, str(error))


def compile_model(
    mod: IRModule,
    target: Target,
    records: Database | None = None,
    strict: bool = False,
    executor: str | None = None,
    pipeline: Pipeline = GRAPH,
    untuned: Untuned = untuned_choice,
    offload: Sequence[Codegen] = (),
    lowering: Pipeline | None = None,
    name: str = "model",
    error_growth: float = ERROR_GROWTH,
    place: Mapping[str, Target] | None = None,
) -> CompiledModel:
    """Compile the graph function `main` of a module and all functions that it calls.

    Args:
        mod: the module of an importer or a builder.
        target: target of the code.
        records: database of the best schedules.
        strict: refuse functions without a record.
        executor: "graph", "vm" or "aot"; None is "graph" for static shapes without branches, else "vm".
        pipeline: passes from the module to unscheduled TIR functions.
        untuned: schedules functions without a record; by default the analytic model chooses, in 0.2 s a function on average.
        offload: external code generators in order of priority: names ("blas") or `ExternalCodegen` objects.
        lowering: passes from scheduled TIR functions to the input of code generation, on CPUs; by default those of the backend.
        name: prefix of the C function names, for executor="aot".
        error_growth: limit of the growth of rounding errors by schedules.
        place: targets of the functions whose names match a pattern, in place of `target`; see `graph.passes.place_functions`.
    Raises:
        UserError: unknown executor or external code generator, one for a target that is a device, or a name that C functions or headers
            cannot have.
        RecordError: strict, and functions have no usable record: all are listed.
        BuildError: a function cannot be compiled, or the executor does not support the graph.
        ScriptError: an index of a function is certainly out of bounds.
    """
    if executor is not None and (not isinstance(executor, str) or executor not in EMITTERS):
        raise UserError(f"there is no executor {executor!r}; there are {', '.join(EMITTERS)}")
    if executor == "aot":
        try:
            program_name({"name": name})
        except RunError as error:
            raise UserError(str(error)) from error
    check_kind(target)
    backend = backend_of(target)
    if executor == "aot" and backend.export_c is not None and name.lower() in HEADERS:
        raise UserError(f"name={name!r}: the C files of the model would have the header {name}.h, as the system does. Give it another name")
    lowering_passes = lowering or backend.pipeline
    if executor == "aot" and backend.build_aot is None:
        raise BuildError(f'executor="aot": the backend of {target.kind} compiles no models ahead of time. Use executor="graph"')
    if strict and records is None:
        raise RecordError("strict=True refuses functions without a record, and no records were given: pass records=")
    for f in mod.values():
        if isinstance(f, PrimFunc):
            check_out_of_bounds(f)
    mod = without_unused_functions(mod)
    codegens = _external_codegens(offload, target)
    passes = ApplyRecords(Database() if records is None else records, target, strict, untuned, error_growth)
    made = place_functions(offloading(codegens, pipeline)(mod, target), target, (place or {}).items())
    lowered = choose_parts(made, passes, target)
    kind = executor or _suitable(lowered)
    lowered = _inlined(lowered, target, kind)
    build_aot = backend.build_aot if kind == "aot" else None
    if build_aot is not None and backend.export_c is not None:
        lowering_passes = _LoweredOnce(lowering_passes)

    missing: BuildError | None = None

    def built(scheduled: IRModule) -> tuple[Executable, IRModule]:
        nonlocal missing
        packed = insert_transfers(with_devices(dead_code(pack_constants(scheduled, target)), target))
        program, constants = EMITTERS[kind](packed)
        groups = _by_target(packed, target)
        host = [(t, fs) for t, fs in groups if not backend_of(t).device]
        if build_aot is not None:
            program, code = build_aot([f for _, fs in host for f in fs], program, constants, name, target, lowering_passes)
            missing = code if isinstance(code, BuildError) else None
            codes = [] if isinstance(code, BuildError) else [code]
        else:
            codes = [_built(fs, t, "call", lowering).data for t, fs in host]
        devices = tuple([_built(fs, t, "call", None).data for t, fs in groups if backend_of(t).device])
        objects, libraries = compile_external(packed, target, codegens)
        data = codes[0] if codes else None
        return Executable(kind, program, constants, data, (*codes[1:], *objects), libraries, devices), packed

    def built_alone(f: PrimFunc) -> Artifact:
        return _built([f], target_of(f, target), "both", lowering)

    (executable, packed), applied = compile_records(passes, lowered, target, built, built_alone)
    return CompiledModel(executable, (*applied.coverage, *_external(packed)), packed, target, lowered, lowering_passes, missing)


def _external_codegens(offload: object, target: Target) -> list[ExternalCodegen]:
    """The external code generators of `offload=`.  UserError for anything but a list of them, and for targets that are devices."""
    if not isinstance(offload, (list, tuple)):
        raise UserError(f"offload is a list of external code generators, got {offload!r}; write offload=[{offload!r}]")
    found = [find_codegen(c) for c in offload]
    if found and backend_of(target).device:
        raise UserError(f"offload: {', '.join([c.name for c in found])} makes code for the host, and the target is {target.kind}")
    return found


def _built(functions: Sequence[PrimFunc], target: Target, packing: str, lowering: Pipeline | None) -> Artifact:
    """The code of functions; a pipeline is for CPUs."""
    backend = backend_of(target)
    if backend.device or lowering is None:
        return backend.build(functions, target, packing)
    return backend.build(functions, target, packing, lowering)


def _by_target(mod: IRModule, target: Target) -> list[tuple[Target, list[PrimFunc]]]:
    """The functions of each target."""
    found: dict[str, tuple[Target, list[PrimFunc]]] = {}
    for f in mod.values():
        if isinstance(f, PrimFunc):
            own = target_of(f, target)
            found.setdefault(own.key, (own, []))[1].append(f)
    return list(found.values())


def _inlined(mod: IRModule, target: Target, kind: str) -> IRModule:
    """For a program that uses devices, the module with one graph function.  BuildError for an executor that does not support devices."""
    devices = {d for t, _ in _by_target(mod, target) if (d := backend_of(t).device)}
    if devices and kind == "aot":
        raise BuildError(
            f'models with functions on devices ({", ".join(sorted(devices))}) run with executor="graph" or "vm": '
            'executor="aot" makes one C function of the host'
        )
    return dead_code(inline_functions(mod)) if devices else mod


def _external(mod: IRModule) -> list[Coverage]:
    return [
        Coverage(name, structural.digest(f), "external", reason=f"compiled by the external codegen {f.codegen}")
        for name, f in external_functions(mod).items()
    ]


def _suitable(mod: IRModule) -> str:
    main = mod["main"]
    if not isinstance(main, GraphFunc):
        raise BuildError("the module has no graph function `main`")
    functions = [main, *[f for name in sorted(called_functions(mod, "main")) if isinstance(f := mod[name], GraphFunc)]]
    bindings = [b for f in functions if f.codegen is None for b in all_bindings(f.body)]
    static = all(v.type.is_static for v in (*main.params, *[v for b in bindings for v in b.results]))
    simple = static and not any(isinstance(b.operation, (If, While, ReadSize)) for b in bindings) and not recursive_functions(mod)
    return "graph" if simple else "vm"
