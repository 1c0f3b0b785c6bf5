"""Generate the argument checker: an LLVM IR function that compares the arguments of a call with a signature.

`i32 tunesmith_check_v1(signature, args, num_args, addresses)` returns 0 and the data address of each argument, or -1 with
an error raised through TVM-FFI.  It refuses arguments that a kernel would misread: wrong kind of value, dtype, shape or
device, strides that are not compact (strides of extents 1 are ignored), null or misaligned addresses, and memory shared
by a written argument and another one.

Functions with dynamic shapes have two further checks, in `runtime.checker.size_checker`; the parameter tables that they build at run time
are read by the same code.

The entry points of all kernels call the checker.  It is compiled once per process, because a copy in each kernel's object would double
the build time (14 ms).  The object loader binds it, and an exported library contains a copy.  Libraries with GPU functions contain a
second copy that expects device memory.

Signature `{ptr function, i32 count, ptr params, ptr usage}`, 32 bytes; a parameter `{ptr name, ptr expected, ptr shape,
i32 ndim, i32 dtype, i64 nbytes, i64 align, i64 written}`, 56 bytes: a change of these layouts needs a new version in the symbol name.
Other offsets are those of TVM-FFI's stable C ABI: `TVMFFIAny {i32 type, i32 pad, 8 bytes value}`; an object header of 24
bytes before the `DLTensor {data 0, device type 8, id 12, ndim 16, dtype 20, shape 24, strides 32, byte_offset 40}` of a
tensor object (type 70; type 7 is a bare `DLTensor*`); `type_key` at 8 of `TVMFFITypeInfo`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunesmith.runtime.checker.ir_text import RAISE, c_string, expand_raises
from tunesmith.runtime.checker.size_checker import SIZE_CHECKERS, SIZE_FUNCTIONS, SIZE_TEXTS

CHECKER = "tunesmith_check_v1"
"""Symbol of the checker."""

CHECKERS = (CHECKER, *SIZE_CHECKERS)
"""All symbols defined by the text."""

SIGNATURE = "{ ptr, i32, ptr, ptr }"
PARAM = "{ ptr, ptr, ptr, i32, i32, i64, i64, i64 }"
"""Layouts read by the checker, as LLVM types."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory in which arguments must be.

    Attributes:
        device_types: accepted DLPack device types.
        texts: error texts that differ from those for host memory.
    """

    device_types: tuple[int, ...]
    texts: Mapping[str, str] = field(default_factory=dict)


HOST = Memory((1,))
"""Host memory."""

_TEXTS = {
    "type_error": "TypeError",
    "value_error": "ValueError",
    "none": "",
    "comma": ", ",
    "dots": ", ...",
    "open": "%s[",
    "item": "%s%lld",
    "close": "%s]",
    "decimal": "%d",
    "of_argument": ": argument ",
    "of_name": " (",
    "expected": "): expected ",
    "count": "%d argument(s), got %d; signature: ",
    "count_prefix": ": expected ",
    "got_kind": ", got a value of type %.*s: pass a tensor (numpy, torch or any other DLPack array)",
    "got_dtype": ", got dtype %s%d",
    "got_lanes": ", got dtype %s%dx%d",
    "got_code": ", got DLPack dtype code %d with %d bits",
    "got_shape": ", got shape ",
    "got_strides": ", got strides ",
    "got_device": ", got memory of DLPack device type %d, index %d: pass a tensor in CPU memory (device type 1)",
    "got_null": ", got a null pointer",
    "got_address": ", got the address %p, which is not a multiple of the element size %lld: pass a copy",
    "got_overlap": ", got memory that it shares with argument %d (%s), and one of the two is written: pass separate arrays",
    "contiguous": " (in elements): it must be contiguous and row-major, pass a copy (numpy.ascontiguousarray)",
    "int": "int",
    "uint": "uint",
    "float": "float",
    "handle": "handle",
    "bfloat": "bfloat",
    "complex": "complex",
    "bool": "bool",
}

_ACCEPT = re.compile(r"^  accept (\S+): (\S+)$", re.MULTILINE)
_DEFINE = re.compile(r"^define i32 @", re.MULTILINE)

_FUNCTIONS = """
declare i32 @snprintf(ptr, i64, ptr, ...)
declare ptr @TVMFFIGetTypeInfo(i32)

