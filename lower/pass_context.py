"""Steer the passes of pipelines from outside: level, options, passes that are left out, and instruments.

    with PassContext(level=1, options={"version_loops": {"most": 8}}, disabled=["unswitch_loops"], instruments=[PassTimes()]):
        tunesmith.compile(model)

Contexts nest: an inner context changes only what it gives.  A context belongs to the thread that enters it (`contextvars`); new threads
start without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType, TracebackType
from typing import Any

from tunesmith.lower.instrument import Instrument, InstrumentError, call_instrument, check_instruments
from tunesmith.lower.pass_options import Configurable, Option, names_made, passes_named
from tunesmith.lower.renamed_passes import did_you_mean_pass
from tunesmith.support.errors import UserError
from tunesmith.support.registry import resolve

MOST_LEVEL, DEFAULT_LEVEL = 3, 2

_BUILT_IN = ("tunesmith.lower.pipelines:PASSES", "tunesmith.graph.passes.pipelines:GRAPH_PASSES")
"""Tables of passes, imported when a context names passes."""

_OF_RECORDS = ("apply_records", "tune_functions")
"""Names of passes that have no options and are never left out."""

Options = Mapping[str, Mapping[str, Option]]


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """How pipelines run while the context is entered.

    Attributes:
        level: passes of a higher level are left out (`Configurable.level`).  0 leaves only the passes that later stages need, 2 is the
            default; None keeps the level of the enclosing context.
        options: name of a pass -> its options, which replace those that the pipeline gives.
        required: names of passes that run whatever their level.
        disabled: names of optional passes that are left out, at every position of a pipeline.
        instruments: observe the passes; those of enclosing contexts come first.
    Raises:
        UserError: there is no such pass, option or level, a pass is both required and disabled, a later stage needs a disabled pass, or an
            object is no instrument.
    """

    level: int | None = None
    options: Options = field(default_factory=dict, hash=False)
    required: Collection[str] = ()
    disabled: Collection[str] = ()
    instruments: Sequence[Instrument] = ()

    def __post_init__(self) -> None:
        if self.level is not None and (type(self.level) is not int or not 0 <= self.level <= MOST_LEVEL):
            raise UserError(f"level={self.level!r:.60}: the level of a PassContext is an integer from 0 to {MOST_LEVEL}")
        names = {key: _names(key, getattr(self, key)) for key in ("required", "disabled")}
        for key, value in names.items():
            object.__setattr__(self, key, value)
        both = sorted(names["required"] & names["disabled"])
        if both:
            raise UserError(f"the pass {both[0]!r} is both required and disabled: name it once")
        object.__setattr__(self, "options", _checked_options(self.options))
        for name in sorted(names["disabled"]):
            found = passes_named(name)
            if all(p.needed_by for p in found):  # one that only some pipelines need is refused when such a pipeline runs
                _check_optional(found[0])
        if isinstance(self.instruments, (str, Mapping)) or not isinstance(self.instruments, Iterable):
            raise UserError(f"instruments={self.instruments!r:.200}: give a list of instruments")
        object.__setattr__(self, "instruments", check_instruments(self.instruments))

    @staticmethod
    def current() -> PassContext:
        """The context in force: what all entered contexts give together."""
        entered = _entered.get()
        return entered[-1] if entered else _DEFAULT

    def __enter__(self) -> PassContext:
        """Enter the context; returns the context in force."""
        entered = _entered.get()
        outer = self.current()
        merged = outer._extended(self)
        _entered.set((*entered, merged))
        done: list[Instrument] = []
        try:
            for i in _without(self.instruments, outer.instruments):
                call_instrument(i, "enter")
                done.append(i)
        except BaseException as error:
            _entered.set(entered)
            _exit(done, error)
            raise
        return merged

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        entered = _entered.get()
        if not entered:
            raise UserError("a PassContext ends in another thread or task than it was entered in: use it in a with statement")
        _entered.set(entered[:-1])
        _exit(_without(self.instruments, self.current().instruments), error)

    def runs(self, p: Configurable) -> bool:
        """Whether a pass runs.  UserError if it is disabled and a later stage needs it."""
        if p.name in self.disabled:
            _check_optional(p)
            return False
        level = DEFAULT_LEVEL if self.level is None else self.level
        return bool(p.needed_by) or p.level <= level or p.name in self.required

    def configured(self, p: Any) -> Any:
        """A pass with the options of the context.  UserError if it has no such option."""
        given = self.options.get(p.name)
        return p.with_options(**given) if given else p

    def changes(self, passes: Iterable[Configurable]) -> dict[str, Any]:
        """How the context changes a list of passes, as plain data; empty if it does not.

        Returns:
            `without`, the sorted names of passes that are left out, and `options`, those that differ from the passes' own.
        """
        without: set[str] = set()
        options: dict[str, dict[str, Option]] = {}
        for p in passes:
            if not self.runs(p):
                without.add(p.name)
            elif p.name in self.options:
                own = {**p.defaults, **dict(p.options)}
                given = {k: v for k, v in self.configured(p).options if own[k] != v}
                if given:
                    options[p.name] = given
        return {k: v for k, v in (("without", sorted(without)), ("options", dict(sorted(options.items())))) if v}

    @classmethod
    def of_changes(cls, changes: Mapping[str, Any]) -> PassContext:
        """The context that changes pipelines in the same way, without instruments: the inverse of `changes`."""
        return cls(level=MOST_LEVEL if changes else None, disabled=changes.get("without", ()), options=changes.get("options", {}))

    def _extended(self, inner: PassContext) -> PassContext:
        """This context with what an inner one gives."""
        names = {*self.options, *inner.options}
        options = {n: {**self.options.get(n, {}), **inner.options.get(n, {})} for n in sorted(names)}
        required = (frozenset(self.required) - frozenset(inner.disabled)) | frozenset(inner.required)
        disabled = (frozenset(self.disabled) - frozenset(inner.required)) | frozenset(inner.disabled)
        instruments = (*self.instruments, *_without(inner.instruments, self.instruments))
        level = self.level if inner.level is None else inner.level
        return PassContext(level=level, options=options, required=required, disabled=disabled, instruments=instruments)


_entered: ContextVar[tuple[PassContext, ...]] = ContextVar("entered", default=())


@contextmanager
def exactly(context: PassContext) -> Iterator[None]:
    """Put a context in force in place of those entered; its instruments are not entered."""
    token = _entered.set((context,))
    try:
        yield
    finally:
        _entered.reset(token)


def unobserved() -> Any:
    """The current context without instruments, for programs that are lowered on trial."""
    return exactly(replace(PassContext.current(), instruments=()))


def _exit(instruments: Collection[Instrument], error: BaseException | None) -> None:
    """Exit instruments in reverse order, all of them; an error of one of them becomes a note of the error that ended the context."""
    first = error
    for i in reversed([*instruments]):
        try:
            call_instrument(i, "exit")
        except InstrumentError as own:
            if first is None:
                first = own
            else:
                first.add_note(str(own))
    if first is not None and first is not error:
        raise first


def _without(instruments: Collection[Instrument], known: Collection[Instrument]) -> list[Instrument]:
    """The instruments that are not among the known ones, each once."""
    found: list[Instrument] = []
    for i in instruments:
        if not any(i is k for k in (*known, *found)):
            found.append(i)
    return found


def _names(key: str, given: object) -> frozenset[str]:
    """The names of passes.  UserError if one is no name of a pass."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise UserError(
            f"{key}={given!r:.200}: give a list of names of passes, such as [{given if isinstance(given, str) else 'simplify'!r}]"
        )
    found = list(given)
    for name in found:
        if isinstance(name, Configurable):
            raise UserError(f"{key} has the pass {name.name!r} itself: give its name")
        _check_known(name)
    return frozenset(found)


