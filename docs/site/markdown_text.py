"""Write the Markdown of generated pages: tables, anchors, and objects that mkdocstrings documents."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from tunesmith.support.registry import Registry

Lines = list[str]


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """A table; bars inside of cells are escaped."""
    cells = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join([c.replace('|', chr(92) + '|') for c in row])} |" for row in cells] + [""]


def code(text: str) -> str:
    """Inline code; empty for no text."""
    return f"`{text}`" if text else ""


def codes(texts: Iterable[str]) -> str:
    """Inline code, with commas."""
    return ", ".join([f"`{t}`" for t in texts])


def anchored(text: str, anchor: str) -> str:
    """Inline code that is a link's target."""
    return f"`{text}`{{ #{anchor} }}"


def documented(path: str, **options: object) -> Lines:
    """The object at a dotted path, by mkdocstrings."""
    given = [f"      {key}: {value}" for key, value in options.items()]
    return [f"::: {path}", *(["    options:", *given] if given else []), ""]


def module_and_object(module: str, name: str) -> Lines:
    """The docstrings of a module and of its main object, without headings."""
    bare = {"show_root_heading": "false", "show_root_toc_entry": "false"}
    return documented(module, members="false", **bare) + documented(f"{module}.{name}", **bare)


def link(path: str, text: str = "") -> str:
    """A link to an object that some page documents."""
    return f"[`{text or path.rpartition('.')[2]}`][{path}]"


def module_doc(module: str) -> str:
    """The docstring of a module."""
    return inspect.getdoc(importlib.import_module(module)) or ""


def first_line(text: str) -> str:
    """The first line of a docstring."""
    return text.strip().partition("\n")[0]


def source(registry: Registry[Any], name: str) -> tuple[str, str]:
    """Module and object of a registered name."""
    path = registry.path(name)
    if path is None:
        value = registry.get(name)
        return value.__module__, value.__qualname__
    module, _, found = path.partition(":")
    return module, found
