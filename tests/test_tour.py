"""Run the Python blocks of the documents in order, in one namespace, and compare their output with the quoted text."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunesmith.codegen.llvm.link import linkers
from tunesmith.ir.target.attributes import TARGET_KINDS, TARGET_TAGS

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A Python block, its first line number, and the text block directly after it, if any."""

    line: int
    source: str
    output: str | None


def examples(text: str) -> Iterator[Example]:
    fences = list(_FENCE.finditer(text))
    for i, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        after = fences[i + 1] if i + 1 < len(fences) else None
        quoted = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        yield Example(text.count("\n", 0, fence.start(2)) + 1, fence[2], after[2] if quoted and after is not None else None)


def run(example: Example, name: str, folder: Path, namespace: dict[str, Any], replace: Mapping[str, str]) -> str:
    """Output of a block, which is run from a file at its line number, because programs are parsed from their source."""
    source = example.source
    for old, new in replace.items():
        source = source.replace(old, new)
    file = folder / f"{name}_{example.line}.py"
    file.write_text("\n" * (example.line - 1) + source, encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    return printed.getvalue()


CHEAPER = {"budget=128": "budget=2, search=tunesmith.Search(batch=2), workers=0, progress=False", "512": "64"}
"""Replacements that reduce the work of the README's commands."""


@pytest.mark.parametrize(
    ("path", "replace"),
    [
        ("docs/index.md", {"budget=64": "budget=2, search=tunesmith.Search(batch=2, leaders=0), workers=0, progress=False", "512": "64"}),
        ("docs/concepts.md", {}),
        ("docs/control-flow.md", {}),
        ("docs/precision.md", {}),
        ("docs/passes.md", {}),
        ("docs/tour.md", {}),
        ("docs/rules.md", {}),
        ("docs/ray.md", {}),
        ("docs/runtime.md", {}),
        ("docs/gpu.md", {}),
        ("docs/targets.md", {} if linkers("aarch64") else {'native.export_library("libnet.so", header="net.h")': "pass"}),
        ("README.md", CHEAPER),
        ("docs/tuning.md", {"total_trials=2000)": "total_trials=24), workers=0, progress=False", "Search(": "Search(batch=2, leaders=0, "}),
        (
            "docs/datasets.md",
            {
                "per_task=256": 'per_task=4, target=Target("llvm"), workers=0, progress=False',
                "import build\n": "import build\nfrom tunesmith.ir.target.target import Target\n",
            },
        ),
        ("docs/cost-models.md", {"budget=64": "budget=12, workers=0, progress=False", "Search(": "Search(batch=12, "}),
        ("docs/experiments.md", {}),
        (
            "docs/models.md",
            {n: "budget=1, search=tunesmith.Search(batch=1, leaders=0), workers=0, progress=False" for n in ("budget=64", "budget=16")},
        ),
        (
            "docs/samplers.md",
            {
                "budget=64": "budget=12, workers=0, progress=False",
                "search=Climber": "search=tunesmith.Search(Climber, batch=6, leaders=0)",
                "search=Genetic": "search=tunesmith.Search(Genetic, batch=6, leaders=0)",
            },
        ),
    ],
    ids=[
        "index",
        "concepts",
        "control-flow",
        "precision",
        "passes",
        "tour",
        "rules",
        "ray",
        "runtime",
        "gpu",
        "targets",
        "readme",
        "tuning",
        "datasets",
        "cost-models",
        "experiments",
        "models",
        "samplers",
    ],
)
def test_the_code_runs_and_prints_the_quoted_output(
    path: str, replace: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("_values", "_sources"):  # a document registers a kind
        for registry in (TARGET_KINDS, TARGET_TAGS):
            monkeypatch.setattr(registry, part, dict(getattr(registry, part)))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = list(examples((ROOT / path).read_text(encoding="utf-8")))
    assert found
    for example in found:
        printed = run(example, Path(path).stem, tmp_path, namespace, replace)
        if example.output is not None:
            assert printed == example.output, f"{path}:{example.line} prints a different text"


def test_blocks_and_their_output_are_found() -> None:
    text = "a\n```python\nprint(1)\n```\n\n```text\n1\n```\n```python\nx = 1\n```\nwords\n```text\n2\n```\n```\nno\n```\n"
    assert list(examples(text)) == [Example(3, "print(1)\n", "1\n"), Example(10, "x = 1\n", None)]
