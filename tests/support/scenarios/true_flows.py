"""The rows of message_flows that a script must give, computed only from its events.

Who published what is known, so most rows are known to the last column. Messages that are equal in all that could tell
them apart go by their order: where that order is not the truth (one of them died in its queue, a transaction came
late, one was delivered twice), `exact` is false, and all that can be asked is that the pair is marked ambiguous.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from scenarios.script import Event, Script
from scenarios.truth import Fate, Row, fates, seen_address, seen_queue, seen_route

REFUSED = ("returned", "nacked", "rejected", "released")


@dataclass(frozen=True)
class Flow:
    """`publish`, `first`: indexes of events. `ambiguous`: what that column must say, None: either."""

    publish: int | None
    first: int | None
    row: Row
    exact: bool
    ambiguous: bool | None


class Flows:
    """All that `flows` needs to know of a script."""

    def __init__(self, script: Script) -> None:
        self.script, self.events = script, script.events
        self.fate_of = fates(script)
        self.copies: dict[int, list[int]] = defaultdict(list)  # copy -> its deliveries
        self.groups: dict[Any, list[int]] = defaultdict(list)  # identity -> publishes, in the order of completion
        for index, event in enumerate(script.events):
            seen = script.peers[event.peer].captured
            if event.kind in ("deliver", "get") and event.copy is not None and seen:
                self.copies[event.copy].append(index)
        for index in sorted(script.publishes(), key=lambda index: self.events[index].end):
            self.groups[self.identity(index)].append(index)
        self.copies_of: dict[int, list[int]] = defaultdict(list)  # publish -> copies that were delivered
        for copy, deliveries in self.copies.items():
            of = self.events[deliveries[0]].of
            assert of is not None
            self.copies_of[of].append(copy)

    def identity(self, publish: int) -> Any:
        """What messages share that only their route and their order could tell apart."""
        event = self.events[publish]
        message = event.message
        assert message is not None
        vhost = self.script.peers[event.peer].vhost
        if message.message_id is not None:
            return vhost, message.message_id
        return vhost, message.correlation_id, message.body

    def all(self) -> list[Flow]:
        found: list[Flow] = []
        for group in self.groups.values():
            exact = self.in_order(group)
            for publish in group:
                captured = self.script.peers[self.events[publish].peer].captured
                for copy in self.copies_of[publish]:
                    first = self.copies[copy][0]
                    ambiguous = self.ambiguous(group, publish, first) if captured else None
                    found.append(self.flow(publish if captured else None, self.copies[copy], exact, ambiguous))
                if captured and not self.copies_of[publish]:
                    found.append(self.flow(publish, [], exact, None))
        return found

    def in_order(self, group: list[int]) -> bool:
        """Whether only the order pairs them: for each route and queue, the n-th publish that the broker took is
        the n-th that was delivered."""
        if len(group) == 1:
            return True
        routes = {self.route(publish) for publish in group}
        deliveries = [index for publish in group for copy in self.copies_of[publish] for index in self.copies[copy]]
        if any(self.events[index].redelivered or self.events[index].x_death for index in deliveries):
            return False
        if len(routes) > 1 and any(self.version(index) == "1.0" for index in deliveries):
            return False
        for route in routes:
            used = [p for p in group if self.route(p) == route and not self.refused(p)]
            by_queue: dict[str | None, list[int | None]] = defaultdict(list)
            for index in sorted(deliveries):
                event = self.events[index]
                assert event.of is not None
                if self.route(event.of) == route:
                    by_queue[event.queue].append(event.of)
            if any(of != used[: len(of)] for of in by_queue.values()):
                return False
        return True

    def route(self, publish: int) -> tuple[str, str]:
        event = self.events[publish]
        return event.exchange, event.routing_key

    def version(self, index: int) -> str:
        return self.script.peers[self.events[index].peer].version

    def refused(self, publish: int) -> bool:
        fate = self.fate_of[publish]
        return fate.outcome in REFUSED or fate.transaction == "rolled-back"

    def ambiguous(self, group: list[int], publish: int, first: int) -> bool | None:
        """True: another publish of the same route was complete before this delivery; False: there is no other."""
        others = [other for other in group if other != publish and not self.refused(other)]
        if not others:
            return False
        same = [other for other in others if self.route(other) == self.route(publish)]
        return True if any(self.events[other].end < self.events[first].at for other in same) else None

    def flow(self, publish: int | None, deliveries: list[int], exact: bool, ambiguous: bool | None) -> Flow:
        row = {**self.published(publish), **self.delivered(deliveries)}
        script, events = self.script, self.events
        either = publish if publish is not None else deliveries[0]
        row |= {
            "server": script.server,
            "vhost": script.peers[events[either].peer].vhost,
            "version": self.version(either),
        }
        ends = [events[index] for index in (publish, *deliveries[:1]) if index is not None]
        routes = [seen_route(script, script.peers[event.peer], event) for event in ends]
        addresses = [seen_address(script.peers[event.peer], event) for event in reversed(ends)]
        row["exchange"], row["routing_key"] = (first_known(values) for values in zip(*routes, strict=True))
        row["address"] = first_known(addresses)
        if publish is not None and deliveries:
            message = events[publish].message
            assert message is not None
            last, fate = events[deliveries[-1]], self.fate_of[deliveries[-1]]
            over = last.end if fate.outcome == "presettled" else fate.at
            row |= {
                "broker_latency_ns": events[deliveries[0]].at - events[publish].end,
                "total_latency_ns": None if over is None else over - events[publish].at,
                "match": "fingerprint" if message.message_id is None else "message-id",
            }
        else:
            row |= {"broker_latency_ns": None, "total_latency_ns": None, "match": "none"}
        return Flow(publish, deliveries[0] if deliveries else None, row, exact, ambiguous)

    def published(self, publish: int | None) -> Row:
        columns = ("publish_peer", "publish_ts_ns", "confirm_latency_ns", "rpc_latency_ns", "outcome")
        if publish is None:
            return dict.fromkeys(columns)
        event, fate = self.events[publish], self.fate_of[publish]
        confirmed = fate.at is not None and not self.is_returned(publish)
        latency = fate.at - event.end if confirmed and fate.at is not None else None
        return dict(zip(columns, (event.peer, event.end, latency, self.answered(publish), fate.outcome), strict=True))

    def is_returned(self, publish: int) -> bool:
        return any(event.kind == "return" and event.of == publish for event in self.events)

    def answered(self, publish: int) -> int | None:
        """From the request to the end of the first delivery of its reply."""
        event = self.events[publish]
        message = event.message
        if message is None or message.reply_to is None:
            return None
        vhost = self.script.peers[event.peer].vhost
        replies = [
            reply.end - event.at
            for reply in self.events
            if reply.kind in ("deliver", "get") and reply.queue == message.reply_to and reply.message is not None
            and reply.message.correlation_id == message.correlation_id and reply.end > event.at
            and self.script.peers[reply.peer].vhost == vhost
        ]  # fmt: skip
        return min(replies, default=None)

    def delivered(self, deliveries: list[int]) -> Row:
        """Without a delivery the outcome is that of the publish."""
        columns = (
            "deliver_peer", "deliver_version", "deliver_ts_ns", "queue", "ack_latency_ns", "redeliveries",
            "dead_letter_reason",
        )  # fmt: skip
        if not deliveries:
            return dict.fromkeys(columns)
        first, last = self.events[deliveries[0]], self.events[deliveries[-1]]
        fate: Fate = self.fate_of[deliveries[-1]]
        values = (
            first.peer,
            self.version(deliveries[0]),
            first.at,
            seen_queue(self.script.peers[first.peer], first),
            None if fate.at is None else fate.at - last.end,
            len(deliveries) - 1,
            first.x_death[-1].reason if first.x_death else None,
        )
        return {**dict(zip(columns, values, strict=True)), "outcome": fate.outcome}


def first_known(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def times(events: tuple[Event, ...]) -> dict[int, int]:
    """Time of a publish's end, and of a delivery's beginning, -> index of the event. No two are at the same time."""
    return {event.end if event.kind == "publish" else event.at: i for i, event in enumerate(events) if event.message}
