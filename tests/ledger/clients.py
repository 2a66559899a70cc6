"""Clients that keep accounts: each library publishes or consumes, and writes down what it knows of each message.

    python clients.py SETTINGS          SETTINGS: JSON with the fields of `Settings`

An account is lines of JSON, each an event: `published`, `confirmed`, `nacked`, `returned` (by 1.0 also `rejected`,
`released`, `modified`) of a publisher; `delivered`, then `acked`, `rejected`, `requeued`, `released` or `modified` of a
consumer; `error` with code and text, and `closed` at the end, without which the client was killed. A message is known
by its marker

A library is one class with `publish` and `consume`; what is decided about a message is the same in all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

MARK = "|"  # before and after a marker
RETURN_EVERY = 23  # of the messages of a publisher, one is sent to a queue that does not exist
SIZES = (0, 3, 40, 500, 4000, 20_000)  # bytes after the marker
SETTLEMENTS = ("acked", "acked", "acked", "acked", "acked", "rejected", "requeued", "acked")
SETTLEMENTS_1_0 = ("acked", "acked", "acked", "rejected", "released", "modified", "acked", "acked")
BATCH = 50
IN_TRANSACTION = 10
NO_QUEUE = "ledger.no-such-queue"
STYLES = (
    "transactions",
    "multiple",
    "get",
    "recover",
)  # the first of publishers and consumers, the others of consumers


@dataclass
class Settings:
    """`name`: of the client, as its connection states it; `crash_after`: events after which the process kills itself,
    0: never; `stall_after`: deliveries after which a consumer answers none any more, 0: never; `auto`: deliveries need
    no answer; `idle_s`: a consumer ends after so long without a delivery, a stalled one after that; `style`: one of
    STYLES of pika; `ttl_ms`: of the messages of a publisher, 0: they do not expire."""

    library: str
    role: str
    name: str
    queue: str
    account: str
    port: int = 5672
    count: int = 100
    auto: bool = False
    crash_after: int = 0
    stall_after: int = 0
    idle_s: float = 2.0
    style: str = ""
    ttl_ms: int = 0
    address: str = "/amq/queue/{}"  # of a queue in 1.0
    largest: int = 20_000  # bytes of a body
    user: str = "guest"
    password: str = "guest"


class Account:
    """Where a client writes its events."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.events = settings, 0
        self._seen: set[str] = set()
        # Unbuffered: what was written stays, however the process ends.
        self._file = os.open(settings.account, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, event: str, marker: str | None = None, **more: Any) -> None:
        """One event."""
        line = {"client": self.settings.name, "library": self.settings.library, "event": event, "id": marker, **more}
        os.write(self._file, f"{json.dumps(line)}\n".encode())
        self.events += 1
        if self.settings.crash_after and self.events >= self.settings.crash_after:
            os.kill(os.getpid(), 9)

    def published(self, marker: str, body: bytes) -> None:
        self.write("published", marker, size=len(body), sha256=hashlib.sha256(body).hexdigest())

    def delivered(self, body: bytes, redelivered: bool | None) -> tuple[str, str | None]:
        """Write a delivery; its marker, and what is done with it: decided by the marker; redelivered, it is acked (some
        brokers do not say that they deliver again what was released). None: it is not answered."""
        marker = marker_of(body)
        self.write("delivered", marker, size=len(body), redelivered=redelivered)
        again = redelivered or marker in self._seen
        self._seen.add(marker)
        stalled = 0 < self.settings.stall_after < len(self._seen)
        return marker, None if self.settings.auto or stalled else self.decision(marker, again)

    def decision(self, marker: str, redelivered: bool | None) -> str:
        """The same for a message wherever it is delivered first, so that a run can be repeated."""
        turn = int(hashlib.sha256(marker.encode()).hexdigest()[:8], 16)
        choices = SETTLEMENTS_1_0 if self.settings.library in V1_0 else SETTLEMENTS
        choice = "acked" if redelivered else choices[turn % len(choices)]
        # RabbitMQ 3 ends the session of a client that says `modified`.
        return "released" if choice == "modified" and self.settings.address.startswith("/amq/") else choice


