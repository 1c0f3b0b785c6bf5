"""Emit the TVM-FFI function of a model compiled ahead of time: `__tvm_ffi_main(inputs..., outputs...)`.

The function checks the tensors with the checker of `runtime.checker.argument_checker` and calls the model's C function, which writes the
outputs.  Callers allocate the outputs: the FFI has no allocator unless another library of the process has set one.

All symbols of TVM-FFI are weak references, so that C programs load and link the library without TVM-FFI.  The parameters of a library
that has them beside it are memory-mapped from `<path of the library>.params` at the first call.
"""

from __future__ import annotations

import re
from typing import Any

from tunesmith.codegen.cpu.entry_points import begin_entry
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import generic_options
from tunesmith.codegen.llvm.host_entry import emit_signature
from tunesmith.runtime.checker.argument_checker import CHECKER, checker_text
from tunesmith.runtime.checker.ir_text import RAISE, c_string, expand_raises
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.executor.aot_executor import NO_MEMORY, RUN_WITH, STATUS_TEXTS, program_name

ENTRY = "main"
"""Name of the function in the library."""

_ALIGNED = 64
"""Alignment of the address that is passed for empty tensors, whose own may be null."""
_DECLARES_FFI = re.compile(r"^declare (?=[^\n]*@TVMFFI)", re.MULTILINE)

_RUN_INSIDE = """
  %code = call i32 @"$NAME_run"(ptr %addresses, ptr %outputs, ptr null)
  br label %ran"""

_RUN_BESIDE = """
  %failed = call i32 @TVMFFIHandleInitOnce(ptr @tunesmith.parameters, ptr @tunesmith.map_parameters)
  %mapped = icmp eq i32 %failed, 0
  br i1 %mapped, label %call, label %refused
call:
  %parameters = load atomic ptr, ptr @tunesmith.parameters acquire, align 8
  %code = call i32 @"$NAME$RUN_WITH"(ptr %parameters, ptr %addresses, ptr %outputs, ptr null)
  br label %ran"""

_ENTRY = """
define i32 @"$ENTRY"(ptr %self, ptr %args, i32 %num_args, ptr %result) nounwind {
  %addresses = alloca [$COUNT x ptr], align $ALIGNED
  ; Without TVM-FFI in the process there is nothing to raise an error with.
  %ffi = icmp ne ptr @$NEEDED, null
  br i1 %ffi, label %check, label %refused
check:
  %status = call i32 @$CHECKER(ptr $SIGNATURE, ptr %args, i32 %num_args, ptr %addresses)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %run, label %refused
run:$EMPTY
  %outputs = getelementptr ptr, ptr %addresses, i64 $INPUTS$RUN
ran:
  %done = icmp eq i32 %code, 0
  br i1 %done, label %finish, label %fail
fail:
  call void @tunesmith.fail_status(i32 %code)
  br label %refused
finish:
  ret i32 0
refused:
  ret i32 -1
}

define internal void @tunesmith.fail_status(i32 %code) cold noinline nounwind {
  %parts = alloca [4 x ptr], align 16
  %known = icmp ult i32 %code, $STATUSES
  %row = select i1 %known, i32 %code, i32 0
  %slot = getelementptr ptr, ptr @tunesmith.statuses, i32 %row
  %text = load ptr, ptr %slot
  %memory = icmp eq i32 %code, $NO_MEMORY
  %class = select i1 %memory, ptr @tunesmith.text.memory_error, ptr @tunesmith.text.runtime_error
  raise %class: .function .colon %text
  ret void
}
"""

_MAP = """
@tunesmith.parameters = internal global ptr null, align 8
declare i32 @dladdr(ptr, ptr)
declare i32 @snprintf(ptr, i64, ptr, ...)
declare i32 @open(ptr, i32, ...)
declare i64 @lseek(i32, i64, i32)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @close(i32)

; The parameters in the file beside this library; it stays mapped.  -1 with the error raised if they cannot be read or are of another model.
define internal i32 @tunesmith.map_parameters(ptr %result) nounwind {
  %info = alloca [4 x ptr], align 8
  %path = alloca [4352 x i8], align 16
  store i8 0, ptr %path
  %found = call i32 @dladdr(ptr @"$ENTRY", ptr %info)
  %known = icmp ne i32 %found, 0
  br i1 %known, label %name, label %unreadable
name:
  %library = load ptr, ptr %info
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %path, i64 4352, ptr @tunesmith.text.path, ptr %library)
  %file = call i32 (ptr, i32, ...) @open(ptr %path, i32 $READ)
  %opened = icmp sge i32 %file, 0
  br i1 %opened, label %map, label %unreadable
map:
  %size = call i64 @lseek(i32 %file, i64 0, i32 2)
  %bytes = call ptr @mmap(ptr null, i64 %size, i32 1, i32 2, i32 %file, i64 0)
  %closed = call i32 @close(i32 %file)
  %address = ptrtoint ptr %bytes to i64
  %mapped = icmp ne i64 %address, -1
  br i1 %mapped, label %recognise, label %unreadable
recognise:
  %parameters = call ptr @"$NAME_parameters"(ptr %bytes, i64 %size)
  %own = icmp ne ptr %parameters, null
  br i1 %own, label %keep, label %foreign
keep:
  store ptr %parameters, ptr %result
  ret i32 0
foreign:
  %unmapped = call i32 @munmap(ptr %bytes, i64 %size)
  call void @tunesmith.fail_parameters(ptr %path, ptr @tunesmith.text.foreign)
  ret i32 -1
unreadable:
  call void @tunesmith.fail_parameters(ptr %path, ptr @tunesmith.text.unreadable)
  ret i32 -1
}

define internal void @tunesmith.fail_parameters(ptr %path, ptr %why) cold noinline nounwind {
  %parts = alloca [5 x ptr], align 16
  raise .runtime_error: .function .the_file %path %why
  ret void
}
"""

