"""Where a record was made: facts about the machine and the versions of the software, read once per process."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from typing import NamedTuple

from tunesmith.ir.target.detect import detect_host


class Environment(NamedTuple):
    """The two dictionaries that every record carries.

    Attributes:
        host: `cpu` (model name), `cores` (usable by this process), `kernel`.
        versions: of `tunesmith`, `llvmlite`, `numpy` and `python`.
    """

    host: dict[str, object]
    versions: dict[str, object]


def environment() -> Environment:
    """Describe this process's surroundings.  The dictionaries are fresh copies, free to be extended."""
    host, versions = _environment()
    return Environment(dict(host), dict(versions))


@cache
def _environment() -> Environment:
    cpu = detect_host()
    host: dict[str, object] = {"cpu": cpu.model_name, "cores": len(cpu.cpus), "kernel": f"{platform.system()} {platform.release()}"}
    versions: dict[str, object] = {package: package_version(package) for package in ("tunesmith", "llvmlite", "numpy")}
    versions["python"] = platform.python_version()
    return Environment(host, versions)


def package_version(package: str) -> str:
    """The version of an installed distribution, read from its metadata: importing it would cost time and load what is not needed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
