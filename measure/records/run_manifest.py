"""Record the provenance of runs beside their results: time, machine, command, software, seeds and target.

A manifest is a separate journal (`log.jsonl.runs` beside `log.jsonl`) with one line when a run starts and one when it ends.  A killed run
has no end line.  Runs of the same log accumulate in one manifest.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from tunesmith.ir.target.target import Target
from tunesmith.measure.records.environment import environment, package_version
from tunesmith.measure.records.fields import VERSION, plain
from tunesmith.support import json_lines

SUFFIX = ".runs"
PACKAGES = (
    "pandas",
    "pyarrow",
    "xgboost-cpu",
    "xgboost",
    "apache-tvm-ffi",
    "torch",
    "ray",
    "optuna",
    "onnxruntime",
    "jax",
    "openvino",
    "ncnn",
)
"""Packages whose versions are recorded if installed, in addition to those in every record."""

_ENVIRONMENT = ("TUNESMITH_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_VISIBLE_", "PYTHONHASHSEED")
_GIT_SECONDS = 10.0

PathLike = str | os.PathLike[str]


def manifest_path(log: PathLike) -> Path:
    """Path of the manifest of a log."""
    return Path(f"{os.fspath(log)}{SUFFIX}")


def write_manifest(path: PathLike, **facts: object) -> dict[str, object]:
    """Append a run, or facts about an earlier run, to a manifest; the file is created if missing.

    Args:
        path: path of the manifest, see `manifest_path`.
        facts: plain data, Targets, paths; they take precedence over the collected facts: `run` (a new id), `started`, `command`,
            `folder`, `git` (`commit`, `dirty`; null without git), `host`, `load`, `versions`, `environment`.  If `run` is the id of an
            earlier run, no facts are collected, and the given ones are added to that run.

    Returns:
        The line.

    Raises:
        RecordError: a fact is not plain data, or the file cannot be written.
    """
    given = {name: _data(value) for name, value in facts.items()}
    line = {"v": VERSION, "kind": "run", **({} if "run" in given else _collected_facts()), **given}
    line = {name: plain(name, value) for name, value in line.items()}
    json_lines.append(path, [line])
    return line


def read_manifest(path: PathLike) -> list[dict[str, object]]:
    """The runs of a manifest in the order of their start, each with all its facts; other lines are skipped.

    Raises:
        RecordError: the file does not exist or cannot be read.  Its content never raises.
    """
    runs: dict[str, dict[str, object]] = {}
    for _, line in json_lines.read(path):
        if isinstance(line, dict) and line.get("kind") == "run" and isinstance(line.get("run"), str):
            runs.setdefault(line["run"], {}).update(line)
    return list(runs.values())


@contextmanager
def recorded_run(path: PathLike | None, **facts: object) -> Iterator[dict[str, object]]:
    """Record the start and the end of a run, also if the run fails or is interrupted.

    Args:
        path: path of the manifest; None records nothing.
        facts: facts of the run, see `write_manifest`.

    Yields:
        Facts to record at the end; `outcome` is "done", "interrupted" or the error, unless the body sets it (for example, if all tasks of a
        search failed).
    """
    noted: dict[str, object] = {}
    if path is None:
        yield noted
        return
    run = write_manifest(path, **facts, ended=None)["run"]
    outcome = "interrupted"
    try:
        yield noted
        outcome = "done"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
        raise
    finally:
        write_manifest(path, **{"run": run, "ended": now(), "load_at_end": load_average(), "outcome": outcome, **noted})


def now() -> str:
    """Current UTC time in ISO 8601 format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def load_average() -> list[float] | None:
    """Load averages of the last 1, 5 and 15 minutes; None if the system does not report them."""
    try:
        return [round(x, 2) for x in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def git_state(folder: PathLike) -> dict[str, object] | None:
    """Commit of a working folder, and whether it has uncommitted changes; None without a git repository, or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    return None if commit is None else {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _collected_facts() -> dict[str, object]:
    host, versions = environment()
    folder = Path.cwd()
    stamp = f"{platform.node()} {os.getpid()} {time.time_ns()}"
    return {
        "run": blake2b(stamp.encode(), digest_size=8).hexdigest(),
        "started": now(),
        "command": list(sys.argv),
        "folder": str(folder),
        "git": git_state(folder),
        "host": {**host, "name": platform.node(), "processors": os.cpu_count()},
        "load": load_average(),
        "versions": {**versions, **{p: v for p in PACKAGES if (v := package_version(p)) != "not installed"}},
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_ENVIRONMENT)},
    }


def _git(folder: PathLike, *arguments: str) -> str | None:
    """Output of a git command; None if it fails.  Read-only: takes no locks and runs no fsmonitor hook."""
    settings = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _data(value: object) -> object:
    """Convert Targets and paths to plain data; other values are checked on writing."""
    if isinstance(value, Target):
        return value.to_json(facts=True)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item) for item in value]
    return value
