"""Frames in, history out: what a connection's methods say, in one pass over its frames in order.

    follower = Follower(roles)
    for kind, records in follower.feed(frames, arguments).items(): follower.shown(kind, records)

There are records of several kinds: messages, events for the settlement engine, lives of channels, links, and requests
with their answers. Nothing is held but the states of connections that go on. Cost per batch, not per row: the kernel
does the rest. What a method does is told by `MethodRoles`; neither this nor the kernel knows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.amqp.notes import CAPTURED_LATE, PEER_LATE
from codec.conversation.channels import carried
from codec.conversation.channels.carried import (
    NO_FRAME,
    end_connections,
    follow_connections,
    load_connection,
    save_connection,
    what_waits,
)
from codec.conversation.channels.state import (
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
    with_room,
)
from codec.conversation.outstanding import Frames
from codec.conversation.stored import Stored
from codec.packing import Reader, Writer
from codec.sides import SIDES
from udfs.arrow.fields import fields, fields_and_insides, values_of
from udfs.arrow.numbers import MOST_TEXTS, Numbers
from udfs.arrow.rows import (
    connections_of,
    fixed,
    integers,
    is_among,
    is_noted,
    is_there,
    numbers_of,
    places_where,
    truth_of,
    values_cut,
)
from udfs.conversation.stored import put_stored, take_stored, with_other_numbers

Records = NDArray[Any]
NO_NUMBERS = fixed(np.zeros(0, np.int64))
_SENDERS = pa.array(SIDES)
# Kind -> its columns: (name, field of the record, what the field holds).
KINDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "message": (
        ("connection_id", "connection", "number"),
        ("frame_no", "frame_no", "number"),
        ("channel", "channel", "number"),
        ("channel_life", "life", "number"),
        ("operation", "operation", "operations"),
        ("queue", "queue", "texts"),
        ("link", "link", "texts"),
        ("delivery_tag", "tag", "number or null"),
        ("outcome", "outcome", "outcomes"),
    ),
    "event": (
        ("connection_id", "connection", "number"),
        ("ledger", "ledger", "number"),
        ("frame_no", "frame_no", "number"),
        ("opens", "opens", "truth"),
        ("first", "first", "number"),
        ("last", "last", "number"),
        ("outcome", "outcome", "outcomes"),
        ("final", "final", "truth"),
        ("ts_ns", "effective_ns", "number"),
        ("effective_ts_ns", "effective_ns", "number"),
        ("transaction", "transaction", "transactions"),
    ),
    "life": (
        ("connection_id", "connection", "number"),
        ("channel", "channel", "number"),
        ("channel_life", "life", "number"),
        ("opened_ns", "opened_ns", "number or null"),
        ("closed_ns", "close_ns", "number or null"),
        ("close_initiator", "close_sender", "senders"),
        ("close_code", "close_code", "number or null"),
        ("close_text", "close_text", "texts"),
        ("mode", "mode", "modes"),
        ("prefetch_count", "prefetch_count", "number or null"),
        ("prefetch_size", "prefetch_size", "number or null"),
        ("published", "published", "number"),
        ("delivered", "delivered", "number"),
        ("returned", "returned", "number"),
        ("opened", "opened", "number"),
    ),
    "link": (
        ("connection_id", "connection", "number"),
        ("channel", "channel", "number"),
        ("channel_life", "life", "number"),
        ("kind", "kind", "kinds"),
        ("name", "name", "texts"),
        ("queue", "queue", "texts"),
        ("queue_type", "queue_type", "texts"),
        ("no_ack", "no_ack", "truth"),
        ("exclusive", "exclusive", "truth"),
        ("opened_ns", "opened_ns", "number or null"),
        ("closed_ns", "closed_ns", "number or null"),
        ("closed_by", "closing_sender", "senders"),
        ("closing_name", "closing_name", "names"),
        ("transfers", "transfers", "number"),
    ),
    "reply": (
        ("connection_id", "connection", "number"),
        ("frame_no", "frame_no", "number"),
        ("reply_frame_no", "reply_frame_no", "number"),
        ("reply_name", "reply_name", "names"),
        ("reply_latency_ns", "latency_ns", "number or null"),
    ),
}


def _schema(kind: str) -> pa.Schema:
    """What `Follower.shown` gives."""
    types = {"number": pa.int64(), "number or null": pa.int64(), "truth": pa.bool_()}
    return pa.schema([(name, types.get(holds, pa.string())) for name, _, holds in KINDS[kind]])


MESSAGES, REPLIES = _schema("message"), _schema("reply")
# What is read of frames, and of their arguments (`udfs.arrow.fields`).
OF_METHODS = (
    "connection_id",
    "frame_no",
    "ts_ns",
    "channel",
    "sender",
    "version",
    "frame_type",
    "status",
    "name",
    "error",
    "notes",
)
OF_FRAMES = (*OF_METHODS, "arguments")
TEXT_ARGUMENTS = ("consumer_tag", "queue", "reply_text")
ARGUMENTS = (
    *TEXT_ARGUMENTS, "delivery_tag", "prefetch_count", "prefetch_size", "reply_code", "multiple", "requeue", "no_wait",
    "no_ack", "exclusive",
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """Which frames have a say. `versions`: of the family, where channel 0 is that of the connection; `others`: versions
    of other families, whose frames are left out; `frame_types` and `names` of its methods; `losses`: (frame type,
    column, value): frames may be missing there, unless the column has this value (None: any)."""

    versions: tuple[str, ...]
    others: tuple[str, ...]
    frame_types: tuple[str, ...]
    names: tuple[str, ...]
    losses: tuple[tuple[str, str, str | None], ...]

    def chosen(self, frames: pa.RecordBatch) -> NDArray[np.bool_]:
        """True for methods that have a say, and where frames of a sender may be missing."""
        method = is_among(frames["frame_type"], *self.frame_types) & is_among(frames["name"], *self.names)
        has_say = (method & is_there(frames["channel"])) | self.lost(frames)
        return has_say & ~is_among(frames["version"], *self.others)

    def marks(self, frames: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        """`sender` (1: the server), `loss`, `on_connection`, `peer_late`, `late` of chosen frames."""
        channel_0 = (numbers_of(frames["channel"]) == 0) & is_there(frames["channel"])
        return {
            "sender": is_among(frames["sender"], SIDES[1]),
            "loss": self.lost(frames),
            "on_connection": channel_0 & is_among(frames["version"], *self.versions),
            "peer_late": is_noted(frames["notes"], PEER_LATE),
            "late": is_noted(frames["notes"], CAPTURED_LATE),
        }

    def lost(self, frames: pa.RecordBatch) -> NDArray[np.bool_]:
        """True where frames may be missing, so that nothing may be paired across."""
        lost = np.zeros(frames.num_rows, bool)
        for kind, column, value in self.losses:
            is_kind, there = is_among(frames["frame_type"], kind), is_there(frames[column])
            lost |= is_kind & (~there if value is None else there & ~is_among(frames[column], value))
        return lost


@dataclass(frozen=True)
class MethodRoles:
    """What methods do. `roles`: name -> fields of `codec.conversation.channels.state.ROLE`; `settles`: (name, sender,
    requeue or None
    for either) -> outcome. `texts`: the texts of 'operations', 'modes', 'kinds', 'transactions', 'outcomes' by number,
    from 1 on. `said`: which frames are asked. `queue_types`: name of a
    method -> the argument among its `arguments` that tells the type of the queue, and the type that it tells (None: its
    value is the type)."""

    roles: Mapping[str, Mapping[str, int]]
    settles: Mapping[tuple[str, str, bool | None], str]
    texts: Mapping[str, tuple[str, ...]]
    said: Said
    queue_types: Mapping[str, tuple[str, str | None]]

    def compiled(self) -> Roles:
        """As the kernel reads them; a name's number is its place, from 1 on."""
        rows = np.zeros(len(self.roles) + 1, ROLE).view(np.recarray)
        settles = np.zeros((len(rows), 2, 3), np.int64)
        numbers = {name: number for number, name in enumerate(self.roles, start=1)}
        for name, role in self.roles.items():
            for field, value in role.items():
                rows[field][numbers[name]] = value
        for (name, sender, requeue), outcome in reversed(tuple(self.settles.items())):
            cases = slice(None) if requeue is None else int(requeue) + 1
            settles[numbers[name], SIDES.index(sender), cases] = self.texts["outcomes"].index(outcome) + 1
        return Roles(rows, settles)


