"""What is recorded: an application that publishes, and one that consumes, with pika, py-amqp, Qpid Proton, rhea or
qpid-python. Each option is something that a change of the application, its library or the broker could alter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import amqp
import pika
from proton import Delivery, Link, Message, SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import AtMostOnce, Container, Copy, ReceiverOption, Selector

HOST, PORT, DELAYED_PORT, TLS_PORT, QPID_PORT = "10.9.0.2", 5672, 5673, 5671, 5674
HERE = Path(__file__).parent
# Names of further applications, each with a queue and an exchange of its own.
OTHERS = (
    "audit", "basket", "billing", "catalog", "coupons", "delivery", "email", "forecast", "fraud", "images", "invoices",
    "ledger", "loyalty", "metrics", "payments", "pricing", "ratings", "refunds", "returns", "search", "stock", "tax",
    "tracking", "warehouse",
)  # fmt: skip
QPID_BROKER = {
    "mechanisms": ["PLAIN", "ANONYMOUS"],
    "tune": {"channel_max": 255, "max_frame_size": 65535, "heartbeat_min": 0, "heartbeat_max": 120},
}


@dataclass(frozen=True)
class Tools:
    """What recording needs besides this environment: a folder node_modules that has rhea, a Python 2.7 that has
    qpid-python, a file for the secrets of TLS connections, and a folder with other releases of libraries."""

    rhea: str = ""
    qpid: str = ""
    keys: str = ""
    releases: str = ""


@dataclass(frozen=True)
class Options:
    """How the two applications behave. `rounds`: connections of each; `pause`: seconds between publishes."""

    library: str = "pika"
    rounds: int = 4
    messages: int = 40
    pause: float = 0.002
    user: str = "guest"
    vhost: str = "/"
    port: int = PORT
    heartbeat: int = 60
    frame_max: int = 131072
    channel_max: int = 2047
    named: bool = True
    product: str | None = None
    exchange_type: str = "direct"
    queue: str = "orders"
    exchange: str = "events"
    names: tuple[str, str] = ("shipping", "order-service")
    others: int = 0  # further pairs of applications
    around: Options | None = None  # what these do, if not the same
    durable: bool = True
    queue_arguments: Any = field(default_factory=dict)
    declare: str = "once"  # 'each': before every publish
    channel: str = "one"  # 'each': one for every publish
    connection: int = 0  # a new one for every Nth publish
    key: str = "order"
    consumers: int = 1
    passive: bool = False
    auto_delete: bool = False
    via: bool = False  # another exchange is bound to the one that is published to
    recover: bool = False
    big_every: int = 0  # every Nth body has 20,000 bytes
    work_every: int = 1  # deliveries of which one takes `work`
    consume_again: int = 0  # the consumer is cancelled and comes again every Nth message
    confirm: str = "confirm"  # 'tx' 'none'
    delivery_mode: int = 2
    mandatory: bool = False
    unroutable: int = 0  # every Nth publish has a key that no queue is bound to
    body: int = 200
    properties: Any = field(default_factory=dict)
    prefetch: int = 10
    global_qos: bool = False
    consume_every: int = 1  # publishes
    no_ack: bool = False
    get: bool = False
    ack_every: int = 1
    requeue: int = 0  # every Nth delivery, once
    reject: int = 0  # every Nth delivery, for good
    work: float = 0.0  # seconds before a message is settled
    exclusive: bool = False
    consume_arguments: Any = field(default_factory=dict)
    abrupt: bool = False
    mechanism: str = ""
    refused: str = ""  # a request that the broker refuses: 'declare', 'attach'
    tls: str = ""  # version
    ciphers: str = ""  # of TLS 1.2
    server_name: str = ""
    loss: float = 0.0  # share of the client's packets that the network drops
    cut: float = 0.0  # seconds after which the relay resets connections
    jitter: float = 0.0  # seconds that the relay of DELAYED_PORT holds data at most
    rate: str = ""  # what the network carries, as tc has it
    release: str = ""  # of the library, instead of the installed one
    # 0-10: what the broker offers in connection.tune
    tune: Any = field(default_factory=dict)
    # 1.0
    presettled: bool = False
    link: str = "one"  # 'each': one for every publish
    data: bool = False  # bodies are data sections
    selector: str = ""
    modify: int = 0  # every Nth delivery, once
    second: bool = False  # the receiver settles second
    browse: bool = False  # and 0-10
    # 0-10
    session: str = "one"  # 'each': one for every publish


def run(options: Options, tools: Tools) -> None:
    """Run the applications, one connection after another."""
    if options.release:
        _run_release(options, tools)
        return
    for _ in range(options.rounds):
        with contextlib.suppress(pika.exceptions.AMQPError):
            RUN[options.library](options, tools)
    for word in OTHERS[: options.others]:
        names = f"{word}-consumer", f"{word}-publisher"
        other = replace(options.around or options, names=names, queue=word, exchange=f"{word}-events")
        for _ in range(other.rounds):
            RUN[other.library](other, tools)


def _run_release(options: Options, tools: Tools) -> None:
    """Run with another release of the library, in a process of its own."""
    plain = json.dumps(asdict(replace(options, release="")))
    folder = f"{tools.releases}/{options.library}-{options.release}"
    environment = os.environ | {"PYTHONPATH": folder}
    subprocess.run([sys.executable, __file__, "run", plain], env=environment, check=True)


def encrypted(options: Options, tools: Tools) -> ssl.SSLContext:
    """A TLS context of this version, whose secrets are logged."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion[f"TLSv{options.tls.replace('.', '_')}"]
    if options.ciphers:
        context.set_ciphers(options.ciphers)
    context.keylog_filename = tools.keys
    return context


