"""Functions compiled for a GPU, with what they were made from.  The device is first asked for anything when a function is called, so that
compiling, saving and exporting work on machines without one.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.device.export import export_device_library
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.runtime.device.module import BoundCall, DeviceCallable, DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.support.errors import UserError


class CompiledDeviceModule(DeviceModule):
    """Compiled functions by name: `module["matmul"](a, b, c)` with arrays of the host, of the device, of torch or CuPy.

    What else it can do is what `DeviceModule` does: `time`, `save`.

    Args:
        artifact: the program.
        coverage: for each function that records were looked up for, what was found.
        index: which device of the target's kind runs it.

    Attributes:
        artifact: as given.
        coverage: as given.
    """

    def __init__(self, artifact: Artifact, coverage: tuple[Coverage, ...] = (), index: int = 0) -> None:
        super().__init__(DeviceProgram.from_bytes(artifact.data), index)
        self.artifact = artifact
        self.coverage = coverage

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, here or where tunesmith is not installed; returns the path.

        Its functions take tensors of a GPU and run on the current stream of torch, or on that which TVM-FFI was told.

        Raises:
            BuildError: the target is not CUDA (`save` works for all), or it cannot be linked or written.
        """
        return export_device_library(path, self.program)

    def __call__(self, *arguments: object) -> None:
        """Call the only function.

        Raises:
            UserError: there are several.
            RunError: an argument is not what the function takes, or there is no device that runs it.
        """
        self._function(None)(*arguments)

    def bind(self, *arguments: object, name: str | None = None) -> BoundCall:
        """A call of a function on these arguments, checked once, for callers that repeat it on the same memory of the device.

        Args:
            arguments: of the function, in order: DeviceArrays, or tensors of others on the device.
            name: which function; not needed if there is one only.
        Raises:
            UserError: there are several functions, or none of this name.
            RunError: an argument is not what the function takes, or lies with the host.
        """
        return self._function(name).bind(*arguments)

    def _function(self, name: str | None) -> DeviceCallable:
        """The function of this name; without one, the only function."""
        names = self.artifact.functions
        if name is None and len(names) != 1:
            raise UserError(f"the module has the functions {', '.join(names)}: call one of them, as module[name](...)")
        if name is not None and name not in names:
            raise UserError(f"the module has no function {name!r}; it has {', '.join(names)}")
        return self[names[0] if name is None else name]
