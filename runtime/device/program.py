"""What a device runs: code, kernels, and for each function the launches that make up a call.  Plain data, which travels as bytes.

A function of a GPU is a list of launches, in order, on one stream.  Arguments of a launch are positions: first the parameters of the
function, then its workspaces, memory of the device that lives for the call.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import RunError

MAGIC = b"tunesmith device program 1\n"
"""What the bytes of a program start with; the number changes with the format."""

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: its name in the code.
        arguments: for each of its pointers which parameter of the function, or, behind these, which workspace.
        grid: blocks along x, y, z.
        block: threads of a block along x, y, z.
        shared_bytes: shared memory that is given at the launch, beside what the kernel declares.
    """

    kernel: str
    arguments: tuple[int, ...]
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """One function.

    Attributes:
        name: as it is called.
        params: its arguments.
        workspaces: bytes of each.
        launches: what a call does.
    """

    name: str
    params: tuple[ParamSpec, ...]
    workspaces: tuple[int, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What the compiler says that a kernel takes.

    Attributes:
        registers: of a thread.
        spill_bytes: stored to and loaded from memory for want of registers.
        stack_bytes: of a thread: spills, and arrays that are indexed at run time.
        shared_bytes: declared by the kernel.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Functions of one device kind.

    Attributes:
        kind: `cuda` or `opencl`.
        arch: what the code is for: `sm_90`; empty where any device of the kind takes it.
        code: a cubin; for OpenCL source text in UTF-8.
        functions: in order.
        resources: of each kernel, where the compiler tells.
    """

    kind: str
    arch: str
    code: bytes
    functions: tuple[DeviceFunction, ...]
    resources: dict[str, KernelResources] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The program: equal programs are equal bytes."""
        head = {
            "arch": self.arch,
            "functions": [asdict(f) for f in self.functions],
            "kind": self.kind,
            "resources": {k: asdict(r) for k, r in sorted(self.resources.items())},
        }
        text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        return b"%s%d\n%s%s" % (MAGIC, len(text), text, self.code)

    @staticmethod
    def from_bytes(data: bytes) -> DeviceProgram:
        """The program of `to_bytes`.

        Raises:
            RunError: the bytes are none.
        """
        if not data.startswith(MAGIC):
            raise RunError("these bytes are no program for a device: they do not begin as one. Build it again")
        try:
            length, _, rest = data[len(MAGIC) :].partition(b"\n")
            size = int(length)
            if not 0 <= size <= len(rest):
                raise ValueError(f"{size} bytes of a head are announced, and {len(rest)} are there")
            head = json.loads(rest[:size])
            functions = tuple([_function(f) for f in head["functions"]])
            resources = {str(k): KernelResources(**_integers(r)) for k, r in head["resources"].items()}
            return DeviceProgram(str(head["kind"]), str(head["arch"]), rest[size:], functions, resources)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"the program for a device is damaged: {error}. Build it again") from None


def _integers(data: dict[str, Any]) -> dict[str, int]:
    return {str(k): int(v) for k, v in data.items()}


def _dims(values: Any) -> Dim3:
    x, y, z = [int(v) for v in values]
    if min(x, y, z) < 1:
        raise ValueError(f"the extents {[x, y, z]} of a launch")
    return x, y, z


def _function(data: dict[str, Any]) -> DeviceFunction:
    params = tuple([ParamSpec(p["name"], p["dtype"], tuple([int(n) for n in p["shape"]]), bool(p["written"])) for p in data["params"]])
    workspaces = tuple([int(n) for n in data["workspaces"]])
    launches = []
    for x in data["launches"]:
        arguments = tuple([int(n) for n in x["arguments"]])
        if any(not 0 <= n < len(params) + len(workspaces) for n in arguments) or min((*workspaces, int(x["shared_bytes"])), default=0) < 0:
            raise ValueError(f"the launch of {x['kernel']} takes an argument that there is not")
        launches.append(Launch(str(x["kernel"]), arguments, _dims(x["grid"]), _dims(x["block"]), int(x["shared_bytes"])))
    return DeviceFunction(str(data["name"]), params, workspaces, tuple(launches))
