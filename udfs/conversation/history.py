"""Frames in, history out: what a connection's methods say, in one pass over its frames in order.

    follower = Follower(roles)
    for kind, records in follower.feed(frames, arguments).items(): follower.shown(kind, records)

There are records of several kinds: messages, events for the settlement engine, lives of channels, links, and requests
with their answers. Nothing is held but the state of the connection at hand. Cost per batch, not per row: the kernel
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
from codec.conversation.channels.carried import NO_FRAME, open_requests, waiting_from
from codec.conversation.channels.history import end_connection, follow
from codec.conversation.channels.state import (
    CONNECTION,
    ROLE,
    STARTED,
    Results,
    Roles,
    Rows,
    new_results,
    new_state,
    with_room,
)
from codec.sides import SIDES
from udfs.arrow.fields import fields, fields_and_insides, values_of
from udfs.arrow.numbers import MOST_TEXTS, Numbers
from udfs.arrow.rows import (
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

Records = NDArray[Any]
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
    """Follows connections one after the other: frames in, what they say of channels, consumers and messages out."""

    def __init__(self, methods: MethodRoles) -> None:
        self._said, self._queue_types = methods.said, methods.queue_types
        self._roles, self._state = methods.compiled(), new_state()
        self._names, self._texts = Numbers(methods.roles), Numbers([""])  # the latter is EMPTY
        self.texts = {
            "names": self._names,
            "texts": self._texts,
            **{name: Numbers(values) for name, values in methods.texts.items()},
        }

    def feed(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> dict[str, Records]:
        """Take the next frames (columns OF_FRAMES; those of a connection together and in order) and fields ARGUMENTS of
        theirs -> records by kind, for `shown`; all of connections but the last."""
        chosen = places_where(self._said.chosen(frames))
        last = frames["connection_id"][-1].as_py() if frames.num_rows else None
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
        rows = Rows(name=self._names.of(frames["name"]), **texts, **numbers)
        self._state = with_room(self._state, frames.num_rows)
        results = new_results(self._state, frames.num_rows)
        follow(self._state, self._roles, rows, results)
        found = _records(results)
        if last is not None and self._state.numbers[STARTED] and self._state.numbers[CONNECTION] != last:
            for kind, records in self.finish().items():
                found[kind] = np.concatenate([found[kind], records]) if kind in found else records
        return found

    def finish(self) -> dict[str, Records]:
        """The connection at hand has no more frames."""
        results = new_results(self._state, 0)
        end_connection(self._state, results)
        self._state.numbers[STARTED] = 0
        return _records(results)

    def certain_until(self) -> int:
        """The frame from which on it is not certain what settlements of the connection at hand do."""
        return int(waiting_from(self._state)) if self._state.numbers[STARTED] else NO_FRAME

    def open_requests(self) -> NDArray[np.int64]:
        """Frames of requests of the connection at hand that may still be answered, in order."""
        frames = np.zeros(len(self._state.requests), np.int64)
        return np.sort(frames[: open_requests(self._state, frames)]) if self._state.numbers[STARTED] else frames[:0]

    def put_down(self) -> dict[str, Any]:
        """What is known of the connection at hand, which stays."""
        parts = carried.put_down(self._state)
        used = carried.texts_in(parts)
        places = {number: place for place, number in enumerate(used.tolist(), start=1)}
        texts = [self._texts.texts[number - 1] for number in used.tolist()]
        return {**carried.renumbered(parts, places), "texts": texts}

    def take_up(self, parts: Mapping[str, Any]) -> None:
        """What was put down; there is no connection at hand."""
        places = dict(enumerate(self._texts.numbered(parts["texts"]), start=1))
        records = {name: parts[name] for name in carried.ARRAYS}
        self._state = carried.taken_up(self._state, carried.renumbered(records, places))

    def forget_texts(self) -> None:
        """Texts that only connections before had are forgotten, where there are many; no records wait to be shown."""
        if len(self._texts.texts) > MOST_TEXTS:
            parts = self.put_down()
            self._texts = self.texts["texts"] = Numbers([""])
            self.take_up(parts)

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
