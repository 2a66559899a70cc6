"""What a script must give: the rows of `messages` and `message_flows`, computed only from its events."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from scenarios.script import ANSWER_NS, Event, Peer, Script
from scenarios.wire_0_10 import by_branch
from scenarios.wire_1_0 import accepts_at_once, annotates, queue_address, target_address

Row = dict[str, Any]
# Of a publish without a confirm or settlement: in 0-10 and 1.0 every one is answered, also in a transaction.
DEFAULT_OUTCOME = {"none": "unknown", "tx": "unknown", "confirm": "unsettled"}
ANSWERED = "unsettled"
# What the same thing is called where it is not as in 0-9-1.
WORDS = {
    "1.0": {"nacked": "rejected", "requeued": "released", "returned": "released"},
    "0-10": {"requeued": "released"},
}


@dataclass(frozen=True)
class Fate:
    """What became of a content, `at` when; `transaction` as in table messages."""

    outcome: str
    at: int | None = None
    transaction: str | None = None


def fates(script: Script) -> dict[int, Fate]:
    """Of every content by its index."""
    found: dict[int, Fate] = {}
    for index, event in enumerate(script.events):
        if event.message is not None:
            found[index] = Fate(first_outcome(script, event))
    pending: dict[tuple[int, int], list[tuple[tuple[int, ...], str]]] = defaultdict(list)
    published: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, event in enumerate(script.events):
        key, peer = (event.peer, event.channel), script.peers[event.peer]
        if event.kind == "publish" and peer.waits(event.channel):
            published[key].append(index)
        elif event.kind == "settle" and peer.waits(event.channel, event.outcome):
            pending[key].append((event.about, event.outcome))
        elif event.kind in ("confirm", "settle"):
            for which in event.about:
                found[which] = Fate(event.outcome, event.at)
        elif event.kind in ("commit", "rollback"):
            done = "committed" if event.kind == "commit" else "rolled-back"
            for which in published.pop(key, []):
                answered = Fate("confirmed", event.end + ANSWER_NS, done)
                found[which] = Fate(found[which].outcome, None, done) if peer.classic else answered
            for about, outcome in pending.pop(key, []):
                for which in about:
                    if event.kind == "commit":
                        found[which] = Fate(outcome, event.at, done)
                    else:
                        found[which] = Fate(found[which].outcome, None, done)
        elif event.kind == "close" and peer.version != "0-10":  # ends its channels, in 1.0 control links (part 4, 4.1)
            for channel in peer.channels:
                key = (event.peer, channel.number)
                for which in published.pop(key, []):
                    accepted = not peer.classic and accepts_at_once(script, channel.number)
                    outcome, at = ("confirmed", event.at) if accepted else (found[which].outcome, None)
                    found[which] = Fate(outcome, at, "rolled-back")
                for about, _ in pending.pop(key, []):
                    for which in about:
                        found[which] = Fate(found[which].outcome, None, "rolled-back")
        elif event.kind == "close":  # a branch outlives its session
            for channel in peer.channels:
                key = (event.peer, channel.number)
                if peer.channel(channel.number).mode == "tx" and by_branch(script, channel.number):
                    open_work = [which for about, _ in pending.pop(key, []) for which in about]
                    for which in (*published.pop(key, []), *open_work):
                        found[which] = Fate("unknown")
    for event in script.events:
        if event.kind == "return" and event.of is not None:
            found[event.of] = Fate("returned", event.at, found[event.of].transaction)
    return {index: in_words(script, script.events[index], fate) for index, fate in found.items()}


def first_outcome(script: Script, event: Event) -> str:
    if event.kind == "publish":
        peer = script.peers[event.peer]
        return DEFAULT_OUTCOME[peer.channel(event.channel).mode] if peer.classic else ANSWERED
    return "presettled" if event.kind == "return" or event.no_ack else "unsettled"


def in_words(script: Script, event: Event, fate: Fate) -> Fate:
    words = WORDS.get(script.peers[event.peer].version, {})
    return Fate(words.get(fate.outcome, fate.outcome), fate.at, fate.transaction)


def messages(script: Script) -> list[Row]:
    """Rows of table messages: one each time a captured peer's message crosses the wire, in order of time."""
    fate_of = fates(script)
    rows = []
    for index, event in enumerate(script.events):
        peer = script.peers[event.peer]
        if event.message is None or not peer.captured or (event.kind == "return" and not peer.classic):
            continue
        fate = fate_of[index]
        rows.append(
            {
                "peer": event.peer, "channel": event.channel, "operation": event.kind, "ts_ns": event.at,
                "queue": seen_queue(peer, event), "address": seen_address(peer, event),
                **dict(zip(("exchange", "routing_key"), seen_route(script, peer, event), strict=True)),
                "message_id": event.message.message_id, "correlation_id": event.message.correlation_id,
                "reply_to": seen_reply_to(peer, event), "body_size": len(event.message.body), "complete": True,
                "redelivered": seen_redelivered(peer, event), "outcome": fate.outcome, "settled_ts_ns": fate.at,
                "transaction": fate.transaction,
            }
        )  # fmt: skip
    return rows


def seen_queue(peer: Peer, event: Event) -> str | None:
    return event.queue  # in 1.0 of the address: what is published to a queue is not delivered from it


def seen_address(peer: Peer, event: Event) -> str | None:
    if peer.version != "1.0" or event.message is None:
        return None
    return target_address(event.message) if event.kind == "publish" else queue_address(event.queue or "")


def seen_route(script: Script, peer: Peer, event: Event) -> tuple[str | None, str | None]:
    """In 1.0 that of a publish by its address, of a delivery if the broker annotates it."""
    is_seen = peer.version != "1.0" or event.kind == "publish" or annotates(script)
    return (event.exchange, event.routing_key) if is_seen else (None, None)


def seen_reply_to(peer: Peer, event: Event) -> str | None:
    """In 0-10 an exchange (here the default one) and a routing key, shown with a stroke between them."""
    reply_to = event.message.reply_to if event.message is not None else None
    return f"/{reply_to}" if reply_to is not None and peer.version == "0-10" else reply_to


def seen_redelivered(peer: Peer, event: Event) -> bool | None:
    if event.kind in ("publish", "return"):
        return None
    return event.deliveries > 0 if peer.version == "1.0" else event.redelivered
