"""Write the curves of a running search for TensorBoard, as scalars over trials."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Self

from tunesmith.search.tuner import PHASES, Progress
from tunesmith.support.errors import MissingExtraError, UserError

_UNFIT = re.compile(r"[^\w.-]+")


class TensorBoardScalars:
    """Write scalars of each task over its trials.

    Writes `best_us` for each trial, and `gflops`, `errors/...` by class and `seconds/...` by phase after each batch.  A context
    manager.  The trials of earlier runs are written too, so that the curve of a resumed search is complete.

    Args:
        folder: folder of the event files; created if missing.  TensorBoard shows each folder as a run.

    Raises:
        MissingExtraError: tensorboardX is not installed.
        UserError: the folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboardX", "tensorboard", "writing scalars for TensorBoard") from None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._writer: Any = SummaryWriter(os.fspath(folder), write_to_disk=True)
        except OSError as error:
            raise UserError(f"cannot write event files into {os.fspath(folder)}: {error.strerror or error}. Name another folder") from error
        self._tags: dict[str, str] = {}
        self._written: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush and close the event file.  May be called twice."""
        self._writer.close()

    def show(self, progress: Progress) -> None:
        """The callback of a search: write the new scalars of one task."""
        p, tag = progress, self._tag(progress)
        for trial in range(self._written.get(tag, 0), len(p.curve)):
            best = p.curve[trial]
            if best is not None:
                self._writer.add_scalar(f"{tag}/best_us", best * 1e6, trial + 1)
        self._written[tag] = len(p.curve)
        if not p.trials:
            return
        if p.gflops:
            self._writer.add_scalar(f"{tag}/gflops", p.gflops, p.trials)
        for kind in sorted(p.errors):
            self._writer.add_scalar(f"{tag}/errors/{kind}", p.errors[kind], p.trials)
        for phase in ("total", *PHASES):
            self._writer.add_scalar(f"{tag}/seconds/{phase}", p.seconds[phase], p.trials)
        self._writer.flush()

    def _tag(self, progress: Progress) -> str:
        """The task's name in TensorBoard's character set; a digest suffix separates names that become equal."""
        name = progress.task.name
        if name not in self._tags:
            tag = _UNFIT.sub("_", name).strip("_")
            self._tags[name] = tag if tag not in self._tags.values() else f"{tag}_{progress.task.digest[:8]}"
        return self._tags[name]
