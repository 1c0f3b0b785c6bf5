"""Warnings name the line of user code, at any depth of library calls."""

from __future__ import annotations

import warnings
from functools import cached_property
from threading import Thread
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


def test_frames_of_the_standard_library_are_skipped() -> None:
    library = ModuleType("tunesmith.example")
    vars(library).update(warnings=warnings, stacklevel=stacklevel)
    exec("def inner(_): warnings.warn('deep', stacklevel=stacklevel())", vars(library))

    class Subject:
        value = cached_property(library.inner)

    with pytest.warns(UserWarning, match="deep") as caught:
        Subject().value  # noqa: B018  its first evaluation is by functools
    assert caught[0].filename == __file__


def test_a_call_without_user_code_is_attributed_to_the_library() -> None:
    library = ModuleType("tunesmith.example")
    vars(library).update(stacklevel=stacklevel)
    exec("def inner(levels): levels.append(stacklevel())", vars(library))
    levels: list[int] = []
    thread = Thread(target=library.inner, args=(levels,))
    thread.start()
    thread.join()
    assert levels == [1]
