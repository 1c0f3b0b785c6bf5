"""Define shared fixtures and settings: golden texts, the GPU marker, reproducible Hypothesis runs, checked IR nodes."""

from __future__ import annotations

import ctypes
import difflib
import gc
import importlib.util
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Set before any test imports tunesmith: nodes are frozen and programs verified after each rewrite.
os.environ.setdefault("TUNESMITH_CHECK", "1")
# The tests run beside each other, so that no window is quiet: waiting for one would take most of their time.
os.environ.setdefault("TUNESMITH_TIMING_LIMIT", "0.3")

# Shells start background jobs with SIGINT ignored, which child processes would inherit; some tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

if TYPE_CHECKING:
    from tunesmith.ir.target.target import Target
    from tunesmith.measure.ray.ray_cluster import RayCluster
    from tunesmith.testing.amx_emulator import Counts

GOLDEN = Path(__file__).parent / "golden"

hypothesis.settings.register_profile("tunesmith", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tunesmith")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the texts given to assert_golden instead of comparing them")


@cache
def _has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver reports a device.  Queries the driver directly, so that no optional package is needed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@pytest.fixture(scope="module", autouse=True)
def _collector() -> None:
    """Exclude the imported modules and collected tests from garbage collection, which would scan them repeatedly."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _short_timings() -> None:
    """Limit each timing to half a second: beside other processes, it would wait for quiet windows until the default limit."""
    from tunesmith.runtime.timing import TimingPolicy

    *others, _ = TimingPolicy.__init__.__defaults__ or ()
    TimingPolicy.__init__.__defaults__ = (*others, 0.5)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not _has_nvidia_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


def _default_name(node_id: str) -> str:
    """`tests/lower/test_flatten.py::test_matmul[4]` -> `lower/test_flatten/test_matmul-4`."""
    path, _, test = node_id.partition("::")
    parts = [*Path(path).with_suffix("").parts, *test.split("::")]
    if parts[0] == "tests":
        parts = parts[1:]
    return "/".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`assert_golden(text, name=None)`: check that the text equals `tests/golden/<name>.txt`.

    The default name is derived from the test; a test with several texts names each.
    `pytest --update-golden` writes the files; read the diff before you commit it.
    """
    update: bool = request.config.getoption("--update-golden")
    seen: set[str] = set()

    def check(text: str, name: str | None = None) -> None:
        name = name or _default_name(request.node.nodeid)
        path = (GOLDEN / f"{name}.txt").resolve()
        assert path.is_relative_to(GOLDEN.resolve()), f"golden name {name!r} is outside tests/golden"
        assert name not in seen, f"golden {name!r} is compared twice in one test: give each text its own name"
        seen.add(name)
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"no golden text {path}: run this test with --update-golden, then read the file", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if expected != text:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"tests/golden/{name}.txt", "this run", lineterm="")
            pytest.fail("the text differs from its golden (--update-golden accepts it):\n" + "\n".join(diff), pytrace=False)

    return check


@cache
def _shared(name: str) -> ModuleType:
    """The module tests/<name>.py, provided to tests by a fixture."""
    spec = importlib.util.spec_from_file_location(f"tunesmith_test_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    """Hand-built programs with references: tests/programs.py."""
    return _shared("programs")


@pytest.fixture(scope="session")
def hand() -> ModuleType:
    """Hand-written schedules and their records: tests/hand_records.py."""
    return _shared("hand_records")


@pytest.fixture(scope="session")
def schedules() -> ModuleType:
    """Sketches, configurations and random walks for fuzzing: tests/schedules.py."""
    return _shared("schedules")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """One Ray cluster for the test run, started on first use, large enough for several actor pools."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    from tunesmith.measure.ray.ray_cluster import RayCluster

    with RayCluster(workers=8, runners=4) as cluster:
        yield cluster


@pytest.fixture
def amx() -> Iterator[Counts]:
    """AMX instructions can be executed, by the processor if it has them and the kernel permits them."""
    from tunesmith.support.tile_permission import request_tile_permission
    from tunesmith.testing.amx_emulator import available, emulated_amx, in_hardware

    if not available():
        pytest.skip("this is not Linux on x86-64 with AMX or a C compiler")
    if in_hardware() and not request_tile_permission():
        pytest.skip("the kernel does not permit AMX")
    with emulated_amx() as counts:
        yield counts


@pytest.fixture
def amx_target(amx: Counts) -> Target:
    """The target of this machine with the features of AMX."""
    from tunesmith.ir.target.target import Target

    here = Target.detect()
    if "avx512vl" not in here.features:
        pytest.skip("code with tiles also has vectors of AVX-512, which is not emulated")
    return here.with_attributes(mattr=",".join(filter(None, [here.mattr, "+amx-tile,+amx-bf16,+amx-int8"])))


@pytest.fixture(scope="session")
def in_threads() -> Callable[[Callable[[Any], None], Iterable[Any]], None]:
    """`in_threads(work, arguments)`: call `work` with each argument in a thread of its own; raise the first error."""

    def run(work: Callable[[Any], None], arguments: Iterable[Any]) -> None:
        errors: list[BaseException] = []

        def call(argument: Any) -> None:
            try:
                work(argument)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    return run


@pytest.fixture(scope="session")
def processes() -> Callable[[str], dict[int, str]]:
    """`processes(text)`: command lines, by process id, of processes with the text in their environment, to find descendants."""

    def find(text: str) -> dict[int, str]:
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if text.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:  # the process has ended, or belongs to another user
                continue
        return found

    return find
