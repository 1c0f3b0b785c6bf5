"""Conformance tests for device kinds: derive a class from `DeviceConformance` in a test file and define the API's factory.

    class TestMine(DeviceConformance):
        @pytest.fixture
        def make(self):
            return MyDeviceAPI

A kind that runs kernels also defines the fixture `code`: the kernels of `OPENCL_KERNELS` or `CUDA_KERNELS`, compiled for `load_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from tunesmith.runtime.device.cpu import host_memory
from tunesmith.runtime.device.device import Allocation, Device, DeviceAPI, DeviceAttributes, KernelLaunch
from tunesmith.support.array_types import Float32Array
from tunesmith.support.errors import RunError

T = TypeVar("T")
Make = Callable[[], DeviceAPI]
"""Factory of the API."""

TEXTS = ("name", "compute_version", "driver_version")
"""Attributes that are texts."""

OPENCL_KERNELS = """
__kernel void scale(__global const float* x, __global float* y) {
  size_t i = get_global_id(0);
  y[i] = 2.0f * x[i];
}
__kernel void reverse(__global const float* x, __global float* y, __local float* s) {
  size_t t = get_local_id(0);
  s[t] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = s[get_local_size(0) - 1 - t];
}
"""
"""y = 2 x; and y = x with the elements of each block reversed through dynamic shared memory of four bytes per thread."""

CUDA_KERNELS = """
extern "C" __global__ void scale(const float* x, float* y) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2.0f * x[i];
}
extern "C" __global__ void reverse(const float* x, float* y) {
  extern __shared__ float s[];
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = x[i];
  __syncthreads();
  y[i] = s[blockDim.x - 1 - threadIdx.x];
}
"""
"""The same kernels in CUDA."""


def filled(api: DeviceAPI, values: npt.NDArray[Any], index: int = 0) -> Allocation:
    """New device memory with a copy of an array."""
    block = api.allocate(index, values.nbytes)
    api.copy(host_memory(values), block, values.nbytes)
    api.synchronise(index)
    return block


def content(api: DeviceAPI, block: Allocation, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The content of device memory as an array with the shape and type of `like`."""
    found = np.empty_like(like)
    api.copy(block, host_memory(found), found.nbytes)
    api.synchronise(block.device.index)
    return found


