"""Compare the speed and the results of C and LLVM code for the scheduled functions of a model: see README.md."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import Any

import numpy as np

import tunesmith
from tunesmith.codegen.backends.backend import backend_of
from tunesmith.codegen.c.compiler import find_compiler
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.emit.graph_program import emit_aot_program
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.executor import Executor
from tunesmith.runtime.module import load_executable
from tunesmith.runtime.timing import TimingPolicy, interleaved
from tunesmith.testing.torch_models import get


def main(arguments: list[str] | None = None) -> int:
    """Print the ratio of speeds and the largest difference; status 1 if the ratio is below the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--size", default="full", choices=("small", "full"))
    parser.add_argument("--log", help="records of the functions; without them the analytic model chooses the schedules")
    parser.add_argument("--cores", type=int, help="cores of the target; by default those of this machine")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each executor")
    parser.add_argument("--functions", action="store_true", help="also print the times of the functions")
    parser.add_argument("--least", type=float, default=0.6, help="wanted speed of C relative to LLVM")
    given = parser.parse_args(arguments)
    cores = "" if given.cores is None else f" -num-cores={given.cores}"
    here = Target.detect()
    target = Target(f"llvm -mcpu={here.mcpu}{cores or f' -num-cores={here.num_cores}'}")
    net, inputs = get(given.model, given.size)
    module = tunesmith.from_torch(net, inputs)
    records = None if given.log is None else Database.from_log(given.log)
    llvm = compile_model(module, target, records, executor="graph")
    start = time.perf_counter()
    c = in_c(llvm)
    print(f"{given.model}, {given.size}, {target}; C compiler {' '.join(find_compiler().command)}: {time.perf_counter() - start:.0f} s")
    arrays = [x.numpy() for x in inputs]
    expected, found = [[np.array(a) for a in results(m(*arrays))] for m in (llvm.executor, c)]
    difference = max(
        float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0)) for a, b in zip(expected, found, strict=True)
    )
    calls = {"llvm": partial(llvm.executor, *arrays), "c": partial(c, *arrays)}
    samples = interleaved(calls, TimingPolicy(repeats=given.rounds))
    times = {name: s.median for name, s in samples.items()}
    ratio = times["llvm"] / times["c"]
    print(f"LLVM {times['llvm'] * 1e3:.3f} ms, C {times['c'] * 1e3:.3f} ms, C / LLVM {ratio:.2f}, largest difference {difference:g}")
    if given.functions:
        table(llvm.executor, c, arrays, given.rounds)
    return 0 if ratio >= given.least else 1


def in_c(model: CompiledModel) -> Executor:
    """The scheduled functions of a model, compiled as C."""
    target = Target(str(model.target).replace("llvm", "c", 1))
    program, constants = emit_aot_program(model.module)
    functions = [f for f in model.module.values() if isinstance(f, PrimFunc)]
    data = backend_of(target).build(functions, target, "call").data
    return load_executable(Executable("graph", program, constants, data))


def results(value: Any) -> tuple[np.ndarray, ...]:
    """The outputs of a call."""
    return value if isinstance(value, tuple) else (value,)


def table(llvm: Executor, c: Executor, arrays: list[np.ndarray], rounds: int) -> None:
    """Print the time of each function, the slowest in C first."""
    a, b = [m.profile(*arrays, repeats=rounds).by_function() for m in (llvm, c)]
    for name in sorted(a, key=lambda f: a[f][1] - b[f][1]):
        print(f"{name:50} LLVM {a[name][1]:9.1f} us, C {b[name][1]:9.1f} us, {a[name][1] / b[name][1]:5.2f}")


if __name__ == "__main__":
    sys.exit(main())
