"""Rows of table methods, without replies; which frames trackers read; queues that are streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.conversation.session_state import (
    NAMES,
    REQUEST_NAMES,
    SETTLES,
    VERSIONS,
)
from codec.tables import LONG, STRING, table_of
from udfs.arrow.arrays import (
    from_spark,
    indices_where,
    is_in,
    is_valid,
    take,
    to_mask,
)
from udfs.arrow.fields import Fields, fields, values_of
from udfs.arrow.types import to_schema
from udfs.conversation import roles
from udfs.conversation.frame_batch import Flags, FrameBatch
from udfs.workers.worker_config import FACT

# Columns that are filled from the reply.
REPLY = ("reply_frame_no", "reply_name", "reply_latency_ns")


def method_rows(frames: FrameBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(Rows of table methods that are no requests, rows of requests), both with `schema`. The columns REPLY are
    null."""
    of_frames = {name: frames[name] for name in schema.names if name in frames.rows.schema.names}
    of_frames["transaction_command"] = frames.transaction_commands
    of_arguments = {name: frames.arguments[name] for name in roles.HOT_ARGUMENTS if name in schema.names}
    names_link, nothing = frames.are("name", *roles.NAMES_LINK)[frames.argument_rows], pa.scalar(None, pa.string())
    of_arguments["link_name"] = (
        pc.if_else(pa.array(names_link), frames.arguments["name"], nothing)
        if names_link.any()
        else pa.nulls(len(names_link), pa.string())
    )
    may_be = frames.are("name", *roles.replies(), *REQUEST_NAMES) | is_valid(frames.transaction_commands)
    may_be |= frames.requested_exchange > 0

    def rows(mask: Flags) -> pa.RecordBatch:
        at = np.flatnonzero(mask)
        columns = {name: take(column, pa.array(at)) for name, column in of_frames.items()}
        at = pa.array(frames.argument_at[at])
        columns |= {name: take(column, at) for name, column in of_arguments.items()}
        return to_schema(columns, schema, REPLY)

    return rows(frames.are_methods & ~may_be), rows(frames.are_methods & may_be)


METHOD_COLUMNS = ("connection_id", "ts_ns", "name", "arguments")
# Queues that are streams, by name; and of queues that may be streams, how many messages they had at a time, as text:
# name, NUL, nanoseconds, NUL, number (DELETED: it was deleted).
STREAMS = table_of("streams", ("connection_id", LONG), ("queue", STRING))
DELETED = -1
CONDITIONS = ("if_unused", "if_empty")  # the queue may be left


