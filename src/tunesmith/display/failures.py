"""Summarise failed candidates: the most frequent message of each error class, with an example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from tunesmith.display.tables import printable
from tunesmith.measure.records.record import Record

_SHOWN = 240
"""Characters of a message that are displayed; the log holds the full message."""


@dataclass(frozen=True, slots=True)
class ErrorExample:
    """The most frequent message of an error class.

    Attributes:
        kind: the error class.
        failed: number of failed candidates.
        alike: number of failed candidates whose message begins with `message`.
        message: the most frequent first line of the messages.
        sketch, row: configuration of the first candidate with this message.
        internal: the error is a defect of tunesmith, not of the candidate.
    """

    kind: str
    failed: int
    alike: int
    message: str
    sketch: str
    row: tuple[int, ...]
    internal: bool

    def to_json(self) -> dict[str, object]:
        """The example as plain data."""
        return {**asdict(self), "row": list(self.row)}

    def render(self, workload: str) -> Text:
        """The example as a line for a terminal."""
        alike = "" if self.alike == self.failed else f", {self.alike} of them"
        where = f"{self.sketch} {list(self.row)}" if self.sketch else "a schedule without a sketch"
        fault = "A defect in tunesmith, please report it: " if self.internal else ""
        text = f"! {workload}: {self.kind} {self.failed}{alike}: {fault}{self.message} (for example {where})"
        line = printable(text)
        line.stylize("bold red" if self.internal else "yellow")
        return line


def examples_of(records: Iterable[Record]) -> tuple[ErrorExample, ...]:
    """One example per error class of the records, sorted by class; a candidate measured again counts once."""
    found: dict[str, dict[str, list[Record]]] = {}
    seen: set[object] = set()
    for r in records:
        if r.candidate not in seen and r.error is not None:
            line = next((x.strip() for x in r.error.message.splitlines() if x.strip()), "no message")[:_SHOWN]
            found.setdefault(r.error.kind, {}).setdefault(line, []).append(r)
        seen.add(r.candidate)
    return tuple([_example(kind, lines) for kind, lines in sorted(found.items())])


def _example(kind: str, lines: dict[str, list[Record]]) -> ErrorExample:
    message, alike = max(lines.items(), key=lambda item: len(item[1]))  # ties: the first
    first, failed = alike[0], sum(map(len, lines.values()))
    return ErrorExample(kind, failed, len(alike), message, first.sketch, tuple(first.row), message.startswith("InternalError"))


def render_examples(workload: str, examples: Sequence[ErrorExample]) -> list[Text]:
    """The examples as lines for a terminal."""
    return [e.render(workload) for e in examples]


def render_example_data(workload: str, data: Iterable[Mapping[str, Any]]) -> list[Text]:
    """The lines of examples given as output of `ErrorExample.to_json`."""
    return render_examples(workload, [ErrorExample(**{**d, "row": tuple(d["row"])}) for d in data])
