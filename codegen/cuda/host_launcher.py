"""Emit the LLVM IR shared by CUDA entry points: open the driver, load the cubin, launch on the caller's stream.

One module of IR holds this text, the argument checker for CUDA memory, a cubin, and the entry points that call

1. `i32 tunesmith.begin(signature, args, num_args, addresses, workspace, call)`: checks the arguments; opens the driver with `dlopen`, so
   that the library loads on machines without one; makes the primary context of the arguments' device current, the context that CUDA's
   runtime, torch and CuPy use; loads the cubin at the first call on a device; reads the stream that TVM-FFI has set for the device; and
   allocates `workspace` bytes on it;
2. `i32 tunesmith.launch(call, kernel, grid, block, shared_bytes, pointers)`, for each launch;
3. `i32 tunesmith.end(call, status)`, once `begin` has succeeded: frees the workspace and restores the context of the thread.

Each returns 0, or -1 with an error raised through TVM-FFI.

Workspaces are allocated from a memory pool of the library (`cuMemAllocFromPoolAsync`), which retains freed memory.  TVM-FFI allocates
tensors only if the caller has installed an allocator, which torch does and others do not; and CUDA's default pool returns its memory to
the system at each synchronisation, unless that is changed for the whole process.

`call` is `{ptr state, ptr stream, i64 workspace, ptr function, i32 device}`; the state of a device is `{ptr context, ptr module, ptr
pool}` followed by the functions of its kernels.  The first call on a device creates the state; of two racing threads, one frees its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.codegen.cuda.host_driver import driver_text, expand
from tunesmith.runtime.checker.argument_checker import Memory, checker_text
from tunesmith.runtime.checker.ir_text import c_string

MAX_DEVICES = 64
"""Number of devices that a library can hold loaded code for."""

CALL = "{ ptr, ptr, i64, ptr, i32 }"
"""LLVM type of a call."""

CUDA_MEMORY = Memory(
    (2, 13),
    {
        "got_kind": ", got a value of type %.*s: pass a tensor (torch, CuPy or any other DLPack array)",
        "got_device": ", got memory of DLPack device type %d, index %d: pass tensors in the memory of one CUDA device (device type 2)",
        "got_address": ", got the address %p, which is not a multiple of %lld: pass a copy",
        "contiguous": " (in elements): it must be contiguous and row-major, pass a copy (x.contiguous())",
    },
)
"""DLPack device types: GPU memory, and memory that CUDA manages for CPU and GPU."""

_TEXTS = {
    "many_devices": f"code is loaded for devices 0 to {MAX_DEVICES - 1}",
    "context": "its primary context",
    "no_memory_here": "host memory for what is kept of a device",
    "kernel": "kernel ",
    "shared": "shared memory of kernel ",
    "pool": "memory pool",
    "workspace": "allocation of workspaces",
    "workspace_back": "release of workspaces",
    "launch": "launch of ",
}

_LOADING = f"""
declare ptr @calloc(i64, i64)
declare ptr @TVMFFIEnvGetStream(i32, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

@tunesmith.devices = internal global [{MAX_DEVICES} x ptr] zeroinitializer

; Loads the cubin into the current context; the first error, and in %what and %of what it was about.
define internal i32 @tunesmith.fill(ptr %state, i32 %device, ptr %what, ptr %of) cold noinline nounwind {{
entry:
  %properties = alloca [88 x i8], align 8
  %threshold = alloca i64, align 8
  %module.p = getelementptr ptr, ptr %state, i64 1
  %pool.p = getelementptr ptr, ptr %state, i64 2
  %functions = getelementptr ptr, ptr %state, i64 3
  store ptr @tunesmith.loading, ptr %what
  store ptr @tunesmith.text.none, ptr %of
  cuda %loaded = cuModuleLoadData(ptr %module.p, ptr @tunesmith.cubin) ? kernels : failed
kernels:
  %module = load ptr, ptr %module.p
  br label %head
head:
  %k = phi i64 [ 0, %kernels ], [ %k.next, %next ]
  %more = icmp ult i64 %k, KERNELS
  br i1 %more, label %one, label %rest
one:
  %kernel = getelementptr {{ ptr, i32 }}, ptr @tunesmith.kernels, i64 %k
  %name = load ptr, ptr %kernel
  store ptr @tunesmith.text.kernel, ptr %what
  store ptr %name, ptr %of
  %slot = getelementptr ptr, ptr %functions, i64 %k
  cuda %got = cuModuleGetFunction(ptr %slot, ptr %module, ptr %name) ? attribute : failed
attribute:
  %shared.p = getelementptr {{ ptr, i32 }}, ptr @tunesmith.kernels, i64 %k, i32 1
  %shared = load i32, ptr %shared.p
  %asks = icmp sgt i32 %shared, 0
  br i1 %asks, label %ask, label %next
ask:
  %f = load ptr, ptr %slot
  store ptr @tunesmith.text.shared, ptr %what
  cuda %granted = cuFuncSetAttribute(ptr %f, i32 8, i32 %shared) ? next : failed
next:
  %k.next = add i64 %k, 1
  br label %head
rest:
  br i1 POOLED, label %make, label %done
make:
  store ptr @tunesmith.text.pool, ptr %what
  store ptr @tunesmith.text.none, ptr %of
  call void @llvm.memset.p0.i64(ptr %properties, i8 0, i64 88, i1 false)
  store i32 1, ptr %properties
  %where = getelementptr i8, ptr %properties, i64 8
  store i32 1, ptr %where
  %id = getelementptr i8, ptr %properties, i64 12
  store i32 %device, ptr %id
  cuda %made = cuMemPoolCreate(ptr %pool.p, ptr %properties) ? keep : failed
keep:
  store i64 -1, ptr %threshold
  %pool = load ptr, ptr %pool.p
  cuda %kept = cuMemPoolSetAttribute(ptr %pool, i32 4, ptr %threshold) ? done : failed
done:
  ret i32 0
failed:
  %code = phi i32 [ %loaded, %entry ], [ %got, %one ], [ %granted, %ask ], [ %made, %make ], [ %kept, %keep ]
  ret i32 %code
}}

; What a thread made for nothing: its context is current, and no longer afterwards.
define internal void @tunesmith.drop(ptr %state, i32 %device) cold noinline nounwind {{
entry:
  %old = alloca ptr, align 8
  %module.p = getelementptr ptr, ptr %state, i64 1
  %module = load ptr, ptr %module.p
  %pool.p = getelementptr ptr, ptr %state, i64 2
  %pool = load ptr, ptr %pool.p
  %pooled = icmp ne ptr %pool, null
  br i1 %pooled, label %destroy, label %code
destroy:
  cuda %destroyed = cuMemPoolDestroy(ptr %pool)
  br label %code
code:
  %coded = icmp ne ptr %module, null
  br i1 %coded, label %unload, label %leave
unload:
  cuda %unloaded = cuModuleUnload(ptr %module)
  br label %leave
leave:
  cuda %popped = cuCtxPopCurrent_v2(ptr %old)
  cuda %released = cuDevicePrimaryCtxRelease_v2(i32 %device)
  call void @free(ptr %state)
  ret void
}}

; The state of a device that is met for the first time, or null with an error raised.
define internal ptr @tunesmith.load(ptr %function, i32 %index) cold noinline nounwind {{
entry:
  %device.p = alloca i32, align 4
  %what = alloca ptr, align 8
  %of = alloca ptr, align 8
  %old = alloca ptr, align 8
  %state = call ptr @calloc(i64 8, i64 STATE)
  %room = icmp ne ptr %state, null
  br i1 %room, label %find, label %full
find:
  cuda %found = cuDeviceGet(ptr %device.p, i32 %index) ? retain : unfit
retain:
  %device = load i32, ptr %device.p
  cuda %retained = cuDevicePrimaryCtxRetain(ptr %state, i32 %device) ? enter : unfit
enter:
  %context = load ptr, ptr %state
  cuda %entered = cuCtxPushCurrent_v2(ptr %context) ? fill : release
fill:
  %filled = call i32 @tunesmith.fill(ptr %state, i32 %device, ptr %what, ptr %of)
  %good = icmp eq i32 %filled, 0
  br i1 %good, label %publish, label %broken
publish:
  %index64 = zext i32 %index to i64
  %slot = getelementptr ptr, ptr @tunesmith.devices, i64 %index64
  %pair = cmpxchg ptr %slot, ptr null, ptr %state acq_rel acquire
  %winner = extractvalue {{ ptr, i1 }} %pair, 0
  %won = extractvalue {{ ptr, i1 }} %pair, 1
  br i1 %won, label %leave, label %lost
leave:
  cuda %popped = cuCtxPopCurrent_v2(ptr %old)
  ret ptr %state
lost:
  call void @tunesmith.drop(ptr %state, i32 %device)
  ret ptr %winner
broken:
  call void @tunesmith.drop(ptr %state, i32 %device)
  %what.text = load ptr, ptr %what
  %of.text = load ptr, ptr %of
  call void @tunesmith.fail_cuda(ptr %function, i32 %index, ptr %what.text, ptr %of.text, i32 %filled)
  ret ptr null
release:
  cuda %released = cuDevicePrimaryCtxRelease_v2(i32 %device)
  br label %unfit
unfit:
  %code = phi i32 [ %found, %find ], [ %retained, %retain ], [ %entered, %release ]
  call void @free(ptr %state)
  call void @tunesmith.fail_cuda(ptr %function, i32 %index, ptr @tunesmith.text.context, ptr @tunesmith.text.none, i32 %code)
  ret ptr null
full:
  call void @tunesmith.fail_device(ptr %function, i32 %index, ptr @tunesmith.text.no_memory_here)
  ret ptr null
}}
"""

_CALLING = f"""
; The device of all arguments, index in the low half and DLPack's type in the high one, or -1 with an error raised.
define internal i64 @tunesmith.device_of(ptr %signature, ptr %args) nounwind {{
entry:
  %count.p = getelementptr i8, ptr %signature, i64 8
  %count = load i32, ptr %count.p
  %params.p = getelementptr i8, ptr %signature, i64 16
  %params = load ptr, ptr %params.p
  %some = icmp sgt i32 %count, 0
  br i1 %some, label %first, label %default
default:
  ret i64 {2 << 32}
first:
  %t0 = call ptr @tunesmith.tensor(ptr %args)
  %type.p = getelementptr i8, ptr %t0, i64 8
  %type = load i32, ptr %type.p
  %index.p = getelementptr i8, ptr %t0, i64 12
  %index = load i32, ptr %index.p
  br label %head
head:
  %i = phi i32 [ 1, %first ], [ %i.next, %next ]
  %more = icmp slt i32 %i, %count
  br i1 %more, label %one, label %done
one:
  %i64 = zext i32 %i to i64
  %arg = getelementptr [16 x i8], ptr %args, i64 %i64
  %t = call ptr @tunesmith.tensor(ptr %arg)
  %other.p = getelementptr i8, ptr %t, i64 12
  %other = load i32, ptr %other.p
  %same = icmp eq i32 %other, %index
  br i1 %same, label %next, label %apart
next:
  %i.next = add i32 %i, 1
  br label %head
done:
  %low = zext i32 %index to i64
  %wide = zext i32 %type to i64
  %high = shl i64 %wide, 32
  %both = or i64 %high, %low
  ret i64 %both
apart:
  call void @tunesmith.fail(ptr %signature, ptr %params, ptr null, i32 %i, ptr %arg, i32 5, i32 0)
  ret i64 -1
}}

define internal i32 @tunesmith.begin(ptr %signature, ptr %args, i32 %num, ptr %addresses, i64 %workspace, ptr %call) nounwind {{
entry:
  %old = alloca ptr, align 8
  %function = load ptr, ptr %signature
  %checked = call i32 @tunesmith_check_v1(ptr %signature, ptr %args, i32 %num, ptr %addresses)
  %fit = icmp eq i32 %checked, 0
  br i1 %fit, label %place, label %refused
place:
  %where = call i64 @tunesmith.device_of(ptr %signature, ptr %args)
  %together = icmp sge i64 %where, 0
  br i1 %together, label %range, label %refused
range:
  %index = trunc i64 %where to i32
  %high = lshr i64 %where, 32
  %type = trunc i64 %high to i32
  %within = icmp ult i32 %index, {MAX_DEVICES}
  br i1 %within, label %driver, label %many
driver:
  %ready = load atomic i32, ptr @tunesmith.driver.ready acquire, align 4
  %open = icmp ne i32 %ready, 0
  br i1 %open, label %lookup, label %find
find:
  %opened = call i32 @tunesmith.open_driver(ptr %function)
  %there = icmp eq i32 %opened, 0
  br i1 %there, label %lookup, label %refused
lookup:
  %index64 = zext i32 %index to i64
  %slot = getelementptr ptr, ptr @tunesmith.devices, i64 %index64
  %known = load atomic ptr, ptr %slot acquire, align 8
  %met = icmp ne ptr %known, null
  br i1 %met, label %enter, label %load
load:
  %loaded = call ptr @tunesmith.load(ptr %function, i32 %index)
  %done = icmp ne ptr %loaded, null
  br i1 %done, label %enter, label %refused
enter:
  %state = phi ptr [ %known, %lookup ], [ %loaded, %load ]
  %context = load ptr, ptr %state
  cuda %entered = cuCtxPushCurrent_v2(ptr %context) ? queue : unfit
queue:
  %stream = call ptr @TVMFFIEnvGetStream(i32 %type, i32 %index)
  store ptr %state, ptr %call
  %stream.p = getelementptr {CALL}, ptr %call, i64 0, i32 1
  store ptr %stream, ptr %stream.p
  %workspace.p = getelementptr {CALL}, ptr %call, i64 0, i32 2
  store i64 0, ptr %workspace.p
  %function.p = getelementptr {CALL}, ptr %call, i64 0, i32 3
  store ptr %function, ptr %function.p
  %device.p = getelementptr {CALL}, ptr %call, i64 0, i32 4
  store i32 %index, ptr %device.p
  %wanted = icmp ne i64 %workspace, 0
  br i1 %wanted, label %allocate, label %begun
allocate:
  %pool.p = getelementptr ptr, ptr %state, i64 2
  %pool = load ptr, ptr %pool.p
  cuda %allocated = cuMemAllocFromPoolAsync(ptr %workspace.p, i64 %workspace, ptr %pool, ptr %stream) ? begun : leave
begun:
  ret i32 0
leave:
  cuda %popped = cuCtxPopCurrent_v2(ptr %old)
  br label %unfit
unfit:
  %what = phi ptr [ @tunesmith.text.context, %enter ], [ @tunesmith.text.workspace, %leave ]
  %code = phi i32 [ %entered, %enter ], [ %allocated, %leave ]
  call void @tunesmith.fail_cuda(ptr %function, i32 %index, ptr %what, ptr @tunesmith.text.none, i32 %code)
  ret i32 -1
many:
  call void @tunesmith.fail_device(ptr %function, i32 %index, ptr @tunesmith.text.many_devices)
  ret i32 -1
refused:
  ret i32 -1
}}

define internal i32 @tunesmith.launch(ptr %call, i64 %kernel, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared, \
ptr %pointers) nounwind {{
entry:
  %state = load ptr, ptr %call
  %functions = getelementptr ptr, ptr %state, i64 3
  %f.p = getelementptr ptr, ptr %functions, i64 %kernel
  %f = load ptr, ptr %f.p
  %stream.p = getelementptr {CALL}, ptr %call, i64 0, i32 1
  %stream = load ptr, ptr %stream.p
  cuda %code = cuLaunchKernel(ptr %f, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared, ptr %stream, ptr %pointers, \
ptr null) ? good : failed
good:
  ret i32 0
failed:
  %function.p = getelementptr {CALL}, ptr %call, i64 0, i32 3
  %function = load ptr, ptr %function.p
  %device.p = getelementptr {CALL}, ptr %call, i64 0, i32 4
  %device = load i32, ptr %device.p
  %kernel.p = getelementptr {{ ptr, i32 }}, ptr @tunesmith.kernels, i64 %kernel
  %name = load ptr, ptr %kernel.p
  call void @tunesmith.fail_cuda(ptr %function, i32 %device, ptr @tunesmith.text.launch, ptr %name, i32 %code)
  ret i32 -1
}}

define internal i32 @tunesmith.end(ptr %call, i32 %status) nounwind {{
entry:
  %old = alloca ptr, align 8
  %workspace.p = getelementptr {CALL}, ptr %call, i64 0, i32 2
  %workspace = load i64, ptr %workspace.p
  %stream.p = getelementptr {CALL}, ptr %call, i64 0, i32 1
  %stream = load ptr, ptr %stream.p
  %some = icmp ne i64 %workspace, 0
  br i1 %some, label %give, label %leave
give:
  cuda %freed = cuMemFreeAsync(i64 %workspace, ptr %stream)
  br label %leave
leave:
  %code = phi i32 [ 0, %entry ], [ %freed, %give ]
  cuda %popped = cuCtxPopCurrent_v2(ptr %old)
  %failed = icmp ne i32 %code, 0
  %first = icmp eq i32 %status, 0
  %tell = and i1 %failed, %first
  br i1 %tell, label %raise, label %done
raise:
  %function.p = getelementptr {CALL}, ptr %call, i64 0, i32 3
  %function = load ptr, ptr %function.p
  %device.p = getelementptr {CALL}, ptr %call, i64 0, i32 4
  %device = load i32, ptr %device.p
  call void @tunesmith.fail_cuda(ptr %function, i32 %device, ptr @tunesmith.text.workspace_back, ptr @tunesmith.text.none, i32 %code)
  ret i32 -1
done:
  ret i32 %status
}}
"""


def launcher_text(arch: str, cubin: bytes, kernels: Mapping[str, int], pooled: bool) -> str:
    """The module without its entry points.

    Args:
        arch: architecture of the code, for error messages.
        cubin: the code.
        kernels: shared memory in bytes to enable for each kernel, 0 for none, by kernel name; entry points number the kernels in this
            order.
        pooled: whether any function has workspaces.
    """
    loading, names = _LOADING, list(kernels)
    texts = [c_string(f"@tunesmith.text.{key}", text) for key, text in _TEXTS.items()]
    texts += [c_string(f"@tunesmith.kernel{i}", name) for i, name in enumerate(names)]
    rows = ", ".join(f"{{ ptr, i32 }} {{ ptr @tunesmith.kernel{i}, i32 {kernels[name]} }}" for i, name in enumerate(names))
    code = cubin + b"\0"  # PTX must end with a null byte
    escaped = "\\" + code.hex("\\")
    data = [
        f"@tunesmith.kernels = private constant [{len(names)} x {{ ptr, i32 }}] {f'[{rows}]' if rows else 'zeroinitializer'}",
        c_string("@tunesmith.loading", f"loading of code for {arch}"),
        f'@tunesmith.cubin = private constant [{len(code)} x i8] c"{escaped}", align 64',
    ]
    for word, value in (("KERNELS", str(len(names))), ("STATE", str(3 + len(names))), ("POOLED", "true" if pooled else "false")):
        loading = loading.replace(word, value)
    return "\n".join([checker_text(CUDA_MEMORY), driver_text(), *texts, *data, expand(loading), expand(_CALLING)])
