"""From rows of the tables to what a cut needs: connections, frames, packets, comments.

A connection selects all its packets. A frame selects its bytes in the stream (`stream_offset` and `size`), from which
`pipeline.extract.frame_packets` finds the packets. A message selects its frames, the frame that settled it and the
frame that returned it. Rows of other tables select:

    connections, streams    the connection
    channels, links         the frames of the channel in that time
    frames, methods, oddities   the frame
    messages                the message
    stalls                  the frames of the channel in that time, without a channel the connection
    message_flows           the publish and the deliveries
    findings                the frame, else the packet, else the connection. The packet gets a comment.

`Rows` reads the tables: Parquet files through Arrow, which is faster for a few connections than starting Spark, or
DataFrames through Spark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from codec.tables import TABLES
from pipeline.extract.originals import microseconds
from pipeline.output.location import TablesError

if TYPE_CHECKING:
    from pipeline.output.location import Location
    from pipeline.tables.dataframes import Tables


Pair = tuple[int, int]  # connection_id, frame_no
Packet = tuple[str, int]  # capture_file, packet_no

# The columns that identify the packets of a row, by table.
KEYS: Mapping[str, tuple[str, ...]] = {
    "connections": ("connection_id",),
    "streams": ("connection_id",),
    "channels": ("connection_id", "channel", "opened_ts", "closed_ts"),
    "links": ("connection_id", "channel", "opened_ts", "closed_ts"),
    "frames": ("connection_id", "frame_no"),
    "methods": ("connection_id", "frame_no"),
    "oddities": ("connection_id", "frame_no"),
    "messages": ("connection_id", "first_frame_no"),
    "stalls": ("connection_id", "channel", "from_ts", "until_ts"),
    "message_flows": ("publish_connection_id", "publish_frame_no", "deliver_connection_id", "deliver_frame_no"),
    "findings": ("connection_id", "frame_no", "capture_file", "packet_no", "rule_id", "severity", "summary"),
}


@dataclass
class Choice:
    """The chosen rows, before frames are looked up."""

    connections: set[int] = field(default_factory=set)  # with all their packets
    frames: set[Pair] = field(default_factory=set)
    messages: set[Pair] = field(default_factory=set)  # by their first frame
    channels: set[tuple[int, int, datetime | None, datetime | None]] = field(default_factory=set)  # number, from, until
    packets: set[Packet] = field(default_factory=set)
    packet_connections: set[int] = field(default_factory=set)  # connections that these may be of
    comments: dict[Packet, list[str]] = field(default_factory=dict)

    def add(self, table: str, rows: pa.Table) -> None:
        """Choose what `rows` of `table`, with the columns KEYS, refer to."""
        keys = [tuple(row[name] for name in KEYS[table]) for row in rows.to_pylist()]
        if table in ("connections", "streams"):
            self.connections.update(connection for (connection,) in keys)
        elif table in ("frames", "methods", "oddities"):
            self.frames.update(keys)
        elif table == "messages":
            self.messages.update(keys)
        elif table in ("channels", "links", "stalls"):
            self.channels.update(key for key in keys if key[1] is not None)
            self.connections.update(connection for connection, channel, *_ in keys if channel is None)
        elif table == "message_flows":
            self.messages.update(end for key in keys for end in (key[:2], key[2:]) if end[1] is not None)
        else:
            for row in rows.to_pylist():
                self._finding(row)

    def _finding(self, row: Mapping[str, Any]) -> None:
        if row["connection_id"] is None:
            return  # about a whole capture: no packets
        packet = (row["capture_file"], row["packet_no"])
        if row["frame_no"] is not None:
            self.frames.add((row["connection_id"], row["frame_no"]))
        elif row["packet_no"] is None:
            self.connections.add(row["connection_id"])
        if row["packet_no"] is not None:
            self.packets.add(packet)
            self.packet_connections.add(row["connection_id"])
            text = f"{row['rule_id']} {row['severity']}: {row['summary']}"
            comments = self.comments.setdefault(packet, [])
            if text not in comments:
                comments.append(text)

    @property
    def all_connections(self) -> set[int]:
        """Every connection with a chosen row."""
        of_rows = {connection for connection, _ in self.frames | self.messages}
        return self.connections | self.packet_connections | of_rows | {connection for connection, *_ in self.channels}


def excluding(choice: Choice, gone: Collection[int]) -> Choice:
    return Choice(
        choice.connections - {*gone},
        {pair for pair in choice.frames if pair[0] not in gone},
        {pair for pair in choice.messages if pair[0] not in gone},
        {channel for channel in choice.channels if channel[0] not in gone},
        choice.packets,
        choice.packet_connections - {*gone},
        choice.comments,
    )


def resolve(choice: Choice, rows: Rows) -> set[Pair]:
    """The frames of a choice: chosen frames, the frames of messages with their settlements, the frames of channels."""
    frames = choice.frames | choice.messages
    if choice.messages:
        fates = rows(
            "messages",
            ["connection_id", "settled_frame_no", "returned_frame_no"],
            pairs(choice.messages, "first_frame_no"),
        )
        for row in fates.to_pylist():
            later = (row["settled_frame_no"], row["returned_frame_no"])
            frames |= {(row["connection_id"], frame) for frame in later if frame is not None}
        contents = rows("frames", ["connection_id", "frame_no"], pairs(choice.messages, "content_frame_no"))
        frames |= pairs_of(contents)
    if choice.channels:
        times: dict[Pair, tuple[list[float], list[float]]] = {}  # openings, and the last closing up to each; us
        spans = (
            ((id_, channel), -inf if begin is None else microseconds(begin), inf if end is None else microseconds(end))
            for id_, channel, begin, end in choice.channels
        )
        for key, opened, closed in sorted(spans):
            openings, closings = times.setdefault(key, ([], []))
            openings.append(opened)
            closings.append(max([closed, *closings[-1:]]))
        of_channels = rows("frames", ["connection_id", "channel", "frame_no", "ts"], pairs(times, "channel"))
        for row in of_channels.to_pylist():
            openings, closings = times[row["connection_id"], row["channel"]]
            ts = microseconds(row["ts"])
            at = bisect_right(openings, ts)
            if at and ts <= closings[at - 1]:
                frames.add((row["connection_id"], row["frame_no"]))
    return frames


def pairs(values: Iterable[Pair], column: str) -> pa.Table:
    """Keys for rows by connection and a number in `column`; at least one."""
    ids, numbers = zip(*sorted(values), strict=True)
    return pa.table({"connection_id": pa.array(ids, pa.int64()), column: pa.array(numbers, pa.int64())})


def pairs_of(rows: pa.Table) -> set[Pair]:
    """The (connection_id, frame_no) of rows."""
    return set(zip(rows["connection_id"].to_pylist(), rows["frame_no"].to_pylist(), strict=True))


def connections(ids: Iterable[int]) -> pa.Table:
    """Keys for rows by connection."""
    return pa.table({"connection_id": pa.array(sorted(ids), pa.int64())})


def findings(rows: Rows, rule_id: str, connection_id: int | None = None, frame_no: int | None = None) -> pa.Table:
    """Keys for the findings of a rule; only those of a connection or of a frame, if given."""
    keys: dict[str, Sequence[Any]] = {"rule_id": [rule_id]}
    if connection_id is not None:
        keys["connection_id"] = pa.array([connection_id], pa.int64())
    if frame_no is not None:
        keys["frame_no"] = pa.array([frame_no], pa.int64())
    return rows("findings", KEYS["findings"], pa.table(keys))


MOST_LISTED_KEYS = 1000  # up to this many keys become a filter in Spark, more become a join


class Rows(Protocol):
    """Reads some columns of the rows that have one of `keys`: a table whose columns are columns of `table` too."""

    def __call__(self, table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table: ...


def from_files(directory: Location, uri: str) -> Rows:
    """Rows of the tables that `wirehare decode` has written into `directory`, or of the lake there; `uri`: as the user
    wrote it."""
    from pipeline.lake import lake_tables as reading
    from pipeline.lake.opening import is_lake

    lake = is_lake(directory)

    def rows(table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        named = f"{directory.display_name}: table {table}"
        first = None if keys is None else pc.field(keys.column_names[0]).isin(keys.column(0).unique())
        wanted = list(dict.fromkeys([*columns, *(keys.column_names if keys is not None else ())]))
        try:
            of_lake = lake and table in TABLES
            dataset = reading.dataset(directory, uri, table) if of_lake else directory.child(table).dataset()
            if dataset is None or not dataset.schema.names:  # a table without a file
                raise TablesError(f"{named} is empty")
            missing = [name for name in wanted if name not in dataset.schema.names]
            if missing:
                raise TablesError(f"{named} has no column {missing[0]}; expected one of `wirehare decode`")
            return with_keys(dataset.to_table(columns=wanted, filter=first), keys).select(list(columns))
        except (OSError, pa.ArrowInvalid) as error:
            expected = "expected a directory that `wirehare decode` has written"
            raise TablesError(f"{named} cannot be read; {expected}") from error

    return rows


def from_dataframes(tables: Tables) -> Rows:
    """Rows of DataFrames, from `pipeline.decode` or `pipeline.load`."""

    def rows(table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        from pyspark.sql import functions as F

        frame = getattr(tables, table)
        if keys is not None and len(keys.column_names) == 1 and len(keys) <= MOST_LISTED_KEYS:
            frame = frame.where(F.col(keys.column_names[0]).isin(keys.column(0).to_pylist()))
        elif keys is not None:
            few = frame.sparkSession.createDataFrame(keys)
            frame = frame.join(F.broadcast(few), keys.column_names, "left_semi")
        found: pa.Table = frame.select(*columns).toArrow()
        return found

    return rows


def with_keys(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """The `rows` whose values occur in `keys` together."""
    if keys is None:
        return rows
    names = keys.column_names
    keys = keys.cast(pa.schema([rows.schema.field(name) for name in names]))
    rows = rows.filter(pc.is_in(rows[names[0]], keys.column(0).unique()))
    if len(names) == 1:
        return rows
    key_rows = rows.select(names).append_column("row", pa.array(range(len(rows)), pa.int64()))
    matches = key_rows.join(keys, keys=names, join_type="left semi")["row"]
    return rows.take(matches.combine_chunks().sort()) if len(matches) else rows.slice(0, 0)
