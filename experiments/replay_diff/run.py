"""Check whether a change of the sources changes the compiler's output: compare digests of a fixed corpus.

python experiments/replay_diff/run.py before.jsonl             # on the old commit; repeat to resume after an interruption
python experiments/replay_diff/run.py after.jsonl              # on the new one
python experiments/replay_diff/run.py --compare before.jsonl after.jsonl
python experiments/replay_diff/run.py --show 'llvm -mcpu=znver4 -num-cores=2 | relu(shape=64x64)'
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

from tunesmith.experiments.replay_diff.corpus import Artefacts, items
from tunesmith.support.errors import TunesmithError

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


def main() -> int:
    """Write digests, compare two files of digests, or print items; returns 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="file of digests to write or to continue")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--show", metavar="KEY", help="print the artefacts of the items whose key contains KEY")
    parser.add_argument("--golden", type=Path, default=GOLDEN, help="folder of golden files; pass the old one to both runs")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th item from the K-th, for several processes")
    given = parser.parse_args()
    if given.compare:
        return compare(*given.compare)
    if given.show is not None:
        show(given.show, given.golden)
        return 0
    if given.out is None:
        parser.error("name a file, or pass --compare or --show")
    k, n = map(int, given.part.split("/"))
    write(given.out, given.golden, k, n)
    return 0


def write(out: Path, golden: Path, part: int, parts: int) -> None:
    """Append a line for each item missing in `out`."""
    done = set(read(out)) if out.exists() else set()
    todo = [(key, make) for key, make in list(items(golden))[part::parts] if key not in done]
    start = last = time.monotonic()
    with out.open("a", encoding="utf-8") as file:
        for i, (key, make) in enumerate(todo):
            file.write(json.dumps({"key": key, "digests": digests(make)}) + "\n")
            file.flush()
            if time.monotonic() - last > 5:
                last = time.monotonic()
                print(f"{i + 1} of {len(todo)} items, {last - start:.0f} s", file=sys.stderr, flush=True)


def digests(make: object) -> dict[str, str]:
    """SHA-256 of each artefact, by sub-key and name; the kind of error if an item is refused."""
    out: dict[str, str] = {}
    try:
        for sub, artefacts in make():  # type: ignore[operator]
            for name, value in artefacts.items():
                out[f"{sub} | {name}"] = hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:24]
    except TunesmithError as error:
        out["refused"] = type(error).__name__
    return out


def read(path: Path) -> dict[str, dict[str, str]]:
    """The digests of a file, by key; a truncated last line is skipped."""
    out = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        out[entry["key"]] = entry["digests"]
    return out


def compare(before: Path, after: Path) -> int:
    """Print the first hundred differences; returns 1 if there are any."""
    old, new = read(before), read(after)
    different = [f"{k}: only in {(before if k in old else after).name}" for k in sorted(old.keys() ^ new.keys())]
    compared = 0
    for k in sorted(old.keys() & new.keys()):
        compared += len(old[k])
        different += [f"{k} | {n}" for n in sorted(old[k].keys() | new[k].keys()) if old[k].get(n) != new[k].get(n)]
    print("\n".join(different[:100]))
    print(f"{len(old.keys() & new.keys())} items with {compared} artefacts compared: {len(different)} differences")
    return 1 if different else 0


def show(pattern: str, golden: Path) -> None:
    """Print the artefacts of the items whose key contains `pattern`."""
    for key, make in items(golden):
        if pattern in key:
            for sub, artefacts in make():
                _print(f"{key} | {sub}", artefacts)


def _print(key: str, artefacts: Artefacts) -> None:
    for name, value in artefacts.items():
        print(f"##### {key} | {name}\n{value if isinstance(value, str) else f'{len(value)} bytes'}")


if __name__ == "__main__":
    sys.exit(main())
