"""Generate the LLVM IR argument checks of functions with dynamic shapes, for the module of `argument_checker`.

Such a function takes its tensors followed by its sizes, ints.  Its entry point calls

1. `i32 tunesmith_check_sizes_v2(signature, args, num_args, sizes)`: checks the number of arguments and the sizes, and stores the sizes;
   `tunesmith_check_sizes_v1`, for code compiled by older versions, which was not correct for empty tensors, refuses the size 0;
2. `i32 tunesmith_check_tensors_v1(signature, params, args, sizes, addresses)`: checks the tensors against a parameter table that the
   entry point has computed from the sizes, and stores their addresses;
3. `i32 tunesmith_refuse_v1(signature, sizes, bytes, detail)` if the kernel failed to allocate that many bytes for intermediate results;
   with -1 if a tensor of these sizes would exceed 2**63 bytes, or with -2 (`thread_support.FORKED`) if it must not start threads.  It
   only raises the error.  `detail` is further text about the bytes.  Functions of constant shapes call it with `sizes` null;
   `tunesmith_refuse_sizes_v1(signature, sizes, bytes)` is the same without a detail, for code compiled by older versions.

Each returns 0, or -1 with an error raised through TVM-FFI.  Signature `{ptr function, i32 count of tensors, ptr unused, ptr usage,
i32 count of sizes, ptr names of sizes, ptr uses}`, 56 bytes, has the signature of constant shapes as its prefix; `uses` has one i64 per
tensor, with a bit for each size in its shape.  A change of this layout needs new versions in the symbol names.
"""

from __future__ import annotations

from tunesmith.runtime.thread_support import FORKED, FORKED_TEXT

CHECK_SIZES = "tunesmith_check_sizes_v2"
CHECK_POSITIVE_SIZES = "tunesmith_check_sizes_v1"
CHECK_TENSORS = "tunesmith_check_tensors_v1"
REFUSE = "tunesmith_refuse_v1"
REFUSE_SIZES = "tunesmith_refuse_sizes_v1"
SIZE_CHECKERS = (CHECK_SIZES, CHECK_POSITIVE_SIZES, CHECK_TENSORS, REFUSE, REFUSE_SIZES)
"""Symbols of the functions."""

SIZE_SIGNATURE = "{ ptr, i32, ptr, ptr, i32, ptr, ptr }"
"""Layout of the signature, as an LLVM type."""

MAX_SIZES = 64
"""Number of bits in a word of `uses`."""

LARGEST_SIZE = 2**31 - 1
"""Largest size; the smallest is 0."""

SIZE_TEXTS = {
    "memory_error": "MemoryError",
    "an_int": f"an int from 0 to {LARGEST_SIZE}",
    "a_positive_int": f"an int from 1 to {LARGEST_SIZE}",
    "got_no_int": ", got a value of type %.*s: pass the size as an int",
    "got_int": ", got %lld",
    "with_first": " with ",
    "size": "%s%s = %lld",
    "colon": ":",
    "no_memory": "out of memory, %lld bytes for intermediate results were refused",
    "too_large": "too large, a tensor of these sizes has more bytes than there are addresses",
    "of_sizes": ": ",
    "fork_error": "RuntimeError",
    "forked": FORKED_TEXT,
}

