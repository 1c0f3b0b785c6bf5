"""Compare whole models with baselines: `python experiments/models/run.py resnet18 --log runs/models.jsonl --trials 1000`.

A model is imported from torch, its tasks are tuned up to a number of trials (including those in the log), and it is compiled with the log.
Each system runs it in a separate process, in turns.  Outputs are compared with those of the torch model in float64 first; a system whose
error its compute precision does not explain is skipped.  Prints medians over rounds with precision and error, the ratio to the fastest
baseline of our precision, and our functions beside the least times of the machine.  With `--cold`, more windows flush the caches before
each call, so that weights are read from main memory.

With `--precision int8`, onnxruntime quantises the model once, into a file beside the log that all systems read, ours included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith.experiments.models.files import Files
from tunesmith.experiments.models.systems import INT8, PREPARE
from tunesmith.experiments.models.torch_systems import float64_outputs
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.graph.passes.to_mixed_precision import POLICIES
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.correctness import relative_error
from tunesmith.measure.precision import EPS
from tunesmith.runtime.threads import pin_threads
from tunesmith.support.errors import RunError, TunesmithError, UserError
from tunesmith.support.worker_pool import WorkerPool
from tunesmith.testing.torch_models import get

BASELINES = ("torch", "torch_compile", "onnxruntime", "openvino", "openvino_default", "ncnn", "xla")
INT8_BASELINES = ("onnxruntime_int8", "openvino_int8", "openvino_int8_default")
QUANTIZED = {"int8": "f32", "int8+bf16": "bf16"}
"""Precision of a quantised model -> the policy of the contractions that are not quantised."""
COMPARABLE = {"f32": "f32", "bf16": "bf16", "bf16x3": "f32", "int8": "int8", "int8+bf16": "int8+bf16"}
"""Our precision -> that of the baselines that it is compared with."""
COLUMNS = ("seconds", "cold_seconds", "precision", "error", "qdq_error")
LIMIT = 1e-4
"""Largest error of a correct result in float32, relative to its largest element; narrower precisions have 8 eps."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Expected results.

    Attributes:
        exact: those of torch in float64.
        qdq: those of the quantised ONNX file, computed in float32; empty for models that are not quantised.
    """

    exact: Sequence[np.ndarray]
    qdq: Sequence[np.ndarray] = ()


@dataclass(frozen=True, slots=True)
class Timed:
    """Results of one system.

    Attributes:
        precision: the compute precision.
        error: the largest difference from torch in float64, relative to the largest element of the result, over all results.
        seconds: median seconds of each round.
        qdq_error: the largest difference from the quantised ONNX file in float32; None without such a file.
        cold_seconds: as `seconds`, of calls before which the caches are flushed; empty without `--cold`.
    """

    precision: str
    error: float
    seconds: list[float] = field(default_factory=list)
    qdq_error: float | None = None
    cold_seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return statistics.median(self.seconds)


def main() -> None:
    """Tune, compile and compare the given models."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("models", nargs="+")
    arguments.add_argument("--log", type=Path, required=True)
    arguments.add_argument("--trials", type=int, default=0, help="total trials of all tasks of a model; 0 only compiles")
    arguments.add_argument("--against", help=f"of {', '.join(PREPARE)}")
    arguments.add_argument("--precision", default="f32", choices=(*POLICIES, *QUANTIZED), help="of our contractions")
    arguments.add_argument("--size", default="full", choices=("full", "small"))
    arguments.add_argument("--batch", type=at_least_one, default=1, help="images, sentences or sequences of a call")
    arguments.add_argument("--rounds", type=at_least_one, default=7)
    arguments.add_argument("--cold", action="store_true", help="time calls after a flush of the caches, too")
    arguments.add_argument("--threads", type=at_least_one, default=os.cpu_count())
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    if given.precision in QUANTIZED and given.batch > 1:
        arguments.error("--batch: quantised models are compared with one input")
    systems = chosen_systems(given.against, given.precision)
    found = {name: compare(name, systems, given) for name in given.models}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def at_least_one(text: str) -> int:
    """A number of the command line.  Raises ArgumentTypeError for other texts and below 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it is a number of at least 1, not {text!r}")
    return int(text)


def chosen_systems(against: str | None, precision: str) -> list[str]:
    """Ours and the baselines: those given, or those of the precision.

    Raises:
        UserError: a system is unknown, needs another precision, or onnxruntime, which quantises models, is not installed.
    """
    baselines = against.split(",") if against else INT8_BASELINES if precision in QUANTIZED else BASELINES
    systems = list(dict.fromkeys(["ours", *baselines]))
    if unknown := [system for system in systems if system not in PREPARE]:
        raise UserError(f"--against: unknown system {', '.join(unknown)}. Known systems: {', '.join(PREPARE)}")
    if precision not in QUANTIZED and (quantized := [system for system in systems if system in INT8]):
        raise UserError(f"--against: {', '.join(quantized)} runs quantised models: give --precision {' or '.join(QUANTIZED)}")
    if precision in QUANTIZED and (missing := [package for package in ("onnx", "onnxruntime") if find_spec(package) is None]):
        raise UserError(
            f"--precision {precision}: onnxruntime quantises the models, and {' and '.join(missing)} is not installed. "
            "Install both with:  pip install 'tunesmith[onnx,baselines]'"
        )
    return systems


def compare(name: str, systems: Sequence[str], given: argparse.Namespace) -> dict[str, object]:
    """Tune, compile and time one model, and print the results."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            if given.precision in QUANTIZED:
                compiled, files, reference, facts = int8_models(name, systems, given, folder)
            else:
                compiled, files, reference, facts = float_model(name, given, folder)
        except RunError as error:
            print(f"{name}: skipped: {error}", flush=True)
            return {"skipped": str(error)}
        times = timed(name, files, systems, reference, given)
    for system, t in times.items():
        print(line(system, t))
    print(compared(times), flush=True)
    print(compiled.roofline(*[x.numpy() for x in get(name, size=given.size, batch=given.batch)[1]], repeats=20))
    return {**facts, **columns(times)}