def batched(messages: Iterator[Outgoing], size: int) -> Iterator[list[Outgoing]]:
    while batch := list(islice(messages, size)):
        yield batch


def body_of(message: Any) -> bytes:
    """The body of a message of py-amqp or py-amqplib."""
    return message.body if isinstance(message.body, bytes) else message.body.encode()


def marker_of(body: bytes) -> str:
    return body.split(MARK.encode(), 2)[1].decode()


@dataclass(frozen=True)
class Outgoing:
    """A message to publish; `message_id` is None for every other one, so that pairs are found by content, too."""

    marker: str
    body: bytes
    message_id: str | None
    queue: str


def outgoing(settings: Settings) -> Iterator[Outgoing]:
    """The messages of a publisher."""
    for turn in range(settings.count):
        marker = f"{settings.name}:{turn:07d}"
        filler = bytes((turn * 7 + at) % 251 for at in range(min(SIZES[turn % len(SIZES)], settings.largest)))
        lost = turn % RETURN_EVERY == RETURN_EVERY - 1 and settings.library not in V1_0
        yield Outgoing(
            marker, f"{MARK}{marker}{MARK}".encode() + filler, marker if turn % 2 else None,
            NO_QUEUE if lost else settings.queue,
        )  # fmt: skip


Unsettled = list[tuple[int, str]]  # delivery tags and markers
Settle = Callable[[Unsettled, str, Account], None]


