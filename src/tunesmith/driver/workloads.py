"""What can be tuned, compiled, timed: an operator's text, a function in a Python file, a PrimFunc, a module, tensor expressions, a model.

Each of them becomes a `Subject`, a named function with what is known of it; a model becomes one for each of its tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.datasets.suites import expand
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.apply_records import why_plain
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir import structural
from tunesmith.ir.analysis.out_of_bounds import check_out_of_bounds
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.ops.tensor_expression import Tensor, create_prim_func
from tunesmith.ops.workload import Workload, workload
from tunesmith.search.space.rules_table import Rule, find_rules
from tunesmith.search.task import Task
from tunesmith.support import user_code
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file

POSITIVE: Range = (0.5, 1.5)
"""Values of an input that must be positive."""

WorkloadLike = str | PrimFunc | IRModule | Workload | Sequence[Tensor]
"""`"matmul(m=512,n=512,k=512)"`, `"suite:NAME"`, `"path.py:function"`, a program, a model (a module with the graph function `main`), an
operator's workload, or tensors as `create_prim_func` takes them."""


@dataclass(frozen=True)
class Subject:
    """A function with a name.

    Attributes:
        name: what people call it; for an operator its canonical text.
        func: the function, not scheduled.
        operator: the operator's workload that it is, with reference and flops, or None.
        weight: how often it is called by the model that it was extracted from.
        in_model: it was extracted from a model.
    """

    name: str
    func: PrimFunc
    operator: Workload | None = None
    weight: float = 1.0
    in_model: bool = False

    @property
    def flops(self) -> int:
        """Floating point operations as tables count them; 0 if unknown."""
        return self.operator.flops if self.operator is not None else 0

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Values of the inputs for which the usual range makes no sense."""
        return dict.fromkeys(self.operator.operator.positive, POSITIVE) if self.operator is not None else {}

    def task(self, target: Target, rules: Sequence[str | Rule] | None = None) -> Task:
        """The task of tuning it.

        Args:
            target: where it will run.
            rules: of the space, names or functions; by default those of the target.
        Raises:
            UserError: its sizes come with the call.
        """
        op = self.operator
        if any(isinstance(p, Var) for p in self.func.params):
            raise UserError(f"{self.name} cannot be tuned: {why_plain(self.func)}. Give it fixed sizes to tune it, or compile it as it is")
        return Task(
            self.name,
            self.func,
            target,
            None if op is None else op.reference,
            self.flops,
            self.weight,
            rules=None if rules is None else find_rules(rules),
            ranges=self.ranges,
        )


def find_subjects(given: WorkloadLike | Iterable[WorkloadLike]) -> list[Subject]:
    """The subjects of one workload or of several.  A module gives one for each of its functions, a model one for each of its tasks.

    Raises:
        UserError: there is none, one is of no known form, or two different programs have one name.
        ScriptError: an index of one is certainly out of bounds.
    """
    several = isinstance(given, Iterable) and not isinstance(given, (str, IRModule)) and not _are_tensors(given)
    found = [s for one in (given if several else [given]) for s in _subjects_of(one)]  # type: ignore[union-attr]
    if not found:
        raise UserError("no workload was given. Name one, for example matmul(m=512,n=512,k=512)")
    named: dict[str, Subject] = {}
    for s in found:
        first = named.setdefault(s.name, s)
        different = None if first is s else structural.difference(first.func, s.func)
        if different is not None:
            raise UserError(f"two different programs are named {s.name!r} (they differ at {different}): give one of them another name")
        if first is s:
            check_out_of_bounds(s.func)
    return list(named.values())


def find_subject(given: WorkloadLike) -> Subject:
    """The one subject of a workload.  UserError if it is none, or a module with several functions."""
    found = find_subjects(given)
    if len(found) != 1:
        what = given if isinstance(given, str) else "the module"
        raise UserError(f"one function is wanted, and {what} has {', '.join(s.name for s in found)}")
    return found[0]


def subject_of_text(text: str) -> Subject:
    """What `NAME(key=value,...)` or `path.py:function` names.

    The file is run as Python; the function is a PrimFunc, or makes one, or makes the tensors of one.

    Raises:
        UserError: the text is neither, or what it names is not there, or is a model, which has many functions.
    """
    found = _of_text(text)
    if len(found) != 1:
        raise UserError(f"one function is wanted, and {text!r} has {', '.join(s.name for s in found)}")
    return found[0]


def find_module(given: WorkloadLike | Sequence[str]) -> IRModule:
    """What is to be compiled: a model, or another module, as it is; of everything else the functions of its subjects.

    Raises:
        UserError: as `find_subjects`.
    """
    only = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
    if isinstance(only, IRModule):
        return only
    if isinstance(only, str) and names_a_file(only):
        found = _loaded(only)
        return found if isinstance(found, IRModule) else IRModule([s.func for s in _of_found(only, found)])
    return IRModule([s.func for s in find_subjects(given)])


def _of_text(text: str) -> list[Subject]:
    if not names_a_file(text):
        op = workload(text)
        return [Subject(op.text, op.func, op)]
    return _of_found(text, _loaded(text))


def _loaded(text: str) -> object:
    """What `path.py:function` names; a function that makes something is called."""
    found = load_from_file(text)
    if isinstance(found, (PrimFunc, Workload, IRModule)) or not callable(found):
        return found
    with user_code.running(text):
        return found()


def _of_found(text: str, found: Any) -> list[Subject]:
    if isinstance(found, IRModule):
        return _of_module(found, f"{text.rpartition(':')[2]}/")
    if _are_tensors(found):
        found = create_prim_func(list(found), text.rpartition(":")[2])
    if isinstance(found, Workload):
        return [Subject(found.text, found.func, found)]
    if not isinstance(found, PrimFunc):
        raise UserError(
            f"{text!r} is a {type(found).__name__}. It must be a PrimFunc or a module, or a function that returns one, or a list of tensors"
        )
    return [Subject(text, found)]


def _of_module(mod: IRModule, prefix: str = "") -> list[Subject]:
    """The functions of a module; of one with a graph function `main`, the tasks of that model."""
    if isinstance(mod.get("main"), GraphFunc):
        lowered = GRAPH(mod, Target.detect())
        tasks = extract_tasks(lowered)
        if not tasks:
            raise UserError(_why_no_tasks(lowered))
        return [Subject(prefix + t.name, t.func, weight=float(t.weight), in_model=True) for t in tasks]
    return [Subject(prefix + name, f) for name, f in mod.items() if isinstance(f, PrimFunc)]


def _why_no_tasks(mod: IRModule) -> str:
    """Why a lowered model has no function that a search knows schedules of."""
    reasons = dict.fromkeys([why_plain(f) for f in mod.values() if isinstance(f, PrimFunc)])
    if not reasons:
        return "the model has no functions, and so nothing to tune"
    sized = any(isinstance(p, Var) for f in mod.values() if isinstance(f, PrimFunc) for p in f.params)
    advice = "Import it with fixed sizes to tune it, or compile it as it is" if sized else "Compile it as it is"
    return f"nothing of the model can be tuned; of its functions, each says: {'; or: '.join(reasons)}. {advice}"


def _subjects_of(given: object) -> list[Subject]:
    if isinstance(given, str):
        return [s for text in expand(given) for s in _of_text(text)]
    if isinstance(given, Workload):
        return [Subject(given.text, given.func, given)]
    if isinstance(given, PrimFunc):
        return [Subject(given.name, given)]
    if isinstance(given, IRModule):
        return _of_module(given)
    if _are_tensors(given):
        return [Subject("main", create_prim_func(list(given)))]  # type: ignore[call-overload]
    raise UserError(
        "a workload is a text like matmul(m=512,n=512,k=512), suite:NAME or path.py:function, a PrimFunc, an IRModule, or a list of "
        f"tensors; got {type(given).__name__}: {given!r}"
    )


def _are_tensors(given: object) -> bool:
    return isinstance(given, (list, tuple)) and len(given) > 0 and all(isinstance(t, Tensor) for t in given)
