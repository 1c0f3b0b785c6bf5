"""Register primitives, passes, backends, samplers, cost models and rules by name, with lazy import and plugins.

A name maps to a value, or to a dotted path `"package.module:Name"` that is imported on the first lookup, so that
importing a table of names is cheap.  Other distributions add names through the entry point group `tunesmith.<kind>`.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import TunesmithError, UserError
from tunesmith.support.moved_modules import moved_to
from tunesmith.support.nearest_name import did_you_mean
from tunesmith.support.user_code import check_complete

T = TypeVar("T")

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def resolve(path: str, what: str = "") -> object:
    """The object named by `"package.module:Name"` (or `:Name.attribute`); imports the module.

    Args:
        path: the path.
        what: the object as messages name it, by default by its path.
    Raises:
        UserError: the text is not such a path, the module or the name does not exist, or the module raises an exception.  An error that
            tunesmith defines passes unchanged, with a note.
    """
    what = what or repr(path)
    if not _PATH.fullmatch(path):
        raise UserError(f"cannot import {what}: {path!r} is not a dotted path. Spell it package.module:Name")
    module_name, _, attributes = path.partition(":")
    module: ModuleType | None = None
    try:
        module = importlib.import_module(module_name)
        found: object = attrgetter(attributes)(module)
    except TunesmithError as error:
        error.add_note(f"while loading {what}")
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"cannot import {what}: {_reason(error, module, attributes)}") from error
    return found


def _reason(error: BaseException, module: ModuleType | None, attributes: str) -> str:
    """Why an import failed: of the module, or of the attributes if the module is loaded."""
    if isinstance(error, ImportError):
        return f"{error}{moved_to(error) or '. Check the spelling of the module and that what it imports is installed'}"
    if module is not None and isinstance(error, AttributeError):
        return f"{module.__name__} has no {attributes!r}"
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Contract:
    """A condition on values.

    Attributes:
        expected: what a value must be, for messages: "a class derived from package.module.Name".
        holds: whether a value is one.
    """

    expected: str
    holds: Callable[[object], bool]

    def check(self, value: object, what: str) -> None:
        """Refuse a value that is something else, or a class that lacks methods.

        Args:
            value: the value.
            what: its kind and name for the message: "the backend 'llvm'".
        Raises:
            UserError: the message says what was found and what is expected.
        """
        if not self.holds(value):
            found = f"the class {value.__qualname__}" if isinstance(value, type) else f"{_short(value)} ({type(value).__qualname__})"
            raise UserError(f"{what} is {found}, not {self.expected}. Correct the registration, or uninstall the package that has it")
        check_complete(value, what)


ANYTHING = Contract("an object", lambda value: True)
FUNCTION = Contract("a function", callable)


def instance_of(kind: type) -> Contract:
    """The contract of instances of a class."""
    return Contract(f"an instance of {kind.__module__}.{kind.__qualname__}", lambda value: isinstance(value, kind))


def derived_from(kind: type) -> Contract:
    """The contract of classes derived from a class."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    return Contract(f"a class derived from {path}", lambda value: isinstance(value, type) and issubclass(value, kind))