def login(options: Options) -> tuple[str, str]:
    return options.user, {"guest": "guest", "alice": "secret"}[options.user]


# -- pika


def connected(options: Options, name: str, tools: Tools) -> pika.BlockingConnection:
    properties = {"connection_name": name} if options.named else {}
    if options.product:
        properties |= {"product": options.product, "version": "9.9"}
    secured: Any = {}
    if options.tls:
        secured = {"ssl_options": pika.SSLOptions(encrypted(options, tools), options.server_name or None)}
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            HOST, options.port, options.vhost, pika.PlainCredentials(*login(options)), heartbeat=options.heartbeat,
            frame_max=options.frame_max, channel_max=options.channel_max, client_properties=properties,
            socket_timeout=20, blocked_connection_timeout=20, **secured,
        )
    )  # fmt: skip


def declare(channel: Any, options: Options) -> None:
    channel.queue_declare(
        options.queue, durable=options.durable, auto_delete=options.auto_delete, arguments=options.queue_arguments
    )
    if options.exchange:
        channel.exchange_declare(options.exchange, options.exchange_type, durable=True)
        bound = options.exchange
        if options.via:
            bound = f"{options.exchange}-inner"
            channel.exchange_declare(bound, options.exchange_type, durable=True)
            channel.exchange_bind(bound, options.exchange, options.key)
        channel.queue_bind(options.queue, bound, options.key)
    if options.passive:
        channel.queue_declare(options.queue, passive=True)


