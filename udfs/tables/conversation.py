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
from codec.conversation.channels.outcomes import final_messages, without_oldest
from codec.conversation.channels.state import EVENT, INCARNATION
from codec.conversation.settled import Frames
from codec.conversation.states import blank, places
from codec.packing import Reader, Writer
from codec.tables import families
from udfs.arrow.fields import fields, inside, values_of
from udfs.arrow.files import Spool
from udfs.arrow.hashing import hashed
from udfs.arrow.rows import (
    Index,
    changed,
    in_one,
    is_among,
    is_there,
    joined,
    numbered,
    numbers_of,
    picked,
    places_where,
)
from udfs.arrow.types import arrow_schema, bound
from udfs.config import Config
from udfs.conversation.channels import REPLIES, STALL, ChannelTracker
from udfs.conversation.contents import Contents
from udfs.conversation.frames import FrameBatch
from udfs.conversation.methods import REPLY, method_rows
from udfs.conversation.session_rows import OUTCOMES
from udfs.conversation.sessions import SessionTables, SessionTracker
from udfs.conversation.states import ConnectionRecords, restore_table, save_table
from udfs.tables.channels import (
    COUNT,
    OF_SESSION_LINKS,
    OF_SESSIONS,
    channel_columns,
    counted,
    link_columns,
    maps_of,
)
from udfs.tables.handled import Handled
from udfs.tables.settled import ENDS, RETURNS, Known, Returns, ends_of, unknown_ends
from udfs.tables.stalls import Stalls
from udfs.tables.unanswered import Closings, unanswered

Rows = Iterator[tuple[str, pa.RecordBatch]]
WAITING_BYTES = 32 << 20  # of rows or of events, above which final rows are sought
# Columns that tables of sessions do not have.
NOT_OF_SESSIONS = {"channels": ("prefetch_count", "prefetch_size"), "links": ()}
# A queue that a management request declares; `queue`: hash of its name, `kind`: 1-based index in QUEUE_TYPES.
DECLARED = blank("connection queue kind ts_ns").dtype
QUEUE_TYPES = ("classic", "quorum", "stream")
MICROSECOND_NS = 1000
Integers = NDArray[np.int64]
NO_CONNECTIONS = np.zeros(0, np.int64)


