"""Tables as HTML: escaping, alignment, and empty parts."""

from __future__ import annotations

from xml.etree import ElementTree

from tunesmith.support.html_table import html_paragraph, html_table

HOSTILE = '<script>alert("x")</script>&amp;\u202e\x00'
SHOWN = '<script>alert("x")</script>&amp;??'


def test_every_text_is_escaped() -> None:
    text = html_table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, "1"]])
    root = ElementTree.fromstring(text)
    assert "<script" not in text and [x.text for x in root.iter() if x.text] == [SHOWN, SHOWN, "n", SHOWN, "1"]
    assert ElementTree.fromstring(html_paragraph(HOSTILE)).text == SHOWN
    assert ElementTree.fromstring(html_paragraph("a\nb")).text == "a\nb"


def test_alignment_and_empty_parts() -> None:
    root = ElementTree.fromstring(html_table("", [], [["a", "b", "c"]], left=(0, 2)))
    assert [x.attrib["style"] for x in root.iter("td")] == ["text-align:left", "text-align:right", "text-align:left"]
    assert root.find("caption") is None and root.find("thead") is None
    assert not list(ElementTree.fromstring(html_table("t", ["a"], [])).iter("td"))
