"""How a script looks in 1.0: performatives and sections by qpid-proton's codec, addresses as RabbitMQ writes them.

Every other broker tells of dead letters and routes as RabbitMQ 4 does, in message annotations, the others as RabbitMQ
3, where headers are application properties. Session n is on channel n. A client publishes over one link for each
address, and receives over one for each consumer. What takes several packets is a delivery of several transfers.

A prefetch is link credit, granted anew when deliveries have been settled.
In a transaction transfers and dispositions of the client name it, and the broker accepts what is published at once or
when the transaction ends, session by session. Every other rollback is a discharge that the broker rejects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import encode_1_0 as P
import proton
from encode_1_0 import described, frame, performative, performative_frame, section

from scenarios.script import DEFAULT_VHOST, Event, Message, Script
from scenarios.wire_classic import CLIENT, SERVER, Sent, Step

uint = proton.uint
UNDESCRIBED: Any = proton.UNDESCRIBED
SASL_HEADER, PROTOCOL_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
COORDINATION = "transactions"  # name of the link to the coordinator
# Code of the state that gives an outcome.
STATES = {"acked": 0x24, "confirmed": 0x24, "rejected": 0x25, "nacked": 0x25, "requeued": 0x26}
SENDER, RECEIVER = False, True
CREDIT, WINDOW = 1000, 2048


def queue_address(queue: str) -> str:
    return f"/queue/{queue}"


def target_address(message: Message) -> str:
    """Where a publish goes (https://www.rabbitmq.com/docs/3.13/amqp, routing and addressing)."""
    if message.exchange == "":
        return queue_address(message.routing_key)
    return f"/exchange/{message.exchange}/{message.routing_key}"


def sent(code: int, *fields: Any, channel: int = 0, kind: int = 0) -> bytes:
    """A performative in a frame."""
    return frame(performative(code, *fields), channel, kind)


RABBITMQ = {proton.symbol("product"): "RabbitMQ"}  # properties of its open


class WireV1_0:
    """One peer; the server answers a begin or attach with the same channel and handle."""

    def __init__(self, script: Script, number: int) -> None:
        self.script, self.peer = script, script.peers[number]
        mine = [event for event in script.events if event.peer == number and event.kind == "publish"]
        self.targets = {
            channel.number: list(
                dict.fromkeys(target_address(e.message) for e in mine if e.channel == channel.number and e.message)
            )
            for channel in self.peer.channels
        }
        self.sent = {channel.number: 0 for channel in self.peer.channels}  # deliveries of the client
        self.id_of: dict[int, int] = {}  # publish -> delivery-id
        self.published: dict[int, list[int]] = {channel.number: [] for channel in self.peer.channels}  # not answered
        self.transactions = {channel.number: 0 for channel in self.peer.channels}
        self.answer: list[Step] = []
        self.received = {channel.number: 0 for channel in self.peer.channels}
        self.open: dict[int, set[int]] = {channel.number: set() for channel in self.peer.channels}  # deliveries
        self.settling: dict[int, set[int]] = {
            channel.number: set() for channel in self.peer.channels
        }  # in a transaction

    def opening(self) -> list[Step]:
        vhost = self.peer.vhost
        host = "broker.example" if vhost == DEFAULT_VHOST else f"vhost:{vhost}"
        both = [proton.symbol("ANONYMOUS"), proton.symbol("PLAIN")]
        steps = [
            (CLIENT, SASL_HEADER),
            (SERVER, SASL_HEADER),
            (SERVER, sent(P.MECHANISMS, proton.Array(UNDESCRIBED, proton.Data.SYMBOL, *both), kind=1)),
            (CLIENT, sent(P.INIT, proton.symbol("ANONYMOUS"), b"guest", host, kind=1)),
            (SERVER, sent(P.OUTCOME, proton.ubyte(0), kind=1)),
            (CLIENT, PROTOCOL_HEADER),
            (SERVER, PROTOCOL_HEADER),
            (CLIENT, sent(P.OPEN, "scene", host, uint(65536), proton.ushort(255))),
            (SERVER, sent(P.OPEN, "rabbit", None, uint(65536), proton.ushort(255), *[None] * 5, RABBITMQ)),
        ]
        for channel in self.peer.channels:
            steps += self.session(channel.number)
        return steps

    def session(self, number: int) -> list[Step]:
        windows = {"next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW}
        begins = (CLIENT, None), (SERVER, number)
        steps = [
            (side, performative_frame(P.BEGIN, number, remote_channel=remote, **windows)) for side, remote in begins
        ]
        for handle, address in enumerate(self.targets[number]):
            steps += self.link(number, f"to {address}", handle, None, address, False)
            steps.append((SERVER, self.grants(number, handle)))
        for at, consumer in enumerate(self.peer.channel(number).consumers):
            handle = len(self.targets[number]) + at
            steps += self.link(number, consumer.tag, handle, queue_address(consumer.queue), None, consumer.no_ack)
            steps.append((CLIENT, self.grants(number, handle, self.peer.channel(number).prefetch or CREDIT)))
        if self.peer.channel(number).mode == "tx":
            steps += self.link(number, COORDINATION, self.coordination(number), None, None, False, P.COORDINATOR)
            steps.append((SERVER, self.grants(number, self.coordination(number))))
            steps += self.begins(number)
        return steps

    def link(
        self, number: int, name: str, handle: int, source: str | None, target: str | None, settled: bool,
        far: int = P.TARGET,
    ) -> list[Step]:  # fmt: skip
        client_role = SENDER if source is None else RECEIVER
        link = {
            "name": name, "handle": handle, "snd_settle_mode": 1 if settled else 0, "rcv_settle_mode": 0,
            "source": described(P.SOURCE, source), "target": described(far, target),
        }  # fmt: skip
        return [
            (
                side,
                performative_frame(
                    P.ATTACH, number, role=role, initial_delivery_count=0 if role == SENDER else None, **link
                ),
            )
            for side, role in ((CLIENT, client_role), (SERVER, not client_role))
        ]

    def grants(self, number: int, handle: int, credit: int = CREDIT, count: int = 0) -> bytes:
        windows = {"next_incoming_id": 0, "incoming_window": WINDOW, "next_outgoing_id": 0, "outgoing_window": WINDOW}
        return performative_frame(P.FLOW, number, **windows, handle=handle, delivery_count=count, link_credit=credit)

    def settled(self, number: int, deliveries: Iterable[int]) -> bytes:
        """The flow that follows when these are open no more; only channels with one consumer have a prefetch."""
        prefetch = self.peer.channel(number).prefetch
        self.open[number] -= set(deliveries)
        if not prefetch:
            return b""
        credit = prefetch - len(self.open[number])
        return self.grants(number, len(self.targets[number]), credit, self.received[number])

    def closing(self) -> list[Step]:
        ends = b"".join(sent(P.END, channel=channel.number) for channel in self.peer.channels)
        return [(CLIENT, ends + sent(P.CLOSE)), (SERVER, sent(P.CLOSE))]

    def asks(self, event: Event) -> list[Step]:
        return []

    def answers(self, event: Event) -> list[Step]:
        """The broker's disposition of a publish in a transaction, or of its end."""
        wire_bytes, self.answer = self.answer, []
        return wire_bytes

    # ---- transactions -----------------------------------------------------------------------------------------------

    def coordination(self, number: int) -> int:
        """Handle of the link to the coordinator: after all others."""
        return len(self.targets[number]) + len(self.peer.channel(number).consumers)

    def transaction(self, number: int) -> bytes:
        return f"{number}-{self.transactions[number]}".encode()

    def within(self, number: int, state: Any = None) -> Any:
        """A state in the current transaction."""
        return described(P.TRANSACTIONAL, self.transaction(number), state)

    def asked(self, number: int, code: int, *fields: Any) -> bytes:
        """A message to the coordinator."""
        payload = section(P.VALUE, described(code, *fields))
        return self.transfer(number, self.coordination(number), self.next_id(number), payload)

    def begins(self, number: int) -> list[Step]:
        self.transactions[number] += 1
        asked = self.asked(number, P.DECLARE)
        state = described(P.DECLARED, self.transaction(number))
        return [(CLIENT, asked), (SERVER, disposition(number, self.sent[number] - 1, state))]

    def ends(self, event: Event) -> bytes:
        """A transaction is over; `answer` is what follows then."""
        number = event.channel
        rejects = event.kind == "rollback" and self.transactions[number] % 2 == 0
        wire_bytes = self.asked(number, P.DISCHARGE, self.transaction(number), event.kind == "rollback" and not rejects)
        error = described(P.ERROR, proton.symbol("amqp:transaction:rollback"))
        state = described(P.REJECTED, error) if rejects else described(P.ACCEPTED)
        done, self.published[number] = self.published[number], []
        accepted = [disposition(number, id_, self.within(number, described(P.ACCEPTED))) for id_ in done]
        own = disposition(number, self.sent[number] - 1, state)
        self.answer = [(SERVER, b"".join(accepted) + own), *self.begins(number)]
        return wire_bytes

    def published_within(self, index: int) -> None:
        """A publish in a transaction, answered now or when that ends."""
        event = self.script.events[index]
        if accepts_at_once(self.script, event.channel):
            state = self.within(event.channel, described(P.ACCEPTED))
            self.answer = [(SERVER, disposition(event.channel, self.id_of[index], state))]
        else:
            self.published[event.channel].append(self.id_of[index])

    # ---- events -----------------------------------------------------------------------------------------------------

    def says(self, index: int) -> Sent:
        event = self.script.events[index]
        if event.kind == "publish":
            self.id_of[index] = self.next_id(event.channel)
            if self.peer.waits(event.channel):
                self.published_within(index)
            return CLIENT, self.transfers(event, self.id_of[index])
        if event.message is not None and event.kind != "return":
            self.received[event.channel] += 1
            self.open[event.channel].add(index)
            return SERVER, self.transfers(event, event.tag - 1)
        if event.kind in ("commit", "rollback"):
            gone, self.settling[event.channel] = self.settling[event.channel], set()
            flow = self.settled(event.channel, gone) if event.kind == "commit" else b""
            return CLIENT, [self.ends(event) + flow]
        about = [event.of] if event.kind == "return" else list(event.about)
        ids = [self.id_of.get(index, self.script.events[index].tag - 1) for index in about if index is not None]
        outcome = "requeued" if event.kind == "return" else event.outcome
        state = described(STATES[outcome])
        flow = b""
        if event.kind == "settle" and self.peer.waits(event.channel, event.outcome):
            state = self.within(event.channel, state)
            self.settling[event.channel] |= set(event.about)
        elif event.kind == "settle":
            flow = self.settled(event.channel, event.about)
        ranges = [(ids[0], ids[-1])] if event.multiple else [(number, number) for number in ids]
        wire_bytes = [disposition(event.channel, first, state, last) for first, last in ranges]
        if event.kind == "settle" and not self.peer.waits(event.channel, event.outcome) and taken_back(event, index):
            late = [disposition(event.channel, first, described(P.ACCEPTED), last) for first, last in ranges]
            self.answer = [(CLIENT, b"".join(late) + flow)]
            back = [disposition(event.channel, first, state, last, SENDER) for first, last in ranges]
            return SERVER, [b"".join(back)]
        return (CLIENT if event.kind == "settle" else SERVER), [b"".join(wire_bytes) + flow]

    def next_id(self, number: int) -> int:
        self.sent[number] += 1
        return self.sent[number] - 1

    def transfers(self, event: Event, delivery_id: int) -> list[bytes]:
        """As many transfers as the event takes packets, at least one."""
        message, number, state = event.message, event.channel, None
        assert message is not None
        if event.kind == "publish":
            handle = self.targets[number].index(target_address(message))
            state = self.within(number) if self.peer.waits(number) else None
        else:
            tags = [consumer.tag for consumer in self.peer.channel(number).consumers]
            handle = len(self.targets[number]) + tags.index(event.consumer or "")
        sections = sections_of(event, annotates(self.script))
        width = -(-len(sections) // event.parts)
        pieces = [sections[at : at + width] for at in range(0, len(sections), width)]
        frames = []
        for index, piece in enumerate(pieces):
            known, more = delivery_id if index == 0 else None, index < len(pieces) - 1
            frames.append(self.transfer(number, handle, known, piece, event.no_ack, more, state))
        return frames

    def transfer(
        self, number: int, handle: int, delivery_id: int | None, payload: bytes, settled: bool = False,
        more: bool = False, state: Any = None,
    ) -> bytes:  # fmt: skip
        """One transfer; without a delivery-id it goes on with the delivery of its link."""
        delivery: dict[str, Any] = {"handle": handle, "settled": settled, "more": more, "state": state}
        if delivery_id is not None:
            tag = delivery_id.to_bytes(4, "big")
            delivery |= {"delivery_id": delivery_id, "delivery_tag": tag, "message_format": 0}
        return performative_frame(P.TRANSFER, number, payload, **delivery)


def annotates(script: Script) -> bool:
    """Whether the broker adds the route to deliveries, as RabbitMQ 4 does."""
    return script.number % 2 == 1


def accepts_at_once(script: Script, number: int) -> bool:
    """Whether the broker accepts what is published in a transaction at once, not when that ends."""
    return (script.number + number) % 3 == 0


def taken_back(event: Event, index: int) -> bool:
    """Whether the broker takes deliveries back that the consumer has held for too long, and the consumer accepts them
    after that; otherwise the consumer releases them."""
    return event.outcome == "requeued" and index % 2 == 0


def disposition(number: int, first: int, state: Any, last: int | None = None, role: bool = RECEIVER) -> bytes:
    """The receiver settles deliveries `first` to `last`; the sender only states an outcome."""
    end, settled = first if last is None else last, role == RECEIVER
    return performative_frame(P.DISPOSITION, number, role=role, first=first, last=end, settled=settled, state=state)


def sections_of(event: Event, annotated: bool) -> bytes:
    """The message in the transfers: header, annotations, properties, application properties, data."""
    message = event.message
    assert message is not None
    encoded: Any = proton.Message(body=message.body, inferred=True, durable=True)
    encoded.delivery_count = event.deliveries
    if message.message_id is not None:
        encoded.id = message.message_id
    if message.correlation_id is not None:
        encoded.correlation_id = message.correlation_id
    if message.reply_to is not None:
        encoded.reply_to = message.reply_to
    added: dict[Any, Any] = {}
    if event.x_death:
        first = event.x_death[-1]
        added = {f"x-first-death-{name}": getattr(first, name) for name in ("exchange", "queue", "reason")}
    if annotated and event.kind != "publish":
        added |= {"x-exchange": event.exchange, "x-routing-key": event.routing_key}
        encoded.annotations = {proton.symbol(key): value for key, value in added.items()}
    elif added:
        encoded.properties = added
    wire_bytes: bytes = encoded.encode()
    return wire_bytes
