"""Errors of user code are reported with the line of user code; defects of the library are not converted."""

from __future__ import annotations

import sys

import pytest

from tunesmith.support.errors import ScriptError, UserError
from tunesmith.support.user_code import described, running


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
