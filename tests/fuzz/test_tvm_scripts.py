"""Mutate scripts of TVM: each is a program, or an error with the file, the line, the underlined text and a remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tunesmith.ir.function import IRModule
from tunesmith.ir.script.parser import parse
from tunesmith.ir.verify import verify
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream

TEXTS = [p.read_text(encoding="utf-8") for p in sorted((Path(__file__).parents[1] / "golden" / "tvm").glob("*.txt"))]
WORDS = (
    "frobnicate call_packed tvm_thread_allreduce Let ptx_mma axis.reduce sblock int8 match_buffer decl_buffer launch_thread attr Ramp bind"
)
VALUES = ["0", "-1", "T.float32(1)", '"x"', "None", "[1]", "{}", "axis=3", "1:4", "A[0]"]
NUMBERS = ["0", "-3", "99999999999999999999", "2.5", "1e400", "T.int64(7)"]
INDICES = ["[()]", "[0]", "[0:4]", "[::2]", "[T.Ramp(0, 1, 4)]", "[0, 0, 0]", "[A]", ""]
Rng = np.random.Generator
T = TypeVar("T")


def pick(rng: Rng, items: Sequence[T]) -> T:
    return items[int(rng.integers(len(items)))]


def renamed(rng: Rng, text: str) -> str:
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", text)))
    return re.sub(rf"\b{pick(rng, names)}\b", pick(rng, names), text, count=pick(rng, [0, 1]))


def with_other_word(rng: Rng, text: str) -> str:
    words = sorted(set(re.findall(r"T\.[A-Za-z_.]+", text)))
    return text.replace(pick(rng, words), f"T.{pick(rng, WORDS.split())}", pick(rng, [1, -1])) if words else text


def with_other_lines(rng: Rng, text: str) -> str:
    lines = text.split("\n")
    i, j = int(rng.integers(len(lines))), int(rng.integers(len(lines)))
    kind = rng.integers(4)
    if kind == 0:
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 1:
        del lines[i]
    elif kind == 2:
        lines.insert(i, lines[j])
    else:
        lines[i] = lines[i].replace("    ", "", 1)
    return "\n".join(lines)


def replaced(rng: Rng, text: str, pattern: str, choices: list[str]) -> str:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    at = pick(rng, found)
    return text[: at.start()] + pick(rng, choices) + text[at.end() :]


def with_other_arguments(rng: Rng, text: str) -> str:
    found = list(re.finditer(r"\(([^()]*)\)", text))
    if not found:
        return text
    at = pick(rng, found)
    args = at[1].split(",")
    if rng.random() < 0.5:
        args.pop(int(rng.integers(len(args))))
    else:
        args.insert(int(rng.integers(len(args) + 1)), pick(rng, VALUES))
    return text[: at.start(1)] + ",".join(args) + text[at.end(1) :]


MUTATIONS: list[Callable[[Rng, str], str]] = [
    renamed,
    with_other_word,
    with_other_lines,
    with_other_arguments,
    lambda rng, text: replaced(rng, text, r"\d+", NUMBERS),
    lambda rng, text: replaced(rng, text, r"\[[^\]]*\]", INDICES),
]


@pytest.mark.parametrize("seed", range(6))
def test_mutated_scripts_are_programs_or_errors_with_a_position_and_a_remedy(seed: int) -> None:
    rng = stream(seed, "tvm scripts")
    counts: Counter[str] = Counter()
    for _ in range(150):
        text = pick(rng, TEXTS)
        for _ in range(rng.integers(1, 4)):
            text = pick(rng, MUTATIONS)(rng, text)
        try:
            found = parse(text, "dump.txt")
        except ScriptError as error:
            lines = str(error).split("\n")
            where = re.fullmatch(r"dump\.txt:(\d+): .*", lines[0])
            if where is not None:
                assert lines[1].startswith(f"  {where[1]} | ") and set(lines[2].partition("| ")[2]) <= {" ", "^"} and "^" in lines[2], error
                assert len(lines) > 3 and lines[3].strip(), error
            counts["refused"] += 1
            continue
        for f in found.values() if isinstance(found, IRModule) else [found]:
            str(f)
            try:
                verify(f)
                counts["programs"] += 1
            except ScriptError:
                counts["not verified"] += 1
    assert counts["refused"] > 50 and counts["programs"] > 5 and counts["not verified"] < 10
