"""Freed memory returns to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from pathlib import Path
from tunesmith.support.free_memory import return_free_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

made = [bytearray(600) for _ in range(400_000)]
kept = made[::400]
del made
before = resident()
return_free_memory()
print(before - resident(), len(kept))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_between_living_objects_return() -> None:
    """Of 240 MB, all but a few objects are freed."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) > 100 << 20
