"""A kind of target, and a tag."""

from tunesmith.ir.target.attributes import TargetKind

SIMCPU = TargetKind(like="llvm", defaults={"num_cores": 2})
BOX = {"kind": "llvm", "mcpu": "x86-64-v3", "num_cores": 4}
