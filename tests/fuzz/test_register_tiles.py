"""Fuzz register tiles: filled, partly overwritten under guards, and read shifted, reversed or strided, with any vector length.

Each program has one buffer between two parameters, in registers or elsewhere, with loops split by factors that no vector length
divides.  Results for three vector widths are compared with the interpreted unscheduled program.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.runtime.arrays import tensor
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream

PROGRAMS = int(os.environ.get("TUNESMITH_FUZZ_TILES", "12"))
TARGETS = tuple(
    Target(f"llvm -num-cores=1 {x}") for x in ("-mcpu=x86-64-v3 -vector-bits=128", "-mcpu=x86-64-v3", "-mcpu=x86-64-v3 -vector-bits=64")
)
"""Targets that every test machine supports; `Target.detect()` is added."""
DTYPES = ("float32", "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "uint32", "bool")


class Draw:
    """Random choices."""

    def __init__(self, seed: int) -> None:
        self.rng = stream(seed, "fuzz.register_tiles")

    def number(self, low: int, high: int) -> int:
        """An integer in the inclusive range."""
        return int(self.rng.integers(low, high + 1))

    def one(self, choices: Any) -> Any:
        """A random element."""
        return choices[self.number(0, len(choices) - 1)]


def program(d: Draw) -> tuple[str, PrimFunc]:
    """The element type and the program."""
    kind, rows, size = d.one(DTYPES), d.number(1, 4), d.number(2, 21)
    filled = d.number(1, size)
    offset, across = d.number(0, size - filled), d.one((False, False, True))
    guard = d.one(("", f"T.where(j < {d.number(1, filled)})", "T.where(i < j)", "T.where(j - i * 3 < 2)"))
    where, inside, other = read(d, size)
    zero, seven = ("False", "True") if kind == "bool" else (f"T.{kind}({n})" for n in ("0", "7"))
    if dt.is_float(kind):
        zero, seven = (f"T.{kind}({n}.0)" for n in (0, 7))
    value = "not A[vi, vj]" if kind == "bool" else f"A[vi, vj] + {seven}"
    shape = (size, rows) if across else (rows, size)

    def at(column: str) -> str:
        return f"{column}, vi" if across else f"vi, {column}"

    together = d.one((True, False))
    nests = [
        ("Z", size, f"B[{at('vj')}] = {seven}", ""),
        ("B", filled, f"B[{at(f'vj + {offset}')}] = {value}", guard),
        ("C", other, f"C[vi, vj] = B[{at(where)}] if {inside} else {zero}" if inside else f"C[vi, vj] = B[{at(where)}]", ""),
    ]
    text = f"""
@T.prim_func
def f(A: T.Buffer(({rows}, {filled}), "{kind}"), C: T.Buffer(({rows}, {other}), "{kind}")):
    B = T.alloc_buffer({shape}, "{kind}")
"""
    for n, (name, extent, body, condition) in enumerate(nests):
        if n == 0 or not together:
            text += f"    for i in T.serial({rows}):\n"
        text += f"""        for j in T.serial({extent}):
            with T.block("{name}"):
                vi = T.axis.spatial({rows}, i)
                vj = T.axis.spatial({extent}, j)
"""
        text += (f"                {condition}\n" if condition else "") + f"                {body}\n"
    func = parse(text)
    assert isinstance(func, PrimFunc)
    return kind, func


def read(d: Draw, size: int) -> tuple[str, str, int]:
    """The column to read, its condition, and the number of output columns."""
    shift = d.number(0, size)
    return d.one(
        (
            ("vj", "", size),
            (f"vj + {shift}", f"vj + {shift} < {size}", size),
            (f"vj + {shift}", f"vj + {shift} < {size}", size + 3),
            (f"{size - 1} - vj", "", size),
            ("vj * 2", f"vj * 2 < {size}", size),
            ("vj * 2", "", (size + 1) // 2),
            ("vj // 2", "", size),
        )
    )


def scheduled(d: Draw, func: PrimFunc) -> Schedule:
    """The program with random splits, vectorized and unrolled loops."""
    s = Schedule(func)
    s.set_scope(s.get_block("B"), d.one(("register", "register", "register", "workspace", "global")))
    unrolled = d.one((True, False))
    for name in ("Z", "B", "C"):
        i, j = s.get_loops(s.get_block(name))[-2:]
        how = d.number(0, 5)
        if how < 4:
            if how:
                o, j = s.split(j, [None, d.number(1, 9)])
                if d.one((True, False)):
                    s.unroll(o)
            s.vectorize(j)
        elif how == 4:
            s.unroll(j)
        if unrolled and s.loop(i).kind == "serial":
            s.unroll(i)
    return s


def data(kind: str, shape: tuple[int, ...], d: Draw) -> np.ndarray:
    """Small numbers that are exact in every type."""
    values = d.rng.integers(0, 2 if kind == "bool" else 100, shape)
    return values.astype(dt.to_numpy(kind))


def called(code: bytes, kind: str, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The output of the compiled function; bfloat16 is the upper half of float32, which is exact for the numbers of these tests."""
    if kind != "bfloat16":
        out = c.copy()
        Module.from_object(code)["f"](a, out)
        return out
    halves = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, c)]
    Module.from_object(code)["f"](*[tensor(x, kind) for x in halves])
    return (halves[1].astype(np.uint32) << 16).view(np.float32)


def differences(seed: int) -> list[str]:
    """Descriptions of all wrong results."""
    d = Draw(seed)
    kind, func = program(d)
    a = data(kind, tuple(e.as_int() for e in func.params[0].shape), d)  # type: ignore[union-attr]
    shape = tuple(e.as_int() for e in func.params[1].shape)  # type: ignore[union-attr]
    poison = np.full(shape, 1).astype(a.dtype)
    want = run(func, [a, poison.copy()])[-1]
    s = scheduled(d, func)
    out = []
    for target in (*TARGETS, Target.detect()):
        got = called(build(s.func, target).data, kind, a, poison)
        if not np.array_equal(got, want):
            out.append(f"seed {seed}, {target}:\n{s.func}\nwrong elements: {np.argwhere(got != want).tolist()}")
    return out


@pytest.mark.parametrize("part", range(4))
def test_random_tiles_agree_with_the_interpreter(part: int) -> None:
    wrong = [x for seed in range(part, PROGRAMS, 4) for x in differences(seed)]
    assert not wrong, "\n\n".join(wrong[:3])
