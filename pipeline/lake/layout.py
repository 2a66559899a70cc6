"""What a lake consists of: its tables, their partitions, and the columns that only a lake has; how an ingest fills it.
Data, no I/O.

    LAKE/
        _wirehare/lake.json      marks a lake, and has the version of its layout
        _wirehare/commit.json    the batch that is being committed; gone once it is
        frames/_delta_log/...    a Delta table for each of ours
        frames/00000012/open=false/day=2026-11-20/part-....parquet    what batch 12 wrote
        states, pairing, brokers, taken    internal Delta tables, for the next batch
        batches                  one row a batch

Rows that may still change have `open` true: the commit of each batch replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

from codec.errors import WirehareError
from codec.tables import (
    BINARY,
    BOOLEAN,
    DATE,
    INT,
    LONG,
    STRING,
    STRINGS,
    TABLES,
    TIMESTAMP,
    Column,
    Table,
    table_of,
    with_columns,
)  # fmt: skip
from udfs.pairing.schemas import CONNECTION_COLUMNS, MESSAGE_COLUMNS
from udfs.sink.parquet import USUAL, FileOptions
from udfs.source.lake_states import DAY, GROUP_BYTES, OPEN

LAYOUT = 2  # of a lake; raise it if older releases could misread a newer lake
INTERNAL = "_wirehare"  # folder of the files that are no table
LOG = "_delta_log"  # folder of the Delta log of a table
APP = "wirehare"  # name of the application transactions in the Delta log; their version is the number of the batch
NS = 10**9
PRIVATE = FileOptions(owners_only=True)
OF_STATES = FileOptions(owners_only=True, group_bytes=GROUP_BYTES)
PARTITIONS = (Column(OPEN, BOOLEAN), Column(DAY, DATE))


class LakeError(WirehareError):
    """A lake cannot be used; the message is one line that says why and what to do."""


class DamagedLakeError(LakeError):
    """Files of a lake are not what an ingest has written, or others can change them."""


# Columns of captures that only a lake has.
OF_BATCH = (
    Column("batch", LONG, "batch that the capture was taken in, from 1 on"),
    Column("late", BOOLEAN, "true: it came after later ones, and was decoded on its own"),
)
STATES = table_of(
    "states",
    ("connection_id", LONG, "connection that continues in the next batch"),
    Column("flow", BINARY, "its flow: the key, and which of its groups of address spaces, 40 bytes", dictionary=False),
    ("opened_ns", LONG, "its first packet, ns since 1970-01-01 UTC"),
    ("last_ns", LONG, "its last packet, ns since 1970-01-01 UTC"),
    ("over", BOOLEAN, "true: TCP has ended it, and only late copies of its packets may still arrive"),
    ("secrets", BOOLEAN, "true: its bytes hold secrets of TLS (--carry-secrets)"),
    Column(
        "octets",
        BINARY,
        "state of the decoder; as private as the captures",
        dictionary=False,
        statistics=False,
        compressed=False,
    ),
    Column("size", LONG, "size of the bytes, bytes", statistics=False),
)
KNOWN_CAPTURES = table_of(
    "taken",
    ("capture_file", STRING, "URI of a capture that was taken"),
    ("byte_size", LONG, "its size then, bytes"),
    ("modified_ns", LONG, "when it had been changed last, ns since 1970-01-01 UTC; null: unknown"),
    ("packets", LONG, "packet records read"),
    ("head", STRING, "SHA-256 of its first bytes, lower-case hex; null: it has no packet yet"),
    ("head_size", LONG, "number of these bytes"),
    ("batch", LONG, "batch that it was taken in last: its row of captures is there"),
    ("late", BOOLEAN, "as in captures"),
    ("listed_ns", LONG, "when it was last found, ns since 1970-01-01 UTC"),
)
BATCHES = table_of(
    "batches",
    ("batch", LONG, "number of the batch, from 1 on"),
    ("started_ts", TIMESTAMP, "when it began"),
    ("seconds", LONG, "how long it took up to its commit, s"),
    ("files", INT, "captures taken"),
    ("late_files", INT, "of them late ones"),
    (
        "ahead_files",
        INT,
        "of them those that end more than a day after the clock of this machine; they make no other one late",
    ),
    ("damaged_files", INT, "of them those that could not be read to their end"),
    ("bytes", LONG, "bytes of these captures"),
    ("packets", LONG, "packets read, of captures that grew the new ones"),
    ("frames", LONG, "rows added to table frames"),
    ("messages", LONG, "rows added to table messages"),
    ("newest_ts", TIMESTAMP, "latest packet in the lake"),
    ("newest_ns", LONG, "the same, ns since 1970-01-01 UTC"),
    ("lag_ns", LONG, "from the latest packet to the start of the batch, ns"),
    ("open_connections", LONG, "connections that continue in the next batch and that TCP has not ended"),
    ("forgotten_connections", LONG, "connections closed as expired"),
    ("unread_states", LONG, "connections that continue without their state, which this release cannot read"),
    ("state_bytes", LONG, "size of the states, bytes"),
)


@dataclass(frozen=True)
class LakeTable:
    """A table of a lake. `schema`: columns of its files. `partitioned`: by OPEN and DAY; tables that are not are
    replaced as a whole by each batch. `options`: of its files."""

    name: str
    schema: Table
    partitioned: bool = True
    options: FileOptions = USUAL

    @property
    def private(self) -> bool:
        """Whether only an ingest reads it, because it has bytes of the captures."""
        return self.options.owners_only

    @property
    def whole_schema(self) -> Table:
        """The columns in the Delta log."""
        return with_columns(self.schema, *PARTITIONS) if self.partitioned else self.schema


def lake_tables() -> dict[str, LakeTable]:
    """By name, in the order of commits: `captures` is last and completes the batch."""
    of_flows = table_of("pairing", *TABLES["messages"].select(*MESSAGE_COLUMNS))
    brokers = table_of(
        "brokers",
        *(replace(each, doc="as in connections") for each in TABLES["connections"].select(*CONNECTION_COLUMNS)),
        ("stream_queues", STRINGS, "stream queues that it shows"),
    )
    public = [
        LakeTable(name, with_columns(schema, *OF_BATCH) if name == "captures" else schema)
        for name, schema in TABLES.items()
    ]
    own = [
        LakeTable("states", STATES, partitioned=False, options=OF_STATES),
        LakeTable("pairing", of_flows, partitioned=False, options=PRIVATE),
        LakeTable("brokers", brokers, partitioned=False, options=PRIVATE),
        LakeTable("taken", KNOWN_CAPTURES, partitioned=False, options=PRIVATE),
        LakeTable("batches", BATCHES, partitioned=False),
    ]
    return {table.name: table for table in (*public[1:], *own, public[0])}


@dataclass(frozen=True)
class Options:
    """How an ingest works. Times in seconds, see `pipeline.ingest`. `batch_bytes`: of the captures in a batch, about;
    `state_bytes`: of the states of all open connections, at most."""

    settle: float = 30
    pair_within: float = 3600
    forget_after: float = 7 * 24 * 3600
    late_after: float = 300
    carry_secrets: bool = False
    batch_bytes: int = 2 << 30
    state_bytes: int = 8 << 30


@dataclass(frozen=True)
class LakeFile:
    """A Parquet file of a table: `path` within the table's directory; `open` and `day` are its partition."""

    path: str
    size: int
    rows: int
    open: bool | None = None
    day: date | None = None
