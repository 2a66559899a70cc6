"""What each method does in its family, as data; the table functions read these and name no method themselves.

Names are unique across families ('basic.publish', 'message.transfer', 'transfer'), so that one mapping serves all: a
further family is more entries here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain

from pyspark.sql import Column
from pyspark.sql import functions as F

from codec.amqp.versions import CLASSIC, FAMILY_OF_VERSION, VERSIONS, fact_table

CLASSIC_VERSIONS = tuple(str(name) for name, of in zip(VERSIONS, FAMILY_OF_VERSION, strict=True) if of == CLASSIC)
METHOD_FRAMES = ("method", "oob-method", "control", "command", "amqp", "sasl")
SPANS = ("gap", "skipped", "tls", "foreign")  # rows of `frames` that are no frames
HEADER = "protocol-header"  # nor is this one
# Frames that only say that their sender is alive, by type or by name.
BEAT_FRAMES, BEAT_METHODS = ("heartbeat", "empty"), ("connection.heartbeat",)
# Where frames may be missing, so that nothing may be paired across: (type of the row, column, value); there is no loss
# where the column has this value (None: any). A gap that lies inside a frame names the frame's channel: framing went
# on behind it, no frame is missing. The bytes of an unfinished last frame ('skipped', 'partial') have nothing behind.
LOSSES: tuple[tuple[str, str, str | None], ...] = (("gap", "channel", None), ("skipped", "status", "partial"))
# What may be known of a connection (`pipeline.audit.catalogue.KNOWLEDGE`): SQL over table connections.
KNOWN = {
    "start": "sides_known_by = 'syn' OR exists(versions_offered, v -> v LIKE 'client %')",
    "both": "client_packets > 0 AND server_packets > 0",
    "order": "out_of_order_segments = 0 AND NOT coalesce(array_contains(limits, 'order of both sides'), false)",
}

# Life of a channel. Channel 0 carries the connection itself in the classic family.
OPENS_CHANNEL = ("channel.open",)
OPENED_CHANNEL = ("channel.open-ok",)
CLOSES_CHANNEL = ("channel.close",)
CONNECTION_CHANNEL = dict.fromkeys(CLASSIC_VERSIONS, "0")
SESSION_VERSIONS = ("0-10", "1.0")  # their channels carry sessions
MODES = {"confirm.select": "confirm", "tx.select": "tx", "dtx.select": "dtx"}
TRANSACTION_ENDS = {"tx.commit": "committed", "tx.rollback": "rolled-back"}
SETS_PREFETCH = ("basic.qos",)
DECLARES_QUEUE = ("queue.declare",)
# RabbitMQ, types of queues: method -> the argument that tells it, and the type that it tells (None: its value).
TELLS_QUEUE_TYPE = {"queue.declare": ("x-queue-type", None), "basic.consume": ("x-stream-offset", "stream")}
# RabbitMQ, streams: method -> the argument that tells that its queue is one, and its value (None: any).
TELLS_STREAM = {"queue.declare": ("x-queue-type", "stream"), "basic.consume": ("x-stream-offset", None)}

# Messages and what becomes of them.
OPERATIONS = {
    "basic.publish": "publish",
    "basic.deliver": "deliver",
    "basic.get-ok": "get",
    "basic.return": "return",
}
DELIVERIES = ("deliver", "get")  # of these operations
TRANSFERS = ("transfer", "message.transfer")  # by the client a publish, by the server a delivery
OPENS_LINK = {"basic.consume": "consumer"}
CLOSES_LINK = ("basic.cancel",)
NAMES_LINK = ("attach",)  # its argument `name`
COMMANDS_TO = ("transfer",)  # may carry one of COORDINATES, and is answered then
COORDINATES = ("declare", "discharge")  # what is asked of a transaction coordinator (1.0, 4.5.3, 4.5.4)

# (method, sender, requeue or None for either) -> outcome of the messages that the other side had sent.
SETTLEMENTS = {
    ("basic.ack", "client", None): "acked",
    ("basic.ack", "server", None): "confirmed",
    ("basic.nack", "client", True): "requeued",
    ("basic.nack", "client", False): "rejected",
    ("basic.nack", "server", None): "nacked",
    ("basic.reject", "client", True): "requeued",
    ("basic.reject", "client", False): "rejected",
    ("basic.recover", "client", None): "requeued",
    ("basic.recover-async", "client", None): "requeued",
    ("basic.recover-sync", "client", None): "requeued",
}
# No tag: everything outstanding on the channel.
SETTLES_ALL = ("basic.recover", "basic.recover-async", "basic.recover-sync")
OUTSIDE_TRANSACTIONS = SETTLES_ALL

# Stages of a connection in order; a connection is in the last of those that it reached.
STAGES = ("tcp", "header", "start", "secure", "tune", "open", "closing", "closed")
REACHES_STAGE = {
    "connection.start": "start",
    "connection.start-ok": "start",
    "connection.secure": "secure",
    "connection.secure-ok": "secure",
    "connection.tune": "tune",
    "connection.tune-ok": "tune",
    "connection.open-ok": "open",
    "connection.close": "closing",
    "connection.close-ok": "closed",
    "sasl-mechanisms": "start",
    "sasl-init": "start",
    "sasl-challenge": "secure",
    "sasl-response": "secure",
    "sasl-outcome": "secure",
    "open": "tune",  # one side has stated its limits
    "close": "closing",
}
REACHED_BY_BOTH = {"open": "open", "close": "closed"}  # when each side has sent it
OPENED = ("connection.open-ok",)
CLOSES_CONNECTION = ("connection.close", "close")

# Column -> type of the arguments that the tables show or reason with; the argument has the column's name.
HOT_ARGUMENTS = {
    "exchange": "string",
    "routing_key": "string",
    "queue": "string",
    "consumer_tag": "string",
    "delivery_tag": "bigint",
    "delivery_id": "bigint",
    "handle": "bigint",
    "reply_code": "int",
    "reply_text": "string",
    "multiple": "boolean",
    "requeue": "boolean",
    "no_wait": "boolean",
    "no_ack": "boolean",
    "exclusive": "boolean",
    "redelivered": "boolean",
    "mandatory": "boolean",
    "immediate": "boolean",
    "prefetch_count": "int",
    "prefetch_size": "bigint",
}

# Answered by brokers although the specification lists no reply.
ANSWERED_IN_PRACTICE = {"basic.recover": ("basic.recover-ok",)}


@lru_cache
def replies() -> dict[str, tuple[str, ...]]:
    """Request -> its possible replies, of the classic family, from the fact tables of its versions."""
    found: dict[str, set[str]] = {name: set(answers) for name, answers in ANSWERED_IN_PRACTICE.items()}
    for version in CLASSIC_VERSIONS:
        for class_ in fact_table(version)["classes"]:
            for method in class_["methods"]:
                answers = {f"{class_['name']}.{answer}" for answer in method["responses"]}
                if answers:
                    found.setdefault(f"{class_['name']}.{method['name']}", set()).update(answers)
    return {name: tuple(sorted(answers)) for name, answers in sorted(found.items())}


@lru_cache
def request_groups() -> dict[str, str]:
    """Method -> its dialogue. Requests that share a reply share a dialogue, and are answered in the order asked."""
    group: dict[str, str] = {}
    for request, answers in replies().items():
        joined = {group.get(name, name) for name in (request, *answers)}
        first = min(joined)
        group.update(dict.fromkeys((request, *answers), first))
        group.update({name: first for name, old in group.items() if old in joined})
    return group


def named(names: Iterable[str]) -> Column:
    """True on rows whose `name` is one of `names`; false, not null, on rows without a name."""
    return F.coalesce(F.col("name").isin(list(names)), F.lit(False))


def looked_up(mapping: Mapping[str, str], key: str | Column = "name") -> Column:
    """The value of `mapping` for column `key`; null where it has none."""
    literals = [F.lit(part) for part in chain.from_iterable(mapping.items())]
    return F.create_map(*literals)[F.col(key) if isinstance(key, str) else key]


def other(side: str) -> Column:
    """The other side of column `side`."""
    return looked_up({"client": "server", "server": "client"}, side)
