"""Rows of tables methods, messages, channels and links from the frames of connections.

    conversation = Conversation(config)
    for table, rows in conversation.feed(frames): ...
    for table, rows in conversation.finish(): ...

Rows are yielded once they are final: a message when it is settled, a request when it is answered, else when their
connection ends. A connection ends where the frames of the next one begin; with `keep` only when the caller ends it, who
can also save it and restore it elsewhere:

    for table, rows in conversation.settle(): ...      # rows that are final
    conversation.save(ids, writer)                      # they stay
    for table, rows in conversation.end(ids): ...      # they have ended
    Conversation(config, keep=True).restore(ids, reader)

Work is done once per batch of frames, whatever the number of connections in it. Memory follows what is outstanding, up
to `Limits.outstanding_messages` of a connection; rows that wait are in a file when they are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.conversation.channel_outcomes import final_messages, without_oldest
from codec.conversation.channel_state import EVENT, INCARNATION, MAP_CHANNEL_SHIFT, MAP_INCARNATION_SHIFT, TRANSACTED
from codec.conversation.settlement import Frames, Settled
from codec.conversation.states import blank, find_ids, group_ids
from codec.packing import Reader, Writer
from codec.tables import families
from udfs.arrow.arrays import (
    Index,
    combine_chunks,
    concat_rows,
    index_in,
    indices_where,
    is_in,
    is_valid,
    take_or_null,
    timestamps,
    to_int64,
    with_columns,
)
from udfs.arrow.fields import fields, hashed, inside, values_of
from udfs.arrow.spill_files import Spool
from udfs.arrow.types import arrow_schema, to_schema
from udfs.conversation.channels import REPLIES, STALL, ChannelTracker, Records
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.messages import Contents
from udfs.conversation.methods import REPLY, method_rows
from udfs.conversation.roles import TEXTS
from udfs.conversation.session_rows import OUTCOMES
from udfs.conversation.sessions import SessionTables, SessionTracker
from udfs.conversation.tracker_states import ConnectionRecords, restore_table, save_table
from udfs.tables.handled import Handled
from udfs.tables.settled import (
    ENDS,
    RETURNS,
    PendingOutcomes,
    Returns,
    ends_of,
    unknown_ends,
)
from udfs.tables.stalls_table import Closings, Oddities, Stalls, unanswered
from udfs.workers.worker_config import Config

# Tables channels and links, of versions whose channels carry no sessions: from records of the channel tracker.


COUNTED = ("confirmed", "nacked", "acked", "rejected", "requeued")  # outcomes that are columns
MAP_MASK = (1 << MAP_INCARNATION_SHIFT) - 1  # of an incarnation, in the number of an unsettled map
COUNT = blank("connection incarnation outcome count").dtype
# Columns that only channels with sessions have.
OF_SESSIONS = ("session_name", "remote_channel", "incoming_window", "outgoing_window")
OF_SESSION_LINKS = (
    "handle", "address", "snd_settle_mode", "rcv_settle_mode", "flow_mode", "credit", "no_credit_ns",
    "acquire_mode", "distribution_mode", "filters", "filters_requested",
)  # fmt: skip


def counted(counts: NDArray[np.void], settled: Settled) -> NDArray[np.void]:
    """`counts` (COUNT) with what became of more messages; publishes in transactions are not counted."""
    mask = (settled.outcome > 0) & (settled.map_no & MAP_MASK != TRANSACTED)
    if not mask.any():
        return counts
    more = np.zeros(int(mask.sum()), COUNT)
    more["connection"], more["outcome"] = settled.connection[mask], settled.outcome[mask]
    more["incarnation"], more["count"] = settled.map_no[mask] >> MAP_INCARNATION_SHIFT, 1
    whole = np.concatenate([counts, more])
    alike = group_ids(whole["connection"], whole["incarnation"], whole["outcome"])
    found = whole[np.unique(alike, return_index=True)[1]]
    found["count"] = 0
    np.add.at(found["count"], alike, whole["count"])
    return found


def incarnation_of(records: Records) -> NDArray[np.int64]:
    """The numbers of incarnations, which are those of their unsettled maps without the last bits."""
    shift = MAP_CHANNEL_SHIFT - MAP_INCARNATION_SHIFT
    number: NDArray[np.int64] = (records["channel"] << shift) | records["incarnation"]
    return number


def maps_of(records: Records) -> NDArray[np.int64]:
    """The numbers of all unsettled maps of some incarnations."""
    numbers = (incarnation_of(records) << MAP_INCARNATION_SHIFT)[:, None] + np.arange(MAP_MASK + 1)
    return numbers.reshape(-1)


def channel_columns(incarnations: Records, counts: NDArray[np.void], tracker: ChannelTracker) -> dict[str, pa.Array]:
    """Columns of table channels: one row for each of `incarnations`; `counts` of their messages."""
    rows = tracker.to_arrow("incarnation", incarnations)
    connections = np.concatenate([incarnations["connection"], counts["connection"]])
    number = group_ids(connections, np.concatenate([incarnation_of(incarnations), counts["incarnation"]]))
    own, of_counts = np.split(number, [len(incarnations)])
    sums = np.zeros((len(TEXTS["outcomes"]) + 1, len(number)), np.int64)
    np.add.at(sums, (counts["outcome"], of_counts), counts["count"])
    columns = {name: rows[name] for name in rows.schema.names if not name.endswith("_ns")}
    columns |= {name: pa.array(sums[TEXTS["outcomes"].index(name) + 1][own]) for name in COUNTED}
    return {
        **columns,
        "opened_ts": timestamps(rows["opened_ns"]),
        "closed_ts": timestamps(rows["closed_ns"]),
        "mode": pc.coalesce(rows["mode"], "none"),
        "unsettled": pa.array(incarnations["opened"] - sums.sum(axis=0)[own]),
    }


def link_columns(links: Records, tracker: ChannelTracker) -> dict[str, pa.Array]:
    """Columns of table links: one row for each of `links`."""
    rows = tracker.to_arrow("link", links)
    by_server = pc.equal(rows["closed_by"], "server")
    why = pc.binary_join_element_wise(rows["closing_name"], "by the server", " ")
    columns = {name: rows[name] for name in rows.schema.names if not name.endswith("_ns") and "clos" not in name}
    return {
        **columns,
        "kind": pc.coalesce(rows["kind"], "consumer"),
        "opened_ts": timestamps(rows["opened_ns"]),
        "closed_ts": timestamps(rows["closed_ns"]),
        "error": pc.if_else(by_server, why, pa.scalar(None, pa.string())),
    }


Rows = Iterator[tuple[str, pa.RecordBatch]]
WAITING_BYTES = 32 << 20  # of rows or of events, above which final rows are sought
# Columns that tables of sessions do not have.
NOT_OF_SESSIONS = {"channels": ("prefetch_count", "prefetch_size"), "links": ()}
# A queue that a management request declares; `queue`: hash of its name, `kind`: 1-based index in QUEUE_TYPES,
# `request`: hash of its connection and message-id, `accepted`: 1 once the reply says so.
DECLARED = blank("connection queue kind ts_ns request accepted").dtype
FIRST_REFUSAL = 400  # status of a reply
QUEUE_TYPES = ("classic", "quorum", "stream")
MICROSECOND_NS = 1000
Integers = NDArray[np.int64]
NO_CONNECTIONS = np.zeros(0, np.int64)


class Conversation:
    """Follows connections; see the module's text."""

    def __init__(
        self, config: Config, keep: bool = False, stalls: Stalls | None = None, odd: Oddities | None = None
    ) -> None:
        self._keep, self._stalls = keep, stalls or Stalls(arrow_schema(config.schemas["stalls"]))
        self._oddities = odd or Oddities(arrow_schema(config.schemas["oddities"]))
        self._with_methods = bool({"methods", "stalls"} & config.tables)
        self._closings = Closings()
        self._channel_tracker, self._sessions = ChannelTracker(keep), SessionTracker(keep)
        self._schemas = {name: arrow_schema(schema) for name, schema in config.schemas.items()}
        self._contents = [Contents(family, self._schemas["messages"], config.payload) for family in families()]
        self._messages, self._requests = Waiting("first_frame_no"), Waiting("content_frame_no", "frame_no")
        self._returns, self._handled = Returns(), Handled()
        self.open_ids = NO_CONNECTIONS  # connections that may have more frames, in order
        self._events = ConnectionRecords(EVENT)
        self._incarnations = ConnectionRecords(INCARNATION)  # incarnations that are over
        self._counts = ConnectionRecords(COUNT)
        self._declared = ConnectionRecords(DECLARED)
        self._records = (
            self._events, self._incarnations, self._counts, self._returns.items, self._declared,
            self._handled.deliveries, self._handled.settled, self._handled.cancels, self._closings.records,
            self._closings.losses,
        )  # fmt: skip
        self._known = PendingOutcomes()  # what became of messages that are not whole yet
        self._replies: pa.Table | None = None
        self._event_bytes = self._events_left = self._sessions_left = 0
        self.over_limit = set[int]()  # connections in which too much was outstanding, until their facts are known

    def feed(self, frames: FrameBatch) -> Rows:
        """Take frames, at least one -> table, rows."""
        connections = frames.cells("connection_id")
        open_ids = np.union1d(self.open_ids, connections) if self._keep else connections[-1:].copy()
        if self._with_methods:
            methods, requests = method_rows(frames, self._schemas["methods"])
            yield "methods", methods
            self._requests.add(requests)
            self._closings.add(frames)
        self._handled.add_cancels(frames)
        found = self._channel_tracker.feed(frames)
        own = self._channel_tracker.to_arrow("message", found["message"]) if "message" in found else None
        of_sessions = self._sessions.feed(frames)
        self._oddities.add(self._sessions.take_oddities())
        messages = (
            (contents, rows)
            for contents in self._contents
            for rows in contents.feed(frames, contents.own(own, of_sessions), open_ids)
        )
        yield from self._take(found, messages)
        # Connections follow one another: whether another one came before the last one, here or in an earlier batch.
        ended = not self._keep and (connections[0] != open_ids[0] or bool((self.open_ids != open_ids).any()))
        if ended or self._should_release():
            yield from self._release_final_rows(open_ids)
        self.open_ids = open_ids

    def finish(self) -> Rows:
        """End all connections."""
        self._sessions.finish()
        yield from self.end(self.open_ids)

    def end(self, ids: Integers) -> Rows:
        """End these connections: they have no more frames."""
        open_ids = np.setdiff1d(self.open_ids, ids)
        messages = ((contents, rows) for contents in self._contents for rows in contents.end(open_ids))
        yield from self._take(self._channel_tracker.end(ids), messages)
        yield from self._release_final_rows(open_ids)

    def settle(self) -> Rows:
        """Yield the rows that are final."""
        if len(self.open_ids):
            yield from self._release_final_rows(self.open_ids)

    def save(self, ids: Integers, writer: Writer) -> None:
        """Write the states of these connections, which stay; call `settle` before."""
        self._channel_tracker.save(ids, writer)
        self._sessions.save(ids, writer)
        for records in self._records:
            records.save(ids, writer)
        gave_up = np.isin(ids, list(self.over_limit)).astype(np.uint8)
        writer.put(gave_up, np.ones(len(ids), np.int64))
        waiting = (self._messages, self._requests)
        tables = [rows.rows(schema) for rows, schema in zip(waiting, self.schemas, strict=False)]
        tables += [*self._known, self._replies]
        tables += [table for contents in self._contents for table in contents.save()]
        for table, schema in zip(tables, self.schemas, strict=True):
            save_table(table, schema, ids, writer)

    def restore(self, ids: Integers, reader: Reader) -> None:
        """Add connections that `save` wrote."""
        self.open_ids = np.union1d(self.open_ids, ids)
        self._channel_tracker.restore(ids, reader)
        self._sessions.restore(ids, reader)
        for records in self._records:
            records.restore(reader)
        gave_up = reader.take(np.dtype("u1"), np.ones(len(ids), np.int64)).astype(bool)
        self.over_limit |= set(ids[gave_up].tolist())
        tables = [restore_table(schema, reader) for schema in self.schemas]
        for waiting, table in zip((self._messages, self._requests), tables, strict=False):
            for batch in table.combine_chunks().to_batches() if table is not None else ():
                waiting.add(batch)
        self._known = self._known.merged_with(PendingOutcomes(*tables[2:5]))
        self._replies = concat_rows(self._replies, tables[5])
        for number, contents in enumerate(self._contents):
            contents.restore(*tables[6 + 3 * number : 9 + 3 * number])

    @cached_property
    def schemas(self) -> list[pa.Schema]:
        """The schemas of the tables in states, in order."""
        schemas = [self._schemas["messages"], self._schemas["methods"], ENDS, OUTCOMES, RETURNS, REPLIES]
        return [*schemas, *(schema for contents in self._contents for schema in contents.schemas)]

    def _take(self, found: Mapping[str, NDArray[np.void]], messages: Iterator[tuple[Contents, pa.RecordBatch]]) -> Rows:
        """Collect the records and messages found in frames."""
        for contents, batch in messages:
            self._messages.add(batch)
            if batch["management_operation"].null_count < batch.num_rows:
                self._declared.add(declared_queues(batch))
                self._declared.replace(first_declarations(self._declared.all()))
            if batch["management_status"].null_count < batch.num_rows:
                self._declared.replace(without_refused(self._declared.all(), batch))
            if contents.may_return:
                self._returns.add(batch)
            self._handled.add(batch)
        if "event" in found:
            self._events.add(found["event"])
            self._event_bytes += found["event"].nbytes
        if "incarnation" in found:
            self._incarnations.add(found["incarnation"])
        if "reply" in found:
            self._replies = concat_rows(self._replies, self._channel_tracker.to_arrow("reply", found["reply"]))
        if STALL in found:
            self._stalls.add(self._channel_tracker.stalls(found[STALL]))
        if "link" in found:
            columns = link_columns(found["link"], self._channel_tracker)
            yield "links", to_schema(columns, self._schemas["links"], OF_SESSION_LINKS)

    def _should_release(self) -> bool:
        """Whether so much waits that final rows should be looked for."""
        return (
            self._messages.is_large()
            or self._requests.is_large()
            or self._event_bytes > max(WAITING_BYTES, self._events_left)
            or self._sessions.record_bytes > max(WAITING_BYTES, 2 * self._sessions_left)
        )

    def _release_final_rows(self, open_ids: Integers) -> Rows:
        """Yield all final rows; all connections but `open_ids` (sorted) have ended."""
        of_ended = self._sessions.ended(open_ids)
        until, requests = self._channel_tracker.pending(open_ids)
        of_open = self._incarnations.of(open_ids)
        over = np.repeat(of_open["connection"], 4), maps_of(of_open)
        found = final_messages(self._events.all(), open_ids, until, over)
        final = self._sessions.final()
        of_sessions = of_ended.merged_with(final.tables)
        outstanding = Frames.of(found.outstanding, final.waiting, self._returns.open_publishes(open_ids))
        given_up = Frames.of(outstanding, final.commands).surplus(LIMITS.outstanding_messages)
        if len(given_up.frame_no):
            found = without_oldest(found, given_up)
            more = SessionTables(messages=self._sessions.give_up(given_up))
            of_sessions = of_sessions.merged_with(more)
            self._returns.give_up(given_up)
            self.over_limit |= set(given_up.connection.tolist())
        found = found._replace(settled=self._handled.doubted(found.settled))
        self._counts.replace(counted(self._counts.all(), found.settled))
        self._events.replace(found.events)
        self._event_bytes = 0
        self._events_left, self._sessions_left = found.events.nbytes, self._sessions.record_bytes
        settled = ends_of(found.settled, self._channel_tracker.texts) if len(found.settled.frame_no) else None
        known = self._known.merged_with(
            PendingOutcomes(*(ends and self._handled.told(ends) for ends in (settled, of_sessions.messages)))
        )
        begun = Frames.of(*(contents.incomplete for contents in self._contents))
        certain = until.copy()
        at = find_ids(open_ids, begun.connection)
        np.minimum.at(certain, at[at >= 0], begun.frame_no[at >= 0])
        returned = self._returns.concluded(open_ids, certain, known.ends)
        unknown = unknown_ends(given_up) if len(given_up.frame_no) else None
        known = known.merged_with(PendingOutcomes(ends=unknown, returned=returned))
        outstanding = Frames.of(found.outstanding, final.waiting, self._returns.open_publishes(open_ids)).without(
            given_up
        )
        yield from (("messages", rows) for rows in self._messages.release(outstanding, known.outcomes()))
        self._known = known.of(Frames.of(outstanding, begun)) if len(open_ids) else PendingOutcomes()
        self._handled.retain(outstanding, open_ids)
        may_be = Frames.of(requests, final.requests, final.commands.without(given_up))
        yield from self._answered(may_be, of_sessions.replies, open_ids)
        yield from self._channels({"channels": of_sessions.channels, "links": of_sessions.links}, open_ids)
        self._stalls.add(self._sessions.take_stalls())
        self._oddities.add(self._sessions.take_oddities())
        self.open_ids = open_ids
        self._channel_tracker.forget_texts()
        self._sessions.forget_texts()

    def _answered(self, may_be: Frames, of_commands: pa.Table | None, open_ids: Integers) -> Rows:
        """Requests with their replies, without those that may still be answered; `of_commands`: more replies."""
        replies, waiting = concat_rows(self._replies, of_commands), self._sessions.take_waiting()
        answers = Frames.of()
        if replies is not None:
            answers = Frames(to_int64(replies["connection_id"]), to_int64(replies["reply_frame_no"]))
        for rows in self._requests.release(may_be, answered_by(replies)):
            self._stalls.add(unanswered(rows, self._closings, open_ids, waiting, answers))
            yield "methods", rows
        self._closings.forget(open_ids, may_be)
        self._replies = None

    def _channels(self, of_sessions: Mapping[str, pa.Table | None], open_ids: Integers) -> Rows:
        incarnations = self._incarnations.all()
        if len(incarnations):
            columns = channel_columns(incarnations, self._counts.all(), self._channel_tracker)
            yield "channels", to_schema(columns, self._schemas["channels"], OF_SESSIONS)
        self._incarnations.replace(incarnations[:0])
        self._counts.only(open_ids)
        for table, rows in of_sessions.items():
            if rows is not None and rows.num_rows:
                columns = {name: rows[name] for name in rows.column_names}
                if table == "links":
                    columns["queue_type"] = pc.coalesce(columns["queue_type"], types_of(rows, self._declared.all()))
                yield table, to_schema(columns, self._schemas[table], NOT_OF_SESSIONS[table])
        self._declared.only(open_ids)