@tunesmith.codes = private unnamed_addr constant [7 x ptr] [ptr @tunesmith.text.int, ptr @tunesmith.text.uint, ptr @tunesmith.text.float, \
ptr @tunesmith.text.handle, ptr @tunesmith.text.bfloat, ptr @tunesmith.text.complex, ptr @tunesmith.text.bool]

define internal ptr @tunesmith.tensor(ptr %arg) nounwind {
  %type = load i32, ptr %arg
  %value.p = getelementptr i8, ptr %arg, i64 8
  %value = load ptr, ptr %value.p
  %object = icmp eq i32 %type, 70
  %inner = getelementptr i8, ptr %value, i64 24
  %none = icmp eq ptr %value, null
  %some = select i1 %object, ptr %inner, ptr %value
  %tensor = select i1 %none, ptr null, ptr %some
  ret ptr %tensor
}

; 0 and the address of the first element in %slot, or the number of what is wrong (see tunesmith.fail).
define internal i32 @tunesmith.check_tensor(ptr %param, ptr %arg, ptr %slot) nounwind {
entry:
  %type = load i32, ptr %arg
  %object = icmp eq i32 %type, 70
  %view = icmp eq i32 %type, 7
  %tensor = or i1 %object, %view
  br i1 %tensor, label %present, label %bad.kind
present:
  %t = call ptr @tunesmith.tensor(ptr %arg)
  %missing = icmp eq ptr %t, null
  br i1 %missing, label %bad.null, label %dtype
dtype:
  %dtype.p = getelementptr i8, ptr %t, i64 20
  %dtype.got = load i32, ptr %dtype.p
  %dtype.q = getelementptr i8, ptr %param, i64 28
  %dtype.want = load i32, ptr %dtype.q
  %dtype.same = icmp eq i32 %dtype.got, %dtype.want
  br i1 %dtype.same, label %rank, label %bad.dtype
rank:
  %ndim.p = getelementptr i8, ptr %t, i64 16
  %ndim.got = load i32, ptr %ndim.p
  %ndim.q = getelementptr i8, ptr %param, i64 24
  %ndim = load i32, ptr %ndim.q
  %nbytes.p = getelementptr i8, ptr %param, i64 32
  %nbytes = load i64, ptr %nbytes.p
  %empty = icmp eq i64 %nbytes, 0
  %shape.p = getelementptr i8, ptr %t, i64 24
  %shape = load ptr, ptr %shape.p
  %want.p = getelementptr i8, ptr %param, i64 16
  %want = load ptr, ptr %want.p
  %axes = icmp sgt i32 %ndim.got, 0
  %no.extents = icmp eq ptr %shape, null
  %shapeless = and i1 %axes, %no.extents
  br i1 %shapeless, label %bad.null, label %compare
compare:
  %ndim.same = icmp eq i32 %ndim.got, %ndim
  br i1 %ndim.same, label %scalar, label %bad.shape
scalar:
  br i1 %axes, label %shape.loop, label %device
shape.loop:
  %s = phi i32 [ 0, %scalar ], [ %s.next, %shape.next ]
  %s64 = zext i32 %s to i64
  %got.p = getelementptr i64, ptr %shape, i64 %s64
  %got = load i64, ptr %got.p
  %exp.p = getelementptr i64, ptr %want, i64 %s64
  %exp = load i64, ptr %exp.p
  %extent.same = icmp eq i64 %got, %exp
  br i1 %extent.same, label %shape.next, label %bad.shape
shape.next:
  %s.next = add i32 %s, 1
  %s.more = icmp slt i32 %s.next, %ndim
  br i1 %s.more, label %shape.loop, label %strides
strides:
  %strides.p = getelementptr i8, ptr %t, i64 32
  %strides.a = load ptr, ptr %strides.p
  %compact = icmp eq ptr %strides.a, null
  %free = or i1 %compact, %empty
  br i1 %free, label %device, label %stride.loop
stride.loop:
  %left = phi i32 [ %ndim, %strides ], [ %k, %stride.next ]
  %want.stride = phi i64 [ 1, %strides ], [ %want.next, %stride.next ]
  %k = sub i32 %left, 1
  %k64 = zext i32 %k to i64
  %extent.p = getelementptr i64, ptr %shape, i64 %k64
  %extent = load i64, ptr %extent.p
  %stride.p = getelementptr i64, ptr %strides.a, i64 %k64
  %stride = load i64, ptr %stride.p
  %stride.same = icmp eq i64 %stride, %want.stride
  %unit = icmp eq i64 %extent, 1
  %stride.ok = or i1 %stride.same, %unit
  br i1 %stride.ok, label %stride.next, label %bad.strides
stride.next:
  %want.next = mul i64 %want.stride, %extent
  %stride.more = icmp sgt i32 %k, 0
  br i1 %stride.more, label %stride.loop, label %device
device:
  %device.p = getelementptr i8, ptr %t, i64 8
  %device.got = load i32, ptr %device.p
  accept %device.good: %device.got
  br i1 %device.good, label %data, label %bad.device
data:
  %data.a = load ptr, ptr %t
  %offset.p = getelementptr i8, ptr %t, i64 40
  %offset = load i64, ptr %offset.p
  %first = getelementptr i8, ptr %data.a, i64 %offset
  store ptr %first, ptr %slot
  br i1 %empty, label %good, label %address
address:
  %null = icmp eq ptr %data.a, null
  br i1 %null, label %bad.null, label %aligned
aligned:
  %align.p = getelementptr i8, ptr %param, i64 40
  %align = load i64, ptr %align.p
  %mask = sub i64 %align, 1
  %bits = ptrtoint ptr %first to i64
  %low = and i64 %bits, %mask
  %even = icmp eq i64 %low, 0
  br i1 %even, label %good, label %bad.address
good:
  ret i32 0
bad.kind:
  ret i32 1
bad.dtype:
  ret i32 2
bad.shape:
  ret i32 3
bad.strides:
  ret i32 4
bad.device:
  ret i32 5
bad.null:
  ret i32 6
bad.address:
  ret i32 7
}

