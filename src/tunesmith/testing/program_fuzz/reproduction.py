"""Write a failure as a stand-alone script: program text, schedule as Python, data and expected results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tunesmith.testing.program_fuzz import evaluate
from tunesmith.testing.program_fuzz.check import Finding
from tunesmith.testing.program_fuzz.numbers import Undecided
from tunesmith.testing.program_fuzz.render import render
from tunesmith.testing.program_fuzz.steps import python
from tunesmith.testing.program_fuzz.worker import Trial


def describe(trial: Trial, finding: Finding) -> str:
    """A readable description of a failure: kind, program, steps, target."""
    steps = "\n".join([f"    {python(s)}" for s in trial.steps]) or "    (no schedule)"
    return f"{finding.kind} (seed {trial.seed}, {trial.target})\n{render(trial.program)}steps:\n{steps}\n{finding.detail}"


def write(folder: Path, number: int, trial: Trial, finding: Finding) -> Path:
    """Write the script and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-zA-Z0-9]+", "_", finding.kind)[:60].strip("_")
    path = folder / f"{name}_{trial.seed}_{number}.py"
    path.write_text(_script(trial, finding), encoding="utf-8")
    return path


def _script(trial: Trial, finding: Finding) -> str:
    program = trial.program
    detail = "\n".join(finding.detail.splitlines()[-12:]).replace("\\", "\\\\").replace('"""', "'''")
    lines = [f'"""{finding.kind}\n\nseed {trial.seed}\n{detail}\n"""', "import numpy as np", "import tunesmith"]
    lines += ["from tunesmith.ir.interpreter.interpret import run", "from tunesmith.ir.script.parser import parse"]
    lines += ["from tunesmith.lower.fallback.default_schedule import default_schedule", "from tunesmith.search.space.rules import fallback"]
    lines += [
        "from tunesmith.search.space.rules_table import rules_of",
        "",
        f'target = tunesmith.Target("{trial.target}")',
        'f = parse("""',
    ]
    lines += [render(program).rstrip(), '""")', f"s = tunesmith.Schedule(f, seed={trial.seed})", "sampled = []"]
    lines += [*[python(s) for s in trial.steps], "print(s.mod)"]
    lines.append("lib = tunesmith.build(s, target)")
    for binding in program.bindings:
        lines += _call(trial, binding)
    return "\n".join(lines) + "\n"


def _call(trial: Trial, binding: tuple[int, ...]) -> list[str]:
    """A call with one binding of the sizes."""
    program = trial.program
    start = evaluate.start(program, binding, trial.seed)
    lines = [f"# sizes: {dict(zip(program.sizes, binding, strict=True))}" if binding else "# one call"]
    names = [b.name for b in program.params]
    for b in program.params:
        lines.append(f"{b.name} = {_array(start.memory[b.name])}")
    try:
        end = evaluate.run(program, binding, trial.seed).memory
        expected = {b.name: _array(end[b.name]) for b in program.params if b.role == "output"}
    except Undecided:
        expected = {}
    values = f"dict(zip(s.func.params[{len(names)}:], {list(binding)}))"
    lines.append(f"interpreted = dict(zip({names}, run(s.func, [{', '.join(names)}], {values})))")
    lines.append(f"lib['f']({', '.join([*names, *map(str, binding)])})")
    for n, text in expected.items():
        lines.append(f"print({n!r}, 'compiled', {n}.tolist(), 'interpreted', interpreted[{n!r}].tolist(), 'right', {text}.tolist())")
    if any(b.dtype == "bfloat16" for b in program.params):
        lines.insert(1, "# bfloat16 arrays are shown as float32: pass tensors of a library that supports bfloat16")
    return lines


def _array(m: evaluate.Memory) -> str:
    a = m.array()
    text = (
        np.array2string(a, separator=", ", threshold=1 << 30, max_line_width=1 << 20, floatmode="unique")
        if a.dtype.kind != "f"
        else repr(a.tolist())
    )
    text = re.sub(r"\b(nan|inf)\b", r"np.\1", text)
    return f"np.array({text}, '{a.dtype.name}').reshape({a.shape})".replace("\n", "")
