"""Two kinds of target, and a tag."""

from tunesmith.ir.target.attributes import Attribute, TargetKind

SIMCPU = TargetKind(like="llvm", defaults={"num_cores": 2})
NPU = TargetKind(
    like="llvm",
    defaults={"mcpu": "cortex-a72", "num_cores": 4},
    attributes=(
        Attribute("scratchpad_bytes", int, identity=True, doc="on-chip memory of a core", unit="bytes", default=65536),
        Attribute("dma_gbs", float, doc="rate of copies to the scratchpad", unit="GB/s", default=12.5),
    ),
    keys=("npu", "accelerator"),
)
BOX = {"kind": "llvm", "mcpu": "x86-64-v3", "num_cores": 4}