def check_pass_names(names: Iterable[str]) -> None:
    """Raise UserError for a name that no pass has, neither one of this process nor one that applies records or tunes."""
    for name in names:
        if name not in _OF_RECORDS:
            _check_known(name)


def _check_known(name: object) -> None:
    if isinstance(name, str) and not passes_named(name):
        for table in _BUILT_IN:
            resolve(table)
    known = names_made()
    if name not in known:
        raise UserError(f"there is no pass {name!r:.100}.{did_you_mean_pass(name, known)} `tunesmith opt --list` lists the passes")


def _checked_options(given: object) -> Options:
    if not isinstance(given, Mapping):
        raise UserError(f'options={given!r:.200}: give a mapping such as {{"version_loops": {{"most": 8}}}}')
    out: dict[str, Mapping[str, Option]] = {}
    for name, options in given.items():
        _check_known(name)
        if not isinstance(options, Mapping):
            raise UserError(f"options of the pass {name!r}: give a mapping from options to values, got {options!r:.100}")
        other = next((k for k in options if not isinstance(k, str)), None)
        if other is not None:
            raise UserError(f"options of the pass {name!r}: the name of an option is a text, not {other!r:.100}")
        out[name] = MappingProxyType(_checked_option_values(name, options))
    return MappingProxyType(out)


def _checked_option_values(name: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """The options of the passes of a name, at least one of which takes all of them."""
    error: UserError | None = None
    for p in passes_named(name):
        try:
            return {k: v for k, v in p.with_options(**options).options if k in options}
        except UserError as refused:
            error = refused
    raise error if error is not None else UserError(f"there is no pass {name!r}")


def _check_optional(p: Configurable) -> None:
    if p.needed_by:
        raise UserError(f"the pass {p.name!r} cannot be disabled: without it these do not work: {p.needed_by}")


_DEFAULT = PassContext(level=DEFAULT_LEVEL)
