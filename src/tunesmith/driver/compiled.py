"""Define what compiling adds to a callable: the result of the record lookup, remarks about the programs, and the code as data."""

from __future__ import annotations

from typing import NoReturn

from tunesmith.codegen.artifact import Artifact
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.runtime.compiled import Compiled
from tunesmith.support.errors import BuildError


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
        """The text that was compiled: C, CUDA C, OpenCL C or LLVM IR."""
        return self.artifact.source

    def export_c(self, folder: object, parameters: str = "beside") -> NoReturn:
        """Refuse to write C files, which are those of whole models.  Raises BuildError."""
        raise BuildError(
            "export_c writes models, which are compiled from a module with the graph function `main`. For functions of a target of kind c, "
            "`source` has the C text of the kernels, and export_library writes a library"
        )
