"""Big-endian reads from a byte buffer, with bounds checks. No other module checks bounds of reads.

Every read takes `buf` (uint8), the offset `at` and the offset `end` that it may not pass. The caller guarantees only
`0 <= at` and `end <= len(buf)`. A read that would pass `end` returns `SHORT`, which no unsigned value equals. Results
are signed 64-bit integers when compiled (numba would convert mixed unsigned ones to float64) and `int` in plain Python.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import inlined, kernel

SHORT = -1
ANY = -1  # in a pattern of `begins`


@kernel
def byte_at(buf, at):
    """The byte at `at`; the caller guarantees that it is inside the buffer."""
    return int(np.int64(buf[at]))


@kernel
def fits(at, size, end):
    """Whether `size` bytes from `at` on end before `end`."""
    return 0 <= size <= end - at


@inlined
def begins(buf, at, end, pattern):
    """Whether the bytes from `at` on match `pattern`, a tuple of bytes and ANY, as far as they are before `end`."""
    for i in range(min(end - at, len(pattern))):
        if pattern[i] != ANY and buf[at + i] != pattern[i]:
            return False
    return True


@kernel
def u8(buf, at, end):
    """Unsigned byte, or SHORT."""
    if end - at < 1:
        return SHORT
    return byte_at(buf, at)


@kernel
def u16(buf, at, end):
    """Unsigned 16-bit integer, or SHORT."""
    if end - at < 2:
        return SHORT
    return (byte_at(buf, at) << 8) | byte_at(buf, at + 1)


@kernel
def u32(buf, at, end):
    """Unsigned 32-bit integer, or SHORT."""
    if end - at < 4:
        return SHORT
    return (byte_at(buf, at) << 24) | (byte_at(buf, at + 1) << 16) | (byte_at(buf, at + 2) << 8) | byte_at(buf, at + 3)


@kernel
def signed(value, bits):
    """`value`, read unsigned from `bits` (at most 63) bits, as two's complement."""
    if value >> (bits - 1):
        return value - (1 << bits)
    return value


@kernel
def i64(buf, at, end):
    """Eight bytes as a two's complement integer: a signed value, the bits of a double, or an unsigned value, which
    `exceeds_i64` checks. 0 when they pass `end`: check `fits` first."""
    if end - at < 8:
        return 0
    return (signed(u32(buf, at, end), 32) << 32) | u32(buf, at + 4, end)


@kernel
def exceeds_i64(bits):
    """Whether the unsigned integer with these 64 `bits` (as `i64` reads them) is above 2^63-1."""
    return bits < 0


@kernel
def is_ascii(buf, start, end):
    """Whether no byte of `buf[start:end]` has its high bit set."""
    # an index from 0 on needs no check for negative values, so LLVM vectorises this loop
    data = buf[start:end]
    seen = 0
    for i in range(len(data)):
        seen |= data[i]
    return seen < 0x80


@kernel
def is_utf8(buf, start, end):
    """Whether `buf[start:end]` is well-formed UTF-8 (RFC 3629 section 4: no overlong forms, surrogates, or above
    U+10FFFF)."""
    if is_ascii(buf, start, end):
        return True
    at = start
    while at < end:
        lead = byte_at(buf, at)
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
        if end - at < more:
            return False
        low = 0xA0 if lead == 0xE0 else (0x90 if lead == 0xF0 else 0x80)
        high = 0x9F if lead == 0xED else (0x8F if lead == 0xF4 else 0xBF)
        if byte_at(buf, at) < low or byte_at(buf, at) > high:
            return False
        for i in range(at + 1, at + more):
            if byte_at(buf, i) & 0xC0 != 0x80:
                return False
        at += more
    return True