def streams_of(methods: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of METHOD_COLUMNS -> STREAMS."""
    found = [_declared_streams(methods), _counted_messages(methods)]
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0] if any(map(len, found)) else found[0]


def _declared_streams(methods: pa.RecordBatch) -> pa.RecordBatch:
    indices = indices_where(is_in(methods["name"], *roles.QUEUE_TYPES_BY))
    if not len(indices):
        return pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64()), pa.nulls(0, pa.string())], names=STREAMS.names)
    types = queue_types(methods, indices, passive=True)
    queues = fields(values_of(methods["arguments"].take(indices)), {"queue": "string"})["queue"]
    at = indices_where(is_in(types, "stream") & to_mask(pc.not_equal(queues, "")))
    connections = methods["connection_id"].take(indices.take(at)).cast(pa.int64())
    return pa.RecordBatch.from_arrays([connections, queues.take(at)], names=STREAMS.names)


def _counted_messages(methods: pa.RecordBatch) -> pa.RecordBatch:
    """Of each connection and queue the first count, and deletions."""
    indices = indices_where(is_in(methods["name"], *roles.COUNTS_MESSAGES, *roles.DELETES_QUEUE))
    rows = methods.take(indices)
    wanted = {"queue": "string", "message_count": "bigint", **dict.fromkeys(CONDITIONS, "boolean")}
    arguments = fields(values_of(rows["arguments"]), wanted)
    deleted = pa.array(is_in(rows["name"], *roles.DELETES_QUEUE))
    conditional = pc.or_(*(arguments[name].fill_null(False) for name in CONDITIONS))
    count = pc.if_else(deleted, pc.if_else(conditional, None, DELETED), arguments["message_count"])
    table = pa.table(
        {
            "connection_id": rows["connection_id"].cast(pa.int64()),
            "queue": arguments["queue"],
            "count": count,
            "deleted": deleted,
            "ts_ns": rows["ts_ns"].cast(pa.int64()),
        }
    )
    table = table.filter(pc.and_(pc.not_equal(table["queue"], ""), table["count"].is_valid()))
    keys = ["connection_id", "queue", "count", "deleted"]
    facts = table.group_by(keys).aggregate([("ts_ns", "min")])
    parts = (facts["queue"], facts["ts_ns_min"].cast(pa.string()), facts["count"].cast(pa.string()))
    texts = pc.binary_join_element_wise(*parts, FACT)
    columns = [column.combine_chunks() for column in (facts["connection_id"], texts)]
    return pa.RecordBatch.from_arrays(columns, names=STREAMS.names)


def find_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`streams_of` for `mapInArrow`."""
    return (streams_of(from_spark(batch)) for batch in batches if batch.num_rows)


def queue_types(frames: pa.RecordBatch, indices: pa.Int64Array, passive: bool) -> pa.Array:
    """The types of queues that arguments of `indices` rows imply; `passive`: those of passive declarations, too."""
    found, names = pa.nulls(len(indices), pa.string()), frames["name"].take(indices)
    if not is_in(names, *roles.QUEUE_TYPES_BY).any():
        return found
    for name, (argument, implied_type) in roles.QUEUE_TYPES_BY.items():
        at = np.flatnonzero(is_in(names, name))
        if len(at):
            values = values_of(frames["arguments"].take(indices.take(pa.array(at))))
            declared = Fields(values, {"passive": "boolean"}, ("arguments",))
            kind = "string" if implied_type is None else "variant"
            types = fields(declared.inside("arguments"), {argument: kind})[argument]
            if implied_type is not None:
                types = pc.if_else(is_valid(types), implied_type, None)
            if not passive:  # such a declaration changes nothing
                types = pc.if_else(to_mask(declared.column("passive")), None, types)
            mask = np.zeros(len(indices), bool)
            mask[at] = True
            found = pc.replace_with_mask(found, pa.array(mask), types.cast(pa.string()))
    return found


def method_frames(frames: FrameBatch) -> Flags:
    """True for the frames that the channel tracker reads: methods of the classic family with a role, and where frames
    of a sender may be missing."""
    method = frames.are_methods & frames.are("name", *roles.method_roles()) & frames.have("channel")
    return (method | frames.lost) & ~frames.are("version", *roles.SESSION_VERSIONS)


def performative_frames(frames: FrameBatch) -> tuple[Flags, Flags]:
    """True for the frames that the session tracker reads: performatives, controls and commands that it knows, and
    losses; and for those that hide something: a settlement may be missing."""
    of_version = frames.are("version", *VERSIONS)
    hides, named = frames.lost, np.zeros(len(frames), bool)
    if of_version.any():
        hides = frames.lost | _partial_settlements(frames)
        named = frames.are("name", *NAMES) & frames.have("channel") & ~frames.unfinished
    # A loss without a version counts if other frames of the connection have one.
    return (of_version & (named | hides)) | (~frames.have("version") & frames.lost), hides


def _partial_settlements(frames: FrameBatch) -> Flags:
    """True for frames that are not whole and may settle something."""
    partial = frames.have("status") & ~frames.are("status", "ok")
    if not partial.any():
        return partial
    spans = frames.are("frame_type", *(kind for kind, _, _ in roles.LOSSES))
    may_settle = np.where(frames.have("name"), frames.are("name", *SETTLES), ~frames.have("arguments"))
    found: Flags = partial & may_settle & ~spans & frames.have("frame_type")
    return found
