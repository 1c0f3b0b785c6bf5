"""Programs for devices as shared libraries, which TVM-FFI loads without tunesmith.

A library for CUDA needs no driver and no part of CUDA to be built or loaded: it looks for the driver at its first call.  For OpenCL there
is none: the code is source text, whose compiler, context and queue belong to the process that runs it, and DLPack has no agreed form for
memory of OpenCL.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from tunesmith.codegen.cuda.host_entry import compile_entries
from tunesmith.codegen.llvm.export import export_library
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.support.errors import BuildError


def export_device_library(path: str | PathLike[str], program: DeviceProgram) -> Path:
    """Write a shared library with the functions of a program, for a process on a machine such as this with a GPU that takes the code.

    Functions take tensors that lie on one GPU, run on the stream that TVM-FFI has for it, and return while it works.  That is the current
    stream of torch when a torch tensor is among the arguments; other callers set it where it is not the default one:
    `with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), address)`.

    Args:
        path: where the library goes.
        program: of kind cuda; equal ones give equal bytes.
    Returns:
        The path.
    Raises:
        BuildError: the program is for another kind of device, or the library cannot be linked or written.
    """
    if program.kind != "cuda":
        raise BuildError(
            f"cannot export {path} as a library: those are made of programs for CUDA, and this one is for {program.kind}, whose code is "
            "compiled where it runs. Save the program instead, module.save(path), and load it with tunesmith.load_module(path)"
        )
    return export_library(path, [compile_entries(program)])
