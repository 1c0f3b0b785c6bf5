"""Draw the charts of a report as SVG, with their numbers as CSV: search curves, and bars of time per phase."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from tunesmith.experiments.arena.plots import SETTINGS, draw_band, legend_beside, line_style
from tunesmith.support.errors import MissingExtraError
from tunesmith.support.escaped_text import escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = "\ufffd"
"""Replacement for unprintable characters."""
_TIP = "tooltip: "
"""Prefix of the ids of artists whose id is the text of a tooltip."""
_LONGEST = 48
"""Maximum number of characters of a name beside a bar or in a legend."""
DECADE = 10
"""Ratio of the largest to the smallest value beyond which an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of percent over trials, with an interval where known.

    Attributes:
        name: name in legend and tooltip.
        series: index of the arm, which selects colour and line style.
        trials, percent, low, high: of equal length.
    """

    name: str
    series: int
    trials: Sequence[int]
    percent: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a report.

    Attributes:
        inline: SVG element for a page; curves have no legend, because all charts of a page share one.
        svg: SVG document with title and legend.
        csv: the drawn numbers, with a header; units are in the names of the columns.
    """

    inline: str
    svg: bytes
    csv: str


def curve_chart(curves: Sequence[Curve], *, label: str, size: tuple[float, float] = (4.6, 2.9)) -> Chart:
    """Draw speed over trials as steps, on a logarithmic axis, because half of all progress is made in the first tenth of a search.

    The axis of speeds is logarithmic if they span more than a factor of `DECADE`.

    Args:
        curves: the curves.
        label: accessible name of the chart, unique in its page.
        size: width and height in inches.
    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    speeds = [x for c in curves for x in c.percent]
    lowest, last = min(speeds, default=100.0), max((c.trials[-1] for c in curves if c.trials), default=1)
    is_log = max(speeds, default=100.0) > DECADE * lowest

    def draw(figure: Figure, alone: bool) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        margins = (0.85 / size[0], 0.5 / size[1], 1 - 1.0 / size[0], 1 - (0.9 if alone else 0.6) / size[1])
        axes = figure.add_axes(margins)  # fixed: layouts are slow
        axes.set_xscale("log", base=2)
        axes.set_yscale("log" if is_log else "linear")
        for c in curves:
            if c.trials:
                low, high = np.array(c.low, np.float64), np.array(c.high, np.float64)  # None becomes NaN, which is not filled
                draw_band(axes, c.trials, low, high, c.series, "post")
                tip = f"{c.name}: {c.percent[-1]:.1f} % after {c.trials[-1]} trials"
                name = _short(escaped(c.name, MARK))
                axes.plot(c.trials, c.percent, drawstyle="steps-post", gid=None if alone else _tip(tip), label=name, **line_style(c.series))
        axes.set(xlim=(1, max(last, 2)), xlabel="trials", ylabel="% of the best known speed")
        if is_log:
            axes.set_ylim(0.5 * lowest, 110)  # intervals of few seeds are too wide to show in full
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set(ylim=(0, 102), yticks=range(0, 101, 25))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g} %")
        axes.grid(axis="y", alpha=0.4)
        if alone:
            axes.set_title(escaped(label, MARK), fontsize="medium", loc="left")
            legend_beside(axes)

    head = ("arm", "trials", "speed_percent_of_best_known", "low_percent", "high_percent")
    rows = [(c.name, *point) for c in curves for point in zip(c.trials, c.percent, c.low, c.high, strict=True)]
    return _chart(draw, label, size, [head, *rows])


def bar_chart(rows: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[str], *, label: str) -> Chart:
    """Draw stacked horizontal bars of milliseconds per trial, with a legend.

    Args:
        rows: a name and the milliseconds of each part.
        parts: names of the parts in order.
        label: accessible name of the chart, unique in its page.
    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def draw(figure: Figure, alone: bool) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot()
        places, ends = np.arange(len(rows)), np.zeros(len(rows))
        for part in parts:
            sizes = np.array([row.get(part, 0.0) for _, row in rows])
            bars = axes.barh(places, sizes, left=ends, label=part)
            for bar, (name, _), size in zip(bars, rows, sizes, strict=True):
                bar.set_gid(None if alone else _tip(f"{name}, {part}: {size:.4g} ms"))
            ends += sizes
        axes.bar_label(bars, [f"{end:.3g} ms" for end in ends], padding=4)
        axes.set_yticks(places, [_short(escaped(name, MARK)) for name, _ in rows])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("milliseconds per trial")
        if alone:
            axes.set_title(escaped(label, MARK), fontsize="medium", loc="left")
        figure.legend(loc="outside upper left", ncols=len(parts), frameon=False)

    numbers = [(name, part, row.get(part, 0.0)) for name, row in rows for part in parts]
    return _chart(draw, label, (9.6, 1.2 + 0.34 * len(rows)), [("arm", "phase", "milliseconds_per_trial"), *numbers])


def _short(text: str) -> str:
    """The text cut to `_LONGEST` characters; tooltips have all of it."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _tip(text: str) -> str:
    return _TIP + escaped(text, MARK)


def _chart(draw: Callable[[Figure, bool], None], label: str, size: tuple[float, float], rows: Iterable[Sequence[object]]) -> Chart:
    """Draw a figure for the page and for a file, and write its numbers.

    Args:
        draw: draws the figure; the second argument says that it is a file of its own.
        label, size: see `curve_chart`.
        rows: the header and the numbers.
    """
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return Chart(_inline(_svg(draw, False, label, size), label), _svg(draw, True, label, size), lines.getvalue())


def _svg(draw: Callable[[Figure, bool], None], alone: bool, label: str, size: tuple[float, float]) -> bytes:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "writing a report") from None
    file = io.BytesIO()
    with rc_context({**SETTINGS, "svg.hashsalt": f"tunesmith {label}"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser has other fonts
        figure = Figure(figsize=size)
        draw(figure, alone)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=metadata, bbox_inches="tight" if alone else None)
    return file.getvalue()


def _inline(svg: bytes, label: str) -> str:
    """An SVG document as an element for HTML: without prolog, namespaces and metadata, and with ids that are unique in a page."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    for group in root.iter("g"):
        tip = group.attrib.pop("id", "")  # matplotlib numbers the groups of each figure from 1
        if tip.startswith(_TIP):
            _entitle(group, tip.removeprefix(_TIP))
    _entitle(root, escaped(label, MARK))
    root.set("role", "img")
    return ElementTree.tostring(root, encoding="unicode")


def _entitle(element: ElementTree.Element, text: str) -> None:
    """Give an element its `title`: the tooltip of a shape, the accessible name of a drawing."""
    title = ElementTree.Element("title")
    title.text = text
    element.insert(0, title)
