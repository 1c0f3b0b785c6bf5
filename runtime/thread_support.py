"""Generate LLVM IR functions with which compiled code queries the thread count of a parallel loop.

`i32 tunesmith_threads_v1(i32 most)` returns a number from 1 to `most`: the limit in the state if set, else the OpenMP default
(`omp_set_num_threads`, OMP_NUM_THREADS, or the processors of the process).  It returns 0 in a forked child whose parent may have started
threads: the OpenMP runtime would wait for threads that fork did not copy.  One thread is always allowed.

A forked child is detected by a page that the kernel zeroes on fork (MADV_WIPEONFORK, Linux 4.14), so that a call costs one load and no
system call.  `void tunesmith_threads_started_v1()` allocates the page; `tunesmith_threads_v1` calls it before it allows several threads.

The object loader keeps one copy per process; each exported library contains another copy.  All symbols are weak, so that objects with
a copy can be linked into one program and share the state.
"""

from __future__ import annotations

THREADS = "tunesmith_threads_v1"
STARTED = "tunesmith_threads_started_v1"
STATE = "tunesmith_threads_state_v1"
"""Symbols of the two functions, and of the state: `{i32 limit (0 for none), i32 unused, ptr page (null before threads were started)}`."""
SUPPORT = (THREADS, STARTED, STATE)
"""All symbols that the text defines."""

FORKED = -2
"""Return value of a kernel, in place of the number of bytes refused, if `tunesmith_threads_v1` returned 0."""

FORKED_TEXT = (
    "this process was forked from one that may have started OpenMP threads, which fork does not copy, so a parallel loop would wait for "
    "them for ever. Start processes with spawn (multiprocessing.set_start_method), or run on one thread here: tunesmith.set_num_threads(1)"
)
"""The error message."""


def support_text(linkage: str = "weak ") -> str:
    """An LLVM module that defines the functions and the state; it needs libgomp and libc.

    Args:
        linkage: "weak " for objects to be linked; "" for the copy of the object loader.
    """
    return f"""
@{STATE} = {linkage}global {{ i32, i32, ptr }} zeroinitializer, align 8
declare i32 @omp_get_max_threads()
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @madvise(ptr, i64, i32)

define {linkage}i32 @{THREADS}(i32 %most) nounwind {{
entry:
  %limit = load atomic i32, ptr @{STATE} monotonic, align 8
  %limited = icmp sgt i32 %limit, 0
  br i1 %limited, label %known, label %ask
ask:
  %default = call i32 @omp_get_max_threads()
  br label %known
known:
  %wanted = phi i32 [ %limit, %entry ], [ %default, %ask ]
  %fewer = icmp slt i32 %wanted, %most
  %count = select i1 %fewer, i32 %wanted, i32 %most
  %several = icmp sgt i32 %count, 1
  br i1 %several, label %check, label %one
one:
  ret i32 1
check:
  %place = getelementptr i8, ptr @{STATE}, i64 8
  %page = load atomic ptr, ptr %place acquire, align 8
  %fresh = icmp eq ptr %page, null
  br i1 %fresh, label %start, label %look
start:
  call void @{STARTED}()
  ret i32 %count
look:
  %alive = load i32, ptr %page, align 8
  %wiped = icmp eq i32 %alive, 0
  %allowed = select i1 %wiped, i32 0, i32 %count
  ret i32 %allowed
}}

define {linkage}void @{STARTED}() nounwind {{
entry:
  %place = getelementptr i8, ptr @{STATE}, i64 8
  %known = load atomic ptr, ptr %place acquire, align 8
  %fresh = icmp eq ptr %known, null
  br i1 %fresh, label %make, label %done
make:
  %page = call ptr @mmap(ptr null, i64 4096, i32 3, i32 34, i32 -1, i64 0)
  %number = ptrtoint ptr %page to i64
  %none = icmp eq i64 %number, -1
  br i1 %none, label %done, label %fill
fill:
  %advised = call i32 @madvise(ptr %page, i64 4096, i32 18)
  store i32 1, ptr %page, align 8
  %stored = cmpxchg ptr %place, ptr null, ptr %page release monotonic
  %ours = extractvalue {{ ptr, i1 }} %stored, 1
  br i1 %ours, label %done, label %drop
drop:
  %dropped = call i32 @munmap(ptr %page, i64 4096)
  br label %done
done:
  ret void
}}
"""