class Conversation:
    """Follows connections; see the module's text."""

    def __init__(self, config: Config, keep: bool = False, stalls: Stalls | None = None) -> None:
        self._keep, self._stalls = keep, stalls or Stalls(arrow_schema(config.schemas["stalls"]))
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
            self._handled.deliveries, self._handled.settled, self._closings.records, self._closings.losses,
        )  # fmt: skip
        self._known = Known()  # what became of messages that are not whole yet
        self._replies: pa.Table | None = None
        self._event_bytes = self._events_left = self._sessions_left = 0
        self.gave_up = set[int]()  # connections in which too much was outstanding, until their facts are known

    def feed(self, frames: FrameBatch) -> Rows:
        """Take frames, at least one -> table, rows."""
        connections = frames.cells("connection_id")
        open_ids = np.union1d(self.open_ids, connections) if self._keep else connections[-1:].copy()
        if self._with_methods:
            methods, requests = method_rows(frames, self._schemas["methods"])
            yield "methods", methods
            self._requests.add(requests)
            self._closings.add(frames)
        found = self._channel_tracker.feed(frames)
        own = self._channel_tracker.to_arrow("message", found["message"]) if "message" in found else None
        of_sessions = self._sessions.feed(frames)
        messages = (
            (contents, rows)
            for contents in self._contents
            for rows in contents.feed(frames, contents.own(own, of_sessions), open_ids)
        )
        yield from self._take(found, messages)
        # Connections follow one another: whether another one came before the last one, here or in an earlier batch.
        ended = not self._keep and (connections[0] != open_ids[0] or bool((self.open_ids != open_ids).any()))
        if ended or self._is_much():
            yield from self._concluded(open_ids)
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
        yield from self._concluded(open_ids)

    def settle(self) -> Rows:
        """Yield the rows that are final."""
        if len(self.open_ids):
            yield from self._concluded(self.open_ids)

    def save(self, ids: Integers, writer: Writer) -> None:
        """Write the states of these connections, which stay; call `settle` before."""
        self._channel_tracker.save(ids, writer)
        self._sessions.save(ids, writer)
        for records in self._records:
            records.save(ids, writer)
        gave_up = np.isin(ids, list(self.gave_up)).astype(np.uint8)
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
        self.gave_up |= set(ids[gave_up].tolist())
        tables = [restore_table(schema, reader) for schema in self.schemas]
        for waiting, table in zip((self._messages, self._requests), tables, strict=False):
            for batch in table.combine_chunks().to_batches() if table is not None else ():
                waiting.add(batch)
        self._known = self._known.and_also(Known(*tables[2:5]))
        self._replies = joined(self._replies, tables[5])
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
            if contents.may_return:
                self._returns.add(batch)
            self._handled.add(batch)
        if "event" in found:
            self._events.add(found["event"])
            self._event_bytes += found["event"].nbytes
        if "incarnation" in found:
            self._incarnations.add(found["incarnation"])
        if "reply" in found:
            self._replies = joined(self._replies, self._channel_tracker.to_arrow("reply", found["reply"]))
        if STALL in found:
            self._stalls.add(self._channel_tracker.stalls(found[STALL]))
        if "link" in found:
            columns = link_columns(found["link"], self._channel_tracker)
            yield "links", bound(columns, self._schemas["links"], OF_SESSION_LINKS)

    def _is_much(self) -> bool:
        """Whether so much waits that final rows should be looked for."""
        return (
            self._messages.is_large()
            or self._requests.is_large()
            or self._event_bytes > max(WAITING_BYTES, self._events_left)
            or self._sessions.record_bytes > max(WAITING_BYTES, 2 * self._sessions_left)
        )

    def _concluded(self, open_ids: Integers) -> Rows:
        """Yield all final rows; all connections but `open_ids` (sorted) have ended."""
        of_ended = self._sessions.ended(open_ids)
        until, requests = self._channel_tracker.pending(open_ids)
        of_open = self._incarnations.of(open_ids)
        over = np.repeat(of_open["connection"], 4), maps_of(of_open)
        found = final_messages(self._events.all(), open_ids, until, over)
        final = self._sessions.final()
        of_sessions = of_ended.and_also(final.tables)
        outstanding = Frames.of(found.outstanding, final.waiting, self._returns.open_publishes(open_ids))
        given_up = Frames.of(outstanding, final.commands).surplus(LIMITS.outstanding_messages)
        if len(given_up.frame_no):
            found = without_oldest(found, given_up)
            more = SessionTables(messages=self._sessions.give_up(given_up))
            of_sessions = of_sessions.and_also(more)
            self._returns.give_up(given_up)
            self.gave_up |= set(given_up.connection.tolist())
        self._counts.replace(counted(self._counts.all(), found.settled))
        self._events.replace(found.events)
        self._event_bytes = 0
        self._events_left, self._sessions_left = found.events.nbytes, self._sessions.record_bytes
        settled = ends_of(found.settled, self._channel_tracker.texts) if len(found.settled.frame_no) else None
        known = self._known.and_also(
            Known(*(ends and self._handled.told(ends) for ends in (settled, of_sessions.messages)))
        )
        begun = Frames.of(*(contents.incomplete for contents in self._contents))
        certain = until.copy()
        at = places(open_ids, begun.connection)
        np.minimum.at(certain, at[at >= 0], begun.frame_no[at >= 0])
        returned = self._returns.concluded(open_ids, certain, known.ends)
        unknown = unknown_ends(given_up) if len(given_up.frame_no) else None
        known = known.and_also(Known(ends=unknown, returned=returned))
        outstanding = Frames.of(found.outstanding, final.waiting, self._returns.open_publishes(open_ids)).without(
            given_up
        )
        yield from (("messages", rows) for rows in self._messages.release(outstanding, known.outcomes()))
        self._known = known.of(Frames.of(outstanding, begun)) if len(open_ids) else Known()
        self._handled.retain(outstanding, open_ids)
        may_be = Frames.of(requests, final.requests, final.commands.without(given_up))
        yield from self._answered(may_be, of_sessions.replies, open_ids)
        yield from self._channels({"channels": of_sessions.channels, "links": of_sessions.links}, open_ids)
        self._stalls.add(self._sessions.take_stalls())
        self.open_ids = open_ids
        self._channel_tracker.forget_texts()
        self._sessions.forget_texts()

    def _answered(self, may_be: Frames, of_commands: pa.Table | None, open_ids: Integers) -> Rows:
        """Requests with their replies, without those that may still be answered; `of_commands`: more replies."""
        replies, waiting = joined(self._replies, of_commands), self._sessions.take_waiting()
        answers = Frames.of()
        if replies is not None:
            answers = Frames(numbers_of(replies["connection_id"]), numbers_of(replies["reply_frame_no"]))
        for rows in self._requests.release(may_be, answered_by(replies)):
            self._stalls.add(unanswered(rows, self._closings, open_ids, waiting, answers))
            yield "methods", rows
        self._closings.forget(open_ids, may_be)
        self._replies = None

    def _channels(self, of_sessions: Mapping[str, pa.Table | None], open_ids: Integers) -> Rows:
        incarnations = self._incarnations.all()
        if len(incarnations):
            columns = channel_columns(incarnations, self._counts.all(), self._channel_tracker)
            yield "channels", bound(columns, self._schemas["channels"], OF_SESSIONS)
        self._incarnations.replace(incarnations[:0])
        self._counts.only(open_ids)
        for table, rows in of_sessions.items():
            if rows is not None and rows.num_rows:
                columns = {name: rows[name] for name in rows.column_names}
                if table == "links":
                    columns["queue_type"] = pc.coalesce(columns["queue_type"], types_of(rows, self._declared.all()))
                yield table, bound(columns, self._schemas[table], NOT_OF_SESSIONS[table])
        self._declared.only(open_ids)


