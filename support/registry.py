"""Register primitives, passes, backends, samplers, cost models and rules by name, with lazy import and plugins.

A name maps to a value, or to a dotted path `"package.module:Name"` that is imported on the first lookup, so that
importing a table of names is cheap.  Other distributions add names through the entry point group `tunesmith.<kind>`.
"""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Generic, TypeVar, cast

from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import TunesmithError, UserError
from tunesmith.support.nearest_name import did_you_mean

T = TypeVar("T")

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def resolve(path: str) -> object:
    """The object named by `"package.module:Name"` (or `:Name.attribute`); imports the module.

    Raises:
        UserError: the text is not such a path, or the module or the name does not exist.
    """
    if not _PATH.fullmatch(path):
        raise UserError(f"{path!r} is not a dotted path. Spell it package.module:Name")
    module_name, _, attributes = path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"cannot import {path!r}: {error}. Check the spelling of the module and that what it imports is installed"
        ) from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise UserError(f"cannot import {path!r}: {module_name} has no {attributes!r}") from error
    return found


def _group(kind: str) -> str:
    """The entry point group of a kind."""
    return "tunesmith." + kind.replace(" ", "_")


class Registry(Generic[T]):
    """Named objects of one kind.

    Thread safe.  Iteration and `names()` are in sorted order, independent of the order of registration.

    Args:
        kind: the kind in the singular, as error messages spell it ("cost model").  The entry point group
            is `tunesmith.` and the kind with spaces replaced by underscores (`tunesmith.cost_model`).
        lazy: names whose values are dotted paths, see `register_lazy`.
        formerly: an earlier name of the kind; its entry point group is also read, with a DeprecationWarning for each entry point.
    """

    def __init__(self, kind: str, lazy: Mapping[str, str] | None = None, formerly: str = "") -> None:
        self.kind = kind
        self.group, self._old_group = _group(kind), _group(formerly) if formerly else ""
        self._values: dict[str, T] = {}
        self._paths: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._searched = False
        self._lock = threading.RLock()
        for name, path in (lazy or {}).items():
            self.register_lazy(name, path)

    def register(self, name: str, value: T) -> T:
        """Bind `name` to `value` and return the value.  UserError if the name is already registered."""
        with self._lock:
            self._claim(name, f"{type(value).__name__} registered in the program")
            self._values[name] = value
        return value

    def registers(self, name: str) -> Callable[[T], T]:
        """`register` as a decorator: `@SAMPLERS.registers("random")`."""
        return lambda value: self.register(name, value)

    def register_lazy(self, name: str, path: str) -> None:
        """Bind `name` to the object at `"package.module:Name"`.  The module is imported on the first `get`."""
        if not _PATH.fullmatch(path):
            raise UserError(f"{self.kind} {name!r}: {path!r} is not a dotted path. Spell it package.module:Name")
        with self._lock:
            self._claim(name, path)
            self._paths[name] = path

    def get(self, name: str) -> T:
        """The value of `name`.

        Raises:
            UserError: the name is unknown (the message lists the known names and suggests the closest), or its path
                cannot be imported.
        """
        with self._lock:
            if name not in self._sources:
                self._search_entry_points()
            if name not in self._sources:
                raise UserError(self._unknown(name))
            if name not in self._values:
                try:
                    self._values[name] = cast(T, resolve(self._paths[name]))
                except TunesmithError as error:
                    error.add_note(f"while loading the {self.kind} {name!r} from {self._sources[name]}")
                    raise
            return self._values[name]

    def names(self) -> list[str]:
        """All known names, including entry points, sorted.  Imports none of them."""
        with self._lock:
            self._search_entry_points()
            return sorted(self._sources)

    def path(self, name: str) -> str | None:
        """The dotted path of a name that is imported on first lookup; None for a name registered with its value.  Imports nothing.

        Raises:
            UserError: the name is unknown.
        """
        with self._lock:
            if name not in self:
                raise UserError(self._unknown(name))
            return self._paths.get(name)

    def __contains__(self, name: object) -> bool:
        with self._lock:
            if name not in self._sources:
                self._search_entry_points()
            return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def _claim(self, name: str, source: str) -> None:
        self._refuse_taken(name, source, self._sources)
        self._sources[name] = source

    def _refuse_taken(self, name: str, source: str, taken: Mapping[str, str]) -> None:
        if name in taken:
            raise UserError(
                f"{self.kind} {name!r} is registered twice: {taken[name]}, and {source}. "
                "Give one of them another name, or uninstall the package that brings it"
            )

    def _search_entry_points(self) -> None:
        """Add the names of other distributions: either all of them, or none and an error, which is raised again on the next call."""
        if self._searched:
            return
        sources = dict(self._sources)
        paths: dict[str, str] = {}
        old = set(metadata.entry_points(group=self._old_group)) if self._old_group else set()
        for point in sorted({*metadata.entry_points(group=self.group), *old}, key=lambda p: (p.name, p.value, p in old)):
            distribution = point.dist.name if point.dist is not None else "an unknown package"
            source = f"{point.value} from the package {distribution}"
            if point in old:
                if paths.get(point.name) == point.value:
                    continue  # a package that supports both names of the group
                warnings.warn(
                    f"the package {distribution} has the {self.kind} {point.name!r} in the entry point group {self._old_group}, which is "
                    f"now {self.group}: rename the group, or install a newer version of the package",
                    DeprecationWarning,
                    stacklevel=stacklevel(),
                )
            self._refuse_taken(point.name, source, sources)
            sources[point.name] = source
            paths[point.name] = point.value
        self._sources = sources
        self._paths.update(paths)
        self._searched = True

    def _unknown(self, name: str) -> str:
        known = sorted(self._sources)
        listed = f"Known: {', '.join(known)}." if known else "None is registered."
        return f"unknown {self.kind} {name!r}.{did_you_mean(name, known)} {listed}"
