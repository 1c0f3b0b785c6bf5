"""Own functions that overwrite their inputs, or compute in their first call only, are refused, and errors name the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tunesmith.driver.bench.entry import find_entries
from tunesmith.driver.bench.setting import Setting
from tunesmith.driver.bench.user_function import FunctionSystem
from tunesmith.support.errors import RunError, UserError

MINE = """
import numpy as np

calls = 0


def right(x):
    return np.maximum(x, 0)


def in_place(x):
    return np.maximum(x, 0, out=x)


def in_place_later(x):
    def call():
        global calls
        calls += 1
        return np.maximum(x, 0, out=x if calls > 1 else None)

    return call


def computes_once(x):
    global calls
    calls += 1
    return np.maximum(x, 0) if calls == 1 else None


def zeros_later(x):
    global calls
    calls += 1
    return np.maximum(x, 0) * (calls == 1)


def fails_later(x):
    global calls
    calls += 1
    if calls > 5:
        raise RuntimeError("enough")
    return np.maximum(x, 0)


def ragged(x):
    return [[x, [x, 1]]]


def with_gradient(x):
    import torch

    return torch.relu(torch.from_numpy(x).requires_grad_())
"""


@pytest.fixture
def relu(tmp_path: Path) -> Setting:
    (tmp_path / "mine.py").write_text(MINE)
    (entry,) = find_entries("relu(shape=16)")
    return entry.save(tmp_path, "w", 0)


def system(setting: Setting, name: str) -> FunctionSystem:
    found = FunctionSystem(f"{Path(setting.inputs).parent}/mine.py:{name}")
    assert found.available() == ""
    return found


def after_a_window(setting: Setting, name: str) -> str:
    own = system(setting, name)
    assert own.prepare(setting).wrong == ""
    own.window(1e-3)
    return own.changed()


def test_a_function_that_does_the_same_in_each_call_is_unchanged(relu: Setting) -> None:
    assert after_a_window(relu, "right") == ""


def test_a_function_that_writes_to_its_inputs_is_refused(relu: Setting) -> None:
    with pytest.raises(
        RunError, match=r"mine.py:in_place writes to input0, so that each call would have other inputs: compute in an array"
    ):
        system(relu, "in_place").prepare(relu)
    assert "mine.py:in_place_later writes to input0" in after_a_window(relu, "in_place_later")


def test_outputs_are_compared_after_the_windows(relu: Setting) -> None:
    wrong = "right in the first call, and are wrong after the timed calls: "
    assert f"{wrong}{Path(relu.inputs).parent}/mine.py:computes_once returned None" in after_a_window(relu, "computes_once")
    zeros = after_a_window(relu, "zeros_later")
    assert f"mine.py:zeros_later were {wrong}" in zeros and "elements are wrong" in zeros


def test_errors_of_later_calls_name_their_line(relu: Setting) -> None:
    own = system(relu, "fails_later")
    assert own.prepare(relu).wrong == ""
    with pytest.raises(
        UserError, match=r"fails_later, in a call after the first, raised RuntimeError: enough at .*mine.py:\d+ in fails_later"
    ):
        own.window(1e-3)


def test_results_that_are_no_arrays_are_named(relu: Setting) -> None:
    with pytest.raises(RunError, match=r"mine.py:ragged returned a list, of which numpy makes no arrays \(ValueError: .*return arrays"):
        system(relu, "ragged").prepare(relu)


def test_tensors_may_require_a_gradient(relu: Setting) -> None:
    pytest.importorskip("torch")
    prepared = system(relu, "with_gradient").prepare(relu)
    assert prepared.wrong == "" and prepared.error is not None and np.isfinite(prepared.error)
