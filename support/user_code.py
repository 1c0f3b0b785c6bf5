"""Report errors of user-supplied code (cost models, samplers, rules, references) with its name and the line of user code."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tunesmith.support.errors import TunesmithError, UserError

T = TypeVar("T")


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


def path_of(kind: type) -> str:
    """Module and name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def shown(value: object) -> str:
    """A value as messages show it: None, the name of a class, or the type of any other object."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def check_class(found: object, base: type[T], what: str, spec: object = None) -> type[T]:
    """The class `found`, which derives from `base` and has all of its methods.

    Args:
        found: the object that a user named.
        base: the contract.
        what: the kind of the class in messages, for example "the sampler".
        spec: the text that named it, if any, for messages.
    Raises:
        UserError: it is no such class.
    """
    if not isinstance(found, type):
        name = f" {spec!r}" if isinstance(spec, str) else ""
        raise UserError(f"{what}{name} is {found!r:.200}, not a class that derives from {path_of(base)}")
    if not issubclass(found, base):
        raise UserError(f"{what} {found.__qualname__} does not derive from {path_of(base)}")
    check_complete(found, what)
    return found


def check_complete(kind: object, what: str) -> None:
    """Refuse a class that lacks methods of its contract, or whose methods take other arguments, before it is instantiated.

    Args:
        kind: a class; any other object is accepted.
        what: its name in the message, for example "the sampler".
    Raises:
        UserError: methods are missing, and the message names all of them; or a method cannot be called as the contract's.
    """
    if not isinstance(kind, ABCMeta):
        return
    contracts = [c for c in kind.__mro__ if c.__module__.partition(".")[0] == "tunesmith"]
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        contract = path_of(next(iter(contracts), kind))
        raise UserError(f"{what} {kind.__name__} has no {missing}: the contract is that of {contract}. Define what is missing")
    for contract_class in contracts:
        for name in sorted(getattr(contract_class, "__abstractmethods__", ())):
            _check_method(kind, name, contract_class, what)


def _check_method(kind: type, name: str, contract: type, what: str) -> None:
    """Refuse a method that cannot be called with the arguments of the contract's method."""
    wanted, own = getattr(contract, name), getattr(kind, name)
    if not (inspect.isroutine(wanted) and inspect.isroutine(own)):
        return
    expected = inspect.signature(wanted)
    parameters = expected.parameters.values()
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    try:
        inspect.signature(own).bind(*positional, **keywords)
    except TypeError as error:
        takes = ", ".join([*positional, *[f"{k}=" for k in keywords]])
        raise UserError(
            f"{what} {kind.__name__} defines {name}{_parameters(own)}, and is called as {name}({takes}): {error}. "
            f"The contract is that of {path_of(contract)}"
        ) from None
    except ValueError:  # functions of C without a signature
        return


def check_parameters(function: Callable[..., object], parameters: Sequence[str], what: str) -> None:
    """Refuse a function that cannot be called with these positional arguments.

    Args:
        function: the function.
        parameters: names of the arguments, for the message.
        what: the function in the message, for example "the rule mine:sketches".
    Raises:
        UserError: it takes other arguments.
    """
    try:
        inspect.signature(function, follow_wrapped=False).bind(*parameters)
    except TypeError as error:
        raise UserError(f"{what} is called with ({', '.join(parameters)}), which it does not take: {error}") from None
    except ValueError:  # functions of C without a signature
        return


def construct(make: Callable[..., T], what: str, arguments: Mapping[str, Callable[[], object]]) -> T:
    """Call a constructor or a factory with those of `arguments` that it has as parameters.

    Args:
        make: the class or function.
        what: its kind in messages, for example "sampler".
        arguments: name -> function that makes the argument, called only if it is a parameter.
    Raises:
        UserError: it requires other arguments, or raises an exception.
    """
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # functions of C without a signature
        parameters = inspect.Signature().parameters
    by_name = {p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in variadic]
    other = [name for name in required if name not in arguments or name not in by_name]
    name = getattr(make, "__qualname__", repr(make))
    if other:
        known = f"any of the keywords {', '.join(arguments)}" if arguments else "no arguments"
        raise UserError(
            f"the {what} {name} requires {', '.join(map(repr, other))}: a {what} is constructed with {known}, and other parameters need "
            "defaults"
        )
    with running(f"the {what} {name}"):
        return make(**{key: value() for key, value in arguments.items() if key in by_name})


def _parameters(function: Callable[..., object]) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"


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
