"""checked-cpu: the processor's memory again, with a count of what is allocated and not freed."""

import ctypes

from tunesmith.runtime.device.cpu import CpuDeviceAPI
from tunesmith.runtime.device.device import check_copy
from tunesmith.support.errors import RunError


class CheckedCpu(CpuDeviceAPI):
    kind = "checked-cpu"

    def __init__(self):
        super().__init__()
        self.live = 0

    def allocate(self, index, nbytes, alignment=64):
        made = super().allocate(index, nbytes, alignment)
        self.live += 1
        return made

    def free(self, allocation):
        super().free(allocation)
        self.live -= 1

    def copy(self, source, target, nbytes, source_offset=0, target_offset=0, stream=0):
        check_copy(source, target, nbytes, source_offset, target_offset)
        for allocation in (source, target):
            if allocation.device.kind not in (self.kind, "cpu"):
                raise RunError(f"{self.kind} cannot reach memory of {allocation.device}: copy through its own API")
        ctypes.memmove(target.handle + target_offset, source.handle + source_offset, nbytes)


CHECKED_CPU = CheckedCpu()
