"""Draw the layers of the package from the table `[tool.tunesmith.layout]` of pyproject.toml, as SVG."""

from __future__ import annotations

import textwrap
import tomllib
from html import escape
from pathlib import Path

WIDTH, GAP, NUMBER = 880, 8, 28
LINE, CHARACTER = 14, 6.2
"""Width of the figure, distance of boxes, width of the column of numbers, height of a line, width of a character, in units of the SVG."""


def layers_figure(pyproject: Path) -> str:
    """One row a layer, the highest on top; packages of one layer are side by side."""
    layout = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["tunesmith"]["layout"]
    layers: dict[int, list[str]] = {}
    for package, entry in layout.items():
        layers.setdefault(entry["layer"], []).append(package)
    shapes, y = [], 0
    for layer in sorted(layers, reverse=True):
        packages = layers[layer]
        width = (WIDTH - NUMBER - GAP * (len(packages) - 1)) / len(packages)
        texts = [textwrap.wrap(layout[p]["holds"].replace("`", ""), int((width - 20) / CHARACTER)) for p in packages]
        height = LINE * max(map(len, texts)) + 26
        shapes.append(f'<text x="0" y="{y + height / 2 + 4:g}" opacity="0.6">{layer}</text>')
        for i, package in enumerate(packages):
            shapes += _box(NUMBER + i * (width + GAP), y + 1, width - 1, height, package, texts[i])
        y += height + GAP
    view = f'class="figure" viewBox="0 0 {WIDTH} {y}" role="img" font-size="12" fill="currentColor"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return "\n".join([head, "<title>The layers of the package, the highest on top</title>", *shapes, "</svg>"])


def _box(x: float, y: float, width: float, height: float, package: str, lines: list[str]) -> list[str]:
    left = f'<text x="{x + 10:g}"'
    colours = 'fill-opacity="0.05" stroke="currentColor" stroke-opacity="0.4"'
    return [
        f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{height}" rx="5" {colours}/>',
        f'{left} y="{y + 17}" font-weight="bold" font-family="monospace">{escape(package)}</text>',
        *[f'{left} y="{y + 32 + LINE * i}" opacity="0.85">{escape(line)}</text>' for i, line in enumerate(lines)],
    ]