def declared_queues(messages: pa.RecordBatch) -> NDArray[np.void]:
    """DECLARED of rows of table messages: PUT for a queue, with a type among its arguments."""
    rows = messages.take(indices_where(is_in(messages["management_operation"], "PUT")))
    queue = rows["management_queue"]
    arguments = inside(inside(values_of(rows["properties"]), "body_value"), "arguments")
    kinds = index_in(fields(arguments, {"x-queue-type": "string"})["x-queue-type"], QUEUE_TYPES)
    found = np.zeros(rows.num_rows, DECLARED)
    found["connection"], found["ts_ns"] = to_int64(rows["connection_id"]), to_int64(rows["ts_ns"])
    found["queue"], found["kind"] = hashed(queue), kinds
    found["request"] = hashed(rows["connection_id"], rows["message_id"])
    mask: NDArray[np.void] = found[is_valid(queue) & (kinds > 0)]
    return mask


def without_refused(declared: NDArray[np.void], messages: pa.RecordBatch) -> NDArray[np.void]:
    """`declared` (DECLARED) as far as no reply among rows of table messages refuses it."""
    replies = messages.take(
        indices_where(is_valid(messages["management_status"]) & is_valid(messages["correlation_id"]))
    )
    requests = hashed(replies["connection_id"], replies["correlation_id"])
    refuses = to_int64(replies["management_status"]) >= FIRST_REFUSAL
    waits = declared["accepted"] == 0
    refused = waits & np.isin(declared["request"], requests[refuses])
    declared["accepted"][waits & np.isin(declared["request"], requests[~refuses])] = 1
    found: NDArray[np.void] = declared[~refused]
    return found


