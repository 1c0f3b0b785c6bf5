"""Convert operators' texts, functions of Python files, programs, tensors and models to subjects of tuning and compilation.

A `Subject` is a named function with its metadata; a model becomes one subject per task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tunesmith.datasets.suites import PREFIX, expand
from tunesmith.driver.script_file import load_script
from tunesmith.driver.size_buckets import Buckets, boxes_of, function_boxes, model_boxes, model_sizes
from tunesmith.driver.workload_call import call_with, split_call, split_function
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.apply_records import example_sizes
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir import structural
from tunesmith.ir.analysis.lookup_ranges import lookup_ranges
from tunesmith.ir.analysis.operation_count import operation_count
from tunesmith.ir.analysis.out_of_bounds import check_out_of_bounds
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.tuned_sizes import measured_function
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.ops.operator import OPERATORS
from tunesmith.ops.tensor_expression import Tensor, create_prim_func
from tunesmith.ops.workload import Workload, workload
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.search.space.dynamic_sizes import DynamicSizes
from tunesmith.search.space.rules_table import Rule, find_rules
from tunesmith.search.task import Task
from tunesmith.support import user_code
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file

_FROM_TORCH = "Import a torch model first: tunesmith.from_torch(model, example_inputs)"
_FORMS = "matmul(m=512,n=512,k=512), suite:NAME, path.py:function or path.onnx"

POSITIVE: Range = (0.5, 1.5)
"""Value range of inputs that must be positive."""

ONNX, EXPORTED = ".onnx", ".pt2"
"""Endings of files of models: of ONNX, and of torch.export, which a Python file of the user's loads."""

WorkloadLike = str | PrimFunc | IRModule | Workload | Sequence[Tensor]
"""`"matmul(m=512,n=512,k=512)"`, `"suite:NAME"`, `"path.py:function"`, `"path.py:model/FUNCTION"`, `"path.onnx"`,
`"path.onnx/FUNCTION"`, a program, a model (a module with the graph function `main`), an operator's workload, or tensors in the form that
`create_prim_func` takes.  A function of a file takes parameters as an operator does: `"path.py:function(m=64)"`."""


class NoFunctionsError(UserError):
    """A model has no functions to tune: its outputs are inputs or constants."""


@dataclass(frozen=True)
class Subject:
    """A named function to tune or compile.

    Attributes:
        name: display name; for an operator its canonical text.
        func: the unscheduled function.
        operator: the operator's workload, with reference and flops, or None.
        weight: number of calls in the source model.
        in_model: the function was extracted from a model.
        in_loop: only loops of the model call it.
        sizes: of a function with dynamic shapes, the sizes to tune it for; `func` is then its `measured_function` for them.
    """

    name: str
    func: PrimFunc
    operator: Workload | None = None
    weight: float = 1.0
    in_model: bool = False
    in_loop: bool = False
    sizes: DynamicSizes | None = None

    @property
    def unsized_name(self) -> str:
        """The name without the sizes that the function is tuned for."""
        return self.name if self.sizes is None else self.name.removesuffix(f"[{self.sizes.box}]")

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations of one call, for rates; 0 if there are none, or they depend on a dynamic size.

        An operator declares its count, by the convention of benchmark tables; that of any other function is derived from its program.
        """
        return self.operator.flops if self.operator is not None else operation_count(self.func) or 0

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Value ranges of inputs for which the default range is invalid: those of an operator, or of the indices of a program."""
        if self.operator is None:
            return lookup_ranges(self.func)
        indices: dict[str, Range] = {name: (0, extent) for name, extent in self.operator.index_extents.items()}
        return dict.fromkeys(self.operator.operator.positive, POSITIVE) | indices

    def task(self, target: Target, rules: Sequence[str | Rule] | None = None, error_growth: float = ERROR_GROWTH) -> Task:
        """The tuning task of the function.

        Args:
            target: target of the programs.
            rules: rules of the space, names or functions; by default those of the target.
            error_growth: see `Task`.
        Raises:
            UserError: the function has dynamic shapes.
        """
        op = self.operator
        if sizes_of(self.func):
            raise UserError(
                f"{self.name} has dynamic shapes: pass the sizes to tune it for, as in sizes={example_sizes(self.func)!r} "
                f"(--sizes '{example_sizes(self.func)}'), or compile it as it is"
            )
        return Task(
            self.name,
            self.func,
            target,
            None if op is None else op.reference,
            self.flops,
            self.weight,
            rules=None if rules is None else find_rules(rules),
            ranges=self.ranges,
            sizes=self.sizes,
            error_growth=error_growth,
            in_loop=self.in_loop,
        )


