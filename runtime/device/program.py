"""Describe device programs as serialisable data: code, kernels, and the kernel launches of each function.

A device function is a list of launches, in order, on one stream.  The arguments of a launch are indices into the parameters of the
function followed by its workspaces, device memory allocated for the duration of a call.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import RunError

MAGIC = b"tunesmith device program 1\n"
"""First bytes of a serialised program; the number is the version of the format."""

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: name of the kernel in the code.
        arguments: for each pointer, the index of a parameter of the function or, offset by their number, of a workspace.
        grid: blocks along x, y, z.
        block: threads of a block along x, y, z.
        shared_bytes: dynamic shared memory, in addition to that declared by the kernel.
    """

    kernel: str
    arguments: tuple[int, ...]
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A device function.

    Attributes:
        name: name of the function.
        params: its parameters.
        workspaces: size of each workspace in bytes.
        launches: the launches of a call.
    """

    name: str
    params: tuple[ParamSpec, ...]
    workspaces: tuple[int, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resource usage of a kernel, as reported by the compiler.

    Attributes:
        registers: registers per thread.
        spill_bytes: bytes of register spills, stores and loads.
        stack_bytes: stack per thread: spills, and arrays that are indexed at run time.
        shared_bytes: shared memory declared by the kernel.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A program for one kind of device.

    Attributes:
        kind: `cuda` or `opencl`.
        arch: architecture of the code, for example `sm_90`; empty if any device of the kind accepts it.
        code: a cubin; for OpenCL, source text in UTF-8.
        functions: the functions, in order.
        resources: resource usage by kernel, if the compiler reports it.
    """

    kind: str
    arch: str
    code: bytes
    functions: tuple[DeviceFunction, ...]
    resources: dict[str, KernelResources] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Serialise the program; equal programs give equal bytes."""
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
        """Deserialise the bytes of `to_bytes`.

        Raises:
            RunError: the bytes are not a device program.
        """
        if not data.startswith(MAGIC):
            raise RunError("these bytes are not a device program: they have no program header. Build it again")
        try:
            length, _, rest = data[len(MAGIC) :].partition(b"\n")
            size = int(length)
            if not 0 <= size <= len(rest):
                raise ValueError(f"the header has {size} bytes, but only {len(rest)} bytes follow")
            head = json.loads(rest[:size])
            functions = tuple([_function(f) for f in head["functions"]])
            resources = {str(k): KernelResources(**_integers(r)) for k, r in head["resources"].items()}
            return DeviceProgram(str(head["kind"]), str(head["arch"]), rest[size:], functions, resources)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"the device program is damaged: {error}. Build it again") from None


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
            raise ValueError(f"the launch of {x['kernel']} has an argument index out of range")
        launches.append(Launch(str(x["kernel"]), arguments, _dims(x["grid"]), _dims(x["block"]), int(x["shared_bytes"])))
    return DeviceFunction(str(data["name"]), params, workspaces, tuple(launches))
