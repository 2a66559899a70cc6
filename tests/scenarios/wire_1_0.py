"""How a script looks in 1.0: performatives and sections by qpid-proton's codec, addresses as RabbitMQ writes them.

Every other broker tells of dead letters and routes as RabbitMQ 4 does, in message annotations, the others as RabbitMQ
3, where headers are application properties. Session n is on channel n. A client publishes over one link for each
address, and receives over one for each consumer. What takes several packets is a delivery of several transfers.
"""

from __future__ import annotations

from typing import Any

import proton

from scenarios.script import DEFAULT_VHOST, Event, Message, Script
from scenarios.wire_classic import CLIENT, SERVER, Said, Step

uint = proton.uint
UNDESCRIBED: Any = proton.UNDESCRIBED
SASL_HEADER, PROTOCOL_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, CLOSE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x18
MECHANISMS, INIT, OUTCOME = 0x40, 0x41, 0x44
SOURCE, TARGET = 0x28, 0x29
# Code of the state that gives an outcome.
STATES = {"acked": 0x24, "confirmed": 0x24, "rejected": 0x25, "nacked": 0x25, "requeued": 0x26}
SENDER, RECEIVER = False, True
CREDIT = 1000


def queue_address(queue: str) -> str:
    return f"/queue/{queue}"


def target_address(message: Message) -> str:
    """Where a publish goes (https://www.rabbitmq.com/docs/3.13/amqp, routing and addressing)."""
    if message.exchange == "":
        return queue_address(message.routing_key)
    return f"/exchange/{message.exchange}/{message.routing_key}"


def described(code: int, *fields: Any) -> Any:
    return proton.Described(proton.ulong(code), list(fields))


def performative(code: int, *fields: Any, channel: int = 0, payload: bytes = b"", kind: int = 0) -> bytes:
    data = proton.Data()
    data.put_object(described(code, *fields))
    octets: bytes = data.encode() + payload
    return (8 + len(octets)).to_bytes(4, "big") + bytes([2, kind]) + channel.to_bytes(2, "big") + octets