def first_declarations(declared: NDArray[np.void]) -> NDArray[np.void]:
    """Declarations without those that were accepted and repeat the one before of their queue; of each connection the
    first `Limits.queue_types`."""
    names = ("queue", "connection")
    order = np.lexsort([np.arange(len(declared)), *(declared[name] for name in names)])
    again = np.zeros(len(order), bool)
    alike = [np.diff(declared[name][order]) == 0 for name in ("kind", *names)]
    again[1:] = np.logical_and.reduce(
        [*alike, declared["accepted"][order][1:] == 1, declared["accepted"][order][:-1] == 1]
    )
    rest = declared[np.sort(order[~again])]
    by_connection = np.argsort(rest["connection"], kind="stable")
    begins = np.flatnonzero(np.diff(rest["connection"][by_connection], prepend=-1) != 0)
    turn = np.arange(len(rest)) - np.repeat(begins, np.diff(np.append(begins, len(rest))))
    found: NDArray[np.void] = rest[np.sort(by_connection[turn < LIMITS.queue_types])]
    return found


def types_of(links: pa.Table, declared: NDArray[np.void]) -> pa.Array:
    """The type of the queue of each link, as its last declaration on the connection before says; null without one."""
    count, number = len(declared), links.num_rows
    if not count:
        return pa.nulls(number, pa.string())
    opened_ns = to_int64(links["opened_ts"].cast(pa.int64()), -1) * MICROSECOND_NS + MICROSECOND_NS - 1
    connection = np.append(declared["connection"], to_int64(links["connection_id"]))
    queue = np.append(declared["queue"], hashed(combine_chunks(links["queue"])))
    is_link, time = np.repeat([0, 1], [count, number]), np.append(declared["ts_ns"], opened_ns)
    order = np.lexsort((is_link, time, queue, connection))
    last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    before = np.where(last < 0, 0, order[last])
    same = (last >= 0) & (connection[before] == connection[order]) & (queue[before] == queue[order])
    kind = np.zeros(len(order), np.int64)
    kind[order] = np.where(same & (before < count), declared["kind"][np.minimum(before, count - 1)], 0)
    known = kind[count:] * is_valid(links["queue"])
    return pa.array(QUEUE_TYPES).take(pa.array(np.maximum(known - 1, 0), mask=known == 0))


