"""Compare few trials on unseen shapes, with records of other shapes, with many trials from nothing.

    python experiments/search_cost/unseen_shapes.py FOLDER [--operator matmul] [--few 8] [--many 64] [--shapes 20]

A log has searches of some shapes of an operator.  For each unseen shape, a search of few trials continues a copy of this log, another one
does so with a cost model that was trained on the log, one of few trials starts from nothing, and so does one of many.  The best candidates
of the four are then timed together, interleaved.  Results are kept in FOLDER/results.jsonl, one line a shape, and a run continues after the
last.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import tunesmith
from tunesmith.driver.train import train
from tunesmith.driver.tune import builder_and_runner
from tunesmith.driver.tune_options import target_here
from tunesmith.driver.workloads import find_subject
from tunesmith.ir.target.target import Target
from tunesmith.measure.measurer import Measurer
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.search.known_records import known_records
from tunesmith.support.seeds import stream

TIMING = TimingPolicy(limit_s=2.0)


@dataclass(frozen=True, slots=True)
class Operator:
    """The shapes of an operator.

    Attributes:
        text: its text, with three sizes to fill in.
        seen: sizes of the shapes in the log.
        sizes: sizes that the unseen shapes are made of, for each of the three.
    """

    text: str
    seen: tuple[tuple[int, int, int], ...]
    sizes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    def unseen(self, count: int) -> list[str]:
        """A random choice of the shapes that can be made of `sizes`, always the same."""
        every = [self.text.format(*shape) for shape in product(*self.sizes) if shape not in self.seen]
        return [every[i] for i in stream(0, "unseen shapes").permutation(len(every))[:count]]


OPERATORS = {
    "matmul": Operator(
        "matmul(m={0},n={1},k={2})",
        ((128, 512, 512), (256, 1024, 256), (512, 256, 1024), (1024, 512, 512), (384, 768, 768), (64, 2048, 512)),
        ((96, 160, 320, 640, 896),) * 3,
    ),
    "conv2d": Operator(
        "conv2d(n=1,h={0},w={0},ci={1},co={2},kh=3,kw=3,pad=1)",
        ((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512), (28, 64, 128), (56, 64, 256)),
        ((12, 20, 28, 40, 56), (48, 96, 160, 224), (48, 96, 160, 224)),
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of the best candidates of a shape, timed together.

    Attributes:
        workload: the shape.
        few: of few trials with the records of other shapes.
        trained: of few trials with these and a cost model that was trained on them.
        cold: of few trials from nothing.
        many: of many trials from nothing.
        clean: no other load disturbed the samples.
    """

    workload: str
    few: float
    trained: float
    cold: float
    many: float
    clean: bool


def compare(text: str, logs: list[Path], target: Target) -> tuple[list[float], bool]:
    """Seconds of the best candidate of each log, timed together, and whether they are clean."""
    task = find_subject(text).task(target)
    found = []
    for log in logs:
        database = tunesmith.Database.from_log(log)
        best = database.best(task.digest, target.to_json())
        assert best is not None, f"{log} has no record of {text}"
        found.append(known_records(task, [best])[0][0])
    with ExitStack() as stack:
        measurer = stack.enter_context(Measurer(target, *builder_and_runner(None, target, stack)))
        distinct = list(dict.fromkeys(found))
        records = measurer.compare(task.measured, [(c.sketch, c.row) for c in distinct], policy=TIMING)
    seconds = dict(zip(distinct, [r.seconds for r in records], strict=True))
    return [seconds[c] for c in found], all(r.clean for r in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--operator", choices=list(OPERATORS), default="matmul")
    parser.add_argument("--few", type=int, default=8, help="Trials with the records of other shapes.")
    parser.add_argument("--many", type=int, default=64, help="Trials from nothing, and those of the shapes in the log.")
    parser.add_argument("--shapes", type=int, default=20)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    target, seen, path = target_here(None), given.folder / "seen.jsonl", given.folder / "results.jsonl"
    operator = OPERATORS[given.operator]
    tunesmith.tune([operator.text.format(*shape) for shape in operator.seen], target, seen, budget=given.many)
    model = given.folder / "model.json"
    if not model.exists():
        train(seen, model)
    outcomes = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    done = {o.workload for o in outcomes}
    for text in [text for text in operator.unseen(given.shapes) if text not in done]:
        logs = {kind: given.folder / f"{kind}.jsonl" for kind in ("few", "trained", "cold", "many")}
        for kind, log in logs.items():
            log.unlink(missing_ok=True)
            if kind in ("few", "trained"):
                shutil.copy(seen, log)
            search = tunesmith.Search(model=str(model)) if kind == "trained" else tunesmith.Search()
            tunesmith.tune(text, target, log, budget=given.many if kind == "many" else given.few, search=search, progress=False)
        (few, trained, cold, many), clean = compare(text, list(logs.values()), target)
        outcomes.append(Outcome(text, few, trained, cold, many, clean))
        with path.open("a") as file:
            file.write(json.dumps(asdict(outcomes[-1])) + "\n")
        o = outcomes[-1]
        times = ", ".join(f"{kind} {getattr(o, kind) * 1e6:.1f}" for kind in logs)
        print(f"{text}: {times} us", flush=True)
    for name in ("few", "trained", "cold"):
        ratios = sorted(o.many / getattr(o, name) for o in outcomes)
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        print(f"{given.many} trials / {name} {given.few}: median {statistics.median(ratios):.3f}, 80 % of shapes {low:.3f} to {high:.3f}")
    print(f"{sum(o.clean for o in outcomes)} of {len(outcomes)} comparisons clean")


if __name__ == "__main__":
    main()
