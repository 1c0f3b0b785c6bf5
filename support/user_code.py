"""Report errors of user-supplied code (cost models, samplers, references) with the line of user code."""

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
    """Convert exceptions of user-supplied code to a UserError that names `what` and the line of user code.

    An exception without a frame of user code is a defect of the library, and is not converted.
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
    """Refuse a class that lacks methods of its contract, before it is instantiated.

    Args:
        kind: a class; any other object is accepted.
        what: its name in the message, for example "the sampler".
    Raises:
        UserError: methods are missing; the message names all of them.
    """
    if isinstance(kind, ABCMeta) and inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        base = next((c for c in kind.__mro__ if c.__module__.partition(".")[0] == "tunesmith"), kind)
        contract = f"{base.__module__}.{base.__qualname__}"
        raise UserError(f"{what} {kind.__name__} has no {missing}: the contract is that of {contract}. Define what is missing")


def described(error: BaseException) -> tuple[str, bool]:
    """The exception with its location, `ValueError: ... at model.py:7 in score`, and whether that is a line of user code.

    The location is the innermost line of user code, or else the line that raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _is_installed(f.filename)]
    at = own[-1] if own else frames[-1] if frames else None
    return f"{type(error).__name__}: {error}" + (f" at {at.filename}:{at.lineno} in {at.name}" if at else ""), bool(own)


def _is_installed(file: str) -> bool:
    """Whether a Python file belongs to tunesmith, to an installed package or to Python."""
    library_files = {
        m.__file__ for name, m in list(sys.modules.items()) if name.partition(".")[0] == "tunesmith" and hasattr(m, "__file__")
    }
    return file.startswith("<") or file in library_files or any(Path(file).is_relative_to(root) for root in sysconfig.get_paths().values())
