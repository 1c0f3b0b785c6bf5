"""TVM-FFI functions of Python callables: arguments, errors, lifetime."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tunesmith.runtime.checker.call_arguments import CallArguments, UnusableValue
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.dlpack import TensorView
from tunesmith.runtime.ffi_callback import ffi_function
from tunesmith.support.errors import RunError
from tunesmith.testing.ffi_calls import RawTensor, RawValue, raw_call, raw_of


def test_tensors_are_views_and_others_unusable() -> None:
    seen: list[object] = []
    function = ffi_function(lambda *arguments: seen.extend(arguments))
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert function(x, 3, None, "text", [1]) is None
    view, *others = seen
    assert isinstance(view, TensorView) and (view.address, view.shape, view.dtype) == (x.ctypes.data, (2, 3), "float32")
    hint = "pass a tensor (numpy, torch or any other DLPack array)"
    kinds = ("int", "None", "ffi.SmallStr", "ffi.Array")
    assert others == [UnusableValue(f"a value of type {kind}: {hint}") for kind in kinds]
    seen.clear()
    assert raw_call(function, [RawValue(7), RawTensor(x, None, ndim=2), RawTensor(x, None, ndim=-3)]) == ""
    assert seen[:2] == [UnusableValue("a null pointer")] * 2
    assert isinstance(seen[2], TensorView) and seen[2].shape == ()


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError("v"), ValueError), (TypeError("t"), TypeError), (RunError("r"), RuntimeError), (KeyboardInterrupt("k"), Exception)],
)
def test_exceptions_are_errors_of_the_caller(error: BaseException, kind: type[Exception]) -> None:
    def fail(*_: object) -> None:
        raise error

    function = ffi_function(fail)
    assert raw_call(function, []) == str(error)
    if not isinstance(error, KeyboardInterrupt):
        with pytest.raises(kind, match=str(error)):
            function()


def test_the_callable_lives_as_long_as_the_function() -> None:
    class Callable:
        def __call__(self, *_: object) -> None:
            return None

    target = Callable()
    gone = weakref.ref(target)
    function = ffi_function(target)
    del target
    gc.collect()
    function()
    del function
    gc.collect()
    assert gone() is None


def test_results_of_the_callable_are_dropped() -> None:
    assert ffi_function(lambda: 7)() is None


def test_messages_name_the_argument() -> None:
    arguments = CallArguments("f", [ParamSpec("a", "int8", (2,), written=True)])
    with pytest.raises(RunError, match=r"f: argument 0 \(a\): expected int8\[2\], got a null pointer"):
        arguments.view(0, UnusableValue("a null pointer"))
    with pytest.raises(RunError, match=r"f: expected 1 argument\(s\), got 0; signature: f\(a: int8\[2\]\)"):
        arguments.check_count([])
    assert raw_call(ffi_function(lambda *a: arguments.check_count(a)), [raw_of(np.zeros(2, "int8"))]) == ""
