"""How a script looks in 0-8, 0-9 and 0-9-1: frames by pika, patched where the older versions differ.

What each event is: contents are a method, a header and body frames of at most `BODY_BYTES`. 0-8 and 0-9 have neither
confirms nor basic.nack; several rejections are several basic.reject.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pika import frame, spec
from pika.compat import long

from scenarios.script import Channel, Death, Event, Script

CLIENT, SERVER = "client", "server"
Step = tuple[str, bytes]  # who sends it, bytes
Sent = tuple[str, list[bytes]]  # sender, frames

HEADERS = {"0-8": b"AMQP\x01\x01\x08\x00", "0-9": b"AMQP\x01\x01\x00\x09", "0-9-1": b"AMQP\x00\x00\x09\x01"}
START_VERSIONS = {"0-8": (8, 0), "0-9": (0, 9), "0-9-1": (0, 9)}
# 0-8 numbers these of class connection otherwise; 0-8 channel.open-ok and basic.consume end earlier.
CLOSE_NUMBERS = {"0-8": (60, 61)}
CHANNEL_ID_BYTES = 4
BODY_BYTES = 64


class ClassicWire:
    """One peer; frames of events in the order of the script."""

    def __init__(self, script: Script, number: int) -> None:
        self.script, self.peer = script, script.peers[number]
        self.version = self.peer.version

    def opening(self) -> list[Step]:
        """Everything before the first event, step by step."""
        steps: list[Step] = [(CLIENT, HEADERS[self.version])]
        server = {"product": "RabbitMQ", "version": "3.10.8", "capabilities": {"publisher_confirms": True}}
        client = {"product": "scene", "version": "1", "capabilities": {"consumer_cancel_notify": True}}
        start = spec.Connection.Start(*START_VERSIONS[self.version], server, "PLAIN AMQPLAIN", "en_US")
        for side, method in (
            (SERVER, start),
            (CLIENT, spec.Connection.StartOk(client, "PLAIN", "\0guest\0guest", "en_US")),
            (SERVER, spec.Connection.Tune(2047, 131072, 60)),
            (CLIENT, spec.Connection.TuneOk(2047, 131072, 60)),
            (CLIENT, spec.Connection.Open(self.peer.vhost)),
            (SERVER, spec.Connection.OpenOk()),
        ):
            steps.append((side, self.method(0, method)))
        for channel in self.peer.channels:
            steps += [(side, self.method(channel.number, method)) for side, method in self.set_up(channel)]
        return steps

    def set_up(self, channel: Channel) -> list[tuple[str, Any]]:
        steps: list[tuple[str, Any]] = [(CLIENT, spec.Channel.Open()), (SERVER, spec.Channel.OpenOk())]
        if channel.mode == "confirm":
            steps += [(CLIENT, spec.Confirm.Select()), (SERVER, spec.Confirm.SelectOk())]
        if channel.mode == "tx":
            steps += [(CLIENT, spec.Tx.Select()), (SERVER, spec.Tx.SelectOk())]
        if channel.prefetch:
            steps += [(CLIENT, spec.Basic.Qos(prefetch_count=channel.prefetch)), (SERVER, spec.Basic.QosOk())]
        for queue in self.script.queues:
            if not any(consumer.queue == queue.name for consumer in channel.consumers):
                continue
            arguments: dict[str, Any] = {}
            if queue.dead_letter is not None:
                arguments["x-dead-letter-exchange"] = queue.dead_letter[0]
            steps += [
                (CLIENT, spec.Queue.Declare(queue=queue.name, durable=True, arguments=arguments)),
                (SERVER, spec.Queue.DeclareOk(queue.name, 0, 0)),
            ]
            for exchange, key in queue.bindings:
                steps += [
                    (CLIENT, spec.Queue.Bind(queue=queue.name, exchange=exchange, routing_key=key or "")),
                    (SERVER, spec.Queue.BindOk()),
                ]
        for consumer in channel.consumers:
            consume = spec.Basic.Consume(queue=consumer.queue, consumer_tag=consumer.tag, no_ack=consumer.no_ack)
            steps += [(CLIENT, consume), (SERVER, spec.Basic.ConsumeOk(consumer.tag))]
        return steps

    def closing(self) -> list[Step]:
        close, close_ok = spec.Connection.Close(200, "bye", 0, 0), spec.Connection.CloseOk()
        ends, ends_ok = spec.Channel.Close(200, "bye", 0, 0), spec.Channel.CloseOk()
        request, answer = (
            b"".join(self.method(channel.number, method) for channel in self.peer.channels)
            for method in (ends, ends_ok)
        )
        return [(CLIENT, request + self.method(0, close)), (SERVER, answer + self.method(0, close_ok))]

    def asks(self, event: Event) -> list[Step]:
        """What the client sends one step before the event."""
        if event.kind not in ("get", "get-empty"):
            return []
        return [(CLIENT, self.method(event.channel, spec.Basic.Get(queue=event.queue, no_ack=event.no_ack)))]

    def says(self, index: int) -> Sent:
        """The event itself."""
        event = self.script.events[index]
        if event.message is not None:
            return (CLIENT if event.kind == "publish" else SERVER), self.content(event)
        methods = getattr(self, event.kind.replace("-", "_"))(event)
        side = SERVER if event.kind in ("confirm", "get-empty") else CLIENT
        return side, [b"".join(self.method(event.channel, method) for method in methods)]

    def answers(self, event: Event) -> list[Step]:
        """What the server answers one step after the event."""
        answer = {"commit": spec.Tx.CommitOk, "rollback": spec.Tx.RollbackOk}.get(event.kind)
        return [(SERVER, self.method(event.channel, answer()))] if answer is not None else []

    # ---- events without content -------------------------------------------------------------------------------------

    def confirm(self, event: Event) -> list[Any]:
        tag = self.script.events[event.about[-1]].tag
        kind = spec.Basic.Ack if event.outcome == "confirmed" else spec.Basic.Nack
        return [kind(delivery_tag=tag, multiple=event.multiple)]

    def settle(self, event: Event) -> list[Any]:
        tags = [self.script.events[index].tag for index in event.about]
        requeue = event.outcome == "requeued"
        if event.outcome == "acked":
            return [spec.Basic.Ack(delivery_tag=tags[-1], multiple=event.multiple)]
        if event.multiple and self.version == "0-9-1":
            return [spec.Basic.Nack(delivery_tag=tags[-1], multiple=True, requeue=requeue)]
        return [spec.Basic.Reject(delivery_tag=tag, requeue=requeue) for tag in tags]

    def get_empty(self, event: Event) -> list[Any]:
        return [spec.Basic.GetEmpty()]

    def commit(self, event: Event) -> list[Any]:
        return [spec.Tx.Commit()]

    def rollback(self, event: Event) -> list[Any]:
        return [spec.Tx.Rollback()]

    # ---- contents ---------------------------------------------------------------------------------------------------

    def content(self, event: Event) -> list[bytes]:
        message = event.message
        assert message is not None
        number = event.channel
        headers = None
        if event.x_death:
            first = event.x_death[-1]
            headers = {
                "x-death": [death_entry(death) for death in event.x_death],
                "x-first-death-exchange": first.exchange,
                "x-first-death-queue": first.queue,
                "x-first-death-reason": first.reason,
            }
        properties = spec.BasicProperties(
            delivery_mode=2, message_id=message.message_id, correlation_id=message.correlation_id,
            reply_to=message.reply_to, headers=headers,
        )  # fmt: skip
        head = frame.Header(number, len(message.body), properties).marshal()
        bodies = [message.body[at : at + BODY_BYTES] for at in range(0, len(message.body), BODY_BYTES)]
        wire_bytes = b"".join(bytes(frame.Body(number, body).marshal()) for body in bodies)
        return [self.method(number, opening_method(event)), bytes(head), wire_bytes]

    def method(self, channel: int, method: Any) -> bytes:
        wire_bytes = bytes(frame.Method(channel, method).marshal())
        numbers = {spec.Connection.Close: 0, spec.Connection.CloseOk: 1}
        if type(method) in numbers and self.version in CLOSE_NUMBERS:
            number = CLOSE_NUMBERS[self.version][numbers[type(method)]]
            wire_bytes = wire_bytes[:9] + number.to_bytes(2, "big") + wire_bytes[11:]
        if self.version == "0-8" and isinstance(method, spec.Channel.OpenOk | spec.Basic.Consume):
            size = int.from_bytes(wire_bytes[3:7], "big") - CHANNEL_ID_BYTES
            wire_bytes = wire_bytes[:3] + size.to_bytes(4, "big") + wire_bytes[7 : 7 + size] + wire_bytes[-1:]
        return wire_bytes


def opening_method(event: Event) -> Any:
    where = {"exchange": event.exchange, "routing_key": event.routing_key}
    if event.kind == "publish":
        assert event.message is not None
        return spec.Basic.Publish(**where, mandatory=event.message.mandatory)
    if event.kind == "return":
        return spec.Basic.Return(312, "NO_ROUTE", **where)
    if event.kind == "get":
        return spec.Basic.GetOk(event.tag, event.redelivered, message_count=event.remaining, **where)
    return spec.Basic.Deliver(event.consumer, event.tag, event.redelivered, **where)


def death_entry(death: Death) -> dict[str, Any]:
    return {
        "count": long(death.count),
        "reason": death.reason,
        "queue": death.queue,
        "time": datetime.fromtimestamp(death.time_s, UTC),
        "exchange": death.exchange,
        "routing-keys": [death.routing_key],
    }