_CHECK = """
; 0 and the sizes in %sizes, or -1 with the error raised.
define i32 @$SYMBOL(ptr %signature, ptr %args, i32 %num, ptr %sizes) nounwind {
entry:
  %tensors.p = getelementptr i8, ptr %signature, i64 8
  %tensors = load i32, ptr %tensors.p
  %count.p = getelementptr i8, ptr %signature, i64 32
  %count = load i32, ptr %count.p
  %all = add i32 %tensors, %count
  %same = icmp eq i32 %num, %all
  br i1 %same, label %head, label %bad.count
head:
  %j = phi i32 [ 0, %entry ], [ %j.next, %good ]
  %more = icmp slt i32 %j, %count
  br i1 %more, label %one, label %done
one:
  %i = add i32 %tensors, %j
  %i64 = zext i32 %i to i64
  %arg = getelementptr [16 x i8], ptr %args, i64 %i64
  %type = load i32, ptr %arg
  %int = icmp eq i32 %type, 1
  br i1 %int, label %value, label %bad
value:
  %value.p = getelementptr i8, ptr %arg, i64 8
  %size = load i64, ptr %value.p
  %less = sub i64 %size, $LOWEST
  %in = icmp ule i64 %less, $SPAN
  br i1 %in, label %good, label %bad
good:
  %j64 = zext i32 %j to i64
  %slot = getelementptr i64, ptr %sizes, i64 %j64
  store i64 %size, ptr %slot
  %j.next = add i32 %j, 1
  br label %head
done:
  ret i32 0
bad:
  call void @tunesmith.fail_$EXPECTED(ptr %signature, i32 %j, i32 %i, ptr %arg)
  ret i32 -1
bad.count:
  call void @tunesmith.fail_count(ptr %signature, i32 %all, i32 %num)
  ret i32 -1
}

; Raises "<function>: argument <i> (<name>): expected an int ..., got ...".
define internal void @tunesmith.fail_$EXPECTED(ptr %signature, i32 %j, i32 %i, ptr %arg) cold noinline nounwind {
entry:
  %index = alloca [16 x i8], align 16
  %detail = alloca [1024 x i8], align 16
  %parts = alloca [8 x ptr], align 16
  %function = load ptr, ptr %signature
  %names.p = getelementptr i8, ptr %signature, i64 40
  %names = load ptr, ptr %names.p
  %j64 = zext i32 %j to i64
  %name.p = getelementptr ptr, ptr %names, i64 %j64
  %name = load ptr, ptr %name.p
  %wrote.i = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %index, i64 16, ptr @tunesmith.text.decimal, i32 %i)
  %type = load i32, ptr %arg
  %int = icmp eq i32 %type, 1
  br i1 %int, label %number, label %kind
number:
  %value.p = getelementptr i8, ptr %arg, i64 8
  %value = load i64, ptr %value.p
  %wrote.value = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_int, i64 %value)
  br label %raise
kind:
  %info = call ptr @TVMFFIGetTypeInfo(i32 %type)
  %key.p = getelementptr i8, ptr %info, i64 8
  %key = load ptr, ptr %key.p
  %length.p = getelementptr i8, ptr %info, i64 16
  %length = load i32, ptr %length.p
  %wrote.kind = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr @tunesmith.text.got_no_int, i32 %length, ptr %key)
  br label %raise
raise:
  %class = select i1 %int, ptr @tunesmith.text.value_error, ptr @tunesmith.text.type_error
  raise %class: %function .of_argument %index .of_name %name .expected .$EXPECTED %detail
  ret void
}
"""


def _check(symbol: str, lowest: int, expected: str) -> str:
    """The functions that check sizes from `lowest` on; `expected` names the text for the error."""
    texts = {"$SYMBOL": symbol, "$LOWEST": str(lowest), "$SPAN": str(LARGEST_SIZE - lowest), "$EXPECTED": expected}
    text = _CHECK
    for name, value in texts.items():
        text = text.replace(name, value)
    return text


