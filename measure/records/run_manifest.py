"""What a run was: when, where, by which command, with which software, seeds and target; kept beside its results.

A manifest is a journal of its own (`log.jsonl.runs` beside `log.jsonl`): a line when a run begins, one more when it ends.  A run that
was killed is there too, without an end, and several runs of one log are a list.
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
PACKAGES = ("pandas", "pyarrow", "xgboost-cpu", "xgboost", "apache-tvm-ffi", "torch", "ray", "optuna", "onnxruntime", "jax")
"""Packages whose versions are noted where they are installed, besides those of every record."""

_ENVIRONMENT = ("TUNESMITH_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_VISIBLE_", "PYTHONHASHSEED")
_GIT_SECONDS = 10.0

PathLike = str | os.PathLike[str]


def manifest_path(log: PathLike) -> Path:
    """Where the runs of a log are written down."""
    return Path(f"{os.fspath(log)}{SUFFIX}")


def write_manifest(path: PathLike, **facts: object) -> dict[str, object]:
    """Add a run, or what became of it, to a manifest; the file is made when missing.

    Args:
        path: of the manifest, see `manifest_path`.
        facts: plain data, Targets, paths; they come before what is found out: `run` (a new id), `started`, `command`, `folder`, `git`
            (`commit`, `dirty`; null without git), `host`, `load`, `versions`, `environment`.  With the `run` of an earlier
            line nothing is found out, and the facts are added to that run.

    Returns:
        The line.

    Raises:
        RecordError: a fact is no plain data, or the file cannot be written.
    """
    given = {name: _data(value) for name, value in facts.items()}
    line = {"v": VERSION, "kind": "run", **({} if "run" in given else _found_out()), **given}
    line = {name: plain(name, value) for name, value in line.items()}
    json_lines.append(path, [line])
    return line


def read_manifest(path: PathLike) -> list[dict[str, object]]:
    """The runs of a manifest in the order in which they began, each with all that was written of it; lines that are none are skipped.

    Raises:
        RecordError: the file is not there or cannot be read.  No content of it raises.
    """
    runs: dict[str, dict[str, object]] = {}
    for _, line in json_lines.read(path):
        if isinstance(line, dict) and line.get("kind") == "run" and isinstance(line.get("run"), str):
            runs.setdefault(line["run"], {}).update(line)
    return list(runs.values())


@contextmanager
def recorded_run(path: PathLike | None, **facts: object) -> Iterator[dict[str, object]]:
    """Note the beginning of a run and its end, whatever ends it.

    Args:
        path: of the manifest; None keeps nothing.
        facts: of the run, see `write_manifest`.

    Yields:
        What is to be noted at the end; `outcome` is "done", "interrupted", or the error, unless the body sets it
        (a search of which every task has failed says so).
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
    """The time, in UTC, as ISO 8601 has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def load_average() -> list[float] | None:
    """Of the last 1, 5 and 15 minutes; None where the system does not tell."""
    try:
        return [round(x, 2) for x in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def git_state(folder: PathLike) -> dict[str, object] | None:
    """Commit of a working folder and whether files differ from it; None if it is under no version control, or git is not there."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    return None if commit is None else {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _found_out() -> dict[str, object]:
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
    """What git says; None if it fails.  It changes nothing and runs none of the repository's hooks."""
    settings = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _data(value: object) -> object:
    """Targets and paths as data; the rest is checked when it is written."""
    if isinstance(value, Target):
        return value.to_json(facts=True)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item) for item in value]
    return value
