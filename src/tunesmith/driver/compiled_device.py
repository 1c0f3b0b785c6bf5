"""Hold functions compiled for a GPU, with their source artifact.

The device is first accessed when a function is called: compiling, saving and exporting work without a device.
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

    Inherits `time` and `save` from `DeviceModule`.

    Args:
        artifact: the program.
        coverage: the result of the record lookup, for each function looked up.
        index: index of the device among those of the target's kind.

    Attributes:
        artifact: as given.
        coverage: as given.
    """

    def __init__(self, artifact: Artifact, coverage: tuple[Coverage, ...] = (), index: int = 0) -> None:
        super().__init__(DeviceProgram.from_bytes(artifact.data), index)
        self.artifact = artifact
        self.coverage = coverage

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, with or without tunesmith installed; returns the path.

        Its functions take GPU tensors and run on the current stream of torch, or on the stream set in TVM-FFI.

        Raises:
            BuildError: the target is not CUDA (`save` supports all targets), or the library cannot be linked or written.
        """
        return export_device_library(path, self.program)

    def __call__(self, *arguments: object) -> None:
        """Call the only function.

        Raises:
            UserError: there are several functions.
            RunError: an argument does not match its parameter, or there is no such device.
        """
        self._function(None)(*arguments)

    def bind(self, *arguments: object, name: str | None = None) -> BoundCall:
        """Bind a function to its arguments, which are checked once, for repeated calls on the same device memory.

        Args:
            arguments: arguments of the function, in order: DeviceArrays, or tensors of other libraries on the device.
            name: name of the function; optional if there is only one.
        Raises:
            UserError: there are several functions, or none of this name.
            RunError: an argument does not match its parameter, or is in host memory.
        """
        return self._function(name).bind(*arguments)

    def _function(self, name: str | None) -> DeviceCallable:
        """The function `name`, or the only function."""
        names = self.artifact.functions
        if name is None and len(names) != 1:
            raise UserError(f"the module has the functions {', '.join(names)}: call one of them, as module[name](...)")
        if name is not None and name not in names:
            raise UserError(f"the module has no function {name!r}; it has {', '.join(names)}")
        return self[names[0] if name is None else name]
