"""Draw the layers of the package from the table `[tool.tunesmith.layout]` of pyproject.toml, as SVG."""

from __future__ import annotations

import textwrap
import tomllib
from html import escape
from pathlib import Path

WIDTH, ROW, GAP, NUMBER = 880, 52, 8, 28
CHARACTER = 6.0
"""Width of the figure, height of a row, distance of boxes, width of the column of numbers, width of a character, in units of the SVG."""


def layers_figure(pyproject: Path) -> str:
    """One row a layer, the highest on top; packages of one layer are side by side."""
    layout = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["tunesmith"]["layout"]
    layers: dict[int, list[str]] = {}
    for package, entry in layout.items():
        layers.setdefault(entry["layer"], []).append(package)
    shapes = []
    for row, layer in enumerate(sorted(layers, reverse=True)):
        y = row * (ROW + GAP)
        shapes.append(f'<text x="0" y="{y + ROW / 2 + 4}" opacity="0.6">{layer}</text>')
        packages = layers[layer]
        width = (WIDTH - NUMBER - GAP * (len(packages) - 1)) / len(packages)
        for i, package in enumerate(packages):
            shapes += _box(NUMBER + i * (width + GAP), y, width - 1, package, layout[package]["holds"])
    height = len(layers) * (ROW + GAP)
    view = f'class="figure" viewBox="0 0 {WIDTH} {height}" role="img" font-size="12" fill="currentColor"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return "\n".join([head, "<title>The layers of the package, the highest on top</title>", *shapes, "</svg>"])


def _box(x: float, y: float, width: float, package: str, holds: str) -> list[str]:
    lines = textwrap.wrap(holds.replace("`", ""), int((width - 20) / CHARACTER))
    out = [
        f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW}" rx="5" fill-opacity="0.05" stroke="currentColor" stroke-opacity="0.4"/>',
        f'<text x="{x + 10:g}" y="{y + 17}" font-weight="bold" font-family="monospace">{escape(package)}</text>',
    ]
    return out + [f'<text x="{x + 10:g}" y="{y + 32 + 14 * i}" opacity="0.85">{escape(line)}</text>' for i, line in enumerate(lines)]
