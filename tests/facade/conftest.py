"""The records of tests/hand_records.py as a fixture."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_PATH = Path(__file__).parents[1] / "hand_records.py"


def _load() -> ModuleType:
    name = "tunesmith_test_hand_records"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _PATH)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def hand() -> ModuleType:
    """The module tests/hand_records.py."""
    return _load()
