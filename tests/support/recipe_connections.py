"""The capture of docs/recipes.md: eight applications and a broker, each with one thing that goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import link_connections as links
import proton
from encode_1_0 import CLOSE, OPEN, SOURCE, TARGET, described, frame, performative
from rule_connections import closed_1_0, sasl
from rule_support import ABLE, SERVER_PROPERTIES, Case, Connection, write_cases

RABBITMQ = {**SERVER_PROPERTIES, "product": "RabbitMQ", "version": "3.13.7"}


def application(name: str, at: float, **given: Any) -> Connection:
    """A connection of an application, `at` seconds after the capture began, with channel 1 open."""
    own = {"product": "pika", "version": "1.3.2", "platform": "Python", "capabilities": ABLE, "connection_name": name}
    steps = {"start": {"server_properties": RABBITMQ}, "start_ok": {"client_properties": own}, **given}
    return Connection(at=at).handshake(**steps).open(1)


def declares(connection: Connection, queue: str, durable: bool = True) -> Connection:
    return connection.client("queue.declare", 1, queue=queue, durable=durable)


def orders_api() -> Connection:
    """Three orders that are confirmed after 2, 2 and 40 ms (a step is 1 ms), and one that matches no queue."""
    connection = declares(application("orders-api", 0), "orders").server("queue.declare-ok", 1, queue="orders")
    connection.asks("confirm.select", 1)
    for number, wait in enumerate((0.0, 0.0, 0.038), 1):
        connection.publish(b"order %d" % number, exchange="", routing_key="orders", message_id=f"o-{number}")
        connection.wait(wait).server("basic.ack", 1, delivery_tag=number)
    connection.publish(b"lost", exchange="", routing_key="order", mandatory=True, message_id="o-4")
    connection.server("basic.return", 1, reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="order")
    connection.content(b"lost", message_id="o-4").server("basic.ack", 1, delivery_tag=4)
    return connection.close()


def billing() -> Connection:
    """Consumes without a prefetch count, acknowledges the first of three orders, and ends."""
    connection = application("billing", 1)
    connection.asks("basic.consume", 1, {"consumer_tag": "bills"}, queue="orders", consumer_tag="bills")
    for number in (1, 2, 3):
        own = {"consumer_tag": "bills", "delivery_tag": number, "exchange": "", "routing_key": "orders"}
        connection.server("basic.deliver", 1, **own).content(b"order %d" % number, message_id=f"o-{number}")
    return connection.wait(0.5).client("basic.ack", 1, delivery_tag=1).close()


def reports() -> Connection:
    """Agrees on no heartbeat, and declares the queue of orders-api otherwise."""
    connection = declares(application("reports", 2, tune_ok={"heartbeat": 0}), "orders", durable=False)
    text = "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'orders' in vhost '/test'"
    connection.server("channel.close", 1, reply_code=406, reply_text=text, class_id=50, method_id=10)
    return connection.client("channel.close-ok", 1).close(channels=False)


def worker() -> Connection:
    """One message that goes back and comes again four times; one that was dead-lettered."""
    connection = application("worker", 3).consume("jobs", "w", prefetch=1)
    for tag in range(1, 6):
        connection.deliver(tag, b"job", consumer_tag="w", redelivered=tag > 1, message_id="j-1")
        connection.client("basic.nack", 1, delivery_tag=tag, requeue=tag < 5)
    death = {"count": 1, "reason": "expired", "queue": "jobs", "exchange": "", "routing-keys": ["jobs"]}
    connection.deliver(6, b"old", consumer_tag="w", message_id="j-0", headers={"x-death": [death]})
    return connection.client("basic.ack", 1, delivery_tag=6).close()


def shut_down() -> Connection:
    """The broker is stopped by its operator."""
    return application("shop", 5).close("server", 320, "CONNECTION_FORCED - broker forced connection closure")


def cron(number: int) -> Connection:
    """Its library closes with code 0, as py-amqplib does."""
    return application("cron", 10 + number).close(code=0, text="")


def opened(container: str, at: float, *idle: Any) -> Connection:
    """A connection of 1.0; `idle`: max-frame-size, channel-max and idle-time-out of the client's open."""
    connection = sasl(Connection("1.0", at=at))
    for side in ("client", "server"):
        connection.data(side, b"AMQP\0\1\0\0")
    connection.client_bytes(frame(performative(OPEN, container, "test", *idle)))
    return connection.server_bytes(frame(performative(OPEN, "server-container", "test")))


def shut_down_1_0() -> Connection:
    """The same in 1.0, where a close has a condition instead of a code. This client states an idle time-out."""
    connection = opened("shop-1.0", 6, proton.uint(4096), proton.ushort(255), proton.uint(30_000))
    connection.server_bytes(frame(performative(CLOSE, links.error("amqp:connection:forced", "the broker shuts down"))))
    return connection.client_bytes(frame(performative(CLOSE))).fin("server")


def refused() -> Connection:
    """A link of 1.0 whose node does not exist: attached without a source, then detached with an error."""
    connection = links.begun(opened("client-container", 30))
    for side, role, node in (("client", True, described(SOURCE, "/queues/none")), ("server", False, None)):
        links.attach(connection, side, "receiver-1", 0, role, source=node, target=described(TARGET, None))
    links.detach(connection, "server", 0, why=links.error("amqp:not-found", "no queue 'none'"))
    return closed_1_0(links.detach(connection, "client", 0))


def write(path: Path) -> None:
    """The capture. Who writes cases gives every half a network of its own: here all are one half."""
    shops = shut_down(), shut_down_1_0()
    connections = [orders_api(), billing(), reports(), worker(), *shops, *map(cron, range(12)), refused()]
    write_cases(path, [Case("", "0-9-1", connections, [])])
