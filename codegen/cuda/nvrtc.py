"""Compile CUDA C to machine code with NVRTC, which is installed with pip and needs neither a GPU nor a driver.

The result is a cubin, not PTX: all compiler work is done here, in processes that do not hold the device, and the registers and spills
that ptxas reports are known before the first run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tunesmith.runtime.device.program import KernelResources
from tunesmith.support.errors import BuildError, MissingExtraError

_FILE = "kernels.cu"
"""Name of the source in messages."""

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LINE = re.compile(rf"{re.escape(_FILE)}\((\d+)\)")
_MOST_LINES = 12
"""Source lines in an error message at most."""


@dataclass(frozen=True, slots=True)
class CompiledCuda:
    """The result of NVRTC.

    Attributes:
        cubin: machine code with its kernels' names, an ELF file.
        resources: resource usage of each kernel.
        log: messages of both compilers, without compile times.
    """

    cubin: bytes
    resources: dict[str, KernelResources]
    log: str


def compile_cuda(source: str, arch: str, options: Sequence[str] = ()) -> CompiledCuda:
    """Compile CUDA C; the same source gives the same bytes.

    Args:
        source: the text; kernels are `extern "C"`, or have mangled names.
        arch: `sm_90`, `sm_90a`, ...
        options: further NVRTC options, after the fixed ones.
    Raises:
        MissingExtraError: the extra `cuda` is not installed.
        BuildError: compilation failed; the message has the compiler's log and the source lines that it names.
    """
    nvrtc = _nvrtc()
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram, source.encode(), _FILE.encode(), 0, [], [])
    try:
        # From 12.9 on, NVRTC finds code that it compiled before in a cache of the driver, and then ptxas reports nothing.
        fresh = ["--no-cache"] if tuple(nvrtc.nvrtcVersion()[1:]) >= (12, 9) else []
        fixed = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *fresh, *[f"--include-path={f}" for f in _headers()]]
        given = [*fixed, *options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(given), [option.encode() for option in given])
        printed = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        log = "\n".join([line for line in printed.rstrip("\0").splitlines() if "Compile time" not in line])
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(_failure(source, arch, error.name, log))
        cubin = _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if not cubin:
        raise BuildError(f"{arch} is a virtual architecture, for which NVRTC makes no machine code: pass a real one such as sm_90")
    return CompiledCuda(cubin, parse_resources(log), log)


def parse_resources(log: str) -> dict[str, KernelResources]:
    """Resources of each entry function in the output of `ptxas -v`; lines about device functions that were not inlined are skipped."""
    found: dict[str, KernelResources] = {}
    entry, frame, of = "", (0, 0, 0), ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, frame = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            of = match[1]
        elif (match := _STACK.search(line)) and of == entry:
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif entry and (match := _REGISTERS.search(line)):
            shared = _SHARED.search(line)
            found[entry] = KernelResources(int(match[1]), frame[1] + frame[2], frame[0], int(shared[1]) if shared else 0)
            entry = ""
    return found


def disassemble(cubin: bytes) -> str | None:
    """The disassembly of a cubin by NVIDIA's `nvdisasm`; None if that is not installed.

    `nvdisasm` is searched on PATH and among the files of the package `nvidia-cuda-nvdisasm`.

    Raises:
        BuildError: `nvdisasm` fails on the bytes.
    """
    program = _disassembler()
    if program is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "--print-code", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{program} cannot read these {len(cubin)} bytes as a cubin: {done.stderr.strip()}")
    return done.stdout


def _nvrtc() -> Any:
    """The bindings.  The first call of one loads NVRTC's library."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MissingExtraError("cuda-core", "cuda", "compiling CUDA code") from error
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise MissingExtraError("nvidia-cuda-nvrtc", "cuda", "compiling CUDA code") from error
    return nvrtc


@cache
def _headers() -> tuple[Path, ...]:
    """Folders of CUDA's headers (cuda_fp16.h, mma.h) in installed packages."""
    return tuple(sorted({path.parent for name in ("cuda_fp16.h", "cuda_runtime.h") for path in _installed("nvidia-cuda-runtime", name)}))


@cache
def _disassembler() -> str | None:
    found = shutil.which("nvdisasm")
    packaged = [str(path) for path in _installed("nvidia-cuda-nvdisasm", "nvdisasm")]
    return found or (packaged[0] if packaged else None)


def _installed(distribution: str, name: str) -> list[Path]:
    """Files of an installed package with this base name."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    paths = [Path(str(f.locate())).resolve() for f in files if f.name == name]
    return [path for path in paths if path.is_file()]


def _call(nvrtc: Any, function: Any, *arguments: Any) -> Any:
    error, *values = function(*arguments)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC failed: {error.name}")
    return values[0] if values else None


def _text(nvrtc: Any, size: Any, get: Any, program: Any) -> bytes:
    """A text from a pair of NVRTC functions, one for the size and one for the content."""
    buffer = b"\0" * _call(nvrtc, size, program)
    _call(nvrtc, get, program, buffer)
    return buffer


def _failure(source: str, arch: str, name: str, log: str) -> str:
    """The compiler's log, followed by the source lines that it names."""
    lines = source.splitlines()
    named = sorted({int(n) for n in _LINE.findall(log) if 0 < int(n) <= len(lines)})[:_MOST_LINES]
    listing = "\n".join(f"{n:5} | {lines[n - 1]}" for n in named)
    words = log.strip() or "the compiler log is empty"
    return f"CUDA code does not compile for {arch} ({name}):\n{words}" + (f"\n\n{listing}" if listing else "")
