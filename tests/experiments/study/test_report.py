"""The report page is well-formed, self-contained, escaped and complete; it is opened in a browser if one is installed."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tunesmith.experiments.study.report import draw_charts, flat, render, report_experiment
from tunesmith.experiments.study.results import load_run, write_json
from tunesmith.experiments.study.summary import curves, summarise, thinned
from tunesmith.support.errors import MissingExtraError, RecordError

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

A, B = "matmul(m=8,n=8,k=8)", "relu(shape=8)"
HOSTILE = '<script>alert("x")</script>&amp;\u202e\x00'
VOID = frozenset({"meta", "br"})
"""Elements without an end tag."""
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
Make = Callable[..., Path]


class Page(HTMLParser):
    """Checks nesting, and stores elements, their attributes and the text of each table."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("figcaption", "caption"):
            self.captions.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        elif self.open and self.open[-1] in ("figcaption", "caption"):
            self.captions[-1] += data

    def count(self, tag: str) -> int:
        return sum(t == tag for t, _ in self.elements)

    @property
    def numbers(self) -> Any:
        (href,) = [a["href"] for t, a in self.elements if t == "a" and a.get("id") == "data"]
        assert href is not None
        return json.loads(base64.b64decode(href.removeprefix("data:application/json;base64,")))


@pytest.fixture
def run(make_run: Make) -> Path:
    seconds = {(A, "random"): [2e-6, 2.2e-6], (A, "best"): [1e-6, 1.1e-6], (B, "random"): [3e-7, 3e-7], (B, "best"): [3e-7, None]}
    return make_run("study", seconds)


def test_the_numbers(run: Path) -> None:
    data: Any = summarise(load_run(run))
    assert data["cells"] == {"done": 7, "interrupted": 0, "failed": 1, "waiting": 0}
    assert data["arms"] == ["random", "best"] and [w["best_known_us"] for w in data["workloads"]] == [
        pytest.approx(1.0),
        pytest.approx(0.3),
    ]
    first = data["results"][0]
    assert first["best_us"]["mean"] == pytest.approx(math.sqrt(2 * 2.2)) and first["each_us"] == pytest.approx([2.0, 2.2])
    assert first["percent"]["mean"] == pytest.approx(100 / math.sqrt(2 * 2.2))
    assert first["gflops"]["mean"] == pytest.approx(2e6 / math.sqrt(2 * 2.2) / 1e3)
    assert first["trials_to"]["95"] == {"median": None, "reached": 0, "of": 2}
    best = data["results"][1]
    assert best["trials_to"] == {"90": {"median": 4, "reached": 2, "of": 2}} | {
        s: {"median": None, "reached": 1, "of": 2} for s in ("95", "99")
    }
    assert best["curve"]["trials"] == [2, 3, 4, 5, 6, 7, 8]  # from the first trial at which both have a program
    assert best["curve"]["percent"][0] == pytest.approx(50 / math.sqrt(1.1), rel=1e-5)
    overall = {o["arm"]: o for o in data["overall"]}
    assert overall["random"]["seeds"] == [0, 1] and overall["best"]["seeds"] == [0]
    assert overall["best"]["percent"] == {"mean": pytest.approx(100.0), "low": None, "high": None, "n": 1}
    versus = {c["workload"]: c for c in data["against_first"]}
    assert versus[A]["ratio"] == pytest.approx(0.5) and versus[A]["p"] is None is versus[A]["p_adjusted"]
    assert versus[""]["ratio"] == pytest.approx(math.sqrt(0.5)) and versus[""]["seeds"] == 1, (
        "only seed 0 finished both workloads with both arms"
    )
    assert data["time"][0]["seconds"]["total"] == 8.0 and data["time"][0]["trials"] == 32
    assert data["results"][0]["errors"] == {"crash": 2}
    assert data["failures"] == [{"workload": B, "arm": "best", "seed": 1, "failure": "the device is gone"}]


def test_the_page_contains_tables_curves_captions_and_numbers(run: Path) -> None:
    (run / "manifest.jsonl").write_text('{"v":1,"kind":"run","run":"a","host":{"cpu":"An Old One"},"load":[1,2]}\n')
    path, data = report_experiment(run)
    assert path == run / "report.html"
    text = path.read_text(encoding="utf-8")
    found = Page(text)
    heads = [t[0] for t in found.tables]
    assert ["arm", "seeds", "clean", "% of the best known speed"] in heads and ["fact", "value"] in heads
    results = next(t for t in found.tables if t[0][1:4] == ["seeds", "clean", "best us"])
    assert results[1] == [A] and results[4] == [B]
    assert results[2][:3] == ["random", "2/2", "-"] and results[2][3:6] == ["2.098", "953.5", "47.7"]
    assert "from 3 seeds on" in text and "below 3 seeds there is none" in text
    assert results[3][6:] == ["4 (2/2)", "- (1/2)", "- (1/2)"]
    verdicts = next(t for t in found.tables if t[0][-1] == "verdict")
    assert [row[-1] for row in verdicts[1:]] == ["too few seeds to tell"] * 3
    assert ["host.cpu", "An Old One"] in next(t for t in found.tables if t[0] == ["fact", "value"])
    assert found.count("svg") == found.count("figure") == found.count("figcaption") == 4
    assert found.count("table") == found.count("caption") and all(len(c) > 20 for c in found.captions)
    assert found.numbers == json.loads(json.dumps(data))
    assert "7 of 8 cells are done, 1 failed" in text


