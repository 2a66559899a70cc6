"""The configuration of the workers: the data of this folder as one value.

Workers make the tables in WORKER_TABLES from the frames of one connection (`udfs.tables`). They know no method by name;
here is what they need for it: arguments and properties that become columns, steps of the handshake, replies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipeline.schemas import MESSAGES, METHODS, TABLES, WORKER_TABLES
from pipeline.tables.attributes import (
    ATTRIBUTES,
    CLASSIC,
    NAMES,
    NOT_0_10,
    NOT_1_0,
    NOT_CLASSIC,
    PERSISTENT,
    V0_10,
    V1_0,
    ArgumentPath,
)
from pipeline.tables.roles import (
    BEAT_FRAMES,
    BEAT_METHODS,
    CLASSIC_VERSIONS,
    CLOSES_CONNECTION,
    COMMANDS_TO,
    COORDINATES,
    DELIVERIES,
    HEADER,
    HOT_ARGUMENTS,
    METHOD_FRAMES,
    NAMES_LINK,
    OPENED,
    OPERATIONS,
    QUEUE_TYPES_BY,
    REACHED_BY_BOTH,
    REACHES_STAGE,
    SPANS,
    STAGES,
    TRANSFERS,
    method_roles,
    replies,
)

if TYPE_CHECKING:
    from udfs.conversation.contents import ContentsConfig
    from udfs.conversation.methods import Commands, Methods, Streams
    from udfs.decode.counting import Counts
    from udfs.tables.config import Config
    from udfs.tables.handshakes import Handshake, Place

AGREED = ("channel_max", "frame_max", "heartbeat_s")
STATED_BY_BOTH = ("1.0",)  # versions in which each side announces its limits, and the smaller one applies
BLOCKS = {"connection.blocked": True, "connection.unblocked": False}
# Steps of the handshake: (start, end), each as (method or frame type, sender).
STEPS = {
    "start_latency_ns": (((HEADER, "client"),), (("connection.start", "server"), (HEADER, "server"))),
    "login_latency_ns": (
        (("connection.start-ok", "client"), ("sasl-init", "client")),
        (("connection.tune", "server"), ("sasl-outcome", "server")),
    ),
    "open_latency_ns": ((("connection.open", "client"),), (("connection.open-ok", "server"),)),
}


def frame_counts() -> Counts:
    """Which frames workers count."""
    from udfs.decode.counting import Counts

    published, delivered = (
        tuple(name for name, operation in OPERATIONS.items() if operation in chosen)
        for chosen in (("publish",), DELIVERIES)
    )
    beats = (*BEAT_FRAMES, *BEAT_METHODS)
    return Counts((*SPANS, HEADER), METHOD_FRAMES, beats, published, delivered, TRANSFERS, coordination())


def handshake() -> Handshake:
    """Configuration of the handshake columns of table connections."""
    from udfs.tables.handshakes import Handshake, Statement

    return Handshake(
        {name: Statement(kind, tuple(map(_place, stated))) for name, (kind, stated) in ATTRIBUTES.items()},
        STAGES,
        REACHES_STAGE,
        REACHED_BY_BOTH,
        OPENED,
        CLOSES_CONNECTION,
        BLOCKS,
        STEPS,
        NAMES,
        AGREED,
        STATED_BY_BOTH,
    )


def _place(stated: ArgumentPath) -> Place:
    from udfs.tables.handshakes import Place

    return Place(*stated)


READ_ARGUMENTS = {**HOT_ARGUMENTS, "name": "string"}  # in one pass; the name is that of a link


def methods_config() -> Methods:
    """Configuration of table methods."""
    from udfs.conversation.methods import Methods

    return Methods(METHODS, METHOD_FRAMES, NAMES_LINK, tuple(replies()), coordination())


def streams() -> Streams:
    """Configuration for finding queues that are streams."""
    from udfs.conversation.methods import Streams

    return Streams(QUEUE_TYPES_BY)


def coordination() -> Commands:
    """Configuration for finding commands to transaction coordinators."""
    from udfs.conversation.methods import Commands

    return Commands(COMMANDS_TO, COORDINATES)


BODY_FRAMES = ("body", "oob-body")
# Arguments of the method of a message that are columns of the table.
CLASSIC_ARGUMENTS = ("exchange", "routing_key", "redelivered", "mandatory", "immediate")


def messages_config(payload: bool) -> tuple[ContentsConfig, ...]:
    """Configuration of table messages, for each family of versions."""
    from udfs.conversation.contents import ContentsConfig

    return tuple(
        ContentsConfig(MESSAGES, versions, and_unknown, BODY_FRAMES, arguments, properties, absent, PERSISTENT, payload)
        for versions, and_unknown, arguments, properties, absent in (
            (CLASSIC_VERSIONS, True, CLASSIC_ARGUMENTS, CLASSIC, NOT_CLASSIC),
            (("0-10",), False, (), V0_10, NOT_0_10),
            (("1.0",), False, ("handle",), V1_0, NOT_1_0),
        )
    )


def config(payload: bool = False, tables: Collection[str] = WORKER_TABLES) -> Config:
    """The configuration for `tables`; `payload`: include the bytes of content bodies."""
    # Imported here: the kernels behind it take a second to load, and reading written tables needs none.
    from udfs.tables.config import Config

    return Config(
        {name: TABLES[name] for name in WORKER_TABLES},
        method_roles(),
        messages_config(payload),
        methods_config(),
        frame_counts(),
        handshake(),
        READ_ARGUMENTS,
        payload,
        frozenset(tables),
    )