def _short(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception as error:  # the value is foreign, and so is its __repr__
        return f"an object whose repr raises {type(error).__name__}"


def _group(kind: str) -> str:
    """The entry point group of a kind."""
    return "tunesmith." + kind.replace(" ", "_")


def _package(point: metadata.EntryPoint) -> str:
    """The name of the distribution that has an entry point."""
    try:
        return (point.dist.name if point.dist is not None else None) or "of unknown name"
    except Exception:  # of damaged metadata
        return "of unknown name"


def _entry_points(group: str) -> list[metadata.EntryPoint]:
    """The entry points of a group.  Packages whose metadata cannot be read are left out, with a warning."""
    try:
        return list(metadata.entry_points(group=group))
    except Exception:  # importlib.metadata does not say which package is damaged
        found: dict[str, list[metadata.EntryPoint]] = {}
    for package in metadata.distributions():
        try:
            name, points = package.name, [p for p in package.entry_points if p.group == group]
        except Exception as error:
            warnings.warn(
                f"the installed package {getattr(package, '_path', 'of unknown path')} is left out, because its metadata cannot be read "
                f"({type(error).__name__}: {error}): install it again, or remove it",
                UserWarning,
                stacklevel=stacklevel(),
            )
            continue
        found.setdefault(name, points)  # the first on the path is the one that Python imports
    return [p for points in found.values() for p in points]


_SENT: dict[str, Registry[Any]] = {}
"""Registries whose values are sent to worker processes, by path."""

Sent = list[tuple[str, str, bytes]]
"""Path of a registry, name and pickled value."""


def registered_values() -> Sent:
    """The values that this program registered, for `register_values` in a worker process; without those that cannot be pickled."""
    found: Sent = []
    for path, registry in _SENT.items():
        for name, value in registry.registered().items():
            with contextlib.suppress(Exception):  # such a value exists in this process only
                found.append((path, name, pickle.dumps(value)))
    return found


def register_values(values: Sent) -> None:
    """Register the values that another process sent, except those that use something which that process alone defines."""
    for path, name, data in values:
        registry = cast(Registry[Any], resolve(path))
        with contextlib.suppress(Exception):  # such as a function of the script
            if name not in registry:
                registry.register(name, pickle.loads(data))


class Registry(Generic[T]):
    """Named objects of one kind.

    Thread safe.  Iteration and `names()` are in sorted order, independent of the order of registration.

    Args:
        kind: the kind in the singular, as error messages spell it ("cost model").  The entry point group
            is `tunesmith.` and the kind with spaces replaced by underscores (`tunesmith.cost_model`).
        lazy: names whose values are dotted paths, see `register_lazy`.
        formerly: an earlier name of the kind; its entry point group is also read, with a DeprecationWarning for each entry point.  An
            entry point of the same package with the same name in the present group has precedence.
        contract: what values must be; a value that is registered is checked at once, another one when it is imported.
        sent: dotted path of the registry, if values that a program registers are needed in its worker processes, too.
        names: pattern of the names.
        reserved: names that cannot be registered, because they are built in.
    """

    def __init__(
        self,
        kind: str,
        lazy: Mapping[str, str] | None = None,
        formerly: str = "",
        contract: Contract = ANYTHING,
        sent: str = "",
        names: str = ".+",
        reserved: Collection[str] = (),
    ) -> None:
        self.kind, self.contract = kind, contract
        self._names, self._reserved = re.compile(names, re.DOTALL), frozenset(reserved)
        self.group, self._old_group = _group(kind), _group(formerly) if formerly else ""
        self._values: dict[str, T] = {}
        self._paths: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._searched = False
        self._lock = threading.RLock()
        for name, path in (lazy or {}).items():
            self.register_lazy(name, path)
        if sent:
            _SENT[sent] = self

    def register(self, name: str, value: T) -> T:
        """Bind `name` to `value` and return the value.

        Raises:
            UserError: the name is already registered or no name of such an object, or the value breaks the contract.
        """
        self.contract.check(value, f"the {self.kind} {name!r}")
        with self._lock:
            self._claim(name, f"{type(value).__name__} registered in the program")
            self._values[name] = value
        return value

    def registered(self) -> dict[str, T]:
        """The values that the program registered, in contrast to those that are imported."""
        with self._lock:
            return {name: value for name, value in sorted(self._values.items()) if name not in self._paths}

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
            UserError: the name is unknown (the message lists the known names and suggests the closest), its path
                cannot be imported, or the value breaks the contract of the registry.
        """
        with self._lock:
            if name not in self._sources:
                self._search_entry_points()
            if name not in self._sources:
                raise UserError(self._unknown(name))
            if name not in self._values:
                self._values[name] = self._import(name)
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

    def _import(self, name: str) -> T:
        what = f"the {self.kind} {name!r} ({self._sources[name]})"
        found = resolve(self._paths[name], what)
        self.contract.check(found, what)
        return cast(T, found)

    def _claim(self, name: str, source: str) -> None:
        if not isinstance(name, str) or not self._names.fullmatch(name):
            raise UserError(f"{name!r:.100} is no name of a {self.kind}: give a text that matches {self._names.pattern}")
        if name in self._reserved:
            raise UserError(f"the {self.kind} {name!r} cannot be registered: the name is built in. Choose another one")
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
        old: list[metadata.EntryPoint] = []
        for point in self._entry_points():
            source = f"{point.value} from the entry point group {point.group} of the package {_package(point)}"
            self._refuse_taken(point.name, source, sources)
            sources[point.name] = source
            paths[point.name] = point.value
            old += [point] if point.group != self.group else []
        for point in old:
            warnings.warn(
                f"the package {_package(point)} has the {self.kind} {point.name!r} in the entry point group {point.group}, which is "
                f"now {self.group}: rename the group, or install a newer version of the package",
                DeprecationWarning,
                stacklevel=stacklevel(),
            )
        self._sources = sources
        self._paths.update(paths)
        self._searched = True

    def _entry_points(self) -> list[metadata.EntryPoint]:
        """Those of the group, and those of the former group that the same package does not repeat in the group; sorted."""
        new = set(_entry_points(self.group))
        repeated = {(p.name, _package(p)) for p in new}
        old = set(_entry_points(self._old_group)) if self._old_group else set()
        former = [p for p in old if (p.name, _package(p)) not in repeated]
        return sorted([*new, *former], key=lambda p: (p.name, p.group != self.group, p.value))

    def _unknown(self, name: str) -> str:
        known = sorted(self._sources)
        listed = f"Known: {', '.join(known)}." if known else "None is registered."
        return f"unknown {self.kind} {name!r}.{did_you_mean(name, known)} {listed}"
