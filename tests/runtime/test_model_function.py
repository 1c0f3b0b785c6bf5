"""Models called as one function: new arrays, arrays of the caller, and TVM-FFI, for each executor."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.model_function import ModelFunction
from tunesmith.runtime.module import load_executable
from tunesmith.support.errors import RunError
from tunesmith.testing.ffi_calls import fuzz_function, raw_of

X = np.random.default_rng(1).integers(-4, 5, (4, 8)).astype("float32")
SHAPES = ((2, 32), (4, 16), (4, 8))


@pytest.fixture(params=["graph", "vm", "aot"])
def main(request: pytest.FixtureRequest, model: Any) -> ModelFunction:
    return ModelFunction(load_executable(getattr(model, request.param)))


def outputs() -> list[np.ndarray]:
    return [np.full(shape, np.nan, "float32") for shape in SHAPES]


def test_new_arrays_and_arrays_of_the_caller(main: ModelFunction, model: Any) -> None:
    wanted = model.reference(X)
    for call in (main, main.ffi, lambda *arrays: main.bind(*arrays)()):
        made = outputs()
        assert call(X, *made) is None
        assert all(np.array_equal(a, b) for a, b in zip(made, wanted, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(main(X), wanted, strict=True))
    assert main.name == "main" and main.ffi is main.ffi
    assert str(main._arguments) == "main(x: float32[4, 8], y: float32[2, 32], h: float32[4, 16], x: float32[4, 8])"
    assert repr(main).startswith("<function main(x: float32[4, 8], y: ")


def test_inputs_that_were_set_stay(main: ModelFunction, model: Any) -> None:
    executor = main.executor
    executor.set_input("x", X)
    main(X + 1, *outputs())
    executor.run()
    assert np.array_equal(executor.get_output(0), model.reference(X)[0])


def test_arrays_are_not_kept_after_the_call(main: ModelFunction, model: Any) -> None:
    """What is computed later does not use memory of an earlier caller."""
    x = X.copy()
    gone = weakref.ref(x)
    main(x, *outputs())
    del x
    main(X, *outputs())
    gc.collect()
    assert gone() is None
    assert np.array_equal(main(X)[0], model.reference(X)[0])


def test_refusals(main: ModelFunction) -> None:
    y, h, same = outputs()
    fixed = np.zeros((4, 8), "float32")
    fixed.flags.writeable = False
    main(fixed, y, h, same)
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((X, y.astype("float64"), h, same), r"main: argument 1 \(y\): expected float32\[2, 32\], got dtype float64"),
        ((X, y, h.T, same), r"main: argument 2 \(h\): expected float32\[4, 16\], got shape \[16, 4\]"),
        ((X, y[:, ::2].repeat(2, 1)[:, ::-1], h, same), r"argument 1 \(y\): .*got strides \[32, -1\] \(in elements\): it must be contig"),
        ((X, y, h, fixed), r"argument 3 \(x\): expected float32\[4, 8\], got a read-only array, and it is written: pass a writable copy"),
        ((X, y, h, X), r"argument 3 \(x\): .* got memory that it shares with argument 0 \(x\), and one of the two is written"),
        ((X, y, y.reshape(4, 16), same), r"argument 2 \(h\): .* got memory that it shares with argument 1 \(y\)"),
        ((X, y, h, 3), r"argument 3 \(x\): .*, got a value of type int: pass an array"),
        ((X, y, h, None), r"argument 3 \(x\): .*, got a value of type NoneType"),
    ]
    for arguments, message in cases:
        with pytest.raises(RunError, match=message):
            main(*arguments)
    with pytest.raises(RunError, match=r"the program takes 1 input\(s\), got 2"):
        main(X, y)
    with pytest.raises(RuntimeError, match=r"main: expected 4 argument\(s\), got 2; signature: main\(x: float32"):
        main.ffi(X, y)


@pytest.mark.parametrize("seed", range(2))
def test_invalid_arguments_of_c_callers(main: ModelFunction, seed: int) -> None:
    fuzz_function(main.ffi, "main", "xyhx", lambda: [raw_of(X.copy()), *map(raw_of, outputs())], seed)


def test_dynamic_shapes(sized_model: Executable) -> None:
    main = ModelFunction(load_executable(sized_model))
    for n in (1, 5):
        x, y = np.ones((n, 8), "float32"), np.zeros(n * 16, "float32")
        main.ffi(x, y)
        assert np.array_equal(y, main(x))
    with pytest.raises(
        RunError, match=r"main: argument 1 \(y\): expected float32\[16\*n\], got shape \[32\], and these inputs give \[48\]"
    ):
        main(np.ones((3, 8), "float32"), np.zeros(32, "float32"))
    with pytest.raises(RunError, match=r"main: argument 0 \(x\): expected float32\[n, 8\], got shape \[8\]"):
        main(np.ones(8, "float32"), np.zeros(16, "float32"))
    with pytest.raises(RunError, match="the program requires n < 129, and the inputs have n = 129"):
        main(np.ones((129, 8), "float32"), np.zeros(129 * 16, "float32"))


def test_the_function_keeps_the_model(model: Any) -> None:
    function = ModelFunction(load_executable(model.graph)).ffi
    gc.collect()
    made = outputs()
    function(X, *made)
    assert np.array_equal(made[0], model.reference(X)[0])
