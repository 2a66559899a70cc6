"""MT: methods, who may send them, and which reply belongs to which request."""

from __future__ import annotations

import struct
from typing import Any

from rule_support import ABLE, CLIENT_PROPERTIES, SERVER_PROPERTIES, Case, Connection, spoken

V = spoken()


def opened(version: str = V, **given: Any) -> Connection:
    return Connection(version).handshake(**given).open(1)


def without(capability: str, of: dict[str, Any]) -> dict[str, Any]:
    """These properties, one capability less."""
    return {**of, "capabilities": {name: able for name, able in ABLE.items() if name != capability}}


def server_without(capability: str) -> Connection:
    return opened(start={"server_properties": without(capability, SERVER_PROPERTIES)})


def client_without(capability: str) -> Connection:
    return opened(start_ok={"client_properties": without(capability, CLIENT_PROPERTIES)})


def declared(version: str, asked: bool, **given: Any) -> Connection:
    """A queue declared, after an access ticket was asked for."""
    connection = opened(version)
    if asked:
        connection.asks("access.request", reply={"ticket": 7}, realm="/data", active=True)
    return connection.asks("queue.declare", reply={"queue": "q"}, queue="q", durable=True, **given).close()


def recover(method_id: int) -> bytes:
    """basic.recover with the bit requeue, by this id."""
    return struct.pack(">BHIHHB", 1, 1, 5, 60, method_id, 1) + b"\xce"


def out_of_order(connection: Connection) -> Connection:
    """The last two packets were captured the wrong way round."""
    first, second = connection.packets[-2:]
    first.ns, second.ns = second.ns, first.ns
    return connection