@dataclass(frozen=True)
class Loaded:
    """The object that the text of a file names: a file runs once, because a function in it may return another model each time.

    Attributes:
        text: `path.py:function` or `path.onnx`.
        found: the object, a module for an ONNX file.
    """

    text: str
    found: object


def with_files_loaded(given: WorkloadLike | Iterable[WorkloadLike]) -> list[Any]:
    """One or several workloads as a list, with a `Loaded` in place of each text that names a whole file or an object in one.

    Raises:
        UserError: a file cannot be loaded.
    """
    return [_file_loaded(one) if isinstance(one, str) and _names_a_module(one) else one for one in listed(given)]


def module_of(given: object) -> IRModule | None:
    """The module that a workload is, or that a loaded file named; None for others."""
    found = given.found if isinstance(given, Loaded) else given
    return found if isinstance(found, IRModule) else None


def _file_loaded(text: str) -> Loaded:
    if _is_model_file(text):
        return Loaded(text, _of_model_file(text))
    name = split_function(text)[0]
    return Loaded(name, _loaded(name))


def find_subjects(
    given: WorkloadLike | Iterable[WorkloadLike], buckets: Buckets | None = None, target: Target | None = None
) -> list[Subject]:
    """The subjects of one or several workloads.  A module gives one per function, a model one per task.

    Args:
        given: the workloads.
        buckets: the ranges of each dynamic size to tune for (`size_buckets.parse_sizes`): a function with dynamic shapes gives a subject
            for each of them.
        target: target of the models among them; by default this machine.
    Raises:
        UserError: no workload, a workload of unknown form, two different programs with one name, or buckets of a size that no workload has
            or that a workload excludes.
        ScriptError: an index is certainly out of bounds.
    """
    found = [s for one in listed(given) for s in _subjects_of(one, buckets, target)]
    if buckets is not None:
        _check_known(found, buckets)
        found = [s for one in found for s in (_sized(one, buckets) if sizes_of(one.func) else [one])]
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


def listed(given: WorkloadLike | Iterable[WorkloadLike]) -> list[Any]:
    """One or several workloads as a list."""
    several = isinstance(given, Iterable) and not isinstance(given, (str, IRModule)) and not _are_tensors(given)
    return list(given) if several else [given]  # type: ignore[arg-type]


def find_model(given: object) -> IRModule | None:
    """The model that a workload names or is, a module with the graph function `main`; None for functions, and for one of a model.

    Raises:
        UserError: as `find_subjects`.
    """
    if not isinstance(given, IRModule) and not (isinstance(given, str) and _names_a_module(given)):
        return None
    found = find_module(given)
    return found if isinstance(found.get("main"), GraphFunc) else None


def is_workload_text(text: str) -> bool:
    """Whether a text has the form of a workload, or is an operator's name; any other text can only be the path of a log."""
    has_form = "(" in text or names_a_file(text) or text.startswith(PREFIX) or _is_model_file(text) or _of_onnx_file(text) is not None
    return has_form or (text in OPERATORS and not Path(text).exists())


def is_onnx_file(text: str) -> bool:
    """Whether a text is the path of an ONNX file, by its suffix in upper or lower case."""
    return text.lower().endswith(ONNX)


def _is_model_file(text: str) -> bool:
    return text.lower().endswith((ONNX, EXPORTED))


def _of_onnx_file(text: str) -> tuple[str, str] | None:
    """The file and the function of `path.onnx/FUNCTION`; None for other texts."""
    match = re.fullmatch(rf"(.*{re.escape(ONNX)})/(.*)", text, re.IGNORECASE | re.DOTALL)
    return None if match is None else (match[1], match[2])


def _names_a_module(text: str) -> bool:
    return _is_model_file(text) or (names_a_file(text) and split_function(text)[1] is None)


def find_subject(given: WorkloadLike) -> Subject:
    """The subject of a single workload.  Raises UserError if there is none, or the module has several functions."""
    found = find_subjects(given)
    if len(found) != 1:
        what, one = (given, "") if isinstance(given, str) else ("the module", "")
        if isinstance(given, str) and (names_a_file(given) or is_onnx_file(given)):
            one = f". Name one, as in {given}/{found[0].name.partition('/')[2]}"
        raise UserError(f"expected one function, but {what} has {', '.join(s.name for s in found)}{one}")
    return found[0]


def subject_of_text(text: str) -> Subject:
    """The subject of `NAME(key=value,...)` or `path.py:function`.

    A file of script text is parsed.  Any other is run as Python; the function is a PrimFunc, or returns one, or returns the tensors of one.

    Raises:
        UserError: the text is neither, or names nothing, or names a model, which has many functions.
    """
    found = _of_text(text)
    if len(found) != 1:
        raise UserError(f"expected one function, but {text!r} has {', '.join(s.name for s in found)}")
    return found[0]