def run_pika(options: Options, tools: Tools) -> None:
    consumer, publisher = (connected(options, name, tools) for name in options.names)
    channel = consumer.channel()
    declare(channel, options)
    if options.refused == "declare":
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare(options.queue, durable=not options.durable)
        channel = consumer.channel()
    if not options.get:
        channel.basic_qos(prefetch_count=options.prefetch, global_qos=options.global_qos)
    wanted = options.messages - (options.messages // options.unroutable if options.unroutable else 0)
    seen: list[int] = []
    again = set[bytes]()

    def settle(_: Any, method: Any, __: Any, body: bytes) -> None:
        if options.work and len(seen) % options.work_every == options.work_every - 1:
            consumer.sleep(options.work)
        tag, number = method.delivery_tag, len(seen) + 1
        if options.requeue and number % options.requeue == 0 and body not in again:
            again.add(body)
            channel.basic_nack(tag, requeue=True)
            return
        seen.append(tag)
        if options.no_ack:
            return
        if options.reject and number % options.reject == 0:
            channel.basic_reject(tag, requeue=False)
        elif options.ack_every == 1:
            channel.basic_ack(tag)
        elif number % options.ack_every == 0 or number == wanted:
            channel.basic_ack(tag, multiple=True)

    def consume() -> Any:
        return channel.basic_consume(
            options.queue, settle, auto_ack=options.no_ack, exclusive=options.exclusive,
            arguments=options.consume_arguments,
        )  # fmt: skip

    tag = "" if options.get else consume()
    for _ in range(options.consumers - 1):
        consume()
    if options.recover:
        channel.basic_recover(requeue=True)

    def opened() -> Any:
        out = publisher.channel()
        if options.confirm == "confirm":
            out.confirm_delivery()
        elif options.confirm == "tx":
            out.tx_select()
        return out

    out = opened()
    properties = pika.BasicProperties(delivery_mode=options.delivery_mode, **options.properties)
    for number in range(options.messages):
        if options.declare == "each":
            out.queue_declare(options.queue, durable=options.durable, arguments=options.queue_arguments)
        if options.channel == "each":
            out.close()
            out = opened()
        if options.connection and number % options.connection == options.connection - 1:
            publisher.close()
            publisher = connected(options, options.names[1], tools)
            out = opened()
        if options.consume_again and number % options.consume_again == options.consume_again - 1:
            channel.basic_cancel(tag)
            tag = consume()
        key = options.key if options.exchange else options.queue
        size = 20000 if options.big_every and number % options.big_every == options.big_every - 1 else options.body
        if options.unroutable and number % options.unroutable == options.unroutable - 1:
            key = "nowhere"
        with contextlib.suppress(pika.exceptions.UnroutableError, pika.exceptions.NackError):
            out.basic_publish(
                options.exchange,
                key,
                f"{number:06}".encode().ljust(size, b"x"),
                properties,
                mandatory=options.mandatory,
            )
        if options.confirm == "tx":
            out.tx_commit()
        if options.get or options.consume_every > 1:
            time.sleep(options.pause)
        else:
            consumer.sleep(options.pause)  # what arrives meanwhile is settled
        if options.get:
            found, _, body = channel.basic_get(options.queue)
            if found:
                settle(channel, found, None, body)
        elif number % options.consume_every == 0:
            consumer.process_data_events(0)
    until = time.monotonic() + 3 + options.messages * options.work
    while len(seen) < wanted and time.monotonic() < until:
        consumer.process_data_events(0.01)
    if options.abrupt:
        for connection in (consumer, publisher):
            connection._impl._transport.abort()
        return
    consumer.close()
    publisher.close()


# -- py-amqp


def run_py_amqp(options: Options, tools: Tools) -> None:
    def opened(name: str) -> amqp.Connection:
        user, password = login(options)
        connection = amqp.Connection(
            f"{HOST}:{options.port}", user, password, virtual_host=options.vhost, heartbeat=options.heartbeat,
            frame_max=options.frame_max, channel_max=options.channel_max, login_method=options.mechanism or "PLAIN",
            client_properties={"connection_name": name} if options.named else {}, confirm_publish=False,
        )  # fmt: skip
        connection.connect()
        return connection

    consumer, publisher = (opened(name) for name in options.names)
    channel = consumer.channel()
    channel.exchange_declare(options.exchange, options.exchange_type, durable=True, auto_delete=False)
    channel.queue_declare(options.queue, durable=options.durable, auto_delete=False, arguments=options.queue_arguments)
    channel.queue_bind(options.queue, options.exchange, "order")
    channel.basic_qos(0, options.prefetch, options.global_qos)
    seen: list[int] = []

    def settle(message: Any) -> None:
        if options.work:
            time.sleep(options.work)
        seen.append(message.delivery_tag)
        if not options.no_ack and len(seen) % options.ack_every == 0:
            channel.basic_ack(message.delivery_tag, multiple=options.ack_every > 1)

    channel.basic_consume(options.queue, callback=settle, no_ack=options.no_ack)
    out = publisher.channel()
    if options.confirm == "confirm":
        out.confirm_select()
    for number in range(options.messages):
        body = f"{number:06}".ljust(options.body, "x")
        out.basic_publish(
            amqp.Message(body, delivery_mode=options.delivery_mode, **options.properties), options.exchange, "order"
        )
        if options.confirm == "confirm":
            out.wait([(60, 80)])
        time.sleep(options.pause)
        with contextlib.suppress(TimeoutError, socket.timeout):
            consumer.drain_events(timeout=0.0005)
    until = time.monotonic() + 3
    while len(seen) < options.messages and time.monotonic() < until:
        with contextlib.suppress(TimeoutError, socket.timeout):
            consumer.drain_events(timeout=0.02)
    if options.abrupt:
        consumer.transport.sock.close()
        publisher.transport.sock.close()
        return
    consumer.close()
    publisher.close()


# -- aio-pika


def run_aio_pika(options: Options, tools: Tools) -> None:
    asyncio.run(_run_aio_pika(options))


async def _run_aio_pika(options: Options) -> None:
    import aio_pika

    async def opened(name: str) -> Any:
        user, password = login(options)
        return await aio_pika.connect(
            f"amqp://{user}:{password}@{HOST}:{options.port}/?heartbeat={options.heartbeat}&name={name}",
            client_properties={"connection_name": name},
        )

    consumer, publisher = [await opened(name) for name in options.names]
    channel, out = await consumer.channel(), await publisher.channel()
    await channel.set_qos(options.prefetch)
    exchange = await channel.declare_exchange(options.exchange, options.exchange_type, durable=True)
    queue = await channel.declare_queue(options.queue, durable=options.durable)
    await queue.bind(exchange, "order")
    seen: list[int] = []

    async def settle(message: Any) -> None:
        await asyncio.sleep(options.work)
        seen.append(message.delivery_tag)
        await message.ack()

    await queue.consume(settle, no_ack=options.no_ack)
    target = await out.get_exchange(options.exchange)
    for number in range(options.messages):
        body = f"{number:06}".encode().ljust(options.body, b"x")
        sent = aio_pika.Message(body, delivery_mode=options.delivery_mode, **options.properties)
        await target.publish(sent, "order", mandatory=options.mandatory)
        await asyncio.sleep(options.pause)
    until = time.monotonic() + 3
    while len(seen) < options.messages and time.monotonic() < until:
        await asyncio.sleep(0.01)
    await consumer.close()
    await publisher.close()


# -- Qpid Proton


class Both(MessagingHandler):
    """A publisher and a consumer on a connection each."""

    def __init__(self, options: Options) -> None:
        super().__init__(prefetch=options.prefetch, auto_accept=False, auto_settle=True)
        self.options, self.sent, self.seen, self.again = options, 0, 0, set[str]()
        self.credited = False

    def on_start(self, event: Any) -> None:
        options = self.options
        user, password = login(options)
        url = f"{'amqps' if options.tls else 'amqp'}://{HOST}:{options.port}"
        more: dict[str, Any] = {"properties": {"product": options.product}} if options.product else {}
        more |= {"allowed_mechs": options.mechanism} if options.mechanism else {}
        self.container = event.container
        if options.tls:
            more["ssl_domain"] = SSLDomain(SSLDomain.MODE_CLIENT)
            more["ssl_domain"].set_peer_authentication(SSLDomain.ANONYMOUS_PEER)

        def opened(name: str) -> Any:
            event.container.container_id = name
            return event.container.connect(
                url, user=user, password=password, heartbeat=options.heartbeat, reconnect=False,
                max_frame_size=options.frame_max, sasl_enabled=True, **more,
            )  # fmt: skip

        self.inward, self.outward = (opened(name) for name in options.names)
        self.address = f"/queue/{options.queue}"
        self.receiver = event.container.create_receiver(
            self.inward, self.address, name="in", options=[
                *([AtMostOnce()] if options.no_ack else []),
                *([Selector(options.selector)] if options.selector else []),
                *([Second()] if options.second else []), *([Copy()] if options.browse else []),
            ],
        )  # fmt: skip
        self.sender = self.new_sender()
        if not options.prefetch:
            self.receiver.flow(1)
        if options.refused == "attach":
            event.container.create_receiver(self.inward, "/nonsense/x", name="bad")

    def new_sender(self) -> Any:
        return self.container.create_sender(
            self.outward, self.address, name=f"out{self.sent or ''}",
            options=[AtMostOnce()] if self.options.presettled else None,
        )  # fmt: skip

    def on_sendable(self, event: Any) -> None:
        if event.sender == self.sender and not self.credited:
            self.credited = True
            self.publish()

    def publish(self) -> None:
        if self.sent >= self.options.messages or not self.sender.credit:
            return
        self.sent += 1
        body: Any = f"{self.sent:06}".ljust(self.options.body, "x")
        message = Message(body=body, durable=self.options.delivery_mode == 2, **self.options.properties)
        if self.options.data:
            message.body, message.inferred = body.encode(), True
        self.sender.send(message)
        if self.sent < self.options.messages:
            if self.options.link == "each":
                former, self.sender, self.credited = self.sender, self.new_sender(), False
                self.container.schedule(0.01, Close(former))
            else:
                self.container.schedule(max(self.options.pause, 0.001), Next(self))

    def on_link_error(self, event: Any) -> None:
        pass

    def on_message(self, event: Any) -> None:
        options = self.options
        if options.work:
            time.sleep(options.work)
        if options.requeue and (self.seen + 1) % options.requeue == 0 and event.message.body not in self.again:
            self.again.add(event.message.body)
            self.decide(event.delivery, Delivery.RELEASED)
            return
        if options.modify and (self.seen + 1) % options.modify == 0 and event.message.body not in self.again:
            self.again.add(event.message.body)
            self.decide(event.delivery, Delivery.MODIFIED)
            return
        self.seen += 1
        if not options.prefetch:
            event.receiver.flow(1)
        if not options.no_ack:
            rejected = options.reject and self.seen % options.reject == 0
            self.decide(event.delivery, Delivery.REJECTED if rejected else Delivery.ACCEPTED)
        if self.seen >= options.messages:
            self.finish()

    def decide(self, delivery: Any, outcome: Any) -> None:
        delivery.update(outcome)
        delivery.settle()

    def finish(self) -> None:
        if self.options.abrupt:
            os._exit(0)
        self.container.schedule(0.05, Last(self))


class Second(ReceiverOption):
    def apply(self, receiver: Any) -> None:
        receiver.rcv_settle_mode = Link.RCV_SECOND


class Next(MessagingHandler):
    def __init__(self, both: Both) -> None:
        super().__init__()
        self.both = both

    def on_timer_task(self, event: Any) -> None:
        self.both.publish()


class Close(MessagingHandler):
    def __init__(self, link: Any) -> None:
        super().__init__()
        self.link = link

    def on_timer_task(self, event: Any) -> None:
        self.link.close()


class Last(Next):
    def on_timer_task(self, event: Any) -> None:
        self.both.inward.close()
        self.both.outward.close()


def run_proton(options: Options, tools: Tools) -> None:
    if options.tls and "SSLKEYLOGFILE" not in os.environ:
        # Proton's TLS is a C library: another one, loaded before it, logs the secrets.
        library = f"{tools.keys}.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", library, str(HERE / "keylog.c"), "-Wl,--no-as-needed", "-lssl"],
            check=True,
        )
        environment = os.environ | {"LD_PRELOAD": library, "SSLKEYLOGFILE": tools.keys}
        plain = json.dumps(asdict(replace(options, rounds=1, others=0)))
        subprocess.run([sys.executable, __file__, "run", plain], env=environment, check=True)
        Path(library).unlink()
        return
    if options.abrupt:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
    container = Container(Both(options))
    timer = threading.Timer(6 + options.messages * options.work, container.stop)
    timer.daemon = True
    timer.start()
    container.run()
    timer.cancel()


