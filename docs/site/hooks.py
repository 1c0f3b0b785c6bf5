"""Build steps of the site: add the generated pages, and insert the figures."""

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
_DRAWN = re.compile(r"^!\[[^\]]*\]\((figures/[\w-]+\.svg)\)$", re.MULTILINE)

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_NESTED = re.compile(r"^  (?=- )", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from registries, and the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path, text in {**pages(), "changelog.md": changelog}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the SVG of figures into the page, whose colours they take; indent nested lists by four spaces, for Python-Markdown."""
    parts = _FENCED.split(markdown)
    markdown = "".join([part if i % 2 else _NESTED.sub(" " * 4, part) for i, part in enumerate(parts)])
    markdown = markdown.replace("<!-- figure: layers -->", layers_figure(ROOT / "pyproject.toml"))
    return _DRAWN.sub(lambda m: (ROOT / "docs" / m[1]).read_text(encoding="utf-8").strip(), markdown)