def answered_by(replies: pa.Table | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The function that gives requests, rows of table methods, the replies to them."""
    if replies is None:
        return lambda rows: rows
    known, index = replies.combine_chunks(), Index.of(replies)

    def on(rows: pa.RecordBatch) -> pa.RecordBatch:
        # A command to a transaction coordinator may take several transfers: the first one is answered.
        at = index.find(to_int64(rows["connection_id"]), _first_there(rows, "content_frame_no", "frame_no"))
        return with_columns(rows, {name: take_or_null(known[name], at) for name in REPLY})

    return on


# More than makes `udfs.tables.conversation` look for final rows: what is released soon need not be written.
MEMORY_BYTES = 48 << 20


def _first_there(rows: pa.RecordBatch, *names: str) -> Integers:
    """The first of these columns that has a value."""
    return to_int64(pc.coalesce(*(rows[name] for name in names)))


class Waiting:
    """Rows of one table, each known by its connection and the frame in the first of columns `frame` with a value."""

    def __init__(self, *frame: str) -> None:
        self._frame = frame
        self._rows = Spool(MEMORY_BYTES)
        self.bytes = 0  # of those that came since the last `release`
        self.left = 0  # of those that stayed then

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._rows.add(rows)
            self.bytes += rows.nbytes

    def is_large(self) -> bool:
        """Whether so many rows were added that final ones should be looked for."""
        return self.bytes > max(WAITING_BYTES, self.left)

    def release(
        self, outstanding: Frames, ended: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """All rows, as `ended` makes them, but those whose frames are `outstanding`."""
        rows, self._rows = self._rows, Spool(MEMORY_BYTES)
        self.bytes = self.left = 0
        for batch in rows.drain():
            stays = outstanding.among(to_int64(batch["connection_id"]), _first_there(batch, *self._frame))
            first = int(np.argmax(stays)) if stays.any() else len(stays)
            if first < len(stays):
                waiting = batch.take(indices_where(stays))
                self._rows.add(waiting)
                self.left += waiting.nbytes
            if first:  # most rows, which need not be copied
                yield ended(batch.slice(0, first))
            later = np.flatnonzero(~stays[first:]) + first
            if len(later):
                yield ended(batch.take(pa.array(later)))

    def rows(self, schema: pa.Schema) -> pa.Table:
        """The waiting rows, which stay, in columns of `schema`: without dictionary encoding."""
        batches = list(self._rows.drain())
        for batch in batches:
            self._rows.add(batch)
        return pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
