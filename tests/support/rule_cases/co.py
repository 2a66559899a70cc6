"""CO: consumers."""

from __future__ import annotations

from rule_support import Case, Connection, spoken

from rule_cases.ch import opened, refused, shut
from rule_cases.dl import ack, consuming, delivered
from rule_cases.nm import stranger

V = spoken()


def cancels(connection: Connection, tag: str = "c", channel: int = 1) -> Connection:
    return connection.asks("basic.cancel", channel, {"consumer_tag": tag}, consumer_tag=tag)


def exclusive(version: str = V) -> Connection:
    return opened(version).consume(exclusive=True)


def declared(connection: Connection, queue: str = "q") -> Connection:
    return connection.asks("queue.declare", 1, {"queue": queue}, queue=queue)


def polls(times: int) -> Connection:
    connection = opened()
    for _ in range(times):
        connection.client("basic.get", queue="q").server("basic.get-empty")
    return connection


BASIC_CONSUME = 60, 20
CASES = [
    Case("CO-01", V, consuming().client("basic.consume", queue="p", consumer_tag="c"),
         [cancels(consuming()).asks("basic.consume", 1, {"consumer_tag": "c"}, queue="p", consumer_tag="c"),
          shut(consuming()).open(1).consume()],
         evidence={"observed": "c"}, offender="client"),
    Case("CO-02", V, cancels(consuming(), "d"), cancels(consuming()), evidence={"observed": "d"}),
    # Known by the answer of the server only.
    Case("CO-02", "0-8", cancels(cancels(consuming(version="0-8"))),
         cancels(opened("0-8").asks("basic.qos", prefetch_count=1)
             .asks("basic.consume", reply={"consumer_tag": "given"}, queue="q"), "given")),
    Case("CO-03", V, cancels(opened().open(2).consume(), channel=2), cancels(opened().open(2).consume()),
         evidence={"channel": 2, "active_on_channel": 1}),
    Case("CO-04", V, ack(delivered(cancels(consuming()), 1), 1),
         ack(delivered(consuming().client("basic.cancel", consumer_tag="c"), 1)
             .server("basic.cancel-ok", consumer_tag="c"), 1),
         evidence={"observed": "c"}, offender="server"),
    # Before 0-9-1 with its extension, a server may not send it: MT-01.
    Case("CO-05", V, consuming().server("basic.cancel", consumer_tag="c", no_wait=True), cancels(consuming()),
         evidence={"observed": "c", "queue": "q"}, besides=("MT-01",)),
    # Another connection deletes the queue: header, start, start-ok, tune, tune-ok, open, open-ok, channel.open, its
    # reply, queue.delete.
    Case("CO-05", V,
         [consuming().wait(10).server("basic.cancel", consumer_tag="c", no_wait=True),
          Connection(V, client=3, at=5).handshake().open(1).asks("queue.delete", queue="q")],
         [cancels(consuming()), Connection(V, client=3, at=5).handshake().open(1).asks("queue.delete", queue="q")],
         evidence={"observed": "c", "queue": "q", "deleted_in_frame": 10}, besides=("MT-01",)),
    Case("CO-06", V, opened().asks("basic.consume", reply={"consumer_tag": "c"}, queue="q", consumer_tag="c"),
         consuming(prefetch=1), evidence={"observed": 0, "queue": "q"}),
    Case("CO-06", V, consuming(prefetch=0), consuming()),
    # The limit was that of a channel with the same number before.
    Case("CO-06", V,
         shut(consuming(prefetch=3)).open(1).asks("basic.consume", reply={"consumer_tag": "d"}, queue="q"),
         shut(consuming(prefetch=3)), evidence={"observed": 0}),
    # The server refused the consumer: there is none. The first one of two was not refused.
    Case("CO-06", V,
         refused(consuming(prefetch=0).client("basic.consume", queue="p"), 404, "no queue 'p'", BASIC_CONSUME),
         refused(opened().client("basic.consume", queue="p"), 404, "no queue 'p'", BASIC_CONSUME),
         evidence={"observed": 0, "queue": "q"}, besides=("CH-09", "NM-11")),
    Case("CO-07", V, polls(61), polls(60), evidence={"expected": 60, "empty_share": 1.0}),
    Case("CO-08", V, opened().consume(no_ack=True),
         [consuming(), opened().consume("amq.rabbitmq.reply-to", no_ack=True)], evidence={"queue": "q"}),
    Case("CO-09", V, [exclusive(), stranger(5).consume(tag="d")], [cancels(exclusive()), stranger(5).consume(tag="d")],
         evidence={"queue": "q"}, offender="server"),
    # Without a name, a consumer reads the queue that was declared last on its channel (basic.consume, queue).
    Case("CO-09", V, [exclusive(), declared(stranger(5)).consume("", tag="d")],
         [exclusive(), declared(declared(stranger(5)), "p").consume("", tag="d")], evidence={"queue": "q"},
         offender="server"),
]  # fmt: skip