def run_rhea(options: Options, tools: Tools) -> None:
    given = {
        name: getattr(options, name)
        for name in ("port", "messages", "queue", "tls", "ciphers", "prefetch", "server_name")
    }
    subprocess.run(
        ["node", "--no-warnings", f"--tls-keylog={tools.keys}", str(HERE / "rhea.js"), HOST, json.dumps(given)],
        env=os.environ | {"NODE_PATH": tools.rhea}, check=True, timeout=30,
    )  # fmt: skip


# -- qpid-python, 0-10


def run_qpid(options: Options, tools: Tools) -> None:
    user, password = login(options)
    given = {**asdict(options), "user": user, "password": password}
    command = [tools.qpid, str(HERE / "qpid_peers.py"), "applications", HOST, str(options.port), json.dumps(given)]
    subprocess.run(command, check=True, timeout=60)


@contextlib.contextmanager
def qpid_broker(options: Options, tools: Tools) -> Iterator[None]:
    """A broker of qpid-python in the namespace of brokers."""
    settings = QPID_BROKER | {"tune": QPID_BROKER["tune"] | options.tune}  # type: ignore[operator]
    broker = subprocess.Popen(
        ["ip", "netns", "exec", "fb", tools.qpid, str(HERE / "qpid_peers.py"), "broker", HOST, str(QPID_PORT),
         json.dumps(settings)]
    )  # fmt: skip
    time.sleep(1.5)
    try:
        yield
    finally:
        broker.kill()
        broker.wait()


