"""Which version octets speak that stand alone: those at the beginning of a stream, or of a packet's payload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.amqp.classic.tables import classic_tables
from codec.amqp.connections.connection import header_version, matches_magic
from codec.amqp.detect import ACCEPT, UNKNOWN_FRAME_MAX, classic_chain
from codec.amqp.v0_10.detect import segmented_chain
from codec.amqp.v0_10.tables import segmented_tables
from codec.amqp.v1_0.detect import described_chain
from codec.amqp.v1_0.tables import described_tables
from codec.amqp.versions import NONE, V0_8, V0_9_1, V0_10, V1_0, headers
from codec.compiler.kernel import kernel

HEADER_OCTETS = 8
CHANNELS = np.int64(65535)
CAP = np.int64(UNKNOWN_FRAME_MAX)


@kernel
def _version(octets, start, end, known, classic, segmented, wire):
    if matches_magic(octets, start, end) == 4 and end - start >= HEADER_OCTETS:
        return int(header_version(octets, start, known))
    # one frame that parses exactly is believed: nobody asks this of octets that he knows nothing about
    for version in range(V0_9_1, V0_8 - 1, -1):
        if classic_chain(octets, start, end, True, classic, 1 << version, CAP, CHANNELS, True) == ACCEPT:
            return version
    if segmented_chain(octets, start, end, True, segmented, CHANNELS, True) == ACCEPT:
        return V0_10
    if described_chain(octets, start, end, True, wire, CAP, CHANNELS, True) == ACCEPT:
        return V1_0
    return NONE


@kernel
def _versions(octets, offsets, known, classic, segmented, wire, out):
    for i in range(len(out)):
        out[i] = _version(octets, int(offsets[i]), int(offsets[i + 1]), known, classic, segmented, wire)


def versions_spoken(octets: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """VERSIONS codes of the octets `octets[offsets[i]:offsets[i + 1]]`; NONE for those that are not AMQP.

    They begin with a protocol header, or with whole frames of which at least one parses exactly. Frames that several
    of the classic versions define are taken for the latest of them.
    """
    out = np.zeros(len(offsets) - 1, np.int64)
    _versions(octets, offsets, headers(), classic_tables(), segmented_tables(), described_tables()[0], out)
    return out
