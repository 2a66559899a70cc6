"""R4, PR: what RabbitMQ 4 refuses, and habits that cost."""

from __future__ import annotations

from typing import Any

import proton
from encode_1_0 import (
    OPEN,
    REJECTED,
    RELEASED,
    SOURCE,
    TARGET,
    data_section,
    described,
    frame,
    performative,
    section,
)
from link_connections import (
    accepted,
    attach,
    begun,
    closed,
    detach,
    dispose,
    error,
    flow,
    receiver_link,
    sender_link,
    symbol,
    transfer,
)
from rule_connections import closed_1_0, sasl
from rule_support import NOBODY, SCALED, SECOND_NS, SERVER_PROPERTIES, START_NS, Case, Connection, spoken

V = spoken()
RABBITMQ = {**SERVER_PROPERTIES, "product": "RabbitMQ"}
X, HEADER_1_0 = data_section(b"x"), performative(0x70, True)
BINDING = {"source": "e", "destination_queue": "q", "binding_key": "nowhere", "arguments": {}}
OF_1_0 = ("L10-98",)
MANY = SCALED["PR-01"]["least"]  # messages in each direction


def rabbit(version: str = "3.13.7", **given: object) -> Connection:
    """A channel to RabbitMQ."""
    start = {"server_properties": {**RABBITMQ, "version": version}}
    return Connection().handshake(start=start, **given).open(1)  # type: ignore[arg-type]


def declared(durable: bool = True, exclusive: bool = False, passive: bool = False, **arguments: object) -> Connection:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return rabbit().asks(
        "queue.declare", 1, {"queue": "q"}, queue="q", durable=durable, exclusive=exclusive, passive=passive,
        arguments=named,
    )  # fmt: skip


def rabbit_1_0(product: str = "RabbitMQ", at: float = 0, hostname: str = "test") -> Connection:
    """A session of 1.0 with RabbitMQ."""
    connection = sasl(Connection("1.0", at=at))
    for side in ("client", "server"):
        connection.data(side, b"AMQP\0\1\0\0")
    connection.client_bytes(frame(performative(OPEN, "client", hostname)))
    software = {symbol("product"): product, symbol("version"): "4.0.1"}
    connection.server_bytes(frame(performative(OPEN, "server", *[None] * 8, software)))
    return begun(connection)


def linked(address: str, receives: bool, ends: bool = True, **given: Any) -> Connection:
    """A link of 1.0 to or from a node of RabbitMQ; `ends`: then the connection is closed."""
    connection = rabbit_1_0(**given)
    termini = {
        "source": described(SOURCE, address if receives else None),
        "target": described(TARGET, None if receives else address),
    }
    for side, role in (("client", receives), ("server", not receives)):
        attach(connection, side, "link", 0, role, **termini)
    return closed_1_0(connection) if ends else connection


def managed_queue(durable: bool = True, **arguments: Any) -> Connection:
    """A queue that is declared over 1.0, by a request to RabbitMQ's management."""
    return managed(
        "PUT", "/queues/q",
        {"durable": durable, "arguments": {name.replace("_", "-"): value for name, value in arguments.items()}},
    )  # fmt: skip


def managed(method: str, path: str, body: Any, at: float = 0, status: str | None = None) -> Connection:
    """A request to RabbitMQ's management, in the virtual host of the cases, and its reply over a link from there."""
    connection = linked("/management", False, ends=False, at=at, hostname="vhost:/test")
    for side, role in (("client", True), ("server", False)):
        attach(connection, side, "back", 1, role, source=described(SOURCE, "/management"), target=described(TARGET))
    request = section(0x73, ["id-1", None, path, method, "$me"]) + section(0x77, body)
    flow(connection, "server", 0)
    flow(connection, "client", 1)
    transfer(connection, "client", 0, 0, settled=True, payload=request)
    if status is not None:
        reply = section(0x73, [None, None, None, status, None, "id-1"]) + section(0x74, {"http:response": "1.1"})
        transfer(connection, "server", 1, 0, settled=True, payload=reply + section(0x77, None))
    return closed_1_0(connection)


