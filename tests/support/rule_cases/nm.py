"""NM: names."""

from __future__ import annotations

from typing import Any

from rule_connections import done_0_10, send_0_10, session_0_10
from rule_support import Case, Connection, spoken

from rule_cases.ch import ended, opened, refused, shut
from rule_cases.practice import OF_1_0, managed

V = spoken()
EXCHANGE_DECLARE, EXCHANGE_DELETE = (40, 10), (40, 20)
QUEUE_DECLARE, QUEUE_BIND, QUEUE_PURGE, BASIC_CONSUME = (50, 10), (50, 20), (50, 30), (60, 20)


def declares(connection: Connection, queue: str, given: str = "", **flags: Any) -> Connection:
    return connection.asks("queue.declare", reply={"queue": given or queue}, queue=queue, **flags)


def exchange(connection: Connection, name: str, kind: str = "topic", **flags: Any) -> Connection:
    return connection.asks("exchange.declare", exchange=name, type=kind, **flags)


def owner(version: str = V) -> Connection:
    """Declares queue 'mine' for itself."""
    return declares(opened(version), "mine", exclusive=True)


def owner_0_10() -> Connection:
    return done_0_10(send_0_10(session_0_10(), "client", "queue.declare", queue="mine", exclusive=True), 0)


def stranger(at: float) -> Connection:
    return Connection(client=3, at=at).handshake().open(1)