def test_intervals_need_three_seeds_and_shares_end_at_100(make_run: Make) -> None:
    run = make_run("three", {(A, "random"): [1e-6, 1.01e-6, 4e-6]})
    first: Any = summarise(load_run(run))["results"][0]  # type: ignore[index]
    assert first["percent"]["low"] < 30 and first["percent"]["high"] == 100.0 and first["best_us"]["low"] < 1.0
    assert max(first["curve"]["high"]) == 100.0 == max(summarise(load_run(run))["overall"][0]["curve"]["high"])  # type: ignore[index]
    assert summarise(load_run(run))["overall"][0]["percent"]["high"] == 100.0  # type: ignore[index]


def test_the_share_of_clean_measurements(run: Path) -> None:
    """Per arm and workload, and with advice for the page if fewer than half are clean; results of earlier versions have no counts."""
    assert "measurements are clean" not in report_experiment(run)[0].read_text()
    for noisy, advised in ((1, False), (6, True)):
        for path in (run / "cells").glob("*best*/result.json"):
            write_json(path, json.loads(path.read_text()) | {"measured": 8, "noisy": noisy})
        data: Any = summarise(load_run(run))
        assert (data["measured"], data["clean"]) == (32, 4 * (8 - noisy))
        text = report_experiment(run)[0].read_text()
        overall = next(t for t in Page(text).tables if t[0][-1] == "% of the best known speed")
        assert [row[2] for row in overall[1:]] == ["-", f"{1 - noisy / 8:.0%}"]
        assert f"{4 * (8 - noisy)} of 32 measurements are clean" in text and ("on a quiet machine" in text) == advised
    write_json(path, json.loads(path.read_text()) | {"noisy": 9})
    with pytest.raises(RecordError, match="'noisy' must be a number up to 8"):
        load_run(run)


def test_arms_are_compared_within_seeds(make_run: Make) -> None:
    """Seeds differ far more than arms, which have the same ratio on every seed; with one workload there is no overall line."""
    seeds = [1e-6, 9e-6, 2e-6, 30e-6, 4e-6]
    folder = make_run(
        "paired", {(A, "random"): seeds, (A, "best"): [0.9 * s * f for s, f in zip(seeds, (1, 1.01, 0.99, 1, 1), strict=True)]}
    )
    (line,) = summarise(load_run(folder))["against_first"]  # type: ignore[misc]
    assert line["workload"] == A and line["seeds"] == 5 and line["ratio"] == pytest.approx(0.9, rel=1e-3) and line["p_adjusted"] < 1e-4
    path, _ = report_experiment(folder)
    text = path.read_text()
    (table,) = [t for t in Page(text).tables if t[0][-1] == "verdict"]
    assert table[0][3:6] == ["time ratio", "adjusted interval", "p (Holm)"]
    assert table[1][4] == f"[{line['low_adjusted']:.3f}, {line['high_adjusted']:.3f}]" == f"[{line['low']:.3f}, {line['high']:.3f}]"
    assert "<strong>all workloads</strong>" not in text and "over 1 workload " in text and "seed by seed" in text


def test_a_batch_as_large_as_the_budget_is_noted(run: Path, tmp_path: Path) -> None:
    assert "Note: " not in report_experiment(run)[0].read_text()
    index = json.loads((run / "index.json").read_text())
    index["settings"]["trials"] = 16
    (run / "index.json").write_text(json.dumps(index))
    assert "Note: batch 32 &gt;= trials 16: a sampler is asked once and learns nothing" in report_experiment(run)[0].read_text()


def test_the_page_is_self_contained_and_has_no_scripts(run: Path) -> None:
    text = report_experiment(run)[0].read_text(encoding="utf-8")
    found = Page(text)
    assert found.count("script") == 0
    assert any((a.get("content") or "").startswith("default-src 'none';") for t, a in found.elements if t == "meta")
    for _, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "href") or (value or "").startswith(("data:application/json", "#", "figures/report-"))
    assert not re.search(r"https?://|url\((?!#)|@import", re.sub(r"base64,[^\"]*", "", text))
    assert "prefers-color-scheme:dark" in text
    ids = [a["id"] for _, a in found.elements if a.get("id")]
    assert len(ids) == len(set(ids)) and {f"#{i}" for i in ids} >= set(re.findall(r'(?:url\(|href=")(#\w+)', text))


