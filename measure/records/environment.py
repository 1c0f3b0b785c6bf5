"""Describe the machine and the software versions for records; determined once per process."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from typing import NamedTuple

from tunesmith.ir.target.detect import detect_host


class Environment(NamedTuple):
    """The two dictionaries stored in every record.

    Attributes:
        host: `cpu` (model name), `cores` (usable by this process), `kernel`.
        versions: versions of `tunesmith`, `llvmlite`, `numpy` and `python`.
    """

    host: dict[str, object]
    versions: dict[str, object]


def environment() -> Environment:
    """The environment of this process.  The dictionaries are fresh copies and may be extended."""
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
    """Version of an installed distribution, from its metadata: importing the package would be slow."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
