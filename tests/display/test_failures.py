"""Summaries of failures: the most frequent message of each error class, with a candidate."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from tunesmith.display.failures import examples_of
from tunesmith.display.report import Report, TaskReport
from tunesmith.driver.logs.log_tools import stats
from tunesmith.driver.show import show_log
from tunesmith.measure.records.record import ErrorInfo, Record


def failures(hand: ModuleType) -> list[Record]:
    func = hand.matmul()
    messages = [
        ("build_error", "the tile is too large\nmore"),
        ("build_error", "InternalError: the pass broke\nwhere"),
        ("build_error", "\n InternalError: the pass broke\nelsewhere"),
        ("crash", "died of signal 11\x1b[31m"),
    ]
    out = [
        hand.record_of(func, sketch="tile", row=(i,), samples=(), verified=False, error=ErrorInfo(kind, text), timestamp=float(i))
        for i, (kind, text) in enumerate(messages)
    ]
    return [*out, out[1], hand.record_of(func, timestamp=9.0)]


def test_the_most_frequent_message_of_each_class(hand: ModuleType) -> None:
    build, crash = examples_of(failures(hand))
    assert (build.kind, build.failed, build.alike, build.message) == ("build_error", 3, 2, "InternalError: the pass broke")
    assert (build.sketch, build.row, build.internal) == ("tile", (1,), True)
    assert (crash.failed, crash.alike, crash.internal) == (1, 1, False)
    text = build.render("w").plain
    assert text == (
        "! w: build_error 3, 2 of them: A defect in tunesmith, please report it: InternalError: the pass broke (for example tile [1])"
    )
    assert crash.render("w").plain == "! w: crash 1: died of signal 11?[31m (for example tile [3])"
    assert examples_of([failures(hand)[-1]]) == ()


def test_commands_show_them(hand: ModuleType, tmp_path: Path) -> None:
    records = failures(hand)
    log = hand.write_log(tmp_path / "log.jsonl", *records[:4], records[5], hand.record_of(hand.matmul(), timestamp=10.0))
    shown, counted = show_log(log), stats([log])
    for data, text in ((shown.data[0], str(shown)), (counted.to_json()["tasks"][0], str(counted))):
        assert json.loads(json.dumps(data))["examples"] == [e.to_json() for e in examples_of(records)]
        assert "please report it: InternalError: the pass broke" in text and "died of signal 11" in text
    assert (shown.data[0]["records"], shown.data[0]["trials"]) == (6, 5) and "5 (+1 again)" in str(shown)
    task = TaskReport(
        "w",
        "0",
        4,
        0,
        {"crash": 1},
        None,
        0,
        0,
        0,
        dict.fromkeys(("total", "draft", "verify", "build", "measure", "train"), 0.0),
        (),
        "",
        examples_of(records),
    )
    assert "died of signal 11" in str(Report((task,))) and task.to_json()["examples"] == [e.to_json() for e in examples_of(records)]
