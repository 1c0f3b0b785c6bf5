"""Assign functions to targets, so that parts of a model run on another device, or on the host.

The target of a function is its attribute `target`, text that `Target` parses; functions without it are compiled for the target of the
model.  A function that the backend of a device cannot compile is assigned to the host: one with dynamic shapes, and one that copies a row
whose number is an argument.  `graph.passes.insert_transfers` then copies tensors between devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.offload.external_codegen import external_functions
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean

HOST = "cpu"
"""The kind of device of host memory, and of functions that run on the host."""
TARGET, DEVICE = "target", "device"
"""Attributes of a function: the target that it is compiled for, and the kind of device that runs the compiled function."""


def place_functions(mod: IRModule, target: Target, places: Iterable[tuple[str, Target]] = (), host: Target | None = None) -> IRModule:
    """Give each function that is not compiled for `target` the attribute `target`.

    Args:
        mod: a legalised module.
        target: target of the model.
        places: patterns of function names (`fnmatch`), and the targets of the functions that they match; the first match counts.
        host: target of functions that the backend of `target` cannot compile; by default this machine.
    Raises:
        UserError: a pattern matches no function.
    """
    places = tuple(places)
    functions = {name: f for name, f in mod.items() if isinstance(f, PrimFunc)}
    for pattern, _ in places:
        if not any(fnmatchcase(name, pattern) for name in functions):
            external = [name for name in external_functions(mod) if fnmatchcase(name, pattern)]
            if external:
                raise UserError(f"place={pattern!r}: {external[0]} is compiled by an external code generator, which runs on the host only")
            raise UserError(
                f"place={pattern!r} matches no function of the model.{did_you_mean(pattern, functions, 0.5)} "
                f"Its functions: {', '.join(functions) or 'none'}"
            )
    placed = {}
    for name, f in functions.items():
        chosen = next((t for pattern, t in places if fnmatchcase(name, pattern)), target)
        if backend_of(chosen).device and sizes_of(f):
            chosen = host or Target.detect()
        if chosen.key != target.key:
            placed[name] = _with(f, TARGET, str(chosen))
    return mod.update(placed) if placed else mod


def target_of(func: PrimFunc, target: Target) -> Target:
    """The target that a function is compiled for: its own, or else that of the model."""
    own = func.attr(TARGET)
    return target if own is None else Target(str(own))


def unplaced(func: PrimFunc) -> PrimFunc:
    """The function without its target: records do not depend on where a function is called."""
    return func if func.attr(TARGET) is None else func.with_(attrs=tuple([a for a in func.attrs if a[0] != TARGET]))


def placed_like(func: PrimFunc, other: PrimFunc) -> PrimFunc:
    """The function with the target of another one."""
    own = other.attr(TARGET)
    return func if own is None or func.attr(TARGET) == own else _with(func, TARGET, str(own))


def with_devices(mod: IRModule, target: Target) -> IRModule:
    """Give each function that runs on a device the attribute `device`."""
    found = {n: backend_of(target_of(f, target)).device for n, f in mod.items() if isinstance(f, PrimFunc)}
    placed = {name: _with(mod[name], DEVICE, device) for name, device in found.items() if device}
    return mod.update(placed) if placed else mod


def device_of(func: object) -> str:
    """The kind of device that runs a function of a module: its attribute `device`, else `HOST`."""
    own = func.attr(DEVICE) if isinstance(func, (PrimFunc, GraphFunc)) else None
    return HOST if own is None else str(own)


def _with(func: PrimFunc, key: str, value: str) -> PrimFunc:
    return func.with_(attrs=tuple(sorted([*[a for a in func.attrs if a[0] != key], (key, value)], key=lambda a: a[0])))