RUN = {
    "pika": run_pika, "aio-pika": run_aio_pika, "amqp": run_py_amqp, "proton": run_proton, "rhea": run_rhea,
    "qpid": run_qpid,
}  # fmt: skip

# -- The network


@dataclass(frozen=True)
class Relay:
    """Beside the broker: it holds each piece of data for `delay` seconds and up to `jitter` more, resets connections
    after `cut` seconds, and speaks TLS if it has a `certificate`. Its connections are those captured."""

    target: int
    delay: float
    jitter: float
    cut: float
    certificate: str
    keys: str

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        given = json.dumps(asdict(self))
        relay = subprocess.Popen(["ip", "netns", "exec", "fb", sys.executable, __file__, "relay", given])
        time.sleep(0.6)
        try:
            yield
        finally:
            relay.terminate()
            relay.wait()

    async def serve(self) -> None:
        context = None
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(f"{self.certificate}.pem", f"{self.certificate}.key")
            context.keylog_filename = self.keys
        server = await asyncio.start_server(self._accept, HOST, DELAYED_PORT, ssl=context)
        await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(HOST, self.target)
        if self.cut:
            reset = struct.pack("ii", 1, 0)
            for each in (writer, to_broker):
                each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                asyncio.get_running_loop().call_later(self.cut, each.transport.abort)
        await asyncio.gather(self._pump(reader, to_broker), self._pump(from_broker, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await asyncio.sleep(self.delay + random.random() * self.jitter)
                sink.write(data)
                await sink.drain()
            sink.close()


def main(words: Sequence[str]) -> None:
    if words[0] == "relay":
        asyncio.run(Relay(**json.loads(words[1])).serve())
    else:
        run(Options(**json.loads(words[1])), Tools())


if __name__ == "__main__":
    main(sys.argv[1:])
