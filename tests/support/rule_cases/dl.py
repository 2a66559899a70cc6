"""DL: deliveries and their settlement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from link_connections import consuming_1_0
from rule_connections import consuming_0_10
from rule_support import SCALED, Case, Connection, spoken

from rule_cases.cf import later
from rule_cases.ch import opened, shut

V = spoken()
STREAM = {"x-queue-type": "stream"}
MOST = SCALED["DL-12"]["limit"]  # outstanding deliveries


def consuming(prefetch: int = 10, version: str = V) -> Connection:
    return opened(version).consume(prefetch=prefetch)


def ack(connection: Connection, tag: int, multiple: bool = False, channel: int = 1) -> Connection:
    return connection.client("basic.ack", channel, delivery_tag=tag, multiple=multiple)


def reject(connection: Connection, tag: int, requeue: bool = False) -> Connection:
    return connection.client("basic.reject", delivery_tag=tag, requeue=requeue)


def delivered(connection: Connection, *tags: int) -> Connection:
    for tag in tags:
        connection.deliver(tag)
    return connection


def got(connection: Connection, tag: int, no_ack: bool = False) -> Connection:
    connection.client("basic.get", queue="q", no_ack=no_ack)
    return connection.server("basic.get-ok", delivery_tag=tag, exchange="e", routing_key="q").content()


def two_channels() -> Connection:
    return delivered(opened().open(2).consume(), 1)


def waited(seconds: int) -> Connection:
    """A delivery that is acknowledged so late."""
    connection = delivered(consuming(), 1)
    for _ in range(seconds // 30):
        later(connection, 30)
    return ack(connection, 1)


def given_back(connection: Connection) -> Connection:
    return connection.client("basic.nack", delivery_tag=1, requeue=True)


def again(redelivered: bool, **properties: Any) -> Connection:
    """A delivery that the client gives back, and its second delivery."""
    return ack(given_back(consuming().deliver(1, **properties)).deliver(2, redelivered=redelivered, **properties), 2)


def reread(connection: Connection, arguments: Mapping[str, Any] | None = None, **properties: Any) -> Connection:
    """A message of a stream that the client gives back, and reads once more."""
    read = connection.consume(arguments=arguments or {}).deliver(1, message_id="m", **properties)
    return ack(given_back(read).deliver(2, message_id="m", **properties), 2)


def next_consumer() -> Connection:
    return Connection(at=2).handshake().open(1).consume()


def refusing(times: int, of: int, requeue: bool) -> Connection:
    connection = consuming()
    for tag in range(1, of + 1):
        delivered(connection, tag)
        reject(connection, tag, requeue) if tag <= times else ack(connection, tag)
    return connection


def direct_replies() -> Connection:
    """What comes to a direct reply-to consumer has tags that stand still."""
    connection = consuming()
    for _ in range(2):
        connection.server(
            "basic.deliver", consumer_tag="c", delivery_tag=1, exchange="", routing_key="amq.rabbitmq.reply-to.g1"
        )  # fmt: skip
        connection.content()
    return connection


CASES = [
    Case("DL-01", V, delivered(consuming(), 0), ack(delivered(consuming(), 1), 1),
         evidence={"observed": 0}, offender="server"),
    Case("DL-02", V, ack(ack(delivered(consuming(), 2, 1), 1), 2),
         [ack(delivered(shut(ack(delivered(consuming(), 1, 2), 2, multiple=True)).open(1).consume(), 1), 1),
          direct_replies()],
         evidence={"observed": 1, "expected": "above 2"}),
    Case("DL-03", V, ack(delivered(consuming(), 1), 2), ack(delivered(consuming(), 1), 1),
         evidence={"observed": 2, "method": "basic.ack"}, offender="client"),
    # Above the highest, though it settles what is there.
    Case("DL-03", "0-8", ack(delivered(consuming(version="0-8"), 1), 9, multiple=True),
         ack(delivered(consuming(version="0-8"), 1, 2), 2, multiple=True), evidence={"observed": 9, "multiple": True}),
    Case("DL-04", V, ack(ack(delivered(consuming(), 1), 1), 1), ack(ack(delivered(consuming(), 1, 2), 2), 1),
         evidence={"observed": 1}),
    # What is rolled back may be settled again.
    Case("DL-04", V, reject(ack(delivered(consuming(), 1, 2), 2, multiple=True), 1),
         ack(ack(delivered(consuming().asks("tx.select"), 1), 1).asks("tx.rollback"), 1).asks("tx.commit"),
         evidence={"observed": 1, "method": "basic.reject"}),
    Case("DL-05", V, ack(two_channels(), 1, channel=2), ack(two_channels(), 1),
         evidence={"channel": 2, "outstanding_on_channel": 1}),
    Case("DL-06", V, ack(got(opened(), 1, no_ack=True), 1), ack(got(opened(), 1), 1), evidence={"observed": 1}),
    Case("DL-07", V, ack(delivered(consuming(), 1), 0), ack(delivered(consuming(), 1), 0, multiple=True),
         evidence={"observed": 0}),
    # 0-9-1 XML, basic.ack, rule exists: a non-zero tag must be one of a message that is not acknowledged. RabbitMQ
    # (rabbit_channel:collect_acks): 0 with multiple takes what is outstanding, even nothing; another tag must be
    # outstanding itself, or is refused with 406, whatever is outstanding below it.
    Case("DL-08", V, ack(ack(delivered(consuming(), 1), 1), 1, multiple=True),
         [ack(consuming(), 0, multiple=True), ack(ack(delivered(consuming(), 1), 1), 0, multiple=True)],
         evidence={"observed": 1}),
    Case("DL-08", V, ack(ack(delivered(consuming(), 1, 2), 2), 2, multiple=True),
         ack(ack(delivered(consuming(), 1, 2), 1), 2, multiple=True), evidence={"observed": 2}),
    Case("DL-09", V, shut(delivered(consuming(), 1, 2)),
         [shut(ack(delivered(consuming(), 1, 2), 2, multiple=True)), delivered(consuming(), 1)],
         evidence={"observed": 2}),
    Case(
        "DL-10",
        V,
        breaks=again(False, message_id="m"),
        conforms=[
            again(True, message_id="m"),
            # Without an id, and with its publish out of sight, it may be another message.
            delivered(given_back(delivered(Connection(server=4).handshake().open(1).consume(), 1)), 2),
        ],
        evidence={"message_id": "m", "queue": "q"},
        offender="server",
    ),
    # A stream keeps its messages: declared as one, read as one, or known by the offset on the message.
    *(
        Case("DL-10", V, again(False, message_id="m"), read_again, evidence={"queue": "q"})
        for read_again in (
            reread(opened().asks("queue.declare", 1, {"queue": "q"}, queue="q", durable=True, arguments=STREAM)),
            reread(opened(), arguments={"x-stream-offset": "first"}),
            reread(opened(), headers={"x-stream-offset": 7}),
        )
    ),
    # One publish, two deliveries; the channel of the first is gone.
    Case("DL-10", V, [shut(delivered(consuming().publish(), 1)), ack(delivered(next_consumer(), 1), 1)],
         ack(delivered(given_back(delivered(consuming().publish(), 1)).publish(), 2), 2), also=("DL-09",)),
    Case(
        "DL-11",
        V,
        breaks=delivered(consuming(prefetch=2), 1, 2, 3),
        conforms=[
            delivered(ack(delivered(consuming(prefetch=2), 1, 2), 1), 3),
            # A limit that is set later is not that of a consumer from before.
            delivered(consuming(prefetch=2).asks("basic.qos", prefetch_count=1), 1, 2),
        ],
        evidence={"observed": 3, "expected": 2, "of": "consumer"},
    ),
    Case("DL-12", V, delivered(consuming(prefetch=2000), *range(1, MOST + 2)),
         delivered(consuming(prefetch=2000), *range(1, MOST + 1)), evidence={"observed": MOST + 1, "expected": MOST}),
    Case("DL-12", "0-10", consuming_0_10(MOST + 1), consuming_0_10(MOST), evidence={"observed": MOST + 1}),
    Case("DL-12", "1.0", consuming_1_0(MOST + 1), consuming_1_0(MOST), evidence={"observed": MOST + 1}),
    Case("DL-13", V, waited(1830), waited(1770), evidence={"expected": 1800, "outcome": "acked"}),
    # The second twin begins in the middle: CAP-02, CAP-03.
    Case("DL-14", V, delivered(opened(), 1), [ack(delivered(consuming(), 1), 1), Connection(syn=False).deliver(1)],
         evidence={"observed": "c"}, besides=("CAP-02", "CAP-03")),
    Case("DL-15", V, refusing(3, 10, True), refusing(2, 10, True), evidence={"observed": 0.3, "requeued": 3}),
    Case("DL-16", V, refusing(3, 10, False), refusing(2, 10, False), evidence={"observed": 0.3, "rejected": 3}),
]  # fmt: skip
