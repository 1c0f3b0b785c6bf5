"""Generate self-contained HTML in which every text is escaped."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Sequence

from tunesmith.support.escaped_text import escaped

VOID = frozenset({"meta", "br"})
"""Elements without an end tag."""
_MARK = "\ufffd"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class Html(str):
    """Text that is already markup.  Created only in this module, mostly by `el`."""

    __slots__ = ()


Content = str | Iterable["Content"] | None


def el(tag: str, *content: Content, **attributes: object) -> Html:
    """Create an element.

    Args:
        tag: name of the element.
        content: texts, which are escaped, other elements, or lists of both; None is empty.
        attributes: by name, where `_` means `-` and a trailing `_` is dropped (`class_`); None omits the attribute.
    """
    parts = []
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        assert _NAME.fullmatch(name), name
        if value is not None:
            parts.append(f' {name}="{html.escape(escaped(str(value), _MARK))}"')
    assert _NAME.fullmatch(tag), tag
    head = f"<{tag}{''.join(parts)}>"
    return Html(head if tag in VOID else f"{head}{joined(content)}</{tag}>")


def joined(content: Content) -> Html:
    """Concatenate texts and elements."""
    if content is None:
        return Html("")
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return Html(html.escape(escaped(content, _MARK)))
    return Html("".join(joined(c) for c in content))


def table(head: Sequence[Content], rows: Iterable[Sequence[Content]], *, caption: str, left: int = 1) -> Html:
    """A table; the first `left` columns hold text, the others right-aligned numbers.  A row of one cell is a heading."""
    kinds = ["text" if i < left else "number" for i in range(len(head))]
    lines = [
        el("tr", el("th", row[0], colspan=len(head), scope="rowgroup", class_="text group"))
        if len(row) == 1 < len(head)
        else el("tr", [el("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)])
        for row in rows
    ]
    columns = el("tr", [el("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True)])
    return el("div", el("table", el("caption", caption), el("thead", columns), el("tbody", lines)), class_="wide")


def figure(drawing: Content, caption: Content, **attributes: object) -> Html:
    """A figure with its caption."""
    return el("figure", drawing, el("figcaption", caption), **attributes)


def download(name: str, data: object, text: str) -> Html:
    """A download link that contains its data."""
    packed = base64.b64encode(json.dumps(data, allow_nan=False).encode()).decode()
    return el("a", text, download=name, href=f"data:application/json;base64,{packed}", id="data")


def page(title: str, body: Content) -> str:
    """A complete document, whose content security policy forbids scripts and external resources."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", title),
        el("style", Html(STYLE)),
    )
    return f"<!doctype html>\n{el('html', head, el('body', el('main', body)), lang='en')}\n"


SERIES = 8
"""Number of colours; further series repeat them with dashes."""

_LIGHT = ("#0067a5", "#c44e00", "#00805c", "#a83279", "#7a6200", "#2b95c9", "#6a4fb3", "#555555")
_DARK = ("#63b3ed", "#ff9a57", "#41d6a0", "#f09ac9", "#e3c54f", "#a5dcff", "#bda5f0", "#c2c2c2")


def _colours(values: Sequence[str]) -> str:
    return "".join(f"--c{i}:{value};" for i, value in enumerate(values))


STYLE = (
    ":root{color-scheme:light dark;--back:#fff;--text:#1c1d1f;--soft:#5c6066;--line:#d8dade;--shade:#f5f6f7;"
    + _colours(_LIGHT)
    + "}\n@media (prefers-color-scheme:dark){:root{--back:#16181b;--text:#e6e7e9;--soft:#a0a5ac;--line:#3a3e44;--shade:#1f2226;"
    + _colours(_DARK)
    + """}}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:1160px;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.6rem;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2.5rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--line)}
p{margin:.4rem 0;max-width:75ch}
.lead{font-size:1.05rem}
.soft,figcaption,caption{color:var(--soft)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;margin:.5rem 0 1rem}
caption{caption-side:bottom;text-align:left;padding-top:.4rem;max-width:75ch}
th,td{padding:.22rem 1rem .22rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;border-bottom-color:var(--soft)}
.group{padding-top:.9rem;border-bottom-color:var(--line)}
.number{text-align:right;white-space:nowrap}
.text{text-align:left;overflow-wrap:anywhere;min-width:7rem}
.interval{color:var(--soft)}
strong{font-weight:650}
figure{margin:1rem 0;min-width:0}
figcaption{font-size:.86rem;max-width:75ch;overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(320px,1fr));gap:.5rem 1.5rem}
svg{max-width:100%;height:auto;display:block}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
svg .axis{stroke:var(--line);stroke-width:1}
svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}
svg .band{stroke:none;opacity:.14}
summary{cursor:pointer;margin:.4rem 0}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;list-style:none;padding:0;margin:.5rem 0;font-size:.9rem}
.legend li{display:flex;align-items:center;gap:.45rem}
.legend svg{flex:none}
"""
    + "".join(f".s{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}\n" for i in range(SERIES))
    + "@media print{body{font-size:11px}main{max-width:none;padding:0}}\n"
)
