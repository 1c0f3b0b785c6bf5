"""Define a target kind and a target tag, detect which one this machine is, and keep its records apart.

A tag is a name for a kind with attributes.  A kind is based on a built-in one, whose code generator, rules and attributes it has; programs
for it are searched and recorded separately.  Use a kind for a simulator, for example, or for machines that must not share records.

    python examples/own_target.py
"""

from pathlib import Path

import numpy as np

import tunesmith
from tunesmith.ir.target.attributes import TARGET_KINDS, TARGET_TAGS, TargetKind
from tunesmith.ir.target.detect import detect_host

LOG = Path("own_target.jsonl")
WORKLOAD = "relu(shape=64x64)"

# Names that a program registers are known in its process only.  A package registers them for worker processes too, with entry points of
# the groups `tunesmith.target_kind` and `tunesmith.target_tag`: see docs/extending.md.
TARGET_KINDS.register("labcpu", TargetKind(like="llvm", defaults={"num_cores": 1, "l3_bytes": 8 << 20}))
TARGET_TAGS.register("lab/small", {"kind": "labcpu", "mcpu": "x86-64-v2"})
TARGET_TAGS.register("lab/large", {"kind": "labcpu", "mcpu": "x86-64-v3", "num_cores": 2})


def detect():
    """The target of this machine: a tag if its processor has what the tag asks for, else the kind with detected attributes.

    `detect_host` reads the processor, its caches, and the cores that the process may use; it measures nothing.
    """
    host = detect_host()
    if host.arch != "x86_64":
        return tunesmith.Target("labcpu")
    return tunesmith.Target("lab/large" if "avx2" in host.features and host.num_cores >= 2 else "lab/small")


def tune(target):
    """A search for the target.  workers=0 runs it in this process, where the kind is registered."""
    search = tunesmith.Search(batch=2, leaders=0, seed=0)
    return tunesmith.tune(WORKLOAD, target, LOG, budget=2, search=search, workers=0, progress=False)


def main():
    # Attributes that are not given come from the defaults of the kind, then from the tables of processors or from this machine.
    for spec in ("lab/small", "lab/large", "lab/large -num-cores=4", "labcpu -mcpu=x86-64-v4"):
        target = tunesmith.Target(spec)
        print(f"{spec!r} is {target}: {target.vector_bits} bits, {target.num_cores} cores, code of {target.base!r}")

    here = detect()
    print(f"\nthis machine: {here}")
    print(f"identity, which records are looked up by: {here.key}")

    print(f"trials: {tune(here).tasks[0].trials}")
    for target in (here, tunesmith.Target.detect()):
        module = tunesmith.compile(WORKLOAD, target, records=LOG)
        x = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
        y = np.empty_like(x)
        module(x, y)
        assert np.array_equal(y, np.maximum(x, 0))
        print(f"compiled for {target.kind}: record {module.coverage[0].status}")


if __name__ == "__main__":
    main()
