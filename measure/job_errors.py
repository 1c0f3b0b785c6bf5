"""From what became of a job of a worker pool to the class of error that a record holds."""

from __future__ import annotations

from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.worker_pool import JobResult

_NO_MEMORY = ("Failed to allocate mapped memory", "out of memory", "Out of memory", "bad_alloc", "Cannot allocate memory", "MemoryError")
"""What a dying process prints when memory is the reason: the loader of LLVM, LLVM, C++, the C library, Python."""


def error_of(job: JobResult, raised: str, doing: str) -> ErrorInfo:
    """The error of a job that did not end well.

    Native code that does not look at the address `malloc` gives dies of a segmentation fault when there is no more
    memory, and that is what it is called: a crash.

    Args:
        job: with an error.
        raised: the kind of error when the job raised anything but MemoryError.
        doing: what the job did, as in "the process died while ...".
    """
    text = "\n".join(part for part in (f"while {doing}: {job.message}", job.detail.strip()) if part)
    if job.error == "timeout":
        return ErrorInfo("timeout", text)
    if job.exception == "MemoryError" or (job.error == "crash" and any(words in job.detail for words in _NO_MEMORY)):
        return ErrorInfo("out_of_memory", text)
    return ErrorInfo("crash" if job.error == "crash" else raised, text)
