"""Scripts by hand: what is hard about flows, one thing each."""

from __future__ import annotations

from scenarios.broker import Broker
from scenarios.script import Channel, Consumer, Message, Peer, Queue, Script
from scenarios.strategies import FIRST_START

CONSUMER = Consumer("c", "q")


def new_broker(number: int, queues: tuple[Queue, ...], *more: Consumer, publisher: str = "0-9-1") -> Broker:
    """A broker with a publisher (peer 0) and one consumer (peer 1) of each queue that is named."""
    consuming = Peer("0-9-1", channels=(Channel(1, "none", (CONSUMER, *more)),))
    return Broker(number, FIRST_START, (Peer(publisher, channels=(Channel(1, "confirm"),)), consuming), queues)


def retried(number: int) -> Script:
    """Rejected messages wait in a second queue until they expire there, and come back: x-death, not redelivered."""
    broker = new_broker(number, (Queue("q", dead_letter=("", "later")), Queue("later", dead_letter=("", "q"))))
    for body in (b"one", b"two"):
        broker.publish(0, 1, Message(body, "", "q"))
        broker.deliver(1, 1, CONSUMER)
    for _ in range(2):
        broker.settle(1, 1, 0, True, "rejected")
        broker.expire("/", "later", "expired")
        broker.expire("/", "later", "expired")
        broker.deliver(1, 1, CONSUMER)
        broker.deliver(1, 1, CONSUMER)
    broker.settle(1, 1, 1, True, "acked")
    return broker.script()


def dead_twice(number: int) -> Script:
    """Both copies of a message die, and meet again in one queue."""
    grave = Consumer("g", "grave")
    fan = (("all", None),)
    queues = (Queue("q", fan, ("", "grave")), Queue("r", fan, ("", "grave")), Queue("grave"))
    broker = new_broker(number, queues, grave)
    broker.publish(0, 1, Message(b"one", "all", "", "an id"))
    broker.expire("/", "q", "expired")
    broker.expire("/", "r", "maxlen")
    broker.deliver(1, 1, grave)
    broker.deliver(1, 1, grave)
    broker.settle(1, 1, 0, False, "acked")
    return broker.script()


def lost_in_the_queue(number: int) -> Script:
    """Of three equal messages the first is pushed out: which one is delivered, the capture does not tell."""
    broker = new_broker(number, (Queue("q"),))
    for _ in range(3):
        broker.publish(0, 1, Message(b"same", "", "q"))
    broker.expire("/", "q", "maxlen")
    broker.deliver(1, 1, CONSUMER)
    broker.deliver(1, 1, CONSUMER)
    return broker.script()


def before_the_publish(number: int) -> Script:
    """A delivery is never that of a later publish: somebody else had published before the capture began."""
    unseen = Peer("0-9-1", channels=(Channel(1),), captured=False)
    consuming = Peer("0-9-1", channels=(Channel(1, "none", (CONSUMER,)),))
    broker = Broker(number, FIRST_START, (Peer("0-9-1"), consuming, unseen), (Queue("q"),))
    broker.publish(2, 1, Message(b"same", "", "q"))
    broker.deliver(1, 1, CONSUMER)
    broker.publish(0, 1, Message(b"same", "", "q"))
    return broker.script()


def published_again(number: int, also_before: bool) -> tuple[Script, list[int]]:
    """A message is published twice under its message-id, `also_before` another one; and the events that say so, the two
    publishes and the two deliveries."""
    broker = new_broker(number, (Queue("q"),))

    def publish(message_id: str, times: int) -> list[int | None]:
        published = [broker.publish(0, 1, Message(b"one", "", "q", message_id)) for _ in range(times)]
        return published + [broker.deliver(1, 1, CONSUMER) for _ in range(times)]

    publish("first", 2 if also_before else 1)
    events = publish("again", 2)
    publish("last", 1)  # what follows shows that something is missing, where it is
    return broker.script(), [event for event in events if event is not None]


WRITTEN = (retried, dead_twice, lost_in_the_queue, before_the_publish)
