"""Rows of table messages of one family, assembled from their frames: method, header, bodies.

    contents = Contents(family, schema, payload)
    rows = contents.feed(frames, messages, open_ids)

Contents of several channels are interleaved, but each channel and sender (in 1.0 each of their links) has one at a
time: a content waits until it is complete, or until the next one begins in its place. Of the bodies of a waiting
content only sums are stored, and bytes only with `payload`. Python works per batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.settlement import Frames
from codec.conversation.states import group_ids
from codec.hashes.maps import Pairs
from codec.names import SIDES
from codec.tables import Family
from udfs.arrow.arrays import (
    Index,
    combine_chunks,
    concat_rows,
    is_valid,
    take_or_null,
    to_int64,
)
from udfs.arrow.fields import TYPES, gathered, heap_of, take_bytes
from udfs.arrow.types import to_schema
from udfs.conversation.channels import MESSAGES as OF_CHANNELS
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.properties import ONLY_DERIVED_FROM, derived
from udfs.conversation.properties import properties as read_properties
from udfs.conversation.roles import BODY_FRAMES, HEADER_FRAMES, READ_ARGUMENTS
from udfs.conversation.session_rows import BEGUN_MESSAGES as OF_SESSIONS
from udfs.decode.frame_rows import ARROW_FRAMES

# Assembles the bodies of messages from the payloads of their frames.


Key = tuple[int, int]  # connection, frame_no of the method
BODY_COLUMNS = ("connection_id", "content_frame_no", "payload")
PENDING_BODIES = pa.schema([("connection_id", pa.int64()), ("frame_no", pa.int64()), ("payload", pa.binary())])
LARGEST = (1 << 31) - 1  # bytes of a value


class Bodies:
    """The payloads of the current frames, and those of incomplete contents from earlier frames."""

    def __init__(self) -> None:
        self._pending: dict[Key, list[pa.Array]] = {}
        self._connections = self._contents = np.zeros(0, np.int64)
        self._payload = pa.array([], pa.binary())

    def add(self, frames: pa.RecordBatch) -> None:
        """Take the payloads of `frames` (FRAME_COLUMNS), in order."""
        there = frames["payload"].is_valid()
        self._connections = to_int64(frames["connection_id"].filter(there))
        self._contents = to_int64(frames["content_frame_no"].filter(there))
        self._payload = frames["payload"].filter(there)

    def sizes(self, connections: NDArray[np.int64], contents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the bodies of some contents; -1 where there is no payload."""
        sizes, counts = self._current(connections, contents)[1:]
        sizes[counts == 0] = -1
        for at, parts in self._earlier(connections, contents):
            sizes[at] = max(0, sizes[at]) + sum(_size(part) for part in parts)
        return sizes

    def of(self, connections: NDArray[np.int64], contents: NDArray[np.int64], complete: NDArray[np.bool_]) -> pa.Array:
        """The bodies of some contents; empty where they are complete without any payload, else null."""
        order, sizes, counts = self._current(connections, contents)
        column = gathered(self._payload.take(pa.array(order)), sizes, (counts > 0) | complete)
        pieces, done = [], 0
        for at, parts in self._earlier(connections, contents):
            whole = b"".join(heap_of(part).trimmed().data.tobytes() for part in (*parts, column.slice(at, 1)))
            pieces += [column.slice(done, at - done), pa.array([whole if len(whole) <= LARGEST else None], pa.binary())]
            done = at + 1
        return pa.concat_arrays([*pieces, column.slice(done)])

    def keep(self, connections: NDArray[np.int64], contents: NDArray[np.int64]) -> None:
        """Store the payloads of these contents, which are incomplete, and drop all others."""
        order, _, counts = self._current(connections, contents)
        payload, ends = self._payload.take(pa.array(order)), np.cumsum(counts)
        pending = {}
        for at, key in enumerate(zip(connections.tolist(), contents.tolist(), strict=True)):
            parts = self._pending.get(key, [])
            if counts[at]:
                parts.append(payload.slice(ends[at] - counts[at], counts[at]))
            pending[key] = parts
        self._pending = {key: parts for key, parts in pending.items() if parts}
        self._connections = self._contents = np.zeros(0, np.int64)
        self._payload = self._payload.slice(0, 0)

    def saved(self) -> pa.Table:
        """The payloads of incomplete contents, PENDING_BODIES."""
        parts = [(*key, part) for key, parts in self._pending.items() for part in parts]
        columns = [
            pa.array([connection for connection, _, part in parts for _ in part], pa.int64()),
            pa.array([content for _, content, part in parts for _ in part], pa.int64()),
            pa.chunked_array([part for _, _, part in parts], pa.binary()),
        ]
        return pa.table(columns, schema=PENDING_BODIES)

    def restore(self, saved: pa.Table) -> None:
        """Add payloads of incomplete contents."""
        for batch in saved.combine_chunks().to_batches():
            keys = zip(batch["connection_id"].to_pylist(), batch["frame_no"].to_pylist(), strict=True)
            for at, key in enumerate(keys):
                self._pending.setdefault(key, []).append(batch["payload"].slice(at, 1))

    def _current(
        self, connections: NDArray[np.int64], contents: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The current payloads of these contents, content by content; bytes and number of payloads of each content."""
        of_row = Index(connections, contents).find(self._connections, self._contents)
        order = np.argsort(of_row, kind="stable")[np.count_nonzero(of_row < 0) :]
        sizes, counts = np.zeros((2, len(connections)), np.int64)
        np.add.at(counts, of_row[order], 1)
        np.add.at(sizes, of_row[order], np.diff(heap_of(self._payload).ends)[order])
        return order, sizes, counts

    def _earlier(self, connections: NDArray[np.int64], contents: NDArray[np.int64]) -> list[tuple[int, list[pa.Array]]]:
        """Places of the contents with earlier payloads, in order, and these."""
        if not self._pending:
            return []
        keys = np.array(list(self._pending), np.int64)
        at = Index(connections, contents).find(keys[:, 0], keys[:, 1])
        parts = list(self._pending.values())
        return sorted(((int(at[i]), parts[i]) for i in np.flatnonzero(at >= 0)), key=lambda each: each[0])


def _size(part: pa.Array) -> int:
    ends = heap_of(part).ends
    return int(ends[-1] - ends[0])


# Rows of table messages for the messages in a batch of Azure, instead of one row for the batch.
#
# The batch is one delivery: its messages share its frames, link, outcome and settlement. Each has its own properties,
# size and hash, and its index in the batch. Python works per batch of frames.


INSIDE = "inside"  # column of decoded frames: the messages in the batch that each frame completes
Integers = NDArray[np.int64]


class Batches:
    """The batches that frames complete."""

    def __init__(self, frames: FrameBatch) -> None:
        rows = frames.rows.filter(frames[INSIDE].is_valid())
        self._lists = rows[INSIDE]
        self._index = Index(to_int64(rows["connection_id"]), to_int64(rows["content_frame_no"]))

    def __len__(self) -> int:
        return len(self._lists)

    def of(self, connections: Integers, contents: Integers) -> Expanded:
        """The rows of some contents, one for each message in those that are batches."""
        return Expanded(self._lists, self._index.find(connections, contents))


class Expanded:
    """Rows for contents: `content` int64 (n,), the index of the content of each row; `batch_index`: column."""

    def __init__(self, lists: pa.ListArray, of_content: Integers) -> None:
        """`of_content`: the index of each content in `lists`, -1 where it is no batch."""
        ends = to_int64(lists.offsets)
        begins, counts = (np.append(each, of_none) for each, of_none in ((ends[:-1], 0), (np.diff(ends), 1)))
        counts = counts[of_content]
        self.content = np.repeat(np.arange(len(of_content)), counts)
        self.first = np.cumsum(counts) - counts  # row of each content
        index = np.arange(len(self.content)) - np.repeat(self.first, counts)
        self._is_inside = (of_content >= 0)[self.content]
        self._at = np.where(self._is_inside, begins[of_content][self.content] + index, -1)
        self._messages = lists.values
        self.batch_index = pa.array(index.astype(np.int32), mask=~self._is_inside)

    def column(self, name: str, of_rows: pa.Array) -> pa.Array:
        """A column of the rows: that of the message in a batch, else `of_rows`."""
        both = pa.concat_arrays([of_rows, self._messages.field(name).cast(of_rows.type)])
        return take_or_null(both, np.where(self._is_inside, len(of_rows) + self._at, np.arange(len(of_rows))))

    def bodies(self, of_contents: pa.Array) -> pa.Array:
        """The bytes of each message among those of its content."""
        heap = heap_of(of_contents)
        begins, sizes = heap.ends[:-1][self.content], np.diff(heap.ends)[self.content]
        offset, size = (to_int64(take_or_null(self._messages.field(name), self._at)) for name in ("offset", "size"))
        valid = is_valid(of_contents)[self.content] & (~self._is_inside | (offset + size <= sizes))
        return take_bytes(
            heap.data,
            np.where(self._is_inside, begins + offset, begins),
            np.where(self._is_inside, size, sizes),
            valid,
        )


# Columns of frames that are stored until their message is complete, beside the arguments of the method.
FRAME_COLUMNS = (
    "connection_id", "frame_no", "content_frame_no", "channel", "sender", "version", "capture_file",
    "packet_no", "ts", "ts_ns",
    "first_ts_ns", "frame_type", "status", "error", "properties", "body_size", "payload_size", "body_sha256",
)  # fmt: skip
# Columns of a message that are those of the frame of its method.
OF_METHOD = ("connection_id", "sender", "capture_file", "packet_no", "ts", "ts_ns", "first_ts_ns")
# Columns of a message in the tracker that table messages does not have.
OF_TRACKER = ("frame_no", "version")
# Columns that are filled once a message is settled.
SETTLEMENT = (
    "outcome", "outcome_error", "outcome_info", "settled_ts_ns", "handled_ts_ns", "settle_latency_ns",
    "settled_frame_no", "transaction", "returned_frame_no",
)  # fmt: skip
LINK_OF_FRAME = "handle"  # argument that tells the contents of a channel apart
# Bodies in one batch of messages.
MOST_BYTES = 1 << 28
NOTHING = np.zeros(0, np.int64)


class Contents:
    """Takes the frames of connections in order, and yields the messages that are complete."""

    def __init__(self, family: Family, schema: pa.Schema, payload: bool) -> None:
        """`schema` of table messages; `payload`: with bodies."""
        self._family, self._schema, self._payload = family, schema, payload
        self.may_return = "mandatory" in family.arguments  # in 0-10 message.reject takes the place of a return
        self._frames: pa.Table | None = None
        self._begun: pa.Table | None = None
        self._bodies = Bodies()
        self._batches: Batches | None = None  # those that the current frames complete

    def own(self, classic: pa.RecordBatch | None, of_sessions: pa.Table | None) -> pa.RecordBatch | pa.Table | None:
        """The messages of the family among those of both trackers."""
        if self._family.and_unknown:
            return classic
        if of_sessions is None:
            return None
        own = pc.is_in(of_sessions["version"], pa.array(self._family.versions))
        return of_sessions.filter(own)

    def feed(
        self,
        frames: FrameBatch,
        messages: pa.RecordBatch | pa.Table | None,
        open_ids: NDArray[np.int64],
    ) -> Iterator[pa.RecordBatch]:
        """Take frames, and the messages that a tracker found in them -> rows of table messages without SETTLEMENT.
        `open_ids`: connections that may have more frames."""
        own_at = np.flatnonzero(self._carry_contents(frames))
        if self._frames is None and not len(own_at):
            return
        if self._payload:
            self._bodies.add(frames.rows.select(BODY_COLUMNS).take(pa.array(own_at)))
        if LINK_OF_FRAME in self._family.arguments and frames[INSIDE].null_count < len(frames):
            self._batches = Batches(frames)
        groups = list[Groups]()
        if self._frames is not None:
            known = Index.of(self._frames, "content_frame_no")
            keys = (frames.cells(name)[own_at] for name in ("connection_id", "content_frame_no"))
            goes_on = known.find(*keys) >= 0
            more = stored(frames, own_at[goes_on], self._family)
            # What was read from a state has no dictionary encoding.
            groups.append(self._stored_groups(pa.concat_tables([self._frames.cast(more.schema), more])))
            own_at = own_at[~goes_on]
        if len(own_at):
            groups.append(Groups(frames, own_at, self._family))
        yield from self._next(groups, concat_rows(self._begun, messages), open_ids)
        self._batches = None

    def _stored_groups(self, frames: pa.Table) -> Groups:
        """The contents of frames that were stored, and of those that continue them."""
        return Groups(StoredFrames(frames), np.arange(frames.num_rows), self._family)

    def _carry_contents(self, frames: FrameBatch) -> NDArray[np.bool_]:
        """Which frames carry contents of the family."""
        own = frames.have("content_frame_no")
        of_version = frames.are("version", *self._family.versions)
        return own & ((of_version | ~frames.have("version")) if self._family.and_unknown else of_version)

    def end(self, open_ids: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """End all other connections: their incomplete messages get no more frames."""
        groups = [] if self._frames is None else [self._stored_groups(self._frames)]
        yield from self._next(groups, self._begun, open_ids)

    @property
    def incomplete(self) -> Frames:
        """The frames of messages that are not complete."""
        if self._begun is None:
            return Frames.of()
        return Frames(to_int64(self._begun["connection_id"]), to_int64(self._begun["frame_no"]))

    @property
    def schemas(self) -> list[pa.Schema]:
        """The schemas of the tables of `save`."""
        frames = [(name, ARROW_FRAMES.field(name).type) for name in FRAME_COLUMNS]
        frames += [(name, TYPES[READ_ARGUMENTS[name]]) for name in self._family.arguments]
        messages = OF_CHANNELS if self._family.and_unknown else OF_SESSIONS
        return [pa.schema(frames), messages, PENDING_BODIES]

    def save(self) -> list[pa.Table | None]:
        """The incomplete messages, which stay: their frames, what trackers found, their bodies."""
        return [self._frames, self._begun, self._bodies.saved()]

    def restore(self, frames: pa.Table | None, begun: pa.Table | None, bodies: pa.Table | None) -> None:
        """Add what `save` returned, of other connections; None for no rows."""
        if frames is not None:
            self._frames = concat_rows(self._frames and self._frames.cast(frames.schema), frames)
        self._begun = concat_rows(self._begun, begun)
        if bodies is not None:
            self._bodies.restore(bodies)

    def _next(
        self, groups: Sequence[Groups], messages: pa.Table | None, open_ids: NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of `groups` that are complete; store frames, messages and bodies of those that wait."""
        all_wait = waiting_in(groups, open_ids)
        frames, later, keys = None, list[NDArray[np.int64]](), list[tuple[NDArray[np.int64], ...]]()
        index = Index.of(messages) if messages is not None else None
        for own, waits in zip(groups, all_wait, strict=True):
            at = index.find(*own.keys()) if index else np.full(len(own.starts), -1)
            rows = np.flatnonzero((at >= 0) & ~waits & own.has_method)
            if len(rows) and messages is not None:
                sizes = self._bodies.sizes(*own.keys(rows)) if self._payload else np.zeros(len(rows), np.int64)
                cuts = np.flatnonzero(np.diff(np.cumsum(np.maximum(sizes, 0)) // MOST_BYTES)) + 1
                for part in np.split(rows, cuts):
                    yield self._messages(own, part, messages.take(pa.array(at[part])))
            if waits.any():
                folded = own.folded(waits)
                frames = folded if frames is None else pa.concat_tables([frames.cast(folded.schema), folded])
            later.append(at[(at >= 0) & waits])
            keys.append(own.keys(np.flatnonzero(waits)))
        self._frames = frames
        self._begun = None
        if messages is not None and any(map(len, later)):
            self._begun = messages.take(pa.array(np.sort(np.concatenate(later))))
        if self._payload:
            self._bodies.keep(*(np.concatenate([NOTHING, *(key[at] for key in keys)]) for at in (0, 1)))

    def _messages(self, groups: Groups, rows: NDArray[np.int64], messages: pa.Table) -> pa.RecordBatch:
        family, payload = self._family, self._payload
        contents, expanded = rows, None
        if self._batches is not None:
            expanded = self._batches.of(*groups.keys(rows))
            rows, messages = rows[expanded.content], messages.take(pa.array(expanded.content))
        header_at = groups.first_where(groups.is_header)[rows]
        properties = groups.take_or_null("properties", header_at)
        if expanded is not None:
            properties = expanded.column("properties", properties)
        found = read_properties(properties, family.properties)
        digest_at = groups.digest_at[rows]
        complete = pa.array(digest_at >= 0)
        has_bytes = groups.is_body & (groups.numbers("payload_size") >= 0)
        seen = groups.sums(np.where(has_bytes, groups.numbers("payload_size"), 0))[rows]
        with_body = groups.first_where(has_bytes)[rows] >= 0
        declared = groups.take_or_null("body_size", header_at)
        # Only in 1.0 the frame that states the size of the body also carries it.
        of_1_0 = pa.array(~np.append(groups.states_size, False)[header_at])
        assumed = pc.if_else(pc.and_(complete, of_1_0), pc.coalesce(declared, 0), 0)
        body_captured = pc.if_else(pa.array(with_body), pa.array(seen), assumed)
        declared = pc.coalesce(declared, found.get("content_length", declared))
        # Properties that a complete content leaves out have their defaults.
        headed = pc.and_(pc.or_(pa.array(header_at >= 0), complete), pa.array(~np.append(groups.cut, False)[header_at]))
        state = {name: combine_chunks(messages[name]) for name in messages.column_names if name not in OF_TRACKER}
        of_method = (*OF_METHOD, *(name for name in family.arguments if name in self._schema.names))
        columns = {
            **{name: groups.take_or_null(name, groups.starts[rows]) for name in of_method},
            **state,
            **derived(found, state, headed),
            "first_frame_no": combine_chunks(messages["frame_no"]),
            "last_frame_no": pa.array(groups.highest(groups.numbers("frame_no"))[rows]),
            "last_ts_ns": pa.array(groups.highest(groups.numbers("ts_ns"))[rows]),
            "properties": properties,
            "body_size": pc.coalesce(declared, pc.if_else(complete, body_captured, pa.scalar(None, pa.int64()))),
            "body_captured": body_captured,
            "complete": complete,
            "body_sha256": groups.take_or_null("body_sha256", digest_at),
        }
        if expanded is not None:
            for name in ("body_size", "body_sha256"):
                columns[name] = expanded.column(name, columns[name])
            columns["complete"] = columns["body_sha256"].is_valid()
            columns["body_captured"] = expanded.column("body_size", body_captured).fill_null(0)
            columns["batch_index"] = expanded.batch_index
        if payload:
            # without a payload, although there was one: it is withheld (`codec.protocol.v1_0_contents`)
            empty = (digest_at >= 0) & (to_int64(body_captured) <= 0)
            bodies = self._bodies.of(*groups.keys(contents), empty if expanded is None else empty[expanded.first])
            columns["body"] = bodies if expanded is None else expanded.bodies(bodies)
        absent = {
            *family.absent,
            *(("batch_index",) if expanded is None else ()),
            *(() if payload else ("body",)),
            *(set(SETTLEMENT) - set(columns)),
        }
        known = {name: column for name, column in columns.items() if name not in ONLY_DERIVED_FROM}
        return pa.RecordBatch.from_arrays(to_schema(known, self._schema, absent).columns, schema=self._schema)


class StoredFrames(FrameBatch):
    """Frames that are stored, with the arguments of their methods as columns."""

    def __init__(self, frames: pa.Table) -> None:
        super().__init__(frames.combine_chunks().to_batches()[0])

    @cached_property
    def argument_at(self) -> NDArray[np.int64]:
        return np.arange(len(self))

    @cached_property
    def arguments(self) -> pa.RecordBatch:  # type: ignore[override]
        return self.rows


def stored(frames: FrameBatch, at: NDArray[np.int64], family: Family) -> pa.Table:
    """The frames at these indices as they are stored until their content is complete."""
    columns = {name: frames[name].take(pa.array(at)) for name in FRAME_COLUMNS}
    of_arguments = frames.argument_at[at]
    return pa.table(columns | {name: take_or_null(frames.arguments[name], of_arguments) for name in family.arguments})


class Groups:
    """Frames of a batch, those at `own_at`, grouped by content: a group has the indices from `starts` to `ends` in
    `order`, int64, the method first. `is_body`: frames with a part of the body; `digest_at`: index of the digest of
    each complete content."""

    def __init__(self, frames: FrameBatch, own_at: NDArray[np.int64], family: Family) -> None:
        self._frames, self._family, self.order = frames, family, own_at
        self._numbers: dict[str, NDArray[np.int64]] = {}
        keys = Pairs(self.numbers("connection_id"), self.numbers("content_frame_no")).numbers
        if (np.diff(keys) < 0).any():
            by_key = np.argsort(keys, kind="stable")
            self.order, keys = own_at[by_key], keys[by_key]
            self._numbers.clear()
        changes = np.flatnonzero(np.diff(keys)) + 1
        self.connections, self.contents = self.numbers("connection_id"), self.numbers("content_frame_no")
        self.starts = np.concatenate([[0], changes])
        self.ends = np.concatenate([changes, [len(keys)]])
        self.sizes = self.ends - self.starts
        self.is_body = frames.are("frame_type", *BODY_FRAMES)[self.order]
        self.states_size = frames.are("frame_type", *HEADER_FRAMES)[self.order]  # but does not carry the body
        self.is_header = self.valid("body_size") | self.valid("properties")
        self.has_method = self.numbers("frame_no")[self.starts] == self.contents[self.starts]
        self.cut = frames.cut[self.order]
        ends = self.valid("body_sha256")
        self.digest_at = self.first_where(ends)
        # Frames that only continue a content; in 1.0 they are transfers, too.
        self.continues = self.is_body | ~(self.is_header | ends | (self.numbers("frame_no") == self.contents))

    def numbers(self, name: str) -> NDArray[np.int64]:
        """A column of integers, in order; null is -1."""
        if name not in self._numbers:
            self._numbers[name] = self._frames.cells(name)[self.order]
        return self._numbers[name]

    def valid(self, name: str) -> NDArray[np.bool_]:
        """Where a column is not null, in order."""
        return self._frames.have(name)[self.order]

    def take_or_null(self, name: str, indices: NDArray[np.int64]) -> pa.Array:
        """A column at these indices of the order; null where that is negative."""
        at = np.where(indices < 0, -1, self.order[indices])
        if name in self._family.arguments:
            return take_or_null(self._frames.arguments[name], np.where(at < 0, -1, self._frames.argument_at[at]))
        return take_or_null(self._frames[name], at)

    def slots(self) -> list[NDArray[np.int64]]:
        """Columns that tell apart where the contents of different groups may be interleaved."""
        of_sender = 2 * self.numbers("channel") + self._frames.are("sender", SIDES[1])[self.order]
        found = [self.connections[self.starts], of_sender[self.starts]]
        if LINK_OF_FRAME in self._family.arguments:
            found.append(to_int64(self.take_or_null(LINK_OF_FRAME, self.starts)))
        return found

    def keys(self, which: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Connection and frame_no of the method of some groups, or of all."""
        at = self.starts if which is None else self.starts[which]
        return self.connections[at], self.contents[at]

    def first_where(self, condition: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The first row of each group for which `condition` (by row) holds; -1 for none."""
        none = len(condition)
        first = np.minimum.reduceat(np.where(condition, np.arange(none), none), self.starts)
        found: NDArray[np.int64] = np.where(first == none, -1, first)
        return found

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.add.reduceat(values, self.starts)
        return found

    def highest(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.maximum.reduceat(values, self.starts)
        return found

    def folded(self, selected: NDArray[np.bool_]) -> pa.Table:
        """The frames of some groups, at least one; those that continue a content are folded into the last one, with
        the bytes of the body in them and the highest time."""
        rows, counts = np.flatnonzero(np.repeat(selected, self.sizes)), self.sizes[selected]
        starts, continues = np.cumsum(counts) - counts, self.continues[rows]
        sizes, times = np.maximum(self.numbers("payload_size")[rows], 0), self.numbers("ts_ns")[rows]
        known = self.is_body[rows] & self.valid("payload_size")[rows]
        last = np.maximum.reduceat(np.where(continues, np.arange(len(rows)), -1), starts)
        at = last[last >= 0]
        sizes[at] = np.add.reduceat(np.where(known, sizes, 0), starts)[last >= 0]
        times[at] = np.maximum.reduceat(np.where(continues, times, times.min()), starts)[last >= 0]
        is_last = np.zeros(len(rows), bool)
        is_last[at] = True
        unknown = ~known & ~(is_last & np.repeat(np.logical_or.reduceat(known, starts), counts))
        chosen_rows = np.flatnonzero(~continues | is_last)
        frames = stored(self._frames, self.order[rows[chosen_rows]], self._family)
        columns = {
            "payload_size": pa.array(sizes[chosen_rows], mask=unknown[chosen_rows]),
            "ts_ns": pa.array(times[chosen_rows]),
        }
        for name, column in columns.items():
            frames = frames.set_column(frames.schema.get_field_index(name), name, column)
        return frames


def waiting_in(groups: Sequence[Groups], open_ids: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Which contents of each of `groups`, in order, are incomplete and may be completed: the last of their channel and
    sender in open connections."""
    if not groups:
        return []
    slot = group_ids(*(np.concatenate(columns) for columns in zip(*(own.slots() for own in groups), strict=True)))
    last = np.zeros(int(slot.max()) + 1, np.int64)
    last[slot] = np.arange(len(slot))  # of several the last one stays
    newest = np.split(last[slot] == np.arange(len(slot)), np.cumsum([len(own.starts) for own in groups])[:-1])
    return [
        are_newest & np.isin(own.connections[own.starts], open_ids) & (own.digest_at < 0)
        for own, are_newest in zip(groups, newest, strict=True)
    ]
