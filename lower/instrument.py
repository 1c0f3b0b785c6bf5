"""Define instruments, which observe passes, and run a pass under the instruments of a context."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tunesmith.support.errors import UserError

T = TypeVar("T")
IR = Any
"""What a pass gets: a PrimFunc, or an IRModule for a pass of modules and for a pass of functions in a pipeline that is called with one."""


class InstrumentError(UserError):
    """An instrument failed, or refused the result of a pass."""


class Instrument:
    """Base class of instruments: override what is needed.

    An instrument must not change the program.  A pass may run others: their calls are between its `before` and `after`.  One instrument
    observes the passes of the thread that entered its context.  Exceptions are raised as InstrumentError with the name of the instrument.
    """

    @property
    def name(self) -> str:
        """The name in messages; by default that of the class."""
        return type(self).__name__

    def enter(self) -> None:
        """Called when the context of the instrument is entered."""

    def exit(self) -> None:
        """Called when that context ends, also by an exception."""

    def should_run(self, name: str, ir: IR) -> bool:
        """Whether an optional pass runs; passes that a later stage needs run in any case.  Every instrument must agree."""
        return True

    def before(self, name: str, ir: IR) -> None:
        """Called before a pass, with the program that it gets."""

    def after(self, name: str, before: IR, after: IR, seconds: float) -> None:
        """Called after a pass; an unchanged program is the same object.  The time includes that of the passes inside."""

    def failed(self, name: str, before: IR, error: BaseException, seconds: float) -> None:
        """Called in place of `after` when a pass raises."""


def check_instruments(given: Iterable[object]) -> tuple[Instrument, ...]:
    """The instruments.  UserError if one of them is no Instrument."""
    found = tuple(given)
    for i in found:
        if isinstance(i, type) and issubclass(i, Instrument):
            raise UserError(f"{i.__name__} is the class of an instrument: pass an object, {i.__name__}(...)")
        if not isinstance(i, Instrument):
            raise UserError(
                f"{i!r:.200} is no instrument: derive its class from tunesmith.instruments.Instrument, and define before or after"
            )
    return found  # type: ignore[return-value]  # checked above


def call_instrument(i: Instrument, method: str, *args: object) -> Any:
    """Call a method of an instrument.

    Raises:
        InstrumentError: it raised an exception; the message names the instrument and the pass.
    """
    try:
        return getattr(i, method)(*args)
    except Exception as error:  # an instrument is user code
        where = f" of the pass {args[0]!r}" if args else ""
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise InstrumentError(f"the instrument {i.name} failed in {method}{where}: {kind}{error}") from error


def observed(instruments: Sequence[Instrument], name: str, ir: T, run: Callable[[], T], optional: bool) -> T:
    """Run a pass under instruments.

    Args:
        instruments: called in order.
        name: name of the pass.
        ir: what the pass gets.
        run: runs the pass.
        optional: whether instruments may leave out the pass; its result is then `ir`.
    Raises:
        InstrumentError: an instrument raised an exception.
    """
    if optional and not all([_agrees(i, name, ir) for i in instruments]):
        return ir
    for i in instruments:
        call_instrument(i, "before", name, ir)
    start = time.perf_counter()
    try:
        out = run()
    except BaseException as error:
        seconds = time.perf_counter() - start
        for i in instruments:
            try:
                call_instrument(i, "failed", name, ir, error, seconds)
            except InstrumentError as second:
                error.add_note(str(second))
        raise
    seconds = time.perf_counter() - start
    for i in instruments:
        call_instrument(i, "after", name, ir, out, seconds)
    return out


def can_skip(i: Instrument) -> bool:
    """Whether an instrument may leave out passes."""
    return type(i).should_run is not Instrument.should_run


def _agrees(i: Instrument, name: str, ir: object) -> bool:
    found = call_instrument(i, "should_run", name, ir)
    if not isinstance(found, bool):
        raise InstrumentError(f"the instrument {i.name} returned {found!r:.60} from should_run for the pass {name!r}: return True or False")
    return found
