"""Define the entries of a benchmark: operators of the library, own functions and whole models, with inputs and expected outputs.

numpy computes the expected outputs of an operator.  Those of other workloads are computed by the code that is compiled without records.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tunesmith.codegen.params import param_specs
from tunesmith.driver.bench.setting import Data, Setting
from tunesmith.driver.compile import compile
from tunesmith.driver.compile_model import CompiledModel
from tunesmith.driver.compile_records import UnusedLogWarning
from tunesmith.driver.compiled import CompiledModule
from tunesmith.driver.model_check.check_model import can_check
from tunesmith.driver.workloads import NoFunctionsError, Subject, WorkloadLike, find_model, find_subjects, is_onnx_file, listed
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.measure.baselines.model_call import arrays
from tunesmith.measure.evaluator.argument_data import ArgumentTable, make_inputs, poison, run_baseline
from tunesmith.measure.evaluator.example_inputs import example_inputs
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.measure.records.database import Database
from tunesmith.support.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A row group of the benchmark: one function, or one model.

    Attributes:
        name: display name; for an operator its canonical text.
        subjects: the function; for a model the functions that can be tuned.
        model: the model; None for a function.
        onnx: file of the model, or empty.
    """

    name: str
    subjects: tuple[Subject, ...]
    model: IRModule | None = None
    onnx: str = ""

    @property
    def flops(self) -> float:
        """Arithmetic operations of one call; 0 if they are not known."""
        return sum([s.flops * s.weight for s in self.subjects])

    @property
    def operator(self) -> str:
        """Canonical text of an operator; empty for other workloads."""
        found = self.subjects[0].operator if self.model is None else None
        return "" if found is None else found.text

    def save(self, folder: Path, name: str, seed: int) -> Setting:
        """Write inputs and expected outputs to files of this name in a folder, for all systems.

        Raises:
            BuildError: a program cannot be compiled for this machine.
        """
        functions = tuple([(s.func, s.weight) for s in self.subjects])
        data = self._function_data(seed) if self.model is None else _model_data(self.model)
        return data.save(folder, name, functions, self.operator, self.onnx)

    def with_code(self, setting: Setting, target: Target, database: Database) -> Setting:
        """The setting with the code that the database gives, or without a record the schedule that the analytic model chooses.

        Raises:
            BuildError: it cannot be compiled for the target.
        """
        if self.model is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnusedLogWarning)  # the table says which workloads have no record
                module: CompiledModule = compile(self.subjects[0].func, target, database)
            return replace(setting, code=module.artifact.code(), note=_schedule_note(module.coverage))
        program = compile(self.model, target, database)
        assert isinstance(program, CompiledModel)
        file = program.export_library(Path(setting.inputs).with_suffix(".so"))
        used = sum(c.status == "used" for c in program.coverage)
        return replace(setting, exported=str(file), note=f"records of {used} of {len(program.coverage)} functions")

    def _function_data(self, seed: int) -> Data:
        """Inputs and expected outputs of a function."""
        (subject,) = self.subjects
        params = param_specs(subject.func)
        if subject.operator is not None:
            inputs = subject.operator.random_inputs(seed)
            reference = subject.operator.reference(inputs)
            return Data(inputs, reference, poison(params, reference))
        inputs = make_inputs(params, seed, subject.ranges)
        table = ArgumentTable(params, inputs)
        module: CompiledModule = compile(subject.func, Target.detect())
        call = load_call(module.artifact.code(), table.arguments())

        def run(values: Sequence[Array]) -> list[Array]:
            table.fill(values)
            call()
            return [np.array(x) for x in table.outputs()]

        before, after = run_baseline(params, seed, run)
        poisoned = poison(params, after)
        return Data(inputs, after, before, not all(map(_equal, before, poisoned)))


def find_entries(workloads: WorkloadLike | Iterable[WorkloadLike]) -> list[Entry]:
    """The entries of one or several workloads.

    Raises:
        UserError: as `find_subjects`; or a workload has dynamic shapes.
    """
    found: dict[str, Entry] = {}
    models = 0
    for given in listed(workloads):
        models += isinstance(given, IRModule)
        for entry in _entries_of(given, f"model {models}" if models > 1 else "model"):
            first = found.setdefault(entry.name, entry)
            if first is not entry and not _same(first, entry):
                raise UserError(f"two different workloads are named {entry.name!r}: give one of them another name")
    if not found:
        raise UserError("no workload was given. Name one, for example matmul(m=512,n=512,k=512)")
    return list(found.values())


def _entries_of(given: WorkloadLike, unnamed: str) -> list[Entry]:
    """The entries of one workload; a model that is an object has the name `unnamed`."""
    model = find_model(given)
    if model is not None:
        name = given if isinstance(given, str) else unnamed
        if not can_check(model):
            raise UserError(f"{name} has dynamic shapes, for which there is nothing to time: bind its sizes (graph.passes.bind_sizes)")
        try:
            subjects = find_subjects(model)
        except NoFunctionsError:
            raise UserError(f"{name} has no functions, for which there is nothing to time: its outputs are inputs or constants") from None
        return [Entry(name, tuple(subjects), model, name if is_onnx_file(name) else "")]
    entries = [Entry(s.name, (s,)) for s in find_subjects(given)]
    dynamic = next((e.name for e in entries if sizes_of(e.subjects[0].func)), None)
    if dynamic is not None:
        raise UserError(f"{dynamic} has dynamic shapes, for which there is nothing to time: specialize it to the sizes to time")
    return entries


def _schedule_note(coverage: Sequence[Coverage]) -> str:
    """How a function was scheduled, for the table."""
    reasons = [c.reason for c in coverage if c.status != "used"]
    return f"untuned: {'; '.join(reasons)}" if reasons else "replayed record"


def _same(a: Entry, b: Entry) -> bool:
    """Whether two entries with one name are the same functions."""
    pairs = zip(a.subjects, b.subjects, strict=False)
    return len(a.subjects) == len(b.subjects) and all(structural.difference(s.func, t.func) is None for s, t in pairs)


def _equal(a: Array, b: Array) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _model_data(model: IRModule) -> Data:
    """Inputs and expected outputs of a model."""
    program = compile(model, Target.detect())
    assert isinstance(program, CompiledModel)
    inputs = example_inputs(program.executor.inputs)
    return Data(inputs, arrays(program(*inputs)), [])