def float_model(name: str, given: argparse.Namespace, folder: str) -> tuple[Any, Files, Reference, dict[str, object]]:
    """Our model, compiled and exported to the folder, and the reference."""
    model, inputs = get(name, size=given.size, batch=given.batch)
    compiled, facts = made(name, from_torch(model, inputs), given)
    files = Files(str(compiled.export_library(Path(folder, "model.so"))), given.precision)
    return compiled, files, Reference(float64_outputs(model, inputs)), facts


def int8_models(
    name: str, systems: Sequence[str], given: argparse.Namespace, folder: str
) -> tuple[Any, Files, Reference, dict[str, object]]:
    """Our model of the quantised ONNX file, and of `tunesmith.quantize` if it is among the systems.

    Raises:
        RunError: the model cannot be exported or quantised.
    """
    from tunesmith.experiments.models.onnxruntime_qdq import calibration_batches, qdq_file, qdq_outputs

    model, inputs = get(name, size=given.size)
    path = qdq_file(name, given.size, given.log.parent)
    reference = Reference(float64_outputs(model, inputs), qdq_outputs(path, inputs))
    print(f"{name}: {path}: error in float32 {largest_error(reference.qdq, reference.exact):.1e}", flush=True)
    compiled, facts = made(name, from_onnx(path), given)
    library, own = str(compiled.export_library(Path(folder, "model.so"))), ""
    if "ours_quantize" in systems:
        module = tunesmith.quantize(from_torch(model, inputs), calibration_batches(name, given.size))
        own = str(made(f"{name} by tunesmith.quantize", module, given)[0].export_library(Path(folder, "quantized.so")))
    return compiled, Files(library, given.precision, str(path), own), reference, facts


def made(name: str, module: IRModule, given: argparse.Namespace) -> tuple[Any, dict[str, object]]:
    """Our model, tuned and compiled with the log, and what the JSON says of it."""
    module = tunesmith.with_precision(module, QUANTIZED.get(given.precision, given.precision))
    target = Target.detect().with_attributes(num_cores=given.threads)
    if given.trials:
        budget, search = tunesmith.Budget(total_trials=given.trials), tunesmith.Search(batch=16)
        tunesmith.tune(module, target, given.log, budget=budget, search=search)
    start = time.perf_counter()
    compiled = tunesmith.compile(module, target, given.log if given.log.exists() else None)
    seconds = time.perf_counter() - start
    covered = sum(c.status == "used" for c in compiled.coverage)
    print(f"{name}: compiled in {seconds:.1f} s, {covered} of {len(compiled.coverage)} functions from records", flush=True)
    return compiled, {"compile_s": seconds, "covered": covered, "functions": len(compiled.coverage)}


def line(system: str, t: Timed) -> str:
    """The printed results of a system."""
    spread = f"{min(t.seconds) * 1e3:.3f} .. {max(t.seconds) * 1e3:.3f}"
    difference = "" if t.qdq_error is None else f", {t.qdq_error:.1e} from the quantised model in float32"
    cold = f", cold {statistics.median(t.cold_seconds) * 1e3:.3f} ms" if t.cold_seconds else ""
    return f"  {system:21s} {t.median * 1e3:8.3f} ms   {spread:20s} {t.precision:9s} error {t.error:.1e}{difference}{cold}"


