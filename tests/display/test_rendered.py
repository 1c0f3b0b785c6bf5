"""What notebooks show: the tables of a terminal as HTML, with every text escaped."""

from __future__ import annotations

from types import ModuleType
from xml.etree import ElementTree

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule

from tunesmith.costmodel.training.evaluation import METRICS, Evaluation
from tunesmith.costmodel.training.training_set import Refused, TaskKey, TrainingSet
from tunesmith.datasets.record_table import RecordTable
from tunesmith.display.rendered import Rendered, as_html
from tunesmith.display.report import Report, TaskReport
from tunesmith.display.tables import code, facts_table, plain_table, printable
from tunesmith.driver.bench.report import BenchReport, BenchRow
from tunesmith.experiments.study.results import Arm, Cell, CellResult, RunIndex

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"
SHOWN = "<img src=x onerror=alert(1)>?[2J"


def parsed(text: str) -> ElementTree.Element:
    """The elements, which are well-formed and are tables and texts only."""
    root = ElementTree.fromstring(f"<x>{text}</x>")
    assert {e.tag for e in root.iter()} <= {"x", "div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    return root


class _Both(Rendered):
    def render(self) -> RenderableType:
        table = plain_table(HOSTILE, ["name", "n", "why"], [[HOSTILE, "1", "x"], ["b", "2", "y"]], left=["why"])
        return Group(table, facts_table("facts", [("a", HOSTILE)]), printable(HOSTILE), code("x = 1\n  y"), Rule(), "plain")


def test_tables_and_texts_of_a_terminal() -> None:
    root = parsed(_Both()._repr_html_())
    first, facts = root.findall("table")
    assert [[c.text for c in row] for row in first.iter("tr")] == [["name", "n", "why"], [SHOWN, "1", "x"], ["b", "2", "y"]]
    assert [c.attrib["style"].partition(":")[2] for c in next(first.iter("tr"))] == ["left", "right", "left"]
    assert first.findtext("caption") == SHOWN and facts.find("thead") is None and [c.text for c in facts.iter("td")] == ["a", SHOWN]
    texts = [d.text for d in root.findall("div")]
    assert texts[:2] == [SHOWN, "x = 1\n  y"] and set(texts[2] or "") == {"─"} and texts[3] == "plain"
    assert SHOWN in str(_Both()) and as_html("") == '<div style="white-space:pre-wrap"></div>'


def test_reports() -> None:
    seconds = dict.fromkeys(("total", "draft", "verify", "build", "measure", "train"), 0.0)
    task = TaskReport(HOSTILE, "0", 0, 0, {}, None, 0, 0, 0, seconds, (), failure=HOSTILE)
    cell = CellResult(Cell("w", Arm(HOSTILE, "", "default"), 0), "failed", failure=HOSTILE, measured=8, noisy=2)
    for shown in (
        Report((task,), notes=(HOSTILE,)),
        BenchReport((BenchRow(HOSTILE, "tunesmith", True, 1e-6, 1e-6, 1e-6), BenchRow.failed("w", "x", HOSTILE)), {"b": HOSTILE}),
        RunIndex(HOSTILE, "", {}, {}, (cell,)),
    ):
        root = parsed(shown._repr_html_())
        texts = " ".join(e.text or "" for e in root.iter())
        assert texts.count(SHOWN) >= 2 and root.find("table") is not None
    assert [c.text for c in root.iter("td")] == ["w", SHOWN, "0/1", "75%", "-", "-", "-"]


def test_data_sets_and_evaluations(hand: ModuleType) -> None:
    refused = Refused()
    refused.add(HOSTILE, 3)
    seconds = np.array([1e-6, np.inf, 2e-6])
    clean = np.array([True, True, False])
    data = TrainingSet([TaskKey("0", HOSTILE, "t")], np.zeros(3, np.int64), seconds, [], refused, clean)
    root = parsed(data._repr_html_())
    assert [c.text for c in root.iter("td")] == [SHOWN, "3", "2", "1", "1"] and SHOWN in str(root.findtext("div"))
    values: dict[str, dict[str, float | None]] = {HOSTILE: {name: None if name == "R2" else 0.5 for name in METRICS}}
    root = parsed(Evaluation("task", 5, 3, 1, values, 2, values)._repr_html_())
    assert [[c.text for c in row][:2] for row in root.iter("tr")][1:] == [[SHOWN, "0.500"], [f"{SHOWN}, 2 clean programs", "0.500"]]
    assert [c.text for c in root.iter("td")].count("-") == 2
    record = hand.record_of(hand.matmul())
    *_, best, median = [c.text for c in parsed(RecordTable.from_records([record])._repr_html_()).iter("td")]
    assert best == median == f"{record.seconds * 1e6:.4g}"
    assert parsed(RecordTable.from_records([])._repr_html_()).findtext("table/caption") == "0 records of 0 tasks"