def declared_queues(messages: pa.RecordBatch) -> NDArray[np.void]:
    """DECLARED of rows of table messages: PUT for a queue, with a type among its arguments."""
    rows = messages.take(places_where(is_among(messages["management_operation"], "PUT")))
    queue = rows["management_queue"]
    arguments = inside(inside(values_of(rows["properties"]), "body_value"), "arguments")
    kinds = numbered(fields(arguments, {"x-queue-type": "string"})["x-queue-type"], QUEUE_TYPES)
    found = np.zeros(rows.num_rows, DECLARED)
    found["connection"], found["ts_ns"] = numbers_of(rows["connection_id"]), numbers_of(rows["ts_ns"])
    found["queue"], found["kind"] = hashed(queue), kinds
    chosen: NDArray[np.void] = found[is_there(queue) & (kinds > 0)]
    return chosen


def first_declarations(declared: NDArray[np.void]) -> NDArray[np.void]:
    """The first declaration of each queue as each type, and of each connection the first `Limits.queue_types`."""
    names = ("kind", "queue", "connection")
    order = np.lexsort([np.arange(len(declared)), *(declared[name] for name in names)])
    again = np.zeros(len(order), bool)
    again[1:] = np.logical_and.reduce([np.diff(declared[name][order]) == 0 for name in names])
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
    opened_ns = numbers_of(links["opened_ts"].cast(pa.int64()), -1) * MICROSECOND_NS + MICROSECOND_NS - 1
    connection = np.append(declared["connection"], numbers_of(links["connection_id"]))
    queue = np.append(declared["queue"], hashed(in_one(links["queue"])))
    is_link, time = np.repeat([0, 1], [count, number]), np.append(declared["ts_ns"], opened_ns)
    order = np.lexsort((is_link, time, queue, connection))
    last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    before = np.where(last < 0, 0, order[last])
    same = (last >= 0) & (connection[before] == connection[order]) & (queue[before] == queue[order])
    kind = np.zeros(len(order), np.int64)
    kind[order] = np.where(same & (before < count), declared["kind"][np.minimum(before, count - 1)], 0)
    known = kind[count:] * is_there(links["queue"])
    return pa.array(QUEUE_TYPES).take(pa.array(np.maximum(known - 1, 0), mask=known == 0))


def answered_by(replies: pa.Table | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The function that gives requests, rows of table methods, the replies to them."""
    if replies is None:
        return lambda rows: rows
    known, index = replies.combine_chunks(), Index.of(replies)

    def on(rows: pa.RecordBatch) -> pa.RecordBatch:
        # A command to a transaction coordinator may take several transfers: the first one is answered.
        at = index.find(numbers_of(rows["connection_id"]), _first_there(rows, "content_frame_no", "frame_no"))
        return changed(rows, {name: picked(known[name], at) for name in REPLY})

    return on


# More than makes `udfs.tables.conversation` look for final rows: what is released soon need not be written.
MEMORY_BYTES = 48 << 20


def _first_there(rows: pa.RecordBatch, *names: str) -> Integers:
    """The first of these columns that has a value."""
    return numbers_of(pc.coalesce(*(rows[name] for name in names)))


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
            stays = outstanding.among(numbers_of(batch["connection_id"]), _first_there(batch, *self._frame))
            first = int(np.argmax(stays)) if stays.any() else len(stays)
            if first < len(stays):
                waiting = batch.take(places_where(stays))
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