; The first argument before %i that shares memory with it while one of the two is written, or -1.
define internal i32 @tunesmith.overlap(ptr %params, ptr %first, i32 %i) nounwind {
entry:
  %i64 = zext i32 %i to i64
  %a = getelementptr [56 x i8], ptr %params, i64 %i64
  %a.written.p = getelementptr i8, ptr %a, i64 48
  %a.written = load i64, ptr %a.written.p
  %a.size.p = getelementptr i8, ptr %a, i64 32
  %a.size = load i64, ptr %a.size.p
  %a.p = getelementptr i64, ptr %first, i64 %i64
  %a.begin = load i64, ptr %a.p
  %a.end = add i64 %a.begin, %a.size
  br label %head
head:
  %j = phi i32 [ 0, %entry ], [ %j.next, %next ]
  %more = icmp slt i32 %j, %i
  br i1 %more, label %pair, label %none
pair:
  %j64 = zext i32 %j to i64
  %b = getelementptr [56 x i8], ptr %params, i64 %j64
  %b.written.p = getelementptr i8, ptr %b, i64 48
  %b.written = load i64, ptr %b.written.p
  %b.size.p = getelementptr i8, ptr %b, i64 32
  %b.size = load i64, ptr %b.size.p
  %b.p = getelementptr i64, ptr %first, i64 %j64
  %b.begin = load i64, ptr %b.p
  %b.end = add i64 %b.begin, %b.size
  %either = or i64 %a.written, %b.written
  %written = icmp ne i64 %either, 0
  %a.full = icmp ne i64 %a.size, 0
  %b.full = icmp ne i64 %b.size, 0
  %left = icmp ult i64 %a.begin, %b.end
  %right = icmp ult i64 %b.begin, %a.end
  %full = and i1 %a.full, %b.full
  %meet = and i1 %left, %right
  %shared = and i1 %full, %meet
  %clash = and i1 %shared, %written
  br i1 %clash, label %found, label %next
next:
  %j.next = add i32 %j, 1
  br label %head
found:
  ret i32 %j
none:
  ret i32 -1
}

