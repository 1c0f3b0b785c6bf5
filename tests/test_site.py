"""The documentation site: it builds without warnings, names everything that is registered, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path

import click
import pytest

import tunesmith
from tunesmith.cli.main import main
from tunesmith.codegen.backends.backend import BACKENDS
from tunesmith.costmodel.models.registry import COST_MODELS
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.script import parser_calls, syntax
from tunesmith.ir.script.parser_stmt import LOOPS
from tunesmith.ir.target.attributes import ATTRIBUTES
from tunesmith.lower.pipelines import PASSES
from tunesmith.measure.baselines.registry import BASELINES
from tunesmith.ops import tensor_expression
from tunesmith.ops.operator import OPERATORS
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.search.samplers.registry import SAMPLERS
from tunesmith.search.space.rules_table import SEARCH_RULES

ROOT = Path(__file__).resolve().parents[1]
_ID = re.compile(r'\bid="([^"]+)"')

SCRIPT_WORDS = sorted({*syntax.__all__, *parser_calls._CALLS, *LOOPS} - {"T", "axis", "prim_func", "ir_module"})
PAGES: dict[str, Iterable[str]] = {
    "script": [*SCRIPT_WORDS, "axis.spatial", "axis.reduce", "axis.remap"],
    "te": tensor_expression.__all__,
    "schedule": PRIMITIVES,
    "operators": OPERATORS,
    "graph-operators": GRAPH_OPERATORS,
    "passes": [*PASSES, *GRAPH.names],
    "targets": [*BACKENDS, *ATTRIBUTES],
    "sketch-rules": SEARCH_RULES,
    "samplers": SAMPLERS,
    "cost-models": COST_MODELS,
    "baselines": BASELINES,
    "api": sorted(
        {*tunesmith.__all__, *tunesmith.passes.__all__, *tunesmith.instruments.__all__, *tunesmith.debug.__all__}
        - {"Schedule", "script", "te", "CPU", "CPU_CHECKED", "GPU", "GRAPH"}
    ),
}
"""Page of the reference -> the names that it has an anchor for: the name itself, or a dotted path that ends with it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; the build fails on broken links and references."""
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="needs the extra docs: pip install 'tunesmith[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def anchors(page: Path) -> set[str]:
    """The anchors of a page, and the last words of those that are dotted paths."""
    found = {unescape(a) for a in _ID.findall(page.read_text(encoding="utf-8"))}
    return found | {a.rpartition(".")[2] for a in found if a.startswith("tunesmith.")}


@pytest.mark.parametrize("page", PAGES)
def test_every_registered_name_has_an_anchor(site: Path, page: str) -> None:
    names = {n for n in PAGES[page] if not n.startswith(("probe", "fuzz"))}  # registered by other tests in this process
    missing = names - anchors(site / "reference" / f"{page}.html")
    assert not missing, f"docs/site/generated_pages.py leaves out {sorted(missing)}"


def test_graph_operators_have_their_meaning_and_passes_their_options(site: Path) -> None:
    operators, passes = [unescape((site / "reference" / f"{page}.html").read_text("utf-8")) for page in ("graph-operators", "passes")]
    assert GRAPH_OPERATORS.get("relu").meaning in operators and "<th>meaning</th>" in operators
    fuse = passes.partition('id="fuse_operators"')[2].partition("<h3")[0]
    assert "Level 2; options: <code>most</code> (default <code>64</code>)" in fuse
    assert "Fold the constants that layout conversion made" in passes.partition('id="fold_layouts"')[2].partition("<h3")[0]


def commands(group: click.Group, words: str = "tunesmith") -> Iterator[tuple[str, click.Command]]:
    """(anchor, command) of every command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{words}-{name}")
        else:
            yield f"{words}-{name}", command


def test_every_command_has_a_section_with_its_options(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    sections = {part.partition('"')[0]: part for part in re.split(r'<h2 id="', text)}
    for anchor, command in commands(main):
        given = [option for p in command.params if isinstance(p, click.Option) for option in p.opts]
        assert not [option for option in given if option not in sections[anchor]], anchor


def test_exported_names_have_docstrings() -> None:
    without = [name for name in tunesmith.__all__ if not (getattr(tunesmith, name).__doc__ or "").strip()]
    assert not without


def test_sections_of_primitives_are_rendered(site: Path) -> None:
    text = (site / "reference" / "schedule.html").read_text(encoding="utf-8")
    assert text.count("<strong>Requires</strong>") >= len(PRIMITIVES) - 1
    assert "<strong>Rewrite</strong> <code>split(i, [None, 4])</code>" in text
    plain = re.sub(r"<[^>]+>", "", text)
    assert not re.findall(r"^\s*(?:Rewrite|Requires|Args):", plain, re.MULTILINE)


def test_figures_are_in_the_page(site: Path) -> None:
    """The layers of the figure are those of pyproject.toml, because it is drawn from there; the other one names the steps."""
    text = (site / "concepts.html").read_text(encoding="utf-8")
    figures = re.findall(r'<svg [^>]*class="figure".*?</svg>', text, re.DOTALL)
    assert len(figures) == 2
    assert all(word in figures[0] for word in ("Sketch rules", "Sampler", "Builder", "Runner", "Log", "Replay", "Lowering"))
    assert all(f">{package}</text>" in figures[1] for package in ("support", "ir", "schedule", "search", "src/tunesmith/cli"))


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loaded = re.compile(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(https?:[^"]+)"')
    assert not {url for page in pages for url in loaded.findall(page.read_text(encoding="utf-8")) if "canonical" not in url}
