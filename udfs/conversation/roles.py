"""What each method does, as data; the code that makes tables names no method itself.

Method names are unique across families ('basic.publish', 'message.transfer', 'transfer'), so one mapping serves all.
`method_roles` has it as numbers for the kernel behind `udfs.conversation.channels`, which knows no method by name.
Importing this loads no kernel.
"""

from __future__ import annotations

from functools import lru_cache

from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import methods

METHOD_FRAMES = ("method", "oob-method", "control", "command", "amqp", "sasl")
SPANS = ("gap", "skipped", "tls", "foreign")  # rows of `frames` that are spans of bytes
HEADER = "protocol-header"  # not a frame either
# Heartbeats, by frame type or by name.
BEAT_FRAMES, BEAT_METHODS = ("heartbeat", "empty"), ("connection.heartbeat",)
# Rows across which nothing may be paired, because frames may be missing: (frame type, column, value). A row with this
# value in the column (None: any value) is no loss: a gap inside a frame has the channel of that frame, and framing
# continued after it; an unfinished last frame ('skipped', 'partial') has nothing after it.
LOSSES: tuple[tuple[str, str, str | None], ...] = (("gap", "channel", None), ("skipped", "status", "partial"))

# Channel 0 carries the connection itself in the classic family.
CONNECTION_CHANNEL = dict.fromkeys(CLASSIC_VERSIONS, "0")
RABBITMQ = "RabbitMQ"  # its product
SESSION_VERSIONS = ("0-10", "1.0")  # their channels carry sessions
MODES = {"confirm.select": "confirm", "tx.select": "tx", "dtx.select": "dtx"}
# A channel on which they are captured is in this mode, even if the request for it is not captured.
PROVES_MODE = {
    "confirm.select-ok": "confirm",
    **dict.fromkeys(("tx.select-ok", "tx.commit", "tx.commit-ok", "tx.rollback", "tx.rollback-ok"), "tx"),
}
TRANSACTION_ENDS = {"tx.commit": "committed", "tx.rollback": "rolled-back"}
# RabbitMQ queue types: method -> the argument that implies the type, and that type (None: the value of the argument).
QUEUE_TYPES_BY = {"queue.declare": ("x-queue-type", None), "basic.consume": ("x-stream-offset", "stream")}
COUNTS_MESSAGES, DELETES_QUEUE = ("queue.declare-ok",), ("queue.delete",)

# Messages and their settlement.
OPERATIONS = {
    "basic.publish": "publish",
    "basic.deliver": "deliver",
    "basic.get-ok": "get",
    "basic.return": "return",
    # 0-8, 0-9
    "file.publish": "publish",
    "file.deliver": "deliver",
    "file.return": "return",
    "stream.publish": "publish",
    "stream.deliver": "deliver",
    "stream.return": "return",
}
DELIVERIES = ("deliver", "get")  # of these operations
PUBLISHING, DELIVERING = (
    tuple(name for name, operation in OPERATIONS.items() if operation in operations)
    for operations in (("publish",), DELIVERIES)
)
BODY_FRAMES, HEADER_FRAMES = ("body", "oob-body"), ("header", "oob-header")
TRANSFERS = ("transfer", "message.transfer")  # by the client a publish, by the server a delivery
OPENS_LINK = {"basic.consume": "consumer", "file.consume": "consumer", "stream.consume": "consumer"}
NEEDS_NO_ACK = ("stream.consume",)  # its class has no acknowledgements
NAMES_LINK = ("attach",)  # its argument `name`
COMMANDS_TO = ("transfer",)  # may carry a command to a transaction coordinator, and is answered then

# (method, sender, requeue or None for either) -> outcome of the messages that the other side had sent.
SETTLEMENTS = {
    ("basic.ack", "client", None): "acked",
    ("basic.ack", "server", None): "confirmed",
    ("basic.nack", "client", True): "requeued",
    ("basic.nack", "client", False): "rejected",
    ("basic.nack", "server", None): "nacked",
    ("basic.reject", "client", True): "requeued",
    ("basic.reject", "client", False): "rejected",
    ("file.ack", "client", None): "acked",
    ("file.reject", "client", True): "requeued",
    ("file.reject", "client", False): "rejected",
    ("basic.recover", "client", None): "requeued",
    ("basic.recover-async", "client", None): "requeued",
    ("basic.recover-sync", "client", None): "requeued",
    ("basic.recover-ok", "server", None): "requeued",
    ("basic.recover-sync-ok", "server", None): "requeued",
}
# Without a tag: they settle all deliveries that are outstanding on the channel. A reply settles those that the server
# sent before it had read the request.
SETTLES_ALL = (
    "basic.recover", "basic.recover-async", "basic.recover-sync", "basic.recover-ok", "basic.recover-sync-ok",
)  # fmt: skip
# Outcomes of messages that never reached a queue (REFUSED_BY_QUEUE: unless a full queue dead-lettered them), and of
# those that return to one.
REFUSED_BY_QUEUE = ("nacked", "rejected")
UNROUTED = ("returned", "released", "modified", "aborted")
REFUSED = (*REFUSED_BY_QUEUE, *UNROUTED)
REQUEUED = ("requeued", "released", "modified", "unsettled", "unknown")
REDELIVERED_FLAG_OPTIONAL_AFTER = "released"  # 0-10, 1.0: a redelivery after this outcome need not be marked