def shots(number: int, messages: int = 1) -> list[Connection]:
    """So many connections of one application, each with so many messages."""
    return [published(messages, at=float(at)).close() for at in range(number)]


def published(messages: int, at: float = 0) -> Connection:
    connection = Connection(at=at).handshake().open(1)
    for _ in range(messages):
        connection.publish()
    return connection


def channels(number: int, messages: int = 1) -> Connection:
    """One connection with so many channels, one after the other, each with so many messages."""
    connection = Connection().handshake()
    for _ in range(number):
        connection.asks("channel.open", 1)
        for _ in range(messages):
            connection.publish()
        connection.asks("channel.close", 1, reply_code=200, reply_text="bye")
    return connection.close()


def both_ways(published_: int, delivered: int) -> Connection:
    connection = Connection().handshake().open(1).consume(no_ack=False)
    for _ in range(published_):
        connection.publish()
    for tag in range(1, delivered + 1):
        connection.deliver(tag).client("basic.ack", delivery_tag=tag)
    return connection.close()


def logged_in(product: str, client: int) -> Connection:
    start_ok = {"client_properties": {"product": product, "version": "1", "platform": "P"}, "mechanism": "PLAIN"}
    return Connection(client=client, at=client).handshake(
        start={"mechanisms": "PLAIN"}, start_ok={**start_ok, "response": "\0shop\0secret"}
    ).close()  # fmt: skip


def declares(times: int, passive: bool = False) -> Connection:
    connection = Connection().handshake().open(1)
    for _ in range(times):
        connection.asks("queue.declare", 1, {"queue": "orders"}, queue="orders", durable=True, passive=passive)
        connection.publish(exchange="", routing_key="orders")
    return connection.close()


def timed_out(text: str, late: bool = False, acks: int = 1) -> Connection:
    """The channel is closed half an hour after two deliveries, of which the client acknowledges so many; `late`: the
    other one after that."""
    connection = Connection().handshake(tune={"heartbeat": 0}, tune_ok={"heartbeat": 0}).open(1).consume()
    connection.deliver(1).deliver(2)
    for tag in range(1, acks + 1):
        connection.client("basic.ack", delivery_tag=tag)
    connection.wait(1800)
    connection.server("channel.close", 1, reply_code=406, reply_text=text)
    if late:
        connection.client("basic.ack", delivery_tag=2)
    return connection.client("channel.close-ok", 1).close(channels=False)


def taken_back(release: str, again: bool) -> Connection:
    """The server cancels a consumer that has a message, which goes to another consumer, unless the queue is gone."""
    connection = rabbit(version=release).consume().consume("q", "d").deliver(1, b"job", message_id="m").wait(20)
    connection.server("basic.cancel", consumer_tag="c", no_wait=True)
    if again:
        connection.deliver(2, b"job", consumer_tag="d", redelivered=True, message_id="m")
        connection.client("basic.ack", delivery_tag=2)
    return connection.close()


def released_by_sender(code: int | None) -> Connection:
    """The server states an outcome of a message that it has sent, and that nobody has settled."""
    connection = transfer(receiver_link(), "server", 1, 0).wait(5)
    if code is not None:
        dispose(connection, "server", False, 0, settled=False, state=described(code))
    return closed(accepted(connection, "client", True, 0))


def rejected_again(release: str, method: str) -> Connection:
    """A message of a quorum queue without a limit that goes back once."""
    arguments = {"x-queue-type": "quorum"}
    connection = rabbit(version=release).asks(
        "queue.declare", 1, {"queue": "q"}, queue="q", durable=True, arguments=arguments
    )
    connection.consume().deliver(1, message_id="m").client(method, delivery_tag=1, requeue=True)
    return connection.deliver(2, redelivered=True, message_id="m").client("basic.ack", delivery_tag=2).close()


def published_1_0(sections: bytes, product: str = "RabbitMQ", vhost: str = "") -> Connection:
    """A message to RabbitMQ over 1.0 with these sections before its body."""
    to = {"source": described(SOURCE, "here"), "target": described(TARGET, "/queues/q")}
    connection = sender_link(rabbit_1_0(product, hostname=f"vhost:{vhost}" if vhost else "test"), **to)
    return closed(accepted(transfer(connection, "client", 0, 0, payload=sections + X), "server", True, 0))