def find_module(given: WorkloadLike | Sequence[str]) -> IRModule:
    """The module to compile: a model or another module as it is; otherwise a module of the subjects' functions.

    Raises:
        UserError: as `find_subjects`.
    """
    only = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
    if isinstance(only, IRModule):
        return only
    if isinstance(only, str) and _is_model_file(only):
        return _of_model_file(only)
    if isinstance(only, str) and _names_a_module(only):
        found = _loaded(only)
        return found if isinstance(found, IRModule) else IRModule([s.func for s in _of_found(only, found)])
    return IRModule([s.func for s in find_subjects(given)])


def _of_text(text: str, buckets: Buckets | None = None, target: Target | None = None) -> list[Subject]:
    one = _of_onnx_file(text)
    if one is not None:
        path, name = one
        prefix = f"{Path(path).stem}/"
        return _chosen(path, _of_module(from_onnx(path), prefix, buckets, target), prefix + name)
    if _names_a_module(text):
        return _of_loaded(_file_loaded(text), buckets, target)
    if not names_a_file(text):
        op = workload(text)
        return [Subject(op.text, op.func, op)]
    model, function = split_function(text)
    found = _of_found(model, _loaded(model), buckets, target)
    return found if function is None else _chosen(model, found, f"{model.rpartition('.py:')[2]}/{function}")


def _chosen(model: str, found: Sequence[Subject], name: str) -> list[Subject]:
    """The subjects of one function of a model: one, or one for each part of its dynamic sizes."""
    chosen = [s for s in found if s.unsized_name == name]
    if not chosen:
        raise UserError(f"{model} has no function {name!r}. Its functions: {', '.join(s.name for s in found)}")
    return chosen


def _of_loaded(file: Loaded, buckets: Buckets | None, target: Target | None) -> list[Subject]:
    if is_onnx_file(file.text) and isinstance(file.found, IRModule):
        return _of_module(file.found, f"{Path(file.text).stem}/", buckets, target)
    return _of_found(file.text, file.found, buckets, target)


def _of_model_file(path: str) -> IRModule:
    """The model of an ONNX file.  UserError for a program of torch.export, with the way to load it."""
    if not is_onnx_file(path):
        name = Path(path).stem
        raise UserError(
            f"{path} is a program of torch.export, which a file of Python imports: write\n"
            f"    import torch, tunesmith\n    def model(): return tunesmith.from_torch(torch.export.load({path!r}))\n"
            f"to a file such as {name}.py, and pass {name}.py:model"
        )
    return from_onnx(path)


def _loaded(text: str) -> object:
    """The object that `path.py:function(key=value,...)` names; a Python function is called and returns it.

    A file of script text is not run.
    """
    path, given = split_call(text)
    script = load_script(path)
    found = script if script is not None else load_from_file(path)
    if script is None and callable(found) and not isinstance(found, (PrimFunc, Workload, IRModule)):
        return call_with(text, found, given)
    if given:
        raise UserError(f"{text!r}: {path} is {user_code.shown(found)}, which takes no parameters. Name a function that returns one")
    return found


def _of_found(text: str, found: Any, buckets: Buckets | None = None, target: Target | None = None) -> list[Subject]:
    if isinstance(found, IRModule):
        return _of_module(found, f"{text.rpartition('.py:')[2]}/", buckets, target)
    if _are_tensors(found):
        found = create_prim_func(list(found), split_call(text)[0].rpartition(":")[2])
    if isinstance(found, Workload):
        return [Subject(found.text, found.func, found)]
    if not isinstance(found, PrimFunc):
        what = "an empty list" if found == [] else user_code.shown(found)
        hint = f". {_FROM_TORCH}" if _is_torch_module(found) else ""
        raise UserError(
            f"{text!r} is {what}. It must be a PrimFunc or a module, or a function that returns one, or a list of tensors{hint}"
        )
    return [Subject(text, found)]


def _of_module(mod: IRModule, prefix: str = "", buckets: Buckets | None = None, target: Target | None = None) -> list[Subject]:
    """Subjects of the functions of a module; for a module with the graph function `main`, the tasks of that model."""
    main = mod.get("main")
    if isinstance(main, GraphFunc):
        return _of_model(mod, main, prefix, buckets, target)
    return [Subject(prefix + name, f) for name, f in mod.items() if isinstance(f, PrimFunc)]


