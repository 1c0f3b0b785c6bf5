from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tunesmith.runtime.device.cpu import CpuDeviceAPI, host_memory
from tunesmith.runtime.device.device import Allocation, Device, cpu
from tunesmith.support.errors import RunError
from tunesmith.testing.device_conformance import DeviceConformance, Make


class TestCpu(DeviceConformance):
    @pytest.fixture
    def make(self) -> Make:
        return CpuDeviceAPI


@pytest.fixture
def api() -> Iterator[CpuDeviceAPI]:
    api = CpuDeviceAPI()
    yield api
    api.release_workspaces()


def test_attributes(api: CpuDeviceAPI) -> None:
    facts = api.attributes(0)
    assert facts.name
    assert facts.compute_units is not None and facts.compute_units >= 1
    assert facts.memory_bytes is not None and facts.free_memory_bytes is not None
    assert facts.memory_bytes > facts.free_memory_bytes > 0
    assert facts.warp_size is None and facts.max_shared_memory_per_block is None


def test_there_is_one_device(api: CpuDeviceAPI) -> None:
    assert api.count() == 1
    for call in (api.attributes, api.create_stream, api.create_event, api.synchronise):
        with pytest.raises(RunError, match=r"there is no cpu\(1\)"):
            call(1)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_memory_is_aligned(api: CpuDeviceAPI, alignment: int) -> None:
    blocks = [api.allocate(0, nbytes, alignment) for nbytes in (0, 1, 100, 5000)]
    assert all(block.handle % alignment == 0 for block in blocks)
    assert len({block.handle for block in blocks}) == 4
    for block in blocks:
        api.free(block)


def test_memory_refusals(api: CpuDeviceAPI) -> None:
    with pytest.raises(RunError, match="cannot allocate -1 bytes"):
        api.allocate(0, -1)
    with pytest.raises(RunError, match="cannot align memory .* to 24 bytes"):
        api.allocate(0, 8, 24)
    with pytest.raises(RunError, match="out of memory"):
        api.allocate(0, 1 << 62)
    block = api.allocate(0, 8)
    api.free(block)
    with pytest.raises(RunError, match="not memory of cpu.0., or were freed before"):
        api.free(block)


def test_workspaces_are_reused(api: CpuDeviceAPI) -> None:
    first = api.allocate_workspace(0, 5000)
    second = api.allocate_workspace(0, 5000)
    assert first.handle != second.handle
    assert first.handle % 64 == 0
    assert first.nbytes >= 5000
    api.free_workspace(first)
    assert api.allocate_workspace(0, 6000) == first
    with pytest.raises(RunError, match="freed before"):
        api.free_workspace(Allocation(cpu(), 0x1234, 4096))
    api.free_workspace(first)
    api.free_workspace(second)
    with pytest.raises(RunError, match="freed before"):
        api.free_workspace(second)


def test_copy_with_numpy(api: CpuDeviceAPI) -> None:
    block = api.allocate(0, 40)
    source = np.arange(10, dtype="int32")
    target = np.zeros(10, "int32")
    api.copy(host_memory(source), block, 40)
    api.copy(block, host_memory(target), 20, source_offset=8, target_offset=4)
    assert target.tolist() == [0, 2, 3, 4, 5, 6, 0, 0, 0, 0]
    with pytest.raises(RunError, match="it has 40 bytes"):
        api.copy(block, host_memory(target), 41)
    with pytest.raises(RunError, match=r"the CPU cannot reach memory of cuda\(0\)"):
        api.copy(Allocation(Device("cuda"), 1, 40), block, 4)
    api.free(block)
    with pytest.raises(RunError, match="is not contiguous"):
        host_memory(np.zeros((4, 4))[:, 1])


def test_streams(api: CpuDeviceAPI) -> None:
    stream = api.create_stream(0)
    api.synchronise(0, stream)
    api.synchronise(0)
    api.free_stream(0, stream)
    with pytest.raises(RunError, match="is no stream"):
        api.synchronise(0, stream)
    with pytest.raises(RunError, match="the default stream cannot be dropped"):
        api.free_stream(0, 0)


def test_events(api: CpuDeviceAPI) -> None:
    start, stop = api.create_event(0), api.create_event(0)
    api.record_event(0, start)
    with pytest.raises(RunError, match=f"event {stop} .* was never recorded"):
        api.elapsed(0, start, stop)
    api.record_event(0, stop)
    assert api.elapsed(0, start, stop) > 0
    assert api.elapsed(0, stop, start) < 0
    api.free_event(0, start)
    with pytest.raises(RunError, match="is no event"):
        api.free_event(0, start)
    with pytest.raises(RunError, match="is no event"):
        api.record_event(0, start)


def test_kernels_are_refused(api: CpuDeviceAPI) -> None:
    calls = (lambda: api.load_code(0, b""), lambda: api.unload_code(0, 1), lambda: api.launch(0, 1, "f", [], (1, 1, 1), (1, 1, 1)))
    for call in calls:
        with pytest.raises(RunError, match=r"cpu.0. runs functions and no kernels: load compiled code with .*Module.from_object"):
            call()
    with pytest.raises(RunError, match="have no address"):
        api.foreign_stream(0, 4096)
