"""`import tunesmith` loads modules on first use, and functions are not replaced by modules of the same name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tunesmith


def fresh(program: str) -> str:
    """Output of a new interpreter."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_exists() -> None:
    for name in tunesmith.__all__:
        assert getattr(tunesmith, name) is not None
        assert name in dir(tunesmith)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tunesmith.nonsense  # noqa: B018


def test_a_function_keeps_its_name_when_its_module_is_imported_first() -> None:
    assert (
        fresh("import tunesmith.driver.compile, tunesmith.driver.tune\nprint(callable(tunesmith.compile), callable(tunesmith.tune))")
        == "True True"
    )
    assert fresh("from tunesmith.driver.bench.bench import BenchPolicy\nimport tunesmith\nprint(callable(tunesmith.bench))") == "True"
    assert fresh("from tunesmith import compile, replay\nprint(callable(compile), callable(replay))") == "True True"


def test_script_and_te_are_modules() -> None:
    program = (
        "import tunesmith\nimport tunesmith.script as T\nfrom tunesmith import script, te\n"
        "print(T is script, T is tunesmith.script, tunesmith.te is te, T.float32, T.exp, callable(te.compute))"
    )
    assert fresh(program) == "True True True T.float32 T.exp True"


def test_using_records_loads_no_learning_library() -> None:
    program = "import sys, tunesmith\ntunesmith.compile('relu(shape=8)')\nprint({'xgboost', 'pandas', 'torch'} & set(sys.modules))"
    assert fresh(program) == "set()"
