"""TensorBoard event files contain the best of every trial and the rates of every batch."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from tunesmith.display.tensorboard import TensorBoardScalars
from tunesmith.driver.workloads import find_subject
from tunesmith.ir.target.target import Target
from tunesmith.search.tuner import PHASES, Progress
from tunesmith.support.errors import MissingExtraError, UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


@pytest.fixture
def progress() -> Progress:
    return Progress(find_subject("matmul(m=64,n=64,k=64)").task(TARGET), 8)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Contents of the event files of a folder: tag to (step, value)."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:  # length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            data = data[16 + length :]
    return found


def test_scalars(tmp_path: Path, progress: Progress) -> None:
    pytest.importorskip("tensorboardX")
    p = progress
    with TensorBoardScalars(tmp_path / "runs" / "a") as board:
        board.show(p)  # nothing is written before the first trial
        p.trials, p.curve, p.errors = 3, [None, 2e-6, 1e-6], {"crash": 1}
        p.seconds |= {"total": 3.0, "build": 2.0}
        board.show(p)
        p.trials, p.curve = 4, [*p.curve, 1e-6]
        board.show(p)
    found = scalars(tmp_path / "runs" / "a")
    tag = "matmul_m_64_n_64_k_64"
    assert found[f"{tag}/best_us"] == [(2, pytest.approx(2.0)), (3, pytest.approx(1.0)), (4, pytest.approx(1.0))]
    assert found[f"{tag}/errors/crash"] == [(3, 1.0), (4, 1.0)]
    assert found[f"{tag}/seconds/build"] == [(3, 2.0), (4, 2.0)]
    assert set(found) == {f"{tag}/{x}" for x in ("best_us", "errors/crash", "seconds/total", *[f"seconds/{n}" for n in PHASES])}
    board.close()


def test_names_with_equal_tags_are_separated(tmp_path: Path, progress: Progress) -> None:
    pytest.importorskip("tensorboardX")
    other = Progress(find_subject("relu(shape=8)").task(TARGET), 8)
    object.__setattr__(other.task, "name", "matmul[m=64][n=64][k=64]")
    with TensorBoardScalars(tmp_path) as board:
        for p in (progress, other):
            p.trials, p.curve = 1, [1e-6]
            board.show(p)
    assert {tag for tag in scalars(tmp_path) if tag.endswith("best_us")} == {
        "matmul_m_64_n_64_k_64/best_us",
        f"matmul_m_64_n_64_k_64_{other.task.digest[:8]}/best_us",
    }


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write event files into .*file"):
        TensorBoardScalars(tmp_path / "file")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tunesmith\[tensorboard\]'"):
        TensorBoardScalars(tmp_path)
