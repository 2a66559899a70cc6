"""A second reader of AMQP 0-10 for the tests: transfers, acceptances, completions, commits, and credit.

It shares no code with the product: streams come from `independent_tcp`, layouts of the few controls and commands that
matter are written here from the specification (sections 4.2 frames, 5.3 sequence numbers and sets, 6.3 sessions;
classes session 2, message 4, tx 5, dtx 6). Only complete streams are read; a command over several frames is joined.
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

# (class, code) -> its fields in order: (name, width in bytes, or what it is).
STR8, SET, SIZED = "str8", "set", "sized"  # length in 1, 2, 4 bytes before it; a set holds pairs of numbers
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
    (4, 11): ("flush", [("destination", STR8)]),
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
class Sent:
    """One control or command; `id` numbers the commands of a side of its session, None for controls and others."""

    by_client: bool
    channel: int
    name: str
    id: int | None
    fields: dict[str, Any]


@dataclass
class Transfer:
    """`outcome` as its receiver set it, `transaction` as it ended."""

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
    """(order of the packet that completed it, flags, segment type, channel, payload) after the protocol header."""
    carried = independent_tcp.completing_packets(half.arrival)
    at = 8
    while at < len(half.data):
        flags, kind, size, _, _, channel = struct.unpack_from(">BBHBBH", half.data, at)
        yield carried[at + size - 1].order, flags, kind, channel, bytes(half.data[at + 12 : at + size])
        at += size


def parsed(code: tuple[int, int], data: bytes) -> dict[str, Any]:
    """Fields after two bytes of packing flags, the low bits of the first byte first."""
    found: dict[str, Any] = {}
    flags, at = int.from_bytes(data[:2], "little"), 2
    for bit, (name, kind) in enumerate(LAYOUTS[code][1]):
        if not flags >> bit & 1:
            continue
        if isinstance(kind, int):
            found[name] = int.from_bytes(data[at : at + kind], "big")
            at += kind
            continue
        width = {STR8: 1, SET: 2, SIZED: 4}[kind]
        size = int.from_bytes(data[at : at + width], "big")
        text = data[at + width : at + width + size]
        found[name] = text.decode() if kind == STR8 else text if kind == SIZED else numbers(text)
        at += width + size
    return found


def numbers(data: bytes) -> list[int]:
    """All members of a sequence set; they count modulo 2^32."""
    pairs = struct.iter_unpack(">II", data)
    return [(lower + n) % SERIAL for lower, upper in pairs for n in range((upper - lower) % SERIAL + 1)]


def sent_by(half: independent_tcp.Half, by_client: bool) -> Iterator[tuple[int, Sent]]:
    """(order, what was sent) of one side, commands counted from the point that the side names."""
    counted: dict[int, int] = {}
    parts: dict[int, bytes] = {}
    for order, flags, kind, channel, payload in frames(half):
        if kind not in (CONTROL, COMMAND) or not flags & FIRST_SEGMENT:
            continue
        parts[channel] = parts.get(channel, b"") + payload
        if not flags & LAST_FRAME:
            continue
        data, number = parts.pop(channel), None
        code = data[0], data[1]
        data = data[2:]
        if kind == COMMAND:
            number = counted.get(channel)
            if number is not None:
                counted[channel] = (number + 1) % SERIAL
            data = data[1 + data[0] :]  # the session header, its length before it
        if code in LAYOUTS:
            fields = parsed(code, data)
            if LAYOUTS[code][0] == "command-point":
                counted[channel] = fields["id"]
            yield order, Sent(by_client, channel, LAYOUTS[code][0], number, fields)


def conversation(connection: independent_tcp.Connection) -> list[Sent]:
    """What both sides sent, in the order of the packets."""
    found = []
    for end, half in connection.halves.items():
        assert half.complete
        found += list(sent_by(half, end == connection.client))
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


def played(spoken: list[Sent]) -> Session:
    """A session from its controls and commands."""
    session = Session()
    branch: Any = None  # what publishes and accepts take part in: "tx", or the xid of a branch
    pending: dict[Any, list[tuple[Transfer, str]]] = {}
    for one in spoken:
        mine = session.published if one.by_client else session.delivered
        others = session.delivered if one.by_client else session.published
        if one.name == "transfer":
            assert one.id is not None
            silent = one.fields.get("accept", 0) == 1  # no accept is required
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


TRANSFER = (4, 1)  # class, code
HEADER, BODY = 2, 3  # segment types
UNITS = (0, 1)  # messages, bytes
ENDS = ("cancel", "detach", "detached")
WINDOW = 1  # flow mode
NO_LIMIT = 2**32 - 1


@dataclass
class Subscription:
    """`credit` by unit; `sent`: bytes of the transfers by command id that may be given back; `flush`: id of a flush
    that is not completed, `given` since it."""

    name: str
    at: int
    mode: int = WINDOW
    credit: list[int] = field(default_factory=lambda: [0, 0])
    limitless: list[bool] = field(default_factory=lambda: [False, False])
    sent: dict[int, int] = field(default_factory=dict)
    waited: int = 0
    open: bool = True
    flush: int | None = None
    given: list[tuple[int, int]] = field(default_factory=list)

    def until(self, at: int) -> None:
        """Time goes on to `at`."""
        if any(self.credit[unit] <= 0 and not self.limitless[unit] for unit in UNITS):
            self.waited += at - self.at
        self.at = at

    def zero(self) -> None:
        self.credit, self.limitless, self.sent = [0, 0], [False, False], {}

    def change(self, messages: int, data: int) -> None:
        self.credit = [max(0, self.credit[0] + messages), max(0, self.credit[1] + data)]

    def give(self, unit: int, value: int) -> None:
        self.limitless[unit] |= value == NO_LIMIT
        self.credit[unit] += value

    def flushed(self) -> None:
        """The server has completed the flush: what is left was given after it."""
        self.zero()
        self.flush = None
        for unit, value in self.given:
            self.give(unit, value)

    def hear(self, one: Sent, data: int) -> None:
        """What is sent about this subscription, or over it."""
        if one.name == "transfer":
            assert one.id is not None
            self.sent[one.id] = data
            self.change(-1, -data)
        elif one.name == "completed":
            for number in one.fields["ids"]:
                used = self.sent.pop(number, None)
                if used is not None and self.mode == WINDOW:
                    self.change(1, used)
        elif one.name == "flow":
            unit, value = one.fields.get("unit", 0), one.fields["value"]
            self.give(unit, value)
            self.given.append((unit, value))
        elif one.name == "flush":
            self.flush, self.given = one.id, []
        elif one.name in ("stop", "set-flow-mode"):
            self.zero()
            self.flush = None
            self.mode = one.fields.get("mode", self.mode)


def idle_times(path: Path) -> list[tuple[str, int]]:
    """(destination, ns without credit) of each subscription of a capture that ends with its session or before."""
    captured = independent_tcp.packets([path])
    found: list[Subscription] = []
    for connection in independent_tcp.connections(captured):
        current: dict[tuple[int, str], Subscription] = {}
        for order, one, data in sorted(spoken(connection), key=lambda heard: heard[0]):
            at = captured[order].ts_ns
            about = one.fields.get("destination", "")
            if one.name == "subscribe":
                current[(one.channel, about)] = Subscription(about, at)
                found.append(current[(one.channel, about)])
                continue
            for (channel, name), sub in current.items():
                of_session = one.name in ENDS or (one.name == "completed" and one.by_client)
                if channel == one.channel and sub.open and one.name == "completed" and not one.by_client:
                    if sub.flush in one.fields["ids"]:
                        sub.until(at)
                        sub.flushed()
                    continue
                of_its_own = name == about and one.by_client != (one.name == "transfer")
                if channel == one.channel and sub.open and (of_session or of_its_own):
                    sub.until(at)
                    sub.hear(one, data)
                    sub.open = one.name not in ENDS
    assert not any(sub.open for sub in found)
    return [(sub.name, sub.waited) for sub in found]


def spoken(connection: independent_tcp.Connection) -> Iterator[tuple[int, Sent, int]]:
    """(order, what was sent, bytes after it) of both sides."""
    for end, half in connection.halves.items():
        sizes = contents(half)
        for order, one in sent_by(half, end == connection.client):
            yield order, one, sizes[one.channel].pop(0) if one.name == "transfer" else 0


def contents(half: independent_tcp.Half) -> dict[int, list[int]]:
    """Bytes of the contents on each channel, in order."""
    found: dict[int, list[int]] = {}
    for _, flags, kind, channel, payload in frames(half):
        if kind == COMMAND and flags & FIRST_SEGMENT and tuple(payload[:2]) == TRANSFER:
            found.setdefault(channel, []).append(0)
        elif kind in (HEADER, BODY):
            found[channel][-1] += len(payload)
    return found
