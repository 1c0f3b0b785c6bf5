"""Warnings name the line of user code, at any depth of library calls."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest

from tunesmith.support.caller import stacklevel


def test_the_first_frame_outside_of_the_library() -> None:
    library = ModuleType("tunesmith.example")
    vars(library).update(warnings=warnings, stacklevel=stacklevel)
    exec("def inner(): warnings.warn('deep', stacklevel=stacklevel())\ndef outer(): inner()", vars(library))
    with pytest.warns(UserWarning, match="deep") as caught:
        library.outer()
    assert caught[0].filename == __file__
