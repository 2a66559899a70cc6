"""How long subscriptions of AMQP 0-10 had no credit, counted message by message in plain Python.

Beside `naive_0_10`, and like it without any code of the product. Balances are counted as the specification says it
(class message: subscribe, set-flow-mode, flow, stop): octets are the payloads of header and body frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import independent_tcp
from naive_0_10 import COMMAND, FIRST_SEGMENT, Said, frames, said_by

TRANSFER = (4, 1)  # class, code
HEADER, BODY = 2, 3  # segment types
UNITS = (0, 1)  # messages, octets
ENDS = ("cancel", "detach", "detached")
WINDOW = 1  # flow mode
NO_LIMIT = 2**32 - 1


@dataclass
class Subscription:
    """`left` by unit; `sent`: octets of the transfers by command id that may be given back."""

    name: str
    at: int
    mode: int = WINDOW
    left: list[int] = field(default_factory=lambda: [0, 0])
    limitless: list[bool] = field(default_factory=lambda: [False, False])
    sent: dict[int, int] = field(default_factory=dict)
    waited: int = 0
    open: bool = True

    def until(self, at: int) -> None:
        """Time goes on to `at`."""
        if any(self.left[unit] <= 0 and not self.limitless[unit] for unit in UNITS):
            self.waited += at - self.at
        self.at = at

    def zero(self) -> None:
        self.left, self.limitless, self.sent = [0, 0], [False, False], {}

    def change(self, messages: int, octets: int) -> None:
        self.left = [max(0, self.left[0] + messages), max(0, self.left[1] + octets)]

    def hear(self, one: Said, octets: int) -> None:
        """What is said about this subscription, or over it."""
        if one.name == "transfer":
            assert one.id is not None
            self.sent[one.id] = octets
            self.change(-1, -octets)
        elif one.name == "completed":
            for number in one.fields["ids"]:
                used = self.sent.pop(number, None)
                if used is not None and self.mode == WINDOW:
                    self.change(1, used)
        elif one.name == "flow":
            unit, value = one.fields.get("unit", 0), one.fields["value"]
            self.limitless[unit] |= value == NO_LIMIT
            self.left[unit] += value
        elif one.name in ("stop", "set-flow-mode"):
            self.zero()
            self.mode = one.fields.get("mode", self.mode)


def idle_times(path: Path) -> list[tuple[str, int]]:
    """(destination, ns without credit) of each subscription of a capture that ends with its session or before."""
    captured = independent_tcp.packets([path])
    found: list[Subscription] = []
    for connection in independent_tcp.connections(captured):
        current: dict[tuple[int, str], Subscription] = {}
        for order, one, octets in sorted(spoken(connection), key=lambda heard: heard[0]):
            at = captured[order].ts_ns
            about = one.fields.get("destination", "")
            if one.name == "subscribe":
                current[(one.channel, about)] = Subscription(about, at)
                found.append(current[(one.channel, about)])
                continue
            for (channel, name), sub in current.items():
                of_session = one.name in ENDS or (one.name == "completed" and one.by_client)
                of_its_own = name == about and one.by_client != (one.name == "transfer")
                if channel == one.channel and sub.open and (of_session or of_its_own):
                    sub.until(at)
                    sub.hear(one, octets)
                    sub.open = one.name not in ENDS
    assert not any(sub.open for sub in found)
    return [(sub.name, sub.waited) for sub in found]


def spoken(connection: independent_tcp.Connection) -> Iterator[tuple[int, Said, int]]:
    """(order, what was said, octets behind it) of both sides."""
    for end, half in connection.halves.items():
        sizes = contents(half)
        for order, one in said_by(half, end == connection.client):
            yield order, one, sizes[one.channel].pop(0) if one.name == "transfer" else 0


def contents(half: independent_tcp.Half) -> dict[int, list[int]]:
    """Octets of the contents on each channel, in order."""
    found: dict[int, list[int]] = {}
    for _, flags, kind, channel, payload in frames(half):
        if kind == COMMAND and flags & FIRST_SEGMENT and tuple(payload[:2]) == TRANSFER:
            found.setdefault(channel, []).append(0)
        elif kind in (HEADER, BODY):
            found[channel][-1] += len(payload)
    return found