def _of_model(mod: IRModule, main: GraphFunc, prefix: str, buckets: Buckets | None, target: Target | None) -> list[Subject]:
    lowered = GRAPH(mod, target or Target.detect())
    tasks = extract_tasks(lowered)
    if not tasks:
        raise NoFunctionsError("the model has no functions to tune. Compile it as it is")
    whole = lowered["main"]
    named = model_sizes(lowered, whole) if isinstance(whole, GraphFunc) else {}
    if any(sizes_of(t.func) for t in tasks) and buckets is None:
        names = list(named)
        example = " ".join(f"{name}=1..128" for name in names)
        raise UserError(
            f"the model has the dynamic size{'s' * (len(names) > 1)} {', '.join(names)}: pass the sizes to tune it for, as in "
            f"sizes={example!r} (--sizes '{example}'), or bind them (graph.passes.bind_sizes), or compile it as it is"
        )
    missing = [name for name in named if buckets is not None and name not in buckets]
    if missing and any(sizes_of(t.func) for t in tasks):
        raise UserError(f"sizes= has nothing for {', '.join(missing)}: give a range for each dynamic size, as in {missing[0]}=1..128")
    boxes = model_boxes(mod, main, buckets or {})
    out: list[Subject] = []
    for t in tasks:
        if not sizes_of(t.func):
            out.append(Subject(prefix + t.name, t.func, weight=float(t.weight), in_model=True, in_loop=t.in_loop))
            continue
        for box in function_boxes(t, named, boxes):
            out.append(_for_box(Subject(prefix + t.name, t.func, weight=float(t.weight), in_model=True, in_loop=t.in_loop), box))
    return out


def _sized(subject: Subject, buckets: Buckets) -> list[Subject]:
    """A subject for each range of the sizes of a function with dynamic shapes."""
    _check_sizes_follow(subject)
    names = [v.name for v in sizes_of(subject.func)]
    missing = [name for name in names if name not in buckets]
    if missing:
        raise UserError(f"{subject.name} has the dynamic size {missing[0]}, and sizes= has nothing for it. Add {missing[0]}=1..128")
    return [_for_box(subject, box) for box in boxes_of({name: buckets[name] for name in names})]


def _check_sizes_follow(subject: Subject) -> None:
    """Refuse a function that no compiler takes, before its candidates are measured with constant sizes."""
    params = subject.func.params
    first = next(i for i, p in enumerate(params) if isinstance(p, Var))
    late = next((p for p in params[first:] if not isinstance(p, Var)), None)
    if late is not None:
        raise UserError(
            f"{subject.name}: the size {params[first]} precedes the buffer {late.name}. Sizes follow the buffers: move it behind them"
        )


def _for_box(subject: Subject, box: SizeRanges) -> Subject:
    sizes = DynamicSizes(subject.func, box)
    return replace(subject, name=f"{subject.name}[{box}]", func=measured_function(subject.func, box), sizes=sizes)


def _check_known(found: Sequence[Subject], buckets: Buckets) -> None:
    """Refuse buckets of sizes that no function has."""
    known = {v.name for s in found for v in sizes_of(s.func)}
    unknown = sorted(buckets.keys() - known) if not any(s.in_model for s in found) else []
    if unknown:
        has = f"; the dynamic sizes are {', '.join(sorted(known))}" if known else "; no workload has dynamic shapes"
        raise UserError(f"sizes=: no workload has the size {unknown[0]}{has}")


def _subjects_of(given: object, buckets: Buckets | None = None, target: Target | None = None) -> list[Subject]:
    if isinstance(given, str):
        return [s for text in expand(given) for s in _of_text(text, buckets, target)]
    if isinstance(given, Loaded):
        return _of_loaded(given, buckets, target)
    if isinstance(given, Workload):
        return [Subject(given.text, given.func, given)]
    if isinstance(given, PrimFunc):
        return [Subject(given.name, given)]
    if isinstance(given, IRModule):
        return _of_module(given, buckets=buckets, target=target)
    if _are_tensors(given):
        return [Subject("main", create_prim_func(list(given)))]  # type: ignore[call-overload]
    raise UserError(
        f"a workload is a text like {_FORMS}, a PrimFunc, an IRModule, or a list of tensors; got "
        f"{type(given).__name__}: {given!r:.200}. {_FROM_TORCH}"
    )


def _is_torch_module(found: object) -> bool:
    return any(f"{t.__module__}.{t.__qualname__}" == "torch.nn.modules.module.Module" for t in type(found).__mro__)


def _are_tensors(given: object) -> bool:
    return isinstance(given, (list, tuple)) and len(given) > 0 and all(isinstance(t, Tensor) for t in given)