SIZE_FUNCTIONS = f"""{_check(CHECK_SIZES, 0, "an_int")}{_check(CHECK_POSITIVE_SIZES, 1, "a_positive_int")}
define i32 @tunesmith_check_tensors_v1(ptr %signature, ptr %params, ptr %args, ptr %sizes, ptr %first) nounwind {{
  %status = call i32 @tunesmith.check_tensors(ptr %signature, ptr %params, ptr %args, ptr %sizes, ptr %first)
  ret i32 %status
}}

; " with n = 7, m = 3": the sizes in the shape of tensor %i, in a buffer of 1024 bytes; nothing without %sizes.
define internal ptr @tunesmith.sizes_of(ptr %signature, i32 %i, ptr %sizes, ptr %buffer) cold noinline nounwind {{
entry:
  %constant = icmp eq ptr %sizes, null
  br i1 %constant, label %none, label %some
none:
  ret ptr @tunesmith.text.none
some:
  %uses.p = getelementptr i8, ptr %signature, i64 48
  %uses = load ptr, ptr %uses.p
  %i64 = zext i32 %i to i64
  %use.p = getelementptr i64, ptr %uses, i64 %i64
  %use = load i64, ptr %use.p
  call void @tunesmith.list_sizes(ptr %signature, i64 %use, ptr %sizes, ptr %buffer)
  ret ptr %buffer
}}

; The sizes whose bits %use has; what does not fit into 1024 bytes is left out.
define internal void @tunesmith.list_sizes(ptr %signature, i64 %use, ptr %sizes, ptr %buffer) cold noinline nounwind {{
entry:
  %count.p = getelementptr i8, ptr %signature, i64 32
  %count = load i32, ptr %count.p
  %names.p = getelementptr i8, ptr %signature, i64 40
  %names = load ptr, ptr %names.p
  store i8 0, ptr %buffer
  br label %head
head:
  %j = phi i32 [ 0, %entry ], [ %j.next, %next ]
  %used = phi i64 [ 0, %entry ], [ %used.next, %next ]
  %more = icmp slt i32 %j, %count
  %room = sub i64 1024, %used
  %fits = icmp sgt i64 %room, 1
  %go = and i1 %more, %fits
  br i1 %go, label %one, label %done
one:
  %j64 = zext i32 %j to i64
  %shifted = lshr i64 %use, %j64
  %bit = trunc i64 %shifted to i1
  br i1 %bit, label %item, label %next
item:
  %name.p = getelementptr ptr, ptr %names, i64 %j64
  %name = load ptr, ptr %name.p
  %size.p = getelementptr i64, ptr %sizes, i64 %j64
  %size = load i64, ptr %size.p
  %begin = icmp eq i64 %used, 0
  %mark = select i1 %begin, ptr @tunesmith.text.with_first, ptr @tunesmith.text.comma
  %at = getelementptr i8, ptr %buffer, i64 %used
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %at, i64 %room, ptr @tunesmith.text.size, ptr %mark, ptr %name, i64 %size)
  %wrote64 = sext i32 %wrote to i64
  %end = add i64 %used, %wrote64
  br label %next
next:
  %used.next = phi i64 [ %used, %one ], [ %end, %item ]
  %j.next = add i32 %j, 1
  br label %head
done:
  ret void
}}

; Raises "<function>: with <sizes>: out of memory ..."; gives -1.
define i32 @tunesmith_refuse_sizes_v1(ptr %signature, ptr %sizes, i64 %bytes) cold noinline nounwind {{
  %status = call i32 @tunesmith_refuse_v1(ptr %signature, ptr %sizes, i64 %bytes, ptr @tunesmith.text.none)
  ret i32 %status
}}

define i32 @tunesmith_refuse_v1(ptr %signature, ptr %sizes, i64 %bytes, ptr %more) cold noinline nounwind {{
entry:
  %given = alloca [1024 x i8], align 16
  %detail = alloca [1024 x i8], align 16
  %parts = alloca [6 x ptr], align 16
  %function = load ptr, ptr %signature
  %constant = icmp eq ptr %sizes, null
  br i1 %constant, label %plain, label %sized
plain:
  store i8 0, ptr %given
  br label %known
sized:
  call void @tunesmith.list_sizes(ptr %signature, i64 -1, ptr %sizes, ptr %given)
  br label %known
known:
  %forked = icmp eq i64 %bytes, {FORKED}
  %large = icmp slt i64 %bytes, 0
  %size.format = select i1 %large, ptr @tunesmith.text.too_large, ptr @tunesmith.text.no_memory
  %format = select i1 %forked, ptr @tunesmith.text.forked, ptr %size.format
  %size.class = select i1 %large, ptr @tunesmith.text.value_error, ptr @tunesmith.text.memory_error
  %class = select i1 %forked, ptr @tunesmith.text.fork_error, ptr %size.class
  %rest = select i1 %forked, ptr @tunesmith.text.none, ptr %more
  %colon = select i1 %constant, ptr @tunesmith.text.none, ptr @tunesmith.text.colon
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %detail, i64 1024, ptr %format, i64 %bytes)
  raise %class: %function %colon %given .of_sizes %detail %rest
  ret i32 -1
}}
"""
