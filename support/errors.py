"""Define the exceptions of tunesmith, whose messages say what is wrong, where, why, and what to do.

`UserError` and its subclasses are raised for input that a user can correct; `InternalError` for a state
that only a bug in tunesmith can reach.  No other exception is raised on purpose for bad input.
"""

from __future__ import annotations


class TunesmithError(Exception):
    """Base class of every exception that tunesmith raises on purpose."""


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

    def __str__(self) -> str:
        place = self.where() if callable(self.where) else self.where
        text = f"{self.primitive} refused [{self.requirement}]: {self.message}"
        return f"{text}\n{place}" if place else text


class TargetError(UserError):
    """A target string or JSON names an unknown kind, attribute or value."""


class RecordError(UserError):
    """A record or log is malformed, of another version, or belongs to another workload or target."""


class BuildError(UserError):
    """A program cannot be compiled for its target."""


class RunError(UserError):
    """A compiled function was called with invalid arguments, or failed at run time."""


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
