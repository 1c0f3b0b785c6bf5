"""Generate the C header of a model compiled ahead of time, for C99, C++ and bindings of other languages.

Its structs contain only pointers, in the order of the model, so that callers without the header can pass arrays of pointers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from tunesmith.runtime.arrays import ALIGNMENT, nbytes
from tunesmith.runtime.executor.aot_executor import signature
from tunesmith.runtime.executor.executable import NamedArrays

_TYPES = {"bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double"}
_REMARKS = {"bool": "0 or 1", "float16": "bits of IEEE binary16", "bfloat16": "the upper half of a binary32"}
_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor bool break case catch char char16_t "
    "char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype "
    "default delete do double dynamic_cast else enum explicit export extern false final float for friend goto if import inline int long "
    "module mutable namespace new noexcept not not_eq nullptr operator or or_eq override private protected public reflexpr register "
    "reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch synchronized template "
    "this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t "
    "while xor xor_eq linux unix NULL".split()
)
"""Keywords of C and C++, and macros of compilers and headers."""
_MACROS = re.compile(
    r"(U?INT(MAX|PTR|_LEAST|_FAST)?\d*|SIZE|PTRDIFF|[SW]?CHAR|UCHAR|WINT|SIG_ATOMIC|RAND|U?SHRT|U?L?LONG|PATH)_(MIN|MAX|C|WIDTH|BIT)"
    r"|EXIT_(SUCCESS|FAILURE)|EOF|BUFSIZ|NAN|INFINITY|HUGE_VALF?|(FLT|DBL|LDBL)_\w+|SEEK_(SET|CUR|END)|E(DOM|RANGE|ILSEQ)|M_(E|PI|LN2)"
    r"|std(in|out|err)|errno"
)
"""Other macros of standard headers."""

Spec = Sequence[Any]


def c_header(program: dict[str, Any], constants: NamedArrays, beside: str | None = None, loads: bool = False) -> str:
    """The text of the header.

    Args:
        program: program of an executable of kind "aot".
        constants: constants of the executable.
        beside: name of the parameter file, if the parameters are not in the library.
        loads: whether the code has functions that read the parameter file.
    """
    name, upper = program["name"], program["name"].upper()
    run = f"{name}_run" if beside is None else f"{name}_run_with"
    structs = [_struct(name, "inputs", program["inputs"], "const "), _struct(name, "outputs", program["outputs"], "")]
    return "\n".join(
        [
            *_comment([f"{name}: a model compiled by tunesmith, which wrote this file.", "", *_about(program, constants, run, beside)]),
            "",
            f"#ifndef TUNESMITH_{upper}_H",
            f"#define TUNESMITH_{upper}_H",
            "",
            "#include <stddef.h>",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"#define {upper}_NUM_INPUTS {len(program['inputs'])}",
            f"#define {upper}_NUM_OUTPUTS {len(program['outputs'])}",
            f"#define {upper}_WORKSPACE_BYTES {program['workspace']}",
            f"#define {upper}_ALIGNMENT {ALIGNMENT}",
            f"#define {upper}_SIGNATURE UINT64_C({signature(program, constants)})",
            "",
            *[line for struct in structs for line in struct],
            *_statuses(name, upper),
            *(_loaders(name) if loads else []),
            *_functions(name, upper, run, beside),
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            f"#endif /* TUNESMITH_{upper}_H */",
            "",
        ]
    )


def member_names(names: Sequence[str]) -> list[str]:
    """Unique C identifiers for the names of tensors."""
    found: list[str] = []
    for name in names:
        word = re.sub(r"[^A-Za-z0-9]+", "_", name).lstrip("_") or "tensor"
        if not word[0].isalpha():
            word = f"tensor_{word}"
        if word in _KEYWORDS or _MACROS.fullmatch(word):
            word += "_"
        fresh, number = word, 1
        while fresh in found:
            fresh, number = f"{word.rstrip('_')}_{number}", number + 1
        found.append(fresh)
    return found


def _about(program: dict[str, Any], constants: NamedArrays, run: str, beside: str | None) -> list[str]:
    name = program["name"]
    first = "" if beside is None else "parameters, "
    lines = [
        "Tensors are contiguous, row-major, and aligned to their elements.  Outputs overlap no other tensor.",
        "",
        f"    struct {name}_inputs inputs = {{...}};       pointers, in the order of the struct",
        f"    struct {name}_outputs outputs = {{...}};",
        f"    int32_t status = {run}({first}&inputs, &outputs, NULL);",
        "",
        "Threads may run the model at the same time, each with outputs and a workspace of its own.",
        "A call uses as many threads as the target has cores, and no more than OMP_NUM_THREADS or omp_set_num_threads().",
        f"Code is for the target: {_plain(program['target'])}",
    ]
    if beside is not None:
        size = sum(array.nbytes for _, array in constants)
        lines += [f"The parameters, {size} bytes, are in the file {_plain(beside)}: map it, and give it to {name}_parameters."]
    return lines


def _struct(name: str, what: str, specs: Sequence[Spec], qualifier: str) -> list[str]:
    lines = [f"struct {name}_{what} {{"]
    for member, (title, dtype, shape) in zip(member_names([s[0] for s in specs]), specs, strict=True):
        remarks = [f"{dtype}[{', '.join(map(str, shape))}]", _counted(math.prod(shape), "element"), _counted(nbytes(dtype, shape), "byte")]
        remarks += [_REMARKS[dtype]] if dtype in _REMARKS else []
        remarks += [f"called {_plain(json.dumps(title))}"] if member != title else []
        lines.append(f"    {qualifier}{_TYPES.get(dtype, f'{dtype}_t')} *{member}; /* {', '.join(remarks)} */")
    if not specs:
        lines.append("    const void *none; /* there are none; a struct of C has a member */")
    return [*lines, "};", ""]


def _statuses(name: str, upper: str) -> list[str]:
    return [
        f"enum {name}_status {{",
        f"    {upper}_OK = 0,",
        f"    {upper}_NULL_POINTER = 1, /* a pointer that is needed is NULL */",
        f"    {upper}_MISALIGNED = 2,   /* a tensor is not aligned to its elements, or the workspace not to {ALIGNMENT} bytes */",
        f"    {upper}_NO_MEMORY = 3,    /* no memory for intermediate tensors: outputs may have been written in part */",
        f"    {upper}_FORKED = 4        /* the process was forked from one that had run the model on several threads */",
        "};",
        "",
    ]


def _loaders(name: str) -> list[str]:
    return [
        *_comment(
            [
                f"Reads the parameter file at `path` into memory for {name}_run_with.  NULL if it cannot be read, is not the file that was",
                "written with this code, or there is no memory.",
            ]
        ),
        f"const void *{name}_load_parameters(const char *path);",
        "",
        *_comment([f"Frees what {name}_load_parameters gave."]),
        f"void {name}_free_parameters(const void *parameters);",
        "",
    ]


def _functions(name: str, upper: str, run: str, beside: str | None) -> list[str]:
    lines = []
    if beside is not None:
        lines += _comment(
            [
                f"The parameters in `file`, the bytes of the whole file, aligned to {ALIGNMENT} bytes; they stay as they are while the",
                "model runs.  NULL if they are not the file that was written with this library.  Its digest is compared, not computed.",
            ]
        )
        lines += [f"const void *{name}_parameters(const void *file, size_t size);", ""]
    lines += _comment(
        [
            "Runs the model.",
            "",
            *([] if beside is None else [f"parameters  what {name}_parameters gave."]),
            "inputs      is read only.",
            "outputs     is written.",
            f"workspace   {upper}_WORKSPACE_BYTES bytes, aligned to {upper}_ALIGNMENT, of any content; NULL to allocate them in the call.",
            "",
            f"Returns {upper}_OK, or another of enum {name}_status; then nothing has been written, if not said otherwise there.",
        ]
    )
    first = "" if beside is None else "const void *parameters, "
    return [
        *lines,
        f"int32_t {run}({first}const struct {name}_inputs *inputs, const struct {name}_outputs *outputs, void *workspace);",
        "",
        *_comment(
            [
                "The same numbers as above, from the library.  A program that may meet another version of the library compares",
                f"{name}_signature() with {upper}_SIGNATURE: they differ if names, types, shapes or sizes do.",
            ]
        ),
        f"uint64_t {name}_signature(void);",
        f"size_t {name}_workspace_bytes(void);",
        f"uint32_t {name}_num_inputs(void);",
        f"uint32_t {name}_num_outputs(void);",
        "",
    ]


def _comment(lines: Sequence[str]) -> list[str]:
    first, *rest = lines
    return [f"/* {first}", *[f" * {line}".rstrip() for line in rest], " */"]


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' if count != 1 else ''}"


def _plain(text: str) -> str:
    """The text made safe for a comment: ASCII, without comment delimiters."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return re.sub(r"[\x00-\x1f\x7f]", "?", plain).replace("*/", "* /").replace("/*", "/ *")
