"""A second reader of AMQP 0-10 for the tests: what was transferred, accepted, completed, committed, read off plainly.

It shares no code with the product: streams come from `independent_tcp`, layouts of the few controls and commands that
matter are written here from the specification (sections 4.2 frames, 5.3 sequence numbers and sets, 6.3 sessions;
classes session 2, message 4, tx 5, dtx 6). Only whole streams are read; a command over several frames is put together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import independent_tcp

CONTROL, COMMAND = 0, 1  # segment types
FIRST_SEGMENT, LAST_FRAME = 8, 1  # frame flags
SERIAL = 2**32

# (class, code) -> its fields in order: (name, width in octets, or what it is).
STR8, SET, SIZED = "str8", "set", "sized"  # length in 1, 2, 4 octets before it; a set holds pairs of numbers
LAYOUTS: dict[tuple[int, int], tuple[str, list[tuple[str, int | str]]]] = {
    (2, 1): ("attach", []),
    (2, 3): ("detach", []),
    (2, 4): ("detached", []),
    (2, 7): ("command-point", [("id", 4), ("offset", 8)]),
    (2, 10): ("completed", [("ids", SET)]),
    (4, 1): ("transfer", [("destination", STR8), ("accept", 1), ("acquire", 1)]),
    (4, 2): ("accept", [("ids", SET)]),
    (4, 3): ("reject", [("ids", SET)]),
    (4, 4): ("release", [("ids", SET)]),
    (4, 7): ("subscribe", [("queue", STR8), ("destination", STR8)]),
    (4, 8): ("cancel", [("destination", STR8)]),
    (4, 9): ("set-flow-mode", [("destination", STR8), ("mode", 1)]),
    (4, 10): ("flow", [("destination", STR8), ("unit", 1), ("value", 4)]),
    (4, 12): ("stop", [("destination", STR8)]),
    (5, 1): ("tx.select", []),
    (5, 2): ("tx.commit", []),
    (5, 3): ("tx.rollback", []),
    (6, 2): ("dtx.start", [("xid", SIZED)]),
    (6, 3): ("dtx.end", []),
    (6, 4): ("dtx.commit", [("xid", SIZED)]),
    (6, 9): ("dtx.rollback", [("xid", SIZED)]),
}
WORDS = {"accept": "acked", "reject": "rejected", "release": "released"}


@dataclass(frozen=True)
class Said:
    """One control or command; `id` numbers the commands of a side of its session, None for controls and others."""

    by_client: bool
    channel: int
    name: str
    id: int | None
    fields: dict[str, Any]


@dataclass
class Transfer:
    """`outcome` as its receiver left it, `transaction` as it ended."""

    id: int
    outcome: str
    transaction: str | None = None
    settled_in: str | None = None  # transaction of the outcome


@dataclass
class Session:
    """What one session carried: transfers by side, credit and number of transfers by subscription."""

    published: dict[int, Transfer] = field(default_factory=dict)
    delivered: dict[int, Transfer] = field(default_factory=dict)
    credit: dict[str, int] = field(default_factory=dict)
    queues: dict[str, str] = field(default_factory=dict)
    transfers: dict[str, int] = field(default_factory=dict)


def frames(half: independent_tcp.Half) -> Iterator[tuple[int, int, int, int, bytes]]:
    """(order of the packet that completed it, flags, segment type, channel, payload) behind the protocol header."""
    carried = independent_tcp.completing_packets(half.arrival)
    at = 8
    while at < len(half.data):
        flags, kind, size, _, _, channel = struct.unpack_from(">BBHBBH", half.data, at)
        yield carried[at + size - 1].order, flags, kind, channel, bytes(half.data[at + 12 : at + size])
        at += size


def parsed(code: tuple[int, int], octets: bytes) -> dict[str, Any]:
    """Fields behind two octets of packing flags, the low bits of the first octet first."""
    found: dict[str, Any] = {}
    flags, at = int.from_bytes(octets[:2], "little"), 2
    for bit, (name, kind) in enumerate(LAYOUTS[code][1]):
        if not flags >> bit & 1:
            continue
        if isinstance(kind, int):
            found[name] = int.from_bytes(octets[at : at + kind], "big")
            at += kind
            continue
        width = {STR8: 1, SET: 2, SIZED: 4}[kind]
        size = int.from_bytes(octets[at : at + width], "big")
        text = octets[at + width : at + width + size]
        found[name] = text.decode() if kind == STR8 else text if kind == SIZED else numbers(text)
        at += width + size
    return found


def numbers(octets: bytes) -> list[int]:
    """All members of a sequence set; they count modulo 2^32."""
    pairs = struct.iter_unpack(">II", octets)
    return [(lower + n) % SERIAL for lower, upper in pairs for n in range((upper - lower) % SERIAL + 1)]


def said_by(half: independent_tcp.Half, by_client: bool) -> Iterator[tuple[int, Said]]:
    """(order, what was said) of one side, commands counted from the point that the side names."""
    counted: dict[int, int] = {}
    parts: dict[int, bytes] = {}
    for order, flags, kind, channel, payload in frames(half):
        if kind not in (CONTROL, COMMAND) or not flags & FIRST_SEGMENT:
            continue
        parts[channel] = parts.get(channel, b"") + payload
        if not flags & LAST_FRAME:
            continue
        octets, number = parts.pop(channel), None
        code = octets[0], octets[1]
        octets = octets[2:]
        if kind == COMMAND:
            number = counted.get(channel)
            if number is not None:
                counted[channel] = (number + 1) % SERIAL
            octets = octets[1 + octets[0] :]  # the session header, its length before it
        if code in LAYOUTS:
            fields = parsed(code, octets)
            if LAYOUTS[code][0] == "command-point":
                counted[channel] = fields["id"]
            yield order, Said(by_client, channel, LAYOUTS[code][0], number, fields)


def conversation(connection: independent_tcp.Connection) -> list[Said]:
    """What both sides said, in the order of the packets."""
    found = []
    for end, half in connection.halves.items():
        assert half.whole
        found += list(said_by(half, end == connection.client))
    return [each for _, each in sorted(found, key=lambda one: one[0])]


def sessions(path: Path) -> list[Session]:
    """The sessions of a capture in the order in which they were attached."""
    found = []
    for connection in independent_tcp.connections(independent_tcp.packets([path])):
        spoken = conversation(connection)
        starts = [at for at, one in enumerate(spoken) if one.name == "attach" and one.by_client]
        for start in starts:
            channel = spoken[start].channel
            later = [at for at in starts if at > start and spoken[at].channel == channel]
            own = [one for one in spoken[start : min(later, default=None)] if one.channel == channel]
            found.append(played(own))
    return found


def played(spoken: list[Said]) -> Session:
    """A session from its controls and commands."""
    session = Session()
    branch: Any = None  # what publishes and accepts take part in: "tx", or the xid of a branch
    pending: dict[Any, list[tuple[Transfer, str]]] = {}
    for one in spoken:
        mine = session.published if one.by_client else session.delivered
        others = session.delivered if one.by_client else session.published
        if one.name == "transfer":
            assert one.id is not None
            silent = one.fields.get("accept", 0) == 1  # no accept is wanted
            mine[one.id] = Transfer(one.id, "presettled" if silent else "unknown" if one.by_client else "unsettled")
            if one.by_client and branch:
                pending.setdefault(branch, []).append((mine[one.id], ""))
            if not one.by_client:
                name = one.fields["destination"]
                session.transfers[name] = session.transfers.get(name, 0) + 1
        elif one.name in WORDS:
            for transfer in (others[number] for number in one.fields["ids"] if number in others):
                if one.by_client and branch and one.name == "accept":
                    pending.setdefault(branch, []).append((transfer, WORDS[one.name]))
                else:
                    transfer.outcome = WORDS[one.name]
        elif one.name == "completed" and not one.by_client:
            for transfer in (others[number] for number in one.fields["ids"] if number in others):
                if transfer.outcome == "unknown":
                    transfer.outcome = "confirmed"
        elif one.name == "subscribe":
            session.queues[one.fields["destination"]] = one.fields["queue"]
        elif one.name == "flow" and one.fields.get("unit", 0) == 0:
            name = one.fields["destination"]
            session.credit[name] = session.credit.get(name, 0) + one.fields["value"]
        elif one.name in ("tx.select", "dtx.start"):
            branch = one.fields.get("xid", "tx")
        elif one.name == "dtx.end":
            branch = None
        elif one.name in ("tx.commit", "tx.rollback", "dtx.commit", "dtx.rollback"):
            word = "committed" if one.name.endswith("commit") else "rolled-back"
            for transfer, outcome in pending.pop(one.fields.get("xid", "tx"), []):
                transfer.transaction = word
                if outcome and word == "committed":
                    transfer.outcome = outcome
    return session
