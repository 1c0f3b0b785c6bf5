"""Test what a target has besides its attributes: keys, libraries, host, the current target; and the JSON of TVM's targets."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading

import numpy as np
import pytest

from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import TargetError

ZEN5 = "llvm -mcpu=znver5 -num-cores=2"
GRACE = "cuda -model=h100 -host='llvm -mcpu=neoverse-v2 -num-cores=72'"


# ---- keys, libraries, host ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (ZEN5, ("x86", "cpu")),
        ("c -mcpu=znver5 -num-cores=2", ("x86", "cpu")),
        ("raspberry-pi/4b-aarch64", ("arm_cpu", "cpu")),
        ("llvm -mcpu=apple-m1 -num-cores=8", ("arm_cpu", "cpu")),
        ("riscv/sifive-u74", ("riscv_cpu", "cpu")),
        ("nvidia/h200", ("cuda", "gpu")),
        ("opencl", ("opencl", "gpu")),
        (f"{ZEN5} -keys=box,fast", ("box", "fast", "x86", "cpu")),
        (f"{ZEN5} -keys=cpu,box,box", ("box", "x86", "cpu")),
    ],
)
def test_keys_go_from_the_specific_to_the_general(text: str, keys: tuple[str, ...]) -> None:
    t = Target(text)
    assert t.keys == keys and t.has_key(keys[0]) and not t.has_key("hexagon")
    assert pickle.loads(pickle.dumps(t)).keys == keys


def test_keys_libraries_and_host_are_not_part_of_the_identity() -> None:
    t, like = Target(f"{ZEN5} -keys=box -libs=mkl,extra"), Target(ZEN5)
    assert t.libs == ("blas", "extra") and like.libs == ()
    assert t != like and t.key == like.key and str(t) == str(like) and t.to_json() == like.to_json()
    assert Target(t.to_json(facts=True)) == t and Target(json.dumps(t.to_json(facts=True))) == t and hash(Target(t)) == hash(t)
    assert t.with_attributes(num_cores=3).libs == ("blas", "extra") and t.with_attributes(num_cores=3).keys == t.keys


def test_the_host_is_the_processor_of_a_device() -> None:
    t = Target(GRACE)
    assert t.host == Target("llvm -mcpu=neoverse-v2 -num-cores=72") and t.has_host
    assert t.key == Target("cuda -model=h100").key and t != Target("cuda -model=h100")
    assert Target("nvidia/h200").host == Target("llvm") and not Target("nvidia/h200").has_host
    assert Target(ZEN5).host == Target(ZEN5)
    assert Target("cuda -model=h100", host="llvm -mcpu=neoverse-v2 -num-cores=72") == t
    assert Target({"kind": "cuda", "model": "h100", "host": {"kind": "llvm", "mcpu": "neoverse-v2", "num_cores": 72}}) == t
    for again in (Target(t), pickle.loads(pickle.dumps(t)), Target(json.dumps(t.to_json(facts=True))), t.with_attributes(model="h100")):
        assert again.host == t.host
    assert Target(ZEN5, host="llvm -mcpu=apple-m1 -num-cores=8") == Target(ZEN5), "a CPU is its own host"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cuda -model=h100 -host=nvidia/h200", "code of the host is for a CPU, and cuda -arch=sm_90 -model=h200 is none"),
        ({"kind": "cuda", "model": "h100", "host": 3}, "host: expected a target, its text or a mapping, got int"),
        ("cuda -model=h100 -host='llvm -mcpu=zen'", "unknown mcpu 'zen'"),
        ("cuda -model=h100 -host='llvm", "No closing quotation. Quote a value with blanks as in"),
        (f"{ZEN5} -keys=a,b!", r"keys: expected words such as a,b, got 'a,b!'"),
        ({"kind": "llvm", "libs": [1]}, r"libs: expected words such as a,b, got \[1\]"),
        (f"{ZEN5} -keys=a -keys=b", "attribute 'keys' is given twice"),
    ],
)
def test_refusals(spec: object, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Target(spec)  # type: ignore[arg-type]


LOOP: dict[str, object] = {"kind": "cuda", "arch": "sm_90"}
LOOP["host"] = LOOP
CPU_LOOP: dict[str, object] = {"kind": "llvm"}
CPU_LOOP["host"] = CPU_LOOP


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "llvm", "num_cores": 10**400}, "expected a whole number of at most 63 bits, got 1000"),
        ({"kind": "llvm", "num_cores": -(10**5000)}, "expected a whole number of at most 63 bits, got a int"),
        ("llvm -num-cores=" + "9" * 400, "expected a whole number of at most 63 bits"),
        ("llvm -num-cores=" + "9" * 5000, "expected a whole number, got '9999"),
        ("llvm -num-cores=99999999999999999999", "expected a whole number of at most 63 bits"),
        ("llvm -num-cores=1_0", "expected a whole number, got '1_0'"),
        ("llvm -num-cores=+4", "expected a whole number, got '\\+4'"),
        ("llvm -num-cores=\uff11\uff12", "expected a whole number, got"),
        ("llvm -clock-ghz=1e300", "expected a number from 1e-12 to 1e\\+15"),
        ("llvm -clock-ghz=1e-300", "expected a number from 1e-12 to 1e\\+15"),
        ({"kind": "llvm", "clock_ghz": 10**400}, "expected a number of at most 63 bits"),
        ("llvm -cache-line=3", "expected a power of two, got 3"),
        ('{"kind":' + "[" * 100000, "the JSON is nested too deeply"),
        ('{"kind":"llvm","num_cores":' + "9" * 5000 + "}", "not valid JSON"),
        ('{"kind":"llvm","kind":"c"}', "not valid JSON \\('kind' is given twice"),
        ({"kind": np.array([1, 2])}, "unknown target kind"),
        ({"kind": "llvm", "tag": np.array([1, 2])}, "tag: expected text, got ndarray"),
        ({"kind": "llvm", "tag": "nope"}, "unknown tag 'nope'"),
        (LOOP, "hosts are nested too deeply"),
        (CPU_LOOP, "hosts are nested too deeply"),
        ("llvm -kind=c", "the text begins with its kind or tag, and '-kind=c' gives another one"),
        ("nvidia/h200 -tag=x", "the text begins with its kind or tag"),
        ("llvm -host=garbage", "unknown target kind or tag 'garbage'"),
        ("llvm -host=nvidia/h200", "code of the host is for a CPU, and cuda is none"),
        ({"kind": "llvm", "host": 7}, "host: expected a target, its text or a mapping, got int"),
    ],
)
def test_mistakes_are_refused(spec: object, message: str) -> None:
    with pytest.raises(TargetError, match=message) as refused:
        Target(spec)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 2500


@pytest.mark.parametrize("host", [5, [], "garbage", b"llvm", LOOP, "cuda -model=h100"])
def test_a_host_is_a_cpu_whatever_the_target(host: object) -> None:
    for text in ("llvm -mcpu=znver5 -num-cores=2", "cuda -arch=sm_90"):
        with pytest.raises(TargetError):
            Target(text, host=host)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, 5, [], {}, b"llvm"])
def test_methods_take_text(given: object) -> None:
    t = Target(ZEN5)
    for method in (t.vector_lanes, t.has_feature, t.has_key, t.tensor_rate, Target.from_tag):
        with pytest.raises(TargetError, match="text"):
            method(given)  # type: ignore[operator]


def test_kinds_and_tags_are_listed() -> None:
    assert Target.kinds()[:4] == ("llvm", "c", "cuda", "opencl")
    tags = Target.tags()
    assert tags["nvidia/h200"] == {"kind": "cuda", "model": "h200"}
    for tag in tags:
        assert Target(tag) == Target(tags[tag])


# ---- the current target ------------------------------------------------------------------------------------------------------


def test_a_target_is_a_context() -> None:
    outer, inner = Target(ZEN5), Target("riscv/sifive-u74")
    assert Target.current() is None
    with outer as entered:
        assert entered is outer and Target.current() is outer
        with inner, outer:
            assert Target.current() is outer
        with pytest.raises(ValueError, match="inside"), inner:
            raise ValueError("inside")
        assert Target.current() is outer
    assert Target.current() is None


def test_threads_and_tasks_have_their_own_current_target() -> None:
    found: list[Target | None] = []
    with Target(ZEN5):
        thread = threading.Thread(target=lambda: found.append(Target.current()))
        thread.start()
        thread.join()
    assert found == [None]

    async def inside(text: str) -> bool:
        with Target(text) as t:
            await asyncio.sleep(0)
            return Target.current() is t

    async def both() -> list[bool]:
        return list(await asyncio.gather(inside(ZEN5), inside("opencl")))

    assert asyncio.run(both()) == [True, True]


# ---- the JSON of TVM ---------------------------------------------------------------------------------------------------------

EXPORTS = {
    "processor": (
        {"kind": "llvm", "tag": "", "keys": ["cpu"], "num-cores": 8, "mcpu": "skylake-avx512"},
        "llvm -mcpu=skylake-avx512 -num-cores=8",
        (),
    ),
    "tag": (
        {"kind": "llvm", "tag": "aws/cpu/c5.2xlarge", "keys": ["x86", "cpu"], "num-cores": 4, "mcpu": "skylake-avx512"},
        "llvm -mcpu=skylake-avx512 -num-cores=4",
        ("tag",),
    ),
    "this machine": (
        {"kind": "llvm", "tag": "", "keys": ["cpu"], "opt-level": 3, "fast-math-nnan": True, "vector-width": 128},
        "llvm -vector-bits=128",
        ("fast-math-nnan", "opt-level"),
    ),
    "vendor of the triple": (
        {"kind": "llvm", "tag": "", "keys": ["cpu"], "mcpu": "znver5", "num-cores": 2, "mtriple": "x86_64-conda-linux-gnu"},
        ZEN5,
        (),
    ),
    "raspberry": (
        {
            **{"kind": "llvm", "tag": "", "keys": ["arm_cpu", "cpu"], "host": {"kind": "llvm", "tag": "", "keys": ["arm_cpu", "cpu"]}},
            **{"feature.has_sve": False, "feature.is_aarch64": True, "num-cores": 4, "mcpu": "cortex-a72"},
            **{"mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "libs": ["cblas"]},
        },
        "llvm -mcpu=cortex-a72 -mattr=+neon -num-cores=4 -libs=blas",
        ("feature.has_sve", "feature.is_aarch64", "host"),
    ),
    "riscv": (
        {
            **{"kind": "llvm", "tag": "", "keys": ["riscv_cpu", "cpu"], "mabi": "lp64d", "mtriple": "riscv64-unknown-linux-gnu"},
            **{"mcpu": "sifive-u74", "model": "sifive-u74", "device": "riscv_cpu", "num-cores": 4},
        },
        "riscv/sifive-u74",
        ("device", "mabi", "model"),
    ),
    "a100": (
        {
            **{"kind": "cuda", "tag": "", "keys": ["cuda", "gpu"], "max_num_threads": 1024, "registers_per_block": 65536},
            **{"thread_warp_size": 32, "max_shared_memory_per_block": 49152, "l2_cache_size_bytes": 41943040},
            **{"max_threads_per_block": 1024, "arch": "sm_80", "libs": ["cudnn", "cublas"]},
        },
        "cuda -arch=sm_80 -shared-memory-per-block=49152 -l2-bytes=41943040",
        ("libs=cublas", "libs=cudnn", "registers_per_block"),
    ),
    "cuda with a host": (
        {
            **{"kind": "cuda", "tag": "", "keys": ["cuda", "gpu"], "arch": "sm_90", "max_num_threads": 1024, "thread_warp_size": 32},
            "host": {
                "kind": "llvm",
                "tag": "",
                "keys": ["arm_cpu", "cpu"],
                "mcpu": "neoverse-v2",
                "num-cores": 72,
                "feature.has_sve": True,
            },
        },
        "cuda -arch=sm_90 -host='llvm -mcpu=neoverse-v2 -num-cores=72'",
        (),
    ),
    "opencl": (
        {
            **{"kind": "opencl", "tag": "", "keys": ["opencl", "gpu"], "image_base_address_alignment": 64, "max_function_args": 128},
            **{"texture_depth_limit": 2048, "texture_spatial_limit": 16384, "thread_warp_size": 1, "max_num_threads": 256},
            **{"max_shared_memory_per_block": 16384, "max_threads_per_block": 256},
        },
        "opencl -shared-memory-per-block=16384",
        ("image_base_address_alignment", "max_function_args", "texture_depth_limit", "texture_spatial_limit"),
    ),
    "c": (
        {"kind": "c", "tag": "", "keys": ["cpu"], "march": "armv7e-m", "mcpu": "znver5", "num-cores": 2},
        ZEN5.replace("llvm", "c"),
        ("march",),
    ),
}
"""What TVM 0.19 and 0.27 export: the JSON, the same target here, and what is ignored."""


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_tvm_are_read(name: str) -> None:
    data, text, ignored = EXPORTS[name]
    for given in (data, json.dumps(data), json.dumps(data).replace("/", r"\/")):
        t = Target(given)
        assert t == Target(text) and t.ignored == ignored
    assert Target(text).ignored == () and Target(t).ignored == ignored


@pytest.mark.parametrize("kind", ["vulkan", "metal", "rocm", "webgpu", "hexagon", "nvptx"])
def test_kinds_of_tvm_without_a_backend_are_refused_by_name(kind: str) -> None:
    for spec in (kind, {"kind": kind, "tag": "", "keys": [kind, "gpu"], "max_num_threads": 256}):
        with pytest.raises(TargetError, match=f"{kind} is a target kind of TVM for which tunesmith has no backend. Known kinds: llvm"):
            Target(spec)


def test_misspelled_attributes_of_an_export_are_refused() -> None:
    with pytest.raises(TargetError, match="unknown attribute 'num-core'.*Did you mean 'num_cores'"):
        Target({"kind": "llvm", "tag": "", "keys": ["cpu"], "num-core": 8})
    with pytest.raises(TargetError, match="attribute 'max_threads_per_block' is given twice"):
        Target({"kind": "cuda", "arch": "sm_80", "max_num_threads": 512, "max_threads_per_block": 1024})


def test_hosts_without_a_number_of_cores() -> None:
    here = detect_host()
    found = Target({"kind": "cuda", "model": "h100", "host": {"kind": "llvm", "mcpu": here.mcpu}})
    assert found.host.mcpu == here.mcpu and found.host.num_cores == here.num_cores
    other = "apple-m1" if here.mcpu != "apple-m1" else "znver5"
    for spec in (
        {"kind": "cuda", "model": "h100", "host": {"kind": "llvm", "mcpu": other}},
        f"cuda -model=h100 -host='llvm -mcpu={other}'",
    ):
        with pytest.raises(TargetError, match=f'target .*: host: the number of cores of {other} is missing. Add "num-cores": N'):
            Target(spec)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="target 'cuda -model=h100 -host=llwm': host: target 'llwm': unknown target kind"):
        Target("cuda -model=h100 -host=llwm")


def test_the_machines_are_named() -> None:
    with pytest.raises(TargetError, match="mtriple 'armv7-linux-gnueabihf' names .* code is generated for x86-64, aarch64 and riscv64"):
        Target("llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a72 -num-cores=4")
