"""Record the steps and decisions of a schedule as a trace, with conversions to JSON and to Python source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunesmith.schedule.integers import as_integer
from tunesmith.support.errors import RecordError

Json = Any
Decision = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call of a primitive.

    Attributes:
        kind: name of the primitive.
        args: argument values by name as JSON; a handle is `{"rv": "l3"}`.
        outputs: names of the returned handles.
        decision: values chosen by a sampling primitive; None for other primitives and for symbolic draws.
    """

    kind: str
    args: tuple[tuple[str, Json], ...]
    outputs: tuple[str, ...]
    decision: Decision | None = None

    def to_json(self) -> Json:
        """[kind, args, outputs] or, with a decision, [kind, args, outputs, decision]."""
        head = [self.kind, dict(self.args), list(self.outputs)]
        return head if self.decision is None else [*head, list(self.decision)]


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a schedule, in order.  Applying it to the same workload with all decisions fixed is deterministic."""

    instructions: tuple[Instruction, ...] = ()

    def decisions(self) -> tuple[Decision | None, ...]:
        """The decision of every sampling step, in order; None if it is symbolic."""
        return tuple(i.decision for i in self.instructions if i.kind.startswith("sample_"))

    def configuration(self) -> tuple[int, ...]:
        """The configuration: all decisions, concatenated.

        Raises:
            RecordError: a decision is symbolic.
        """
        out: list[int] = []
        for d in self.decisions():
            if d is None:
                raise RecordError("this trace was recorded parametrically and has no decisions; use with_configuration(values)")
            out.extend(d)
        return tuple(out)

    def with_configuration(self, row: Sequence[int]) -> Trace:
        """The trace with the decisions of the configuration `row`, one integer for each sampled value.

        Raises:
            RecordError: `row` is too short or too long, or contains values other than integers.
        """
        values = list(row)
        out: list[Instruction] = []
        for i in self.instructions:
            if i.kind.startswith("sample_"):
                n = len(i.outputs)
                if len(values) < n:
                    raise RecordError(f"the configuration has {len(row)} values, and the trace samples more")
                i = replace(i, decision=_decision(i, values[:n], len(row) - len(values)))
                values = values[n:]
            out.append(i)
        if values:
            raise RecordError(f"the configuration has {len(values)} values more than the trace samples")
        return Trace(tuple(out))

    def append(self, instruction: Instruction) -> Trace:
        """This trace with one more step."""
        return Trace((*self.instructions, instruction))

    def simplified(self) -> Trace:
        """The trace without `get_*` steps whose outputs are unused."""
        used: set[str] = set()
        needed: list[Instruction] = []
        for i in reversed(self.instructions):
            pure = i.kind.startswith("get_")
            if pure and not used & set(i.outputs):
                continue
            used |= set(_handles(i.args))
            needed.append(i)
        return Trace(tuple(reversed(needed)))

    def to_json(self) -> Json:
        """A list of instructions."""
        return [i.to_json() for i in self.instructions]

    @staticmethod
    def from_json(data: Json) -> Trace:
        """The trace in `data`; nothing is executed.

        Raises:
            RecordError: `data` is not a list of instructions.
        """
        if not isinstance(data, list):
            raise RecordError(f"a trace is a list of instructions, got {type(data).__name__}")
        out = []
        for n, item in enumerate(data):
            ok = (
                isinstance(item, list)
                and len(item) in (3, 4)
                and isinstance(item[0], str)
                and isinstance(item[1], dict)
                and _names(item[2])
            )
            if ok and len(item) == 4:
                ok = isinstance(item[3], list) and all(type(x) is int for x in item[3])
            if not ok:
                raise RecordError(f"instruction {n} of the trace is not [kind, args, outputs(, decision)]: {str(item)[:120]}")
            out.append(Instruction(item[0], tuple(item[1].items()), tuple(item[2]), tuple(item[3]) if len(item) == 4 else None))
        return Trace(tuple(out))

    def as_python(self) -> str:
        """The schedule as Python source, to paste after `sch = Schedule(mod)`."""
        lines = []
        for i in self.instructions:
            args = [_python(v) if k == "block" or n == 0 else f"{k}={_python(v)}" for n, (k, v) in enumerate(i.args)]
            if i.decision is not None:
                args.append(f"decision={list(i.decision)}")
            call = f"sch.{i.kind}({', '.join(args)})"
            out = ", ".join(i.outputs) + ("," if len(i.outputs) == 1 and i.kind in _LISTS else "")
            lines.append(f"{out} = {call}" if i.outputs else call)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.as_python()


_LISTS = (
    "get_loops",
    "get_producers",
    "get_consumers",
    "get_child_blocks",
    "get_output_blocks",
    "sample_tile",
    "sample_perfect_tile",
    "cache_index",
    "split",
    "pad_einsum",
    "winograd",
    "strassen",
    "loop_partition",
)
"""Primitives that return a list even for one element, so that their outputs are unpacked."""


def _decision(i: Instruction, values: Sequence[Any], start: int) -> Decision:
    """The decision of this step, from the values of a configuration from position `start` on."""
    out = []
    for at, (name, x) in enumerate(zip(i.outputs, values, strict=True), start):
        value = as_integer(x)
        if value is None:
            raise RecordError(f"row[{at}], the value of {name} = {i.kind}(...), is {x!r}; a configuration consists of integers")
        out.append(value)
    return tuple(out)


def _names(x: Json) -> bool:
    return isinstance(x, list) and all(isinstance(n, str) for n in x)


def _python(v: Json) -> str:
    if isinstance(v, dict) and "rv" in v:
        return str(v["rv"])
    if isinstance(v, list):
        return f"[{', '.join(map(_python, v))}]"
    return repr(v)


def _handles(v: Json) -> Iterable[str]:
    if isinstance(v, dict):
        if "rv" in v:
            yield v["rv"]
    elif isinstance(v, (list, tuple)):
        for x in v:
            yield from _handles(x)
