"""Profiles of generated traffic, as a table; `streams` has the traffic of each version as bytes, without packets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.packets import stream_of
from benchmarks.sessions import SCRIPT_0_10, SCRIPT_1_0
from benchmarks.templates import CLIENT, SERVER, Script
from benchmarks.traffic import CLASSIC_SCRIPT

SCRIPTS: dict[str, Script] = {"0-9-1": CLASSIC_SCRIPT, "0-10": SCRIPT_0_10, "1.0": SCRIPT_1_0}


@dataclass(frozen=True)
class Profile:
    """`what` it is; `message_bytes`: mean size of a body; `connections`, one version after the other; or, where
    `connection_bytes` is given, as many connections of this size as the capture has room for; `segment_bytes`: the
    longest TCP payload."""

    what: str
    message_bytes: int = 850
    connections: int = 8
    connection_bytes: int = 0
    segment_bytes: int = 1448  # Ethernet MTU 1500 less IPv4, TCP and the TCP timestamp option
    versions: tuple[str, ...] = ("0-9-1",)


PROFILES = {
    "usual": Profile("0-9-1, messages of 850 bytes, 8 connections"),
    "small": Profile("0-9-1, many small messages: 64 bytes", message_bytes=64),
    "large": Profile("0-9-1, few large messages: 1 MB", message_bytes=1_000_000),
    "many": Profile("0-9-1, connections of 10 KB: 100,000 a GB", message_bytes=300, connection_bytes=10_000),
    "one": Profile("0-9-1, one connection that holds it all", connections=1),
    "mixed": Profile("a third each 0-9-1, 0-10 and 1.0, 12 connections", connections=12, versions=tuple(SCRIPTS)),
    "amqp010": Profile("0-10, messages of 850 bytes, 8 connections", versions=("0-10",)),
    "amqp10": Profile("1.0, messages of 850 bytes, 8 connections", versions=("1.0",)),
    # What a capture shows where the network card cuts and joins segments: 45 of 1,448 bytes.
    "offload": Profile("0-9-1, segments of 64 KB, messages of 48 KB", message_bytes=48_000, segment_bytes=45 * 1448),
}
USUAL = PROFILES["usual"]

FAMILIES = tuple(SCRIPTS)
BURST = 16
Streams = tuple[tuple[bytes, bytes], tuple[bytes, bytes]]  # (opening of the client, of the server), (a round of each)


def streams(family: str, message_bytes: int) -> Streams:
    """The bytes of both sides: the opening, and a round with a message of each size."""
    script = SCRIPTS[family]
    steps = script.opening()
    client, server = script.units(np.random.default_rng(1), BURST, message_bytes)
    openings = [b"".join(data for side, data in steps if side == who) for who in (CLIENT, SERVER)]
    rounds = [stream_of(side, np.arange(len(server)), 0, 0).data.tobytes() for side in (client, server)]
    return (openings[0], openings[1]), (rounds[0], rounds[1])