; 0 and the addresses of all arguments in %first, or -1 with the error raised.
define i32 @tunesmith_check_v1(ptr %signature, ptr %args, i32 %num, ptr %first) nounwind {
entry:
  %count.p = getelementptr i8, ptr %signature, i64 8
  %count = load i32, ptr %count.p
  %params.p = getelementptr i8, ptr %signature, i64 16
  %params = load ptr, ptr %params.p
  %same = icmp eq i32 %num, %count
  br i1 %same, label %tensors, label %bad.count
tensors:
  %status = call i32 @tunesmith.check_tensors(ptr %signature, ptr %params, ptr %args, ptr null, ptr %first)
  ret i32 %status
bad.count:
  call void @tunesmith.fail_count(ptr %signature, i32 %count, i32 %num)
  ret i32 -1
}

; The same for tensors that %params describes; %sizes, or null, are the sizes in what it says.
define internal i32 @tunesmith.check_tensors(ptr %signature, ptr %params, ptr %args, ptr %sizes, ptr %first) nounwind {
entry:
  %count.p = getelementptr i8, ptr %signature, i64 8
  %count = load i32, ptr %count.p
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp slt i32 %i, %count
  br i1 %more, label %one, label %good
one:
  %i64 = zext i32 %i to i64
  %param = getelementptr [56 x i8], ptr %params, i64 %i64
  %arg = getelementptr [16 x i8], ptr %args, i64 %i64
  %slot = getelementptr ptr, ptr %first, i64 %i64
  %wrong = call i32 @tunesmith.check_tensor(ptr %param, ptr %arg, ptr %slot)
  %right = icmp eq i32 %wrong, 0
  br i1 %right, label %pairs, label %bad
pairs:
  %other = call i32 @tunesmith.overlap(ptr %params, ptr %first, i32 %i)
  %apart = icmp slt i32 %other, 0
  br i1 %apart, label %next, label %bad
next:
  %i.next = add i32 %i, 1
  br label %head
good:
  ret i32 0
bad:
  %why = phi i32 [ %wrong, %one ], [ 8, %pairs ]
  %with = phi i32 [ 0, %one ], [ %other, %pairs ]
  call void @tunesmith.fail(ptr %signature, ptr %params, ptr %sizes, i32 %i, ptr %arg, i32 %why, i32 %with)
  ret i32 -1
}

; "<text>[a, b, c]" into a buffer of 1024 bytes; at most 32 numbers, so that it always fits.
define internal void @tunesmith.list(ptr %buffer, ptr %text, ptr %values, i32 %n) cold noinline nounwind {
entry:
  %long = icmp sgt i32 %n, 32
  %shown = select i1 %long, i32 32, i32 %n
  %tail = select i1 %long, ptr @tunesmith.text.dots, ptr @tunesmith.text.none
  %opened = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %buffer, i64 1024, ptr @tunesmith.text.open, ptr %text)
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %i.next, %item ]
  %used = phi i32 [ %opened, %entry ], [ %used.next, %item ]
  %used64 = sext i32 %used to i64
  %at = getelementptr i8, ptr %buffer, i64 %used64
  %room = sub i64 1024, %used64
  %more = icmp slt i32 %i, %shown
  br i1 %more, label %item, label %close
