"""Define the exceptions of tunesmith, whose messages say what is wrong, where, why, and what to do.

`UserError` and its subclasses are raised for input that a user can correct; `InternalError` for a state
that only a bug in tunesmith can reach.  No other exception is raised on purpose for bad input.
"""

from __future__ import annotations

from typing import Any


class TunesmithError(Exception):
    """Base class of every exception that tunesmith raises on purpose.

    Errors can be copied and pickled, for example to be raised in a worker process and shown in another one.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore `args` and the fields without a call of the constructor, whose parameters differ among the subclasses."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[TunesmithError], args: tuple[object, ...]) -> TunesmithError:
    return kind.__new__(kind, *args)


class UserError(TunesmithError):
    """Bad input.  The message says what is wrong, where, why, and what to do about it."""


class ScriptError(UserError):
    """Program text (or a program built by hand) is not valid TIR."""


class ScheduleError(UserError):
    """A scheduling primitive was refused.

    Args:
        primitive: name of the primitive that refused.
        requirement: label of the unmet item in the primitive's `Requires:` list.
        message: the reason, one sentence.
        where: the location, shown below the message; a callable is called only when the error is printed,
            so that a search that catches thousands of refusals renders none of them.
    """

    def __init__(self, primitive: str, requirement: str, message: str, where: object = None) -> None:
        super().__init__(primitive, requirement, message)
        self.primitive = primitive
        self.requirement = requirement
        self.message = message
        self.where = where

    @property
    def summary(self) -> str:
        """The text without the location."""
        return f"{self.primitive} refused [{self.requirement}]: {self.message}"

    def __str__(self) -> str:
        place = self._place()
        return f"{self.summary}\n{place}" if place else self.summary

    def __reduce__(self) -> tuple[Any, ...]:
        """The location is pickled as text: its callable is usually local to the primitive."""
        restored, args, state = super().__reduce__()
        return restored, args, {**state, "where": self._place()}

    def _place(self) -> str:
        place = self.where() if callable(self.where) else self.where
        return str(place) if place else ""


class TargetError(UserError):
    """A target string or JSON names an unknown kind, attribute or value."""


class RecordError(UserError):
    """A record or log is malformed, of another version, or belongs to another workload or target."""


class BuildError(UserError):
    """A program cannot be compiled for its target."""


class RunError(UserError):
    """A compiled function was called with invalid arguments, or failed at run time."""


class OtherMachineError(RunError):
    """Code was compiled for another machine, and cannot run on this one."""


class ModelImportError(UserError):
    """A model cannot be imported; every unsupported operator is listed."""


class MissingExtraError(UserError):
    """An optional package is needed and not installed.  The message holds the install line."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed. Install it with:  pip install 'tunesmith[{extra}]'"
        )
        self.package = package
        self.extra = extra


class InternalError(TunesmithError):
    """A bug in tunesmith, not in its input.  Please report it with the program that caused it."""

    def __str__(self) -> str:
        return f"{super().__str__()}\nThis is a bug in tunesmith. Please report it with the program that caused it."
