"""Run a model once and keep every intermediate result by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np

from tunesmith.driver.compile_model import CompiledModel
from tunesmith.graph.emit.lowered_form import CallStep, CopyStep, Step, inner_steps, lowered_form
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Loop, Operand, all_bindings, regions, used
from tunesmith.ir.function import IRModule
from tunesmith.runtime.arrays import in_float32
from tunesmith.support.errors import UserError
from tunesmith.support.user_code import shown


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One result of one call of a model.

    Attributes:
        name: of the result, unique in the trace: the name in the printed graph; results of iterations have `_1`, `_2`, ... added.
        function: the function that computed it; of an interpreted model an operator, `if` or `loop`.
        operands: names of the results and inputs that the call reads; constants are left out.
        array: the values.
    """

    name: str
    function: str
    operands: tuple[str, ...]
    array: np.ndarray


class Trace(Mapping[str, np.ndarray]):
    """The intermediate results of one run, by name, in the order of the calls.

    Attributes:
        calls: the results with their functions and operands.
        results: names of the results of the model, in order; the name of an input if the model returns it, "" for a constant.
        result_arrays: the values of the results of the model, in order.
        module: the graph and the functions that ran.
    """

    def __init__(self, calls: Sequence[TracedCall], results: Sequence[str], result_arrays: Sequence[np.ndarray], module: IRModule) -> None:
        self.calls, self.results, self.result_arrays, self.module = tuple(calls), tuple(results), tuple(result_arrays), module
        self._by_name = {c.name: c for c in self.calls}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._by_name[name].array

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def call(self, name: str) -> TracedCall:
        """The call that computed a result.  KeyError if there is none."""
        return self._by_name[name]

    def __str__(self) -> str:
        """One line for each result: name, function, shape, type, smallest and largest value."""
        lines = []
        for c in self.calls:
            values = c.array.astype(np.float64, copy=False) if c.array.size else np.zeros(1)
            extremes = f"{values.min():.4g} .. {values.max():.4g}"
            lines.append(f"{c.name:<24} {c.function:<40} {c.array.dtype}[{', '.join(map(str, c.array.shape))}]  {extremes}")
        return "\n".join(lines)


def trace(model: IRModule | CompiledModel, *inputs: object) -> Trace:
    """The intermediate results of a model.

    Args:
        model: a compiled model, with the graph executor or the virtual machine; or a module with the graph function `main`, which is
            interpreted with the numpy references of the operators, at any stage of compilation.
        inputs: the inputs of the model, in order.
    Raises:
        UserError: another object, or a model with executor="aot", whose calls are one function.
        RunError: an input does not match its parameter.
    """
    if isinstance(model, CompiledModel):
        return _executed(model, inputs)
    if isinstance(model, IRModule) and isinstance(model.get("main"), GraphFunc):
        return _interpreted(model, inputs)
    raise UserError(
        f"trace takes what tunesmith.compile makes of a model, or a module with the graph function `main`, not {shown(model)}. The library "
        "of a model has no names of results: compile the model in this process"
    )


class _Recorder:
    """Collects results under unique names.

    Attributes:
        origin: the name of the result, or input, that is in each storage.
    """

    def __init__(self, params: Sequence[Operand]) -> None:
        self.calls: dict[str, TracedCall] = {}
        self.origin: dict[Any, str] = {}
        self._taken: set[str] = set()
        for p in params:
            self.origin[p] = self._fresh(getattr(p, "name", "input"))

    def add(self, key: Any, name: str, function: str, operands: Sequence[Any], array: np.ndarray, again: bool = False) -> None:
        """Record a result; `again` replaces the earlier result in the same storage, of which it is a part."""
        reads = tuple(dict.fromkeys([self.origin[o] for o in operands if o in self.origin]))
        name = self.origin[key] if again and key in self.origin else self._fresh(name)
        self.calls.pop(name, None)
        self.calls[name] = TracedCall(name, function, tuple([r for r in reads if r != name]), array)
        self.origin[key] = name

    def trace(self, results: Sequence[Any], returned: Callable[[], Sequence[np.ndarray]], module: IRModule) -> Trace:
        """The trace of a run.

        Args:
            results: storage of the results of the model.
            returned: gives the results; only called if one of them is an input or a constant.
            module: the graph and the functions.
        """
        names = [self.origin.get(r, "") for r in results]
        others = () if all(n in self.calls for n in names) else returned()
        arrays = [self.calls[n].array if n in self.calls else others[i] for i, n in enumerate(names)]
        return Trace([*self.calls.values()], names, arrays, module)

    def _fresh(self, name: str) -> str:
        numbered = (f"{name}_{k}" for k in count(1))
        found = next(n for n in chain([name], numbered) if n not in self._taken)
        self._taken.add(found)
        return found


def _interpreted(mod: IRModule, inputs: Sequence[object]) -> Trace:
    main = mod["main"]
    recorder = _Recorder(main.params)

    def watch(b: Binding, made: Sequence[np.ndarray]) -> None:
        op = b.operation
        function = op.operator if isinstance(op, Call) else op.function if isinstance(op, CallFunction) else type(op).__name__.lower()
        operands = [*used(op), *[r for region in regions(op) for r in region.results]]
        for v, array in zip(b.results, made, strict=True):
            recorder.add(v, v.name, function, operands, np.array(array))

    given = [in_float32(np.asarray(x)) for x in inputs]
    returned = run(main, given, mod, watch=watch)
    return recorder.trace(main.results, lambda: returned, mod)


def _executed(model: CompiledModel, inputs: Sequence[object]) -> Trace:
    if model.executor.kind not in ("graph", "vm"):
        raise UserError(
            f'executor="{model.executor.kind}" runs a model as one function: compile it with executor="graph" or "vm" to trace it'
        )
    form = lowered_form(model.module)
    steps = list(_flat(form.steps))
    stores = {name for f in model.module.values() if isinstance(f, GraphFunc) for name in _stores(f)}
    recorder = _Recorder(form.params)
    root = form.storage_of
    for n, function, arrays in model.executor.trace(*inputs):
        step = steps[n]
        if isinstance(step, CopyStep):
            if root(step.source) in recorder.origin:
                recorder.origin[root(step.target)] = recorder.origin[root(step.source)]
            continue
        assert isinstance(step, CallStep)
        for v, array in zip(step.results, arrays, strict=True):
            recorder.add(root(v), v.name, function, [root(a) for a in step.args], array, again=function in stores)

    def returned() -> tuple[np.ndarray, ...]:
        found = model(*inputs)
        return found if isinstance(found, tuple) else (found,)

    return recorder.trace([root(o) for o in form.outputs], returned, model.module)


def _flat(steps: Sequence[Step]) -> Iterator[CallStep | CopyStep]:
    """The calls and copies in the order of the program's code."""
    for s in steps:
        if isinstance(s, (CallStep, CopyStep)):
            yield s
        yield from _flat(inner_steps(s))


def _stores(func: GraphFunc) -> set[str]:
    """The functions that store one row of a result that loops compute."""
    return {name for b in all_bindings(func.body) if isinstance(b.operation, Loop) for name in b.operation.stores}