item:
  %i64 = zext i32 %i to i64
  %value.p = getelementptr i64, ptr %values, i64 %i64
  %value = load i64, ptr %value.p
  %first = icmp eq i32 %i, 0
  %comma = select i1 %first, ptr @tunesmith.text.none, ptr @tunesmith.text.comma
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %at, i64 %room, ptr @tunesmith.text.item, ptr %comma, i64 %value)
  %used.next = add i32 %used, %wrote
  %i.next = add i32 %i, 1
  br label %head
close:
  %closed = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %at, i64 %room, ptr @tunesmith.text.close, ptr %tail)
  ret void
}

define internal void @tunesmith.fail_count(ptr %signature, i32 %count, i32 %got) cold noinline nounwind {
  %text = alloca [128 x i8], align 16
  %parts = alloca [4 x ptr], align 16
  %function = load ptr, ptr %signature
  %usage.p = getelementptr i8, ptr %signature, i64 24
  %usage = load ptr, ptr %usage.p
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 128, ptr @tunesmith.text.count, i32 %count, i32 %got)
  raise .type_error: %function .count_prefix %text %usage
  ret void
}

; Raises "<function>: argument <i> (<name>): expected <dtype[shape]> with <sizes>, got ...".  %why: 1 kind, 2 dtype, 3 shape,
; 4 strides, 5 device, 6 null, 7 address, 8 memory shared with argument %other.
define internal void @tunesmith.fail(ptr %signature, ptr %params, ptr %sizes, i32 %i, ptr %arg, i32 %why, i32 %other) \
cold noinline nounwind {
entry:
  %index = alloca [16 x i8], align 16
  %detail = alloca [1024 x i8], align 16
  %given = alloca [1024 x i8], align 16
  %parts = alloca [10 x ptr], align 16
  %function = load ptr, ptr %signature
  %i64 = zext i32 %i to i64
  %param = getelementptr [56 x i8], ptr %params, i64 %i64
  %name = load ptr, ptr %param
  %expected.p = getelementptr i8, ptr %param, i64 8
  %expected = load ptr, ptr %expected.p
  %with.sizes = call ptr @tunesmith.sizes_of(ptr %signature, i32 %i, ptr %sizes, ptr %given)
  %t = call ptr @tunesmith.tensor(ptr %arg)
  %ndim.p = getelementptr i8, ptr %t, i64 16
  %wrote.i = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %index, i64 16, ptr @tunesmith.text.decimal, i32 %i)
  switch i32 %why, label %null [
    i32 1, label %kind
    i32 2, label %dtype
    i32 3, label %shape
    i32 4, label %strides
    i32 5, label %device
    i32 7, label %address
    i32 8, label %overlap
  ]
kind:
  %type = load i32, ptr %arg
  %info = call ptr @TVMFFIGetTypeInfo(i32 %type)
  %key.p = getelementptr i8, ptr %info, i64 8
  %key = load ptr, ptr %key.p
  %length.p = getelementptr i8, ptr %info, i64 16
  %length = load i32, ptr %length.p
  %wrote.kind = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_kind, i32 %length, ptr %key)
  br label %raise
dtype:
  %code.p = getelementptr i8, ptr %t, i64 20
  %code8 = load i8, ptr %code.p
  %code = zext i8 %code8 to i32
  %bits.p = getelementptr i8, ptr %t, i64 21
  %bits8 = load i8, ptr %bits.p
  %bits = zext i8 %bits8 to i32
  %lanes.p = getelementptr i8, ptr %t, i64 22
  %lanes16 = load i16, ptr %lanes.p
  %lanes = zext i16 %lanes16 to i32
  %named = icmp ult i32 %code, 7
  br i1 %named, label %dtype.named, label %dtype.code
