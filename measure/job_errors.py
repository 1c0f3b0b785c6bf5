"""Map failed jobs of a worker pool to the error kinds of records."""

from __future__ import annotations

from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.worker_pool import JobResult

_NO_MEMORY = ("Failed to allocate mapped memory", "out of memory", "Out of memory", "bad_alloc", "Cannot allocate memory", "MemoryError")
"""Messages of a process that dies of memory exhaustion: from LLVM's loader, LLVM, C++, the C library, Python."""


def error_of(job: JobResult, raised: str, doing: str) -> ErrorInfo:
    """The error of a failed job.

    Native code that does not check the result of `malloc` dies of a segmentation fault when memory is exhausted: such a failure is
    classified as a crash.

    Args:
        job: a job with an error.
        raised: error kind if the job raised anything but MemoryError.
        doing: activity of the job, as in "the process died while ...".
    """
    text = "\n".join(part for part in (f"while {doing}: {job.message}", job.detail.strip()) if part)
    if job.error == "timeout":
        return ErrorInfo("timeout", text)
    if job.exception == "MemoryError" or (job.error == "crash" and any(words in job.detail for words in _NO_MEMORY)):
        return ErrorInfo("out_of_memory", text)
    return ErrorInfo("crash" if job.error == "crash" else raised, text)
