"""Run matrix products and convolutions with Apache TVM (0.27 or newer), with a plain handwritten schedule or tuned by MetaSchedule."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.support.temporary_folder import temporary_folder

_ROWS, _LANES = 8, 64
"""Largest register tile of the plain schedule."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A TVM function, and the spatial loops of its block `product` that form the rows and the lanes of a register tile."""

    function: Any
    spatial: int
    row: int
    lane: int
    blocks: Sequence[str]


class TvmBaseline(Baseline):
    """TVM with one plain schedule: register tile, vectors, parallel rows.  A lower bound for TVM, not its best: see `TvmTunedBaseline`.

    TVM creates its thread pool on first use and never enlarges it.  The variable TVM_NUM_THREADS remains set.
    """

    name: ClassVar[str] = "tvm"
    package: ClassVar[str] = "apache-tvm"
    module: ClassVar[str] = "tvm"

    def available(self) -> str | None:
        """None if TVM is installed and new enough."""
        reason = super().available()
        if reason is None and importlib.util.find_spec("tvm.s_tir") is None:
            return f"apache-tvm {self.version()} is too old, 0.27 is needed"
        return reason

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant each for matmul, batch_matmul, dense and conv2d in float32."""
        if call.dtype != "float32" or call.name not in ("matmul", "batch_matmul", "dense", "conv2d") or not call.is_common:
            return []
        import tvm

        target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": self.threads})
        program = _conv2d(call) if call.name == "conv2d" else _product(call)
        # By default TVM uses half of the cores, assuming hyperthreads.  The variable is read in each parallel loop and by the
        # processes of the tuner.
        os.environ["TVM_NUM_THREADS"] = str(self.threads)
        tvm.get_global_func("runtime.config_threadpool")(1, self.threads)
        variant, module = self.schedule(program, target)
        library = tvm.compile(module, target=target)
        arguments = [tvm.runtime.tensor(value) for value in call.inputs.values()]
        result = tvm.runtime.empty(call.output, call.dtype)
        function = library["main"]

        def run() -> Any:
            function(*arguments, result)
            return result

        def output(value: Any) -> np.ndarray:
            array: np.ndarray = value.numpy()
            return array

        return [PreparedCall(variant, run, output)]

    def schedule(self, program: _Program, target: Any) -> tuple[str, Any]:
        """The variant's name for tables, and the scheduled module."""
        return "plain schedule, not tuned", _scheduled(program)


class TvmTunedBaseline(TvmBaseline):
    """TVM tuned by MetaSchedule, which takes minutes per operator.  Needs cloudpickle, xgboost and psutil."""

    name: ClassVar[str] = "tvm_tuned"
    trials: ClassVar[int] = 64
    """Candidates measured per operator."""

    def available(self) -> str | None:
        """None if TVM and the requirements of its tuner are installed."""
        missing = [name for name in ("cloudpickle", "xgboost", "psutil") if importlib.util.find_spec(name) is None]
        return super().available() or (f"TVM's tuner needs {', '.join(missing)} (pip install {' '.join(missing)})" if missing else None)

    def schedule(self, program: _Program, target: Any) -> tuple[str, Any]:
        """The best schedule of MetaSchedule, with a fixed seed."""
        return f"MetaSchedule, {self.trials} trials", _tuned(program, target, self.trials, self.threads)


def _product(call: OperatorCall) -> _Program:
    """matmul, batch_matmul, dense."""
    from tvm import te

    m, n, k = (call.number(name) for name in ("m", "n", "k"))
    batch = (call.number("b"),) if call.name == "batch_matmul" else ()
    left, right = (te.placeholder(value.shape, name=name) for name, value in list(call.inputs.items())[:2])
    axis = te.reduce_axis((0, k), name="k")

    def element(*index: Any) -> Any:
        *outer, i, j = index
        return te.sum(left(*outer, i, axis) * right(*outer, axis, j), axis=axis)

    product = te.compute((*batch, m, n), element, name="product")
    rank = len(batch) + 2
    return _finish(call, [left, right], product, rank, rank - 2, rank - 1, rank - 1, [])


