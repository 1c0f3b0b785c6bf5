"""Test that illegal uses of emulated AMX end the process by the signal of the processor, after a line that names the rule."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np

from tunesmith.testing.amx_emulator import Counts
from tunesmith.testing.amx_model import configuration

ALL_TILES = configuration(dict.fromkeys(range(8), (16, 64)))


def changed(**bytes_at: int) -> np.ndarray:
    """The configuration of all tiles with some bytes changed, for example b17=3."""
    data = ALL_TILES.copy()
    for name, value in bytes_at.items():
        data[int(name[1:])] = value
    return data


ILLEGAL_CONFIGURATIONS = {
    "there is no palette 2": changed(b0=2),
    "the reserved byte 2 of the configuration is 1, not 0": changed(b2=1),
    "the reserved byte 33 of the configuration is 9, not 0": changed(b33=9),
    "the reserved byte 63 of the configuration is 255, not 0": changed(b63=255),
    "tmm3 has 17 rows, more than 16": changed(b51=17),
    "tmm7 has 320 bytes a row, more than 64": changed(b31=1),
    "tmm0 has 65 bytes a row, more than 64": changed(b16=65),
    "tmm5 has 0 rows and 64 bytes a row: one is 0, the other is not": changed(b53=0),
    "tmm1 has 16 rows and 0 bytes a row: one is 0, the other is not": changed(b18=0),
}


def test_illegal_configurations_end_the_process(emulator: Counts, assembly: Any, end_of: Any) -> None:
    run = assembly(run="ldtilecfg (%rdi)")("run")
    for sentence, data in ILLEGAL_CONFIGURATIONS.items():
        assert end_of(lambda data=data: run(data)) == (signal.SIGSEGV, f"AMX emulator: ldtilecfg: {sentence} (#GP)\n")
    assert end_of(lambda: run(ALL_TILES)) == (0, "")


PRODUCT = "tdpbssd %tmm2, %tmm1, %tmm0"
LOAD = "mov $$64, %eax\ntileloadd (%rsi,%rax), %tmm1"
STORE = "mov $$64, %eax\ntilestored %tmm1, (%rsi,%rax)"
ILLEGAL_USES: dict[str, tuple[str, np.ndarray]] = {
    "tilezero: tiles are not configured, tmm3 was used": ("tilerelease\ntilezero %tmm3", ALL_TILES),
    "tileloadd: tiles are not configured, tmm1 was used": (f"tilerelease\n{LOAD}", ALL_TILES),
    "tdpbssd: tiles are not configured, tmm0 was used": (PRODUCT, configuration({}, palette=0)),
    "tilezero: tmm4 is not configured: it has 0 rows": ("tilezero %tmm4", configuration({1: (1, 4)})),
    "tilestored: tmm1 is not configured: it has 0 rows": (STORE, configuration({0: (1, 4)})),
    "tdpbssd: tmm2 is not configured: it has 0 rows": (PRODUCT, configuration({0: (1, 4), 1: (1, 4)})),
    "tdpbf16ps: the tiles tmm0, tmm1, tmm1 are not three different ones": (".byte 0xc4,0xe2,0x72,0x5c,0xc1", ALL_TILES),
    "tdpbusd: the tiles tmm5, tmm5, tmm1 are not three different ones": (".byte 0xc4,0xe2,0x71,0x5e,0xed", ALL_TILES),
    "tdpbuud: the tiles tmm5, tmm1, tmm5 are not three different ones": (".byte 0xc4,0xe2,0x50,0x5e,0xe9", ALL_TILES),
    "tdpbssd: bytes a row differ: 8 in tmm0, 12 in tmm2": (PRODUCT, configuration({0: (2, 8), 1: (2, 16), 2: (4, 12)})),
    "tdpbssd: rows differ: 2 in tmm0, 3 in tmm1": (PRODUCT, configuration({0: (2, 8), 1: (3, 16), 2: (4, 8)})),
    "tdpbssd: a quarter of the bytes a row of tmm1, 4, is not the rows of tmm2, 5": (
        PRODUCT,
        configuration({0: (2, 8), 1: (2, 16), 2: (5, 8)}),
    ),
    "tdpbssd: tmm0 has 7 bytes a row, no multiple of 4": (PRODUCT, configuration({0: (2, 7), 1: (2, 16), 2: (4, 7)})),
    "tileloadd: tmm1 has 7 bytes a row, no multiple of 4": (LOAD, configuration({1: (2, 7)})),
    "tileloadd: the start row 2 is not below the 2 rows of tmm1": (LOAD, configuration({1: (2, 8)}, start_row=2)),
    "tilestored: the start row 9 is not below the 2 rows of tmm1": (STORE, configuration({1: (2, 8)}, start_row=9)),
    "tilezero: tmm9 is beyond the palette, which ends with tmm7": (".byte 0xc4,0x62,0x7b,0x49,0xc8", ALL_TILES),
    "tdpbssd: tmm10 is beyond the palette, which ends with tmm7": (".byte 0xc4,0xe2,0x2b,0x5e,0xc1", ALL_TILES),
    "tdpbssd: tmm9 is beyond the palette, which ends with tmm7": (".byte 0xc4,0xc2,0x6b,0x5e,0xc1", ALL_TILES),
}
"""Line on stderr -> instructions after ldtilecfg, configuration."""

UNKNOWN = {
    "ud2": "ud2",
    "of another opcode map": ".byte 0xc4,0xe3,0x7b,0x49,0xc0",
    "W is set": ".byte 0xc4,0xe2,0xfb,0x49,0xc0",
    "L is set": ".byte 0xc4,0xe2,0x7f,0x49,0xc0",
    "vvvv is used": ".byte 0xc4,0xe2,0x73,0x49,0xc0",
    "a load without SIB": ".byte 0xc4,0xe2,0x7b,0x4b,0x0e",
    "a store to a register": ".byte 0xc4,0xe2,0x7a,0x4b,0xcc",
    "ldtilecfg with a register field": ".byte 0xc4,0xe2,0x78,0x49,0x0f",
    "tilerelease with operands": ".byte 0xc4,0xe2,0x78,0x49,0xc1",
    "tilezero with two tiles": ".byte 0xc4,0xe2,0x7b,0x49,0xc1",
}
"""Instructions that are no valid ones of AMX, nor of another extension."""


def test_illegal_uses_end_the_process(emulator: Counts, assembly: Any, end_of: Any) -> None:
    bodies = [*(body for body, _ in ILLEGAL_USES.values()), *UNKNOWN.values()]
    find = assembly(**{f"run{i}": f"ldtilecfg (%rdi)\n{body}" for i, body in enumerate(bodies)})
    memory = np.zeros((16, 64), np.uint8)
    for i, (sentence, (_, data)) in enumerate(ILLEGAL_USES.items()):
        assert end_of(lambda i=i, data=data: find(f"run{i}")(data, memory)) == (signal.SIGILL, f"AMX emulator: {sentence} (#UD)\n")
    for i, name in enumerate(UNKNOWN):
        assert end_of(lambda i=i: find(f"run{len(ILLEGAL_USES) + i}")(ALL_TILES, memory)) == (signal.SIGILL, ""), name


def test_memory_faults_are_ordinary(amx: Counts, assembly: Any, end_of: Any) -> None:
    load, store = (f"ldtilecfg (%rdi)\n{body}" for body in (LOAD, STORE))
    find = assembly(config="ldtilecfg (%rsi)", load=load, store=store, keep="ldtilecfg (%rdi)\nsttilecfg 1(%rsi)")
    for name in ("config", "load", "store", "keep"):
        assert end_of(lambda name=name: find(name)(ALL_TILES, 16)) == (signal.SIGSEGV, ""), name
