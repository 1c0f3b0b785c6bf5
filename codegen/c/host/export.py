"""Write a model as C files that stand alone: they need a C compiler with vector extensions, libc, libm, and OpenMP for several threads.

The files for a model called `m`: `m.c` with the kernels and the functions of `codegen.cpu.c_header`, `m.h`, and the parameters, as numbers
in `m_parameters.c`, or in the binary file `m.params` beside it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from tunesmith.codegen.c.compiler import LANGUAGE, processor_flags
from tunesmith.codegen.c.host.model import print_model
from tunesmith.codegen.c.host.threads import STANDALONE
from tunesmith.codegen.cpu.c_header import c_header
from tunesmith.codegen.cpu.model import aot_program
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.runtime.executor.executable import HEAD_BYTES, NamedArrays, container_size, payload_of, payload_offset
from tunesmith.runtime.executor.model_library import write_parameters
from tunesmith.support import atomic_file
from tunesmith.support.errors import BuildError

PARAMETERS = ("inside", "beside")
"""Where the constants of a model are stored: as numbers in a C file, or in a binary file."""
_MOST_INSIDE = 64 << 20
"""Limit of constants that are written as numbers, in bytes: the text takes more than twice as many, and memory of the compiler."""
_WORDS = 6
"""Numbers in a line."""
_LITTLE_ENDIAN = """\
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error these numbers are for little-endian machines
#endif"""


def export_c(
    folder: str | PathLike[str],
    funcs: Sequence[PrimFunc],
    program: dict[str, Any],
    constants: NamedArrays,
    name: str,
    target: Target,
    pipeline: Pipeline,
    parameters: str = "beside",
) -> tuple[Path, ...]:
    """Write the files.

    Args:
        folder: an existing folder, or one to create; existing files are replaced atomically.
        funcs: the functions that the model calls.
        program: program of the graph executor.
        constants: constants of the program.
        name: prefix of the C functions and of the file names.
        target: target of the code.
        pipeline: the lowering pipeline.
        parameters: where the constants are stored, one of `PARAMETERS`.
    Returns:
        The paths: C files first, then the header, then the binary file.
    Raises:
        BuildError: a function cannot be compiled for the target, the constants are too large for a C file, or a file cannot be written.
    """
    if not isinstance(folder, (str, PathLike)) or isinstance(fspath(folder), bytes):
        raise BuildError(f"cannot export: a path is a text or a Path, not {folder!r:.100}")
    if not fspath(folder) or "\0" in fspath(folder):
        raise BuildError(f'cannot export to {fspath(folder)!r}: give the path of a folder, "." for the current one')
    place = Path(folder)
    if parameters not in PARAMETERS:
        raise BuildError(f"parameters={parameters!r}: constants are stored {' or '.join(PARAMETERS)} the C files")
    made = aot_program(program, name, target)
    inside = parameters == "inside"
    size = sum(a.nbytes for _, a in constants)
    if inside and size > _MOST_INSIDE:
        raise BuildError(f'cannot export {name}: {size} bytes of constants are too many for a C file. Store them with parameters="beside"')
    files = [f"{name}.c", *([f"{name}_parameters.c"] if inside else []), f"{name}.h", *([] if inside else [f"{name}.params"])]
    module = print_model(funcs, program, constants, made, target, pipeline)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if inside:
            atomic_file.write_text(place / f"{name}_parameters.c", "".join(_numbers(name, constants)))
            front = _front_inside(name)
        else:
            with atomic_file.replacing(place / f"{name}.params") as file:
                write_parameters(file, constants)
            with open(place / f"{name}.params", "rb") as written:
                front = _front_beside(name, written.read(HEAD_BYTES))
        module.functions.append(front)
        includes = [*([] if inside else ["<stdio.h>", "<string.h>"]), f'"{name}.h"']
        text = module.text(STANDALONE, _about(name, target, inside), includes)
        atomic_file.write_text(place / f"{name}.c", text)
        atomic_file.write_text(place / f"{name}.h", c_header(made, constants, None if inside else f"{name}.params", loads=not inside))
    except OSError as error:
        raise BuildError(f"cannot export to {place}: {error.strerror or error}. Check permissions and free space") from error
    return tuple([place / f for f in files])


def _about(name: str, target: Target, inside: bool) -> list[str]:
    files = f"{name}.c {name}_parameters.c" if inside else f"{name}.c"
    return [
        f"{name}: a model compiled by tunesmith, which wrote this file; {name}.h describes the functions.",
        "",
        "Compile it with GCC or Clang, version 12 or newer; without -fopenmp it runs on one thread:",
        "",
        f"  cc {shlex.join([*LANGUAGE, '-fno-strict-aliasing', *processor_flags(target)])} -fopenmp -c {files}",
        "",
        "and link with -fopenmp -lm.",
    ]


def _front_inside(name: str) -> str:
    return f"""extern const uint64_t {name}_constants[];

int32_t {name}_run_with(const void *parameters, const void *const *inputs, void *const *outputs, void *workspace) {{
  return run(parameters, inputs, outputs, workspace);
}}

int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs, void *workspace) {{
  return run({name}_constants, (const void *const *)inputs, (void *const *)outputs, workspace);
}}"""


def _front_beside(name: str, head: bytes) -> str:
    """Functions that recognise the parameter file by its first bytes, which contain its digest, and read it."""
    start = payload_offset(head)
    rows = [", ".join(f"0x{byte:02x}" for byte in head[k : k + 16]) for k in range(0, len(head), 16)]
    listed = ",\n  ".join(rows)
    return f"""static const unsigned char head[{len(head)}] = {{
  {listed},
}};

const void *{name}_parameters(const void *file, size_t size) {{
  if (!file || size != {container_size(head)} || memcmp(file, head, sizeof head)) return NULL;
  return (const char *)file + {start};
}}

const void *{name}_load_parameters(const char *path) {{
  const size_t size = {container_size(head)};
  char *const bytes = aligned_alloc({name.upper()}_ALIGNMENT, size);
  FILE *const file = fopen(path, "rb");
  const size_t read = bytes && file ? fread(bytes, 1, size, file) : 0;
  const void *const found = {name}_parameters(bytes, read);
  if (file) fclose(file);
  if (!found) free(bytes);
  return found;
}}

void {name}_free_parameters(const void *parameters) {{
  if (parameters) free((char *)parameters - {start});
}}

int32_t {name}_run_with(
    const void *parameters, const struct {name}_inputs *inputs, const struct {name}_outputs *outputs, void *workspace) {{
  return run(parameters, (const void *const *)inputs, (void *const *)outputs, workspace);
}}"""


def _numbers(name: str, constants: NamedArrays) -> Iterator[str]:
    """The constants as 64-bit numbers in a C file, in pieces."""
    pieces, size = payload_of(constants)
    data = b"".join(bytes(p) for p in pieces) or bytes(8)
    yield f"/* Parameters of {name}, {size} bytes. */\n\n#include <stdint.h>\n\n{_LITTLE_ENDIAN}\n\n"
    yield f"extern const uint64_t {name}_constants[];\n_Alignas(64) const uint64_t {name}_constants[{len(data) // 8}] = {{\n"
    for k in range(0, len(data), 8 * _WORDS):
        line = data[k : k + 8 * _WORDS]
        words = [int.from_bytes(line[i : i + 8], "little") for i in range(0, len(line), 8)]
        yield f"  {', '.join([f'0x{w:x}' for w in words])},\n"
    yield "};\n"
