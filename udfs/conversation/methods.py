"""Rows of table methods, without replies; commands to transaction coordinators; queues that are streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import LongType, StringType, StructField, StructType

from codec.amqp.classic.tables import CLASSIC_VERSIONS
from codec.amqp.notes import CAPTURED_LATE, PEER_LATE
from codec.conversation.sessions.semantics import ASKS, IN_SEGMENTS, NAMES, REQUEST_NAMES, SETTLES, VERSIONS
from codec.memory import fixed
from codec.sides import SIDES
from udfs import roles
from udfs.arrow.fields import Fields, fields, inside, values_of
from udfs.arrow.rows import (
    from_spark,
    is_among,
    is_noted,
    is_there,
    numbers_of,
    one_of,
    picked,
    places_where,
    taken,
    truth_of,
)
from udfs.arrow.types import bound

# Columns that are filled from the reply.
REPLY = ("reply_frame_no", "reply_name", "reply_latency_ns")


def method_rows(
    frames: pa.RecordBatch, arguments: Mapping[str, pa.Array], schema: pa.Schema
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """`frames` and fields of their `arguments` (READ_ARGUMENTS) -> (rows of table methods that are no requests, rows of
    requests), both with `schema`. The columns REPLY are null."""
    chosen = is_among(frames["frame_type"], *roles.METHOD_FRAMES)
    names_link = pa.array(is_among(frames["name"], *roles.NAMES_LINK))
    link_name = pc.if_else(names_link, arguments["name"], pa.scalar(None, pa.string()))
    known = {name: frames[name] for name in frames.schema.names} | {**arguments, "link_name": link_name}
    known |= {"name": frames["name"], "transaction_command": transaction_commands(frames)}
    may_be = is_among(frames["name"], *roles.replies(), *REQUEST_NAMES)
    requests = chosen & (may_be | is_there(known["transaction_command"]) | _asks(frames))

    def rows(places: pa.Int64Array) -> pa.RecordBatch:
        columns = {name: taken(known[name], places) for name in schema.names if name not in REPLY}
        return bound(columns, schema, REPLY)

    return rows(places_where(chosen & ~requests)), rows(places_where(requests))


def transaction_commands(frames: pa.RecordBatch) -> pa.StringArray:
    """The command to a transaction coordinator of 1.0 in each of `frames` (with `name`, `properties`), or null: it is
    the body of a transfer (4.2, 4.5)."""
    carries = is_among(frames["name"], *roles.COMMANDS_TO)
    if not carries.any():
        return pa.nulls(frames.num_rows, pa.string())
    bodies = inside(values_of(frames["properties"]).taken(np.flatnonzero(carries)), "body")
    kinds = fields(bodies, {"type": "string"})["type"]
    kinds = pc.if_else(one_of(kinds, roles.COORDINATES), kinds, pa.scalar(None, pa.string()))
    return picked(kinds, np.where(carries, np.cumsum(carries) - 1, -1))


def _asks(frames: pa.RecordBatch) -> NDArray[np.bool_]:
    """True for the frames of ASKS that ask for a reply."""
    found = np.zeros(frames.num_rows, bool)
    for name, exchanges in ASKS.items():
        at = np.flatnonzero(is_among(frames["name"], name))
        if len(at):
            own = Fields(values_of(frames["arguments"]).taken(at), dict.fromkeys(exchanges, "boolean"))
            found[at] = np.logical_or.reduce([own.numbers(argument, 0) == 1 for argument in exchanges])
    return found


METHOD_COLUMNS = ("connection_id", "name", "arguments")
STREAMS = StructType([StructField("connection_id", LongType()), StructField("queue", StringType())])


def streams_of(methods: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of METHOD_COLUMNS -> STREAMS, queues that are streams."""
    chosen = places_where(is_among(methods["name"], *roles.QUEUE_TYPES_BY))
    if not len(chosen):
        return pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64()), pa.nulls(0, pa.string())], names=STREAMS.names)
    types = queue_types(methods, chosen, passive=True)
    queues = fields(values_of(methods["arguments"].take(chosen)), {"queue": "string"})["queue"]
    at = places_where(is_among(types, "stream") & truth_of(pc.not_equal(queues, "")))
    connections = methods["connection_id"].take(chosen.take(at)).cast(pa.int64())
    return pa.RecordBatch.from_arrays([connections, queues.take(at)], names=STREAMS.names)


