"""The capture of docs/recipes.md: eight applications and a broker, each with one thing that goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import link_talks as links
import proton
from encode_1_0 import CLOSE, OPEN, SOURCE, TARGET, described, frame, performative
from rule_support import ABLE, SERVER_PROPERTIES, Case, Talk, write_cases
from rule_talks import closed_1_0, sasl

RABBITMQ = {**SERVER_PROPERTIES, "product": "RabbitMQ", "version": "3.13.7"}


def application(name: str, at: float, **given: Any) -> Talk:
    """A connection of an application, `at` seconds after the capture began, with channel 1 open."""
    own = {"product": "pika", "version": "1.3.2", "platform": "Python", "capabilities": ABLE, "connection_name": name}
    steps = {"start": {"server_properties": RABBITMQ}, "start_ok": {"client_properties": own}, **given}
    return Talk(at=at).handshake(**steps).open(1)


def declares(talk: Talk, queue: str, durable: bool = True) -> Talk:
    return talk.client("queue.declare", 1, queue=queue, durable=durable)


def orders_api() -> Talk:
    """Three orders that are confirmed after 2, 2 and 40 ms (a step is 1 ms), and one that matches no queue."""
    talk = declares(application("orders-api", 0), "orders").server("queue.declare-ok", 1, queue="orders")
    talk.asks("confirm.select", 1)
    for number, wait in enumerate((0.0, 0.0, 0.038), 1):
        talk.publish(b"order %d" % number, exchange="", routing_key="orders", message_id=f"o-{number}")
        talk.wait(wait).server("basic.ack", 1, delivery_tag=number)
    talk.publish(b"lost", exchange="", routing_key="order", mandatory=True, message_id="o-4")
    talk.server("basic.return", 1, reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="order")
    talk.content(b"lost", message_id="o-4").server("basic.ack", 1, delivery_tag=4)
    return talk.close()


def billing() -> Talk:
    """Consumes without a prefetch count, acknowledges the first of three orders, and ends."""
    talk = application("billing", 1)
    talk.asks("basic.consume", 1, {"consumer_tag": "bills"}, queue="orders", consumer_tag="bills")
    for number in (1, 2, 3):
        own = {"consumer_tag": "bills", "delivery_tag": number, "exchange": "", "routing_key": "orders"}
        talk.server("basic.deliver", 1, **own).content(b"order %d" % number, message_id=f"o-{number}")
    return talk.wait(0.5).client("basic.ack", 1, delivery_tag=1).close()


def reports() -> Talk:
    """Agrees on no heartbeat, and declares the queue of orders-api otherwise."""
    talk = declares(application("reports", 2, tune_ok={"heartbeat": 0}), "orders", durable=False)
    text = "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'orders' in vhost '/test'"
    talk.server("channel.close", 1, reply_code=406, reply_text=text, class_id=50, method_id=10)
    return talk.client("channel.close-ok", 1).close(channels=False)


def worker() -> Talk:
    """One message that goes back and comes again four times; one that was dead-lettered."""
    talk = application("worker", 3).consume("jobs", "w", prefetch=1)
    for tag in range(1, 6):
        talk.deliver(tag, b"job", consumer_tag="w", redelivered=tag > 1, message_id="j-1")
        talk.client("basic.nack", 1, delivery_tag=tag, requeue=tag < 5)
    death = {"count": 1, "reason": "expired", "queue": "jobs", "exchange": "", "routing-keys": ["jobs"]}
    talk.deliver(6, b"old", consumer_tag="w", message_id="j-0", headers={"x-death": [death]})
    return talk.client("basic.ack", 1, delivery_tag=6).close()


def shut_down() -> Talk:
    """The broker is stopped by its operator."""
    return application("shop", 5).close("server", 320, "CONNECTION_FORCED - broker forced connection closure")


def cron(number: int) -> Talk:
    """Its library closes with code 0, as py-amqplib does."""
    return application("cron", 10 + number).close(code=0, text="")


def opened(container: str, at: float, *idle: Any) -> Talk:
    """A connection of 1.0; `idle`: max-frame-size, channel-max and idle-time-out of the client's open."""
    talk = sasl(Talk("1.0", at=at))
    for side in ("client", "server"):
        talk.octets(side, b"AMQP\0\1\0\0")
    talk.client_octets(frame(performative(OPEN, container, "test", *idle)))
    return talk.server_octets(frame(performative(OPEN, "server-container", "test")))


def shut_down_1_0() -> Talk:
    """The same in 1.0, where a close has a condition instead of a code. This client states an idle time-out."""
    talk = opened("shop-1.0", 6, proton.uint(4096), proton.ushort(255), proton.uint(30_000))
    talk.server_octets(frame(performative(CLOSE, links.error("amqp:connection:forced", "the broker shuts down"))))
    return talk.client_octets(frame(performative(CLOSE))).fin("server")


def refused() -> Talk:
    """A link of 1.0 whose node does not exist: attached without a source, then detached with an error."""
    talk = links.begun(opened("client-container", 30))
    for side, role, node in (("client", True, described(SOURCE, "/queues/none")), ("server", False, None)):
        links.attach(talk, side, "receiver-1", 0, role, source=node, target=described(TARGET, None))
    links.detach(talk, "server", 0, why=links.error("amqp:not-found", "no queue 'none'"))
    return closed_1_0(links.detach(talk, "client", 0))


def write(path: Path) -> None:
    """The capture. Who writes cases gives every half a network of its own: here all are one half."""
    shops = shut_down(), shut_down_1_0()
    talks = [orders_api(), billing(), reports(), worker(), *shops, *map(cron, range(12)), refused()]
    write_cases(path, [Case("", "0-9-1", talks, [])])
