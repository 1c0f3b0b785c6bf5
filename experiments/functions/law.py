"""Check all sketches of the sixty functions: `python experiments/functions/law.py OUT.jsonl --rows 3`.

For random rows of each sketch, the sketch with the row's values must be the program that its trace gives when it is replayed with these
decisions (the law of docs/design/001-parametric.md), the trace must be the same after a round trip through JSON, and the compiled program
must compute what torch computes.  Each function is one line of OUT.jsonl, and a repeated run continues with the missing ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith.experiments.functions.function import Function
from tunesmith.experiments.functions.registry import FUNCTIONS
from tunesmith.experiments.functions.torch_systems import eager_results
from tunesmith.ir import structural
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import replay
from tunesmith.schedule.trace import Trace
from tunesmith.search.task import Task
from tunesmith.support import json_lines
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream


def main(arguments: list[str] | None = None) -> int:
    """Append a line for each function that has none; 1 if a candidate is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(FUNCTIONS), help="names, separated by commas")
    parser.add_argument("--rows", type=int, default=3, help="random rows of each sketch")
    parser.add_argument("--sketches", type=int, default=1 << 30, help="sketches of each function, from the first on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="with the sizes of the tests")
    given = parser.parse_args(arguments)
    lines = [line for _, line in json_lines.read(given.out) if isinstance(line, dict)] if given.out.exists() else []
    done = {line["name"]: line for line in lines}
    names = given.only.split(",")
    for i, name in enumerate(names):
        if name not in done:
            done[name] = checked(FUNCTIONS[name], given)
            json_lines.append(given.out, [done[name]])
        line = done[name]
        print(f"{i + 1} of {len(names)}: {name}: {line['candidates']} candidates, {line['refused']} refused, {len(line['wrong'])} wrong")
        for text in line["wrong"]:
            print(f"  {text}")
    print(f"{sum(done[n]['candidates'] for n in names)} candidates, {sum(len(done[n]['wrong']) for n in names)} wrong")
    return int(any(done[n]["wrong"] for n in names))


def checked(f: Function, given: argparse.Namespace) -> dict[str, Any]:
    """The line of one function: candidates, how many of them were refused by the build, and descriptions of the wrong ones."""
    func = f.build(*(f.small if given.small else ()))
    target = Target.detect()
    inputs, outputs = f.arguments(func, np.random.default_rng(given.seed))
    expected = eager_results(f, inputs)
    count, refused, wrong = 0, 0, list[str]()
    for sketch in Task(f.name, func, target).space.sketches[: given.sketches]:
        rng = stream(given.seed, "law", f.name, sketch.name)
        for row in sketch.space.sample(given.rows, rng) if sketch.params else np.zeros((1, 0), np.int64):
            count += 1
            decisions = tuple([int(x) for x in row])
            where = f"{sketch.name} {list(decisions)}"
            trace = sketch.trace.with_configuration(decisions)
            if Trace.from_json(trace.to_json()) != trace:
                wrong.append(f"{where}: the trace changes in a round trip through JSON")
            program = sketch.concretize(decisions)
            found = structural.difference(program, replay(trace, func).func)
            if found is not None:
                wrong.append(f"{where}: the replay of the trace differs: {found}")
            try:
                call = tunesmith.build(program, target)[f.name]
            except BuildError:
                refused += 1
                continue
            for x in outputs:
                x.fill(99)
            call(*inputs, *outputs)
            difference = f.difference(outputs, expected)
            if not difference <= f.tolerance:
                wrong.append(f"{where}: differs from torch by {difference:.3g}")
    return {"name": f.name, "candidates": count, "refused": refused, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
