"""Arrays of which little is used take little memory."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codec.memory import sparse_zeros

# Prints by how many bytes a new process grows with arrays of 1 to 8 MB. Before, an array below another one is freed and
# its pages are given back, as workers do: numpy clears the memory that it then gets.
GROWTH = """
import ctypes, sys
import numpy as np
from codec.memory import sparse_zeros
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
make = np.zeros if sys.argv[1] == "numpy" else sparse_zeros
np.ones(31 << 20, np.uint8)  # from now on glibc takes arrays up to this size from its heap
freed, above = np.ones(31 << 20, np.uint8), np.ones(1 << 20, np.uint8)
del freed
ctypes.CDLL(None).malloc_trim(0)
before = resident()
arrays = [make(1 << power, np.uint8) for power in range(20, 24)]
print(resident() - before)
"""


def test_the_array_has_zeros_and_is_writable() -> None:
    found: NDArray[Any] = sparse_zeros((3, 1000), np.dtype([("a", "i8"), ("b", "u1")], align=True))
    assert found.shape == (3, 1000)
    assert not found["a"].any()
    found["a"][2, 999] = 7
    assert found["a"].sum() == 7


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident pages are read as Linux shows them")
def test_pages_take_no_memory_before_they_are_written() -> None:
    command = [sys.executable, "-c", GROWTH]
    sparse, of_numpy = (
        int(subprocess.run([*command, make], capture_output=True, check=True).stdout) for make in ("sparse", "numpy")
    )
    assert sparse < 16 * mmap.PAGESIZE
    assert of_numpy > 1 << 20  # so the test can fail
