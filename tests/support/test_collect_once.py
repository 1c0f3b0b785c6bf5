"""Test that garbage is collected once, at the end of a block."""

from __future__ import annotations

import gc
import weakref

import pytest

from tunesmith.support.collect_once import collected_once


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_cycles_of_the_block_are_collected_at_its_end() -> None:
    assert gc.isenabled()
    with collected_once():
        made = [weakref.ref(Cycle()) for _ in range(2000)]
        assert not gc.isenabled() and all(r() is not None for r in made)
    assert gc.isenabled() and all(r() is None for r in made)


def test_an_error_and_a_disabled_collector_are_respected() -> None:
    with pytest.raises(ValueError), collected_once():
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with collected_once():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