def columns(times: dict[str, Timed]) -> dict[str, dict[str, object]]:
    """Seconds of the rounds, precision and errors by system, as written to the JSON."""
    return {name: {system: getattr(t, name) for system, t in times.items()} for name in COLUMNS}


def compared(times: dict[str, Timed]) -> str:
    """The ratio of the fastest baseline of our precision to ours; a sentence if one of the two is missing."""
    ours = times.get("ours")
    baselines = [system for system in times if not system.startswith("ours")]
    equal = [] if ours is None else [system for system in baselines if times[system].precision == COMPARABLE[ours.precision]]
    if ours is None or not equal:
        return "  no ratio: ours or a baseline of its precision was skipped"
    best = min(equal, key=lambda system: times[system].median)
    found = f"  {best} / ours = {times[best].median / ours.median:.3f} ({ours.precision})"
    if ours.cold_seconds:
        cold = {system: statistics.median(times[system].cold_seconds) for system in ("ours", *equal)}
        best = min(equal, key=lambda system: cold[system])
        found += f", cold {best} / ours = {cold[best] / cold['ours']:.3f}"
    return found


def timed(name: str, files: Files, systems: Sequence[str], reference: Reference, given: argparse.Namespace) -> dict[str, Timed]:
    """Time each system that can be prepared and is correct, in turns.

    Args:
        name: the model.
        files: the files of the model.
        systems: names of `PREPARE`.
        reference: the expected results.
        given: the arguments of the command.
    """
    pools: dict[str, WorkerPool] = {}
    found: dict[str, Timed] = {}
    try:
        for system in systems:
            env = pin_threads(given.threads) if system.startswith("ours") else {"OMP_NUM_THREADS": str(given.threads)}
            arguments = (system, name, given.size, files, given.threads, given.batch)
            pools[system] = WorkerPool("tunesmith.experiments.models.systems:System", 1, arguments, env=env, start_timeout=600)
            try:
                found[system] = checked(pools[system], reference, from_file=system != "ours_quantize")
            except TunesmithError as error:
                reason = str(error).strip().splitlines()[-1].removeprefix("tunesmith.support.errors.RunError: ")  # without the traceback
                print(f"  {system}: skipped: {reason}", flush=True)
                pools.pop(system).close()
        for _ in range(given.rounds):
            for system, t in found.items():
                t.seconds.append(request(pools[system], "time"))
        for _ in range(given.rounds if given.cold else 0):
            for system, t in found.items():
                t.cold_seconds.append(request(pools[system], "time_cold"))
        return found
    finally:
        for pool in pools.values():
            pool.close()


def checked(pool: WorkerPool, reference: Reference, from_file: bool = True) -> Timed:
    """Precision and errors of a system; results without a batch axis are taken as those of a batch of one.

    A quantised model may have twice the error of the quantised ONNX file in float32, and a system that runs the file may differ as much
    from the results of the file: sums in another order are rounded to other bytes, and OpenVINO moves scales through operators.

    Args:
        pool: the process of the system.
        reference: the expected results.
        from_file: whether the system runs the quantised ONNX file, if it runs a quantised model.
    Raises:
        RunError: the system cannot be prepared, or a result has another size or an error that its precision does not explain.
    """
    outputs, precision = request(pool, "outputs"), request(pool, "precision")
    if [output.size for output in outputs] != [expected.size for expected in reference.exact]:
        shapes = [[array.shape for array in arrays] for arrays in (outputs, reference.exact)]
        raise RunError(f"wrong result: the shapes are {shapes[0]}, expected {shapes[1]}")
    error, difference = largest_error(outputs, reference.exact), None
    is_quantized, limit = precision.startswith("int8"), max(LIMIT, 8 * EPS.get(precision.removeprefix("int8+"), 0.0))
    if reference.qdq:
        difference = largest_error(outputs, reference.qdq)
        if is_quantized:
            limit += 2 * largest_error(reference.qdq, reference.exact)
    if not error <= limit:
        raise RunError(f"wrong result: the error is {error:.1e} of the largest element, more than {limit:.1e} for {precision}")
    if is_quantized and from_file and difference is not None and not difference <= limit:
        raise RunError(
            f"wrong result: the difference from the quantised model in float32 is {difference:.1e} of the largest element, "
            f"more than {limit:.1e} for {precision}"
        )
    return Timed(precision, error, qdq_error=difference)


def largest_error(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference relative to the largest element, over all results; NaN if a result has one."""
    return float(np.max([relative_error(output.reshape(e.shape), e) for output, e in zip(outputs, expected, strict=True)]))


def request(pool: WorkerPool, job: str) -> Any:
    """Run a job in a system's process.  Raises RunError if it fails."""
    result = pool.run([job])[0]
    if result.error is not None:
        raise RunError(f"{result.message}")
    return result.value


if __name__ == "__main__":
    main()
