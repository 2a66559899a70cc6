"""Messages of one family out of their frames: a method, its header, its bodies, brought together.

    contents = Contents(shown)
    messages = contents.feed(frames, arguments, states)

Contents of several channels lie between each other, but each channel and sender has one at a time (in 1.0 each link of
theirs); so what is not complete waits until it is, or until another one begins in its place. Of bodies that wait only
sums are kept, and their octets where they are asked for. Cost per batch, not per frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from codec.conversation.outstanding import Frames
from codec.conversation.stored import numbered
from udfs.arrow.bound import bound
from udfs.arrow.fields import TYPES
from udfs.arrow.rows import Index, in_one, is_among, is_there, joined, numbers_of, picked, places_of, places_where
from udfs.arrow.types import arrow_schema
from udfs.conversation.bodies import HELD, Bodies
from udfs.conversation.bodies import OF_FRAMES as OF_BODIES
from udfs.conversation.derived import INGREDIENTS, derived
from udfs.conversation.history import MESSAGES as OF_CHANNELS
from udfs.conversation.properties import Place
from udfs.conversation.properties import properties as read_properties
from udfs.conversation.sessions import STATES as OF_SESSIONS
from udfs.decode.frame_rows import ARROW_DECODED

# What is kept of frames until their message is whole; the arguments of the method, too.
OF_FRAMES = (
    "connection_id", "frame_no", "content_frame_no", "channel", "sender", "version", "capture_file",
    "packet_no", "ts", "ts_ns",
    "first_ts_ns", "frame_type", "properties", "body_size", "payload_size", "body_sha256",
)  # fmt: skip
# Columns of a message that are those of the frame of its method.
OF_METHOD = ("connection_id", "sender", "capture_file", "packet_no", "ts", "ts_ns", "first_ts_ns")
# Columns of its state that are none of the message.
OF_STATE_ALONE = ("frame_no", "version")
# What becomes of a message is known later.
SETTLEMENT = (
    "outcome", "settled_ts_ns", "settle_latency_ns", "settled_frame_no", "transaction", "returned_frame_no",
)  # fmt: skip
LINK_OF_FRAME = "handle"  # argument that tells the contents of a channel apart
# Bodies in one batch of messages.
MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Shown:
    """`schema` of table messages; `versions` of the family, with `and_unknown` also frames of no known version;
    `body_frames`: frame types with a part of the body; `arguments` of the method that are read; `properties`: column ->
    where it is, for those that are properties as they stand and those that others are made of
    (`udfs.conversation.derived`); `absent`: columns that the family does not have; `persistent`: the delivery mode of
    durable messages; `payload`: whether bodies are shown."""

    schema: StructType
    versions: tuple[str, ...]
    and_unknown: bool
    body_frames: tuple[str, ...]
    arguments: tuple[str, ...]
    properties: dict[str, Place]
    absent: tuple[str, ...]
    persistent: int
    payload: bool

    def own(self, frames: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which frames carry contents of the family."""
        own: NDArray[np.bool_] = is_there(frames["content_frame_no"])
        if own.any():
            of_version = is_among(frames["version"], *self.versions)
            own &= (of_version | ~is_there(frames["version"])) if self.and_unknown else of_version
        return own


