"""Prepare docstrings for mkdocstrings: render the sections of primitives, separate sections, and split joint entries.

Griffe knows the sections of Google style (Args, Returns, Raises, Attributes) if a blank line precedes each.  Primitives and passes also
have `Rewrite:`, a program, `->` and the rewritten program; `Requires:`, the labels of refusals; and `Keeps:`.  They become Markdown.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import griffe

KNOWN = ("Args", "Returns", "Raises", "Attributes", "Yields")
OWN = ("Rewrite", "Requires", "Keeps", "Source")
_TITLE = re.compile(rf"({'|'.join((*KNOWN, *OWN))}):[ ]*(.*)")
_ENTRY = re.compile(r"( *)(\w+(?:, \w+)+): (.*)")
_LABEL = re.compile(r"([\w-]+): (.*)", re.DOTALL)


class DocstringSections(griffe.Extension):
    """Rewrites docstrings when griffe has read an object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Prepare the docstring of any object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Leave out the schedule, the first parameter of a primitive: users call a method."""
        if any(d.callable_path.rpartition(".")[2] == "primitive" for d in func.decorators) and "s" in func.parameters:
            del func.parameters["s"]


def markdown(docstring: str) -> str:
    """The docstring with sections that griffe and Markdown render."""
    out: list[str] = []
    for title, rest, body in blocks(docstring.splitlines()):
        if out and title:
            out.append("")
        if title in KNOWN:
            out += [f"{title}:", *split_entries(body)]
        elif title == "Rewrite":
            out += rewrite(rest, body)
        elif title == "Requires":
            out += requires(body)
        elif title:
            out += [f"**{title}:** {' '.join([rest, *[line.strip() for line in body]])}", ""]
        else:
            out += body
    return "\n".join(out).strip().replace("the module docstring", "the text above")


def blocks(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(title, text behind the title, body) of each section; the title is empty for text between sections."""
    title, rest, body = "", "", list[str]()
    for line in lines:
        found = _TITLE.fullmatch(line)
        if found is not None and (found[1] in OWN or not found[2]):
            yield title, rest, body
            title, rest, body = found[1], found[2], []
        elif title and line.strip() and not line.startswith(" "):
            yield title, rest, body
            title, rest, body = "", "", ["", line]
        else:
            body.append(line)
    yield title, rest, body


def split_entries(body: list[str]) -> list[str]:
    """The entries of a section, with `a, b: text` as two entries."""
    out: list[str] = []
    for line in body:
        found = _ENTRY.fullmatch(line)
        if found is None or len(found[1]) != 4:
            out.append(line)
            continue
        *first, last = found[2].split(", ")
        out += [f"{found[1]}{name}: See `{last}`." for name in first]
        out.append(f"{found[1]}{last}: {found[3]}")
    return out


def rewrite(calls: str, body: list[str]) -> list[str]:
    """A heading, the calls, the program before and the program after."""
    arrow = next((i for i, line in enumerate(body) if line.strip() == "->"), len(body))
    out = [f"**Rewrite** {calls}".rstrip(), "", *_program(body[:arrow])]
    return out + (["becomes", "", *_program(body[arrow + 1 :])] if arrow < len(body) else [])


def _program(lines: list[str]) -> list[str]:
    return ["```python", *textwrap.dedent("\n".join(lines)).strip("\n").splitlines(), "```", ""]


def requires(body: list[str]) -> list[str]:
    """A list of labels, each with its precondition."""
    entries: list[str] = []
    for line in textwrap.dedent("\n".join(body)).splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line.strip())
    found = [_LABEL.fullmatch(e) for e in entries]
    shown = [f"- `{m[1]}`: {m[2]}" if m else f"- {e}" for m, e in zip(found, entries, strict=True)]
    return ["**Requires** (a refusal names the label)", "", *shown, ""]
