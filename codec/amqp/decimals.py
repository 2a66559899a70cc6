"""Decimal floating point of 32, 64 and 128 bits to VARIANT DECIMAL.

AMQP 1.0 (part 1, section 1.6) has the decimal interchange formats of IEEE 754-2008 in binary integer encoding: sign,
biased exponent, and the coefficient as a binary integer. In every width the exponent begins after the sign, or two bits
later when those two bits are 11 (the coefficient then has an implied leading 100); 1111 there is infinity or NaN.

A number is DECIMAL when it is exact with at most 38 digits and a scale of 0 to 38.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import u32
from codec.variant import DECIMAL_SCALE, put_decimal
from codec.variant.scalars import DECIMAL16
from codec.variant.writer import put_le, take

# By width (32, 64, 128 bits): bits of the exponent, its bias (which leaves an integer coefficient), digits.
EXPONENT_BITS = np.array([8, 10, 14], np.int64)
BIAS = np.array([101, 398, 6176], np.int64)
DIGITS = np.array([7, 16, 34], np.int64)
PRECISION = 38  # digits of a DECIMAL
REST = np.int64(5)
LIMBS = 5  # 32-bit limbs, least significant first: 128 bits and one limb to overflow into


@kernel
def _times_ten(limbs):
    carry = 0
    for i in range(LIMBS):
        product = int(limbs[i]) * 10 + carry
        limbs[i] = product & 0xFFFFFFFF
        carry = product >> 32


@kernel
def _by_ten(limbs, first):
    """Divide the number in `limbs[first:]` by ten: the remainder, -1 when the number is zero already."""
    rest, seen = 0, 0
    for i in range(first + LIMBS - 1, first - 1, -1):
        part = (rest << 32) | int(limbs[i])
        seen |= part
        limbs[i] = part // 10
        rest = part % 10
    return rest if seen else -1


@kernel
def _digits(limbs):
    """How many decimal digits the number has; 0 has none. Uses the second half of `limbs`."""
    for i in range(LIMBS):
        limbs[LIMBS + i] = limbs[i]
    count = 0
    while _by_ten(limbs, REST) >= 0:
        count += 1
    return count


@kernel
def exact_decimal(buf, at, size, limbs):
    """The decimal of `size` octets at `at`: its unscaled integer in `limbs` (int64, 2 * LIMBS), and the scale, -1 when
    no DECIMAL is equal to it. The sign stays where it is."""
    index = 0 if size == 4 else (1 if size == 8 else 2)
    bits = int(EXPONENT_BITS[index])
    top = u32(buf, at, at + size)
    large = (top >> 29) & 3 == 3
    if large and (top >> 27) & 15 == 15:
        return -1
    words = size // 4
    for i in range(LIMBS):
        limbs[i] = u32(buf, at + 4 * (words - 1 - i), at + size) if i < words else 0
    shift = 31 - bits - (2 if large else 0)
    exponent = ((top >> shift) & ((1 << bits) - 1)) - int(BIAS[index])
    limbs[words - 1] = (top & ((1 << shift) - 1)) + ((4 << shift) if large else 0)
    digits = _digits(limbs)
    if digits > DIGITS[index]:  # not canonical: its value is zero (IEEE 754-2008 section 3.5.2)
        limbs[:LIMBS] = 0
        digits = 0
    if digits == 0:
        return min(max(-exponent, 0), DECIMAL_SCALE)
    if digits + exponent > PRECISION:
        return -1
    while exponent > 0:
        _times_ten(limbs)
        exponent -= 1
    while -exponent > DECIMAL_SCALE:
        if _by_ten(limbs, 0) != 0:
            return -1
        exponent += 1
    return -exponent


@kernel
def put_limbs(w, limbs, scale, negative):
    """DECIMAL of the unscaled integer in `limbs`."""
    if limbs[3] == 0 and limbs[2] == 0 and limbs[1] < 1 << 31:
        small = (int(limbs[1]) << 32) | int(limbs[0])
        put_decimal(w, -small if negative else small, scale)
        return
    at = take(w, 18)
    if at < 0:
        return
    w.value[at] = DECIMAL16 << 2
    w.value[at + 1] = scale
    carry = 1 if negative else 0
    for i in range(4):
        limb = int(limbs[i])
        if negative:
            limb = (limb ^ 0xFFFFFFFF) + carry
            carry = limb >> 32
        put_le(w.value, at + 2 + 4 * i, limb & 0xFFFFFFFF, 4)
