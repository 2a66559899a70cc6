"""CAP: what the capture itself lacks."""

from __future__ import annotations

from typing import Any

import classic_frames as classic
from rule_support import MSS, Case, Talk

from codec.limits import LIMITS

V = "0-9-1"


def midway() -> Talk:
    talk = Talk(syn=False)
    for number in range(1, 5):
        talk.client("basic.ack", 1, delivery_tag=number).heartbeat("server")
    return talk


def half() -> Talk:
    """Only what the client sends."""
    talk = Talk().handshake().open(1).publish(delivery_mode=1).publish(delivery_mode=1)
    talk.packets = [packet for packet in talk.packets if packet.sender == "client"]
    return talk


def cut() -> Talk:
    """The capture keeps the first octets of a large body frame."""
    talk = Talk().handshake().open(1).client("basic.publish", 1, exchange="e", routing_key="q")
    octets = classic.header(V, "basic", 2000, delivery_mode=1) + classic.body(bytes(2000))
    return talk.packet("client", octets[:200], wire_len=len(octets)).packet("server").close()


def strayed() -> Talk:
    """A segment whose number is a gigabyte away from all others."""
    talk = Talk().handshake()
    talk.seq["client"] += 1 << 30
    talk.packet("client", b"stray")
    talk.seq["client"] -= (1 << 30) + len(b"stray")
    return talk.heartbeat().close()


def nested(depth: int) -> Talk:
    """Arguments of tables in each other."""
    tables: dict[str, Any] = {}
    for _ in range(depth - 1):
        tables = {"t": tables}
    return Talk().handshake().open(1).asks("queue.declare", 1, {"queue": "q"}, queue="q", arguments=tables).close()


def text(size: int) -> Talk:
    """So many octets of another protocol, from the middle of the connection."""
    return Talk(syn=False).client_octets(b"SET key value\r\n" * (size // 15)).fin()


def greeted(times: int) -> Talk:
    """The protocol header several times, as a client does that tries again."""
    talk = Talk()
    for _ in range(times - 1):
        talk.header()
    return talk.handshake().close()


def whole() -> Talk:
    return Talk().handshake().open(1).publish(bytes(2000), delivery_mode=1).close()


CASES = [
    Case(
        "CAP-01",
        V,
        Talk().handshake().lose("client", 50).heartbeat().heartbeat().close(),
        whole(),
        evidence={"missing_bytes": 50},
    ),
    Case("CAP-02", V, midway(), whole(), evidence={"header_seen": False}),
    Case("CAP-03", V, half(), whole(), evidence={"observed": "client"}),
    Case("CAP-04", V, cut(), whole(), also=("CAP-01",)),
    Case("CAP-05", V, Talk().handshake().client_octets(classic.heartbeat()[:5]), whole(), evidence={"octets": 5}),
    Case("CAP-06", V, strayed(), whole(), evidence={"observed": ["segment out of window"]}),
    Case(
        "CAP-06",
        V,
        nested(LIMITS.nesting_depth + 1),
        nested(LIMITS.nesting_depth),
        evidence={"observed": ["nesting depth"]},
    ),
    Case(
        "CAP-06",
        V,
        text(LIMITS.detect_bytes + 2 * MSS),
        text(LIMITS.detect_bytes // 2),
        evidence={"observed": ["search for frames"]},
    ),
    Case(
        "CAP-06",
        V,
        greeted(LIMITS.offers + 1),
        greeted(LIMITS.offers),
        evidence={"observed": ["protocol headers"]},
        besides=("NEG-09",),
    ),
]
