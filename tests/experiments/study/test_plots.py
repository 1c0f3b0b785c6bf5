"""Charts of a report: shapes, tooltips, escaping, and equal output for equal data."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from tunesmith.experiments.arena.plots import COLOURS, line_style
from tunesmith.experiments.study.plots import Curve, bar_chart, curve_chart

pytest.importorskip("matplotlib")

CURVE = Curve("x", 9, [1, 4, 16], [10.0, 50.0, 120.0], [5.0, None, 90.0], [20.0, None, 130.0])


def shapes(drawn: str) -> dict[str, ElementTree.Element]:
    """The paths with a tooltip, by its text."""
    found = {}
    for group in ElementTree.fromstring(drawn).iter("g"):
        title, path = group.find("title"), group.find("path")
        if title is not None and path is not None:
            found[str(title.text)] = path
    return found


def corners(path: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) (-?[\d.]+)", path.attrib["d"])]


def test_curves_are_steps() -> None:
    (tip, path), *others = shapes(curve_chart([CURVE], label="speed")).items()
    assert tip == "x: 120.0 % after 16 trials" and not others
    points = corners(path)
    assert len(points) == 5 and all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(points))
    assert points[2][0] - points[0][0] == pytest.approx(points[4][0] - points[2][0]), "4 is halfway from 1 to 16"
    style = path.attrib["style"]
    assert line_style(9) == {"color": COLOURS[2], "linestyle": "dashed"} and COLOURS[2] in style and "stroke-dasharray" in style


def test_charts_have_an_accessible_name_and_text() -> None:
    root = ElementTree.fromstring(curve_chart([CURVE], label="a < b"))
    assert root.tag == "svg" and root.attrib["role"] == "img" and root[0].tag == "title" and root[0].text == "a < b"
    assert {"0 %", "100 %", "trials", "1", "16"} <= {element.text for element in root.iter("text")}


def test_a_chart_without_data_is_empty() -> None:
    assert shapes(curve_chart([], label="none")) == {} == shapes(curve_chart([Curve("x", 0, [], [], [], [])], label="empty"))


def test_bars_are_proportional_and_long_names_are_cut() -> None:
    drawn = bar_chart([("x" * 300, {"a": 1.0, "b": 3.0})], ["a", "b"], unit="s", label="bars")
    widths = [max(x) - min(x) for path in shapes(drawn).values() if (x := [p[0] for p in corners(path)])]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert "x" * 47 + "…" in drawn and "x" * 300 + ", a: 1 s" in drawn and "4 s" in drawn


def test_names_are_escaped() -> None:
    """Formulas, markup, control characters, and characters that matplotlib's font lacks."""
    name = "$\\frac$ <b> \x1b\u202e \u77e9"
    drawn = bar_chart([(name, {"a": 1.0})], ["a"], unit="s", label=name) + curve_chart(
        [Curve(name, 0, [1], [1.0], [0.5], [2.0])], label="c"
    )
    assert drawn.count("$\\frac$ &lt;b&gt; \ufffd\ufffd \u77e9") == 4 and "\x1b" not in drawn and "\u202e" not in drawn


def test_equal_data_give_equal_charts() -> None:
    assert curve_chart([CURVE], label="a") == curve_chart([CURVE], label="a") != curve_chart([CURVE], label="b")