def declared_and_published_1_0(queue_type: str) -> Connection:
    """A queue of this type that its publisher declares, and a message to it without a header."""
    connection = rabbit_1_0()
    for handle, (name, address) in enumerate((("requests", "/management"), ("s", "/queues/q"))):
        for side, receives in (("client", False), ("server", True)):
            target = described(TARGET, address)
            attach(connection, side, name, handle, receives, source=described(SOURCE, "here"), target=target)
        flow(connection, "server", handle)
    body = {"durable": True, "arguments": {"x-queue-type": queue_type}}
    request = section(0x73, ["id-1", None, "/queues/q", "PUT", "$me"]) + section(0x77, body)
    transfer(connection, "client", 0, 0, settled=True, payload=request)
    return closed(accepted(transfer(connection, "client", 1, 1, payload=X), "server", True, 1))


def described_by(symbol_: str, value: Any) -> Any:
    return proton.Described(symbol(symbol_), value)


def filtering(filters: dict[Any, Any]) -> Connection:
    """A receiver of RabbitMQ with these filters, which the server grants."""
    source = described(SOURCE, "/queues/q", None, None, None, None, None, None, filters)
    return closed(receiver_link(rabbit_1_0(), source=source))


def replied(mandatory: bool, exchange: str = "") -> Connection:
    connection = rabbit().publish(exchange=exchange, routing_key="amq.rabbitmq.reply-to.g1h2", mandatory=mandatory)
    return connection.close()


def headed(name: str) -> Connection:
    return rabbit().publish(headers={name: "x"}).close()


def idle_channels(number: int, publishes: int = 1) -> Connection:
    """So many channels that are opened, carry so many messages each, and are never closed."""
    connection = Connection().handshake()
    for channel in range(1, number + 1):
        connection.asks("channel.open", channel)
        for _ in range(publishes):
            connection.publish(channel=channel)
    return connection.close()


def unroutable(*between: str, mandatory: bool = False, pause: float = 0) -> Connection:
    """A mandatory message is returned; then, after a pause, three are published to the same route."""
    connection = Connection().handshake().open(1).publish(b"1", routing_key="nowhere", mandatory=True)
    connection.server("basic.return", 1, reply_code=312, reply_text="NO_ROUTE", exchange="e", routing_key="nowhere")
    connection.content(b"1")
    for name in between:
        connection.asks(name, 1, queue="q", exchange="e", routing_key="nowhere")
    connection.wait(pause)
    for body in (b"2", b"3", b"4"):
        connection.publish(body, routing_key="nowhere", mandatory=mandatory)
    return connection.close()


def large(size: int) -> Connection:
    return Connection().handshake(tune={"frame_max": 0}, tune_ok={"frame_max": 0}).open(1).publish(bytes(size)).close()


def again(times: int, pause: float, worked: float = 0, **properties: Any) -> Connection:
    """A message that is given back so often, `worked` seconds after its delivery, and comes again after `pause`."""
    connection = rabbit().consume()
    for tag in range(1, times + 2):
        connection.deliver(tag, b"job", redelivered=tag > 1, **properties).wait(worked)
        connection.client("basic.nack", delivery_tag=tag, requeue=tag <= times).wait(pause)
    return connection.close()


def given_back(declares: bool = True, **arguments: object) -> Connection:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    connection = rabbit()
    if declares:
        connection.asks("queue.declare", 1, {"queue": "q"}, queue="q", durable=True, arguments=named)
    connection.consume()
    connection.deliver(1, message_id="m").client("basic.nack", delivery_tag=1, requeue=True)
    return connection.deliver(2, redelivered=True, message_id="m").client("basic.ack", delivery_tag=2).close()


def rejected(condition: str, text: str) -> Connection:
    connection = transfer(sender_link(), "client", 0, 0)
    return closed(dispose(connection, "server", True, 0, state=described(REJECTED, error(condition, text))))


def forced_off(condition: str, text: str) -> Connection:
    connection = detach(sender_link(), "server", 0, why=error(condition, text))
    return closed(detach(connection, "client", 0))