class Pika:
    """pika, blocking."""

    def __init__(self, settings: Settings) -> None:
        import pika

        self.pika, self.settings, self.turn = pika, settings, 0
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", settings.port, client_properties={"connection_name": settings.name},
                credentials=pika.PlainCredentials(settings.user, settings.password),
            )
        )  # fmt: skip
        self.channel = self.connection.channel()

    def publish(self, settings: Settings, account: Account) -> None:
        if settings.style == "transactions":
            self._publish_in_transactions(settings, account)
        else:
            self._publish_confirmed(settings, account)
        self.connection.close()

    def _publish_confirmed(self, settings: Settings, account: Account) -> None:
        self.channel.confirm_delivery()
        for message in outgoing(settings):
            account.published(message.marker, message.body)
            try:
                self._send(message)
                account.write("confirmed", message.marker)
            except self.pika.exceptions.UnroutableError:
                account.write("returned", message.marker)
            except self.pika.exceptions.NackError:
                account.write("nacked", message.marker)

    def _send(self, message: Outgoing) -> None:
        life = str(self.settings.ttl_ms) if self.settings.ttl_ms else None
        properties = self.pika.BasicProperties(message_id=message.message_id, delivery_mode=2, expiration=life)
        self.channel.basic_publish("", message.queue, message.body, properties, mandatory=True)

    def _publish_in_transactions(self, settings: Settings, account: Account) -> None:
        """Of three transactions the last one is rolled back."""
        returned: list[str] = []
        self.channel.add_on_return_callback(lambda _, __, ___, body: returned.append(marker_of(body)))
        self.channel.tx_select()
        for turn, messages in enumerate(batched(outgoing(settings), IN_TRANSACTION)):
            for message in messages:
                account.published(message.marker, message.body)
                self._send(message)
            result = "rolled-back" if turn % 3 == 2 else "committed"
            self.channel.tx_rollback() if result == "rolled-back" else self.channel.tx_commit()
            for message in messages:
                account.write(result, message.marker)
        self.connection.process_data_events(0.1)
        for marker in returned:
            account.write("returned", marker)

    def consume(self, settings: Settings, account: Account) -> None:
        if settings.style in ("get", "recover"):
            self._get(settings, account)
        else:
            self._subscribe(settings, account)
        self.connection.close()

    def _subscribe(self, settings: Settings, account: Account) -> None:
        settles = {"multiple": self._settle_many, "transactions": self._settle_in_transactions}
        settle = settles.get(settings.style, self._settle)
        self.channel.basic_qos(prefetch_count=20)
        if settings.style == "transactions":
            self.channel.tx_select()
        rows = self.channel.consume(settings.queue, auto_ack=settings.auto, inactivity_timeout=settings.idle_s)
        waiting: Unsettled = []
        for method, _, body in rows:
            if method is None:
                if not waiting:
                    break
                settle(waiting, "acked", account)
                continue
            marker, decision = account.delivered(body, method.redelivered)
            if decision is None:
                continue
            waiting.append((method.delivery_tag, marker))
            if decision == "acked":
                if not settings.style or len(waiting) == IN_TRANSACTION:
                    settle(waiting, "acked", account)
            else:
                self._settle_last(settle, waiting, decision, account)

    def _settle_last(self, settle: Settle, waiting: Unsettled, decision: str, account: Account) -> None:
        last = waiting.pop()
        if waiting:
            settle(waiting, "acked", account)
        waiting.append(last)
        settle(waiting, decision, account)

    def _settle(self, waiting: Unsettled, decision: str, account: Account) -> None:
        """Settle these deliveries; `waiting` is empty then."""
        for tag, marker in waiting:
            if decision == "acked":
                self.channel.basic_ack(tag)
            elif decision == "rejected":
                self.channel.basic_nack(tag, requeue=False)
            else:
                self.channel.basic_reject(tag, requeue=True)
            account.write(decision, marker)
        waiting.clear()

    def _settle_many(self, waiting: Unsettled, decision: str, account: Account) -> None:
        """The same, all at once."""
        if decision == "acked":
            self.channel.basic_ack(waiting[-1][0], multiple=True)
        else:
            self.channel.basic_nack(waiting[-1][0], multiple=True, requeue=decision == "requeued")
        for _, marker in waiting:
            account.write(decision, marker)
        waiting.clear()

    def _settle_in_transactions(self, waiting: Unsettled, decision: str, account: Account) -> None:
        """The same in transactions; what is rolled back is settled again."""
        self.turn += 1
        if self.turn % 3 == 0:
            for tag, _ in waiting:
                self.channel.basic_ack(tag)
            self.channel.tx_rollback()
        settled = [marker for _, marker in waiting]
        self._settle(waiting, decision, account)
        self.channel.tx_commit()
        for marker in settled:
            account.write("committed", marker)

    def _get(self, settings: Settings, account: Account) -> None:
        """One message after the other, until the queue is empty; with the style `recover` several are unsettled, which
        the broker takes back."""
        last = time.monotonic()
        waiting: Unsettled = []
        while time.monotonic() - last < settings.idle_s:
            method, _, body = self.channel.basic_get(settings.queue, auto_ack=settings.auto)
            if method is None:
                self._settle(waiting, "acked", account)
                self.connection.sleep(0.2)
                continue
            last = time.monotonic()
            marker, decision = account.delivered(body, method.redelivered)
            if decision is None:
                continue
            waiting.append((method.delivery_tag, marker))
            if decision == "requeued" and settings.style == "recover":
                self.channel.basic_recover(requeue=True)
                for _, each in waiting:
                    account.write("requeued", each)
                waiting.clear()
            elif decision != "acked":
                self._settle_last(self._settle, waiting, decision, account)
            elif settings.style != "recover" or len(waiting) == IN_TRANSACTION:
                self._settle(waiting, "acked", account)