class Contents:
    """Frames of connections, one after the other, in order: `feed` gives the messages that have become whole."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._frames: pa.Table | None = None
        self._states: pa.Table | None = None
        self._bodies = Bodies()

    def states(self, classic: pa.RecordBatch | None, of_sessions: pa.Table | None) -> pa.RecordBatch | pa.Table | None:
        """Those of the family: messages that were found by the one or the other follower."""
        if self._shown.and_unknown:
            return classic
        if of_sessions is None:
            return None
        own = pc.is_in(of_sessions["version"], pa.array(self._shown.versions))
        return of_sessions.filter(own)

    def feed(
        self,
        frames: pa.RecordBatch,
        arguments: Mapping[str, pa.Array],
        states: pa.RecordBatch | pa.Table | None,
        goes_on: NDArray[np.int64],
    ) -> Iterator[pa.RecordBatch]:
        """Take frames, fields of their arguments, and the messages that the history of channels has found in them ->
        messages as in the table, without what became of them. `goes_on`: connections that may have more frames."""
        own = self._shown.own(frames)
        if self._frames is None and not own.any():
            return
        if self._shown.payload:
            self._bodies.add(frames.select(OF_BODIES).take(places_where(own)))
        known = {name: frames[name] for name in OF_FRAMES} | {name: arguments[name] for name in self._shown.arguments}
        waiting = 0 if self._frames is None else self._frames.num_rows
        own_at = np.concatenate([np.arange(waiting), waiting + np.flatnonzero(own)])
        new = pa.table(known)
        if self._frames is not None and self._frames.schema != new.schema:  # read from states: no dictionary encoding
            self._frames = self._frames.cast(new.schema)
        all_frames = joined(self._frames, new)
        assert all_frames is not None
        # In one piece: each column is looked at several times.
        yield from self._next(all_frames.combine_chunks(), own_at, joined(self._states, states), goes_on)

    def end(self, goes_on: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """All connections but these have no more frames: what is not complete of them never will be."""
        rows = 0 if self._frames is None else self._frames.num_rows
        yield from self._next(self._frames, np.arange(rows), self._states, goes_on)

    @property
    def begun(self) -> Frames:
        """Frames of messages that are not complete."""
        if self._states is None:
            return Frames.of()
        return Frames(numbers_of(self._states["connection_id"]), numbers_of(self._states["frame_no"]))

    def schemas(self, arguments: Mapping[str, str]) -> dict[str, pa.Schema]:
        """Of the tables of `waiting`; `arguments` by type."""
        frames = [(name, ARROW_DECODED.field(name).type) for name in OF_FRAMES]
        frames += [(name, TYPES[arguments[name]]) for name in self._shown.arguments]
        states = OF_CHANNELS if self._shown.and_unknown else OF_SESSIONS
        return {"frames": pa.schema(frames), "states": states, "bodies": HELD}

    def waiting(self) -> dict[str, pa.Table | None]:
        """What waits, and stays."""
        return {"frames": self._frames, "states": self._states, "bodies": self._bodies.held()}

    def restore(self, waiting: Mapping[str, pa.Table]) -> None:
        """What waited, of more connections."""
        frames = waiting["frames"]
        if frames.num_rows:
            self._frames = joined(self._frames and self._frames.cast(frames.schema), frames)
        self._states = joined(self._states, waiting["states"]) if waiting["states"].num_rows else self._states
        self._bodies.restore(waiting["bodies"])

    def _next(
        self, frames: pa.Table | None, own_at: NDArray[np.int64], states: pa.Table | None, goes_on: NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        """Those of `frames` at `own_at` belong to contents."""
        self._states = states
        if frames is None or not len(own_at):
            self._frames = None
            return
        groups = Groups(frames, own_at, self._shown.body_frames)
        waits = groups.waits(goes_on)
        self._frames = groups.folded(waits)
        at = groups.states(states)
        if states is not None:
            later = np.zeros(states.num_rows, bool)
            later[at[(at >= 0) & waits]] = True
            self._states = states.filter(pa.array(later))
        chosen = np.flatnonzero((at >= 0) & ~waits & groups.has_method)
        if len(chosen) and states is not None:
            sizes = self._bodies.sizes(*groups.keys(chosen))
            cuts = np.flatnonzero(np.diff(np.cumsum(np.maximum(sizes, 0)) // MOST_BYTES)) + 1
            for part in np.split(chosen, cuts):
                yield self._messages(groups, part, states.take(pa.array(at[part])))
        self._bodies.keep(*groups.keys(np.flatnonzero(waits)))

    def _messages(self, groups: Groups, chosen: NDArray[np.int64], states: pa.Table) -> pa.RecordBatch:
        """The messages of the chosen groups."""
        shown = self._shown
        header_at = groups.first_where(groups.is_header)[chosen]
        properties = groups.picked("properties", header_at)
        said = read_properties(properties, shown.properties)
        digest_at = groups.digest_at[chosen]
        complete = pa.array(digest_at >= 0)
        seen = groups.sums(np.where(groups.is_body, groups.numbers("payload_size"), 0))[chosen]
        with_body = groups.first_where(groups.is_body & groups.valid("payload_size"))[chosen] >= 0
        declared = groups.picked("body_size", header_at)
        assumed = pc.if_else(complete, pc.coalesce(declared, 0), 0)
        body_seen = pc.if_else(pa.array(with_body), pa.array(seen), assumed)
        declared = pc.coalesce(declared, said.get("content_length", declared))
        # What a content that is all there leaves out has its default.
        headed = pc.or_(pa.array(header_at >= 0), complete)
        state = {name: in_one(states[name]) for name in states.column_names if name not in OF_STATE_ALONE}
        of_method = (*OF_METHOD, *(name for name in shown.arguments if name in shown.schema.names))
        columns = {
            **{name: groups.picked(name, groups.starts[chosen]) for name in of_method},
            **state,
            **derived(said, state, headed, shown.persistent),
            "first_frame_no": in_one(states["frame_no"]),
            "last_frame_no": pa.array(groups.highest(groups.numbers("frame_no"))[chosen]),
            "last_ts_ns": pa.array(groups.highest(groups.numbers("ts_ns"))[chosen]),
            "properties": properties,
            "body_size": pc.coalesce(declared, pc.if_else(complete, body_seen, pa.scalar(None, pa.int64()))),
            "body_seen": body_seen,
            "complete": complete,
            "body_sha256": groups.picked("body_sha256", digest_at),
        }
        if shown.payload:
            columns["body"] = self._bodies.of(*groups.keys(chosen), digest_at >= 0)
        absent = {*shown.absent, *(() if shown.payload else ("body",)), *(set(SETTLEMENT) - set(columns))}
        known = {name: column for name, column in columns.items() if name not in INGREDIENTS}
        schema = arrow_schema(shown.schema)
        return pa.RecordBatch.from_arrays(bound(known, schema, absent).columns, schema=schema)


class Groups:
    """Those of `frames` at `own_at`, which are in order within each content, those of a content together: from `starts`
    to `ends` of `order` (their places), int64, the method first. `is_body` tells those with a part of the body,
    `digest_at` where the digest of each whole content is."""

    def __init__(self, frames: pa.Table, own_at: NDArray[np.int64], body_frames: tuple[str, ...]) -> None:
        self._frames, self.order = frames, own_at
        self._numbers: dict[str, NDArray[np.int64]] = {}
        connections, contents = (numbers_of(frames[name])[own_at] for name in ("connection_id", "content_frame_no"))
        keys = _ordinals(connections) * (contents.max() + 1) + contents
        if (np.diff(keys) < 0).any():
            by_key = np.argsort(keys, kind="stable")
            self.order, keys = own_at[by_key], keys[by_key]
            connections, contents = connections[by_key], contents[by_key]
        changes = np.flatnonzero(np.diff(keys)) + 1
        self.connections, self.contents = connections, contents
        self.starts = np.concatenate([[0], changes])
        self.ends = np.concatenate([changes, [len(keys)]])
        self.sizes = self.ends - self.starts
        self.is_body = is_among(frames["frame_type"], *body_frames)[self.order]
        self.is_header = self.valid("body_size") | self.valid("properties")
        self.has_method = self.numbers("frame_no")[self.starts] == contents[self.starts]
        ends = self.valid("body_sha256")
        self.digest_at = self.first_where(ends)
        # Frames that only go on with what others have begun: in 1.0 they are transfers, too.
        self.goes_on = self.is_body | ~(self.is_header | ends | (self.numbers("frame_no") == contents))

    def numbers(self, name: str) -> NDArray[np.int64]:
        """A column of integers, in order; null is 0."""
        if name not in self._numbers:
            self._numbers[name] = numbers_of(self._frames[name])[self.order]
        return self._numbers[name]

    def valid(self, name: str) -> NDArray[np.bool_]:
        """Where a column is not null, in order."""
        valid: NDArray[np.bool_] = is_there(self._frames[name])[self.order]
        return valid

    def picked(self, name: str, places: NDArray[np.int64]) -> pa.Array:
        """A column at these places of the order; null where that is negative."""
        return picked(self._frames[name], np.where(places < 0, -1, self.order[places]))

    def waits(self, goes_on: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which are not complete yet, but may be: the last ones of their channel and sender in connections that go
        on."""
        connections = self.connections[self.starts]
        going_on = np.isin(connections, goes_on)
        if not going_on.any():
            return going_on
        by_server = is_among(self._frames["sender"], "server")[self.order][self.starts]
        slots = [connections, 2 * self.numbers("channel")[self.starts] + by_server]
        if LINK_OF_FRAME in self._frames.schema.names:
            slots.append(self.numbers(LINK_OF_FRAME)[self.starts])
        slot = np.where(going_on, numbered(*slots), -1)
        # The last group of each slot: the first one when looked at from the end.
        _, from_end = np.unique(slot[::-1], return_index=True)
        newest = np.zeros(len(slot), bool)
        newest[len(slot) - 1 - from_end] = True
        waiting: NDArray[np.bool_] = going_on & newest & (self.digest_at < 0)
        return waiting

    def states(self, states: pa.Table | None) -> NDArray[np.int64]:
        """Where there is a row of `states` for each group; -1 for none."""
        if states is None:
            return np.full(len(self.starts), -1)
        index = Index(numbers_of(states["connection_id"]), numbers_of(states["frame_no"]))
        return index.find(self.connections[self.starts], self.contents[self.starts])

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

    def folded(self, chosen: NDArray[np.bool_]) -> pa.Table:
        """The frames of some groups, of those that go on with them one row each: the last, with the size and time of
        all."""
        rows, counts = np.flatnonzero(np.repeat(chosen, self.sizes)), self.sizes[chosen]
        if not len(rows):
            return self._frames.take(pa.array([], pa.int64()))
        starts, goes_on = np.cumsum(counts) - counts, self.goes_on[rows]
        sizes, times = self.numbers("payload_size")[rows], self.numbers("ts_ns")[rows]
        known = goes_on & self.valid("payload_size")[rows]
        last = np.maximum.reduceat(np.where(goes_on, np.arange(len(rows)), -1), starts)
        at = last[last >= 0]
        sizes[at] = np.add.reduceat(np.where(known, sizes, 0), starts)[last >= 0]
        times[at] = np.maximum.reduceat(np.where(goes_on, times, times.min()), starts)[last >= 0]
        is_last = np.zeros(len(rows), bool)
        is_last[at] = True
        unknown = ~known & ~(is_last & np.repeat(np.logical_or.reduceat(known, starts), counts))
        kept = np.flatnonzero(~goes_on | is_last)
        frames = self._frames.take(pa.array(self.order[rows[kept]]))
        columns = {"payload_size": pa.array(sizes[kept], mask=unknown[kept]), "ts_ns": pa.array(times[kept])}
        for name, column in columns.items():
            frames = frames.set_column(frames.schema.get_field_index(name), name, column)
        return frames

    def keys(self, which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Connection and frame_no of the method of some groups."""
        return self.connections[self.starts[which]], self.contents[self.starts[which]]


def _ordinals(connections: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number of each connection, in the order in which they come first: rows that waited come before new ones of the
    same connection, with other connections between them."""
    places = places_of(connections)
    ids = connections[np.flatnonzero(np.diff(places, prepend=-1))]
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    return np.asarray(first[which][places], np.int64)
