"""SHA-256 (FIPS 180-4) of message bodies that arrive in parts, in kernels.

`Digests` has one running state per slot; a slot is a channel of a direction. hashlib is faster for one large body, but
would need a Python call for each of millions of messages. Cost: linear; see `codec.hashes.sha256`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

from codec.compiler.kernel import interpreted, kernel
from codec.compiler.linking import OVERLOAD
from codec.memory import copy_bytes, sparse_zeros

# The block function of SHA-256 (FIPS 180-4, section 6.2.2) in the SHA instructions of x86, for `codec.hashes.sha256`.
#
# They save a tenth to a third of a worker's CPU time. Reading, decoding and writing all tables of a capture of 300 MB
# (the generator's profile 'usual') takes 4.3 CPU seconds with them and 6.5 without; 150 MB of large bodies take 0.7 and
# 1.1.
#
# They have no AVX encoding. After AVX instructions that left the upper halves of vector registers in use, an Intel Xeon
# hashed 14 MB/s instead of 1.7 GB/s. LLVM clears the upper halves only around calls, and this function is inlined, so
# it clears them itself.
#
# The instructions are part of the processor, so kernels with them are cached like all others. numba separates cached
# kernels by processor features, and compiles anew where these differ. AVAILABLE: kernels compiled here may use them.


LANES = ir.VectorType(ir.IntType(32), 4)
GROUPS = 16  # of four rounds
# Lanes of the eight words a to h for `sha256rnds2`: f e b a and h g d c, first lane first; and the reverse order.
ABEF, CDGH = (5, 4, 1, 0), (7, 6, 3, 2)
ABCD, EFGH = (3, 2, 7, 6), (1, 0, 5, 4)


def _has(*features: str) -> bool:
    """Whether kernels are compiled for a processor with these features."""
    triple, _, found = cpu_target.target_context.codegen().magic_tuple()
    return triple.startswith("x86_64") and set(features) <= set(found.split(","))


AVAILABLE = not interpreted() and _has("+sha", "+sse4.1")


def _element(builder: Any, pointer: Any, index: int) -> Any:
    """Pointer to group `index` of the lanes at `pointer`."""
    return builder.gep(builder.bitcast(pointer, LANES.as_pointer()), [ir.IntType(64)(index)])


def _lanes(builder: Any, pointer: Any, index: int) -> Any:
    return builder.load(_element(builder, pointer, index), align=1)


def _shuffled(builder: Any, first: Any, second: Any, lanes: tuple[int, ...]) -> Any:
    return builder.shuffle_vector(first, second, ir.Constant(LANES, lanes))


def _scheduled(builder: Any, words: list[Any], first: Any, second: Any) -> Any:
    """The next four words of the message schedule, from the last sixteen `words`."""
    middle = _shuffled(builder, words[2], words[3], (1, 2, 3, 4))
    return builder.call(second, [builder.add(builder.call(first, [words[0], words[1]]), middle), words[3]])


@intrinsic
def compress_block(typing_context: Any, words: Any, data: Any, at: Any, rounds: Any) -> Any:
    """Add the 64-byte block `data[at:at+64]` (uint8) to the eight `words` (uint32); `rounds`: the 64 constants."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
            if isinstance(kind, types.Array)
        ]
        state, wire_bytes, constants = arrays
        wire_bytes = builder.gep(wire_bytes, [arguments[2]])
        if _has("+avx"):
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.avx.vzeroupper"), [])

        def instruction(name: str, operands: int) -> Any:
            kind = ir.FunctionType(LANES, [LANES] * operands)
            return cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")

        swap, two_rounds = instruction("bswap.v4i32", 1), instruction("x86.sha256rnds2", 3)
        first, second = instruction("x86.sha256msg1", 2), instruction("x86.sha256msg2", 2)
        low, high = _lanes(builder, state, 0), _lanes(builder, state, 1)
        abef = before_abef = _shuffled(builder, low, high, ABEF)
        cdgh = before_cdgh = _shuffled(builder, low, high, CDGH)
        schedule = [builder.call(swap, [_lanes(builder, wire_bytes, group)]) for group in range(4)]
        for group in range(GROUPS):
            if group >= 4:
                schedule.append(_scheduled(builder, schedule[-4:], first, second))
            message = builder.add(schedule[group], _lanes(builder, constants, group))
            cdgh = builder.call(two_rounds, [cdgh, abef, message])
            abef = builder.call(two_rounds, [abef, cdgh, _shuffled(builder, message, message, (2, 3, 2, 3))])
        abef, cdgh = builder.add(abef, before_abef), builder.add(cdgh, before_cdgh)
        for index, lanes in enumerate((ABCD, EFGH)):
            builder.store(_shuffled(builder, abef, cdgh, lanes), _element(builder, state, index), align=1)
        return context.get_dummy_value()

    return types.void(words, data, at, rounds), generate