def test_texts_of_files_are_escaped(make_run: Make) -> None:
    times = {(HOSTILE, HOSTILE): [1e-6, 2e-6], (HOSTILE, "b"): [1e-6, None]}
    folder = make_run("study", times, question=HOSTILE, failure=HOSTILE)
    write_json(folder / "index.json", json.loads((folder / "index.json").read_text()) | {"name": HOSTILE})
    path = sorted((folder / "cells").glob("*/result.json"))[0]
    write_json(path, json.loads(path.read_text()) | {"errors": {HOSTILE: 3}, "sketch": HOSTILE})
    (folder / "manifest.jsonl").write_text(json.dumps({"v": 1, "kind": "run", "run": "a", HOSTILE: {HOSTILE: [HOSTILE]}}) + "\n")
    text = report_experiment(folder)[0].read_text(encoding="utf-8")
    found = Page(text)
    assert found.count("script") == 0 and "<script" not in text and "\u202e" not in text and "\x00" not in text
    shown = '<script>alert("x")</script>&amp;\ufffd\ufffd'
    words = "".join(found.words)
    assert words.count(shown) == text.count("&lt;script&gt;") - 1, "once more in an attribute"
    assert [a["download"] for _, a in found.elements if "download" in a] == [f"{shown}.json"]
    titles = [w for w in found.words if w.startswith(f"Speed over trials, {shown}")]
    assert titles and f"{shown}, draft: 62.5 ms" in found.words and found.numbers["name"] == HOSTILE


def test_a_run_without_any_result_has_a_page(make_run: Make, tmp_path: Path) -> None:
    folder = make_run("study", {(A, "random"): [None], (A, "other"): [None]})
    path, data = report_experiment(folder, tmp_path / "elsewhere.html")
    found = Page(path.read_text(encoding="utf-8"))
    assert "no program yet" in "".join(found.words) and data["against_first"] == []
    assert "The run folder has no manifest." in "".join(found.words)
    with pytest.raises(RecordError, match="cannot write"):
        report_experiment(folder, tmp_path)
    with pytest.raises(RecordError, match="Is .* the folder of a run"):
        report_experiment(tmp_path)


def test_nested_data_becomes_dotted_paths() -> None:
    assert dict(flat({"a": {"b": [1, 2], "c": []}, "d": [{}], "e": None})) == {"a.b": "1, 2", "a.c": "", "d": "[{}]", "e": "None"}


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_reported_with_the_install_line(run: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"writing a report needs .*{package}.*pip install 'tunesmith\[plot\]'"):
        report_experiment(run)
    assert not (run / "report.html").exists()


def test_curves_are_padded_and_thinned(run: Path) -> None:
    results = load_run(run).of(A, load_run(run).arms[0])
    assert curves(results, 10).shape == (2, 10) and curves(results, 10)[0, -1] == 2e-6 and math.isinf(curves(results)[0, 0])
    assert thinned(5) == [1, 2, 3, 4, 5]
    many = thinned(5000)
    assert many[0] == 1 and many[-1] == 5000 and len(many) <= 160 and many == sorted(set(many))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_the_page_without_errors(run: Path, tmp_path: Path) -> None:
    path = report_experiment(run)[0]

    def browse(file: Path) -> tuple[str, str]:
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout, done.stderr

    dom, said = browse(path)
    shown = Page(dom)
    assert shown.tables == Page(path.read_text(encoding="utf-8")).tables and shown.count("svg") == 4
    assert "CONSOLE" not in said
    bad = tmp_path / "bad.html"
    bad.write_text(path.read_text(encoding="utf-8").replace("<main>", "<main><script>document.title='x'</script>"), encoding="utf-8")
    dom, said = browse(bad)
    assert "CONSOLE" in said and "<title>x</title>" not in dom  # the browser reports violations, so the check above is effective


def test_the_page_of_equal_numbers_is_equal(run: Path) -> None:
    data = summarise(load_run(run)) | {"runs": []}
    again = json.loads(json.dumps(data))
    assert render(data, draw_charts(data)) == render(again, draw_charts(again))


def test_a_pipe_gets_the_page_alone(run: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as thread:
        text = thread.submit(pipe.read_text, "utf-8")
        report_experiment(run, pipe)
        assert "</html>" in text.result(timeout=60)
    assert not (tmp_path / "figures").exists()


def test_figures_and_their_numbers_are_beside_the_page(run: Path, tmp_path: Path) -> None:
    """Two pages of a folder do not share files, and a link works if the name of the page needs quoting."""
    for page in (run / "report.html", tmp_path / "two words#1.html"):
        path, data = report_experiment(run, page)
        found = Page(path.read_text(encoding="utf-8"))
        links = [str(a["href"]) for t, a in found.elements if t == "a" and "download" not in a]
        files = [path.parent / unquote(link) for link in links]
        assert len(files) == 8 and sorted(files) == sorted((path.parent / "figures").iterdir())
        assert all(f.name.startswith(f"{path.stem}-") for f in files)
    overall = (run / "figures" / "report-speed-overall.csv").read_text().splitlines()
    curve = data["overall"][0]["curve"]  # type: ignore[index]
    assert overall[1].split(",") == ["random", *[str(curve[k][0]) for k in ("trials", "percent")], "", ""], "no interval of two seeds"
