"""Table connections: what the frames of a connection say of it, as workers are told.

Transport facts come with the connection's end, frames are counted, and what the two sides say of themselves is read
from the few methods of the connection class: which argument is which column, what is a step of the handshake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.tables.methods import coordination
from pipeline.tables.roles import (
    BEAT_FRAMES,
    BEAT_METHODS,
    CLOSES_CONNECTION,
    DELIVERIES,
    HEADER,
    METHOD_FRAMES,
    OPENED,
    OPERATIONS,
    REACHED_BY_BOTH,
    REACHES_STAGE,
    SPANS,
    STAGES,
    TRANSFERS,
)
from pipeline.tables.statements import NAMES, STATEMENTS, Stated

if TYPE_CHECKING:
    from udfs.decode.counting import Counts
    from udfs.tables.handshakes import Handshake, Place

AGREED = ("channel_max", "frame_max", "heartbeat_s")
STATED_BY_BOTH = ("1.0",)  # versions in which each side states its limits, and the smaller one holds
BLOCKS = {"connection.blocked": True, "connection.unblocked": False}
# Steps of the handshake: (what begins it, what ends it), as (method, or type of the frame, sender).
STEPS = {
    "start_latency_ns": (((HEADER, "client"),), (("connection.start", "server"), (HEADER, "server"))),
    "login_latency_ns": (
        (("connection.start-ok", "client"), ("sasl-init", "client")),
        (("connection.tune", "server"), ("sasl-outcome", "server")),
    ),
    "open_latency_ns": ((("connection.open", "client"),), (("connection.open-ok", "server"),)),
}


def frame_counts() -> Counts:
    """What workers count."""
    from udfs.decode.counting import Counts

    published, delivered = (
        tuple(name for name, operation in OPERATIONS.items() if operation in chosen)
        for chosen in (("publish",), DELIVERIES)
    )
    beats = (*BEAT_FRAMES, *BEAT_METHODS)
    return Counts((*SPANS, HEADER), METHOD_FRAMES, beats, published, delivered, TRANSFERS, coordination())


def handshake() -> Handshake:
    """What workers read of handshakes."""
    from udfs.tables.handshakes import Handshake, Statement

    return Handshake(
        {name: Statement(kind, tuple(map(_place, stated))) for name, (kind, stated) in STATEMENTS.items()},
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


def _place(stated: Stated) -> Place:
    from udfs.tables.handshakes import Place

    return Place(*stated)