def _primes(count: int) -> list[int]:
    found: list[int] = []
    n = 2
    while len(found) < count:
        if all(n % p for p in found):
            found.append(n)
        n += 1
    return found


def _root_fraction(n: int, root: int) -> int:
    """First 32 bits of the fractional part of the square (2) or cube (3) root of `n`: FIPS 180-4 section 4.2.2,
    5.3.3."""
    scaled = n << (32 * root)
    low, high = 0, 1 << 64
    while low < high:
        middle = (low + high + 1) // 2
        if middle**root <= scaled:
            low = middle
        else:
            high = middle - 1
    return low & 0xFFFFFFFF


ROUND = np.array([_root_fraction(p, 3) for p in _primes(64)], np.uint32)
INITIAL = np.array([_root_fraction(p, 2) for p in _primes(8)], np.uint32)


class Digests(NamedTuple):
    """Running states: `words` uint32 (slots, 8), `block` uint8 (slots, 64), `length` int64 (slots,) bytes so far;
    `schedule` uint32 (64,) is scratch."""

    words: np.ndarray
    block: np.ndarray
    length: np.ndarray
    schedule: np.ndarray


def new_digests(slots: int) -> Digests:
    """States for `slots` bodies at a time; pages of unused slots are never touched."""
    return Digests(
        sparse_zeros((slots, 8), np.uint32),
        sparse_zeros((slots, 64), np.uint8),
        sparse_zeros(slots, np.int64),
        np.zeros(64, np.uint32),
    )


@kernel
def _rotate(x, n):
    return np.uint32((x >> np.uint32(n)) | (x << np.uint32(32 - n)))


@kernel
def portable_block(words, data, at, schedule):
    """Add the 64-byte block `data[at:at+64]` to the eight `words`; `schedule` is uint32 scratch of 64."""
    for i in range(16):
        j = at + 4 * i
        schedule[i] = np.uint32(
            (int(data[j]) << 24) | (int(data[j + 1]) << 16) | (int(data[j + 2]) << 8) | int(data[j + 3])
        )
    for i in range(16, 64):
        x = schedule[i - 15]
        y = schedule[i - 2]
        s0 = np.uint32(_rotate(x, 7) ^ _rotate(x, 18) ^ (x >> np.uint32(3)))
        s1 = np.uint32(_rotate(y, 17) ^ _rotate(y, 19) ^ (y >> np.uint32(10)))
        schedule[i] = np.uint32(np.uint32(schedule[i - 16] + s0) + np.uint32(schedule[i - 7] + s1))
    a, b, c, d = words[0], words[1], words[2], words[3]
    e, f, g, h = words[4], words[5], words[6], words[7]
    for i in range(64):
        s1 = np.uint32(_rotate(e, 6) ^ _rotate(e, 11) ^ _rotate(e, 25))
        choice = np.uint32(g ^ (e & (f ^ g)))
        t1 = np.uint32(np.uint32(h + s1) + np.uint32(choice + np.uint32(ROUND[i] + schedule[i])))
        s0 = np.uint32(_rotate(a, 2) ^ _rotate(a, 13) ^ _rotate(a, 22))
        majority = np.uint32((a & b) | (c & (a | b)))
        t2 = np.uint32(s0 + majority)
        h = g
        g = f
        f = e
        e = np.uint32(d + t1)
        d = c
        c = b
        b = a
        a = np.uint32(t1 + t2)
    words[0] = np.uint32(words[0] + a)
    words[1] = np.uint32(words[1] + b)
    words[2] = np.uint32(words[2] + c)
    words[3] = np.uint32(words[3] + d)
    words[4] = np.uint32(words[4] + e)
    words[5] = np.uint32(words[5] + f)
    words[6] = np.uint32(words[6] + g)
    words[7] = np.uint32(words[7] + h)


