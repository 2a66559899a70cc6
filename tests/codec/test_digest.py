"""SHA-256 of bodies that arrive in parts, against hashlib; the block function, with and without instructions for it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.compiler import levels
from codec.compiler.kernel import LazyKernel
from codec.hashes.sha256 import (
    AVAILABLE,
    INITIAL,
    begin,
    compress_block,
    extended_block,
    finish,
    new_digests,
    portable_block,
    update,
)

DIGESTS = new_digests(2)
EXTENDED = pytest.param(
    extended_block, marks=pytest.mark.skipif(not AVAILABLE, reason="the processor has no SHA instructions, or no JIT")
)


def digest(parts: list[bytes], slot: int = 1) -> bytes:
    out = np.zeros(32, np.uint8)
    begin(DIGESTS, slot)
    for part in parts:
        data = np.frombuffer(b"_" + part + b"_", np.uint8)
        update(DIGESTS, slot, data, 1, len(part))
    finish(DIGESTS, slot, out)
    return out.tobytes()


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_parts_of_any_size(parts: list[bytes]) -> None:
    assert digest(parts) == hashlib.sha256(b"".join(parts)).digest()


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_around_the_size_of_a_block(size: int) -> None:
    assert digest([bytes(range(256))[:size] * 4]) == hashlib.sha256(bytes(range(256))[:size] * 4).digest()


@pytest.mark.parametrize("openssl", [True, False])
def test_interpreted_after_a_compiled_import(openssl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that imported kernels may still switch to plain Python; hashlib may be linked to OpenSSL."""
    if not openssl:
        monkeypatch.setattr("codec.hashes.sha256._openssl_block", lambda: None)
    monkeypatch.setattr(LazyKernel, "__call__", lambda kernel, *args: kernel._function(*args))
    assert digest([bytes(range(256))]) == hashlib.sha256(bytes(range(256))).digest()


DIGEST_OF_ABC = """
import numpy as np
from codec.hashes.sha256 import begin, finish, new_digests, update
digests, out = new_digests(1), np.zeros(32, np.uint8)
begin(digests, 0)
update(digests, 0, np.frombuffer(b"abc", np.uint8), 0, 3)
finish(digests, 0, out)
print(out.tobytes().hex(), update.stats.cache_misses.total())
"""


@pytest.mark.skipif(not {"avx2", "bmi2", "fma", "movbe"} <= levels.flags(), reason="another processor")
def test_kernels_compiled_for_a_processor_without_the_instructions(tmp_path: Path) -> None:
    """The example of FIPS 180-2, B.1; numba compiles for another processor in a process of its own only."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    own |= levels.LEVELS[-1].settings | {"PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", DIGEST_OF_ABC], env=own, capture_output=True, text=True, check=False)
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (ran.stdout.split(), ran.stderr[-500:]) == ([expected, "1"], "")


@pytest.mark.parametrize("block", [portable_block, EXTENDED])
@pytest.mark.parametrize("text", [b"", b"abc", bytes(range(55))])
def test_a_block(block, text: bytes) -> None:  # type: ignore[no-untyped-def]
    """A text of at most 55 bytes is one block: the text, a bit 1, zeros, its length in bits (FIPS 180-4, 5.1.1)."""
    padded = text + b"\x80" + bytes(55 - len(text)) + (8 * len(text)).to_bytes(8, "big")
    words = INITIAL.copy()
    block(words, np.frombuffer(b"__" + padded, np.uint8), 2, np.zeros(64, np.uint32))
    assert words.astype(">u4").tobytes() == hashlib.sha256(text).digest()


@pytest.mark.skipif(not AVAILABLE, reason="the processor has no SHA instructions, or no JIT")
def test_upper_halves_of_vector_registers_are_cleared_first() -> None:
    """Left in use by AVX instructions, they made the SHA instructions of an Intel Xeon a hundred times slower."""

    @numba.njit
    def block(words, data, rounds):  # type: ignore[no-untyped-def]
        compress_block(words, data, 0, rounds)

    block(INITIAL.copy(), np.zeros(64, np.uint8), np.zeros(64, np.uint32))
    (assembly,) = block.inspect_asm().values()
    before = assembly[: assembly.index("sha256rnds2")]
    assert "vzeroupper" in before or "vmov" not in assembly  # without AVX there are no upper halves