class PyAmqp:
    """py-amqp."""

    def __init__(self, settings: Settings) -> None:
        import amqp

        self.amqp = amqp
        self.connection = amqp.Connection(
            f"127.0.0.1:{settings.port}", settings.user, settings.password, confirm_publish=settings.role == "publish",
            client_properties={"connection_name": settings.name},
        )  # fmt: skip
        self.connection.connect()
        self.channel = self.connection.channel()

    def publish(self, settings: Settings, account: Account) -> None:
        returned: list[bool] = []
        self.channel.events["basic_return"].add(lambda *_: returned.append(True))
        for message in outgoing(settings):
            properties = {"message_id": message.message_id} if message.message_id else {}
            account.published(message.marker, message.body)
            returned.clear()
            try:
                self.channel.basic_publish(
                    self.amqp.Message(message.body, delivery_mode=2, **properties), "", message.queue, mandatory=True
                )
                account.write("returned" if returned else "confirmed", message.marker)
            except self.amqp.exceptions.MessageNacked:
                account.write("nacked", message.marker)
        self.connection.close()

    def consume(self, settings: Settings, account: Account) -> None:
        def on_message(message: Any) -> None:
            marker, decision = account.delivered(body_of(message), message.delivery_info["redelivered"])
            if decision is None:
                return
            if decision == "acked":
                self.channel.basic_ack(message.delivery_tag)
            else:
                self.channel.basic_reject(message.delivery_tag, requeue=decision == "requeued")
            account.write(decision, marker)

        self.channel.basic_qos(0, 20, False)
        self.channel.basic_consume(settings.queue, no_ack=settings.auto, callback=on_message)
        with suppress(TimeoutError):
            while True:
                self.connection.drain_events(timeout=settings.idle_s)
        self.connection.close()


class AmqpLib:
    """py-amqplib of the system, AMQP 0-8, which has no confirms: it publishes in transactions."""

    def __init__(self, settings: Settings) -> None:
        from amqplib import client_0_8

        self.lib = client_0_8
        self.connection = client_0_8.Connection(
            f"127.0.0.1:{settings.port}", settings.user, settings.password,
            client_properties={"connection_name": settings.name},
        )  # fmt: skip
        self.channel = self.connection.channel()
        self.channel.auto_decode = False  # bodies are no text

    def publish(self, settings: Settings, account: Account) -> None:
        self.channel.tx_select()
        for messages in batched(outgoing(settings), IN_TRANSACTION):
            for message in messages:
                account.published(message.marker, message.body)
                properties = {"message_id": message.message_id} if message.message_id else {}
                sent = self.lib.Message(message.body, delivery_mode=2, **properties)
                self.channel.basic_publish(sent, "", message.queue, mandatory=True)
            self.channel.tx_commit()
            for message in messages:
                account.write("committed", message.marker)
            while not self.channel.returned_messages.empty():
                account.write("returned", marker_of(body_of(self.channel.returned_messages.get()[-1])))
        self.connection.close()

    def consume(self, settings: Settings, account: Account) -> None:
        def on_message(message: Any) -> None:
            marker, decision = account.delivered(body_of(message), message.delivery_info["redelivered"])
            if decision is None:
                return
            if decision == "acked":
                self.channel.basic_ack(message.delivery_tag)
            else:
                self.channel.basic_reject(message.delivery_tag, requeue=decision == "requeued")
            account.write(decision, marker)

        self.channel.basic_qos(0, 20, False)
        self.channel.basic_consume(settings.queue, no_ack=settings.auto, callback=on_message)
        self.connection.transport.sock.settimeout(settings.idle_s)
        with suppress(TimeoutError):
            while True:
                self.channel.wait()
        self.connection.close()


class Kombu:
    """kombu, over py-amqp."""

    def __init__(self, settings: Settings) -> None:
        import kombu

        self.kombu = kombu
        options = {"confirm_publish": True, "client_properties": {"connection_name": settings.name}}
        url = f"amqp://{settings.user}:{settings.password}@127.0.0.1:{settings.port}//"
        self.connection = kombu.Connection(url, transport_options=options)
        self.connection.connect()

    def publish(self, settings: Settings, account: Account) -> None:
        returned: list[bool] = []
        with self.connection.channel() as channel:
            producer = self.kombu.Producer(channel, on_return=lambda *_: returned.append(True))
            for message in outgoing(settings):
                properties = {"message_id": message.message_id} if message.message_id else {}
                account.published(message.marker, message.body)
                returned.clear()
                producer.publish(
                    message.body, routing_key=message.queue, mandatory=True, content_type="application/octet-stream",
                    content_encoding="binary", **properties,
                )  # fmt: skip
                account.write("returned" if returned else "confirmed", message.marker)
        self.connection.close()

    def consume(self, settings: Settings, account: Account) -> None:
        def on_message(message: Any) -> None:
            data = message.body if isinstance(message.body, bytes) else bytes(message.body)
            marker, decision = account.delivered(data, message.delivery_info["redelivered"])
            if decision is None:
                return
            if decision == "acked":
                message.ack()
            else:
                message.reject(requeue=decision == "requeued")
            account.write(decision, marker)

        queue = self.kombu.Queue(settings.queue, no_declare=True)
        with self.connection.Consumer(
            queue, on_message=on_message, no_ack=settings.auto, prefetch_count=20, accept=None, auto_declare=False
        ), suppress(TimeoutError):  # fmt: skip
            while True:
                self.connection.drain_events(timeout=settings.idle_s)
        self.connection.close()