def put_token(*expirations_s: int) -> Connection:
    """Tokens for one name, each of which ends so many seconds after the capture began; the connection lasts 30 s."""
    node = {"source": described(SOURCE, "here"), "target": described(TARGET, "$cbs")}
    connection = sender_link(**node)
    for number, ends_s in enumerate(expirations_s):
        ends = proton.timestamp((START_NS + ends_s * SECOND_NS) // 10**6)
        named = {"operation": "put-token", "type": "jwt", "name": "amqp://host/q", "expiration": ends}
        body = section(0x74, named) + section(0x77, "token")
        accepted(transfer(connection, "client", 0, number, payload=body), "server", True, number).wait(10)
    return closed(connection.wait(30 - 10 * len(expirations_s)))


def slow(seconds: float, delivered: int = 1) -> Connection:
    """A consumer whose TCP window is closed for so long."""
    connection = Connection().handshake().open(1).consume()
    for tag in range(1, delivered + 1):
        connection.deliver(tag).client("basic.ack", delivery_tag=tag)
    return connection.packet("client", window=0).wait(seconds).packet("client").close()


TIMED_OUT = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms."
IDLE = "Detach origin: AmqpMessagePublisher.IdleTimerExpired: Idle timeout: 00:10:00."  # of Azure Service Bus
TIMES_OUT = ("CH-09", "DL-09", "DL-13", "NM-11", "HB-01", "HB-02", "HB-03", "HB-04", "HB-05")
RETURNS = ("CT-15",)
GOES_ROUND = ("DL-15", "PR-10", "DL-09")
UNLIMITED = ("HS-11",)
CASES = [
    Case("R4-01", V, declared(durable=False), declared(durable=False, exclusive=True), evidence={"queue": "q"}),
    Case("R4-01", V, declared(durable=False), declared(durable=False, passive=True)),
    Case("R4-02", V, rabbit().asks("basic.qos", 1, None, prefetch_count=5, **{"global": True}),
         rabbit().asks("basic.qos", prefetch_count=5), evidence={"prefetch_count": 5}),
    Case("R4-03", V, declared(x_queue_mode="lazy"), declared(x_max_length=5), evidence={"queue": "q"}),
    Case("R4-04", V, declared(x_queue_version=1), declared(x_queue_version=2)),
    Case("R4-05", V, declared(x_queue_master_locator="min-masters"), declared(x_queue_leader_locator="balanced")),
    Case("R4-06", V, declared(x_ha_policy="all"), declared(x_queue_type="quorum")),
    Case("R4-01", "1.0", managed_queue(durable=False), managed_queue(), evidence={"queue": "q"}, besides=("L10-98",)),
    Case("R4-03", "1.0", managed_queue(x_queue_mode="lazy"), managed_queue(x_max_length=5), besides=("L10-98",)),
    Case("R4-04", "1.0", managed_queue(x_queue_version=1), managed_queue(x_queue_version=2), besides=("L10-98",)),
    Case("R4-05", "1.0", managed_queue(x_queue_master_locator="min-masters"), managed_queue(), besides=("L10-98",)),
    Case("R4-06", "1.0", managed_queue(x_ha_policy="all"), managed_queue(x_queue_type="quorum"), besides=("L10-98",)),
    Case("R4-07", "1.0", linked("/queue/q", True), linked("/queues/q", True), evidence={"address": "/queue/q"},
         besides=("L10-98",)),
    # A node of another specification.
    Case("R4-07", "1.0", linked("amq.queue", True), linked("$cbs", False), besides=("L10-98",)),
    Case("R4-07", "1.0", linked("orders", False), linked("/exchanges/amq.direct/orders", False), besides=("L10-98",)),
    Case("R4-07", "1.0", linked("orders/$cbs.x", True), linked("orders/$cbs", False), besides=("L10-98",)),
    Case("R4-09", V, rejected_again("4.3.1", "basic.reject"), rejected_again("4.3.1", "basic.nack"),
         evidence={"observed": 1, "queue": "q", "broker": "4.3.1"}, besides=GOES_ROUND),
    Case("R4-09", V, rejected_again("4.2.9", "basic.nack"), rejected_again("4.3.1", "basic.nack"), besides=GOES_ROUND),
    Case("R4-10", "1.0", published_1_0(b""), published_1_0(HEADER_1_0), evidence={"link": "s", "messages": 1},
         severity="info", besides=("L10-98",)),
    Case("R4-10", "1.0", published_1_0(section(0x73, ["id"])), published_1_0(b"", product="Other"),
         besides=("L10-98", "R4-07")),
    Case("R4-10", "1.0", declared_and_published_1_0("classic"), declared_and_published_1_0("quorum"),
         severity="warning", besides=("L10-98",)),
    # Another connection, of 0-9-1, declares the queue.
    Case("R4-10", "1.0", [declared(x_queue_type="classic").close(), published_1_0(b"", vhost="/test")],
         [declared(x_queue_type="quorum").close(), published_1_0(b"", vhost="/test")], severity="warning",
         besides=("L10-98",)),
    Case("R4-11", "1.0", filtering({symbol("rabbitmq:stream-offset-spec"): "first"}),
         filtering({symbol("rabbitmq:stream-offset-spec"): described_by("rabbitmq:stream-offset-spec", "first")}),
         evidence={"observed": "rabbitmq:stream-offset-spec"}, besides=("L10-98",)),
    Case("R4-12", V, replied(True), replied(False), evidence={"observed": 1}),
    Case("R4-12", V, replied(True), replied(True, exchange="rpc")),
    Case("R4-13", V, headed("x-amqp-1.0-footer"), headed("x-amqp"), evidence={"observed": "x-amqp-1.0-footer"}),
    Case("R4-08", V, rabbit(tune_ok={"frame_max": 8191}), rabbit(tune_ok={"frame_max": 8192})),
    Case("PR-01", V, both_ways(MANY, MANY), both_ways(MANY, MANY - 1), evidence={"published": MANY, "delivered": MANY}),
    Case("PR-02", V, shots(10), [*shots(9), published(2, at=9).close()], evidence={"observed": 10}),
    Case("PR-03", V, channels(10), channels(9), evidence={"observed": 10}),
    Case("PR-03", V, channels(10), channels(10, messages=2)),
    Case("PR-04", V, [logged_in(product, client) for client, product in enumerate(("a", "b", "c"), 2)],
         [logged_in(product, client) for client, product in enumerate(("a", "b", "a"), 2)],
         evidence={"user": "shop", "observed": "a, b, c"}, besides=("SEC-01",)),
    Case("PR-05", V, declares(10), declares(9), evidence={"queue": "orders", "times": 10}),
    Case("PR-05", V, declares(10), declares(10, passive=True)),
    Case("PR-06", V, timed_out(TIMED_OUT), timed_out("PRECONDITION_FAILED - unknown delivery tag 7"),
         evidence={"reply_text": TIMED_OUT, "delivery_tag": 2, "queue": "q", "acknowledged": "never on the wire"},
         offender="client", besides=TIMES_OUT),
    # From RabbitMQ 4.3 on the consumer is cancelled, and the message goes to another one.
    Case("PR-06", V, taken_back("4.3.0", True), taken_back("4.3.0", False), offender="client",
         evidence={"observed": "basic.cancel with 1 unsettled messages", "queue": "q", "consumer_tag": "c"},
         besides=("CO-05", "DL-09", "DL-10", "DL-11")),
    Case("PR-06", V, taken_back("4.3.0", True), taken_back("4.2.0", True),
         besides=("CO-05", "DL-09", "DL-10", "DL-11")),
    # In 1.0 the server releases what it has sent.
    Case("PR-06", "1.0", released_by_sender(RELEASED), released_by_sender(None), offender="client",
         evidence={"observed": "1 messages released by their sender", "link": "r"}, besides=("L10-82",),
         also=("L10-87",)),
    # Which is no outcome that the client has stated.
    Case("L10-87", "1.0", released_by_sender(RELEASED), released_by_sender(None), also=("PR-06",),
         evidence={"observed": "released", "by": "server", "link": "r"}, besides=("L10-82",)),
    # Nothing was outstanding, or not for as long as the broker allows.
    Case("PR-06", V, timed_out(TIMED_OUT, acks=2), timed_out("PRECONDITION_FAILED - unknown delivery tag 7", acks=2),
         evidence={"delivery_tag": None, "acknowledged": "all 2 captured deliveries, each within 0.004 s"},
         offender=NOBODY, besides=TIMES_OUT),
    Case("PR-06", V, timed_out(TIMED_OUT.replace("18", "36")),
         timed_out("PRECONDITION_FAILED - unknown delivery tag 7"),
         evidence={"delivery_tag": 2}, offender=NOBODY, besides=TIMES_OUT),
    Case("PR-06", V, timed_out(TIMED_OUT, late=True), timed_out("PRECONDITION_FAILED - unknown delivery tag 7"),
         evidence={"delivery_tag": 2}, besides=TIMES_OUT),
    Case("PR-07", V, idle_channels(50), idle_channels(50, publishes=2), evidence={"observed": 50},
         besides=("CH-07", "PR-03", "CH-11")),
    Case("PR-08", V, unroutable(), unroutable("queue.bind"), evidence={"observed": 3, "routing_key": "nowhere"},
         besides=RETURNS),
    Case("PR-08", V, unroutable(), unroutable(mandatory=True), besides=RETURNS),
    Case("PR-08", V, [unroutable(pause=9), managed("DELETE", "/queues/other", None, at=5)],
         [unroutable(pause=9), managed("POST", "/bindings", BINDING, at=5)], besides=(*RETURNS, *OF_1_0)),
    Case("PR-09", V, large(1_000_001), large(1_000_000), evidence={"observed": 1_000_001, "messages": 1},
         besides=UNLIMITED),
    Case("PR-10", V, again(5, 1, message_id="m"), again(4, 1, message_id="m"),
         evidence={"observed": 5, "queue": "q", "message_id": "m"}, besides=("DL-15",)),
    Case("PR-11", V, again(5, 0, message_id="m"), again(5, 0, 1, message_id="m"), evidence={"observed": 5},
         besides=("DL-15", "PR-10")),
    Case("R4-09", V, given_back(x_queue_type="quorum"), given_back(x_queue_type="quorum", x_delivery_limit=5),
         evidence={"observed": 1, "queue": "q"}),
    Case("R4-09", V, given_back(x_queue_type="quorum"), given_back(x_queue_type="classic")),
    Case("R4-09", V, [managed_queue(x_queue_type="quorum"), given_back(declares=False)],
         [managed_queue(x_queue_type="stream"), given_back(declares=False)], besides=OF_1_0),
    Case("PR-12", "1.0", rejected("amqp:resource-limit-exceeded", "queue 'q' is full"),
         rejected("amqp:precondition-failed", "no"), also=(), besides=("L10-87",),
         evidence={"observed": "amqp:resource-limit-exceeded", "link": "s"}),
    Case("PR-13", "1.0", forced_off("amqp:link:detach-forced", IDLE),
         forced_off("amqp:link:detach-forced", "the queue was deleted"), besides=("L10-62",), evidence={"link": "s"}),
    Case("PR-14", "1.0", forced_off("amqp:unauthorized-access", "ExpiredToken: the token has expired"),
         forced_off("amqp:unauthorized-access", "no claim for 'q'"), besides=("L10-62",), evidence={"link": "s"}),
    Case("PR-14", "1.0", put_token(15), put_token(15, 70), evidence={"address": "amqp://host/q"}, besides=("SEC-14",)),
    Case("SEC-14", "1.0", put_token(70), linked("$cbs", False), besides=("L10-98",),
         evidence={"method": "transfer", "address": "$cbs", "messages": 1}),
    Case("SEC-14", "1.0", put_token(70, 80), linked("$cbs", False), besides=("L10-98",), evidence={"messages": 2}),
    Case("PR-15", V, slow(2), slow(0.9), evidence={"delivered": 1, "expected_s": 1}),
    Case("PR-15", V, slow(2), slow(2, delivered=0)),
]  # fmt: skip