_TEXTS = {
    "function": ENTRY,
    "colon": ": ",
    "memory_error": "MemoryError",
    "runtime_error": "RuntimeError",
    "status": "the model ended with an unknown status",
    "path": "%s.params",
    "the_file": ": the parameter file ",
    "unreadable": ", which the library needs beside it, cannot be read: copy both files, or export the library again",
    "foreign": " belongs to another library, or is truncated: copy both files, or export the library again",
}
_READ_ONLY, _CLOSE_ON_EXEC = 0, 0o2000000


def model_entry(program: dict[str, Any], beside: bool, machine: str | None = None) -> bytes:
    """An object that defines `__tvm_ffi_main`, to be linked with the model, its front (`codegen.llvm.aot`) and `model_checker`.

    Args:
        program: program of an executable of kind "aot".
        beside: the parameters are in a file beside the library.
    """
    return compile_object(emit_model_entry(program, beside), generic_options(machine))


def model_checker(machine: str | None = None) -> bytes:
    """An object with the argument checker, which loads without TVM-FFI."""
    return compile_object(_weak(checker_text()), generic_options(machine))


def emit_model_entry(program: dict[str, Any], beside: bool) -> str:
    """LLVM IR text that `model_entry` compiles."""
    name, inputs, outputs = program_name(program), program["inputs"], program["outputs"]
    tensors = [(spec, False) for spec in inputs] + [(spec, True) for spec in outputs]
    params = [ParamSpec(title, dtype, tuple(shape), written) for (title, dtype, shape), written in tensors]
    entry = begin_entry(ENTRY, set())
    constants, signature = emit_signature(ENTRY, params)
    declared = [f'declare i32 @"{name}{RUN_WITH}"(ptr, ptr, ptr, ptr)', f'declare ptr @"{name}_parameters"(ptr, i64)']
    front = declared if beside else [f'declare i32 @"{name}_run"(ptr, ptr, ptr)']
    words = {
        "$ENTRY": entry,
        "$NEEDED": "TVMFFIHandleInitOnce" if beside else "TVMFFIErrorCreate",
        "$COUNT": str(max(1, len(params))),
        "$ALIGNED": str(_ALIGNED),
        "$CHECKER": CHECKER,
        "$SIGNATURE": signature,
        "$EMPTY": "".join(_address_of_empty(i) for i, param in enumerate(params) if not param.nbytes),
        "$INPUTS": str(len(inputs)),
        "$RUN_WITH": RUN_WITH,
        "$RUN": _RUN_BESIDE if beside else _RUN_INSIDE,
        "$READ": str(_READ_ONLY | _CLOSE_ON_EXEC),
        "$NO_MEMORY": str(NO_MEMORY),
        "$STATUSES": str(max(STATUS_TEXTS) + 1),
        "$NAME": name,
    }
    text = _ENTRY + (_MAP if beside else "")
    for _ in range(2):  # some of the words contain others
        for word in sorted(words, key=len, reverse=True):
            text = text.replace(word, words[word])
    lines = [
        *[c_string(f"@tunesmith.text.{key}", value) for key, value in _TEXTS.items()],
        *_statuses(),
        *constants,
        f"declare i32 @{CHECKER}(ptr, ptr, i32, ptr)",
        "declare i32 @TVMFFIHandleInitOnce(ptr, ptr)" if beside else "",
        *front,
        RAISE,
        expand_raises(text),
    ]
    return _weak("\n".join(lines))


def _statuses() -> list[str]:
    """The table of texts of the C function's status codes."""
    texts = [STATUS_TEXTS.get(i) for i in range(max(STATUS_TEXTS) + 1)]
    rows = ", ".join("ptr @tunesmith.text.status" if text is None else f"ptr @tunesmith.status.{i}" for i, text in enumerate(texts))
    lines = [c_string(f"@tunesmith.status.{i}", text) for i, text in enumerate(texts) if text is not None]
    return [*lines, f"@tunesmith.statuses = private unnamed_addr constant [{len(texts)} x ptr] [{rows}]"]


def _address_of_empty(i: int) -> str:
    """Replace the address of an empty tensor, which may be null and is not accessed."""
    return f"\n  %empty{i} = getelementptr ptr, ptr %addresses, i64 {i}\n  store ptr %addresses, ptr %empty{i}"


def _weak(text: str) -> str:
    return _DECLARES_FFI.sub("declare extern_weak ", text)
