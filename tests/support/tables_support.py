"""Conversations written down by hand as decoded rows, and the tables that the pipeline makes of them.

A `Script` is one connection. Every frame comes 1000 ns after the one before, so that times and latencies in
expectations are differences of frame numbers: frame n is at `T0 + 1000 * n`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from decoder_rows import as_arrow, packed_tables
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from codec.tables import PACKED
from pipeline import Tables
from pipeline.tables.dataframes import DecodedTables
from pipeline.tables.decoding import config
from udfs.arrow.spark_schemas import spark_schema


def arrow_rows(
    spark: SparkSession, rows: Iterable[Mapping[str, Any]], schema: StructType, as_json: Sequence[str] = ()
) -> DataFrame:
    """`rows` with the columns of `schema`: null where a row does not name one; VARIANT, and the columns `as_json`, as
    what the JSON of the value makes of it."""
    kinds = {column.name: column.dataType for column in schema.fields}
    through_json = [name for name, kind in kinds.items() if kind == VariantType() or name in as_json]
    raw = StructType(
        [
            StructField(c.name, StringType()) if c.name in through_json else StructField(c.name, c.dataType)
            for c in schema
        ]
    )

    def value(row: Mapping[str, Any], name: str) -> Any:
        given = row.get(name)
        return json.dumps(given) if name in through_json and given is not None else given

    written = pa.Table.from_pylist(
        [{name: value(row, name) for name in kinds} for row in rows], to_arrow_schema(raw, timezone="UTC")
    )
    read = {
        name: F.parse_json(F.col(name))
        if kinds[name] == VariantType()
        else F.from_json(F.col(name), kinds[name].simpleString())
        for name in through_json
    }
    return spark.createDataFrame(written, raw).withColumns(read).select(*kinds)


T0 = 1_700_000_000_000_000_000  # 2023-11-14 22:13:20 UTC
STEP = 1000
CONTENT_OVERHEAD = 8  # type, channel, size, frame end


def at(frame_no: int) -> datetime:
    """Time of frame `frame_no` as a table shows it."""
    return datetime.fromtimestamp(T0 // 10**9, tz=UTC).replace(tzinfo=None, microsecond=frame_no)


class Script:
    """One connection as rows of DECODED. Every step returns the Script; it takes one frame, a request with its answer
    two, a message with a body of one frame three, and `get` those of its answer one more."""

    def __init__(self, version: str = "0-9-1") -> None:
        self.version = version
        self.frames: list[dict[str, Any]] = []
        self.tcp_facts: dict[str, Any] = {}

    def frame(self, sender: str, frame_type: str, channel: int | None = None, **columns: Any) -> Script:
        frame_no = len(self.frames) + 1
        ts_ns = T0 + STEP * frame_no
        self.frames.append(
            {"kind": "frame", "frame_no": frame_no, "sender": sender, "ts_ns": ts_ns, "first_ts_ns": ts_ns,
             "packet_no": frame_no, "first_packet_no": frame_no, "capture_file": "file:a.pcap", "stream_offset": 0,
             "size": 20, "version": self.version, "version_known": True, "channel": channel, "frame_type": frame_type,
             "status": "ok", **columns}
        )  # fmt: skip
        return self

    def method(self, sender: str, channel: int, name: str, **arguments: Any) -> Script:
        return self.frame(sender, "method", channel, name=name, arguments=arguments)

    def client(self, name: str, channel: int = 1, **arguments: Any) -> Script:
        return self.method("client", channel, name, **arguments)

    def server(self, name: str, channel: int = 1, **arguments: Any) -> Script:
        return self.method("server", channel, name, **arguments)

    def asks(self, name: str, channel: int = 1, reply: Mapping[str, Any] | None = None, **arguments: Any) -> Script:
        """The client's request `name` and the server's '-ok' with arguments `reply`."""
        return self.client(name, channel, **arguments).server(f"{name}-ok", channel, **(reply or {}))

    def content(
        self, sender: str, name: str, body: bytes = b"x", channel: int = 1, properties: Mapping[str, Any] | None = None,
        parts: int = 1, seen: bool = True, **arguments: Any,
    ) -> Script:  # fmt: skip
        """A method with content: header, and `body` in `parts` body frames; `seen` False loses the last of them."""
        self.method(sender, channel, name, **arguments)
        frame_no = self.frames[-1]["content_frame_no"] = len(self.frames)
        digest = hashlib.sha256(body).hexdigest()
        self.frame(
            sender, "header", channel, name="basic", properties=dict(properties or {}), body_size=len(body),
            content_frame_no=frame_no, payload_size=14, body_sha256=None if body else digest,
        )  # fmt: skip
        cut = -(-len(body) // parts) if body else 0
        for part in range(parts if body else 0):
            piece, last = body[part * cut : (part + 1) * cut], part == parts - 1
            if last and not seen:
                return self.gap(sender, len(piece) + CONTENT_OVERHEAD)
            self.frame(
                sender, "body", channel, payload=piece, payload_size=len(piece), content_frame_no=frame_no,
                body_sha256=digest if last else None,
            )  # fmt: skip
        return self

    def publish(self, body: bytes = b"x", exchange: str = "", routing_key: str = "q", **more: Any) -> Script:
        more = {"mandatory": False, "immediate": False, **more}
        return self.content("client", "basic.publish", body, exchange=exchange, routing_key=routing_key, **more)

    def returned(
        self, body: bytes, routing_key: str, code: int = 312, text: str = "NO_ROUTE", seen: bool = True
    ) -> Script:
        where: dict[str, Any] = {"exchange": "", "routing_key": routing_key}
        return self.content("server", "basic.return", body, **where, reply_code=code, reply_text=text, seen=seen)

    def deliver(self, delivery_tag: int, consumer_tag: str = "c", body: bytes = b"x", **more: Any) -> Script:
        more = {"exchange": "", "routing_key": "q", "redelivered": False, **more}
        return self.content(
            "server", "basic.deliver", body, consumer_tag=consumer_tag, delivery_tag=delivery_tag, **more
        )

    def ack(self, delivery_tag: int, multiple: bool = False, by: str = "client") -> Script:
        """By the client of deliveries, by the server of publishes."""
        return self.method(by, 1, "basic.ack", delivery_tag=delivery_tag, multiple=multiple)

    def consume(self, queue: str = "q", tag: str = "c", no_ack: bool = False, channel: int = 1) -> Script:
        return self.asks(
            "basic.consume", channel, {"consumer_tag": tag}, queue=queue, consumer_tag=tag, no_ack=no_ack,
            exclusive=False, no_wait=False,
        )  # fmt: skip

    def get(self, delivery_tag: int, queue: str = "q", no_ack: bool = False, body: bytes = b"x") -> Script:
        """basic.get and its get-ok."""
        self.client("basic.get", queue=queue, no_ack=no_ack)
        return self.content(
            "server", "basic.get-ok", body, delivery_tag=delivery_tag, redelivered=False, exchange="",
            routing_key=queue, message_count=0,
        )  # fmt: skip

    def gap(self, sender: str, size: int = 100, channel: int | None = None) -> Script:
        """Bytes missing: between frames, or inside a frame of `channel`."""
        return self.frame(sender, "gap", channel, size=size, status="partial")

    def open(self, channel: int = 1) -> Script:
        return self.asks("channel.open", channel)

    def shut(self) -> Script:
        """The client closes the channel."""
        return self.asks("channel.close", reply_code=200, reply_text="")

    def closed(self, code: int, text: str, channel: int = 1) -> Script:
        """The server closes the channel, or with channel 0 the connection, and blames no method."""
        name = "channel.close" if channel else "connection.close"
        return self.server(name, channel, reply_code=code, reply_text=text, class_id=0, method_id=0)

    def facts(self, **facts: Any) -> Script:
        """What is stated of the TCP connection beside the defaults."""
        self.tcp_facts.update(facts)
        return self

    def rows(self, connection_id: int) -> list[dict[str, Any]]:
        end = T0 + STEP * (len(self.frames) + 1)
        facts = {
            "client_ip": "10.0.0.1",
            "opened_ts_ns": T0,
            "closed_ts_ns": end,
            "content": "amqp",
            "syn_captured": True,
            **self.tcp_facts,
        }
        connection = {
            "kind": "connection",
            "ts_ns": T0,
            "version": self.version,
            "version_known": True,
            "facts": facts,
        }
        return [{"connection_id": connection_id, **row} for row in (*self.frames, connection)]


def tables_from(spark: SparkSession, rows: pa.Table, payload: bool = False) -> Tables:
    """The tables of DECODED rows (`decoder_rows`), as `pipeline.decode` returns them."""
    packed = packed_tables(rows, config(payload))
    return DecodedTables(spark.createDataFrame(packed, spark_schema(PACKED)))


class Found:
    """Rows of tables by the names of their connections. Each table is collected once."""

    # Rows are in the order of those of these columns that they have, nulls first.
    order: tuple[str, ...] = ("frame_no", "first_frame_no", "channel", "channel_incarnation", "opened_ts", "name")

    def __init__(self, tables: Tables, name_of: Mapping[int, str]) -> None:
        self.tables, self.name_of = tables, name_of
        self._collected: dict[str, list[Any]] = {}

    def rows(self, table: str, name: str, *columns: str) -> list[tuple[Any, ...]]:
        if table not in self._collected:
            self._collected[table] = getattr(self.tables, table).collect()
        mine = [row for row in self._collected[table] if self.name_of.get(row.connection_id) == name]
        order = [column for column in self.order if mine and column in mine[0]]
        mine.sort(key=lambda row: [(row[column] is not None, row[column]) for column in order])
        return [tuple(row[column] for column in columns) for row in mine]

    def one(self, table: str, name: str, *columns: str) -> tuple[Any, ...]:
        (row,) = self.rows(table, name, *columns)
        return row


class Read(Found):
    """Tables of several scripts, by their names."""

    def __init__(self, spark: SparkSession, scripts: Mapping[str, Script], payload: bool = False) -> None:
        names = dict(enumerate(scripts, start=1))
        self.decoded = as_arrow(row for number, name in names.items() for row in scripts[name].rows(number))
        super().__init__(tables_from(spark, self.decoded, payload), names)
