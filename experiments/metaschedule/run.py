"""Compare searches with TVM MetaSchedule: `python experiments/metaschedule/run.py OUT.jsonl --tvm-python VENV/bin/python`.

Both systems search each workload once, with batches of 16 and their own rules, and the best candidates of the first 16, 64 and 256 trials
are timed in turns, each system in its own process, after their outputs were compared with numpy's.  The curves are of the times that each
search measured itself; `recorded_us` has those of TVM's timed candidates, which should agree with `us`.  Each workload is one line of
OUT.jsonl, and a repeated run continues with the missing ones.  TVM and its tuner need an environment of their own:

    python -m venv VENV && VENV/bin/pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post0 xgboost cloudpickle psutil
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith.codegen.params import param_specs
from tunesmith.experiments.metaschedule.tvm_text import tvm_text
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.ops.workload import workload
from tunesmith.support import json_lines
from tunesmith.support.temporary_folder import temporary_folder

WORKLOADS = (
    "matmul(m=1000,n=1111,k=777)",
    "matmul(m=50,n=512,k=2048)",
    "dense(m=128,n=3072,k=768,bias=1,activation=relu)",
    "batch_matmul(b=12,m=128,n=128,k=64)",
    "conv2d(n=1,h=28,w=28,ci=96,co=160,kh=3,kw=3,pad=1)",
    "conv2d(n=1,h=14,w=14,ci=384,co=384,kh=3,kw=3,pad=1,groups=384)",
    "conv1d(n=1,w=256,ci=64,co=128,kw=3,stride=2,pad=1)",
    "conv2d_transpose(n=1,h=16,w=16,ci=128,co=64,kh=4,kw=4,stride=2,pad=1)",
    "layer_norm(m=300,n=1000)",
    "softmax(m=256,n=256)",
)
COUNTS = (16, 64, 256)
"""Numbers of trials whose best candidates are timed."""
BATCH = 16
SAMPLE_S = 0.02
"""Length of a timing sample."""
Answer = dict[str, Any]


class Tvm:
    """A process that tunes and times with TVM."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("tvm_worker.py")
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen([python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, do: str, **given: Any) -> Answer:
        """The answer to a command; RuntimeError if it failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: Answer = json.loads(line) if line else {"failure": "the process of TVM ended"}
        if "failure" in answer:
            raise RuntimeError(answer["failure"])
        return answer

    def pause(self) -> None:
        """Stop the process, whose threads would wait actively."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def main(arguments: list[str] | None = None) -> int:
    """Append a line for each workload that has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tvm-python", required=True, help="the Python of an environment with TVM")
    parser.add_argument("--only", nargs="+", default=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--trials", type=int, default=max(COUNTS))
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(arguments)
    done = {line["workload"] for _, line in json_lines.read(given.out)} if given.out.exists() else set()  # type: ignore[index]
    todo = [text for text in given.only if text not in done]
    for i, text in enumerate(todo):
        line = compared(text, given)
        json_lines.append(given.out, [line])
        print(f"{i + 1} of {len(todo)}: {shown(line)}", flush=True)
    return 0


def compared(text: str, given: argparse.Namespace) -> Answer:
    """The line of one workload."""
    target, w = Target.detect(), workload(text)
    counts = [n for n in COUNTS if n <= given.trials]
    line: Answer = {"workload": text, "target": str(target), "trials": given.trials, "us": {}, "search_s": {}}
    with temporary_folder("tunesmith-metaschedule-") as folder:
        params = tuple(param_specs(w.func))
        inputs = make_inputs(params, 0)
        (expected,) = w.reference(inputs)
        np.savez(folder / "data.npz", expected=expected, **{str(i): x for i, x in enumerate(inputs)})  # type: ignore[arg-type]
        start = time.perf_counter()
        log = folder / "log.jsonl"
        search = tunesmith.Search(batch=BATCH)
        tunesmith.tune(text, target, log, budget=given.trials, search=search, progress=False)
        line["search_s"]["tunesmith"] = time.perf_counter() - start
        out = [np.zeros(p.shape, "float32") for p in params if p.written]
        calls: dict[str, Any] = {}
        for n in counts:
            best = _best(log, folder / f"log{n}.jsonl", n)
            module = tunesmith.compile(text, target, best)
            calls[f"tunesmith {n}"] = module.bind(*inputs, *out)
            calls[f"tunesmith {n}"]()
            line.setdefault("difference", {})[f"tunesmith {n}"] = _difference(out[0], expected)
        tvm = Tvm(given.tvm_python)
        try:
            answer = tvm.ask(
                "tune",
                script=tvm_text(w.func),
                trials=given.trials,
                batch=BATCH,
                threads=target.num_cores,
                folder=str(folder / "tvm"),
                inputs=str(folder / "data.npz"),
            )
            line["search_s"]["tvm"] = answer["seconds"]
            line["curve_us"] = {"tvm": [_finite(t) for t in answer["best"]], "tunesmith": _curve(log)}
            for n in counts:
                loaded = tvm.ask("load", trials=n)
                line["difference"][f"tvm {n}"] = loaded["error"]
                line.setdefault("recorded_us", {})[f"tvm {n}"] = loaded["recorded"] * 1e6
                line["us"] |= _times({k: c for k, c in calls.items() if k == f"tunesmith {n}"}, tvm, n, given.rounds)
        except RuntimeError as error:
            line["failure"] = str(error)
        finally:
            tvm.close()
    return line


def _best(log: Path, out: Path, trials: int) -> Path:
    """A log with the first trials of another one."""
    kept = [line for _, line in json_lines.read(log)]
    records = [line for line in kept if isinstance(line, dict) and line.get("kind") == "record"]
    json_lines.append(out, [*[line for line in kept if line not in records], *records[:trials]])
    return out


def _curve(log: Path) -> list[float | None]:
    """Microseconds of the best candidate after each trial, as the search measured it; None before the first valid one."""
    best, curve = math.inf, list[float | None]()
    for _, line in json_lines.read(log):
        if isinstance(line, dict) and line.get("kind") == "record" and line["policy"]["kind"] == "race":
            best = min([best, *line["samples"]])
            curve.append(_finite(best))
    return curve


def _finite(seconds: float) -> float | None:
    return seconds * 1e6 if math.isfinite(seconds) and seconds < 1e6 else None


def _difference(out: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(out - expected).max() / max(float(np.abs(expected).max()), 1e-30))


def _times(calls: dict[str, Any], tvm: Tvm, trials: int, rounds: int) -> dict[str, float]:
    """Median microseconds; our call and TVM's take turns, and an untimed call comes before each sample."""
    samples: dict[str, list[float]] = {f"tvm {trials}": [], **{name: [] for name in calls}}
    repeats = max(1, int(SAMPLE_S / tvm.ask("time", calls=3)["seconds"]))
    for _ in range(rounds):
        tvm.resume()
        samples[f"tvm {trials}"].append(tvm.ask("time", calls=repeats)["seconds"])
        tvm.pause()
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            samples[name].append((time.perf_counter() - start) / repeats)
        time.sleep(0.01)  # our threads wait actively for a while
    tvm.resume()
    return {name: statistics.median(s) * 1e6 for name, s in samples.items()}


def shown(line: Answer) -> str:
    """A line of progress."""
    us = line["us"]
    ratios = [f"{n} trials {us[f'tvm {n}'] / us[f'tunesmith {n}']:.2f} x" for n in COUNTS if f"tvm {n}" in us]
    seconds = ", ".join([f"{name} {s:.0f} s" for name, s in line["search_s"].items()])
    return f"{line['workload']}: {'; '.join(ratios)}; {seconds}{'; ' + line['failure'][:300] if 'failure' in line else ''}"


if __name__ == "__main__":
    sys.exit(main())
