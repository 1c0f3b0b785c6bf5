"""Run a model once and keep every intermediate result by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np

from tunesmith.driver.compile_model import CompiledModel
from tunesmith.graph.emit.lowered_form import CallStep, CopyStep, InvokeStep, Step, inner_steps, lowered_form
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Loop, Operand, Value, all_bindings, regions, used
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Poly
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
    Returns:
        The results of `main`; a call of a function that calls itself is one call.
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
        self._shapes: dict[str, tuple[Poly, ...]] = {}
        self.origin: dict[Any, str] = {}
        self._taken: set[str] = set()
        for p in params:
            self.origin[p] = self._fresh(getattr(p, "name", "input"))

    def add(self, key: Any, result: Value, function: str, operands: Sequence[Any], array: np.ndarray, again: bool = False) -> None:
        """Record a result; `again` replaces the earlier result in the same storage, of which it is a part."""
        reads = tuple(dict.fromkeys([self.origin[o] for o in operands if o in self.origin]))
        name = self.origin[key] if again and key in self.origin else self._fresh(result.name)
        self._shapes[name] = result.type.shape
        self.calls.pop(name, None)
        self.calls[name] = TracedCall(name, function, tuple([r for r in reads if r != name]), array)
        self.origin[key] = name

    def copy(self, source: Any, target: Any) -> None:
        """Record that the contents of a storage are copied to another; those of constants have no name."""
        if source in self.origin:
            self.origin[target] = self.origin[source]
        else:
            self.origin.pop(target, None)

    def trace(
        self, results: Sequence[Operand], keys: Sequence[Any], returned: Callable[[], Sequence[np.ndarray]], module: IRModule
    ) -> Trace:
        """The trace of a run.

        Args:
            results: the results of the model.
            keys: their storage.
            returned: gives the results; only called if one of them is an input, a constant, or another view of what a call made.
            module: the graph and the functions.
        """
        names = [self.origin.get(k, "") for k in keys]
        made = [n in self.calls and self._shapes[n] == r.type.shape for n, r in zip(names, results, strict=True)]
        others = () if all(made) else returned()
        arrays = [
            self.calls[n].array if known else self._viewed(n, others[i]) for i, (n, known) in enumerate(zip(names, made, strict=True))
        ]
        return Trace([*self.calls.values()], names, arrays, module)

    def _viewed(self, name: str, returned: np.ndarray) -> np.ndarray:
        """What a call made in the shape of a result of the model; the result itself if no call made it."""
        return self.calls[name].array.reshape(returned.shape) if name in self.calls else returned

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
            recorder.add(v, v, function, operands, np.array(array))

    given = [in_float32(np.asarray(x)) for x in inputs]
    returned = run(main, given, mod, watch=watch)
    return recorder.trace(main.results, main.results, lambda: returned, mod)


def _executed(model: CompiledModel, inputs: Sequence[object]) -> Trace:
    if model.executor.kind not in ("graph", "vm"):
        raise UserError(
            f'executor="{model.executor.kind}" runs a model as one function: compile it with executor="graph" or "vm" to trace it'
        )
    form = lowered_form(model.module)
    every = list(_flat(form.steps))
    steps, invocations = [s for s in every if not isinstance(s, InvokeStep)], [s for s in every if isinstance(s, InvokeStep)]
    stores = {name for f in model.module.values() if isinstance(f, GraphFunc) for name in _stores(f)}
    recorder = _Recorder(form.params)
    root = form.storage_of
    for n, function, arrays in model.executor.trace(*inputs):
        step = steps[n] if n >= 0 else invocations[~n]
        if isinstance(step, CopyStep):
            recorder.copy(root(step.source), root(step.target))
            continue
        for v, array in zip(step.results, arrays, strict=True):
            recorder.add(root(v), v, function, [root(a) for a in step.args], array, again=function in stores)

    def returned() -> tuple[np.ndarray, ...]:
        found = model(*inputs)
        return found if isinstance(found, tuple) else (found,)

    return recorder.trace(form.outputs, [root(o) for o in form.outputs], returned, model.module)


def _flat(steps: Sequence[Step]) -> Iterator[CallStep | InvokeStep | CopyStep]:
    """The calls and copies in the order of the program's code."""
    for s in steps:
        if isinstance(s, (CallStep, InvokeStep, CopyStep)):
            yield s
        yield from _flat(inner_steps(s))


def _stores(func: GraphFunc) -> set[str]:
    """The functions that store one row of a result that loops compute."""
    return {name for b in all_bindings(func.body) if isinstance(b.operation, Loop) for name in b.operation.stores}
