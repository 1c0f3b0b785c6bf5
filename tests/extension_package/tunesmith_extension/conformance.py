"""The extensions under the conformance suites of tunesmith: `pytest --pyargs tunesmith_extension.conformance`."""

import pytest

from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import LocalRunner
from tunesmith.testing.backend_conformance import BackendConformance
from tunesmith.testing.baseline_conformance import BaselineConformance
from tunesmith.testing.builder_conformance import BuilderConformance
from tunesmith.testing.device_conformance import DeviceConformance
from tunesmith.testing.external_codegen_conformance import ExternalCodegenConformance
from tunesmith.testing.runner_conformance import RunnerConformance
from tunesmith.testing.target_kind_conformance import TargetKindConformance
from tunesmith_extension.backend import SIMCPU_BACKEND
from tunesmith_extension.baseline import EinsumBaseline
from tunesmith_extension.builder import CachingBuilder
from tunesmith_extension.codegen import ToyCodegen
from tunesmith_extension.device import CheckedCpu
from tunesmith_extension.runner import CountingRunner


class TestCachingBuilder(BuilderConformance):
    @pytest.fixture
    def make(self):
        return lambda **limits: CachingBuilder(LocalBuilder(1, **limits))


class TestCachingBuilderInProcess(BuilderConformance):
    isolated = False

    @pytest.fixture
    def make(self):
        return lambda: CachingBuilder(InProcessBuilder())


class TestCountingRunner(RunnerConformance):
    @pytest.fixture
    def make(self):
        return lambda **limits: CountingRunner(LocalRunner(2, **limits))


class TestEinsum(BaselineConformance):
    @pytest.fixture
    def make(self):
        return EinsumBaseline


class TestToy(ExternalCodegenConformance):
    @pytest.fixture
    def make(self):
        return ToyCodegen

    @pytest.fixture
    def graph(self):
        return lambda b, dtype: b.squared_relu(b.input("x", (5, 3), dtype))


class TestSimcpu(BackendConformance):
    @pytest.fixture
    def make(self):
        return lambda: SIMCPU_BACKEND

    @pytest.fixture
    def target(self):
        return Target("simcpu")


class TestSimcpuKind(TargetKindConformance):
    @pytest.fixture
    def kind(self):
        return "simcpu"

    @pytest.fixture
    def text(self):
        return "simcpu -mcpu=x86-64-v3"


class TestNpuKind(TargetKindConformance):
    @pytest.fixture
    def kind(self):
        return "npu"

    @pytest.fixture(params=["npu", "npu -scratchpad-bytes=4096 -dma-gbs=20"])
    def text(self, request):
        return request.param


class TestCheckedCpu(DeviceConformance):
    @pytest.fixture
    def make(self):
        return CheckedCpu