class DescribedWire:
    """One peer; the server answers a begin or attach with the same channel and handle."""

    def __init__(self, script: Script, number: int) -> None:
        self.script, self.peer = script, script.peers[number]
        self.annotates = script.number % 2 == 1
        mine = [event for event in script.events if event.peer == number and event.kind == "publish"]
        self.targets = {
            channel.number: list(
                dict.fromkeys(target_address(e.message) for e in mine if e.channel == channel.number and e.message)
            )
            for channel in self.peer.channels
        }

    def opening(self) -> list[Step]:
        vhost = self.peer.vhost
        host = "broker.example" if vhost == DEFAULT_VHOST else f"vhost:{vhost}"
        both = [proton.symbol("ANONYMOUS"), proton.symbol("PLAIN")]
        steps = [
            (CLIENT, SASL_HEADER),
            (SERVER, SASL_HEADER),
            (SERVER, performative(MECHANISMS, proton.Array(UNDESCRIBED, proton.Data.SYMBOL, *both), kind=1)),
            (CLIENT, performative(INIT, proton.symbol("ANONYMOUS"), b"guest", host, kind=1)),
            (SERVER, performative(OUTCOME, proton.ubyte(0), kind=1)),
            (CLIENT, PROTOCOL_HEADER),
            (SERVER, PROTOCOL_HEADER),
            (CLIENT, performative(OPEN, "scene", host, uint(65536), proton.ushort(255))),
            (SERVER, performative(OPEN, "rabbit", None, uint(65536), proton.ushort(255))),
        ]
        for channel in self.peer.channels:
            steps += self.session(channel.number)
        return steps

    def session(self, number: int) -> list[Step]:
        window = uint(2048)

        def begin(remote: int | None) -> bytes:
            answers = None if remote is None else proton.ushort(remote)
            return performative(BEGIN, answers, uint(0), window, window, channel=number)

        steps = [(CLIENT, begin(None)), (SERVER, begin(number))]
        for handle, address in enumerate(self.targets[number]):
            steps += self.link(number, f"to {address}", handle, None, address, False)
            steps.append((SERVER, self.grants(number, handle)))
        for at, consumer in enumerate(self.peer.channel(number).consumers):
            handle = len(self.targets[number]) + at
            steps += self.link(number, consumer.tag, handle, queue_address(consumer.queue), None, consumer.no_ack)
            steps.append((CLIENT, self.grants(number, handle)))
        return steps

    def link(
        self, number: int, name: str, handle: int, source: str | None, target: str | None, settled: bool
    ) -> list[Step]:
        client_role = SENDER if source is None else RECEIVER
        mode = proton.ubyte(1 if settled else 0)
        ends = (described(SOURCE, source), described(TARGET, target))

        def attach(role: bool) -> bytes:
            first = uint(0) if role == SENDER else None
            return performative(
                ATTACH, name, uint(handle), role, mode, proton.ubyte(0), *ends, None, None, first, channel=number
            )

        return [(CLIENT, attach(client_role)), (SERVER, attach(not client_role))]

    def grants(self, number: int, handle: int) -> bytes:
        window = uint(2048)
        fields = (uint(0), window, uint(0), window, uint(handle), uint(0), uint(CREDIT))
        return performative(FLOW, *fields, channel=number)

    def closing(self) -> list[Step]:
        return [(CLIENT, performative(CLOSE)), (SERVER, performative(CLOSE))]

    def asks(self, event: Event) -> list[Step]:
        return []

    def answers(self, event: Event) -> list[Step]:
        return []

    def says(self, index: int) -> Said:
        event = self.script.events[index]
        if event.message is not None and event.kind != "return":
            return (CLIENT if event.kind == "publish" else SERVER), self.transfers(event)
        about = [event.of] if event.kind == "return" else list(event.about)
        ids = [self.script.events[index].tag - 1 for index in about if index is not None]
        outcome = "requeued" if event.kind == "return" else event.outcome
        state = described(STATES[outcome])
        side = CLIENT if event.kind == "settle" else SERVER
        dispositions = [
            performative(DISPOSITION, RECEIVER, uint(first), uint(last), True, state, channel=event.channel)
            for first, last in ([(ids[0], ids[-1])] if event.multiple else [(number, number) for number in ids])
        ]
        return side, [b"".join(dispositions)]

    def transfers(self, event: Event) -> list[bytes]:
        """As many transfers as the event takes packets, at least one."""
        message, number = event.message, event.channel
        assert message is not None
        if event.kind == "publish":
            handle = self.targets[number].index(target_address(message))
        else:
            tags = [consumer.tag for consumer in self.peer.channel(number).consumers]
            handle = len(self.targets[number]) + tags.index(event.consumer or "")
        sections = sections_of(event, self.annotates)
        width = -(-len(sections) // event.parts)
        pieces = [sections[at : at + width] for at in range(0, len(sections), width)]
        frames = []
        for place, piece in enumerate(pieces):
            first = place == 0
            fields = [
                uint(handle), uint(event.tag - 1) if first else None, event.tag.to_bytes(4, "big") if first else None,
                uint(0) if first else None, event.no_ack, place < len(pieces) - 1,
            ]  # fmt: skip
            frames.append(performative(TRANSFER, *fields, channel=number, payload=piece))
        return frames


def sections_of(event: Event, annotates: bool) -> bytes:
    """The message as it stands in the transfers: header, annotations, properties, application properties, data."""
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
    told: dict[Any, Any] = {}
    if event.deaths:
        first = event.deaths[-1]
        told = {
            "x-first-death-exchange": first.exchange,
            "x-first-death-queue": first.queue,
            "x-first-death-reason": first.reason,
        }
    if annotates and event.kind != "publish":
        told |= {"x-exchange": event.exchange, "x-routing-key": event.routing_key}
        encoded.annotations = {proton.symbol(key): value for key, value in told.items()}
    elif told:
        encoded.properties = told
    octets: bytes = encoded.encode()
    return octets
