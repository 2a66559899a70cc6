"""Tables connections and streams, from the handshake frames and the facts of connections.

    connections = Connections(schemas)
    connections.add(frames)
    for table, rows in connections.rows(facts): ...

Of an open connection it stores a row of attributes, the number of frames, and the last block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec import stalls as S
from codec.amqp.connections.facts import limit_names
from codec.compiler.limits import OUTSTANDING
from codec.conversation.states import blank, places
from codec.packing import Reader, Writer
from codec.sides import SIDES
from codec.tables import ATTRIBUTES, FACTS, LEDGER
from udfs.arrow.rows import elapsed, in_one, in_one_text, is_among, numbers_of, picked, timestamps, truth_of
from udfs.arrow.types import bound
from udfs.conversation.frames import FrameBatch
from udfs.conversation.states import ConnectionRecords, restore_table, save_table
from udfs.decode.frame_rows import ARROW_DECODED
from udfs.decode.stall_rows import stall_rows
from udfs.roles import RABBITMQ, REACHED_BY_BOTH, SASL_CODES, STAGES, STEPS
from udfs.tables.handshakes import (
    COUNTED,
    HANDSHAKE_COLUMNS,
    MEASURES,
    NO_CHANNEL,
    attributes_of,
    blocks_of,
    capabilities,
    frame_counts,
    handshake_frames,
    merged,
    windows_of,
)
from udfs.tables.stalls import Stalls

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
        chosen = handshake_frames(frames)
        if len(chosen):
            rows = frames.rows.select(HANDSHAKE_COLUMNS).take(chosen)
            self._handshakes.append(rows)
            self._block(blocks_of(rows))
            count, size = sum(map(len, self._handshakes)), sum(each.nbytes for each in self._handshakes)
            if count >= HANDSHAKE_ROWS or size >= HANDSHAKE_BYTES:
                self._attributes = [self._all_attributes()]
        self._block(windows_of(frames))

    def rows(self, facts: pa.RecordBatch, gave_up: set[int]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Facts of connections that have ended (DECODED rows of kind 'connection') -> table, rows. Removes
        them from `gave_up`: those with too many outstanding messages."""
        stated = pc.list_flatten(facts["facts"])
        ids = facts[KEY]
        columns = {name: _field(stated, name) for name in FACTS.names}
        columns |= {KEY: ids, "version": facts["version"].cast(pa.string()), "version_known": facts["version_known"]}
        if gave_up:
            columns["limits"] = _limited(ids, columns["limits"], gave_up)
        columns |= self._known(numbers_of(ids))
        yield "connections", bound(self._concluded(columns, stated), self._schemas["connections"])
        yield "streams", self._streams(ids, stated)

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
        silent = is_among(stalls["kind"], SILENCE)
        if not silent.any():
            return stalls
        attributes = self._all_attributes()
        self._attributes = [attributes]
        at = places(numbers_of(attributes[KEY]), numbers_of(stalls["connection_id"]))
        opened = [picked(attributes[name], at) for name in ("open_ns", "client_open_ns", "server_open_ns")]
        opened_ns = numbers_of(pc.coalesce(opened[0], pc.max_element_wise(*opened[1:], skip_nulls=False)), UNKNOWN_NS)
        by_client = is_among(stalls["side"], SIDES[0])
        # A side of 1.0 sends within the time-out of the other one; else it is given up after two heartbeats.
        beats = numbers_of(picked(attributes["heartbeat_s"], at)) * BEATS * S_NS
        other = [numbers_of(picked(attributes[f"{side}_idle_timeout_ms"], at)) * MS_NS for side in SIDES[::-1]]
        promised = np.where(beats > 0, beats, np.where(by_client, *other))
        lasted = numbers_of(stalls["stall_ns"])
        lasts = stalls["until_ns"].is_null()
        broken = (promised > 0) & (numbers_of(stalls["from_ns"]) >= opened_ns) & (truth_of(lasts) | (lasted > promised))
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
            left, over = _over(self._blocks.all())
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
            at = places(ids, blocks[KEY])
            still = np.maximum(closed_ns[at] - blocks["ts_ns"], 0)
            of_client = blocks["side"] == 0
            spans = np.where(of_client, blocks["blocked_ns"] + np.where(blocks["on"] == 1, still, 0), 0)
            np.maximum.at(found, at, spans)
            self._stalls.add(_stalls(blocks[blocks["on"] == 1], None))
            self._blocks.drop(ids)
        return found

    def _concluded(self, known: Mapping[str, pa.Array], stated: pa.StructArray) -> dict[str, pa.Array]:
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
        blocked_ns = self._blocked(numbers_of(known[KEY]), numbers_of(known["closed_ts_ns"]))
        refusals = pa.array([None, *(f"sasl-outcome: {name}" for name in SASL_CODES)])
        sasl = numbers_of(known["sasl_code"], null=0)
        refused = refusals.take(pa.array(np.where(sasl < len(refusals), np.maximum(sasl, 0), 0)))
        table = self._schemas["connections"]
        as_stated = (name for name in FACTS.names if name in table.names)
        columns = {name: known[name] for name in (KEY, "version", "version_known", *as_stated)}
        columns |= {name: known[name] for name in ATTRIBUTES if name in table.names}
        columns["vhost"] = _vhosts(known)
        columns |= self._of_sides(stated)
        for name in MEASURES:
            shown = f"messages_{name}" if name in ("published", "delivered") else name
            if name != "headers":
                columns[shown] = known[name].fill_null(0)
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
                known["syn_seen"].fill_null(False), elapsed(known["opened_ts_ns"], open_ns), nothing
            ),
            "client_name": pc.coalesce(*(in_one_text([known[part] for part in name.split()], " ") for name in NAMES)),
            "capabilities": capabilities([known[f"{side}_capabilities"] for side in SIDES]),
            "close_initiator": known["close_initiator"],
            "close_code": known["close_code"],
            "close_text": pc.coalesce(
                known["close_reply_text"],
                in_one_text([known[f"close_{name}"] for name in ("condition", "description")], ": "),
                refused,
            ),
            "blocked_ns": pa.array(blocked_ns),
        }

    def _of_sides(self, stated: pa.StructArray) -> dict[str, pa.Array]:
        columns = {f"{side}_{name}": _field(stated, side, field) for side in SIDES for name, field in BY_SIDE.items()}
        for name, parts in SUMMED.items():
            sums = sum(numbers_of(_field(stated, side, part)) for side in SIDES for part in parts)
            columns[name] = pa.array(sums)
        undecoded = numbers_of(columns["undecoded_bytes"]) - numbers_of(_field(stated, "proxy_bytes"))
        columns["undecoded_bytes"] = pa.array(undecoded)
        return columns

    def _tls(self, stated: pa.Array) -> pa.StructArray:
        kind = self._schemas["connections"].field("tls").type
        parts = {field.name: _field(stated, field.name) for field in kind}
        parts["mode"] = pc.coalesce(parts["mode"], "none")
        # Spark gives timestamps in the zone of its session.
        return pa.StructArray.from_arrays([parts[field.name].cast(field.type) for field in kind], fields=list(kind))

    def _state(self, known: Mapping[str, pa.Array], both: Mapping[str, pa.Array], headers: pa.Array) -> pa.Array:
        """The furthest stage."""
        reached = np.maximum(numbers_of(known["stage"]) - 1, 0)
        for stage, there in (("header", headers), *((stage, both[of]) for of, stage in REACHED_BY_BOTH.items())):
            reached = np.maximum(reached, np.where(truth_of(there), STAGES.index(stage), 0))
        return pa.array(STAGES).take(pa.array(reached))

    def _streams(self, ids: pa.Array, stated: pa.StructArray) -> pa.RecordBatch:
        """Table streams: two rows a connection."""
        count = len(ids)
        order = pa.array(np.arange(2 * count).reshape(2, count).T.reshape(-1))
        columns = {KEY: pa.concat_arrays([ids.cast(pa.int64())] * 2).take(order)}
        columns["sender"] = pa.array(SIDES).take(pa.array(np.tile([0, 1], count)))
        for field in LEDGER.names:
            columns[field] = pa.concat_arrays([_field(stated, side, field) for side in SIDES]).take(order)
        return bound(columns, self._schemas["streams"])


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
    return attributes_of(pa.RecordBatch.from_pylist([], ARROW_DECODED)).schema


def _taken_out(rows: pa.Table, ids: Integers) -> tuple[dict[str, pa.Array], pa.Table]:
    """The columns of these connections, null where there is none, and the rows of the others."""
    known = numbers_of(rows[KEY])
    at = places(known, ids)
    columns = {name: picked(rows[name], at) for name in rows.column_names if name != KEY}
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
    return in_one(pc.struct_field(struct, list(path)))


def _over(blocks: NDArray[np.void]) -> tuple[NDArray[np.void], pa.RecordBatch]:
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
