"""Draw the charts of a report as inline SVG: search curves, and bars of time per phase."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from tunesmith.experiments.arena.plots import SETTINGS, line_style
from tunesmith.support.errors import MissingExtraError
from tunesmith.support.escaped_text import escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = "\ufffd"
"""Replacement for unprintable characters."""
_TIP = "tooltip: "
"""Prefix of the ids of artists whose id is the text of a tooltip."""
_LONGEST = 48
"""Maximum number of characters of a name beside a bar."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of percent over trials, with an interval where known.

    Attributes:
        name: text of the tooltip.
        series: index of the arm, which selects colour and line style.
        trials, percent, low, high: of equal length.
    """

    name: str
    series: int
    trials: Sequence[int]
    percent: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]


def curve_chart(curves: Sequence[Curve], *, label: str, size: tuple[float, float] = (4.6, 2.9)) -> str:
    """Draw speed over trials as steps, on a logarithmic axis, because half of all progress is made in the first tenth of a search.

    Args:
        curves: the curves.
        label: accessible name of the chart, unique in its page.
        size: width and height in inches.
    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.6 / size[0], 0.5 / size[1], 1 - 0.75 / size[0], 1 - 0.6 / size[1]))  # fixed: layouts are slow
        axes.set_xscale("log", base=2)
        for c in curves:
            if c.trials:
                low, high = np.array(c.low, np.float64), np.array(c.high, np.float64)  # None becomes NaN, which is not filled
                axes.fill_between(c.trials, low, high, step="post", color=f"C{c.series}", alpha=0.15, linewidth=0)
                tip = f"{c.name}: {c.percent[-1]:.1f} % after {c.trials[-1]} trials"
                axes.plot(c.trials, c.percent, drawstyle="steps-post", gid=_tip(tip), **line_style(c.series))
        last = max((c.trials[-1] for c in curves if c.trials), default=1)
        axes.set(xlim=(1, max(last, 2)), ylim=(0, 102), xlabel="trials", yticks=range(0, 101, 25))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g} %")
        axes.grid(axis="y", alpha=0.4)

    return _inline_svg(draw, label, size)


def bar_chart(rows: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[str], *, unit: str, label: str) -> str:
    """Draw stacked horizontal bars with a legend.

    Args:
        rows: a name and the size of each part.
        parts: names of the parts in order.
        unit: unit of the sizes.
        label: accessible name of the chart, unique in its page.
    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def draw(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot()
        places, ends = np.arange(len(rows)), np.zeros(len(rows))
        for part in parts:
            sizes = np.array([row.get(part, 0.0) for _, row in rows])
            bars = axes.barh(places, sizes, left=ends, label=part)
            for bar, (name, _), size in zip(bars, rows, sizes, strict=True):
                bar.set_gid(_tip(f"{name}, {part}: {size:.4g} {unit}"))
            ends += sizes
        axes.bar_label(bars, [f"{end:.3g} {unit}" for end in ends], padding=4)
        axes.set_yticks(places, [_short(escaped(name, MARK)) for name, _ in rows])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel(unit)
        figure.legend(loc="outside upper left", ncols=len(parts), frameon=False)

    return _inline_svg(draw, label, (9.6, 1.2 + 0.34 * len(rows)))


def _short(text: str) -> str:
    """The text cut to `_LONGEST` characters; tooltips have all of it."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _tip(text: str) -> str:
    return _TIP + escaped(text, MARK)


def _inline_svg(draw: Callable[[Figure], None], label: str, size: tuple[float, float]) -> str:
    """Draw a figure as an SVG element for HTML: without prolog, namespaces and metadata, and with ids that are unique in a page."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "writing a report") from None
    file = io.BytesIO()
    with rc_context({**SETTINGS, "svg.hashsalt": f"tunesmith {label}"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser has other fonts
        figure = Figure(figsize=size)
        draw(figure)
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(file.getvalue())
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