class AmqpStorm:
    """AMQPStorm."""

    def __init__(self, settings: Settings) -> None:
        import amqpstorm

        self.storm = amqpstorm
        self.connection = amqpstorm.Connection(
            "127.0.0.1", settings.user, settings.password, port=settings.port,
            client_properties={"connection_name": settings.name},
        )  # fmt: skip
        self.channel = self.connection.channel()

    def publish(self, settings: Settings, account: Account) -> None:
        self.channel.confirm_deliveries()
        for message in outgoing(settings):
            properties = {"message_id": message.message_id} if message.message_id else {}
            account.published(message.marker, message.body)
            try:
                confirmed = self.channel.basic.publish(
                    message.body, message.queue, exchange="", properties=properties, mandatory=True
                )
                account.write("confirmed" if confirmed else "nacked", message.marker)
            except self.storm.AMQPMessageError:
                account.write("returned", message.marker)
        self.connection.close()

    def consume(self, settings: Settings, account: Account) -> None:
        last = [time.monotonic()]

        def on_message(message: Any) -> None:
            last[0] = time.monotonic()
            body = message._body if isinstance(message._body, bytes) else message._body.encode()
            marker, decision = account.delivered(body, message.redelivered)
            if decision is None:
                return
            if decision == "acked":
                message.ack()
            elif decision == "rejected":
                message.nack(requeue=False)
            else:
                message.reject(requeue=True)
            account.write(decision, marker)

        self.channel.basic.qos(20)
        self.channel.basic.consume(on_message, settings.queue, no_ack=settings.auto)
        while time.monotonic() - last[0] < settings.idle_s:
            self.channel.process_data_events(to_tuple=False)
            time.sleep(0.01)
        self.connection.close()


class Asynchronous:
    """A library that runs on asyncio: its coroutines `_publish` and `_consume`."""

    def __init__(self, settings: Settings) -> None:
        self.url = f"amqp://{settings.user}:{settings.password}@127.0.0.1:{settings.port}/"

    def publish(self, settings: Settings, account: Account) -> None:
        asyncio.run(self._publish(settings, account))

    def consume(self, settings: Settings, account: Account) -> None:
        asyncio.run(self._consume(settings, account))

    async def _publish(self, settings: Settings, account: Account) -> None:
        raise NotImplementedError

    async def _consume(self, settings: Settings, account: Account) -> None:
        raise NotImplementedError