@kernel
def extended_block(words, data, at, schedule):
    """`portable_block` with the SHA instructions of the processor."""
    compress_block(words, data, at, ROUND)


@functools.cache
def _openssl_block() -> Callable[..., None] | None:
    """OpenSSL's block function, if Python's hashlib is linked to a library that has it: `portable_block` as plain
    Python takes a millisecond, which is most of the time that interpreted kernels need."""
    try:
        import _hashlib

        function: Callable[..., None] = ctypes.CDLL(_hashlib.__file__).SHA256_Transform
    except (ImportError, OSError, AttributeError):
        return None
    return function


def _compress(words, data, at, schedule):
    """Add a block: compiled by `_compiled_compress`, interpreted by OpenSSL or the portable function."""
    transform = _openssl_block()
    if transform is None:
        with np.errstate(over="ignore"):  # after `interpret()`, too
            portable_block(words, data, at, schedule)
        return
    context = (ctypes.c_uint32 * 28)(*words.tolist())  # SHA256_CTX begins with the eight words
    transform(context, data[at : at + 64].tobytes())
    words[:] = context[:8]


@overload(_compress, jit_options=OVERLOAD, inline="always")
def _compiled_compress(words, data, at, schedule):
    block = extended_block if AVAILABLE else portable_block
    return lambda words, data, at, schedule: block(words, data, at, schedule)


@kernel
def begin(digests, slot):
    """Start the digest of a new body in `slot`."""
    for i in range(8):
        digests.words[slot, i] = INITIAL[i]
    digests.length[slot] = 0


@kernel
def update(digests, slot, data, start, size):
    """Add `data[start:start+size]` to the body of `slot`."""
    schedule = digests.schedule
    words = digests.words[slot]
    block = digests.block[slot]
    filled = int(digests.length[slot]) % 64
    digests.length[slot] += size
    at = start
    end = start + size
    if filled > 0:
        take = min(64 - filled, size)
        copy_bytes(block, filled, data, at, at + take)
        at += take
        if filled + take < 64:
            return
        _compress(words, block, 0, schedule)
    while at + 64 <= end:
        _compress(words, data, at, schedule)
        at += 64
    copy_bytes(block, 0, data, at, end)


@kernel
def finish(digests, slot, out):
    """End the body of `slot` and write its 32 digest bytes to `out`."""
    schedule = digests.schedule
    words = digests.words[slot]
    block = digests.block[slot]
    length = int(digests.length[slot])
    filled = length % 64
    block[filled] = 0x80
    for i in range(filled + 1, 64):
        block[i] = 0
    if filled >= 56:
        _compress(words, block, 0, schedule)
        for i in range(64):
            block[i] = 0
    bits = length * 8
    for i in range(8):
        block[63 - i] = (bits >> (8 * i)) & 0xFF
    _compress(words, block, 0, schedule)
    for i in range(8):
        w = int(words[i])
        for j in range(4):
            out[4 * i + j] = (w >> (24 - 8 * j)) & 0xFF
