"""Errors of code that a user gives to the library, a cost model, a sampler or a reference: reported with the user's own line."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunesmith.support.errors import TunesmithError, UserError


@contextmanager
def running(what: str) -> Iterator[None]:
    """Run code that a user may have written: what it raises becomes a UserError that names `what` and the user's line.

    An exception that no frame of the user's took part in is a defect of the library, and passes.
    """
    try:
        yield
    except TunesmithError:
        raise
    except (Exception, SystemExit) as error:
        text, is_users = described(error)
        if not is_users:
            raise
        raise UserError(f"{what} raised {text}") from error


def check_complete(kind: object, what: str) -> None:
    """Refuse a class that lacks methods of its contract, before anything of it is made.

    Args:
        kind: a class; anything else passes.
        what: it is called in the message, "the sampler" for example.
    Raises:
        UserError: methods are missing; all of them are named.
    """
    if isinstance(kind, ABCMeta) and inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        base = next(c for c in kind.__mro__ if c.__module__.partition(".")[0] == "tunesmith")
        contract = f"{base.__module__}.{base.__qualname__}"
        raise UserError(f"{what} {kind.__name__} has no {missing}: the contract is that of {contract}. Define what is missing")


def described(error: BaseException) -> tuple[str, bool]:
    """An exception with the line that raised it, `ValueError: ... at model.py:7 in score`, the last of the user's lines if there is one;
    and whether there is."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _is_installed(f.filename)]
    at = own[-1] if own else frames[-1] if frames else None
    return f"{type(error).__name__}: {error}" + (f" at {at.filename}:{at.lineno} in {at.name}" if at else ""), bool(own)


def _is_installed(file: str) -> bool:
    """Whether a file of Python code is part of tunesmith, of an installed package or of Python."""
    ours = {m.__file__ for name, m in list(sys.modules.items()) if name.partition(".")[0] == "tunesmith" and hasattr(m, "__file__")}
    return file.startswith("<") or file in ours or any(Path(file).is_relative_to(root) for root in sysconfig.get_paths().values())
