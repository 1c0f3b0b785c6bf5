"""Export device programs as shared libraries that TVM-FFI loads without tunesmith.

A CUDA library needs no driver and no part of CUDA to be built or loaded: it opens the driver at its first call.  OpenCL programs cannot
be exported: their code is source text, whose compiler, context and queue belong to the running process, and DLPack has no agreed
representation of OpenCL memory.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from tunesmith.codegen.cuda.host_entry import compile_entries
from tunesmith.codegen.llvm.export import export_library
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.ir.target.target import Target
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.support.errors import BuildError


def export_device_library(path: str | PathLike[str], program: DeviceProgram, host: Target | None = None) -> Path:
    """Write a shared library with the functions of a program, for processes on the host with a compatible GPU.

    Functions take tensors on one GPU, run on the stream that TVM-FFI has set for it, and return asynchronously.  That is the current
    stream of torch if a torch tensor is among the arguments; other callers set a non-default stream explicitly:
    `with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), address)`.

    Args:
        path: path of the library.
        program: of kind cuda; equal programs give equal bytes.
        host: the CPU that runs the entry points; by default any processor of this machine's architecture.
    Returns:
        The path.
    Raises:
        BuildError: the program is for another kind of device, or the library cannot be linked or written.
    """
    if program.kind != "cuda":
        raise BuildError(
            f"cannot export {path} as a library: only CUDA programs can be exported, and this one is for {program.kind}, whose code is "
            "compiled at load time. Save the program instead, module.save(path), and load it with tunesmith.load_module(path)"
        )
    return export_library(path, [compile_entries(program, None if host is None else llvm_options(host))])
