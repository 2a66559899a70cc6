"""The talk of each family as bytes, for what is measured without captures: `streams(family, message_bytes)`."""

from __future__ import annotations

import numpy as np

from benchmarks.packets import stream_of
from benchmarks.profiles import SCRIPTS
from benchmarks.units import CLIENT, SERVER

FAMILIES = tuple(SCRIPTS)
BURST = 16
Streams = tuple[tuple[bytes, bytes], tuple[bytes, bytes]]  # (opening of the client, of the server), (a round of each)


def streams(family: str, message_bytes: int) -> Streams:
    """What the two sides say, a message of each size in a round: once, and again and again."""
    script = SCRIPTS[family]
    steps = script.opening()
    client, server = script.units(np.random.default_rng(1), BURST, message_bytes)
    said = [b"".join(data for side, data in steps if side == who) for who in (CLIENT, SERVER)]
    rounds = [stream_of(side, np.arange(len(side)), 0, 0).data.tobytes() for side in (client, server)]
    return (said[0], said[1]), (rounds[0], rounds[1])
