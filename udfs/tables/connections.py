"""Tables connections and streams, from the handshake frames and the facts of connections.

    connections = Connections(schemas)
    connections.add(frames)
    for table, rows in connections.rows(facts): ...

Of an open connection it stores a row of attributes, the number of frames, and the last block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec import stalls as S
from codec.compiler.limits import OUTSTANDING
from codec.conversation.session_state import IN_SEGMENTS
from codec.conversation.states import blank, find_ids
from codec.layers.connection_facts import limit_names
from codec.names import SIDES
from codec.packing import Reader, Writer
from codec.tables import ATTRIBUTES, FACTS, LEDGER, ArgumentPath
from codec.variant import decode, encode
from codec.variant.reading import ABSENT, NUMBER, TEXT
from udfs.arrow.arrays import (
    combine_chunks,
    concat_ws,
    elapsed,
    index_in,
    indices_where,
    is_in,
    is_valid,
    take_or_null,
    timestamps,
    to_int64,
    to_mask,
)
from udfs.arrow.fields import TYPES, Fields, Values, inside, read_as, values_of
from udfs.arrow.types import VARIANT, map_distinct_bytes, nulls, to_schema, without_null_children
from udfs.conversation import roles
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.roles import (
    RABBITMQ,
    REACHED_BY_BOTH,
    SASL_CODES,
    STAGES,
    STEPS,
)
from udfs.conversation.tracker_states import ConnectionRecords, restore_table, save_table
from udfs.decode.frame_rows import ARROW_FRAMES
from udfs.decode.stall_rows import numbers_of_files, stall_rows
from udfs.tables.stalls_table import Stalls

# What frames tell of connections: attributes of them and of their sides, from single handshake frames, by column; and
# how many frames of each kind they have, per batch.
#
# Which argument of which method is which column is data (`codec.tables.HANDSHAKE`), and so are the steps of the
# handshake (`udfs.conversation.roles`).


INT64 = np.iinfo(np.int64)
NOTHING = np.zeros(0, np.int64)


# Names, or else types, of frames with attributes.
HANDSHAKE_NAMES = tuple(
    dict.fromkeys(
        [
            *(argument.method for _, arguments in ATTRIBUTES.values() for argument in arguments),
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
    """The indices of frames with attributes."""
    named, of_type = frames.are("name", *HANDSHAKE_NAMES), frames.are("frame_type", *HANDSHAKE_NAMES)
    return indices_where((named & ~frames.unfinished) | (of_type & ~frames.have("name")))


class ByConnection:
    """Rows in order, by connection: `ids`, sorted, and the `index` of each row's connection among them."""

    def __init__(self, connections: NDArray[np.int64]) -> None:
        self.ids, self.index = np.unique(connections, return_inverse=True)

    def first_of(self, there: NDArray[np.bool_], rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """By connection, the first of these `rows` (all) where `there` is true; -1 for none."""
        index = self.index if rows is None else self.index[rows]
        found = np.full(len(self.ids), -1)
        at = np.flatnonzero(there)[::-1]
        found[index[at]] = at
        return found

    def first(self, column: pa.Array, rows: NDArray[np.int64] | None = None) -> pa.Array:
        """By connection, the first value of `column`, which these `rows` (all) have; null for none."""
        return take_or_null(column, self.first_of(is_valid(column), rows))

    def earliest(self, times: NDArray[np.int64], at: NDArray[np.bool_]) -> pa.Array:
        """By connection, the earliest of the times where `at` is true; null for none."""
        found = np.full(len(self.ids), INT64.max)
        np.minimum.at(found, self.index[at], times[at])
        return pa.array(found, mask=found == INT64.max)

    def highest(self, numbers: NDArray[np.int64]) -> pa.Array:
        """By connection, the highest of the numbers; null for 0."""
        found = np.zeros(len(self.ids), np.int64)
        np.maximum.at(found, self.index, numbers)
        return pa.array(found, mask=found == 0)


def attributes_of(frames: pa.RecordBatch) -> pa.Table:
    """Frames -> a row of attributes a connection: the first value of each, the furthest stage; null where no frame
    states one."""
    by, ts_ns = ByConnection(to_int64(frames["connection_id"])), to_int64(frames["ts_ns"])
    moments = {
        name: by.earliest(ts_ns, at) if name.endswith("_ns") else by.first(pa.array(ts_ns, mask=~at))
        for name, at in _moments(frames).items()
    }
    stage = np.array([0, *(roles.STAGES.index(stage) + 1 for stage in roles.REACHES_STAGE.values())])
    return pa.table(
        {
            "connection_id": pa.array(by.ids),
            **_handshake_facts(frames, by),
            **moments,
            "stage": by.highest(stage[index_in(frames["name"], tuple(roles.REACHES_STAGE))]),
            **_closes(frames, by),
        }
    )


def merged(attributes: pa.Table) -> pa.Table:
    """Rows of `attributes_of` several batches, in order -> one row a connection."""
    by = ByConnection(to_int64(attributes["connection_id"]))
    close_at = by.first_of(is_valid(attributes["close_initiator"]))
    found: dict[str, pa.Array] = {"connection_id": pa.array(by.ids)}
    for name in attributes.column_names[1:]:
        column = combine_chunks(attributes[name])
        if name == "stage":
            found[name] = by.highest(to_int64(column))
        elif name.startswith("close_"):
            found[name] = take_or_null(column, close_at)
        elif name.endswith("_ns"):
            found[name] = by.earliest(to_int64(column), is_valid(column))
        else:
            found[name] = by.first(column)
    return pa.table(found)


def blocks_of(frames: pa.RecordBatch) -> Events:
    """Connections that a broker blocks or unblocks (`on` 1, 0): the client cannot publish."""
    kinds = index_in(frames["name"], tuple(roles.BLOCKS))
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
    values = values_of(frames["arguments"]).rows_at(at)
    window = Fields(values, {roles.WINDOW: "bigint"}).numbers(roles.WINDOW, -1)
    known = ends[at] | (window >= 0)
    at, window = at[known], window[known]
    rows = frames.rows.select(EVENT_COLUMNS).take(pa.array(at))
    on = np.where(ends[at], -1, window == 0)
    side = frames.are("sender", SIDES[0])[at].astype(np.int64)
    return {**_events(rows, np.arange(len(at))), "side": side, "channel": frames.cells("channel")[at], "on": on}


def _events(frames: pa.RecordBatch, at: NDArray[np.int64]) -> Events:
    """What identifies these frames."""
    found = {name: to_int64(frames[name])[at] for name in ("connection_id", "ts_ns", "frame_no", "packet_no")}
    return {**found, "file": numbers_of_files(frames["capture_file"])[at]}


def _closes(frames: pa.RecordBatch, by: ByConnection) -> dict[str, pa.Array]:
    """What the first close of each connection states."""
    at = by.first_of(is_in(frames["name"], *roles.CLOSES_CONNECTION) & is_valid(frames["sender"]))
    rows = at[at >= 0]
    arguments = Fields(
        values_of(frames["arguments"]).rows_at(rows), {"reply_code": "int", "reply_text": "string"}, ("error",)
    )
    error = Fields(arguments.inside("error"), {"condition": "string", "description": "string"})
    columns = {
        "close_initiator": frames["sender"].cast(pa.string()).take(pa.array(rows)),
        "close_code": arguments.column("reply_code"),
        "close_reply_text": arguments.column("reply_text"),
        **{f"close_{name}": of for name, of in error.columns().items()},
    }
    where = np.where(at >= 0, np.cumsum(at >= 0) - 1, -1)
    return {name: take_or_null(of, where) for name, of in columns.items()}


def _moments(frames: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
    """Where each event with a time column happens."""
    unnamed = ~is_valid(frames["name"])
    sides = {side: is_in(frames["sender"], side) for side in SIDES}
    found = {"open_ns": is_in(frames["name"], *roles.OPENED)}
    for method in roles.REACHED_BY_BOTH:
        found |= {f"{side}_{method}_ns": is_in(frames["name"], method) & sides[side] for side in SIDES}
    for column, ends in roles.STEPS.items():
        for which, moments in zip(("since", "until"), ends, strict=True):
            at = np.zeros(frames.num_rows, bool)
            for step, side in moments:
                takes = is_in(frames["name"], step) | is_in(frames["frame_type"], step) & unnamed
                at |= takes & sides[side]
            found[f"{column}_{which}"] = at
    return found


ArgumentColumn = tuple[str, str, ArgumentPath]  # column, its kind, the argument
ByObject = dict[tuple[str, ...], list[ArgumentColumn]]  # by the path of the object that they are fields of


def _read_from() -> dict[tuple[str, str | None], ByObject]:
    """ATTRIBUTES by (method, sender)."""
    found: dict[tuple[str, str | None], ByObject] = {}
    for column, (kind, arguments) in ATTRIBUTES.items():
        for argument in arguments:
            of_method = found.setdefault((argument.method, argument.sender), {})
            of_method.setdefault(argument.path[:-1], []).append((column, kind, argument))
    return found


ATTRIBUTES_BY_METHOD = _read_from()


def _handshake_facts(frames: pa.RecordBatch, by: ByConnection) -> dict[str, pa.Array]:
    """Columns of ATTRIBUTES."""
    parts: dict[str, list[tuple[NDArray[np.int64], pa.Array]]] = {column: [] for column in ATTRIBUTES}
    values = values_of(frames["arguments"])
    whole = ~is_in(frames["status"], "partial")
    for (method, sender), objects in ATTRIBUTES_BY_METHOD.items():
        at = is_in(frames["name"], method)
        rows = np.flatnonzero(at & is_in(frames["sender"], sender) if sender else at)
        if not len(rows):
            continue
        own = values.rows_at(rows)
        for path, columns in objects.items():
            found = _arguments(own, path, columns, whole[rows])
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
    values: Values, path: Sequence[str], wanted: Sequence[ArgumentColumn], whole: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """Fields of the object at `path` in `values`, by column, each as its kind: the first one that is there, where a
    column may be in several. Arguments missing in a frame that is not `whole` get no default."""
    there = (values.stops > values.starts) & whole
    for name in path:
        values = inside(values, name)
    kinds = {argument.path[-1]: kind for _, kind, argument in wanted}
    read, columns = Fields(values, kinds, kinds), dict[str, pa.Array]()
    for column, kind, argument in wanted:
        (name,) = argument.path[-1:]
        found = read.column(name)
        if kind != "variant" and found.null_count:
            found = _converted(read.inside(name), found, kind)
        if argument.default is not None:
            found = pc.if_else(pa.array(there & ~is_valid(found)), argument.default, found)
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
    return without_null_children(map_distinct_bytes(_both, VARIANT, *parts))


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
    moves = begins.astype(np.int64) - is_valid(frames.transaction_commands)
    return {
        **{f"{side}_{of}": kinds[of] & sides[side] for of in KINDS for side in SIDES},
        "published": frames.are("name", *roles.PUBLISHING) + moves * sides["client"],
        "delivered": frames.are("name", *roles.DELIVERING) + moves * sides["server"],
        "headers": frames.are("frame_type", roles.HEADER),
    }


Integers = NDArray[np.int64]
SILENCE = S.KINDS[S.SILENCE]
UNKNOWN_NS = np.iinfo(np.int64).max
BEATS = 2  # without any for so many intervals a side is given up (0-9-1, 4.2.7)
S_NS, MS_NS = 10**9, 10**6
PIECES = 64  # of a connection, after which they are summed up
HANDSHAKE_ROWS, HANDSHAKE_BYTES = 1 << 12, 1 << 22  # frames with attributes that are read together
KEY = "connection_id"
NAMED_VHOST = "vhost:"  # RabbitMQ: prefix of a virtual host in the hostname of a 1.0 open
# Columns for client_name: the first one that is not null; names chosen by people first, product and version last.
NAMES = ("connection_name", "client_container_id", "client_program", "client_product client_version")
AGREED = ("channel_max", "frame_max", "heartbeat_s")  # limits that both sides state
STATED_BY_BOTH = ("1.0",)  # versions in which each side announces its limits, and the smaller one applies
# `on`: 1 blocked, 0 not, ENDED: what it is about has ended. `from_*`: of a block, what began it.
BLOCK = blank(
    f"{KEY} side channel ts_ns frame_no packet_no file on blocked_ns from_ts_ns from_frame_no from_packet_no from_file"
).dtype
ENDED = -1
OF_EVENT = ("ts_ns", "frame_no", "packet_no", "file")
# Column -> fields of the byte ledger: one column a side, or the sum over both.
BY_SIDE = {
    "packets": "packets",
    "bytes": "payload_bytes",
    "max_silence_ns": "max_silence_ns",
    "zero_window_ns": "zero_window_ns",
}
SUMMED = {
    "retransmitted_bytes": ("retransmitted_bytes",),
    "out_of_order_segments": ("out_of_order_segments",),
    "missing_bytes": ("missing_bytes",),
    "undecoded_bytes": ("skipped_bytes", "foreign_bytes", "tail_bytes"),
}


class Connections:
    """Collects attributes and counts of connections; see the module's text."""

    def __init__(self, schemas: Mapping[str, pa.Schema], stalls: Stalls) -> None:
        self._schemas, self._stalls = schemas, stalls
        self._attributes, self._counts = list[pa.Table](), list[pa.Table]()
        self._handshakes = list[pa.RecordBatch]()  # frames whose attributes are not read yet
        self._blocks = ConnectionRecords(BLOCK, KEY)

    def add(self, frames: FrameBatch) -> None:
        """Take frames."""
        self._counts.append(frame_counts(frames))
        if len(self._counts) >= PIECES:
            self._counts = [self._all_counts()]
        selected = handshake_frames(frames)
        if len(selected):
            rows = frames.rows.select(HANDSHAKE_COLUMNS).take(selected)
            self._handshakes.append(rows)
            self._block(blocks_of(rows))
            count, size = sum(map(len, self._handshakes)), sum(each.nbytes for each in self._handshakes)
            if count >= HANDSHAKE_ROWS or size >= HANDSHAKE_BYTES:
                self._attributes = [self._all_attributes()]
        self._block(windows_of(frames))

    def rows(self, facts: pa.RecordBatch, gave_up: set[int]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """CONNECTION_FACTS of connections that have ended -> table, rows. Removes them from `gave_up`: those with
        too many outstanding messages."""
        tcp_facts = facts["facts"]
        ids = facts[KEY]
        columns = {name: _field(tcp_facts, name) for name in FACTS.names}
        columns |= {KEY: ids, "version": facts["version"].cast(pa.string()), "version_known": facts["version_known"]}
        if gave_up:
            columns["limits"] = _limited(ids, columns["limits"], gave_up)
        columns |= self._known(to_int64(ids))
        yield "connections", to_schema(self._columns_of_connections(columns, tcp_facts), self._schemas["connections"])
        yield "streams", self._streams(ids, tcp_facts)

    @property
    def schemas(self) -> list[pa.Schema]:
        return [_attribute_schema(), COUNTED]

    def save(self, ids: Integers, writer: Writer) -> None:
        """Write the attributes and counts of these connections, which stay."""
        save_table(self._all_attributes(), _attribute_schema(), ids, writer)
        save_table(self._all_counts(), COUNTED, ids, writer)
        self._blocks.save(ids, writer)

    def restore(self, reader: Reader) -> None:
        """Add connections that `save` wrote."""
        for tables, schema in zip((self._attributes, self._counts), self.schemas, strict=True):
            found = restore_table(schema, reader)
            tables += [found] if found is not None else []
        self._blocks.restore(reader)

    def _all_attributes(self) -> pa.Table:
        """One row a connection."""
        if self._handshakes:
            frames = pa.Table.from_batches(self._handshakes).combine_chunks().to_batches()
            self._attributes += [attributes_of(rows) for rows in frames]
            self._handshakes.clear()
        if len(self._attributes) == 1:
            return self._attributes[0]
        return merged(pa.concat_tables([_attribute_schema().empty_table(), *self._attributes]))

    def _all_counts(self) -> pa.Table:
        """Numbers of frames, one row a connection."""
        if len(self._counts) == 1:
            return self._counts[0]
        whole = pa.concat_tables([COUNTED.empty_table(), *self._counts])
        sums = whole.group_by(KEY, use_threads=False).aggregate([(name, "sum") for name in MEASURES])
        return pa.table([sums[KEY], *(sums[f"{name}_sum"] for name in MEASURES)], schema=COUNTED)

    def without_usual_silence(self, stalls: pa.RecordBatch) -> pa.RecordBatch:
        """Stalls (STALL) without silences that their sides may make: shorter ones than promised, and those that began
        before the connection was open."""
        silent = is_in(stalls["kind"], SILENCE)
        if not silent.any():
            return stalls
        attributes = self._all_attributes()
        self._attributes = [attributes]
        at = find_ids(to_int64(attributes[KEY]), to_int64(stalls["connection_id"]))
        opened = [take_or_null(attributes[name], at) for name in ("open_ns", "client_open_ns", "server_open_ns")]
        opened_ns = to_int64(pc.coalesce(opened[0], pc.max_element_wise(*opened[1:], skip_nulls=False)), UNKNOWN_NS)
        by_client = is_in(stalls["side"], SIDES[0])
        # A side of 1.0 sends within the time-out of the other one; else it is given up after two heartbeats.
        beats = to_int64(take_or_null(attributes["heartbeat_s"], at)) * BEATS * S_NS
        other = [to_int64(take_or_null(attributes[f"{side}_idle_timeout_ms"], at)) * MS_NS for side in SIDES[::-1]]
        promised = np.where(beats > 0, beats, np.where(by_client, *other))
        lasted = to_int64(stalls["stall_ns"])
        lasts = stalls["until_ns"].is_null()
        broken = (promised > 0) & (to_int64(stalls["from_ns"]) >= opened_ns) & (to_mask(lasts) | (lasted > promised))
        return stalls.filter(pa.array(~silent | broken))

    def _block(self, events: dict[str, Integers]) -> None:
        """Collect blocked and unblocked connections (channel -1) and sessions; blocks that have ended are summed up."""
        if len(events[KEY]):
            more = np.zeros(len(events[KEY]), BLOCK)
            for name, column in events.items():
                more[name] = column
            for name in OF_EVENT:
                more[f"from_{name}"] = more[name]
            self._blocks.add(more)
            left, over = _last_block_per_connection(self._blocks.all())
            self._blocks.replace(left)
            self._stalls.add(over)

    def _known(self, ids: Integers) -> dict[str, pa.Array]:
        """Remove and return the attributes and counts of these connections."""
        of_attributes, attributes = _taken_out(self._all_attributes(), ids)
        of_counts, counts = _taken_out(self._all_counts(), ids)
        self._attributes, self._counts = [attributes], [counts]
        return of_attributes | of_counts

    def _blocked(self, ids: Integers, closed_ns: Integers) -> Integers:
        """Remove the blocks of these connections: how long each was blocked; of several sessions the longest."""
        blocks, found = self._blocks.of(ids), np.zeros(len(ids), np.int64)
        if len(blocks):
            at = find_ids(ids, blocks[KEY])
            still = np.maximum(closed_ns[at] - blocks["ts_ns"], 0)
            of_client = blocks["side"] == 0
            spans = np.where(of_client, blocks["blocked_ns"] + np.where(blocks["on"] == 1, still, 0), 0)
            np.maximum.at(found, at, spans)
            self._stalls.add(_stalls(blocks[blocks["on"] == 1], None))
            self._blocks.drop(ids)
        return found

    def _columns_of_connections(self, known: Mapping[str, pa.Array], facts: pa.StructArray) -> dict[str, pa.Array]:
        """Columns of table connections."""
        both = {
            method: pc.and_(*(known[f"{side}_{method}_ns"].is_valid() for side in SIDES)) for method in REACHED_BY_BOTH
        }
        sides = [known[f"{side}_open_ns"] for side in SIDES]
        nothing = pa.scalar(None, pa.int64())
        # Where both sides open, the later one opens the connection.
        latest = pc.if_else(both["open"], pc.max_element_wise(*sides), nothing)
        difference = pc.if_else(both["open"], pc.abs(pc.subtract(*sides)), nothing)
        open_ns = pc.coalesce(known["open_ns"], latest)
        headers = pc.greater(known["headers"], 0).fill_null(False)
        steps = {name: elapsed(known[f"{name}_since"], known[f"{name}_until"]) for name in STEPS}
        steps["open_latency_ns"] = pc.coalesce(steps["open_latency_ns"], difference)
        blocked_ns = self._blocked(to_int64(known[KEY]), to_int64(known["closed_ts_ns"]))
        refusals = pa.array([None, *(f"sasl-outcome: {name}" for name in SASL_CODES)])
        sasl = to_int64(known["sasl_code"], null=0)
        refused = refusals.take(pa.array(np.where(sasl < len(refusals), np.maximum(sasl, 0), 0)))
        table = self._schemas["connections"]
        of_facts = (name for name in FACTS.names if name in table.names)
        columns = {name: known[name] for name in (KEY, "version", "version_known", *of_facts)}
        columns |= {name: known[name] for name in ATTRIBUTES if name in table.names}
        columns["vhost"] = _vhosts(known)
        columns |= self._of_sides(facts)
        for name in MEASURES:
            label = f"messages_{name}" if name in ("published", "delivered") else name
            if name != "headers":
                columns[label] = known[name].fill_null(0)
        by_both = pc.invert(pc.is_in(known["version"], pa.array(STATED_BY_BOTH)))
        for name in AGREED:
            limits = [known[f"{side}_{name}"] for side in SIDES]
            smaller = pc.if_else(both["open"], pc.min_element_wise(*limits), nothing)
            columns[name] = pc.if_else(by_both, known.get(name, limits[0]), smaller)
        return {
            **columns,
            **steps,
            "tls": self._tls(known["tls"]),
            "state": self._state(known, both, headers),
            "opened_ts": timestamps(known["opened_ts_ns"]),
            "closed_ts": timestamps(known["closed_ts_ns"]),
            "handshake_ns": pc.if_else(
                known["syn_captured"].fill_null(False), elapsed(known["opened_ts_ns"], open_ns), nothing
            ),
            "client_name": pc.coalesce(*(concat_ws([known[part] for part in name.split()], " ") for name in NAMES)),
            "capabilities": capabilities([known[f"{side}_capabilities"] for side in SIDES]),
            "close_initiator": known["close_initiator"],
            "close_code": known["close_code"],
            "close_text": pc.coalesce(
                known["close_reply_text"],
                concat_ws([known[f"close_{name}"] for name in ("condition", "description")], ": "),
                refused,
            ),
            "blocked_ns": pa.array(blocked_ns),
        }

    def _of_sides(self, facts: pa.StructArray) -> dict[str, pa.Array]:
        columns = {f"{side}_{name}": _field(facts, side, field) for side in SIDES for name, field in BY_SIDE.items()}
        for name, parts in SUMMED.items():
            sums = sum(to_int64(_field(facts, side, part)) for side in SIDES for part in parts)
            columns[name] = pa.array(sums)
        undecoded = to_int64(columns["undecoded_bytes"]) - to_int64(_field(facts, "proxy_bytes"))
        columns["undecoded_bytes"] = pa.array(undecoded)
        return columns

    def _tls(self, facts: pa.Array) -> pa.StructArray:
        kind = self._schemas["connections"].field("tls").type
        parts = {field.name: _field(facts, field.name) for field in kind}
        parts["mode"] = pc.coalesce(parts["mode"], "none")
        # Spark gives timestamps in the zone of its session.
        return pa.StructArray.from_arrays([parts[field.name].cast(field.type) for field in kind], fields=list(kind))

    def _state(self, known: Mapping[str, pa.Array], both: Mapping[str, pa.Array], headers: pa.Array) -> pa.Array:
        """The furthest stage."""
        reached = np.maximum(to_int64(known["stage"]) - 1, 0)
        for stage, there in (("header", headers), *((stage, both[of]) for of, stage in REACHED_BY_BOTH.items())):
            reached = np.maximum(reached, np.where(to_mask(there), STAGES.index(stage), 0))
        return pa.array(STAGES).take(pa.array(reached))

    def _streams(self, ids: pa.Array, facts: pa.StructArray) -> pa.RecordBatch:
        """Table streams: two rows a connection."""
        count = len(ids)
        order = pa.array(np.arange(2 * count).reshape(2, count).T.reshape(-1))
        columns = {KEY: pa.concat_arrays([ids.cast(pa.int64())] * 2).take(order)}
        columns["sender"] = pa.array(SIDES).take(pa.array(np.tile([0, 1], count)))
        for field in LEDGER.names:
            columns[field] = pa.concat_arrays([_field(facts, side, field) for side in SIDES]).take(order)
        return to_schema(columns, self._schemas["streams"])


def _vhosts(known: Mapping[str, pa.Array]) -> pa.Array:
    """Virtual hosts: in 1.0 the hostname of the open; RabbitMQ's is '/' unless the hostname names another one."""
    asked, of_1_0 = known["vhost"], pc.equal(known["version"], "1.0").fill_null(False)
    named = pc.and_(of_1_0, pc.starts_with(asked, NAMED_VHOST).fill_null(False))
    of_rabbitmq = pc.and_(of_1_0, pc.equal(known["server_product"], RABBITMQ).fill_null(False))
    default = pc.if_else(of_rabbitmq, "/", asked)
    return pc.if_else(named, pc.utf8_slice_codeunits(asked, len(NAMED_VHOST)), default)


@cache
def _attribute_schema() -> pa.Schema:
    """The columns of attributes."""
    return attributes_of(pa.RecordBatch.from_pylist([], ARROW_FRAMES)).schema


def _taken_out(rows: pa.Table, ids: Integers) -> tuple[dict[str, pa.Array], pa.Table]:
    """The columns of these connections, null where there is none, and the rows of the others."""
    known = to_int64(rows[KEY])
    at = find_ids(known, ids)
    columns = {name: take_or_null(rows[name], at) for name in rows.column_names if name != KEY}
    return columns, rows.filter(pa.array(~np.isin(known, ids)))


def _limited(ids: pa.Array, limits: pa.Array, gave_up: set[int]) -> pa.Array:
    """`limits` with the name of that of outstanding messages added for connections in `gave_up`."""
    (name,) = limit_names(OUTSTANDING)
    found = limits.to_pylist()
    for at, connection in enumerate(ids.to_pylist()):
        if connection in gave_up:
            found[at] = [*(found[at] or ()), name]
            gave_up.discard(connection)
    return pa.array(found, limits.type)


def _field(struct: pa.StructArray, *path: str) -> pa.Array:
    return combine_chunks(pc.struct_field(struct, list(path)))


def _last_block_per_connection(blocks: NDArray[np.void]) -> tuple[NDArray[np.void], pa.RecordBatch]:
    """One row a connection, side and channel: its last block, and the total time of the others; without any, none. And
    the stalls (STALL) that have ended."""
    blocks = blocks[np.lexsort([blocks["channel"], blocks["side"], blocks[KEY]])].copy()
    same = np.logical_and.reduce([blocks[name][1:] == blocks[name][:-1] for name in (KEY, "side", "channel")])
    on = blocks["on"] == 1
    spans = np.where(same & on[:-1], np.diff(blocks["ts_ns"]), 0)
    spans = np.append(spans, 0) + blocks["blocked_ns"]
    goes_on = np.append(False, same & on[:-1])
    begins = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(blocks))))
    before = np.maximum(np.arange(len(blocks)) - 1, 0)
    for name in OF_EVENT:
        blocks[f"from_{name}"] = np.where(on & goes_on, blocks[f"from_{name}"][begins], blocks[f"from_{name}"])
    stops = np.flatnonzero(goes_on & ~on)
    stalls = _stalls(blocks[before[stops]], blocks[stops])
    ends = np.flatnonzero(np.append(~same, True))
    found: NDArray[np.void] = blocks[ends].copy()
    found["blocked_ns"] = np.add.reduceat(spans, np.concatenate([[0], ends[:-1] + 1]))
    blocked: NDArray[np.bool_] = (found["on"] == 1) | (found["blocked_ns"] > 0)
    return found[blocked], stalls


def _stalls(blocks: NDArray[np.void], stops: NDArray[np.void] | None) -> pa.RecordBatch:
    """Stalls (STALL) of blocks, and of what ended each; None: they last."""
    rows = np.full((len(blocks), len(S.CELLS)), S.NONE)
    cells = {S.CONNECTION: KEY, S.SIDE: "side", S.CHANNEL: "channel"}
    cells |= dict(zip((S.FROM, S.FRAME, S.PACKET, S.FILE), (f"from_{name}" for name in OF_EVENT), strict=True))
    for cell, name in cells.items():
        rows[:, cell] = blocks[name]
    rows[:, S.KIND] = np.where(blocks["channel"] == NO_CHANNEL, S.CONNECTION_BLOCKED, S.SESSION_WINDOW)
    rows[:, S.LASTED], rows[:, S.RESUMED] = 0, 0
    if stops is not None:
        rows[:, S.UNTIL], rows[:, S.RESUMED] = stops["ts_ns"], stops["on"] != ENDED
        rows[:, S.LASTED] = np.maximum(stops["ts_ns"] - blocks["from_ts_ns"], 0)
    return stall_rows(rows)