dtype.named:
  %code64 = zext i32 %code to i64
  %word.p = getelementptr ptr, ptr @tunesmith.codes, i64 %code64
  %word = load ptr, ptr %word.p
  %scalar = icmp eq i32 %lanes, 1
  %format = select i1 %scalar, ptr @tunesmith.text.got_dtype, ptr @tunesmith.text.got_lanes
  %wrote.dtype = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr %format, ptr %word, i32 %bits, i32 %lanes)
  br label %raise
dtype.code:
  %wrote.code = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_code, i32 %code, i32 %bits)
  br label %raise
shape:
  %ndim = load i32, ptr %ndim.p
  %shape.p = getelementptr i8, ptr %t, i64 24
  %shape.a = load ptr, ptr %shape.p
  call void @tunesmith.list(ptr %detail, ptr @tunesmith.text.got_shape, ptr %shape.a, i32 %ndim)
  br label %raise
strides:
  %ndim.s = load i32, ptr %ndim.p
  %strides.p = getelementptr i8, ptr %t, i64 32
  %strides.a = load ptr, ptr %strides.p
  call void @tunesmith.list(ptr %detail, ptr @tunesmith.text.got_strides, ptr %strides.a, i32 %ndim.s)
  br label %raise
device:
  %device.p = getelementptr i8, ptr %t, i64 8
  %device.t = load i32, ptr %device.p
  %id.p = getelementptr i8, ptr %t, i64 12
  %id = load i32, ptr %id.p
  %wrote.device = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_device, i32 %device.t, i32 %id)
  br label %raise
null:
  %wrote.null = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_null)
  br label %raise
address:
  %data = load ptr, ptr %t
  %offset.p = getelementptr i8, ptr %t, i64 40
  %offset = load i64, ptr %offset.p
  %first = getelementptr i8, ptr %data, i64 %offset
  %align.p = getelementptr i8, ptr %param, i64 40
  %align = load i64, ptr %align.p
  %wrote.address = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_address, ptr %first, i64 %align)
  br label %raise
overlap:
  %other64 = zext i32 %other to i64
  %with = getelementptr [56 x i8], ptr %params, i64 %other64
  %peer = load ptr, ptr %with
  %wrote.overlap = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_overlap, i32 %other, ptr %peer)
  br label %raise
raise:
  %strided = icmp eq i32 %why, 4
  %hint = select i1 %strided, ptr @tunesmith.text.contiguous, ptr @tunesmith.text.none
  %typed = icmp ule i32 %why, 2
  %class = select i1 %typed, ptr @tunesmith.text.type_error, ptr @tunesmith.text.value_error
  raise %class: %function .of_argument %index .of_name %name .expected %expected %with.sizes %detail %hint
  ret void
}
"""


def checker_text(memory: Memory = HOST) -> str:
    """An LLVM module that defines the checker; it needs libtvm_ffi and libc.

    Args:
        memory: the memory in which arguments must be.  A checker of other memory than the host's is internal to its LLVM module, so
            that one library can contain both.
    """
    texts = [c_string(f"@tunesmith.text.{key}", text) for key, text in (_TEXTS | SIZE_TEXTS | dict(memory.texts)).items()]
    checks = _ACCEPT.sub(lambda found: _accepted(found[1], found[2], memory.device_types), _FUNCTIONS)
    text = "\n".join([*texts, RAISE, expand_raises(checks), expand_raises(SIZE_FUNCTIONS)])
    return text if memory == HOST else _DEFINE.sub("define internal i32 @", text)


def _accepted(result: str, number: str, accepted: tuple[int, ...]) -> str:
    """`accept RESULT: NUMBER` in LLVM IR: whether a device type is one of the accepted ones."""
    first, *others = accepted
    lines = [f"  {result}{'.0' if others else ''} = icmp eq i32 {number}, {first}"]
    for i, other in enumerate(others, 1):
        lines.append(f"  {result}.is.{i} = icmp eq i32 {number}, {other}")
        lines.append(f"  {result}{f'.{i}' if i < len(others) else ''} = or i1 {result}.{i - 1}, {result}.is.{i}")
    return "\n".join(lines)
