"""A model of a broker that plays steps and writes down what everybody saw, as events of a script.

Queues are first in, first out; what goes back to a queue goes back to its old place; what is rejected, expires, is
pushed out, or comes back too often goes to the dead-letter exchange with a header x-death as RabbitMQ writes it
(https://www.rabbitmq.com/docs/dlx). Publishes take effect when they are complete, in transactions with the commit.
A step that is not possible does nothing, so that any sequence of steps is a course of events.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scenarios.script import Consumer, Death, Event, Message, Peer, Queue, Script

OPENING_NS = 1_000_000  # between the start of a script and its first event, for connections to open
STEP_NS = 1_000
ChannelKey = tuple[int, int]  # peer, channel


@dataclass
class Copy:
    """A message in a queue; copies leave the queue in the order of `position`."""

    position: int
    of: int
    message: Message
    exchange: str
    routing_key: str
    x_death: tuple[Death, ...] = ()
    redelivered: bool = False
    deliveries: int = 0


@dataclass
class Broker:
    number: int
    start: int
    peers: tuple[Peer, ...]
    queues: tuple[Queue, ...]
    events: list[Event] = field(default_factory=list)
    clock: int = 0
    copies: int = 0
    ready: dict[tuple[str, str], list[Copy]] = field(default_factory=dict)
    open: dict[ChannelKey, list[tuple[int, Copy, str]]] = field(default_factory=dict)  # unsettled deliveries
    unconfirmed: dict[ChannelKey, list[int]] = field(default_factory=dict)
    uncommitted: dict[ChannelKey, list[int]] = field(default_factory=dict)  # publishes of a transaction
    settling: dict[ChannelKey, list[tuple[list[int], str]]] = field(
        default_factory=dict
    )  # settlements of a transaction
    slow: dict[int, int] = field(default_factory=dict)  # peer -> publish that is not complete
    sent: dict[tuple[int, int, str], int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # publishes that the broker does not take

    def __post_init__(self) -> None:
        self.clock = self.start + OPENING_NS

    def script(self) -> Script:
        for peer in list(self.slow):
            self.complete(peer)
        return Script(self.number, self.start, self.peers, self.queues, tuple(self.events))

    # ---- what clients do --------------------------------------------------------------------------------------------

    def publish(
        self, peer: int, channel: int, message: Message, parts: int = 1, slow: bool = False, refused: bool = False
    ) -> int | None:
        """`slow`: it is complete only with a later step. `refused`: the broker will not take it, and say so."""
        if not self.speaks(peer):
            return None
        tag = self.next_tag(peer, channel, "client")
        at = self.tick()
        end = at if parts == 1 else self.tick()
        index = self.note(
            "publish", peer, channel, at=at, end=end, message=message, parts=parts, tag=tag,
            exchange=message.exchange, routing_key=message.routing_key,
        )  # fmt: skip
        if refused:
            self.refused.add(index)
        if slow and parts > 1:
            self.slow[peer] = index
        else:
            self.arrived(index)
        return index

    def settle(self, peer: int, channel: int, which: int, multiple: bool, outcome: str) -> None:
        """The `which`-th open delivery of the channel, and those before it where `multiple`."""
        opened = self.open.get((peer, channel), [])
        mentioned = {index for about, _ in self.settling.get((peer, channel), []) for index in about}
        opened = [entry for entry in opened if entry[0] not in mentioned]
        if not opened or not self.speaks(peer):
            return
        last = which % len(opened)
        about = [index for index, _, _ in opened[0 if multiple else last : last + 1]]
        self.note("settle", peer, channel, about=tuple(about), multiple=multiple, outcome=outcome)
        if self.peers[peer].waits(channel, outcome):
            self.settling.setdefault((peer, channel), []).append((about, outcome))
        else:
            self.settled(peer, channel, about, outcome)

    def end_transaction(self, peer: int, channel: int, commit: bool) -> None:
        if self.peers[peer].channel(channel).mode != "tx" or not self.speaks(peer):
            return
        key = (peer, channel)
        publishes, settlements = self.uncommitted.pop(key, []), self.settling.pop(key, [])
        self.note("commit" if commit else "rollback", peer, channel)
        if commit:
            for index in publishes:
                self.route(index)
            for about, outcome in settlements:
                self.settled(peer, channel, about, outcome)

    def close(self, peer: int) -> None:
        """The connection ends; what was delivered on it and not settled goes back."""
        if not self.speaks(peer):
            return
        self.note("close", peer, 0)
        self.gone.add(peer)
        for (who, _), opened in self.open.items():
            if who == peer:
                for _, copy, queue in opened:
                    self.back(queue, copy, peer)
                opened.clear()

    # ---- what the broker does ---------------------------------------------------------------------------------------

    def deliver(self, peer: int, channel: int, consumer: Consumer, parts: int = 1) -> int | None:
        if peer in self.gone or not self.has_room(peer, channel, consumer):
            return None
        copy = self.head(peer, consumer.queue)
        if copy is None:
            return None
        return self.hand_over("deliver", peer, channel, copy, consumer, parts)

    def has_room(self, peer: int, channel: int, consumer: Consumer) -> bool:
        """Whether the consumer may have one more delivery open."""
        opened = [queue for _, _, queue in self.open.get((peer, channel), []) if queue == consumer.queue]
        limit = self.peers[peer].channel(channel).prefetch
        return limit == 0 or len(opened) < limit

    def get(self, peer: int, channel: int, queue: str, no_ack: bool, parts: int = 1) -> int | None:
        """What basic.get gives; the answer comes one step after the question."""
        if not self.speaks(peer) or not self.peers[peer].classic:
            return None
        copy = self.head(peer, queue)
        if copy is None:
            self.tick()
            self.note("get-empty", peer, channel, queue=queue)
            return None
        self.tick()
        return self.hand_over("get", peer, channel, copy, Consumer("", queue, no_ack), parts)

    def confirm(self, peer: int, channel: int, which: int, multiple: bool) -> None:
        """The `which`-th publish that waits for it, and those before it where `multiple` and all fared alike."""
        waiting = self.unconfirmed.get((peer, channel), [])
        if not waiting or peer in self.gone:
            return
        last = which % len(waiting)
        multiple &= len({index in self.refused for index in waiting[: last + 1]}) == 1
        first = 0 if multiple else last
        about = waiting[first : last + 1]
        del waiting[first : last + 1]
        outcome = "nacked" if about[0] in self.refused else "confirmed"
        self.note("confirm", peer, channel, about=tuple(about), multiple=multiple, outcome=outcome)

    def expire(self, vhost: str, queue: str, reason: str) -> None:
        """The head of a queue is too old ('expired') or pushed out ('maxlen')."""
        waiting = self.ready.get((vhost, queue))
        if waiting:
            self.tick()
            self.dead(vhost, queue, waiting.pop(0), reason)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def tick(self) -> int:
        self.clock += STEP_NS
        return self.clock

    def note(self, kind: str, peer: int, channel: int, **what: object) -> int:
        at = what.pop("at", None) or self.tick()
        end = what.pop("end", None) or at
        self.events.append(Event(kind, at, end, peer, channel, **what))  # type: ignore[arg-type]
        return len(self.events) - 1

    def speaks(self, peer: int) -> bool:
        """A client that speaks has finished what it began to say."""
        if peer in self.slow:
            self.complete(peer)
        return peer not in self.gone

    def complete(self, peer: int) -> None:
        index = self.slow.pop(peer)
        self.events[index] = replace(self.events[index], end=self.tick())
        self.arrived(index)

    def next_tag(self, peer: int, channel: int, side: str) -> int:
        key = (peer, channel, side)
        self.sent[key] = self.sent.get(key, 0) + 1
        return self.sent[key]

    def arrived(self, index: int) -> None:
        event = self.events[index]
        key = (event.peer, event.channel)
        mode = self.peers[event.peer].channel(event.channel).mode
        if mode == "tx":
            self.uncommitted.setdefault(key, []).append(index)
            return
        if index not in self.refused:
            self.route(index)
        if mode == "confirm":
            self.unconfirmed.setdefault(key, []).append(index)

    def route(self, index: int) -> None:
        event = self.events[index]
        assert event.message is not None
        vhost = self.peers[event.peer].vhost
        message = event.message
        copy = Copy(0, index, message, message.exchange, message.routing_key)
        if not self.enter(vhost, copy) and message.mandatory:
            self.note(
                "return", event.peer, event.channel, message=message, of=index, exchange=message.exchange,
                routing_key=message.routing_key,
            )  # fmt: skip

    def enter(self, vhost: str, copy: Copy) -> bool:
        """Into every queue that its exchange and routing key lead to."""
        targets = [
            queue
            for queue in self.queues
            if (copy.exchange == "" and copy.routing_key == queue.name)
            or (copy.exchange, copy.routing_key) in queue.bindings
            or (copy.exchange, None) in queue.bindings
        ]
        for queue in targets:
            self.copies += 1
            self.ready.setdefault((vhost, queue.name), []).append(replace(copy, position=self.copies))
        return bool(targets)

    def head(self, peer: int, queue: str) -> Copy | None:
        waiting = self.ready.get((self.peers[peer].vhost, queue))
        return waiting.pop(0) if waiting else None

    def hand_over(self, kind: str, peer: int, channel: int, copy: Copy, consumer: Consumer, parts: int) -> int:
        at = self.tick()
        end = at if parts == 1 else self.tick()
        remaining = len(self.ready.get((self.peers[peer].vhost, consumer.queue), []))
        index = self.note(
            kind, peer, channel, at=at, end=end, message=copy.message, parts=parts, exchange=copy.exchange,
            routing_key=copy.routing_key, of=copy.of, copy=copy.position, queue=consumer.queue, consumer=consumer.tag,
            no_ack=consumer.no_ack, tag=self.next_tag(peer, channel, "server"), redelivered=copy.redelivered,
            x_death=copy.x_death, deliveries=copy.deliveries, remaining=remaining,
        )  # fmt: skip
        if not consumer.no_ack:
            copy.deliveries += 1
            self.open.setdefault((peer, channel), []).append((index, copy, consumer.queue))
        return index

    def settled(self, peer: int, channel: int, about: list[int], outcome: str) -> None:
        opened = self.open[(peer, channel)]
        vhost = self.peers[peer].vhost
        for entry in [entry for entry in opened if entry[0] in about]:
            opened.remove(entry)
            _, copy, queue = entry
            if outcome == "requeued":
                self.back(queue, copy, peer)
            elif outcome == "rejected":
                self.dead(vhost, queue, copy, "rejected")

    def back(self, queue: str, copy: Copy, peer: int) -> None:
        vhost = self.peers[peer].vhost
        copy.redelivered = True
        limit = self.queue(queue).delivery_limit
        if limit is not None and copy.deliveries > limit:
            self.dead(vhost, queue, copy, "delivery_limit")
            return
        waiting = self.ready.setdefault((vhost, queue), [])
        waiting.append(copy)
        waiting.sort(key=lambda copy: copy.position)

    def queue(self, name: str) -> Queue:
        return next(queue for queue in self.queues if queue.name == name)

    def dead(self, vhost: str, name: str, copy: Copy, reason: str) -> None:
        to = self.queue(name).dead_letter
        if to is None:
            return
        exchange, key = to
        death = Death(reason, name, copy.exchange, copy.routing_key, self.clock // 10**9)
        same = [old for old in copy.x_death if (old.queue, old.reason) == (name, reason)]
        count = 1 + sum(old.count for old in same)
        x_death = (replace(death, count=count), *(old for old in copy.x_death if old not in same))
        moved = Copy(0, copy.of, copy.message, exchange, copy.routing_key if key is None else key, x_death)
        self.enter(vhost, moved)
