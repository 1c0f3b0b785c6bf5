"""Define the builder interface, and the build job that all builders share: from a request to object code or an error.

A builder never raises because of a candidate: the failure is reported in its `BuildResult`, and the other candidates are built.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.build import build
from tunesmith.codegen.llvm.build import emit_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.lower.pass_context import PassContext, exactly
from tunesmith.measure.candidate import BuildRequest, SketchCache
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Result of building one candidate: either `artifact` or `error` is set.

    Attributes:
        artifact: the object code.
        error: the failure: a build_error, timeout, crash or out_of_memory.
        seconds: build time.
        broken_law: report of a bug: the candidate is built, but its sketch and its trace give different programs.
    """

    artifact: Artifact | None
    error: ErrorInfo | None
    seconds: float
    broken_law: str = ""


class Builder(ABC):
    """Compiles candidates.

    Not thread-safe.  Except for `seconds`, results depend only on the requests, not on the number of workers.
    """

    slots: int = 1
    """Number of candidates built concurrently."""

    @abstractmethod
    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """Build all candidates; results are in the order of the requests.

        Raises:
            RunError: no candidate can be built, for example because the workers do not start.
        """

    @abstractmethod
    def close(self) -> None:
        """Release processes and memory.  Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BuildJob:
    """Builds candidates sequentially in this process, with caches of workloads, sketches and targets."""

    def __init__(self) -> None:
        self._sketches = SketchCache()
        self._targets: dict[str, Target] = {}

    def __call__(self, request: BuildRequest) -> BuildResult:
        """Build one candidate.  Every failure is in the result, except MemoryError: the process cannot be reused after it."""
        start = time.perf_counter()
        try:
            program = self._sketches.program(request)
            version = self._sketches.program(request.of_version()) if request.version else None
            concretized = time.perf_counter()
            target = self._target(request.target)
            with exactly(PassContext.of_changes(json.loads(request.passes or "{}"))):
                if version is not None:
                    check_version(version, target)
                code = compile_function(program if version is None else version, target)
            broken = self._sketches.broken_law(request, program) if request.check_law else ""
        except MemoryError:
            raise
        except Exception as error:  # a bug in a pass must not end the search
            text = f"{type(error).__name__}: {error}" if not isinstance(error, BuildError) else str(error)
            return BuildResult(None, ErrorInfo("build_error", text), time.perf_counter() - start)
        code.facts["concretize_s"] = concretized - start
        return BuildResult(replace(code, sizes=request.sizes), None, time.perf_counter() - start, broken)

    def _target(self, text: str) -> Target:
        if text not in self._targets:
            self._targets[text] = Target.from_json(json.loads(text))
        return self._targets[text]


class InProcessBuilder(Builder):
    """Builds sequentially in this process, for debugging and small workloads.  A compiler crash ends the process."""

    def __init__(self) -> None:
        self._job = BuildJob()

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """See `Builder.build`."""
        return [self._job(request) for request in requests]

    def close(self) -> None:
        """Clear the caches."""
        self._job = BuildJob()


MOST_LINES = 9000
"""Limit on the LLVM IR lines of a version of a function with dynamic shapes, of which ten may be compiled together."""


def check_version(func: PrimFunc, target: Target) -> None:
    """Refuse a schedule that cannot be a version of a function with dynamic shapes.

    Raises:
        BuildError: it cannot be compiled for a range of sizes, or its code is too large beside the other versions.
    """
    text, _ = emit_text(hoisted.main if (hoisted := hoist_constant_packing(func)) is not None else func, target)
    lines = text.count("\n")
    if lines > MOST_LINES:
        raise BuildError(f"{func.name}: [code-size] the version for a range of sizes has {lines} lines of code, more than {MOST_LINES}")


def compile_function(func: PrimFunc, target: Target) -> Artifact:
    """Compile a concrete function with the backend for the target's kind; constants are packed ahead of the call.

    Raises:
        BuildError: no code is generated for this kind of target, or the function cannot be compiled.
    """
    return build(func, target, packing="ahead")
