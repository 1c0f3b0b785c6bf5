"""The contract of builders, and the job that all of them do: texts and a row in, object code or an error out.

A builder never raises because of a candidate: what goes wrong with one is its `BuildResult`, and the others are built.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import BuildRequest, SketchCache
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of one candidate: either `artifact` or `error` is there.

    Attributes:
        artifact: the object code.
        error: why there is none: a build_error, timeout, crash or out_of_memory.
        seconds: what building took.
        broken_law: the candidate is built, but its sketch is not what its trace says: a bug, with everything to find it.
    """

    artifact: Artifact | None
    error: ErrorInfo | None
    seconds: float
    broken_law: str = ""


class Builder(ABC):
    """Compiles candidates.

    Methods are for one thread at a time.  Results depend on the requests alone (but for their `seconds`), not on how many
    workers there are.
    """

    slots: int = 1
    """How many candidates it builds at the same time."""

    @abstractmethod
    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """Build all, and return what became of each, in the order of the requests.

        Raises:
            RunError: no candidate can be built, as the workers do not start, say.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back processes and memory.  Closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BuildJob:
    """Builds one candidate after another in this process, and remembers workloads, sketches and targets."""

    def __init__(self) -> None:
        self._sketches = SketchCache()
        self._targets: dict[str, Target] = {}

    def __call__(self, request: BuildRequest) -> BuildResult:
        """Build one.  Whatever is wrong with it is in the result, but for MemoryError: the process is then not fit for more."""
        start = time.perf_counter()
        try:
            program = self._sketches.program(request)
            made = time.perf_counter()
            artifact = compile_function(program, self._target(request.target))
            broken = self._sketches.broken_law(request, program) if request.check_law else ""
        except MemoryError:
            raise
        except Exception as error:  # a bug in a pass is the end of a candidate, not of a search
            text = f"{type(error).__name__}: {error}" if not isinstance(error, BuildError) else str(error)
            return BuildResult(None, ErrorInfo("build_error", text), time.perf_counter() - start)
        artifact.facts["concretize_s"] = made - start
        return BuildResult(artifact, None, time.perf_counter() - start, broken)

    def _target(self, text: str) -> Target:
        if text not in self._targets:
            self._targets[text] = Target.from_json(json.loads(text))
        return self._targets[text]


class InProcessBuilder(Builder):
    """Builds in this process, one after the other: for debugging and small things.  A crash of the compiler is a crash."""

    def __init__(self) -> None:
        self._job = BuildJob()

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """See `Builder.build`."""
        return [self._job(request) for request in requests]

    def close(self) -> None:
        """Forget what was remembered."""
        self._job = BuildJob()


def compile_function(func: PrimFunc, target: Target) -> Artifact:
    """Compile a concrete function with the backend of the target's kind; constants are packed ahead.

    Raises:
        BuildError: no code is generated for this kind of target, or the function cannot be compiled.
    """
    return build(func, target, packing="ahead")
