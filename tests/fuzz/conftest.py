"""The sketches and rows of tests/schedules.py as a fixture."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

_PATH = Path(__file__).parents[1] / "schedules.py"


@cache
def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tunesmith_test_schedules", _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def schedules() -> ModuleType:
    """The module tests/schedules.py."""
    return _load()
