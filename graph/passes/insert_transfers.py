"""Insert copies between devices, where the operand of a call is in other memory than that of its function.

Parameters are in host memory, and results of a call in the memory of the device that runs its function (attribute `device`).  A tensor is
copied to a device at most once in a region.  The condition of a branch or a loop, and a tensor from which a size is
read, is copied to the host; a result that the branches compute on
different devices is copied to that of the first.  Values that a loop carries stay where their initial values are.  Results of the function
stay where they are computed.  Relax calls this pass RealizeVDevice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, If, Loop, Operand, Operation, ReadSize, Region, Value, While
from tunesmith.graph.passes.place_functions import HOST, device_of
from tunesmith.ir.function import IRModule


def insert_transfers(mod: IRModule) -> IRModule:
    """Insert a `transfer` for each operand that is not on the device of the function that reads it.

    Graph functions that are called must be inlined (`graph.passes.inline_functions`), except those of external code generators.
    """
    if all(device_of(f) == HOST for f in mod.values()):
        return mod
    return mod.update({name: _Inserter(mod)(f) for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is None})


class _Inserter:
    def __init__(self, mod: Mapping[str, Any]) -> None:
        self._mod = mod
        self._devices: dict[Value, str] = {}
        """Of values that are not in host memory."""

    def __call__(self, func: GraphFunc) -> GraphFunc:
        build = RegionBuilder()
        results = self._fill(func.body, build, {})
        return func.with_(body=Region(tuple(build.bindings), results))

    def _fill(self, region: Region, build: RegionBuilder, outer: Mapping[tuple[Operand, str], Operand]) -> tuple[Operand, ...]:
        """Append the bindings of a region; `outer` are the copies that enclosing regions made."""
        copies = dict(outer)

        def on(o: Operand, device: str) -> Operand:
            if self._device(o) == device:
                return o
            if (o, device) not in copies:
                (copy,) = build.bind(Call("transfer", (o,), (("device", device),)), [o.type], o.name)
                copies[o, device] = copy
                self._set(copy, device)
            return copies[o, device]

        for b in region.bindings:
            op = b.operation
            made: Operation = op
            where = [HOST] * len(b.results)
            if isinstance(op, CallFunction):
                device = device_of(self._mod[op.function])
                made, where = replace(op, args=tuple([on(a, device) for a in op.args])), [device] * len(b.results)
            elif isinstance(op, Call):
                where = [self._device(op.args[0])] * len(b.results) if op.args else where
            elif isinstance(op, If):
                then = self._inner(op.then, copies)
                where = [self._device(r) for r in then.results]
                made = If(on(op.condition, HOST), then, self._inner(op.otherwise, copies, where))
            elif isinstance(op, Loop):
                made, where = self._loop(op, copies)
            elif isinstance(op, While):
                made, where = self._while_loop(op, copies)
            elif isinstance(op, ReadSize):
                made = replace(op, value=on(op.value, HOST))
            build.bindings.append(b if made is op else Binding(b.results, made))
            for v, device in zip(b.results, where, strict=True):
                self._set(v, device)
        return region.results

    def _inner(self, region: Region, copies: Mapping[tuple[Operand, str], Operand], wanted: list[str] | None = None) -> Region:
        """A region of an operation, with its results on the wanted devices."""
        build = RegionBuilder()
        results = list(self._fill(region, build, copies))
        for i, device in enumerate(wanted or []):
            r = results[i]
            if self._device(r) != device:
                (results[i],) = build.bind(Call("transfer", (r,), (("device", device),)), [r.type], r.name)
                self._set(results[i], device)
        return Region(tuple(build.bindings), tuple(results))

    def _loop(self, op: Loop, copies: Mapping[tuple[Operand, str], Operand]) -> tuple[Loop, list[str]]:
        carried = self._carried(op)
        wanted = [*carried, *[device_of(self._mod[s]) for s in op.stores]]
        return replace(op, body=self._inner(op.body, copies, wanted)), wanted

    def _while_loop(self, op: While, copies: Mapping[tuple[Operand, str], Operand]) -> tuple[While, list[str]]:
        carried = self._carried(op)
        return replace(op, condition=self._inner(op.condition, copies, [HOST]), body=self._inner(op.body, copies, carried)), carried

    def _carried(self, op: Loop | While) -> list[str]:
        """The devices of the values that a loop carries."""
        carried = [self._device(o) for o in op.initial]
        for p, device in zip(op.params, carried, strict=True):
            self._set(p, device)
        return carried

    def _device(self, o: Operand) -> str:
        return HOST if isinstance(o, Constant) else self._devices.get(o, HOST)

    def _set(self, v: Operand, device: str) -> None:
        if isinstance(v, Value) and device != HOST:
            self._devices[v] = device