RECOVER_OK = struct.pack(">BHIHH", 1, 1, 4, 60, 111) + b"\xce"
BINDING = {"destination": "d", "source": "s"}
# A capability that the server does not list, another one, and a method that needs the first, with its arguments.
UNLISTED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("publisher_confirms", "basic.nack", "confirm.select", {}),
    ("exchange_exchange_bindings", "basic.nack", "exchange.bind", BINDING),
    ("exchange_exchange_bindings", "basic.nack", "exchange.unbind", BINDING),
)
CASES = [
    Case("MT-01", V, opened().server("basic.qos").close(), opened().asks("basic.qos", prefetch_count=1).close(),
         evidence={"observed": "server", "method": "basic.qos"}, offender="server"),
    # RabbitMQ takes 0-9 for 0-9-1, and confirms
    Case("MT-01", "0-9", opened("0-9").server("basic.qos").close(),
         opened("0-9").asks("confirm.select").publish().server("basic.ack", delivery_tag=1).close(), offender="server"),
    # basic.nack by the server, and exchange.bind-ok by the client
    Case("MT-01", V, opened().client("exchange.bind-ok").close(),
         opened().asks("exchange.bind", destination="d", source="s").close(), also=("MT-02",),
         evidence={"observed": "client", "method": "exchange.bind-ok"}, offender="client"),
    Case("MT-02", V, opened().server("queue.bind-ok").close(),
         opened().asks("queue.bind", queue="q", exchange="e").close(), evidence={"observed": "queue.bind-ok"},
         offender="server"),
    # the twin's reply is captured before its request
    Case("MT-02", "0-8", opened("0-8").asks("queue.bind", queue="q", exchange="e").server("queue.bind-ok").close(),
         out_of_order(opened("0-8").asks("queue.bind", queue="q", exchange="e")).asks("basic.qos").close(),
         evidence={"observed": "queue.bind-ok"}),
    Case("MT-03", V, opened().client("basic.qos", prefetch_count=1).wait(61).close(),
         opened().client("basic.qos", prefetch_count=1).wait(59).close(),
         evidence={"observed": "no reply", "request": "basic.qos"}, offender="server"),
    Case("MT-03", V, opened().client("basic.qos", prefetch_count=1).wait(61).server("basic.qos-ok").close(),
         opened().client("basic.qos", prefetch_count=1).server("channel.close", reply_code=200, reply_text="t")
             .client("channel.close-ok").wait(61).close(channels=False),
         evidence={"observed": "late reply"}),
    Case("MT-03", V, opened().client("queue.delete", queue="q").wait(61).close(),
         opened().client("queue.delete", queue="q", no_wait=True).wait(61).close()),
    Case("MT-04", V, opened().client("queue.bind", queue="q", exchange="e").client("basic.qos", prefetch_count=1)
             .server("queue.bind-ok").server("basic.qos-ok").close(),
         opened().asks("queue.bind", queue="q", exchange="e").asks("basic.qos", prefetch_count=1).close(),
         evidence={"observed": "basic.qos"}, offender="client"),
    # both sides may ask at the same time, and a request that waits for nothing is none
    Case("MT-04", V, opened().client("queue.bind", queue="q", exchange="e")
             .client("queue.bind", queue="q", exchange="f").server("queue.bind-ok").server("queue.bind-ok").close(),
         opened().server("channel.flow", active=False).client("queue.bind", queue="q", exchange="e", no_wait=True)
             .client("queue.bind", queue="q", exchange="e").client("channel.flow-ok", active=False)
             .server("queue.bind-ok").server("channel.flow", active=True).client("channel.flow-ok", active=True)
             .close(), evidence={"observed": "queue.bind"}),
    Case("MT-05", V, opened().asks("queue.bind", queue="q", exchange="e", no_wait=True).close(),
         opened().client("queue.bind", queue="q", exchange="e", no_wait=True)
             .asks("queue.bind", queue="q", exchange="f").close(),
         evidence={"observed": "queue.bind-ok"}, offender="server"),
    Case("MT-06", V, opened().client("queue.bind", queue="q", exchange="e").client("basic.qos", prefetch_count=1)
             .server("basic.qos-ok").server("queue.bind-ok").close(),
         opened().asks("queue.bind", queue="q", exchange="e").asks("basic.qos", prefetch_count=1).close(),
         also=("MT-04",), evidence={"observed": "basic.qos"}, offender="server"),
    # 0-9 has two methods basic.recover: that of the document has no reply, that of RabbitMQ has one.
    Case("MT-03", "0-9", opened("0-9").client_bytes(recover(110)).wait(61).close(),
         opened("0-9").client_bytes(recover(100)).wait(61).close(), evidence={"request": "basic.recover"}),
    Case("MT-06", "0-9", opened("0-9").client_bytes(recover(110)).asks("basic.qos", prefetch_count=1)
             .server_bytes(RECOVER_OK).close(),
         opened("0-9").client_bytes(recover(100)).asks("basic.qos", prefetch_count=1)
             .client_bytes(recover(110)).server_bytes(RECOVER_OK).close(),
         also=("MT-04",), evidence={"observed": "basic.qos"}, offender="server"),
    *(
        Case("MT-07", V, server_without(capability).asks(name, **arguments).close(),
             server_without(other).asks(name, **arguments).close(),
             evidence={"observed": name, "expected": f"capability {capability}", "lacking_by": "server"},
             offender="client")
        for capability, other, name, arguments in UNLISTED
    ),
    # Properties of which the capture has a part only.
    Case("MT-07", V, server_without("publisher_confirms").asks("confirm.select").close(),
         server_without("publisher_confirms").cut("server", b"capabilities", 40)
             .asks("confirm.select").close(), besides=("CAP-01", "CAP-04", "HS-07")),
    Case("MT-07", V, client_without("consumer_cancel_notify").consume()
             .server("basic.cancel", consumer_tag="c", no_wait=True).close(),
         client_without("consumer_cancel_notify").cut("client", b"capabilities", 40).consume()
             .server("basic.cancel", consumer_tag="c", no_wait=True).close(),
         besides=("CAP-01", "CAP-04", "CO-05", "HS-07")),
    Case("MT-07", V, server_without("basic.nack").consume().deliver(1).client("basic.nack", delivery_tag=1).close(),
         opened().consume().deliver(1).client("basic.nack", delivery_tag=1).close(),
         evidence={"observed": "basic.nack", "expected": "capability basic.nack"}, offender="client"),
    Case("MT-07", V, client_without("consumer_cancel_notify").consume()
             .server("basic.cancel", consumer_tag="c", no_wait=True).close(),
         opened().consume().server("basic.cancel", consumer_tag="c", no_wait=True).close(), besides=("CO-05",),
         evidence={"observed": "basic.cancel", "lacking_by": "client"}, offender="server"),
    Case("MT-07", V, client_without("connection.blocked").server("connection.blocked", 0, reason="r")
             .server("connection.unblocked", 0).close(),
         opened().server("connection.blocked", 0, reason="r").server("connection.unblocked", 0).close(),
         evidence={"observed": "connection.blocked", "lacking_by": "client"}, offender="server"),
    Case("MT-08", V, opened().client("basic.recover-async", requeue=True).close(),
         opened().asks("basic.recover", requeue=True).close(), evidence={"observed": "basic.recover-async"}),
    Case("MT-08", "0-9-1", opened().asks("access.request", reply={"ticket": 1}, realm="/data").close(),
         opened().server("channel.flow", active=True).client("channel.flow-ok", active=True).close(),
         evidence={"observed": "access.request"}),
    Case("MT-08", V, opened().publish(immediate=True).close(), opened().publish(mandatory=True).close(),
         evidence={"observed": "basic.publish", "immediate": True}),
    Case("MT-08", V, opened().asks("channel.flow", active=True, reply={"active": True}).close(),
         opened().publish().close(), evidence={"observed": "channel.flow"}),
    Case("MT-09", "0-9", opened("0-9").client("channel.ping").server("channel.ok").close(),
         opened("0-9").asks("basic.qos", prefetch_count=1).close(), evidence={"observed": "channel.ping"}),
    Case("MT-10", "0-8", declared("0-8", asked=False, ticket=0), declared("0-8", asked=True, ticket=7),
         evidence={"observed": 0, "method": "queue.declare"}, offender="client"),
    Case("MT-10", "0-9", declared("0-9", asked=False, ticket=0), declared("0-9", asked=False)),
]  # fmt: skip
