"""Build steps of the site: add generated pages, insert figures, and resolve links to files outside of docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from generated_pages import pages
from layers_figure import layers_figure
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FIGURES = Path(__file__).resolve().parents[1] / "figures"
_FIGURE = re.compile(r"^!\[[^\]]*\]\(figures/([\w-]+)\.svg\)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from registries, and the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path, text in {**pages(), "changelog.md": changelog}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace images of figures by their SVG, which takes the colours of the page."""
    return _FIGURE.sub(lambda m: figure(m[1]), markdown)


def figure(name: str) -> str:
    """The SVG of a figure: generated from the layout, or a file."""
    svg = layers_figure(ROOT / "pyproject.toml") if name == "layers" else (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    return "\n".join([line.strip() for line in svg.splitlines() if line.strip()])