class AioPika(Asynchronous):
    """aio-pika: publishes in batches, and waits for all confirms of one."""

    async def _publish(self, settings: Settings, account: Account) -> None:
        import aio_pika

        connection = await aio_pika.connect(self.url, client_properties={"connection_name": settings.name})
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)

        async def one(message: Outgoing) -> None:
            account.published(message.marker, message.body)
            try:
                await channel.default_exchange.publish(
                    aio_pika.Message(message.body, message_id=message.message_id), message.queue, mandatory=True
                )
                account.write("confirmed", message.marker)
            except aio_pika.exceptions.PublishError:
                account.write("returned", message.marker)
            except aio_pika.exceptions.DeliveryError:
                account.write("nacked", message.marker)

        messages = list(outgoing(settings))
        for at in range(0, len(messages), BATCH):
            await asyncio.gather(*map(one, messages[at : at + BATCH]))
        await connection.close()

    async def _consume(self, settings: Settings, account: Account) -> None:
        import aio_pika

        connection = await aio_pika.connect(self.url, client_properties={"connection_name": settings.name})
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=20)
        queue = await channel.get_queue(settings.queue, ensure=False)
        with suppress(asyncio.TimeoutError, TimeoutError):
            async with queue.iterator(timeout=settings.idle_s, no_ack=settings.auto) as messages:
                async for message in messages:
                    marker, decision = account.delivered(message.body, message.redelivered)
                    if decision is None:
                        continue
                    if decision == "acked":
                        await message.ack()
                    elif decision == "rejected":
                        await message.nack(requeue=False)
                    else:
                        await message.reject(requeue=True)
                    account.write(decision, marker)
        await connection.close()