CASES = [
    Case("NM-01", V, declares(opened(), "q" * 128), declares(opened(), "q" * 127),
         evidence={"observed": 128, "expected": 127}, offender="client"),
    Case("NM-01", "0-8", opened("0-8").publish(exchange="e" * 200), opened("0-8").publish(exchange="e"),
         evidence={"observed": 200, "method": "basic.publish"}),
    Case("NM-02", V, declares(opened(), "a queue"), declares(opened(), "A-queue_1.of:mine"),
         evidence={"observed": "a queue"}),
    Case("NM-03", V,
         refused(opened().client("exchange.declare", exchange="amq.mine", type="topic"), 403, "NO", EXCHANGE_DECLARE),
         [declares(declares(exchange(opened(), "amq.topic", durable=True), "", "amq.gen-1"), "amq.gen-1"),
          exchange(exchange(opened(), "amq.other", passive=True), "amq.other")],
         also=("CH-09",), evidence={"observed": "amq.mine"}, offender="client"),
    Case("NM-04", V,
         refused(opened().client("exchange.declare", exchange="", type="direct"), 403, "NO", EXCHANGE_DECLARE),
         exchange(opened(), "e"), also=("CH-09",), evidence={"method": "exchange.declare"}),
    Case(
        "NM-05",
        V,
        breaks=refused(
            exchange(opened(), "e").client("exchange.declare", exchange="e", type="fanout"), 406, "NO", EXCHANGE_DECLARE
        ),
        conforms=[
            exchange(exchange(opened(), "e", durable=True), "e", durable=True),
            exchange(exchange(opened(), "f").asks("exchange.delete", exchange="f"), "f", "fanout"),
            # What was refused does not count.
            exchange(exchange(opened(), "g"), "g", "fanout", passive=True),
        ],
        also=("CH-09",),
        evidence={
            "observed": {"type": "fanout", "durable": False, "arguments": "{}"},
            "expected": {"type": "topic", "durable": False, "arguments": "{}"},
        },
    ),
    # The server consents: the exchange was deleted in between, where the capture does not show it.
    Case("NM-05", "0-9",
         refused(exchange(opened("0-9"), "e", durable=True).client("exchange.declare", exchange="e", type="topic"), 406,
                 "NO", EXCHANGE_DECLARE),
         exchange(exchange(opened("0-9"), "e", durable=True), "e"), also=("CH-09",)),
    Case(
        "NM-06",
        V,
        breaks=refused(
            declares(opened(), "q").client("queue.declare", queue="q", durable=True), 406, "NO", QUEUE_DECLARE
        ),
        conforms=[
            declares(
                declares(opened(), "q", durable=True, arguments={"x-max-length": 5, "x-expires": 9}),
                "q", durable=True, arguments={"x-expires": 9, "x-max-length": 5},
            ),
            # Deleted in between; gone by itself, as the server's consent tells.
            declares(declares(opened(), "r").asks("queue.delete", queue="r"), "r", durable=True),
            declares(declares(opened(), "s", auto_delete=True), "s", durable=True),
            ended(shut(declares(opened(), "t", exclusive=True))),
            declares(stranger(5), "t"),
        ],
        also=("CH-09",),
        evidence={"queue": "q"},
    ),
    Case("NM-06", V,
         refused(declares(opened(), "q").client("queue.declare", queue="q", arguments={"x-max-length": 5}), 406, "NO",
                 QUEUE_DECLARE),
         [declares(declares(opened(), "q"), "q", passive=True, durable=True),
          declares(declares(opened(), "u"), "u", arguments={"x-max-length": 5})], also=("CH-09",),
         evidence={"observed": {"durable": False, "exclusive": False, "auto_delete": False,
             "arguments": '{"x-max-length":5}'}}),
    # Declared over 1.0, where queues are durable unless told otherwise.
    Case("NM-06", V,
         [managed("PUT", "/queues/q", {}, status="201"),
          refused(stranger(5).client("queue.declare", queue="q"), 406, "NO", QUEUE_DECLARE)],
         [managed("PUT", "/queues/q", {}, status="201"), declares(stranger(5), "q", durable=True),
          managed("PUT", "/queues/r", {}, at=9), declares(stranger(12), "r")],
         also=("CH-09",), besides=OF_1_0,
         evidence={"queue": "q", "expected": {"durable": True, "exclusive": False, "auto_delete": False,
             "arguments": "{}"}}),
    Case("NM-07", V, refused(opened().client("queue.purge", queue=""), 404, "NO", QUEUE_PURGE),
         declares(opened(), "q").asks("queue.purge", queue=""), also=("CH-09", "NM-11"),
         evidence={"method": "queue.purge"}),
    Case("NM-08", V, refused(opened().client("queue.bind", queue="q", routing_key="k"), 403, "NO", QUEUE_BIND),
         opened().asks("queue.bind", queue="q", exchange="e", routing_key="k"), also=("CH-09",)),
    Case("NM-08", V, refused(opened().client("exchange.delete"), 403, "NO", EXCHANGE_DELETE),
         opened().asks("exchange.delete", exchange="e"), also=("NM-04", "CH-09")),
    Case("NM-09", V, [owner(), refused(stranger(5).client("queue.purge", queue="mine"), 405, "LOCKED", QUEUE_PURGE)],
         [ended(shut(owner())), stranger(5).asks("queue.purge", queue="mine")], also=("CH-09",),
         evidence={"observed": "queue.purge", "queue": "mine"}),
    # A queue that the server named.
    Case("NM-09", "0-8",
         [declares(opened("0-8"), "", "given", exclusive=True),
          refused(Connection("0-8", client=3, at=5).handshake().open(1).client("basic.consume", queue="given"), 405,
                  "LOCKED", BASIC_CONSUME)],
         [declares(opened("0-8"), "", "given", exclusive=True).consume("given"),
          declares(opened("0-8"), "", "other", exclusive=True),
          Connection("0-8", client=3, at=5).handshake().open(1).consume("other")], also=("CH-09",),
         evidence={"observed": "basic.consume", "queue": "given"}),
    Case("NM-09", "0-10",
         [owner_0_10(), send_0_10(session_0_10(client=3, at=5), "client", "queue.purge", queue="mine")],
         [owner_0_10(), send_0_10(session_0_10(client=3, at=5), "client", "queue.query", queue="mine")],
         evidence={"observed": "queue.purge", "queue": "mine"}),
    Case("NM-10", V, refused(opened().client("exchange.delete", exchange="amq.topic"), 403, "NO", EXCHANGE_DELETE),
         opened().asks("exchange.delete", exchange="mine"), also=("CH-09",), evidence={"observed": "amq.topic"}),
    Case("NM-11", V, refused(opened().client("queue.declare", queue="lost", passive=True), 404,
             "NOT_FOUND - no queue 'lost' in vhost '/'", QUEUE_DECLARE),
         declares(opened(), "lost", passive=True), also=("CH-09",),
         evidence={"entity": "lost", "class": 50, "method": 10}),
    Case("NM-12", V,
         refused(opened().client("exchange.declare", exchange="e", type="tropic"), 406, "NO", EXCHANGE_DECLARE),
         exchange(exchange(opened(), "e", "x-delayed-message"), "f", "headers"), also=("CH-09",),
         evidence={"observed": "tropic"}),
]  # fmt: skip
