"""Steps of a scene: each takes a broker and small numbers that choose among what can be done, and does it.

`ids`: which messages have a message-id, 'all' 'none' 'some'.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from scenarios.broker import Broker
from scenarios.script import Channel, Consumer, Event, Message

EXCHANGE, FANOUT, DEAD_EXCHANGE = "events", "all", "dead"
ROUTES = (("", "a"), ("", "b"), (EXCHANGE, "k"), (EXCHANGE, "other"), (FANOUT, ""), (EXCHANGE, "nowhere"))
BODIES = (b"same body", b"other body", b"a longer body that is cut into several frames " * 3)
NACKS = ("0-9-1", "1.0")

Step = Callable[[Broker, str, int, int, int, bool], None]


def publish(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    peer, channel = publishers(broker)[a % len(publishers(broker))]
    spoken = broker.peers[peer]
    exchange, key = ROUTES[b]
    serial = len(broker.events)
    named = ids == "all" or (ids == "some" and flag)
    message_id = str(uuid.UUID(int=broker.number << 32 | serial + 1)) if named else None
    mandatory = spoken.version != "1.0" and c in (0, 3)
    # Some bodies are the same again and again, some are of only one message. Equal messages that a transaction gives
    # back all at once could not be distinguished.
    unique = c > 2 or (mandatory and channel.mode == "tx")
    body = BODIES[c % 3] + (f" {serial}".encode() if unique else b"")
    message = Message(body if spoken.captured else b"hidden " + body, exchange, key, message_id, mandatory=mandatory)
    refused = c == 1 and channel.mode == "confirm" and spoken.version in NACKS
    broker.publish(
        peer, channel.number, message, parts=1 + (a + c) % 3, slow=flag and b % 2 == 0 and not refused, refused=refused
    )


def publish_again(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    """A publisher that is not sure."""
    old = [event for event in broker.events if event.kind == "publish"]
    if old:
        event = old[-1 - (a + b) % len(old)]
        assert event.message is not None
        if not event.message.mandatory:
            broker.publish(event.peer, event.channel, event.message)


def request(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    """To queue 'a', with an answer requested in 'replies'."""
    peer, channel = publishers(broker)[a % len(publishers(broker))]
    body = b"a request" if broker.peers[peer].captured else b"hidden request"
    correlation = f"c{broker.number}-{len(broker.events)}"
    broker.publish(peer, channel.number, Message(body, "", "a", None, correlation, "replies"))


def reply(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    """The answer to a request that was delivered, and its delivery."""
    answered = {event.message.correlation_id for event in broker.events if event.message and is_reply(event)}
    asked = [
        event for event in broker.events
        if event.kind == "deliver" and event.message is not None and event.message.reply_to is not None
        and event.message.correlation_id not in answered
    ]  # fmt: skip
    if not asked:
        return
    requested = asked[b % len(asked)]
    vhost = broker.peers[requested.peer].vhost
    able = [(peer, channel) for peer, channel in publishers(broker) if broker.peers[peer].vhost == vhost]
    assert requested.message is not None
    if able:
        peer, channel = able[a % len(able)]
        body = b"the answer" if broker.peers[peer].captured else b"hidden answer"
        message = Message(body, "", "replies", None, requested.message.correlation_id)
        broker.publish(peer, channel.number, message)


def is_reply(event: Event) -> bool:
    return event.kind == "publish" and event.routing_key == "replies"


def deliver(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    able = [
        (peer, channel, consumer)
        for peer, channel, consumer in consumers(broker)
        if peer not in broker.gone and broker.ready.get((broker.peers[peer].vhost, consumer.queue))
        and broker.has_room(peer, channel.number, consumer)
    ]  # fmt: skip
    if able:
        peer, channel, consumer = able[(a + b) % len(able)]
        broker.deliver(peer, channel.number, consumer, parts=1 + c % 3)


def get(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    peer, channel = publishers(broker)[a % len(publishers(broker))]
    broker.get(peer, channel.number, "polled", no_ack=b == 0, parts=1 + c % 3)


def acknowledge(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    _settle(broker, a, b, flag, "acked")


def refuse(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    _settle(broker, a, b, flag, "rejected" if c < 2 else "requeued")


def _settle(broker: Broker, a: int, b: int, multiple: bool, outcome: str) -> None:
    able = [key for key, opened in broker.open.items() if opened]
    if able:
        broker.settle(*able[a % len(able)], b, multiple, outcome)


def confirm(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    able = [key for key, waiting in broker.unconfirmed.items() if waiting]
    if able:
        peer, channel = able[a % len(able)]
        broker.confirm(peer, channel, b, flag)


def end_transaction(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    able = [key for key in {**broker.uncommitted, **broker.settling} if key[0] not in broker.gone]
    if able:
        broker.end_transaction(*able[a % len(able)], commit=flag)


def expire(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    able = [key for key, waiting in broker.ready.items() if waiting and key[1] in ("a", "b")]
    if able:
        broker.expire(*able[a % len(able)], ("expired", "maxlen")[b % 2])


def close(broker: Broker, ids: str, a: int, b: int, c: int, flag: bool) -> None:
    """A consumer with open deliveries goes, if another one remains."""
    able = [peer for (peer, _), opened in broker.open.items() if opened and peer not in broker.gone]
    if able and flag:
        broker.close(able[a % len(able)])


def publishers(broker: Broker) -> list[tuple[int, Channel]]:
    """Channels without a consumer."""
    return [(n, on) for n, peer in enumerate(broker.peers) for on in peer.channels if not on.consumers]


def consumers(broker: Broker) -> list[tuple[int, Channel, Consumer]]:
    return [(n, on, one) for n, peer in enumerate(broker.peers) for on in peer.channels for one in on.consumers]


# The number of entries is the weight.
WEIGHED: tuple[Step, ...] = (
    *(publish,) * 5, publish_again, request, reply, reply, *(deliver,) * 11, get, *(acknowledge,) * 3, refuse,
    refuse, *(confirm,) * 3, *(end_transaction,) * 2, expire, close,
)  # fmt: skip
