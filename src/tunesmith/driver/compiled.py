"""Define what compiling adds to a callable: the result of the record lookup, remarks about the programs, and the code as data."""

from __future__ import annotations

from tunesmith.codegen.artifact import Artifact
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.runtime.compiled import Compiled


class CompiledProgram(Compiled):
    """Functions or a model, compiled in this process: the result of `tunesmith.compile`.

    Attributes:
        coverage: the result of the record lookup, for each function looked up.
        remarks: warnings about the programs, for example an accumulation into an argument; see `ir.remarks`.
    """

    coverage: tuple[Coverage, ...] = ()
    remarks: tuple[str, ...] = ()


class CompiledModule(CompiledProgram):
    """Compiled functions by name.

    Attributes:
        artifact: the code, as data.
    """

    artifact: Artifact

    @property
    def source(self) -> str:
        """The text of the kernels, for a target of kind c; empty for code that was not compiled from a text for people."""
        return self.artifact.source