class DeviceConformance:
    """The tests; each docstring states a requirement."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of the API under test."""
        raise NotImplementedError("override the fixture `make` to return a factory of the DeviceAPI under test, for example the class")

    @pytest.fixture
    def api(self, make: Make) -> DeviceAPI:
        """The API under test; an API that must be released after a test overrides this fixture."""
        return make()

    @pytest.fixture
    def code(self) -> bytes:
        """The two kernels in the form that `load_code` accepts."""
        pytest.skip("this kind of device runs no kernels")

    @pytest.fixture
    def values(self) -> Float32Array:
        """Test data: four blocks of 64."""
        return np.arange(256, dtype=np.float32)

    def test_attributes(self, api: DeviceAPI) -> None:
        """The device reports at least its name and memory; counts are positive."""
        assert api.count() >= 1
        facts = api.attributes(0)
        assert facts.name and facts.memory_bytes is not None and facts.memory_bytes > 0
        numbers = (facts.compute_units, facts.clock_hz, facts.warp_size, facts.max_threads_per_block, facts.max_shared_memory_per_block)
        assert all(n is None or n > 0 for n in numbers)

    def test_missing_device_is_refused(self, api: DeviceAPI) -> None:
        """Every method with a device index refuses an invalid one."""
        missing = api.count()
        calls: list[Callable[[int], object]] = [
            api.attributes,
            api.create_stream,
            api.create_event,
            api.synchronise,
            lambda i: api.allocate(i, 8),
            lambda i: api.allocate_workspace(i, 8),
        ]
        for call in calls:
            for index in (missing, -1):
                with pytest.raises(RunError, match=f"there is no {api.kind}\\({index}\\)"):
                    call(index)

    def test_copies_round_trip(self, api: DeviceAPI, values: Float32Array) -> None:
        """Host to device, device to device, device to host."""
        first, second = filled(api, values), filled(api, np.zeros_like(values))
        api.copy(first, second, values.nbytes)
        assert np.array_equal(content(api, second, values), values)
        for block in (first, second):
            api.free(block)

    def test_offsets_are_in_bytes(self, api: DeviceAPI, values: Float32Array) -> None:
        """Source and target offsets, on host and device."""
        block, other = filled(api, np.zeros_like(values)), filled(api, np.zeros_like(values))
        api.copy(host_memory(values), block, 40, source_offset=20, target_offset=400)
        api.copy(block, other, 40, source_offset=400, target_offset=12)
        found = np.zeros(16, np.float32)
        api.copy(other, host_memory(found), 44, source_offset=12, target_offset=4)
        api.synchronise(0)
        assert found.tolist() == [0, *values[5:15].tolist(), 0, 0, 0, 0, 0]
        for memory in (block, other):
            api.free(memory)

    def test_copies_stay_inside(self, api: DeviceAPI, values: Float32Array) -> None:
        """Copies beyond either memory block are refused; an empty copy has no effect."""
        block = filled(api, values)
        for nbytes, offset in ((values.nbytes + 1, 0), (4, values.nbytes), (-4, 0), (4, -4)):
            with pytest.raises(RunError, match="cannot copy"):
                api.copy(block, host_memory(np.zeros_like(values)), nbytes, source_offset=offset)
        with pytest.raises(RunError, match="cannot"):
            api.copy(Allocation(Device("nowhere"), 1, 64), block, 4)
        api.copy(block, host_memory(np.zeros(0, np.float32)), 0)
        api.free(block)

    def test_invalid_allocations_are_refused(self, api: DeviceAPI) -> None:
        """Negative sizes, invalid alignments, more than the device's memory, and memory freed before raise errors."""
        with pytest.raises(RunError, match="cannot allocate -1 bytes"):
            api.allocate(0, -1)
        for alignment in (24, 4):
            with pytest.raises(RunError, match=f"cannot align memory .* to {alignment} bytes"):
                api.allocate(0, 8, alignment)
        with pytest.raises(RunError):
            api.allocate(0, 1 << 62)
        block = api.allocate(0, 8)
        api.free(block)
        with pytest.raises(RunError, match="freed before"):
            api.free(block)
        with pytest.raises(RunError, match="freed before"):
            api.free(Allocation(Device("nowhere"), 1, 64))

    def test_empty_allocations_are_valid(self, api: DeviceAPI) -> None:
        """An empty allocation has its own handle."""
        blocks = [api.allocate(0, 0) for _ in range(3)]
        assert len({b.handle for b in blocks}) == 3 and all(b.nbytes == 0 for b in blocks)
        for block in blocks:
            api.free(block)

    def test_attributes_have_their_types(self, api: DeviceAPI) -> None:
        """An attribute that does not apply is None; the others have the types of `DeviceAttributes`."""
        facts = api.attributes(0)
        assert isinstance(facts, DeviceAttributes)
        for name in (f.name for f in fields(facts)):
            value = getattr(facts, name)
            kind = str if name in TEXTS else tuple if name == "max_thread_dimensions" else int
            assert value is None or isinstance(value, kind), f"{name} is {value!r}"

    def test_current_device(self, api: DeviceAPI) -> None:
        """Each thread has a current device, at first device 0; a device that does not exist is refused."""
        last = api.count() - 1
        api.set_device(last)
        assert api.current_device() == last
        assert set(in_threads(lambda _: api.current_device())) == {0}
        for missing in (-1, api.count()):
            with pytest.raises(RunError, match="there is no"):
                api.set_device(missing)
        assert api.current_device() == last

    def test_current_stream(self, api: DeviceAPI) -> None:
        """Each thread has a current stream of a device, at first the default one, and again after the stream is freed."""
        stream = api.create_stream(0)
        with api.using_stream(0, stream):
            assert api.current_stream(0) == stream
            assert set(in_threads(lambda _: api.current_stream(0))) == {0}
        assert api.current_stream(0) == 0
        api.set_stream(0, stream)
        api.free_stream(0, stream)
        assert api.current_stream(0) == 0
        with pytest.raises(RunError, match="is no stream"):
            api.set_stream(0, stream)
        with pytest.raises(RunError, match="there is no"):
            api.set_stream(api.count(), 0)

    def test_streams_wait_for_each_other(self, api: DeviceAPI, values: Float32Array) -> None:
        """`sync_streams` orders later work on one stream after earlier work on another; so do an event and `wait_event`."""
        streams = [api.create_stream(0) for _ in range(2)]
        first, second, event = filled(api, np.zeros_like(values)), filled(api, np.zeros_like(values)), api.create_event(0)
        with pytest.raises(RunError, match=f"event {event} .* was never recorded"):
            api.wait_event(0, event, streams[1])
        for i in range(10):
            source, found = values + i, np.zeros_like(values)
            api.copy(host_memory(source), first, values.nbytes, stream=streams[0])
            if i % 2:
                api.sync_streams(0, streams[0], streams[1])
            else:
                api.record_event(0, event, streams[0])
                api.wait_event(0, event, streams[1])
            api.copy(first, second, values.nbytes, stream=streams[1])
            api.sync_streams(0, streams[1], 0)
            api.copy(second, host_memory(found), values.nbytes)
            api.synchronise(0)
            assert np.array_equal(found, source)
            api.sync_streams(0, 0, streams[0])
        api.free_event(0, event)
        for stream in streams:
            api.free_stream(0, stream)
        refused: list[Callable[[], object]] = [
            lambda: api.wait_event(0, event),
            lambda: api.sync_streams(0, streams[0], 0),
            lambda: api.sync_streams(0, 0, streams[0]),
        ]
        for wrong in refused:
            with pytest.raises(RunError, match=r"is no (event|stream)"):
                wrong()
        for block in (first, second):
            api.free(block)

    def test_memory_of_other_libraries(self, api: DeviceAPI, values: Float32Array) -> None:
        """Exported memory is imported as the same memory; a kind without a DLPack device type refuses both."""
        block = filled(api, values)
        if api.dlpack_type is None:
            with pytest.raises(RunError, match="cannot be passed through DLPack"):
                api.export_memory(block)
            with pytest.raises(RunError, match="cannot use memory of other libraries"):
                api.foreign_memory(0, 4096, 64)
        else:
            imported = api.foreign_memory(0, api.export_memory(block), block.nbytes)
            assert imported.device.index == 0 and imported.nbytes == block.nbytes
            assert np.array_equal(content(api, imported, values), values)
            later = values + 1
            api.copy(host_memory(later), imported, values.nbytes)
            api.synchronise(0)
            api.drop_foreign_memory(imported)
            assert np.array_equal(content(api, block, values), later)
            with pytest.raises(RunError, match="there is no"):
                api.foreign_memory(api.count(), 4096, 64)
        api.free(block)

    def test_workspaces_belong_to_a_stream(self, api: DeviceAPI) -> None:
        """A freed workspace is reused on its own stream only, the last one first; `free` refuses workspaces."""
        streams = [0, api.create_stream(0)]
        blocks = [[api.allocate_workspace(0, 4096, stream) for _ in range(2)] for stream in streams]
        for pair in blocks:
            for block in pair:
                with pytest.raises(RunError, match="are a workspace: use free_workspace"):
                    api.free(block)
                api.free_workspace(block)
        for stream, pair in zip(streams, blocks, strict=True):
            again = [api.allocate_workspace(0, 4096, stream) for _ in range(3)]
            assert again[:2] == pair[::-1] and again[2] not in (*blocks[0], *blocks[1])
            for block in again:
                api.free_workspace(block)
        with pytest.raises(RunError, match="cannot allocate -1 bytes"):
            api.allocate_workspace(0, -1)
        api.free_stream(0, streams[1])
        with pytest.raises(RunError, match="is no stream"):
            api.allocate_workspace(0, 64, streams[1])
        plain = api.allocate(0, 4096)
        with pytest.raises(RunError, match="are not a workspace"):
            api.free_workspace(plain)
        api.free(plain)
        api.release_workspaces()

    def test_workspaces_are_used_again(self, api: DeviceAPI) -> None:
        """A workspace is reused after it is freed, not before; freeing it twice is refused."""
        first, second = api.allocate_workspace(0, 5000), api.allocate_workspace(0, 5000)
        assert first.handle != second.handle and first.nbytes >= 5000
        api.free_workspace(first)
        assert api.allocate_workspace(0, 6000) == first
        for block in (first, second):
            api.free_workspace(block)
        with pytest.raises(RunError, match="before"):
            api.free_workspace(second)
        api.release_workspaces()

    def test_stream_numbers(self, api: DeviceAPI) -> None:
        """Stream numbers are valid until the stream is freed; the default stream cannot be freed."""
        stream = api.create_stream(0)
        api.synchronise(0, stream)
        api.synchronise(0)
        api.free_stream(0, stream)
        with pytest.raises(RunError, match="is no stream"):
            api.synchronise(0, stream)
        with pytest.raises(RunError, match="is no stream"):
            api.free_stream(0, stream)
        with pytest.raises(RunError, match="the default stream cannot be dropped"):
            api.free_stream(0, 0)

    def test_stream_operations_run_in_order(self, api: DeviceAPI, values: Float32Array) -> None:
        """Repeated copies of a value through three memory blocks."""
        stream = api.create_stream(0)
        blocks = [filled(api, np.zeros_like(values)) for _ in range(3)]
        sources, found = [values + i for i in range(20)], [np.zeros_like(values) for _ in range(20)]
        for source, target in zip(sources, found, strict=True):
            places = [host_memory(source), *blocks, host_memory(target)]
            for a, b in pairwise(places):
                api.copy(a, b, values.nbytes, stream=stream)
        api.synchronise(0, stream)
        assert all(np.array_equal(a, b) for a, b in zip(sources, found, strict=True))
        for block in blocks:
            api.free(block)
        api.free_stream(0, stream)

    def test_event_timing(self, api: DeviceAPI, values: Float32Array) -> None:
        """Elapsed time between two recorded events of a stream; recording an event again replaces its time."""
        start, stop, block = api.create_event(0), api.create_event(0), filled(api, values)
        with pytest.raises(RunError, match=f"event {start} .* was never recorded"):
            api.elapsed(0, start, stop)
        api.record_event(0, start)
        with pytest.raises(RunError, match=f"event {stop} .* was never recorded"):
            api.elapsed(0, start, stop)
        api.copy(host_memory(values), block, values.nbytes)
        api.record_event(0, stop)
        assert 0 <= api.elapsed(0, start, stop) < 60
        api.record_event(0, start)
        assert api.elapsed(0, stop, start) >= 0
        for event in (start, stop):
            api.free_event(0, event)
        with pytest.raises(RunError, match="is no event"):
            api.free_event(0, start)
        with pytest.raises(RunError, match="is no event"):
            api.record_event(0, start)
        api.free(block)

    def test_concurrent_use(self, api: DeviceAPI, values: Float32Array) -> None:
        """Threads with their own memory, streams and workspaces do not interfere."""

        def work(i: int) -> bool:
            stream, scratch, found = api.create_stream(0), [], np.zeros_like(values)
            block, expected = filled(api, np.zeros_like(values)), values + i
            for _ in range(10):
                scratch.append(api.allocate_workspace(0, values.nbytes, stream))
                api.copy(host_memory(expected), scratch[-1], values.nbytes, stream=stream)
                api.copy(scratch[-1], block, values.nbytes, stream=stream)
                api.copy(block, host_memory(found), values.nbytes, stream=stream)
                api.synchronise(0, stream)
            for workspace in scratch:
                api.free_workspace(workspace)
            api.free(block)
            api.free_stream(0, stream)
            return np.array_equal(found, expected)

        assert all(in_threads(work))
        api.release_workspaces()

    def test_kernels_run(self, api: DeviceAPI, code: bytes, values: Float32Array) -> None:
        """On the default stream and on another, with and without shared memory."""
        loaded, stream = api.load_code(0, code), api.create_stream(0)
        x, y, z = [filled(api, v) for v in (values, np.zeros_like(values), np.zeros_like(values))]
        api.launch(0, loaded, "scale", [x, y], (4, 1, 1), (64, 1, 1))
        assert np.array_equal(content(api, y, values), 2 * values)
        api.launch(0, loaded, "reverse", [y, z], (4, 1, 1), (64, 1, 1), shared_bytes=256, stream=stream)
        api.synchronise(0, stream)
        assert np.array_equal(content(api, z, values), 2 * values.reshape(4, 64)[:, ::-1].reshape(256))
        api.free_stream(0, stream)
        for block in (x, y, z):
            api.free(block)
        api.unload_code(0, loaded)

    def test_launches_run_in_order(self, api: DeviceAPI, code: bytes, values: Float32Array) -> None:
        """Each launch doubles the previous result."""
        loaded, stream = api.load_code(0, code), api.create_stream(0)
        pair = [filled(api, values), filled(api, values)]
        for i in range(20):
            api.launch(0, loaded, "scale", [pair[i % 2], pair[1 - i % 2]], (4, 1, 1), (64, 1, 1), stream=stream)
        api.synchronise(0, stream)
        assert np.array_equal(content(api, pair[0], values), 2.0**20 * values)
        api.free_stream(0, stream)
        for block in pair:
            api.free(block)
        api.unload_code(0, loaded)

    def test_graphs(self, api: DeviceAPI, code: bytes, values: Float32Array) -> None:
        """A graph runs its launches in order, each time with the memory that was set last; without graphs, all calls are refused."""
        loaded = api.load_code(0, code)
        x, y, z, other = blocks = [filled(api, v) for v in (values, 0 * values, 0 * values, values + 1)]
        scale = KernelLaunch(loaded, "scale", [x, y], (4, 1, 1), (64, 1, 1))
        reverse = KernelLaunch(loaded, "reverse", [y, z], (4, 1, 1), (64, 1, 1), 256)
        if not api.has_graphs:
            with pytest.raises(RunError, match="has no graphs: start its kernels"):
                api.create_graph(0, [scale, reverse])
        else:
            graph, stream = api.create_graph(0, [scale, reverse]), api.create_stream(0)
            for on in (0, stream):
                api.launch_graph(0, graph, on)
                api.synchronise(0, on)
                assert np.array_equal(content(api, z, values).reshape(4, 64), 2 * values.reshape(4, 64)[:, ::-1])
            api.update_graph(0, graph, 0, scale._replace(arguments=[other, y]))
            api.launch_graph(0, graph)
            assert np.array_equal(content(api, z, values).reshape(4, 64), 2 * (values + 1).reshape(4, 64)[:, ::-1])
            for position, launch, message in ((0, reverse, "runs scale, and reverse cannot replace it"), (2, scale, "does not exist")):
                with pytest.raises(RunError, match=message):
                    api.update_graph(0, graph, position, launch)
            for launches, message in (([], "has at least one launch"), ([scale._replace(grid=(0, 1, 1))], "cannot launch scale")):
                with pytest.raises(RunError, match=message):
                    api.create_graph(0, launches)
            api.free_graph(0, graph)
            api.free_stream(0, stream)
        api.unload_code(0, loaded)
        for b in blocks:
            api.free(b)

    def test_shared_memory_limit_of_a_block(self, api: DeviceAPI, code: bytes, values: Float32Array) -> None:
        """The reported shared memory per block is usable, more is refused."""
        facts = api.attributes(0)
        most = facts.max_shared_memory_per_block_optin or facts.max_shared_memory_per_block
        assert most is not None
        loaded = api.load_code(0, code)
        x, y = filled(api, values), filled(api, np.zeros_like(values))
        api.launch(0, loaded, "reverse", [x, y], (4, 1, 1), (64, 1, 1), shared_bytes=most)
        assert np.array_equal(content(api, y, values), values.reshape(4, 64)[:, ::-1].reshape(256))
        with pytest.raises(RunError, match="launch of reverse"):
            api.launch(0, loaded, "reverse", [x, y], (4, 1, 1), (64, 1, 1), shared_bytes=64 * most)
            api.synchronise(0)
        for block in (x, y):
            api.free(block)
        api.unload_code(0, loaded)

    def test_invalid_code_and_launches_are_refused(self, api: DeviceAPI, code: bytes, values: Float32Array) -> None:
        """Invalid code, unknown kernels, invalid extents and memory of another device raise errors; the device stays usable."""
        with pytest.raises(RunError, match="loading code"):
            api.load_code(0, b"no code of any device")
        loaded = api.load_code(0, code)
        x, y = filled(api, values), filled(api, np.zeros_like(values))
        with pytest.raises(RunError, match="no kernel 'missing'"):
            api.launch(0, loaded, "missing", [x, y], (1, 1, 1), (1, 1, 1))
        for grid, block in (((0, 1, 1), (64, 1, 1)), ((1, 1, 1), (64, 0, 1)), ((1, 1, 1), (1 << 20, 1, 1)), ((1 << 40, 1, 1), (1, 1, 1))):
            with pytest.raises(RunError, match="scale"):
                api.launch(0, loaded, "scale", [x, y], grid, block)
        with pytest.raises(RunError, match="argument 1 is memory of cpu"):
            api.launch(0, loaded, "scale", [x, host_memory(values)], (4, 1, 1), (64, 1, 1))
        api.launch(0, loaded, "scale", [x, y], (4, 1, 1), (64, 1, 1))
        assert np.array_equal(content(api, y, values), 2 * values)
        api.unload_code(0, loaded)
        with pytest.raises(RunError, match="is no loaded code"):
            api.launch(0, loaded, "scale", [x, y], (4, 1, 1), (64, 1, 1))
        with pytest.raises(RunError, match="is no loaded code"):
            api.unload_code(0, loaded)
        for block_of in (x, y):
            api.free(block_of)

    def test_concurrent_loads_and_launches(self, api: DeviceAPI, code: bytes, values: Float32Array) -> None:
        """Own code per thread and code shared by all threads: kernel arguments of concurrent launches are independent."""
        shared = api.load_code(0, code)

        def work(i: int) -> bool:
            own, stream, good = api.load_code(0, code), api.create_stream(0), True
            x, y = filled(api, values + i), filled(api, np.zeros_like(values))
            for loaded in (own, shared) * 10:
                api.launch(0, loaded, "scale", [x, y], (4, 1, 1), (64, 1, 1), stream=stream)
                api.synchronise(0, stream)
                good = good and np.array_equal(content(api, y, values), 2 * (values + i))
            for block in (x, y):
                api.free(block)
            api.unload_code(0, own)
            api.free_stream(0, stream)
            return good

        assert all(in_threads(work))
        api.unload_code(0, shared)


def in_threads(work: Callable[[int], T]) -> list[T]:
    """Run the function in four threads."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(work, range(4)))
