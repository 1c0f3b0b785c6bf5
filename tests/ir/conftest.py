"""The programs of tests/programs.py as a fixture: a test asks for `programs` and builds what it needs."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

_PATH = Path(__file__).parents[1] / "programs.py"


@cache
def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tunesmith_test_programs", _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    """The module tests/programs.py."""
    return _load()
