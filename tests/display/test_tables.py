"""Terminal texts contain no markup and no control characters, whatever a log holds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.display.tables import as_text, facts_table, plain_table, printable
from tunesmith.support.escaped_text import escaped

NASTY = "[/x]\x1b]0;title\x07\x1b[8mhidden\u202e[red]"


def test_markup_and_control_characters_are_texts() -> None:
    assert escaped(NASTY) == "[/x]?]0;title??[8mhidden?[red]" and escaped("a\nb\tc", "\ufffd") == "a\nb\ufffdc"
    for shown in (printable(NASTY), plain_table(NASTY, [NASTY, "b"], [[NASTY, "1"]]), facts_table(NASTY, [(NASTY, NASTY)])):
        text = as_text(shown)
        assert "\x1b" not in text and "[/x]" in text and "[red]" in text


def test_terminal_texts_are_created_in_one_module() -> None:
    folder = Path(tunesmith.__file__).parent
    for path in folder.rglob("*.py"):
        found = re.findall(r"(?<![\w.])(?:Text|Table|escape)\(", path.read_text())
        assert not found or path.name == "tables.py", f"{path.name}: {found} instead of printable, plain_table or facts_table"


@pytest.mark.parametrize("command", [["show"], ["replay"], ["log", "stats"], ["log", "verify"], ["dataset", "stats"]])
def test_commands_show_names_of_logs_verbatim(command: list[str], hand: ModuleType, tmp_path: Path) -> None:
    record = replace(hand.record_of(hand.matmul()), target={"kind": "llvm", "mcpu": NASTY})
    log = hand.write_log(tmp_path / "log.jsonl", record, name=NASTY)
    result = CliRunner().invoke(main, [*command, str(log)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "\x1b" not in result.output and "\x07" not in result.output