# Methods that have the name of a request, but no reply in their version: (version, class id, method id) -> the method
# that does the same without one.
WITHOUT_REPLY = {("0-9", 60, 100): "basic.recover-async"}

# Stages of a connection in order; its state is the last one that it reached.
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
REACHED_BY_BOTH = {"open": "open", "close": "closed"}  # once both sides have sent it
OPENED = ("connection.open-ok",)
CLOSES_CONNECTION = ("connection.close", "close")
CLOSES_CHANNEL = ("channel.close", "end", "session.detach", "session.detached")
BLOCKS = {"connection.blocked": True, "connection.unblocked": False}
# 1.0: a window of 0 blocks a session, as long as its side does not announce another one, or ends the session.
ANNOUNCES_WINDOW, ENDS_WINDOW, WINDOW = ("begin", "flow"), ("end",), "incoming_window"
# 1.0 security part, 5.3.3.6: sasl-code, from 1 on
SASL_CODES = ("auth", "sys", "sys-perm", "sys-temp")
# Steps of the handshake: (start, end), each as (method or frame type, sender).
STEPS = {
    "start_latency_ns": (((HEADER, "client"),), (("connection.start", "server"), (HEADER, "server"))),
    "login_latency_ns": (
        (("connection.start-ok", "client"), ("sasl-init", "client")),
        (("connection.tune", "server"), ("sasl-outcome", "server")),
    ),
    "open_latency_ns": ((("connection.open", "client"),), (("connection.open-ok", "server"),)),
}

# Arguments that are columns of tables -> their types.
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
# In one pass; the name is that of a link.
READ_ARGUMENTS = {**HOT_ARGUMENTS, "name": "string", "global": "boolean", "active": "boolean"}


@lru_cache
def replies() -> dict[str, tuple[str, ...]]:
    """Request -> its possible replies, in any version of the classic family."""
    found: dict[str, set[str]] = {}
    for method in (method for version in CLASSIC_VERSIONS for method in methods(version) if method.replies):
        found.setdefault(method.name, set()).update(method.replies)
    return {name: tuple(sorted(answers)) for name, answers in sorted(found.items())}


@lru_cache
def request_groups() -> dict[str, str]:
    """Method -> its request/reply group. Requests that share a reply are one group, and are answered in order."""
    group: dict[str, str] = {}
    for request, answers in replies().items():
        joined = {group.get(name, name) for name in (request, *answers)}
        first = min(joined)
        group.update(dict.fromkeys((request, *answers), first))
        group.update({name: first for name, old in group.items() if old in joined})
    return group


# Texts by number, from 1 on, in the order in which `codec.conversation.channel_state` and
# `codec.conversation.settlement` name the first of them.
TEXTS = {
    "operations": ("publish", "deliver", "get", "return"),
    "modes": ("confirm", "tx", "dtx"),
    "transactions": ("committed", "rolled-back"),
    "outcomes": tuple(dict.fromkeys(["unsettled", "unknown", "presettled", *SETTLEMENTS.values()])),
    "kinds": tuple(dict.fromkeys(OPENS_LINK.values())),
}


# Fields of ROLE that are 1 for these methods.
FLAGS = {
    "opens_channel": ("channel.open",),
    "opened_channel": ("channel.open-ok",),
    "closes_channel": ("channel.close",),
    "closed_channel": ("channel.close-ok",),
    "declares": ("queue.declare",),
    "deletes": ("queue.delete",),
    "closes_link": ("basic.cancel", "file.cancel", "stream.cancel"),
    "prefetch": ("basic.qos", "file.qos", "stream.qos"),
    "flows": ("channel.flow",),
    "settles_all": SETTLES_ALL,
    "outside_transactions": SETTLES_ALL,
    "closes_connection": CLOSES_CONNECTION,
}


@lru_cache
def method_roles() -> dict[str, dict[str, int]]:
    """Methods of the classic family -> fields of `codec.conversation.channel_state.ROLE`."""
    groups = request_groups()
    numbers = {group: number for number, group in enumerate(sorted(set(groups.values())), start=1)}

    def number(kind: str, text: str | None) -> int:
        return 0 if text is None else TEXTS[kind].index(text) + 1

    return {
        name: {
            "operation": number("operations", OPERATIONS.get(name)),
            "reply_group": numbers.get(groups.get(name, ""), 0),
            "is_request": int(name in replies()),
            "is_reply": int(name in groups and name not in replies()),
            "mode": number("modes", MODES.get(name)),
            "proves_mode": number("modes", PROVES_MODE.get(name)),
            "ends_transaction": number("transactions", TRANSACTION_ENDS.get(name)),
            "opens_link": number("kinds", OPENS_LINK.get(name)),
            **{flag: int(name in names) for flag, names in FLAGS.items()},
        }
        for name in sorted({*groups, *OPERATIONS, *(method for method, _, _ in SETTLEMENTS)})
    }
