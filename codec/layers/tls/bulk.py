"""Many encrypted records decrypted at once: kernels do everything around the one call per record.

`lay_out` writes the nonce and the associated data of each record, and where its plaintext goes; `cryptography` decrypts
record by record into one buffer; `measure` strips padding and content type of TLS 1.3. The buffer keeps gaps where the
tags and paddings were, since chunks say where their bytes begin.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from cryptography.exceptions import InvalidTag

from codec.compiler.kernel import kernel
from codec.layers.chunks import Output
from codec.layers.tls.ciphers import SEQUENCE_BYTES, Aead
from codec.layers.tls.framing import APPLICATION_DATA, HEADER_BYTES, Records

NONCE_BYTES = 12
# Of `places`: where ciphertext and plaintext begin, bytes of the latter, its content type (0: TLS 1.3 without one).
BODY, PLACE, ROOM, KIND, COLUMNS = 0, 1, 2, 3, 4


@kernel
def lay_out(octets, direction, at, size, able, numbers, ivs, explicit, tag, tls13, used, nonces, heads, places):
    """Fill `nonces`, `heads`, `places` for the first records that can be decrypted in bulk; returns their count.

    `able`, `numbers`, `ivs`: by direction: whether its cipher is known, the number of its next record, its IV.
    `explicit`: bytes of the nonce in the record; `used`: where plaintext goes. RFC 8446, sections 5.2 and 5.3; TLS
    1.2: RFC 5246, section 6.2.3.3, RFC 5288, RFC 7905."""
    for i in range(len(direction)):
        side, begin = int(direction[i]), int(at[i])
        kind, plain = int(octets[begin - HEADER_BYTES]), int(size[i]) - explicit - tag
        if not able[side] or plain < (1 if tls13 else 0) or (tls13 and kind != APPLICATION_DATA):
            return i
        number = int(numbers[side])
        numbers[side] = number + 1
        for j in range(NONCE_BYTES):
            nonces[i, j] = ivs[side, j]
        if explicit:
            for j in range(explicit):
                nonces[i, NONCE_BYTES - explicit + j] = octets[begin + j]
        else:
            for j in range(SEQUENCE_BYTES):
                nonces[i, NONCE_BYTES - 1 - j] ^= (number >> (8 * j)) & 0xFF
        first = 0
        if not tls13:
            for j in range(SEQUENCE_BYTES):
                heads[i, j] = (number >> (8 * (SEQUENCE_BYTES - 1 - j))) & 0xFF
            first = SEQUENCE_BYTES
        for j in range(HEADER_BYTES):
            heads[i, first + j] = octets[begin - HEADER_BYTES + j]
        if not tls13:
            heads[i, first + 3], heads[i, first + 4] = plain >> 8, plain & 0xFF
        places[i, BODY], places[i, PLACE], places[i, ROOM], places[i, KIND] = begin + explicit, used, plain, kind
        used += plain
    return len(direction)


@kernel
def measure(out, places):
    """Set ROOM and KIND of TLS 1.3 plaintexts, which end with a content type and zeros."""
    for i in range(len(places)):
        end = places[i, PLACE] + places[i, ROOM] - 1
        while end > places[i, PLACE] and out[end] == 0:
            end -= 1
        places[i, ROOM], places[i, KIND] = end - places[i, PLACE], out[end]


def decrypt(
    records: Records, first: int, end: int, ciphers: tuple[Aead | None, Aead | None], numbers: list[int], out: Output
) -> np.ndarray:
    """Decrypt records `first` to `end`, up to the first that has no cipher or does not authenticate: `places` int64
    (n, COLUMNS) of those; the caller advances `out.used`. `ciphers`, `numbers`: of each direction, its cipher (None:
    nothing is decrypted), its next record."""
    known = ciphers[0] or ciphers[1]
    assert known is not None
    room = end - first
    nonces = np.empty((room, NONCE_BYTES), np.uint8)
    heads = np.empty((room, HEADER_BYTES + (0 if known.tls13 else SEQUENCE_BYTES)), np.uint8)
    places = np.empty((room, COLUMNS), np.int64)
    able = np.array([each is not None for each in ciphers])
    ivs = np.array([np.frombuffer((each or known).iv.ljust(NONCE_BYTES), np.uint8) for each in ciphers])
    direction, at, size = (column[first:end] for column in (records.direction, records.at, records.size))
    next_numbers, explicit, tag, tls13 = np.array(numbers), known.explicit, known.tag, known.tls13
    count = lay_out(
        records.octets,
        direction,
        at,
        size,
        able,
        next_numbers,
        ivs,
        explicit,
        tag,
        tls13,
        out.used,
        nonces,
        heads,
        places,
    )
    begins, targets, sizes = places[:count, : ROOM + 1].T
    prepared = zip(
        direction[:count].tolist(),
        nonces[:count].view(f"V{nonces.shape[1]}").ravel().tolist(),
        heads[:count].view(f"V{heads.shape[1]}").ravel().tolist(),
        begins.tolist(),
        (begins + sizes + tag).tolist(),
        targets.tolist(),
        (targets + sizes).tolist(),
        strict=True,
    )
    into = [(each or known).decrypt_into for each in ciphers]
    source, target, opened = records.octets.data, out.view, 0
    with suppress(InvalidTag, ValueError):
        for side, nonce, head, begin, stop, place, place_end in prepared:
            into[side](nonce, source[begin:stop], head, target[place:place_end])
            opened += 1
    if tls13:
        measure(out.octets, places[:opened])
    return places[:opened]
