"""Expand macros of hand-written LLVM IR: string constants, and lines that raise an error through TVM-FFI."""

from __future__ import annotations

import re

_RAISE = re.compile(r"^  raise (\S+): (.*)$", re.MULTILINE)


def c_string(symbol: str, text: str) -> str:
    """Define a private constant with the text as a C string."""
    data = text.encode()
    body = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02x}" for b in data)
    return f'{symbol} = private unnamed_addr constant [{len(data) + 1} x i8] c"{body}\\00"'


def expand_raises(text: str) -> str:
    """Expand the lines `raise CLASS: PARTS` to LLVM IR that raises an error with the concatenated parts; `.x` is a string constant.

    A function may have one such line, and allocates `%parts`.  The module must contain `RAISE`.
    """
    return _RAISE.sub(_raised, text)


def _raised(found: re.Match[str]) -> str:
    kind, *parts = [re.sub(r"^\.", "@tunesmith.text.", word) for word in (found[1], *found[2].split())]
    places = [f"  %p{i} = getelementptr ptr, ptr %parts, i64 {i}" for i in range(1, len(parts))]
    stores = [f"  store ptr {part}, ptr {f'%p{i}' if i else '%parts'}" for i, part in enumerate(parts)]
    call = f"  call void @tunesmith.raise(ptr {kind}, ptr %parts, i64 {len(parts)})"
    return "\n".join([*places, *stores, call])


RAISE = """
declare i64 @strlen(ptr)
declare ptr @malloc(i64)
declare void @free(ptr)
declare ptr @memcpy(ptr, ptr, i64)
declare i32 @TVMFFIErrorCreate(ptr, ptr, ptr, ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare i32 @TVMFFIObjectDecRef(ptr)

@tunesmith.no.trace = private unnamed_addr constant { ptr, i64 } { ptr @tunesmith.no.text, i64 0 }
@tunesmith.no.text = private unnamed_addr constant [1 x i8] zeroinitializer

; Raises an error of the class %kind whose message is the %count texts in %parts.  It has no trace of native frames, which
; `TVMFFIErrorSetRaisedFromCStrParts` collects: the first one reads the symbols of all loaded libraries, for half a second.
define internal void @tunesmith.raise(ptr %kind, ptr %parts, i64 %count) cold noinline nounwind {
entry:
  %name = alloca { ptr, i64 }, align 8
  %message = alloca { ptr, i64 }, align 8
  %error = alloca ptr, align 8
  br label %measure
measure:
  %i = phi i64 [ 0, %entry ], [ %i.next, %measure.one ]
  %total = phi i64 [ 0, %entry ], [ %total.next, %measure.one ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %measure.one, label %take
measure.one:
  %part.p = getelementptr ptr, ptr %parts, i64 %i
  %part = load ptr, ptr %part.p
  %length = call i64 @strlen(ptr %part)
  %total.next = add i64 %total, %length
  %i.next = add i64 %i, 1
  br label %measure
take:
  %room = add i64 %total, 1
  %text = call ptr @malloc(i64 %room)
  %none = icmp eq ptr %text, null
  br i1 %none, label %done, label %join
join:
  %j = phi i64 [ 0, %take ], [ %j.next, %join.one ]
  %at = phi i64 [ 0, %take ], [ %at.next, %join.one ]
  %left = icmp ult i64 %j, %count
  br i1 %left, label %join.one, label %create
join.one:
  %from.p = getelementptr ptr, ptr %parts, i64 %j
  %from = load ptr, ptr %from.p
  %size = call i64 @strlen(ptr %from)
  %to = getelementptr i8, ptr %text, i64 %at
  %copied = call ptr @memcpy(ptr %to, ptr %from, i64 %size)
  %at.next = add i64 %at, %size
  %j.next = add i64 %j, 1
  br label %join
create:
  %kind.size = call i64 @strlen(ptr %kind)
  store ptr %kind, ptr %name
  %name.size = getelementptr i8, ptr %name, i64 8
  store i64 %kind.size, ptr %name.size
  store ptr %text, ptr %message
  %message.size = getelementptr i8, ptr %message, i64 8
  store i64 %total, ptr %message.size
  %failed = call i32 @TVMFFIErrorCreate(ptr %name, ptr %message, ptr @tunesmith.no.trace, ptr %error)
  call void @free(ptr %text)
  %made = icmp eq i32 %failed, 0
  br i1 %made, label %set, label %done
set:
  %object = load ptr, ptr %error
  call void @TVMFFIErrorSetRaised(ptr %object)
  %count.left = call i32 @TVMFFIObjectDecRef(ptr %object)
  br label %done
done:
  ret void
}
"""
"""Definition of the raising function, for modules with `raise` lines."""
