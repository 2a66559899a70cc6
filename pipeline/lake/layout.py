"""What a lake consists of: its tables, their partitions, and the columns that only a lake has. Data, no I/O.

    LAKE/
        _wirehare/lake.json      says that this is a lake, and in which layout
        _wirehare/commit.json    the batch that is being committed; gone once it is
        frames/_delta_log/...    a Delta table for each of ours
        frames/00000012/open=false/day=2026-11-20/part-....parquet    what batch 12 wrote
        states, pairing, brokers, taken    what the next batch needs, Delta tables as well
        batches                  one row a batch

Rows that may still change have `open` true: each batch replaces all of them in the commit that adds its final rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from pyspark.sql.types import BooleanType, DateType, StructField, StructType

from codec.errors import WirehareError
from pipeline.schemas import BINARY, BOOLEAN, INT, LONG, STRING, TABLES, TIMESTAMP, table
from udfs.pairing.columns import OF_MESSAGES
from udfs.schemas import field
from udfs.sink.parquet import USUAL, FileOptions
from udfs.source.lake_states import GROUP_BYTES
from udfs.source.partitions import DAY, OPEN

LAYOUT = 1  # of a lake; raise it when an older release could misread a newer lake
OWN = "_wirehare"
APP = "wirehare"  # application transactions of the Delta log carry this name and the number of the batch
NS = 10**9
PRIVATE = FileOptions(owners_only=True)
OF_STATES = FileOptions(owners_only=True, group_bytes=GROUP_BYTES)
PARTITIONS = StructType([StructField(OPEN, BooleanType()), StructField(DAY, DateType())])


class LakeError(WirehareError):
    """A lake cannot be used; the message is one line that says why and what to do."""


# The day that a final row is filed under. What lasts is filed under its end, so that readers of the days from some day
# on find all that was still there on that day. `streams` are filed with their connection.
DAY_OF = {
    "captures": "last_ts",
    "frames": "ts",
    "streams": None,
    "connections": "closed_ts",
    "channels": "closed_ts",
    "links": "closed_ts",
    "methods": "ts",
    "messages": "ts",
    "message_flows": None,  # by the later of its two messages
}

# What a lake knows of a capture besides the columns of the table.
OF_BATCH = (
    field("batch", LONG, "batch that the capture was taken in, from 1 on"),
    field("late", BOOLEAN, "true: it came after later ones, and was decoded for itself"),
)
STATES = table(
    ("connection_id", LONG, "connection that is open"),
    ("flow", BINARY, "key of its flow, 36 bytes"),
    ("opened_ns", LONG, "its first packet, ns since 1970-01-01 UTC"),
    ("last_ns", LONG, "its last packet, ns since 1970-01-01 UTC"),
    ("over", BOOLEAN, "true: TCP has ended it, and only late copies of its packets may still arrive"),
    ("secrets", BOOLEAN, "true: its octets hold secrets of TLS (--carry-secrets)"),
    ("octets", BINARY, "what the decoder knows of it; as private as the captures"),
    ("size", LONG, "how many octets these are, bytes"),
)
TAKEN = table(
    ("capture_file", STRING, "URI of a capture that was taken"),
    ("byte_size", LONG, "its size then, bytes"),
    ("modified_ns", LONG, "when it had been changed last, ns since 1970-01-01 UTC; null: unknown"),
    ("packets", LONG, "packet records read"),
    ("head", STRING, "SHA-256 of its first bytes, lower-case hex; null: it holds no packet yet"),
    ("head_size", LONG, "how many bytes that were"),
    ("batch", LONG, "batch that it was taken in last: its row of captures is there"),
    ("late", BOOLEAN, "as in captures"),
    ("listed_ns", LONG, "when it was last found, ns since 1970-01-01 UTC"),
)
BATCHES = table(
    ("batch", LONG, "number of the batch, from 1 on"),
    ("started_ts", TIMESTAMP, "when it began"),
    ("seconds", LONG, "how long it took up to its commit, s"),
    ("files", INT, "captures taken"),
    ("late_files", INT, "of them late ones"),
    ("ahead_files", INT, "of them such as end more than a day after the clock here; they make no other one late"),
    ("damaged_files", INT, "of them such as could not be read to their end"),
    ("bytes", LONG, "bytes of these captures"),
    ("packets", LONG, "packets read, of captures that grew the new ones"),
    ("frames", LONG, "rows added to table frames"),
    ("messages", LONG, "rows added to table messages"),
    ("newest_ts", TIMESTAMP, "latest packet in the lake"),
    ("newest_ns", LONG, "the same, ns since 1970-01-01 UTC"),
    ("lag_ns", LONG, "from the latest packet to the start of the batch, ns"),
    ("open_connections", LONG, "connections that go on in the next batch"),
    ("forgotten_connections", LONG, "connections closed as lost sight of"),
    ("unread_states", LONG, "connections that go on without their state, which this release cannot read"),
    ("state_bytes", LONG, "size of the states, bytes"),
)


# What is known of the connections whose messages may still be paired.
OF_BROKERS = (
    "connection_id", "version", "server_ip", "server_port", "vhost", "missing_bytes", "undecoded_bytes", "closed_ts",
)  # fmt: skip


@dataclass(frozen=True)
class LakeTable:
    """`schema`: columns of its files. `partitioned`: by OPEN and DAY; the others are replaced by each batch as a whole,
    or, where `grows`, only added to. `options`: of its files."""

    name: str
    schema: StructType
    partitioned: bool = True
    grows: bool = True
    options: FileOptions = USUAL

    @property
    def private(self) -> bool:
        """Whether only an ingest reads it: it holds bytes of the captures."""
        return self.options.owners_only

    @property
    def whole_schema(self) -> StructType:
        """The columns that readers of the log see."""
        return StructType([*self.schema.fields, *PARTITIONS.fields]) if self.partitioned else self.schema


def lake_tables() -> dict[str, LakeTable]:
    """By name, in the order in which a batch commits them: `captures` last, which makes the batch count."""
    of_flows = StructType([TABLES["messages"][name] for name in OF_MESSAGES])
    brokers = table(
        *((name, TABLES["connections"][name].dataType, "as in connections") for name in OF_BROKERS),
        ("stream_queues", TABLES["captures"]["link_types"].dataType, "queues that are streams, as it tells"),
    )
    public = [
        LakeTable(name, StructType([*schema.fields, *OF_BATCH]) if name == "captures" else schema)
        for name, schema in TABLES.items()
    ]
    own = [
        LakeTable("states", STATES, partitioned=False, grows=False, options=OF_STATES),
        LakeTable("pairing", of_flows, partitioned=False, grows=False, options=PRIVATE),
        LakeTable("brokers", brokers, partitioned=False, grows=False, options=PRIVATE),
        LakeTable("taken", TAKEN, partitioned=False, grows=False, options=PRIVATE),
        LakeTable("batches", BATCHES, partitioned=False),
    ]
    return {table.name: table for table in (*public[1:], *own, public[0])}


@dataclass(frozen=True)
class LakeFile:
    """A Parquet file of a table: `path` within the table's directory; `open` and `day` are its partition."""

    path: str
    size: int
    rows: int
    open: bool | None = None
    day: date | None = None
