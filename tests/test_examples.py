"""Run each program of examples/ as a reader would, from a folder of its own, and check what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

PRINTED = {
    "own_operator.py": ["def rms_norm(X: T.Buffer((96, 256)", "as written: equal to numpy", "tuned: equal to numpy, record used"],
    "own_rule.py": ["sketch 'tiles': 15 configurations of", "for j_1 in T.vectorized", "tuned: equal to numpy"],
    "attention_rule.py": ["built-in sketches and 'row blocks'", "'rows1': ", "equal to numpy", "equal to numpy", "equal to numpy"],
    "own_sampler.py": ["matmul(m=64,n=64,k=64): 8 trials", "best after 1 trials: ", "best after 8 trials: "],
    "own_pass.py": [
        "divide_by_multiplying tensorize_loops vectorize_loops",
        "B[i] = A[i] * T.float32(0.125) + A[i] / T.float32(3.0)",
        "divide_by_multiplying{inexact=true}",
        "model: equal to numpy",
    ],
    "round_weights.py": [
        "('fold_scale_axis', 'round_weights', 'convert_layout')",
        "8 bits: largest error 0.000",
        "4 bits: largest error 0.00",
        "relu, computed by fused_conv2d_relu",
        "# after round_weights, main",
        "left out: equal to the exact model",
    ],
    "own_target.py": [
        "'lab/small' is labcpu -mcpu=x86-64-v2 -num-cores=1: 128 bits",
        "this machine: labcpu",
        "compiled for labcpu: record used",
        "compiled for llvm: record missing",
    ],
    "model_to_c/export.py": ["int32_t net_run", "class 3: 0.240822", "main.c: equal to numpy"],
}
"""Program -> texts that it prints, in this order."""


def run(folder: Path, *command: object) -> str:
    """What a command prints, run in `folder`."""
    done = subprocess.run([sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_example_runs_and_prints_its_results(name: str, tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLES / name)
    if "there is no C compiler" in printed:
        pytest.skip("no C compiler")
    at = 0
    for text in PRINTED[name]:
        found = printed.find(text, at)
        assert found >= 0, f"{name} does not print {text!r} here:\n{printed[at:]}"
        at = found + len(text)


def test_sampler_is_found_by_its_file(tmp_path: Path) -> None:
    options = ["--trials", 2, "--batch", 2, "--workers", 0, "--log", "log.jsonl", "--target", "llvm"]
    command = ["-m", "tunesmith", "tune", "matmul(m=16,n=16,k=16)", "--sampler", f"{EXAMPLES / 'own_sampler.py'}:HillClimber", *options]
    assert "matmul(m=16,n=16,k=16)" in run(tmp_path, *command)
    assert (tmp_path / "log.jsonl").read_text().count('"kind":"record"') >= 2


def test_readme_lists_every_program() -> None:
    programs = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py") if "__pycache__" not in path.parts}
    listed = re.findall(r"^\| \[`[\w./]+`\]\(([\w./]+)\) \|", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert programs == set(PRINTED) == set(listed)


def test_examples_leave_no_files_in_the_checkout() -> None:
    """The programs write into the current folder, which is not theirs."""
    assert {p.suffix for p in EXAMPLES.rglob("*") if p.is_file() and "__pycache__" not in p.parts} == {".py", ".c", ".md"}