def _conv2d(call: OperatorCall) -> _Program:
    """Padding as a separate stage, then the direct convolution."""
    from tvm import te, tirx

    nhwc = call.text("layout") == "NHWC"
    stride, pad, dilation, groups = (call.number(name) for name in ("stride", "pad", "dilation", "groups"))
    ci, co = call.number("ci") // groups, call.number("co") // groups
    x, w = (te.placeholder(call.inputs[name].shape, name=name) for name in ("X", "W"))
    high, wide = (1, 2) if nhwc else (2, 3)
    shape = [extent + (2 * pad if axis in (high, wide) else 0) for axis, extent in enumerate(call.inputs["X"].shape)]

    def padded_element(*index: Any) -> Any:
        y, x_ = index[high], index[wide]
        inside = tirx.all(y >= pad, y < shape[high] - pad, x_ >= pad, x_ < shape[wide] - pad)
        at = [position - pad if axis in (high, wide) else position for axis, position in enumerate(index)]
        return tirx.if_then_else(inside, x(*at), 0.0)

    padded = te.compute(shape, padded_element, name="padded") if pad else x
    r, s, c = (te.reduce_axis((0, extent), name=name) for name, extent in (("r", call.number("kh")), ("s", call.number("kw")), ("c", ci)))

    def element_nhwc(n: Any, y: Any, x_: Any, o: Any) -> Any:
        channel = c if groups == 1 else (o // co) * ci + c
        value = padded(n, y * stride + r * dilation, x_ * stride + s * dilation, channel)
        return te.sum(value * w(r, s, c, o), axis=[r, s, c])

    def element_nchw(n: Any, o: Any, y: Any, x_: Any) -> Any:
        channel = c if groups == 1 else (o // co) * ci + c
        value = padded(n, channel, y * stride + r * dilation, x_ * stride + s * dilation)
        return te.sum(value * w(o, c, r, s), axis=[c, r, s])

    product = te.compute(call.output, element_nhwc if nhwc else element_nchw, name="product")
    before = ["padded"] if pad else []
    return _finish(call, [x, w], product, 4, 2 if nhwc else 1, 3, 3 if nhwc else 1, before)


def _finish(
    call: OperatorCall, inputs: Sequence[Any], product: Any, spatial: int, row: int, lane: int, channel: int, before: Sequence[str]
) -> _Program:
    """Add bias and activation as a stage after the product, and create the function."""
    from tvm import te, tirx

    arguments, result, after = list(inputs), product, []
    bias = te.placeholder(call.inputs["bias"].shape, name="bias") if "bias" in call.inputs else None
    activation = call.activation

    def element(*index: Any) -> Any:
        value = product(*index) if bias is None else product(*index) + bias(index[channel])
        if activation == "relu":
            return tirx.max(value, 0.0)
        if activation == "gelu":
            return value * 0.5 * (1.0 + tirx.erf(value * float(np.sqrt(0.5))))
        return value

    if bias is not None:
        arguments.append(bias)
    if bias is not None or activation != "none":
        result, after = te.compute(call.output, element, name="epilogue"), ["epilogue"]
    return _Program(te.create_prim_func([*arguments, result]), spatial, row, lane, [*before, "product", *after])


def _scheduled(program: _Program) -> Any:
    """The plain schedule: rows unrolled and lanes vectorised inside all reductions, everything outside in parallel."""
    from tvm.s_tir import Schedule

    schedule = Schedule(program.function)
    if "padded" in program.blocks:
        *outer, inner = schedule.get_loops(schedule.get_sblock("padded"))
        schedule.parallel(schedule.fuse(*outer))
        schedule.vectorize(inner)
    product = schedule.get_sblock("product")
    loops = schedule.get_loops(product)
    spatial, reduction = loops[: program.spatial], loops[program.spatial :]
    row, row_inner = schedule.split(spatial[program.row], [None, _divisor(schedule, spatial[program.row], _ROWS)])
    lane, lane_inner = schedule.split(spatial[program.lane], [None, _divisor(schedule, spatial[program.lane], _LANES)])
    outer = [loop for index, loop in enumerate(spatial) if index not in (program.row, program.lane)]
    schedule.reorder(*outer, row, lane, *reduction, row_inner, lane_inner)
    last = schedule.get_sblock("epilogue") if "epilogue" in program.blocks else schedule.cache_write(product, 0, "global")
    schedule.reverse_compute_at(last, lane)
    schedule.vectorize(schedule.get_loops(last)[-1])
    schedule.vectorize(lane_inner)
    schedule.unroll(row_inner)
    schedule.parallel(schedule.fuse(*outer, row))
    schedule.decompose_reduction(product, reduction[0])
    return schedule.mod


def _divisor(schedule: Any, loop: Any, most: int) -> int:
    extent = int(schedule.get(loop).extent)
    return max(size for size in range(1, most + 1) if extent % size == 0)


def _tuned(program: _Program, target: Any, trials: int, threads: int) -> Any:
    """The best schedule of MetaSchedule in `trials` trials, with a fixed seed."""
    from tvm.s_tir import meta_schedule

    with temporary_folder("tunesmith-tvm-") as folder:
        database = meta_schedule.tune_tir(
            program.function, target, str(folder), max_trials_global=trials, num_trials_per_iter=16, num_tuning_cores=threads, seed=0
        )
        schedule = meta_schedule.tir_integration.compile_tir(database, program.function, target)
    if schedule is None:
        raise RuntimeError(f"MetaSchedule found no valid schedule in {trials} trials")
    return schedule.mod
