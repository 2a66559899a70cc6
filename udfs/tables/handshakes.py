"""What frames tell of connections: attributes of them and of their sides, from single handshake frames, by column; and
how many frames of each kind they have, per batch.

Which argument of which method is which column is data (`codec.tables.HANDSHAKE`), and so are the steps of the handshake
(`udfs.roles`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.sessions.semantics import IN_SEGMENTS
from codec.sides import SIDES
from codec.tables import ATTRIBUTES, ArgumentPath
from codec.variant import decode, encode
from codec.variant.reading import ABSENT, NUMBER, TEXT
from udfs import roles
from udfs.arrow.dictionaries import by_distinct
from udfs.arrow.fields import TYPES, Fields, Values, inside, read_as, values_of
from udfs.arrow.rows import in_one, is_among, is_there, numbered, numbers_of, picked, places_where
from udfs.arrow.types import VARIANT, nulls, with_parts
from udfs.conversation.capture_files import numbers_of_files
from udfs.conversation.frames import FrameBatch

INT64 = np.iinfo(np.int64)
NOTHING = np.zeros(0, np.int64)


# Names, or else types, of frames with attributes.
SPEAKS = tuple(
    dict.fromkeys(
        [
            *(place.method for _, places in ATTRIBUTES.values() for place in places),
            *roles.REACHES_STAGE, *roles.REACHED_BY_BOTH, *roles.BLOCKS,
            *(step for ends in roles.STEPS.values() for moments in ends for step, _ in moments),
        ]
    )
)  # fmt: skip

Events = dict[str, NDArray[np.int64]]  # columns of `udfs.tables.connections.BLOCK`
NO_CHANNEL = -1
EVENT_COLUMNS = ("connection_id", "ts_ns", "frame_no", "packet_no", "capture_file")
# Those that are read.
HANDSHAKE_COLUMNS = (*EVENT_COLUMNS, "sender", "frame_type", "name", "status", "arguments")


def handshake_frames(frames: FrameBatch) -> pa.Int64Array:
    """The places of frames with attributes."""
    named, of_type = frames.are("name", *SPEAKS), frames.are("frame_type", *SPEAKS)
    return places_where((named & ~frames.unfinished) | (of_type & ~frames.have("name")))


class ByConnection:
    """Rows in order, by connection: `ids`, sorted, and the `place` of each row's connection among them."""

    def __init__(self, connections: NDArray[np.int64]) -> None:
        self.ids, self.place = np.unique(connections, return_inverse=True)

    def first_of(self, there: NDArray[np.bool_], rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """By connection, the first of these `rows` (all) where `there` is true; -1 for none."""
        place = self.place if rows is None else self.place[rows]
        found = np.full(len(self.ids), -1)
        at = np.flatnonzero(there)[::-1]
        found[place[at]] = at
        return found

    def first(self, column: pa.Array, rows: NDArray[np.int64] | None = None) -> pa.Array:
        """By connection, the first value of `column`, which these `rows` (all) have; null for none."""
        return picked(column, self.first_of(is_there(column), rows))

    def earliest(self, times: NDArray[np.int64], at: NDArray[np.bool_]) -> pa.Array:
        """By connection, the earliest of the times where `at` is true; null for none."""
        found = np.full(len(self.ids), INT64.max)
        np.minimum.at(found, self.place[at], times[at])
        return pa.array(found, mask=found == INT64.max)

    def highest(self, numbers: NDArray[np.int64]) -> pa.Array:
        """By connection, the highest of the numbers; null for 0."""
        found = np.zeros(len(self.ids), np.int64)
        np.maximum.at(found, self.place, numbers)
        return pa.array(found, mask=found == 0)


def attributes_of(frames: pa.RecordBatch) -> pa.Table:
    """Frames -> a row of attributes a connection: the first value of each, the furthest stage; null where no frame
    states one."""
    by, ts_ns = ByConnection(numbers_of(frames["connection_id"])), numbers_of(frames["ts_ns"])
    moments = {
        name: by.earliest(ts_ns, at) if name.endswith("_ns") else by.first(pa.array(ts_ns, mask=~at))
        for name, at in _moments(frames).items()
    }
    stage = np.array([0, *(roles.STAGES.index(stage) + 1 for stage in roles.REACHES_STAGE.values())])
    return pa.table(
        {
            "connection_id": pa.array(by.ids),
            **_stated(frames, by),
            **moments,
            "stage": by.highest(stage[numbered(frames["name"], tuple(roles.REACHES_STAGE))]),
            **_closes(frames, by),
        }
    )


def merged(attributes: pa.Table) -> pa.Table:
    """Rows of `attributes_of` several batches, in order -> one row a connection."""
    by = ByConnection(numbers_of(attributes["connection_id"]))
    close_at = by.first_of(is_there(attributes["close_initiator"]))
    found: dict[str, pa.Array] = {"connection_id": pa.array(by.ids)}
    for name in attributes.column_names[1:]:
        column = in_one(attributes[name])
        if name == "stage":
            found[name] = by.highest(numbers_of(column))
        elif name.startswith("close_"):
            found[name] = picked(column, close_at)
        elif name.endswith("_ns"):
            found[name] = by.earliest(numbers_of(column), is_there(column))
        else:
            found[name] = by.first(column)
    return pa.table(found)


def blocks_of(frames: pa.RecordBatch) -> Events:
    """Connections that a broker blocks or unblocks (`on` 1, 0): the client cannot publish."""
    kinds = numbered(frames["name"], tuple(roles.BLOCKS))
    at = np.flatnonzero(kinds)
    on = np.array([0, *map(int, roles.BLOCKS.values())])
    none = np.zeros(len(at), np.int64)
    return {**_events(frames, at), "side": none, "channel": none + NO_CHANNEL, "on": on[kinds[at]]}


def windows_of(frames: FrameBatch) -> Events:
    """Sessions of 1.0 of which a side announces a window (`on`: 1 if it is 0) or ends them (-1): the other side cannot
    send."""
    ends = frames.are("name", *roles.ENDS_WINDOW)
    announces = ends | frames.are("name", *roles.ANNOUNCES_WINDOW)
    at = np.flatnonzero(announces & frames.are("frame_type", "amqp") & ~frames.unfinished)
    if not len(at):
        return {"connection_id": NOTHING}
    values = values_of(frames["arguments"]).taken(at)
    window = Fields(values, {roles.WINDOW: "bigint"}).numbers(roles.WINDOW, -1)
    stated = ends[at] | (window >= 0)
    at, window = at[stated], window[stated]
    rows = frames.rows.select(EVENT_COLUMNS).take(pa.array(at))
    on = np.where(ends[at], -1, window == 0)
    side = frames.are("sender", SIDES[0])[at].astype(np.int64)
    return {**_events(rows, np.arange(len(at))), "side": side, "channel": frames.cells("channel")[at], "on": on}


def _events(frames: pa.RecordBatch, at: NDArray[np.int64]) -> Events:
    """What identifies these frames."""
    found = {name: numbers_of(frames[name])[at] for name in ("connection_id", "ts_ns", "frame_no", "packet_no")}
    return {**found, "file": numbers_of_files(frames["capture_file"])[at]}


def _closes(frames: pa.RecordBatch, by: ByConnection) -> dict[str, pa.Array]:
    """What the first close of each connection states."""
    at = by.first_of(is_among(frames["name"], *roles.CLOSES_CONNECTION) & is_there(frames["sender"]))
    rows = at[at >= 0]
    arguments = Fields(
        values_of(frames["arguments"]).taken(rows), {"reply_code": "int", "reply_text": "string"}, ("error",)
    )
    error = Fields(arguments.inside("error"), {"condition": "string", "description": "string"})
    stated = {
        "close_initiator": frames["sender"].cast(pa.string()).take(pa.array(rows)),
        "close_code": arguments.column("reply_code"),
        "close_reply_text": arguments.column("reply_text"),
        **{f"close_{name}": of for name, of in error.columns().items()},
    }
    where = np.where(at >= 0, np.cumsum(at >= 0) - 1, -1)
    return {name: picked(of, where) for name, of in stated.items()}


def _moments(frames: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
    """Where each event with a time column happens."""
    unnamed = ~is_there(frames["name"])
    sides = {side: is_among(frames["sender"], side) for side in SIDES}
    found = {"open_ns": is_among(frames["name"], *roles.OPENED)}
    for method in roles.REACHED_BY_BOTH:
        found |= {f"{side}_{method}_ns": is_among(frames["name"], method) & sides[side] for side in SIDES}
    for column, ends in roles.STEPS.items():
        for which, moments in zip(("since", "until"), ends, strict=True):
            at = np.zeros(frames.num_rows, bool)
            for step, side in moments:
                takes = is_among(frames["name"], step) | is_among(frames["frame_type"], step) & unnamed
                at |= takes & sides[side]
            found[f"{column}_{which}"] = at
    return found


Stated = tuple[str, str, ArgumentPath]  # column, its kind, the argument
ByObject = dict[tuple[str, ...], list[Stated]]  # by the path of the object that they are fields of


def _read_from() -> dict[tuple[str, str | None], ByObject]:
    """ATTRIBUTES by (method, sender)."""
    found: dict[tuple[str, str | None], ByObject] = {}
    for column, (kind, places) in ATTRIBUTES.items():
        for place in places:
            of_method = found.setdefault((place.method, place.sender), {})
            of_method.setdefault(place.path[:-1], []).append((column, kind, place))
    return found


READ_FROM = _read_from()


def _stated(frames: pa.RecordBatch, by: ByConnection) -> dict[str, pa.Array]:
    """Columns of ATTRIBUTES."""
    parts: dict[str, list[tuple[NDArray[np.int64], pa.Array]]] = {column: [] for column in ATTRIBUTES}
    values = values_of(frames["arguments"])
    whole = ~is_among(frames["status"], "partial")
    for (method, sender), objects in READ_FROM.items():
        at = is_among(frames["name"], method)
        rows = np.flatnonzero(at & is_among(frames["sender"], sender) if sender else at)
        if not len(rows):
            continue
        own = values.taken(rows)
        for path, stated in objects.items():
            found = _arguments(own, path, stated, whole[rows])
            if "user" in found:
                found["user"] = _user_names(found["user"], found["mechanism"])
            for column, argument in found.items():
                parts[column].append((rows, argument))
    kinds = {column: VARIANT if kind == "variant" else TYPES[kind] for column, (kind, _) in ATTRIBUTES.items()}
    return {
        column: _first(by, parts[column]) if parts[column] else nulls(len(by.ids), kind)
        for column, kind in kinds.items()
    }


def _first(by: ByConnection, parts: Sequence[tuple[NDArray[np.int64], pa.Array]]) -> pa.Array:
    """The first value of each connection among several columns, each with the rows that have it."""
    ((rows, column),) = parts[:1]
    if len(parts) > 1:
        rows = np.concatenate([rows for rows, _ in parts])
        order = np.argsort(rows, kind="stable")
        rows, column = rows[order], pa.concat_arrays([column for _, column in parts]).take(pa.array(order))
    return by.first(column, rows)


def _user_names(users: pa.Array, mechanisms: pa.Array) -> pa.Array:
    """User names in clear: SCRAM writes a comma as =2C, an equals sign as =3D (RFC 5802, section 5.1)."""
    names = pc.replace_substring(pc.replace_substring(users, "=2C", ","), "=3D", "=")
    return pc.if_else(pc.starts_with(mechanisms, "SCRAM-").fill_null(False), names, users)


def _arguments(
    values: Values, path: Sequence[str], stated: Sequence[Stated], whole: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """Fields of the object at `path` in `values`, by column, each as its kind: the first one that is there, where a
    column may be in several. Arguments missing in a frame that is not `whole` get no default."""
    there = (values.stops > values.starts) & whole
    for name in path:
        values = inside(values, name)
    kinds = {place.path[-1]: kind for _, kind, place in stated}
    read, columns = Fields(values, kinds, kinds), dict[str, pa.Array]()
    for column, kind, place in stated:
        (name,) = place.path[-1:]
        found = read.column(name)
        if kind != "variant" and found.null_count:
            found = _converted(read.inside(name), found, kind)
        if place.default is not None:
            found = pc.if_else(pa.array(there & ~is_there(found)), place.default, found)
        columns[column] = pc.coalesce(columns[column], found) if column in columns else found
    return columns


def _converted(values: Values, found: pa.Array, kind: str) -> pa.Array:
    """`found`, with values of other types cast to the requested one."""
    kinds = read_as(values, ())[0]
    expected = TEXT if kind == "string" else NUMBER
    others = np.flatnonzero(~np.isin(kinds, (ABSENT, expected)))
    if not len(others):
        return found
    texts = found.to_pylist()
    for at in others.tolist():
        thing = values.python(at)
        texts[at] = _text(thing) if kind == "string" else _number(thing)
    return pa.array(texts, found.type)


def _text(thing: Any) -> str | None:
    if thing is None or isinstance(thing, str):
        return thing
    return json.dumps(thing, default=str, separators=(",", ":"))


def _number(thing: Any) -> int | None:
    try:
        number = int(thing)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if INT64.min <= number <= INT64.max else None


def capabilities(sides: list[pa.StructArray]) -> pa.StructArray:
    """{client, server} as VARIANT; null if neither has a value, or both exceed a VARIANT."""
    parts = (part.fill_null(b"") for side in sides for part in side.flatten())
    return with_parts(by_distinct(_both, VARIANT, *parts))


def _both(client: bytes, of_client: bytes, server: bytes, of_server: bytes) -> dict[str, bytes] | None:
    """{client, server} as a VARIANT, from value and metadata of each, which are empty if a side states none."""
    if not client and not server:
        return None
    values = [decode(*part) if part[0] else None for part in ((client, of_client), (server, of_server))]
    try:
        return dict(zip(("value", "metadata"), encode(dict(zip(SIDES, values, strict=True))), strict=True))
    except ValueError:
        return None


KINDS = ("frames", "methods", "heartbeats")
MEASURES = (*(f"{side}_{kind}" for kind in KINDS for side in SIDES), "published", "delivered", "headers")
COUNTED = pa.schema([(name, pa.int64()) for name in ("connection_id", *MEASURES)])


def frame_counts(frames: FrameBatch) -> pa.Table:
    """COUNTED, one row a connection."""
    connections = frames.cells("connection_id")
    starts = np.flatnonzero(np.diff(connections, prepend=connections[:1] - 1))
    columns = {"connection_id": connections[starts]}
    for name, adds in _measured(frames).items():
        columns[name] = np.add.reduceat(adds.astype(np.int64), starts)
    return pa.table(columns, schema=COUNTED)


def _measured(frames: FrameBatch) -> Mapping[str, NDArray[Any]]:
    """What each frame adds to each measure."""
    kinds = {
        "frames": ~frames.are("frame_type", *roles.SPANS, roles.HEADER) & frames.have("frame_type"),
        "methods": frames.are_methods,
        "heartbeats": frames.are("frame_type", *roles.BEAT_FRAMES) | frames.are("name", *roles.BEAT_METHODS),
    }
    sides = {side: frames.are("sender", side) for side in SIDES}
    # A message of 1.0 may take several transfers; the first of them counts. Only the last one shows whether it is a
    # command.
    # A transfer of 0-10 may take several frames; the last of them counts.
    contents, numbers = (frames.cells(column) for column in ("content_frame_no", "frame_no"))
    begins = frames.are("name", *roles.TRANSFERS) & (contents >= 0) & ~frames.unfinished
    begins &= (contents == numbers) | frames.are("version", *IN_SEGMENTS)
    moves = begins.astype(np.int64) - is_there(frames.transaction_commands)
    return {
        **{f"{side}_{of}": kinds[of] & sides[side] for of in KINDS for side in SIDES},
        "published": frames.are("name", *roles.PUBLISHING) + moves * sides["client"],
        "delivered": frames.are("name", *roles.DELIVERING) + moves * sides["server"],
        "headers": frames.are("frame_type", roles.HEADER),
    }
