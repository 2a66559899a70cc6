"""The kinds of traffic that captures are generated of, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.sessions import DESCRIBED_TALK, SEGMENTED_TALK
from benchmarks.traffic import CLASSIC_TALK
from benchmarks.units import Script

SCRIPTS: dict[str, Script] = {"0-9-1": CLASSIC_TALK, "0-10": SEGMENTED_TALK, "1.0": DESCRIBED_TALK}


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
