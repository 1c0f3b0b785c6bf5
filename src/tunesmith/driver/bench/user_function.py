"""Time a function of the user beside the other systems: call it with the inputs, wait for asynchronous results, and check its outputs.

Its inputs and outputs are compared again after the timed calls: a function that overwrites its inputs, or computes in its first call only,
is refused.  Read-only inputs would not prevent that: torch writes to them, and warns of them in every process.

Results of JAX and of torch on NVIDIA GPUs are complete only some time after a function returned them.  Each call includes this time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from tunesmith.driver.bench.setting import Data, Setting
from tunesmith.driver.bench.worker import Call, Ready, System, Window, wrong_outputs
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.precision import EPS
from tunesmith.support import user_code
from tunesmith.support.errors import RunError, TunesmithError, UserError
from tunesmith.support.load_from_file import load_from_file

_CONTRACT = (
    "It is called as f(*inputs), with the inputs of the workload as numpy arrays, and returns the outputs, or a function without arguments "
    "that computes them; then only that function is timed"
)


class FunctionSystem(System):
    """A function of the user, `path.py:name`, called with the inputs of the workload as numpy arrays.

    It returns the outputs: an array or tensor, or a tuple, list or dict of them.  Or it returns a function without arguments that computes
    the outputs; then the work before is not timed.  Its attribute `precision` ("bf16") declares a compute precision other than that of the
    workload, see `measure.precision`.
    """

    def __init__(self, spec: str) -> None:
        super().__init__()
        self._spec = spec
        self._function: Callable[..., object] | None = None
        self._precision = ""
        self._setting: Setting | None = None
        self._inputs: Sequence[Array] = ()
        """The inputs that the function has; a correct one leaves them as they are."""
        self._again: Call | None = None
        """The call to time, without the wait for its result."""

    def available(self) -> str:
        """See `System.available`."""
        try:
            found = load_from_file(self._spec)
        except UserError as error:
            return str(error)
        if not callable(found):
            return f"{self._spec!r} is {user_code.shown(found)}, not a function of the inputs"
        self._function = found
        precision = getattr(found, "precision", "")
        if precision and precision not in EPS:
            return f"the attribute `precision` of {self._spec} is {precision!r:.80}; the precisions are {', '.join(EPS)}"
        self._precision = precision
        return ""

    def ready(self, setting: Setting, data: Data) -> Ready | None:
        """See `System.ready`.

        Raises:
            UserError: the function takes other arguments, or raises an exception.
            RunError: number, shapes or kinds of the outputs differ from those of the workload, or it has written to an input.
        """
        if setting.updates:
            raise RunError("the program updates its outputs, and functions for comparison get the inputs only")
        self._setting, self._inputs = setting, data.inputs
        call, made = self._first_call(data.inputs)
        self._again = call
        outputs = self._checked(made, data.reference)
        written = self._written(Data.load(setting))
        if written:
            raise RunError(written)
        devices = _cuda_devices(made)
        if devices:
            self._finish = partial(_synchronize, devices)
        return Ready("function", completing(call, made), outputs, self._precision)

    def window(self, length: float) -> Window:
        """See `System.window`.  Raises UserError if a call fails."""
        with user_code.running(f"{self._spec}, in a call after the first,"):
            return super().window(length)

    def changed(self) -> str:
        """See `System.changed`."""
        assert self._setting is not None and self._again is not None
        data = Data.load(self._setting)
        written = self._written(data)
        if written:
            return written
        with user_code.running(f"{self._spec}, in a call after the first,"):
            made = self._again()
        try:
            outputs = self._checked(made, data.reference)
        except RunError as error:
            return f"the outputs were right in the first call, and are wrong after the timed calls: {error}"
        wrong = wrong_outputs(outputs, data.reference, self._setting.tolerance(self._precision or self._setting.precision))
        return f"the outputs of {self._spec} were right in the first call, and are wrong after the timed calls: {wrong}" if wrong else ""

    def _written(self, data: Data) -> str:
        """Which inputs the function has written to, given the data of the workload; empty if none."""
        pairs = enumerate(zip(self._inputs, data.inputs, strict=True))
        written = [f"input{i}" for i, (own, given) in pairs if not np.array_equal(own, given, equal_nan=own.dtype.kind == "f")]
        if not written:
            return ""
        return f"{self._spec} writes to {' and '.join(written)}, so that each call would have other inputs: compute in an array of its own"

    def _first_call(self, inputs: Sequence[Array]) -> tuple[Call, object]:
        """The call to time, and its first result."""
        assert self._function is not None
        try:
            user_code.check_parameters(self._function, [f"input{i}" for i in range(len(inputs))], self._spec)
        except UserError as error:
            raise UserError(f"{error}. {_CONTRACT}") from None
        call: Call = partial(self._function, *inputs)
        try:
            with user_code.running(self._spec):
                made = call()
        except UserError as error:
            given = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
            raise UserError(f"{error}. Its arguments are numpy arrays, the inputs of the workload: {given}") from error
        if not callable(made):
            return call, made
        call = cast(Any, made)
        with user_code.running(f"the function that {self._spec} returned"):
            return call, call()

    def _arrays(self, result: object) -> list[Array]:
        """Copies of the outputs in a result.  Raises RunError if numpy cannot convert them, and UserError if user code fails there."""
        found = _outputs(result)
        try:
            with user_code.running(self._spec):
                return [_array(x) for x in found]
        except TunesmithError:
            raise
        except Exception as error:
            kinds = ", ".join(map(user_code.shown, found))
            raise RunError(
                f"{self._spec} returned {kinds}, of which numpy makes no arrays ({type(error).__name__}: {error}): return arrays or tensors"
            ) from error

    def _checked(self, result: object, reference: Sequence[Array]) -> Sequence[Array]:
        """The outputs in a result, with the element kinds of the reference.  Raises RunError if number, shapes or kinds differ."""
        outputs = self._arrays(result)
        got, want = [[f"{a.dtype}{list(a.shape)}" for a in x] for x in (outputs, reference)]
        if [(a.shape, a.dtype.kind) for a in outputs] != [(a.shape, a.dtype.kind) for a in reference]:
            returned = ", ".join(got) if outputs and all(a.dtype.kind != "O" for a in outputs) else user_code.shown(result)
            raise RunError(f"{self._spec} returned {returned}; the workload has {', '.join(want)}")
        return [a.astype(e.dtype, copy=False) for a, e in zip(outputs, reference, strict=True)]


def user_function(spec: str) -> System:
    """The system that runs a function of the user."""
    return FunctionSystem(spec)


def completing(call: Call, result: object) -> Call:
    """The call with a wait for the results that have a method `block_until_ready`; the call itself if this result of it has none."""
    if hasattr(result, "block_until_ready"):
        return lambda: cast(Any, call()).block_until_ready()
    if not any(hasattr(x, "block_until_ready") for x in _leaves(result)):
        return call

    def complete() -> None:
        for x in _leaves(call()):
            wait = getattr(x, "block_until_ready", None)
            if wait is not None:
                wait()

    return complete


def _outputs(result: object) -> Sequence[object]:
    """The outputs in a result, one or several."""
    if isinstance(result, Mapping):
        return list(result.values())
    return result if isinstance(result, (tuple, list)) else [result]


def _leaves(result: object) -> Iterator[object]:
    """The arrays and tensors in nested containers."""
    if not isinstance(result, (Mapping, tuple, list)):
        yield result
        return
    for x in _outputs(result):
        yield from _leaves(x)


def _cuda_devices(result: object) -> list[object]:
    """The GPUs of torch that compute the result."""
    torch = sys.modules.get("torch")  # without torch there is no tensor of it
    if torch is None:
        return []
    return list(dict.fromkeys(x.device for x in _leaves(result) if isinstance(x, torch.Tensor) and x.is_cuda))


def _synchronize(devices: Sequence[object]) -> None:
    """Wait for all calls on GPUs of torch."""
    for device in devices:
        cast(Any, sys.modules["torch"]).cuda.synchronize(device)


def _array(output: Any) -> Array:
    """A copy of an output in host memory; bfloat16 as float32, which numpy lacks."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(output, torch.Tensor):
        output = output.detach()  # numpy takes no tensor that requires a gradient
        output = output.cpu() if output.is_cuda else output
        output = output.float() if output.dtype == torch.bfloat16 else output
    found = np.array(np.asarray(output))
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found