class Aiormq(Asynchronous):
    """aiormq."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.url += f"?name={settings.name}"

    async def _publish(self, settings: Settings, account: Account) -> None:
        import aiormq

        connection = await aiormq.connect(self.url, client_properties={"connection_name": settings.name})
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        for message in outgoing(settings):
            account.published(message.marker, message.body)
            properties = aiormq.spec.Basic.Properties(message_id=message.message_id)
            try:
                await channel.basic_publish(
                    message.body, routing_key=message.queue, properties=properties, mandatory=True
                )
                account.write("confirmed", message.marker)
            except aiormq.exceptions.PublishError:
                account.write("returned", message.marker)
            except aiormq.exceptions.DeliveryError:
                account.write("nacked", message.marker)
        await connection.close()

    async def _consume(self, settings: Settings, account: Account) -> None:
        import aiormq

        connection = await aiormq.connect(self.url, client_properties={"connection_name": settings.name})
        channel = await connection.channel()
        last = [time.monotonic()]

        async def on_message(message: Any) -> None:
            last[0] = time.monotonic()
            marker, decision = account.delivered(message.body, message.redelivered)
            if decision is None:
                return
            if decision == "acked":
                await channel.basic_ack(message.delivery_tag)
            else:
                await channel.basic_reject(message.delivery_tag, requeue=decision == "requeued")
            account.write(decision, marker)

        await channel.basic_qos(prefetch_count=20)
        await channel.basic_consume(settings.queue, on_message, no_ack=settings.auto)
        while time.monotonic() - last[0] < settings.idle_s:
            await asyncio.sleep(0.05)
        await connection.close()


class Proton:
    """python-qpid-proton, AMQP 1.0."""

    def __init__(self, settings: Settings) -> None:
        self.url = f"amqp://{settings.user}:{settings.password}@127.0.0.1:{settings.port}"

    def publish(self, settings: Settings, account: Account) -> None:
        from proton import Message
        from proton.handlers import MessagingHandler
        from proton.reactor import AtMostOnce, Container

        url, messages, ttl_s = self.url, outgoing(settings), settings.ttl_ms / 1000

        class Sender(MessagingHandler):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.waiting: dict[Any, str] = {}
                self.all_sent = False

            def on_start(self, event: Any) -> None:
                connection = event.container.connect(url, allowed_mechs="PLAIN", reconnect=False)
                options = AtMostOnce() if settings.auto else None
                event.container.create_sender(connection, settings.address.format(settings.queue), options=options)

            def on_sendable(self, event: Any) -> None:
                while event.sender.credit and not self.all_sent:
                    message = next(messages, None)
                    if message is None:
                        self.all_sent = True
                        break
                    account.published(message.marker, message.body)
                    # Binary in a value, or in a data section.
                    is_data, name = message.message_id is None, message.message_id
                    sent = Message(body=message.body, inferred=is_data, id=name, durable=True, ttl=ttl_s)
                    delivery = event.sender.send(sent)
                    if not settings.auto:
                        self.waiting[delivery.tag] = message.marker
                self.end(event)

            def on_session_error(self, event: Any) -> None:
                account.write("error", text=str(event.session.remote_condition))
                event.connection.close()

            def settled(self, event: Any, name: str) -> None:
                marker = self.waiting.pop(event.delivery.tag, None)
                if marker is not None:  # an outcome may be reported again
                    account.write(name, marker)
                self.end(event)

            def on_accepted(self, event: Any) -> None:
                self.settled(event, "confirmed")

            def on_rejected(self, event: Any) -> None:
                self.settled(event, "rejected")

            def on_released(self, event: Any) -> None:
                modified = str(event.delivery.remote_state) == "MODIFIED"
                self.settled(event, "modified" if modified else "released")

            def end(self, event: Any) -> None:
                if self.all_sent and not self.waiting:
                    event.connection.close()

        container = Container(Sender())
        container.container_id = settings.name
        container.run()

    def consume(self, settings: Settings, account: Account) -> None:
        from proton.handlers import MessagingHandler
        from proton.reactor import AtMostOnce, Container

        url = self.url

        class Receiver(MessagingHandler):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(prefetch=20, auto_accept=False)
                self.last = time.monotonic()
                self.closing = False

            def on_start(self, event: Any) -> None:
                self.connection = event.container.connect(url, allowed_mechs="PLAIN", reconnect=False)
                address = settings.address.format(settings.queue)
                options = AtMostOnce() if settings.auto else None
                event.container.create_receiver(self.connection, address, options=options)
                event.container.schedule(settings.idle_s / 4, self)

            def on_session_error(self, event: Any) -> None:
                account.write("error", text=str(event.session.remote_condition))

            def on_timer_task(self, event: Any) -> None:
                if time.monotonic() - self.last < settings.idle_s:
                    event.container.schedule(settings.idle_s / 4, self)
                else:
                    self.closing = True
                    self.connection.close()

            def on_message(self, event: Any) -> None:
                if self.closing:  # proton would send no outcome any more
                    return
                self.last = time.monotonic()
                body = bytes(event.message.body)
                again = not event.message.first_acquirer or event.message.delivery_count > 0
                marker, decision = account.delivered(body, again)
                if decision is None:
                    return
                if decision == "acked":
                    self.accept(event.delivery)
                elif decision == "rejected":
                    self.reject(event.delivery)
                else:
                    self.release(event.delivery, delivered=decision == "modified")
                account.write(decision, marker)

        container = Container(Receiver())
        container.container_id = settings.name
        container.run()


class Library(Protocol):
    """How a library publishes the messages of `outgoing`, and consumes until nothing has come for a while."""

    def __init__(self, settings: Settings) -> None: ...
    def publish(self, settings: Settings, account: Account) -> None: ...
    def consume(self, settings: Settings, account: Account) -> None: ...


LIBRARIES: dict[str, type[Library]] = {
    "pika": Pika, "py-amqp": PyAmqp, "kombu": Kombu, "amqpstorm": AmqpStorm, "aio-pika": AioPika, "aiormq": Aiormq,
    "py-amqplib": AmqpLib, "proton": Proton,
}  # fmt: skip
SYSTEM_MODULES = "/usr/lib/python3/dist-packages"  # where Debian has libraries that PyPI has for Python 2 only
NODE = ("amqplib", "rabbitmq-client", "rhea")  # in clients.js
V1_0 = ("proton", "rhea")


def main() -> None:
    sys.path.append(SYSTEM_MODULES)
    settings = Settings(**json.loads(sys.argv[1]))
    account = Account(settings)
    try:
        client = LIBRARIES[settings.library](settings)
        (client.publish if settings.role == "publish" else client.consume)(settings, account)
        account.write("closed")
    except Exception as error:
        code = next(
            (value for name in ("reply_code", "code") if isinstance(value := getattr(error, name, None), int)), None
        )
        account.write("error", code=code, text=f"{type(error).__name__}: {error}")
        account.write("closed")


if __name__ == "__main__":
    main()
