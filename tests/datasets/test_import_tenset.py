"""Test the import of TenSet records: platform folders, and pickles that are not opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunesmith.datasets.import_tenset import load
from tunesmith.support.errors import RecordError


def line(key: str, seconds: float) -> str:
    task = [key, "llvm -keys=cpu -mcpu=skylake-avx512", [16, 64, 64, 0, 0, 0, 0, 0], "", 2, []]
    return json.dumps({"i": [task, [[], [["SP", 2, 0, 8, [2], 1]]]], "r": [[seconds], 0, 1.0, 1626295478], "v": "v0.6"})


def dataset(root: Path) -> Path:
    records = root / "measure_records"
    for platform, factor in (("platinum-8272", 1.0), ("epyc-7452", 2.0)):
        folder = records / platform
        folder.mkdir(parents=True)
        for task in ("a", "b"):
            key = json.dumps([task, 1, 8])
            text = "\n".join(line(key, factor * (k + 1) * 1e-3) for k in range(4))
            (folder / f"([{task},1,8],llvm).json").write_text(text + "\n{torn", encoding="utf-8")
    (root / "network_info").mkdir()
    (root / "network_info" / "all_tasks.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    return records


def test_platforms_are_distinguished(tmp_path: Path) -> None:
    table = load(dataset(tmp_path))
    assert len(table) == 16 and table.report.bad_count == 4 and set(table.frame["source"]) == {"tenset"}
    assert table.frame.groupby("hardware")["seconds"].min().to_dict() == {
        '{"platform":"epyc-7452"}': 2e-3,
        '{"platform":"platinum-8272"}': 1e-3,
    }
    assert table.frame["file"][0] == "epyc-7452/([a,1,8],llvm).json"


def test_one_platform_and_a_limit(tmp_path: Path) -> None:
    records = dataset(tmp_path)
    table = load(records / "epyc-7452", limit=3)
    assert table.counts()["records"].tolist() == [3, 3] and set(table.frame["hardware"]) == {'{"platform":"epyc-7452"}'}
    with pytest.raises(RecordError, match="contains no file \\*.json"):
        load(tmp_path / "network_info")
