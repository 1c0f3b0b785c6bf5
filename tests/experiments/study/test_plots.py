"""Charts of a report: shapes, tooltips, escaping, and equal output for equal data."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from tunesmith.experiments.arena.plots import COLOURS, line_style
from tunesmith.experiments.study.plots import Curve, bar_chart, curve_chart

pytest.importorskip("matplotlib")

HEAD = "arm,trials,speed_percent_of_best_known,low_percent,high_percent\n"
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
    (tip, path), *others = shapes(curve_chart([CURVE], label="speed").inline).items()
    assert tip == "x: 120.0 % after 16 trials" and not others
    points = corners(path)
    assert len(points) == 5 and all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(points))
    assert points[2][0] - points[0][0] == pytest.approx(points[4][0] - points[2][0]), "4 is halfway from 1 to 16"
    style = path.attrib["style"]
    assert line_style(9) == {"color": COLOURS[2], "linestyle": "dashed"} and COLOURS[2] in style and "stroke-dasharray" in style


def test_charts_have_an_accessible_name_and_text() -> None:
    root = ElementTree.fromstring(curve_chart([CURVE], label="a < b").inline)
    assert root.tag == "svg" and root.attrib["role"] == "img" and root[0].tag == "title" and root[0].text == "a < b"
    assert {"10 %", "100 %", "trials", "1", "16"} <= {element.text for element in root.iter("text")}


def test_a_chart_without_data_is_empty() -> None:
    empty = [curve_chart([], label="none"), curve_chart([Curve("x", 0, [], [], [], [])], label="empty")]
    assert [shapes(chart.inline) for chart in empty] == [{}, {}] and empty[0].csv == empty[1].csv == HEAD


def test_bars_are_proportional_and_long_names_are_cut() -> None:
    chart = bar_chart([("x" * 300, {"a": 1.0, "b": 3.0})], ["a", "b"], label="bars")
    drawn = chart.inline
    widths = [max(x) - min(x) for path in shapes(drawn).values() if (x := [p[0] for p in corners(path)])]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert "x" * 47 + "…" in drawn and "x" * 300 + ", a: 1 ms" in drawn and "4 ms" in drawn
    name = "x" * 300
    assert chart.csv == f"arm,phase,milliseconds_per_trial\n{name},a,1.0\n{name},b,3.0\n"


def test_names_are_escaped() -> None:
    """Formulas, markup, control characters, and characters that matplotlib's font lacks."""
    name = "$\\frac$ <b> \x1b\u202e \u77e9"
    curve = curve_chart([Curve(name, 0, [1], [1.0], [0.5], [2.0])], label="c")
    drawn = bar_chart([(name, {"a": 1.0})], ["a"], label=name).inline + curve.inline
    assert name.replace("\x1b\u202e", "\ufffd\ufffd") in {e.text for e in ElementTree.fromstring(curve.svg).iter() if e.text}
    assert drawn.count("$\\frac$ &lt;b&gt; \ufffd\ufffd \u77e9") == 4 and "\x1b" not in drawn and "\u202e" not in drawn


def test_equal_data_give_equal_charts() -> None:
    assert curve_chart([CURVE], label="a") == curve_chart([CURVE], label="a") != curve_chart([CURVE], label="b")


def test_the_file_of_a_chart_has_title_legend_and_valid_ids_and_its_numbers_are_csv() -> None:
    chart = curve_chart([CURVE, Curve("y, z", 1, [1], [50.0], [None], [None])], label="speed")
    root = ElementTree.fromstring(chart.svg)
    texts = [e.text for e in root.iter() if e.tag.endswith("}text")]
    assert {"speed", "x", "y, z", "trials", "% of the best known speed"} <= set(texts)
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids)) and not any(" " in i for i in ids)
    assert "y, z" not in {e.text for e in ElementTree.fromstring(chart.inline).iter("text")}, "the page has one legend for all"
    assert chart.csv == HEAD + 'x,1,10.0,5.0,20.0\nx,4,50.0,,\nx,16,120.0,90.0,130.0\n"y, z",1,50.0,,\n'


@pytest.mark.parametrize(("lowest", "is_log"), [(4.0, True), (20.0, False)])
def test_speeds_over_more_than_a_decade_are_drawn_on_a_logarithmic_axis(lowest: float, is_log: bool) -> None:
    drawn = curve_chart([Curve("x", 0, [1, 2, 3], [lowest, 40.0, 80.0], [None] * 3, [None] * 3)], label="speed").inline
    (path,) = shapes(drawn).values()
    _, _, middle, _, top = [y for _, y in corners(path)]
    ((_, bottom), *_) = corners(path)
    assert (">5 %<" in drawn) == is_log
    share = (bottom - middle) / (bottom - top)
    expected = math.log(40 / lowest) / math.log(80 / lowest) if is_log else (40 - lowest) / (80 - lowest)
    assert share == pytest.approx(expected, abs=0.01)


def test_bands_of_seven_arms_have_edges_in_the_colours_of_their_lines() -> None:
    curves = [Curve(f"arm {n}", n, [1, 4], [20.0 + n, 50.0], [10.0 + n, 40.0], [30.0 + n, 60.0]) for n in range(len(COLOURS))]
    drawn = curve_chart(curves, label="speed").inline
    for colour in COLOURS[:-1]:  # black is the default, which files leave out
        styles = re.findall(rf'style="([^"]*(?:fill|stroke): {colour}[^"]*)"', drawn)
        assert any(f"fill: {colour}" in s and f"stroke: {colour}" in s and "fill-opacity: 0.08" in s for s in styles), colour
