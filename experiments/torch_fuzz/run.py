"""Compare imports of torch models with torch: `python experiments/torch_fuzz/run.py [--part cases|networks] [--executor E] [--out F]`."""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from tunesmith.support.errors import InternalError, UserError
from tunesmith.testing import torch_cases_elementwise, torch_cases_networks, torch_cases_shapes
from tunesmith.testing.torch_agreement import EXECUTORS, disagreement, mismatch, verdicts
from tunesmith.testing.torch_networks import Network

TABLES = {"elementwise": torch_cases_elementwise.CASES, "shapes": torch_cases_shapes.CASES, "networks": torch_cases_networks.CASES}
GROUP = 24
"""Cases imported as one model, because tracing costs more than small graphs."""
COMPILED_TOLERANCE = 2e-4
Results = dict[tuple[str, str], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/torch_fuzz"), help="folder for results.jsonl; a run resumes from it")
    parser.add_argument("--part", choices=("cases", "networks", "both"), default="both")
    parser.add_argument("--executor", choices=tuple(EXECUTORS), default="interpreter")
    parser.add_argument("--seeds", default="0:300", help="seeds of networks, FIRST:END or FIRST:END:STEP")
    parser.add_argument("--match", default="", help="only cases whose name matches this regular expression")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    known = {(r["name"], r["executor"]): r["verdict"] for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    with path.open("a") as file:

        def note(name: str, verdict: str) -> None:
            known[name, options.executor] = verdict
            file.write(json.dumps({"name": name, "executor": options.executor, "verdict": verdict}) + "\n")
            file.flush()
            if verdict != "ok" and not verdict.startswith("refused as"):
                print(f"{name}: {verdict[:300]}", flush=True)

        if options.part in ("cases", "both"):
            run_cases(options.executor, options.match, known, note)
        if options.part in ("networks", "both"):
            first, end, *step = map(int, options.seeds.split(":"))
            run_networks(options.executor, range(first, end, *step), known, note)
    summary(known)


def run_cases(executor: str, match: str, known: Results, note: Callable[[str, str], None]) -> None:
    """Run all cases without a result: cases to import in groups, cases to refuse one by one."""
    for table, cases in TABLES.items():
        selected = [c for c in cases.values() if re.search(match, c.name) and (f"{table}/{c.name}", executor) not in known]
        groups = [[c] for c in selected if c.refused]
        plain = [c for c in selected if not c.refused]
        groups += [plain[i : i + GROUP] for i in range(0, len(plain), GROUP)]
        for group in groups:
            for name, verdict in verdicts(group, EXECUTORS[executor]).items():
                case = cases[name]
                wrong = mismatch(case, verdict)
                note(f"{table}/{name}", wrong or ("refused as it should be" if case.refused else "ok"))


def run_networks(executor: str, seeds: range, known: Results, note: Callable[[str, str], None]) -> None:
    """Run all networks without a result."""
    start = time.monotonic()
    for i, seed in enumerate(seeds):
        if (f"network/{seed}", executor) in known:
            continue
        network = Network(seed)
        try:
            verdict = disagreement(network, network.example, EXECUTORS[executor], COMPILED_TOLERANCE) or "ok"
        except InternalError as error:
            verdict = f"crash: {error}"
        except UserError as error:
            verdict = f"refused: {error}"
        except Exception as error:  # any other exception is a finding
            verdict = f"crash: {type(error).__name__}: {error}"
        if verdict != "ok":
            verdict += f" ({', '.join([name for name, _, _ in network.steps])})"
        note(f"network/{seed}", verdict)
        if i % 20 == 19:
            print(f"{i + 1} of {len(seeds)} networks, {time.monotonic() - start:.0f} s", flush=True)


def summary(known: Results) -> None:
    """Print the counts of each part and executor."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for (name, executor), verdict in known.items():
        kind = "ok" if verdict == "ok" else "refused as it should be" if verdict.startswith("refused as") else verdict.split(":")[0]
        counts[name.split("/")[0], executor, kind if len(kind) < 30 else "wrong"] += 1
    for (part, executor, kind), count in sorted(counts.items()):
        print(f"{part:12} {executor:12} {kind:24} {count}")


if __name__ == "__main__":
    main()
