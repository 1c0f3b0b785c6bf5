"""Emit LLVM IR that opens the CUDA driver at run time, calls its functions and raises their errors.

The library then needs no driver to be linked or loaded, and reports what is missing at the first call.  The text is part of a module with
`runtime.checker.argument_checker`; it defines

- `i32 tunesmith.open_driver(function)`: 0 when the driver is ready, and `tunesmith.driver.ready` is 1 from then on; or -1;
- `void tunesmith.fail_cuda(function, device, what, of, code)` and `void tunesmith.fail_device(function, device, what)`, which raise.

In texts for `expand`, a line `cuda RESULT = FUNCTION(ARGUMENTS) ? GOOD : BAD` calls the driver and branches to GOOD if the result is 0,
else to BAD; the part from the question mark on is optional.
"""

from __future__ import annotations

import re

from tunesmith.runtime.checker.ir_text import c_string, expand_raises

_DRIVER = (
    "cuInit",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuMemPoolCreate",
    "cuMemPoolSetAttribute",
    "cuMemPoolDestroy",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuLaunchKernel",
    "cuGetErrorName",
    "cuGetErrorString",
)
"""Driver functions in use; all available since CUDA 11.2."""

_TEXTS = {
    "driver": "libcuda.so.1",
    "runtime_error": "RuntimeError",
    "is": ": ",
    "cannot": ": it runs on NVIDIA GPUs, and ",
    "no_driver": "the driver of CUDA is not there (%s): install NVIDIA's driver; `nvidia-smi` shows whether it works",
    "old_driver": "the driver of CUDA is too old, it has no %s: install one for CUDA 11.2 or later",
    "device": "cuda(%d), ",
    "number": "CUDA error %d",
    "no_name": "the driver has no text for it",
    "start": "start of the driver",
}

_CUDA = re.compile(r"^  cuda (%[\w.]+) = (\w+)(\(.*\))(?: \? ([\w.]+) : ([\w.]+))?$", re.MULTILINE)

_FUNCTIONS = f"""
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
declare ptr @dlerror()

@tunesmith.driver = internal global [{len(_DRIVER)} x ptr] zeroinitializer
@tunesmith.driver.ready = internal global i32 0

; Finds the functions of the driver; threads that do so at once store the same.
define internal i32 @tunesmith.open_driver(ptr %function) cold noinline nounwind {{
entry:
  %detail = alloca [512 x i8], align 16
  %parts = alloca [3 x ptr], align 16
  %library = call ptr @dlopen(ptr @tunesmith.text.driver, i32 1)
  %found = icmp ne ptr %library, null
  br i1 %found, label %head, label %missing
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp ult i64 %i, {len(_DRIVER)}
  br i1 %more, label %one, label %start
one:
  %name.p = getelementptr ptr, ptr @tunesmith.driver.names, i64 %i
  %name = load ptr, ptr %name.p
  %symbol = call ptr @dlsym(ptr %library, ptr %name)
  %there = icmp ne ptr %symbol, null
  br i1 %there, label %next, label %refuse
next:
  %slot = getelementptr ptr, ptr @tunesmith.driver, i64 %i
  store atomic ptr %symbol, ptr %slot monotonic, align 8
  %i.next = add i64 %i, 1
  br label %head
start:
  cuda %started = cuInit(i32 0) ? ready : broken
ready:
  store atomic i32 1, ptr @tunesmith.driver.ready release, align 4
  ret i32 0
broken:
  call void @tunesmith.fail_cuda(ptr %function, i32 0, ptr @tunesmith.text.start, ptr @tunesmith.text.none, i32 %started)
  ret i32 -1
missing:
  %reason = call ptr @dlerror()
  br label %refuse
refuse:
  %format = phi ptr [ @tunesmith.text.no_driver, %missing ], [ @tunesmith.text.old_driver, %one ]
  %about = phi ptr [ %reason, %missing ], [ %name, %one ]
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 512, ptr %format, ptr %about)
  raise .runtime_error: %function .cannot %detail
  ret i32 -1
}}

; Raises "<function>: cuda(<device>), <what><of>: <name of the error>: <its text>".
define internal void @tunesmith.fail_cuda(ptr %function, i32 %device, ptr %what, ptr %of, i32 %code) cold noinline nounwind {{
entry:
  %place = alloca [32 x i8], align 16
  %number = alloca [32 x i8], align 16
  %name.p = alloca ptr, align 8
  %text.p = alloca ptr, align 8
  %parts = alloca [9 x ptr], align 16
  store ptr null, ptr %name.p
  store ptr null, ptr %text.p
  cuda %named = cuGetErrorName(i32 %code, ptr %name.p)
  cuda %told = cuGetErrorString(i32 %code, ptr %text.p)
  %name.got = load ptr, ptr %name.p
  %text.got = load ptr, ptr %text.p
  %nameless = icmp eq ptr %name.got, null
  %textless = icmp eq ptr %text.got, null
  %name = select i1 %nameless, ptr %number, ptr %name.got
  %text = select i1 %textless, ptr @tunesmith.text.no_name, ptr %text.got
  %wrote.place = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %place, i64 32, ptr @tunesmith.text.device, i32 %device)
  %wrote.number = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %number, i64 32, ptr @tunesmith.text.number, i32 %code)
  raise .runtime_error: %function .is %place %what %of .is %name .is %text
  ret void
}}

; Raises "<function>: cuda(<device>), <what>".
define internal void @tunesmith.fail_device(ptr %function, i32 %device, ptr %what) cold noinline nounwind {{
entry:
  %place = alloca [32 x i8], align 16
  %parts = alloca [4 x ptr], align 16
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %place, i64 32, ptr @tunesmith.text.device, i32 %device)
  raise .runtime_error: %function .is %place %what
  ret void
}}
"""


def driver_text() -> str:
    """The driver functions in LLVM IR, with their constants."""
    texts = [c_string(f"@tunesmith.text.{key}", text) for key, text in _TEXTS.items()]
    texts += [c_string(f"@tunesmith.driver.name{i}", name) for i, name in enumerate(_DRIVER)]
    symbols = ", ".join(f"ptr @tunesmith.driver.name{i}" for i in range(len(_DRIVER)))
    table = f"@tunesmith.driver.names = private constant [{len(_DRIVER)} x ptr] [{symbols}]"
    return "\n".join([*texts, table, expand(_FUNCTIONS)])


def expand(text: str) -> str:
    """Expand the lines `cuda ...`, and the lines `raise ...` of `runtime.checker.ir_text`, to LLVM IR."""
    return expand_raises(_CUDA.sub(_call, text))


def _call(found: re.Match[str]) -> str:
    """Expand one `cuda ...` line to LLVM IR."""
    result, function, arguments, good, bad = found.groups()
    lines = [
        f"  {result}.p = getelementptr ptr, ptr @tunesmith.driver, i64 {_DRIVER.index(function)}",
        f"  {result}.f = load ptr, ptr {result}.p",
        f"  {result} = call i32 {result}.f{arguments}",
    ]
    if good is not None:
        lines += [f"  {result}.good = icmp eq i32 {result}, 0", f"  br i1 {result}.good, label %{good}, label %{bad}"]
    return "\n".join(lines)
