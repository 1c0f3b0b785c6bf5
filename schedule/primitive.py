"""Turn functions into scheduling primitives: one decorator adds recording, JSON, replay and the typed method."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.schedule.handles import BlockRV, Handle, IntRV, LoopRV
from tunesmith.schedule.integers import as_integer
from tunesmith.schedule.trace import Instruction
from tunesmith.support.errors import RecordError, ScheduleError

if TYPE_CHECKING:
    from tunesmith.schedule.state import ScheduleState

P = ParamSpec("P")
R = TypeVar("R")

PRIMITIVES: dict[str, Primitive[Any, Any]] = {}
"""Every primitive by name.  Names are the wire format of traces: never rename, add an alias."""


_SCALARS = frozenset({"int", "float", "bool", "str", "BlockRV", "LoopRV", "IntRV"})
"""Kinds of arguments that are checked here; the primitive checks the others."""
_PLAIN = frozenset({int, type(None), BlockRV, LoopRV, IntRV})
"""Types that need no conversion: most arguments, and most lists, contain nothing else."""

UNRECORDED = ("s", "decision", "domains")
"""Arguments that a trace does not record: a decision has its own field, and only a search, which has the sketch, needs domains."""


def _buffers_of(s: ScheduleState, block: Any) -> str:
    """The names of the buffers that a block accesses, for the message about an argument that is no name."""
    try:
        found = dict.fromkeys([a.buffer.name for a in accesses(s.block(block))])
    except ScheduleError:  # the block is no argument either
        return ""
    return f", the name of a buffer of the block: {', '.join(found)}"


class Primitive(Generic[P, R]):
    """A scheduling primitive: a function of a schedule that checks its preconditions, rewrites the program and returns handles.

    As a class attribute it is a method of the schedule, with the type of the decorated function.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self.parameters = list(self.signature.parameters)[1:]
        self.kinds = {
            n: frozenset(re.findall(r"\w+", inspect.formatannotation(p.annotation))) for n, p in self.signature.parameters.items()
        }
        """The words of each parameter's annotation, which name the accepted types."""
        self.texts = {n: inspect.formatannotation(p.annotation).strip("'") for n, p in self.signature.parameters.items()}
        self.lists = {n: t.endswith("| None") for n, t in self.texts.items() if t.startswith("Sequence[") and n != "decision"}
        """The parameters that take a list, and whether they accept None."""
        functools.update_wrapper(self, function)

    @overload
    def __get__(self, obj: None, owner: type) -> Primitive[P, R]: ...
    @overload
    def __get__(self, obj: object, owner: type) -> Callable[P, R]: ...
    def __get__(self, obj: Any, owner: type) -> Any:
        return self if obj is None else MethodType(self, obj)

    def apply(self, s: ScheduleState, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run on `s` and record the step; a refused step changes and records nothing."""
        if s.depth:
            return self.function(s, *args, **kwargs)
        try:
            bound = self.signature.bind(s, *args, **kwargs)
        except TypeError as e:
            what = f"{self._unknown(kwargs) or e}; the signature is {self._signature()}{self._as_list(args)}"
            raise ScheduleError(self.name, "arguments", what) from None
        changed: dict[str, Any] = {}
        for k, v in bound.arguments.items():
            if k in ("s", "decision"):  # checked at its use, because it may also come from the schedule's list of decisions
                continue
            if k in self.lists and not isinstance(v, (list, tuple, range, np.ndarray)) and not (v is None and self.lists[k]):
                shown = f"[None, {v!r}]" if "None" in self.kinds[k] and not self.lists[k] else f"[{v!r}]"
                raise ScheduleError(self.name, "arguments", f"{k} is {v!r}; a list is needed, such as {shown}")
            if not self._takes(k, v):
                needed = _buffers_of(s, bound.arguments.get("block")) if k == "buffer" else ""
                raise ScheduleError(self.name, "arguments", f"{k} is {v!r}; its type is {self.texts[k]}{needed}")
            new = v if type(v) in _PLAIN else self._normal(k, v, k)
            if new is not v:
                changed[k] = new
        if changed:
            bound.arguments.update(changed)
        given = [(k, v) for k, v in bound.arguments.items() if k not in UNRECORDED and not _is_default(self.signature, k, v)]
        recorded = tuple([(k, _encode(self.name, s, v)) for k, v in given])
        s.begin(self.name)
        try:
            out = self.function(*bound.args, **bound.kwargs) if changed else self.function(s, *args, **kwargs)
        except BaseException:
            s.rollback()
            raise
        handles: Any = out if isinstance(out, (list, tuple)) else [] if out is None else [out]
        s.commit(Instruction(self.name, recorded, tuple([h.name for h in handles]), s.decision))
        return out

    def _unknown(self, given: Mapping[str, object]) -> str:
        """The text for the first unknown keyword, with the nearest parameter; empty if all are known."""
        name = next((k for k in given if k not in self.parameters), None)
        near = difflib.get_close_matches(name or "", self.parameters, 1)
        return "" if name is None else f"there is no argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")

    def _signature(self) -> str:
        """The signature of the method, without the schedule, with annotations as in the source."""
        shown = [str(p.replace(annotation=p.empty)) for p in list(self.signature.parameters.values())[1:]]
        typed = []
        for n, text in zip(self.parameters, shown, strict=True):
            head, equals, default = text.partition("=")
            typed.append(f"{head}: {self.texts[n]}{f' = {default}' if equals else ''}")
        return f"{self.name}({', '.join(typed)})"

    def _as_list(self, args: Sequence[object]) -> str:
        """The correct call, if the elements of a list were passed as separate arguments, as in other systems; else empty."""
        first = next((k for k, n in enumerate(self.parameters) if n in self.lists), len(args))
        if len(args) <= len(self.parameters) or not all(isinstance(a, Handle) for a in args[first:]):
            return ""
        shown = [repr(a) for a in args]
        return f". Write {self.name}({', '.join([*shown[:first], '[' + ', '.join(shown[first:]) + ']'])})"

    def _takes(self, name: str, v: Any) -> bool:
        """Whether the annotation of the parameter allows the argument: a handle, a list, a list of lists, None."""
        kinds = self.kinds[name]
        if self.texts[name] == "str":
            return isinstance(v, str)
        if isinstance(v, Handle) or v is None:
            own = "None" if v is None else type(v).__name__
            return own in kinds or kinds.isdisjoint(_SCALARS) or not kinds.isdisjoint(("BlockRV", "LoopRV"))
        if not isinstance(v, (list, tuple)):
            return True
        if kinds.isdisjoint(_SCALARS):
            return True
        if self.texts[name].startswith("Sequence[Sequence["):
            return all(isinstance(x, (list, tuple, range, np.ndarray)) for x in v)
        return "Sequence" in kinds and not any(isinstance(x, Handle) and type(x).__name__ not in kinds for x in v)

    def _normal(self, name: str, v: Any, at: str) -> Any:
        """The argument with integers as int and arrays as lists; the same object if nothing changes.

        Refuses (arguments) values that the parameter does not accept, at any depth of a list; `at` is their position, for the message.
        """
        if type(v) in _PLAIN:
            return v
        if isinstance(v, (list, tuple, range)):
            if _PLAIN.issuperset(map(type, v)):
                return v
            new = [self._normal(name, x, f"{at}[{i}]") for i, x in enumerate(v)]
            return v if all(a is b for a, b in zip(new, v, strict=True)) else new
        if isinstance(v, np.ndarray) and v.ndim:
            return self._normal(name, v.tolist(), at)
        kinds = self.kinds[name]
        wants_integer = "int" in kinds
        wants_text = "str" in kinds or kinds.isdisjoint(("int", "float"))
        if (isinstance(v, str) and wants_text) or isinstance(v, Handle) or (type(v) is bool and "bool" in kinds):
            return v
        if isinstance(v, (float, np.floating)):
            if "float" in kinds and math.isfinite(v):
                return float(v)
        elif (number := as_integer(v)) is not None:
            return number
        what = "an integer is needed" if wants_integer else "arguments are handles, numbers, text and lists of them"
        raise ScheduleError(self.name, "arguments", f"{at} is {v!r}; {what}")

    __call__ = apply  # a bound method calls it, without a frame between


def _is_default(signature: inspect.Signature, name: str, value: Any) -> bool:
    default = signature.parameters[name].default
    return default is not inspect.Parameter.empty and (value is default or (not isinstance(value, Handle) and value == default))


def primitive(function: Callable[Concatenate[Any, P], R]) -> Primitive[P, R]:
    """Register `function(s, ...)` as the primitive of that name."""
    made = Primitive(function)
    if made.name in PRIMITIVES:
        raise RecordError(f"two primitives are named {made.name}")
    PRIMITIVES[made.name] = made
    return made


def _encode(step: str, s: ScheduleState, v: Any) -> Any:
    if isinstance(v, Handle):
        if v.owner != s.number:
            raise foreign(step, v)
        return {"rv": v.name}
    return [_encode(step, s, x) for x in v] if isinstance(v, (list, tuple, range)) else v


def foreign(step: str, handle: Handle) -> ScheduleError:
    """The error for a handle of another schedule."""
    what = f"{handle.name} is a handle of another schedule; a step takes handles of its own schedule"
    return ScheduleError(step, "arguments", f"{what}, from get_block and get_loops for example")


def decode(v: Any, handles: dict[str, Handle]) -> Any:
    """The argument value that the JSON `v` of a trace represents."""
    if isinstance(v, dict):
        name = v.get("rv")
        if not isinstance(name, str) or name not in handles:
            raise RecordError(f"the trace uses {v!r}, which no earlier step defined")
        return handles[name]
    if isinstance(v, list):
        return [decode(x, handles) for x in v]
    return v


def apply_instruction(s: Any, i: Instruction, decision: Sequence[int] | None) -> None:
    """Run one recorded step on `s`; its outputs get the recorded names."""
    p = PRIMITIVES.get(i.kind)
    if p is None:
        raise RecordError(f"the trace uses the primitive {i.kind!r}, which this version of tunesmith does not have")
    args = {k: decode(v, s.handles) for k, v in i.args}
    unknown = set(args) - set(p.parameters)
    if unknown:
        raise RecordError(f"{i.kind} has no argument {sorted(unknown)}; arguments are {', '.join(p.parameters)}")
    if decision is not None:
        args["decision"] = list(decision)
    out = p.apply(s, **args)
    made = out if isinstance(out, (list, tuple)) else [] if out is None else [out]
    if len(made) != len(i.outputs):
        raise RecordError(
            f"{i.kind} returned {len(made)} results, the trace recorded {len(i.outputs)}: the record belongs to another workload"
        )
    for h, name in zip(made, i.outputs, strict=True):
        s.handles[name] = h