class Follower:
    """Follows connections: frames in, what they say of channels, consumers and messages out. With `keep` connections go
    on until `end`; else each one ends where the next one begins."""

    def __init__(self, methods: MethodRoles, keep: bool = False) -> None:
        self._said, self._queue_types = methods.said, methods.queue_types
        self._roles, self._state = methods.compiled(), new_state()
        self._stored = Stored.empty(carried.PARTS) if keep else None
        self._names, self._texts = Numbers(methods.roles), Numbers([""])  # the latter is EMPTY
        self.texts = {
            "names": self._names,
            "texts": self._texts,
            **{name: Numbers(values) for name, values in methods.texts.items()},
        }

    def feed(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> dict[str, Records]:
        """Take the next frames (columns OF_FRAMES; those of a connection together and in order) and fields ARGUMENTS of
        theirs -> records by kind, for `shown`; all of connections that have ended."""
        last = frames["connection_id"][-1].as_py() if frames.num_rows else None
        rows = self._rows(frames, arguments)
        if self._stored is not None:
            return self._follow_stored(self._stored, rows)
        self._state = with_room(self._state, len(rows.frame_no))
        results = self._results(None, len(rows.frame_no))
        nothing = carried.records_of(Stored.empty(carried.PARTS))
        follow_connections(self._state, self._roles, rows, NO_NUMBERS, nothing, nothing, results)
        found = _records(results)
        if last is not None and self._state.numbers[STARTED] and self._state.numbers[CONNECTION] != last:
            for kind, records in self.finish().items():
                found[kind] = np.concatenate([found[kind], records]) if kind in found else records
        return found

    def _rows(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> Rows:
        """Those of the frames that have a say, as the kernel reads them."""
        chosen = places_where(self._said.chosen(frames))
        said = {name: arguments[name].take(chosen) for name in ARGUMENTS}
        said["queue_type"] = queue_types(frames, chosen, self._queue_types)
        frames = frames.select(OF_METHODS).take(chosen)
        cut = values_cut(frames)
        if cut.any():
            said = {name: pc.if_else(pa.array(~cut), column, None) for name, column in said.items()}
        texts = {name: self._texts.of(said[name]) for name in (*TEXT_ARGUMENTS, "queue_type")}
        numbers = {name: integers(column, null=-1) for name, column in said.items() if name not in texts}
        numbers |= {name: integers(frames[name], null=-1) for name in ("connection_id", "frame_no", "ts_ns", "channel")}
        numbers |= {name: fixed(marks.astype(np.int64)) for name, marks in self._said.marks(frames).items()}
        return Rows(name=self._names.of(frames["name"]), **texts, **numbers)

    def _follow_stored(self, stored: Stored, rows: Rows) -> dict[str, Records]:
        """`feed` where connections go on."""
        if not len(rows.frame_no):
            return {}
        ids, ends = connections_of(rows.connection_id)
        before = stored.of(ids)
        self._make_room(before, len(rows.frame_no))
        after, results = carried.room_for(before, len(rows.frame_no)), self._results(before, len(rows.frame_no))
        follow_connections(self._state, self._roles, rows, ends, carried.records_of(before), after, results)
        self._stored = Stored.joined([stored.without(ids), carried.stored_from(ids, after)])
        return _records(results)

    def _make_room(self, stored: Stored, rows: int) -> None:
        """For each connection of `stored`, one after the other."""
        self._state = with_room(self._state, carried.largest(stored) + rows)

    def _results(self, stored: Stored | None, rows: int) -> Results:
        """Room for what `rows` more rows of these connections, None: of the one at hand, may bring, and their ends."""
        if stored is None:
            touched, waiting, links = (int(self._state.numbers[cell]) for cell in (TOUCHED, PENDINGS, LINKS))
        else:
            touched, waiting, links = (len(stored.parts[name]) for name in ("touched", "pendings", "links"))
        return new_results(touched, waiting, links, rows)

    def finish(self) -> dict[str, Records]:
        """All connections have ended."""
        return self.end(NO_NUMBERS if self._stored is None else self._stored.ids)

    def end(self, ids: NDArray[np.int64]) -> dict[str, Records]:
        """These connections, and the one at hand, have no more frames."""
        over = Stored.empty(carried.PARTS)
        if self._stored is not None:
            over = self._stored.at(np.flatnonzero(np.isin(self._stored.ids, ids)))
            self._stored = self._stored.without(ids)
            self._make_room(over, 0)
        results = self._results(None if self._stored is None else over, 0)
        end_connections(self._state, carried.records_of(over), results)
        return _records(results)

    def what_waits(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Frames]:
        """Of these connections: the frame from which on it is not certain what settlements do; frames of requests that
        may still be answered."""
        stored = Stored.empty(carried.PARTS)
        until, ends = np.full(len(ids), NO_FRAME), np.zeros(len(ids), np.int64)
        if not len(ids) or (self._stored is None and not self._state.numbers[STARTED]):
            return until, Frames.of()
        if self._stored is not None:
            stored = self._stored.of(ids)
            self._make_room(stored, 0)
        most = len(self._state.requests) if self._stored is None else len(stored.parts["requests"])
        frames = np.zeros(most, np.int64)
        what_waits(self._state, carried.records_of(stored), until, frames, ends)
        return until, Frames(np.repeat(ids, np.diff(ends, prepend=0)), frames[: ends[-1] if len(ends) else 0])

    def put(self, ids: NDArray[np.int64], writer: Writer) -> None:
        """Write what is known of these connections, which stay."""
        assert self._stored is not None
        put_stored(self._stored.of(ids), carried, self._texts, writer)

    def take(self, ids: NDArray[np.int64], reader: Reader) -> None:
        """What `put` wrote of connections of which nothing is known."""
        assert self._stored is not None
        self._stored = Stored.joined([self._stored, take_stored(ids, carried, self._texts, reader)])

    def forget_texts(self, most: int = MOST_TEXTS) -> None:
        """Texts that only connections before had are forgotten, where there are more than `most`; no records wait to be
        shown."""
        if len(self._texts.texts) <= most:
            return
        stored = self._stored
        if stored is None:
            none = Stored.empty(carried.PARTS).of(self._state.numbers[CONNECTION : CONNECTION + 1].copy())
            sizes = int(self._state.numbers[TOUCHED:].max()) + int(self._state.found_by.used[0])
            records = carried.room_for(none, sizes)
            save_connection(self._state, records)
            stored = carried.stored_from(none.ids, records)
        texts = self._texts
        self._texts = self.texts["texts"] = Numbers([""])
        stored = with_other_numbers(stored, carried, texts, self._texts)
        if self._stored is not None:
            self._stored = stored
        else:
            load_connection(self._state, carried.records_of(stored))

    def shown(self, kind: str, records: Records) -> pa.RecordBatch:
        """Records of one kind as columns of their own names."""
        columns = {
            name: _column(np.ascontiguousarray(records[field]), holds, self.texts) for name, field, holds in KINDS[kind]
        }
        return pa.RecordBatch.from_pydict(columns)


def queue_types(frames: pa.RecordBatch, chosen: pa.Int64Array, tells: Mapping[str, tuple[str, str | None]]) -> pa.Array:
    """What `chosen` rows of `frames` tell of the types of their queues (`MethodRoles.queue_types`)."""
    told, names = pa.nulls(len(chosen), pa.string()), frames["name"].take(chosen)
    for name, (argument, told_type) in tells.items():
        at = np.flatnonzero(is_among(names, name))
        if len(at):
            values = values_of(frames["arguments"].take(chosen.take(pa.array(at))))
            passive, inner = fields_and_insides(values, {"passive": "boolean"}, ("arguments",))
            types = fields(inner["arguments"], {argument: "string" if told_type is None else "variant"})[argument]
            if told_type is not None:
                types = pc.if_else(is_there(types), told_type, None)
            types = pc.if_else(truth_of(passive["passive"]), None, types)  # a passive declaration changes nothing
            mask = np.zeros(len(chosen), bool)
            mask[at] = True
            told = pc.replace_with_mask(told, pa.array(mask), types.cast(pa.string()))
    return told


def _records(results: Results) -> dict[str, Records]:
    """What there is of each kind."""
    records = (results.messages, results.events, results.lives, results.links, results.replies)
    return {kind: rows[:count] for kind, rows, count in zip(KINDS, records, results.counts, strict=True) if count}


def _column(values: NDArray[np.int64], holds: str, known: Mapping[str, Numbers]) -> pa.Array:
    if holds == "number":
        return pa.array(values)
    if holds == "truth":
        return pa.array(values == 1, mask=values < 0)
    if holds == "number or null":
        return pa.array(values, mask=values < 0)
    if holds == "senders":
        return _SENDERS.take(pa.array(values, mask=values < 0))
    return known[holds].column(values)
