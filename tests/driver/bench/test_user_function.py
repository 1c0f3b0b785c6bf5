"""Own functions are called with numpy arrays, waited for if they are asynchronous, and may declare their precision."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tunesmith.driver.bench.entry import find_entries
from tunesmith.driver.bench.setting import Setting
from tunesmith.driver.bench.user_function import FunctionSystem, completing
from tunesmith.support.errors import UserError

MINE = """
import threading
import time

import numpy as np

TAKEN_S = 5e-3


class Later:
    '''A result that another thread computes.'''

    def __init__(self, value):
        self.value, self.done = value, threading.Event()
        threading.Timer(TAKEN_S, self.done.set).start()

    def block_until_ready(self):
        self.done.wait()
        return self

    def __array__(self, dtype=None, copy=None):
        self.block_until_ready()
        return self.value


def lazy(x):
    return Later(np.maximum(x, 0))


def lazy_tuple(x):
    return (lazy(x),)


def lazy_dict(x):
    return lambda: {"y": lazy(x)}


def no_inputs():
    return lambda: 0


def tensors_only(x):
    raise TypeError("argument 'input' must be Tensor, not numpy.ndarray")


def fails_later(x):
    def call():
        raise KeyError("not yet")

    return call


def rounded(x):
    bits = x.view(np.uint32)
    return np.maximum(((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32), 0)


def declared(x):
    return rounded(x)


declared.precision = "bf16"


def misspelt(x):
    return rounded(x)


misspelt.precision = "bfloat16"
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def relu(tmp_path: Path) -> Setting:
    (entry,) = find_entries("relu(shape=16)")
    return entry.save(tmp_path, "w", 0)


def system(mine: Path, name: str) -> FunctionSystem:
    found = FunctionSystem(f"{mine}:{name}")
    assert found.available() == ""
    return found


@pytest.mark.parametrize("name", ["lazy", "lazy_tuple", "lazy_dict"])
def test_asynchronous_results_are_waited_for_in_each_timed_call(mine: Path, relu: Setting, name: str) -> None:
    own = system(mine, name)
    assert own.prepare(relu).wrong == ""
    window = own.window(1e-3)
    assert window.number == 1 and min(window.seconds) >= 5e-3  # a bound of what the result takes, not of this machine


def test_other_results_cost_nothing() -> None:
    def call() -> tuple[np.ndarray]:
        return (np.ones(3),)

    assert completing(call, call()) is call


class Tensor:
    """A tensor of the stand-in for torch."""

    dtype, device = "float32", "cuda:1"

    def __init__(self, value: np.ndarray, is_cuda: bool) -> None:
        self.value, self.is_cuda = value, is_cuda

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return Tensor(self.value, False)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        assert not self.is_cuda  # as torch
        return self.value


@pytest.mark.parametrize("is_cuda", [True, False])
def test_tensors_on_a_gpu_are_waited_for(mine: Path, relu: Setting, monkeypatch: pytest.MonkeyPatch, is_cuda: bool) -> None:
    waited: list[object] = []
    torch = ModuleType("torch")
    torch.__dict__.update(Tensor=Tensor, bfloat16="bfloat16", cuda=SimpleNamespace(synchronize=waited.append))
    monkeypatch.setitem(sys.modules, "torch", torch)
    own = system(mine, "lazy")
    own._function = lambda x: [Tensor(np.maximum(x, 0), is_cuda)]
    assert own.prepare(relu).wrong == "" and not waited
    own.window(1e-3)
    assert set(waited) == ({"cuda:1"} if is_cuda else set())


def test_the_contract_is_in_the_errors(mine: Path, relu: Setting) -> None:
    with pytest.raises(UserError, match=r"no_inputs is called with \(input0\), which it does not take.*It is called as f\(\*inputs\)"):
        system(mine, "no_inputs").prepare(relu)
    wanted = r"must be Tensor, not numpy.ndarray.*Its arguments are numpy arrays, the inputs of the workload: float32\[16\]"
    with pytest.raises(UserError, match=wanted):
        system(mine, "tensors_only").prepare(relu)
    with pytest.raises(UserError, match=r"the function that .*fails_later returned raised KeyError: 'not yet'"):
        system(mine, "fails_later").prepare(relu)


def test_a_function_declares_its_precision(mine: Path, relu: Setting) -> None:
    assert "elements are wrong" in system(mine, "rounded").prepare(relu).wrong
    prepared = system(mine, "declared").prepare(relu)
    assert (prepared.wrong, prepared.precision) == ("", "bf16")
    missing = FunctionSystem(f"{mine}:misspelt").available()
    assert "misspelt is 'bfloat16'; the precisions are f16, bf16" in missing


def test_bfloat16_outputs_are_compared_as_float32(mine: Path, relu: Setting) -> None:
    torch = pytest.importorskip("torch")
    own = system(mine, "declared")
    own._function = lambda x: torch.relu(torch.from_numpy(x).bfloat16())
    prepared = own.prepare(relu)
    assert prepared.wrong == "" and prepared.error is not None and 0 < prepared.error < 2**-7