def find_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`streams_of` for `mapInArrow`."""
    return (streams_of(from_spark(batch)) for batch in batches if batch.num_rows)


def queue_types(frames: pa.RecordBatch, chosen: pa.Int64Array, passive: bool) -> pa.Array:
    """The types of queues that arguments of `chosen` rows imply; `passive`: those of passive declarations, too."""
    found, names = pa.nulls(len(chosen), pa.string()), frames["name"].take(chosen)
    for name, (argument, implied_type) in roles.QUEUE_TYPES_BY.items():
        at = np.flatnonzero(is_among(names, name))
        if len(at):
            values = values_of(frames["arguments"].take(chosen.take(pa.array(at))))
            declared = Fields(values, {"passive": "boolean"}, ("arguments",))
            kind = "string" if implied_type is None else "variant"
            types = fields(declared.inside("arguments"), {argument: kind})[argument]
            if implied_type is not None:
                types = pc.if_else(is_there(types), implied_type, None)
            if not passive:  # such a declaration changes nothing
                types = pc.if_else(truth_of(declared.column("passive")), None, types)
            mask = np.zeros(len(chosen), bool)
            mask[at] = True
            found = pc.replace_with_mask(found, pa.array(mask), types.cast(pa.string()))
    return found


Flags = NDArray[np.bool_]


def lost(frames: pa.RecordBatch) -> Flags:
    """True where frames may be missing, so that nothing may be paired across."""
    found = np.zeros(frames.num_rows, bool)
    for kind, column, value in roles.LOSSES:
        is_kind, there = is_among(frames["frame_type"], kind), is_there(frames[column])
        found |= is_kind & (~there if value is None else there & ~is_among(frames[column], value))
    return found


def method_frames(frames: pa.RecordBatch) -> Flags:
    """True for the frames that the channel tracker reads: methods of the classic family with a role, and where frames
    of a sender may be missing."""
    method = is_among(frames["frame_type"], *roles.METHOD_FRAMES) & is_among(frames["name"], *roles.method_roles())
    is_read = (method & is_there(frames["channel"])) | lost(frames)
    return is_read & ~is_among(frames["version"], *roles.SESSION_VERSIONS)


def method_marks(frames: pa.RecordBatch) -> dict[str, Flags]:
    """`sender` (1: the server), `loss`, `on_connection`, `peer_late`, `late` of these frames."""
    channel_0 = (numbers_of(frames["channel"]) == 0) & is_there(frames["channel"])
    return {
        "sender": is_among(frames["sender"], SIDES[1]),
        "loss": lost(frames),
        "on_connection": channel_0 & is_among(frames["version"], *CLASSIC_VERSIONS),
        "peer_late": is_noted(frames["notes"], PEER_LATE),
        "late": is_noted(frames["notes"], CAPTURED_LATE),
    }


def performative_frames(frames: pa.RecordBatch) -> tuple[pa.Int64Array, dict[str, NDArray[np.int64]]]:
    """The places of frames that the session tracker reads: performatives, controls and commands that it knows, and
    losses; `loss`, `hides` (a settlement may be missing), `peer_late`, `late` of them."""
    of_version = is_among(frames["version"], *VERSIONS)
    hides = is_lost = lost(frames)
    named = np.zeros(len(is_lost), bool)
    if of_version.any():
        hides = is_lost | _partial_settlements(frames)
        named = is_among(frames["name"], *NAMES) & is_there(frames["channel"]) & ~unfinished(frames)
    # A loss without a version counts if other frames of the connection have one.
    at = np.flatnonzero((of_version & (named | hides)) | (~is_there(frames["version"]) & is_lost))
    marks = {
        "loss": is_lost,
        "hides": hides,
        "peer_late": is_noted(frames["notes"], PEER_LATE),
        "late": is_noted(frames["notes"], CAPTURED_LATE),
    }
    return pa.array(at), {name: fixed(mark[at].astype(np.int64)) for name, mark in marks.items()}


def unfinished(frames: pa.RecordBatch) -> Flags:
    """True for frames of controls and commands of 0-10 that continue in the next frame, which has the arguments."""
    begun = is_among(frames["version"], *IN_SEGMENTS) & is_among(frames["frame_type"], *roles.METHOD_FRAMES)
    return begun & is_among(frames["status"], "ok") & ~is_there(frames["arguments"])


def _partial_settlements(frames: pa.RecordBatch) -> Flags:
    """True for frames that are not whole and may settle something."""
    partial = is_there(frames["status"]) & ~is_among(frames["status"], "ok")
    spans = is_among(frames["frame_type"], *(kind for kind, _, _ in roles.LOSSES))
    may_settle = np.where(is_there(frames["name"]), is_among(frames["name"], *SETTLES), ~is_there(frames["arguments"]))
    found: Flags = partial & may_settle & ~spans & is_there(frames["frame_type"])
    return found
