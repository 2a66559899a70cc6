"""Tracks the channels of the classic family: frames in; messages, settlement events, incarnations, links, replies out.

    tracker = ChannelTracker()
    for kind, records in tracker.feed(frames).items(): tracker.to_arrow(kind, records)

What a method does is data (`udfs.conversation.roles`). Python works per batch, the kernel of
`codec.conversation.channel_tracker` per row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.channel_batches import (
    LAYOUT,
    NO_FRAME,
    end_connections,
    follow_connections,
    pending_requests,
    without_unnamed,
)
from codec.conversation.channel_state import (
    CONNECTION,
    LINKS,
    PENDINGS,
    ROLE,
    STARTED,
    TOUCHED,
    Results,
    Roles,
    Rows,
    new_results,
    new_state,
    with_results,
    with_room,
)
from codec.conversation.settlement import Frames
from codec.conversation.states import ConnectionStates
from codec.memory import as_kernel_array, as_records
from codec.names import CLASSIC_VERSIONS, SIDES
from codec.protocol.rows import NAMES
from codec.stalls import LINK
from udfs.arrow.arrays import take_or_null
from udfs.arrow.types import Numbers, nullable
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.methods import method_frames, queue_types
from udfs.conversation.roles import (
    NEEDS_NO_ACK,
    QUEUE_TYPES_BY,
    SETTLEMENTS,
    TEXTS,
    WITHOUT_REPLY,
    method_roles,
)
from udfs.conversation.tracker_states import NO_NUMBERS, Tracker
from udfs.decode.stall_rows import stall_rows

Records = NDArray[Any]
_OF_CHANNEL = (
    ("connection_id", "connection", "number"), ("channel", "channel", "number"),
    ("channel_incarnation", "incarnation", "number"),
)  # fmt: skip
_OF_FRAME = (("connection_id", "connection", "number"), ("frame_no", "frame_no", "number"))
# Kind -> its columns: (name, field of the record, what the field holds).
KINDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "message": (
        *_OF_FRAME, *_OF_CHANNEL[1:], ("operation", "operation", "operations"), ("queue", "queue", "texts"),
        ("link", "link", "texts"), ("delivery_tag", "tag", "number or null"), ("outcome", "outcome", "outcomes"),
    ),
    "event": (),  # they stay records
    "incarnation": (
        *_OF_CHANNEL, ("opened_ns", "opened_ns", "number or null"), ("closed_ns", "close_ns", "number or null"),
        ("close_initiator", "close_sender", "senders"), ("close_code", "close_code", "number or null"),
        ("close_text", "close_text", "texts"), ("mode", "mode", "modes"),
        ("prefetch_count", "prefetch_count", "number or null"), ("prefetch_size", "prefetch_size", "number or null"),
        ("published", "published", "number"), ("delivered", "delivered", "number"), ("returned", "returned", "number"),
    ),
    "link": (
        *_OF_CHANNEL, ("kind", "kind", "kinds"), ("name", "name", "texts"), ("queue", "queue", "texts"),
        ("queue_type", "queue_type", "texts"), ("no_ack", "no_ack", "truth"), ("exclusive", "exclusive", "truth"),
        ("opened_ns", "opened_ns", "number or null"), ("closed_ns", "closed_ns", "number or null"),
        ("closed_by", "closing_sender", "senders"), ("closing_name", "closing_name", "names"),
        ("transfers", "transfers", "number"),
    ),
    "reply": (
        *_OF_FRAME, ("reply_frame_no", "reply_frame_no", "number"), ("reply_name", "reply_name", "names"),
        ("reply_latency_ns", "latency_ns", "number or null"),
    ),
}  # fmt: skip


STALL = "stall"  # rows of `codec.stalls`, for `ChannelTracker.stalls`


def _schema(kind: str) -> pa.Schema:
    """The schema of `ChannelTracker.to_arrow`."""
    types = {"number": pa.int64(), "number or null": pa.int64(), "truth": pa.bool_()}
    return pa.schema([(name, types.get(holds, pa.string())) for name, _, holds in KINDS[kind]])


MESSAGES, REPLIES = _schema("message"), _schema("reply")
# Columns of frames, and fields of their arguments, that the tracker reads.
OF_FRAMES = ("connection_id", "frame_no", "ts_ns", "channel", "packet_no")
TEXT_ARGUMENTS = ("consumer_tag", "queue", "reply_text")
NUMBER_ARGUMENTS = (
    "delivery_tag", "prefetch_count", "prefetch_size", "reply_code", "multiple", "requeue", "no_wait", "no_ack",
    "exclusive", "active",
)  # fmt: skip
# The number of each of NAMES among the methods with a role, from 1 on, and at last of no name; 0: it has none.
_NAME_NUMBERS = np.array([Numbers(method_roles()).numbers.get(name, 0) for name in (*NAMES, "")])


@lru_cache
def compiled_roles() -> Roles:
    """What methods do, as arrays for the kernel, by number of the name, from 1 on."""
    roles = method_roles()
    rows = as_records(np.zeros(len(roles) + 1, ROLE))
    settles = np.zeros((len(rows), 2, 3), np.int64)
    numbers = {name: number for number, name in enumerate(roles, start=1)}
    for name, role in roles.items():
        for field, value in role.items():
            rows[field][numbers[name]] = value
    for (name, sender, requeue), outcome in reversed(tuple(SETTLEMENTS.items())):
        cases = slice(None) if requeue is None else int(requeue) + 1
        settles[numbers[name], SIDES.index(sender), cases] = TEXTS["outcomes"].index(outcome) + 1
    return Roles(rows, settles)


class ChannelTracker(Tracker):
    """Follows connections. With `keep` their states stay until `end`; else a connection ends where the next begins."""

    def __init__(self, keep: bool = False) -> None:
        super().__init__(LAYOUT, new_state(), keep)  # the first text of a tracker is EMPTY
        self._roles, self._names, self._room = compiled_roles(), Numbers(method_roles()), new_results(0, 0, 0, 0)
        self._known_texts = {"names": self._names, **{name: Numbers(texts) for name, texts in TEXTS.items()}}

    @property
    def texts(self) -> dict[str, Numbers]:
        """The texts of each kind by number."""
        return {**self._known_texts, "texts": self._texts}

    def feed(self, frames: FrameBatch) -> dict[str, Records]:
        """Follow the next frames -> records by kind, for `to_arrow`, with all of connections that have ended."""
        last = int(frames.cells("connection_id")[-1]) if len(frames) else None
        rows = self._rows(frames)
        count = len(rows.frame_no)
        ids, ends, before, after = self._load(rows.connection_id, count)
        self._state = with_room(self._state, before.largest() + count)
        results = self._results(before, count)
        follow_connections(self._state, self._roles, rows, ends, LAYOUT.records_of(before), after, results)
        self._store(ids, after)
        found = _records(results)
        if last is not None and self._state.numbers[STARTED] and self._state.numbers[CONNECTION] != last:
            for kind, records in self.finish().items():
                found[kind] = np.concatenate([found[kind], records]) if kind in found else records
        return found

    def _rows(self, batch: FrameBatch) -> Rows:
        """The frames that the kernel reads, as its columns."""
        at = np.flatnonzero(method_frames(batch))
        of_arguments, types = batch.argument_at[at], self._queue_types(batch, at)
        cut = batch.cut[at]
        if cut.any():
            of_arguments, types = np.where(cut, -1, of_arguments), pc.if_else(pa.array(~cut), types, None)
        texts = {name: self._texts.of(take_or_null(batch.arguments[name], of_arguments)) for name in TEXT_ARGUMENTS}
        texts["queue_type"] = self._texts.of(types)
        numbers = {name: np.append(batch.arguments.numbers(name), -1)[of_arguments] for name in NUMBER_ARGUMENTS}
        numbers["is_global"] = np.append(batch.arguments.numbers("global"), -1)[of_arguments]
        numbers |= {name: batch.cells(name)[at] for name in OF_FRAMES} | {"file": batch.files[at]}
        numbers["no_ack"] = np.where(batch.are("name", *NEEDS_NO_ACK)[at], 1, numbers["no_ack"])
        marks = {
            "sender": batch.are("sender", SIDES[1])[at],
            "loss": batch.lost[at],
            "on_connection": (numbers["channel"] == 0) & batch.are("version", *CLASSIC_VERSIONS)[at],
            **{name: marked[at] for name, marked in batch.late.items()},
        }
        numbers |= {name: marked.astype(np.int64) for name, marked in marks.items()}
        names = _NAME_NUMBERS[batch.cells("name")[at]]
        for (version, class_id, method_id), alike in WITHOUT_REPLY.items():
            own = batch.are("version", version)[at]
            if own.any():
                own &= (batch.cells("class_id")[at] == class_id) & (batch.cells("method_id")[at] == method_id)
                names = np.where(own, _NAME_NUMBERS[NAMES.index(alike)], names)
        return Rows(
            name=as_kernel_array(names), **texts, **{name: as_kernel_array(column) for name, column in numbers.items()}
        )

    def _queue_types(self, batch: FrameBatch, at: NDArray[np.int64]) -> pa.Array:
        """The types of queues that arguments of these frames imply."""
        states = batch.are("name", *QUEUE_TYPES_BY)[at]
        if not states.any():
            return pa.nulls(len(at), pa.string())
        types = queue_types(batch.rows, pa.array(at[states]), passive=False)
        return take_or_null(types, np.where(states, np.cumsum(states) - 1, -1))

    def _results(self, states: ConnectionStates, rows: int) -> Results:
        """Room for the results of `rows` more rows and of the ends of these connections; without `keep`, of the current
        one."""
        if self._states is None:
            touched, waiting, links = (int(self._state.numbers[cell]) for cell in (TOUCHED, PENDINGS, LINKS))
        else:
            touched, waiting, links = (len(states.parts[name]) for name in ("touched", "pendings", "links"))
        self._room = with_results(self._room, touched, waiting, links, rows)
        return self._room

    def finish(self) -> dict[str, Records]:
        """End all connections."""
        return self.end(NO_NUMBERS if self._states is None else self._states.ids)

    def end(self, ids: NDArray[np.int64]) -> dict[str, Records]:
        """End these connections, and the current one: they have no more frames."""
        ended = LAYOUT.empty()
        if self._states is not None:
            ended = self._states.at(np.flatnonzero(np.isin(self._states.ids, ids)))
            self._states = self._states.without(ids)
            self._state = with_room(self._state, ended.largest())
        results = self._results(ended, 0)
        end_connections(self._state, LAYOUT.records_of(ended), results)
        return _records(results)

    def pending(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Frames]:
        """Of these connections: the frame from which on settlements are not final; frames of requests that may still be
        answered."""
        states = LAYOUT.empty()
        until, ends = np.full(len(ids), NO_FRAME), np.zeros(len(ids), np.int64)
        if not len(ids) or (self._states is None and not self._state.numbers[STARTED]):
            return until, Frames.of()
        if self._states is not None:
            states = self._states.of(ids)
            self._state = with_room(self._state, states.largest())
        most = len(self._state.requests) if self._states is None else len(states.parts["requests"])
        frames = np.zeros(most, np.int64)
        pending_requests(self._state, LAYOUT.records_of(states), until, frames, ends)
        return until, Frames(np.repeat(ids, np.diff(ends, prepend=0)), frames[: ends[-1] if len(ends) else 0])

    def _needed(self, states: ConnectionStates) -> ConnectionStates:
        return without_unnamed(states)

    def _record_count(self) -> int:
        return int(self._state.numbers[TOUCHED:].max()) + int(self._state.found_by.used[0])

    def to_arrow(self, kind: str, records: Records) -> pa.RecordBatch:
        """Records of one kind as the columns of KINDS."""
        makers = _COMPUTED_COLUMNS | {name: texts.column for name, texts in self.texts.items()}
        columns = {name: makers[holds](np.ascontiguousarray(records[field])) for name, field, holds in KINDS[kind]}
        return pa.RecordBatch.from_pydict(columns)

    def stalls(self, rows: Records) -> pa.RecordBatch:
        """Records of kind STALL as rows of `codec.tables.STALL`."""
        return stall_rows(rows, links=self._texts.column(np.maximum(rows[:, LINK], 0)))


def _records(results: Results) -> dict[str, Records]:
    """Copies of the records of each kind that has any."""
    records = (results.messages, results.events, results.incarnations, results.links, results.replies, results.stalls)
    counts = zip((*KINDS, STALL), records, [*results.counts, results.stall_count[0]], strict=True)
    return {kind: rows[:count].copy() for kind, rows, count in counts if count}


# How columns that are not texts by number are made of a field.
_COMPUTED_COLUMNS: dict[str, Callable[[NDArray[np.int64]], pa.Array]] = {
    "number": pa.array,
    "number or null": nullable,
    "truth": lambda values: pa.array(values == 1, mask=values < 0),
    "senders": lambda values: pa.array(SIDES).take(nullable(values)),
}
