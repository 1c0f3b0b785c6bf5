"""Tune and time one program with TVM: a process of the Python that has TVM, which reads commands as lines of JSON.

    tune   {"script", "trials", "batch", "threads", "folder", "inputs"}  ->  {"seconds", "best": [seconds of the best after each trial]}
    load   {"trials"}              ->  {"error": largest difference from the expected output, "recorded": seconds that the search measured}
    time   {"calls"}                                                      ->  {"seconds": of one call}

`inputs` is an npz file with the inputs, named by position, and the output `expected`.  This file imports nothing of tunesmith.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np


class Worker:
    """The state between commands: the program, its records, and the loaded function."""

    def tune(self, given: dict[str, Any]) -> dict[str, Any]:
        """Search with MetaSchedule's own rules."""
        os.environ["TVM_NUM_THREADS"] = str(given["threads"])
        import tvm
        from tvm.s_tir import meta_schedule
        from tvm.script import from_source

        tvm.get_global_func("runtime.config_threadpool")(1, given["threads"])
        cpu = tvm.target.codegen.llvm_get_system_cpu()
        self.target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": given["threads"]})
        self.func = from_source(given["script"])
        start = time.perf_counter()
        self.database = meta_schedule.tune_tir(
            self.func,
            self.target,
            given["folder"],
            max_trials_global=given["trials"],
            num_trials_per_iter=given["batch"],
            num_tuning_cores=given["threads"],
            seed=0,
        )
        seconds = time.perf_counter() - start
        with np.load(given["inputs"]) as data:
            self.expected = data["expected"]
            self.arguments = [tvm.runtime.tensor(data[str(i)]) for i in range(len(data.files) - 1)]
        self.out = tvm.runtime.empty(self.expected.shape, str(self.expected.dtype))
        self.records = self._in_order_of_trials(given["folder"])
        self.times = [min([float(s) for s in r.run_secs], default=float("inf")) if r.run_secs else float("inf") for r in self.records]
        return {"seconds": seconds, "best": np.minimum.accumulate(np.array([*self.times, np.inf]))[:-1].tolist()}

    def _in_order_of_trials(self, folder: str) -> list[Any]:
        """The records as they were written; the database returns them in the order of their times."""
        from tvm.s_tir.meta_schedule.database import TuningRecord

        workload = self.database.get_all_tuning_records()[0].workload
        with open(os.path.join(folder, "database_tuning_record.json")) as file:
            return [TuningRecord.from_json(json.loads(line)[1], workload) for line in file]

    def load(self, given: dict[str, Any]) -> dict[str, Any]:
        """Build the fastest of the first records."""
        import tvm
        from tvm.s_tir import Schedule

        best = int(np.argmin(self.times[: given["trials"]]))
        # The tuner's program says that arguments do not overlap; without this the code is up to five times slower.
        schedule = Schedule(self.records[best].workload.mod)
        self.records[best].trace.apply_to_schedule(schedule, remove_postproc=False)
        self.call = tvm.compile(schedule.mod, target=self.target)["main"]
        self.call(*self.arguments, self.out)
        difference = np.abs(self.out.numpy() - self.expected).max() / max(float(np.abs(self.expected).max()), 1e-30)
        return {"error": float(difference), "recorded": self.times[best]}

    def time(self, given: dict[str, Any]) -> dict[str, Any]:
        """The mean time of some calls, after one that is not timed."""
        self.call(*self.arguments, self.out)
        start = time.perf_counter()
        for _ in range(given["calls"]):
            self.call(*self.arguments, self.out)
        return {"seconds": (time.perf_counter() - start) / given["calls"]}


def main() -> None:
    """Answer each command with a line of JSON; other output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = getattr(worker, given.pop("do"))(given)
        except Exception as error:
            answer = {"failure": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
