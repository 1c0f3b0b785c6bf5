"""Errors of user code are reported with the line of user code; defects of the library are not converted."""

from __future__ import annotations

import sys
from abc import abstractmethod
from functools import partial

import pytest

from tunesmith.search.samplers.sampler import Sampler
from tunesmith.support.errors import ScriptError, UserError
from tunesmith.support.user_code import check_complete, check_parameters, construct, described, running


def test_the_users_line_is_named() -> None:
    line = sys._getframe().f_lineno + 3
    with pytest.raises(UserError, match=rf"the sampler s.py raised ZeroDivisionError: .* at .*test_user_code.py:{line} in test_the_users"):
        with running("the sampler s.py"):
            1 / 0  # noqa: B018


def test_errors_of_the_library_are_not_converted() -> None:
    error = ScriptError("as it is")
    with pytest.raises(ScriptError) as caught, running("the model"):
        raise error
    assert caught.value is error


def test_an_error_without_a_frame_of_user_code() -> None:
    try:
        sys.modules["json"].loads("{")
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        text, is_users = described(error)
    assert not is_users and text.startswith("JSONDecodeError: ") and "decoder.py" in text


def test_a_function_with_other_parameters_is_refused() -> None:
    check_parameters(lambda *given: given, ("func", "target"), "the rule f")
    check_parameters(dict.fromkeys, ("func", "target"), "the rule f")
    with pytest.raises(UserError, match=r"the rule f is called with \(func, target\), which it does not take: too many positional"):
        check_parameters(lambda func: func, ("func", "target"), "the rule f")


def test_a_constructor_gets_the_arguments_that_it_has() -> None:
    made = {"seed": lambda: 3, "task": partial(pytest.fail, "the argument is not a parameter")}
    assert construct(lambda seed, other=1, **rest: (seed, other, rest), "sampler", made) == (3, 1, {})
    with pytest.raises(UserError, match="the sampler .*<lambda> requires 'space': a sampler is constructed with any of the keywords seed"):
        construct(lambda space, seed: None, "sampler", made)
    with pytest.raises(UserError, match="requires 'n': a thing is constructed with no arguments, and other parameters need defaults"):
        construct(lambda n: n, "thing", {})
    with pytest.raises(UserError, match="the sampler .*<lambda> raised ZeroDivisionError: .*test_user_code.py"):
        construct(lambda: 1 / 0, "sampler", {})


def test_methods_are_compared_with_those_of_the_contract() -> None:
    class Wider(Sampler):
        def ask(self, n: int, hint: int = 0) -> list[object]:  # type: ignore[override]
            return []

        def tell(self, *results: object) -> None: ...

    class Later(Wider):
        @abstractmethod
        def tell(self) -> None: ...  # type: ignore[override]

    class Narrow(Wider):
        def tell(self) -> None: ...  # type: ignore[override]

    check_complete(Wider, "the sampler")
    check_complete(3, "the sampler")
    with pytest.raises(UserError, match="the sampler Later has no tell"):
        check_complete(Later, "the sampler")
    with pytest.raises(UserError, match=r"Narrow defines tell\(self\), and is called as tell\(self, results\): .*sampler.Sampler$"):
        check_complete(Narrow, "the sampler")
