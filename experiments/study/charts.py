"""Draw the charts of a report as inline SVG: search curves, and bars of seconds per phase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunesmith.experiments.study.markup import SERIES, Html, el

DASHES = (None, "6 3", "2 2", "8 3 2 3")
"""Dash patterns; series beyond the number of colours repeat the colours with the next pattern."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 10.0, 8.0, 32.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of percent over trials, with an interval where known.

    Attributes:
        name: text of the tooltip.
        series: index of the arm, which selects the colour.
        trials, percent, low, high: of equal length.
    """

    name: str
    series: int
    trials: Sequence[int]
    percent: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]


def curve_chart(curves: Sequence[Curve], *, label: str, width: float = 340, height: float = 220) -> Html:
    """Speed over trials on a logarithmic axis, because half of all progress is made in the first tenth of a search.

    Args:
        curves: the curves.
        label: accessible description of the chart.
        width, height: in pixels.
    """
    last = max((c.trials[-1] for c in curves if c.trials), default=1)
    x = _Scale(math.log(1), math.log(max(last, 2)), _LEFT, width - _RIGHT)
    y = _Scale(0, 100, height - _BOTTOM, _TOP)
    parts: list[Html] = []
    for value in (0, 25, 50, 75, 100):
        parts.append(el("line", x1=_LEFT, x2=width - _RIGHT, y1=_n(y.at(value)), y2=_n(y.at(value)), class_="axis"))
        parts.append(el("text", f"{value} %", x=_LEFT - 6, y=_n(y.at(value) + 4), text_anchor="end"))
    for value in _powers(last):
        position = _n(x.at(math.log(value)))
        parts.append(el("text", str(value), x=position, y=_n(height - _BOTTOM + 15), text_anchor="middle"))
    parts.append(el("text", "trials", x=_n(width - _RIGHT), y=_n(height - 3), text_anchor="end"))
    parts += [p for c in curves for p in _band(c, x, y)]
    parts += [p for c in curves for p in _line(c, x, y)]
    return el("svg", parts, viewBox=f"0 0 {_n(width)} {_n(height)}", width=_n(width), height=_n(height), role="img", aria_label=label)


def bar_chart(rows: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[str], *, unit: str, label: str, width: float = 720) -> Html:
    """Stacked horizontal bars on one scale.

    Args:
        rows: a name and the size of each part.
        parts: names of the parts in order, which selects the colours.
        unit: unit of the sizes.
        label: accessible description of the chart.
        width: in pixels.
    """
    most = max((sum(sizes.values()) for _, sizes in rows), default=0.0) or 1.0
    names = min(7.0 * max((len(name) for name, _ in rows), default=0) + 12, width / 2)
    x = _Scale(0, most, names, width - 90)
    out: list[Html] = []
    for n, (name, sizes) in enumerate(rows):
        top, start = 4 + 26.0 * n, 0.0
        out.append(el("text", name, x=0, y=_n(top + 14)))
        for i, part in enumerate(parts):
            size = sizes.get(part, 0.0)
            box = {"x": _n(x.at(start)), "y": _n(top), "width": _n(x.at(start + size) - x.at(start)), "height": 18}
            out.append(el("rect", el("title", f"{name}, {part}: {size:.4g} {unit}"), class_=f"f{i % SERIES}", **box))
            start += size
        out.append(el("text", f"{start:.3g} {unit}", x=_n(x.at(start) + 6), y=_n(top + 14)))
    height = 8 + 26 * len(rows)
    return el("svg", out, viewBox=f"0 0 {_n(width)} {height}", width=_n(width), height=height, role="img", aria_label=label)


def line_legend(names: Sequence[str]) -> Html:
    """Legend of lines, in order of their series."""
    marks = [
        el("svg", el("line", x1=0, x2=26, y1=6, y2=6, class_=f"line s{i % SERIES}", **_dash(i)), width=26, height=12, aria_hidden="true")
        for i in range(len(names))
    ]
    return el("ul", [el("li", mark, name) for mark, name in zip(marks, names, strict=True)], class_="legend")


def box_legend(names: Sequence[str]) -> Html:
    """Legend of the parts of bars."""
    marks = [
        el("svg", el("rect", width=12, height=12, class_=f"f{i % SERIES}"), width=12, height=12, aria_hidden="true")
        for i in range(len(names))
    ]
    return el("ul", [el("li", mark, name) for mark, name in zip(marks, names, strict=True)], class_="legend")


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Pixels of a value, clamped to the ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _line(c: Curve, x: _Scale, y: _Scale) -> list[Html]:
    """A step line: a best time holds until the next improvement."""
    if not c.trials:
        return []
    path = f"M{_n(x.at(math.log(c.trials[0])))} {_n(y.at(c.percent[0]))}"
    for t, value in zip(c.trials[1:], c.percent[1:], strict=True):
        path += f"H{_n(x.at(math.log(t)))}V{_n(y.at(value))}"
    title = el("title", f"{c.name}: {c.percent[-1]:.1f} % after {c.trials[-1]} trials")
    return [el("path", title, d=path, class_=f"line s{c.series % SERIES}", **_dash(c.series))]


def _band(c: Curve, x: _Scale, y: _Scale) -> list[Html]:
    """The interval as a band, where known."""
    known = [(t, low, high) for t, low, high in zip(c.trials, c.low, c.high, strict=True) if low is not None and high is not None]
    if len(known) < 2:
        return []
    positions = [x.at(math.log(t)) for t, _, _ in known]
    upper = [(p, y.at(high)) for p, (_, _, high) in zip(positions, known, strict=True)]
    lower = [(p, y.at(low)) for p, (_, low, _) in zip(positions, known, strict=True)]
    path = f"M{_n(upper[0][0])} {_n(upper[0][1])}"
    path += "".join(f"H{_n(px)}V{_n(py)}" for px, py in upper[1:])
    path += f"V{_n(lower[-1][1])}" + "".join(f"V{_n(py)}H{_n(px)}" for px, py in reversed(lower[:-1]))
    return [el("path", d=path + "Z", class_=f"band f{c.series % SERIES}")]


def _powers(last: int) -> list[int]:
    """Ticks 1, 2, 4, ..., few enough to fit next to each other."""
    step = 2 if last <= 128 else 4
    out = [1]
    while out[-1] * step <= last:
        out.append(out[-1] * step)
    return out


def _dash(series: int) -> dict[str, object]:
    return {"stroke_dasharray": DASHES[series // SERIES % len(DASHES)]}


def _n(x: float) -> str:
    """Pixels with one decimal."""
    return f"{x:.1f}".removesuffix(".0")
