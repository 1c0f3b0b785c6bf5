"""CUDA C to machine code: NVRTC, which comes with pip and needs neither a GPU nor a driver.

A cubin is made, not PTX: all of the compiler's work happens here, in processes that do not hold the device, and what ptxas says about
registers and spills is there before anything runs.
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
"""What messages call the source."""

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LINE = re.compile(rf"{re.escape(_FILE)}\((\d+)\)")
_MOST_LINES = 12
"""Of the source, in an error."""


@dataclass(frozen=True, slots=True)
class CompiledCuda:
    """What NVRTC made.

    Attributes:
        cubin: machine code with its kernels' names, an ELF file.
        resources: what each kernel takes.
        log: what both compilers say, less how long they took.
    """

    cubin: bytes
    resources: dict[str, KernelResources]
    log: str


def compile_cuda(source: str, arch: str, options: Sequence[str] = ()) -> CompiledCuda:
    """Compile CUDA C; the same source gives the same bytes.

    Args:
        source: the text; its kernels are `extern "C"`, or have mangled names.
        arch: `sm_90`, `sm_90a`, ...
        options: of NVRTC, behind ours.
    Raises:
        MissingExtraError: the extra `cuda` is not installed.
        BuildError: it does not compile; the message has the compiler's words and the lines of the source that they name.
    """
    nvrtc = _nvrtc()
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram, source.encode(), _FILE.encode(), 0, [], [])
    try:
        given = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *[f"--include-path={f}" for f in _headers()], *options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(given), [option.encode() for option in given])
        said = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        log = "\n".join([line for line in said.rstrip("\0").splitlines() if "Compile time" not in line])
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(_refusal(source, arch, error.name, log))
        cubin = _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if not cubin:
        raise BuildError(f"{arch} is no machine, so that NVRTC made no machine code: give one like sm_90")
    return CompiledCuda(cubin, parse_resources(log), log)


def parse_resources(log: str) -> dict[str, KernelResources]:
    """What `ptxas -v` says about each entry function; of device functions that were not inlined it says more, which is left out."""
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
    """The machine instructions of a cubin, by NVIDIA's `nvdisasm`; None where that is not installed.

    It is looked for on PATH and among the files of the package `nvidia-cuda-nvdisasm`.

    Raises:
        BuildError: it refuses the bytes.
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
    """The bindings.  NVRTC's own library is loaded by their first call."""
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
    """Folders with CUDA's headers (cuda_fp16.h, mma.h), where packages have brought them."""
    return tuple(sorted({path.parent for name in ("cuda_fp16.h", "cuda_runtime.h") for path in _installed("nvidia-cuda-runtime", name)}))


@cache
def _disassembler() -> str | None:
    found = shutil.which("nvdisasm")
    packaged = [str(path) for path in _installed("nvidia-cuda-nvdisasm", "nvdisasm")]
    return found or (packaged[0] if packaged else None)


def _installed(distribution: str, name: str) -> list[Path]:
    """Files of an installed package, by their last name."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    paths = [Path(str(f.locate())).resolve() for f in files if f.name == name]
    return [path for path in paths if path.is_file()]


def _call(nvrtc: Any, function: Any, *arguments: Any) -> Any:
    error, *values = function(*arguments)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC refuses: {error.name}")
    return values[0] if values else None


def _text(nvrtc: Any, size: Any, get: Any, program: Any) -> bytes:
    """What one of NVRTC's pairs of functions gives."""
    buffer = b"\0" * _call(nvrtc, size, program)
    _call(nvrtc, get, program, buffer)
    return buffer


def _refusal(source: str, arch: str, name: str, log: str) -> str:
    """The compiler's words, and below them the lines of the source that they name."""
    lines = source.splitlines()
    named = sorted({int(n) for n in _LINE.findall(log) if 0 < int(n) <= len(lines)})[:_MOST_LINES]
    listing = "\n".join(f"{n:5} | {lines[n - 1]}" for n in named)
    words = log.strip() or "the compiler says nothing more"
    return f"CUDA code does not compile for {arch} ({name}):\n{words}" + (f"\n\n{listing}" if listing else "")
