"""Decoding of a batch and pairing of its messages, by Spark or by processes of this machine."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from codec.compiler.kernel import all_compiled, interpreted
from codec.tables import DAY_OF
from pipeline.lake.arrivals import Arrival
from pipeline.lake.confinement import check_files, create_directory
from pipeline.lake.journal import Change
from pipeline.lake.lake_files import lake_file, read_rows, write_file
from pipeline.lake.lake_tables import Span
from pipeline.lake.layout import LakeFile
from pipeline.lake.log import Log
from pipeline.output.location import PRIVATE, Location
from pipeline.run.exchange import planned, task_numbers
from pipeline.run.local_processes import LocalProcesses
from pipeline.tables.decoding import (
    PacketFilter,
    by_flow,
    config,
    decoded_locally,
)
from pipeline.tables.message_flows import pair_messages, paired, row_groups, shares
from udfs.arrow.types import arrow_schema
from udfs.decode.key_logs import SecretFiles
from udfs.pairing.brokers import brokers_of
from udfs.pairing.lake_pairing import MESSAGE_IDS, SIDES, KeepMessages, WriteFlows
from udfs.pairing.schemas import CONNECTION_COLUMNS, LINK_COLUMNS, STALL_COLUMNS
from udfs.sink.writers import ACCOUNT, UNREAD, WRITTEN, EndConnections, LakeFolders, WriteBatch
from udfs.source.lake_states import StateFiles, partition_of
from udfs.workers.worker_config import FACT, STREAM_QUEUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = "stream_queues"
LOCAL_CONNECTIONS = 1000  # to close in this process, or per task of Spark: a second's work
LOCAL_MESSAGES = 4_000_000  # to pair in processes of this machine
MESSAGE_BYTES = 1 << 10  # of a capture, for each message


@dataclass(frozen=True)
class Written:
    """Results of workers: `files` by table; `accounts` of the splits; `unread`: connections whose state could not be
    read; `stream_queues`: (connection, queue) of queues that are streams."""

    files: dict[str, list[LakeFile]] = field(default_factory=lambda: defaultdict(list))
    accounts: list[dict[str, Any]] = field(default_factory=list)
    unread: set[int] = field(default_factory=set)
    stream_queues: set[tuple[int, str]] = field(default_factory=set)

    def add(self, other: Written) -> None:
        for name, files in other.files.items():
            self.files[name].extend(files)
        self.accounts.extend(other.accounts)
        self.unread.update(other.unread)
        self.stream_queues.update(other.stream_queues)


@dataclass(frozen=True)
class LakeWork:
    """`start`: starts the session when it is needed; `processes`: for batches of local captures, None: all on Spark.
    `payload`: with message bodies; `packet_filter`: which connections; `key_logs`: read again for each batch;
    `carry_secrets`: as for `udfs.tables.tables_of`."""

    log: Log
    start: Callable[[], SparkSession]
    processes: LocalProcesses | None
    payload: bool
    packet_filter: PacketFilter
    key_logs: tuple[str, ...]
    carry_secrets: bool

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started on first access."""
        return self.start()

    def decode(
        self,
        number: int,
        arrivals: Sequence[Arrival],
        states: Sequence[LakeFile],
        *,
        only: Collection[int] | None = None,
        keep_open: bool = True,
        lost: bool = False,
    ) -> Written:
        """Write the rows of these captures, and of the connections of `states` (only those in `only`) that continue in
        them. `keep_open`, `lost`: as for `udfs.sink.writers.WriteBatch`."""
        uris, paths = tuple(arrival.file.uri for arrival in arrivals), tuple(self._paths("states", states))
        carried = StateFiles(self.log.root.files, paths, None if only is None else frozenset(only))
        folders, secrets = self._folders(number), SecretFiles(self.key_logs, uris)
        writer = WriteBatch(folders, config(self.payload), carried, keep_open, lost, secrets, self.carry_secrets)
        return self._written(self._decoded(writer, arrivals) if only is None else self._ended(writer, len(only)))

    def _decoded(self, writer: WriteBatch, arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
        uris = [arrival.file.uri for arrival in arrivals]
        read = {arrival.file.name: arrival.read for arrival in arrivals if arrival.read}
        size = sum(arrival.file.expected_size for arrival in arrivals)
        spark = self._local(size) if decoded_locally(uris) else self.spark
        with planned(spark):
            return by_flow(spark, uris, writer, WRITTEN, self.packet_filter, read).collected()

    def _ended(self, writer: WriteBatch, connections: int) -> list[dict[str, Any]]:
        """Close this number of connections."""
        tasks = 1 + connections // LOCAL_CONNECTIONS
        spark = self._local() if tasks == 1 else self.spark
        with planned(spark):
            return task_numbers(spark, tasks).then(EndConnections(writer, tasks), WRITTEN).collected()

    def flows(
        self, number: int, written: Written, files: Mapping[str, Sequence[LakeFile]], cutoff_ns: int
    ) -> Change | None:
        """Pair messages with those since `cutoff_ns` and those that may still change; older pairs are final. `files` of
        tables messages, links and stalls after this batch. Returns the change of message_flows."""
        open_messages = [file for file in files["messages"] if file.open]
        folders, root, before = self._folders(number), self.log.root, self.log.files("pairing")
        closed = [file for file in written.files["messages"] if not file.open]
        final = [*self._paths("pairing", before), *self._paths("messages", closed)]
        groups, present = row_groups(root.files, [*final, *self._paths("messages", open_messages)])
        number_of = sum(file.rows for file in (*before, *closed, *open_messages))
        scratch = root.child("pairing").child(f"{number:08}")  # the commit deletes files that no log names
        create_directory(root, f"pairing/{number:08}", PRIVATE)
        brokers, since = self._brokers(written), Span(since_ns=cutoff_ns)
        spark = self._local(number_of * MESSAGE_BYTES) if number_of <= LOCAL_MESSAGES else self.spark
        with planned(spark, pairing=True):
            known = brokers_of(brokers.select(CONNECTION_COLUMNS), _streams(brokers))
            changing = self._write_ids(
                scratch, "changing", [("messages", open_messages, "connection_id", "first_frame_no")]
            )
            links, stalls = (
                self._rows(name, [file for file in files[name] if since.may_contain(name, file)], columns)
                for name, columns in (("links", LINK_COLUMNS), ("stalls", STALL_COLUMNS))
            )
            pairing = pair_messages(known, brokers, links, stalls, scratch)
            write_flows = WriteFlows(folders, pairing, changing, cutoff_ns)
            of_flows = paired(spark, groups, present, known, scratch).then(write_flows, WRITTEN)
            written.add(self._written(of_flows.collected()))
            pairs = [file for file in written.files["message_flows"] if file.open]
            sides = [("message_flows", pairs, f"{side}_connection_id", f"{side}_frame_no") for side in SIDES]
            keep = KeepMessages(folders, self._write_ids(scratch, "open_flows", sides), cutoff_ns)
            of_final = shares(spark, [group for group in groups if group[0] in final])
            written.add(self._written(of_final.then(keep, WRITTEN).collected()))
        self._keep_brokers(number, written, brokers, open_messages, cutoff_ns)
        return Change(written.files["message_flows"], [file for file in self.log.files("message_flows") if file.open])

    def _brokers(self, written: Written) -> pa.Table:
        """Table brokers after this batch: the connections that may have messages to pair."""
        before = self._rows("brokers", self.log.files("brokers"))
        fresh = self._rows("connections", written.files["connections"], CONNECTION_COLUMNS)
        known = dict(zip(before["connection_id"].to_pylist(), before[QUEUES].to_pylist(), strict=True))
        streams_of = defaultdict[int, set[str]](set)
        for connection, queue in written.stream_queues:
            streams_of[connection].add(queue)
        ids = fresh["connection_id"].to_pylist()
        own = [sorted(streams_of[each].union(known.get(each) or ())) for each in ids]
        names = {entry for entries in (*known.values(), *own) for entry in entries or () if FACT not in entry}
        # Facts about queues that are no streams are not needed.
        queues = [[each for each in entries if each.partition(FACT)[0] in names] for entries in own]
        renewed = fresh.append_column(before.schema.field(QUEUES), pa.array(queues, pa.list_(pa.string())))
        others = before.filter(pc.invert(pc.is_in(before["connection_id"], fresh["connection_id"])))
        return pa.concat_tables([others, renewed.cast(before.schema)])

    def _keep_brokers(
        self, number: int, written: Written, brokers: pa.Table, open_messages: Sequence[LakeFile], cutoff_ns: int
    ) -> None:
        """Write the rows of table brokers that the next batch may need."""
        of_messages = [
            self._rows(name, files, ["connection_id"])["connection_id"]
            for name, files in (("pairing", written.files["pairing"]), ("messages", open_messages))
        ]
        needed = pa.chunked_array([part for ids in of_messages for part in ids.chunks], pa.int64()).unique()
        closed_ns = pc.multiply(brokers["closed_ts"].cast(pa.int64()), 1000)
        names = [any(FACT not in entry for entry in entries or ()) for entries in brokers[QUEUES].to_pylist()]
        recent = pc.or_(pc.greater_equal(closed_ns, cutoff_ns).fill_null(True), pa.array(names, pa.bool_()))
        rows = brokers.filter(pc.or_(recent, pc.is_in(brokers["connection_id"], needed))).to_batches()
        written.files["brokers"].extend(write_file(self.log.root, self.log.tables["brokers"], number, rows))

    def _local(self, size: int = 0) -> SparkSession | LocalProcesses:
        """Local processes for `size` bytes of captures if they can decode now (kernels are compiled, or interpreted),
        else the session."""
        if self.processes is None or not (interpreted() or all_compiled()):
            return self.spark
        return self.processes.use_for(size)

    def _folders(self, number: int) -> LakeFolders:
        schemas, options = (
            {name: getattr(table, of) for name, table in self.log.tables.items()} for of in ("schema", "options")
        )
        return LakeFolders(self.log.root.files, self.log.root.path, number, DAY_OF, schemas, options)

    def _written(self, rows: Iterable[Mapping[str, Any]]) -> Written:
        """The results of workers (rows of WRITTEN)."""
        found = Written()
        for row in rows:
            if row["folder"] == ACCOUNT:
                found.accounts.append(json.loads(row["note"]))
            elif row["folder"] == UNREAD:
                found.unread.add(int(row["note"]))
            elif row["folder"] == STREAM_QUEUES:
                found.stream_queues.add(tuple(json.loads(row["note"])))
            elif row["rows"]:
                name, _, folder = row["folder"].partition("/")
                location = self.log.root.child(name)
                partition = partition_of(folder) if self.log.tables[name].partitioned else (None, None)
                found.files[name].append(lake_file(location, f"{folder}/{row['file']}", row["rows"], *partition))
        return found

    def _paths(self, name: str, files: Sequence[LakeFile]) -> list[str]:
        """The paths of files of a table, for workers to open."""
        check_files(self.log.root.child(name), (file.path for file in files))
        return [f"{self.log.root.child(name).path}/{file.path}" for file in files]

    def _rows(self, name: str, files: Iterable[LakeFile], columns: Sequence[str] | None = None) -> pa.Table:
        """Columns of the files of a table; works without any file."""
        schema = arrow_schema(self.log.tables[name].schema)
        wanted = pa.schema([schema.field(column) for column in columns or schema.names])
        return read_rows(self.log.root, name, files, wanted.names).select(wanted.names).cast(wanted)

    def _write_ids(
        self, scratch: Location, of: str, messages: Iterable[tuple[str, Sequence[LakeFile], str, str]]
    ) -> str:
        """Write the ids of the messages in these files, given as (table, files, columns with connection and frame);
        returns the path."""
        parts = [
            self._rows(table, files, columns).rename_columns(MESSAGE_IDS.names) for table, files, *columns in messages
        ]
        path = f"{scratch.path}/{of}.parquet"
        named = pa.concat_tables(parts)
        pq.write_table(named.filter(named["connection_id"].is_valid()), path, filesystem=scratch.files)
        return path


def _streams(brokers: pa.Table) -> pa.Table:
    """Table brokers -> STREAMS (`udfs.conversation.methods`)."""
    queues = brokers[QUEUES].combine_chunks()
    connections = brokers["connection_id"].take(pc.list_parent_indices(queues))
    return pa.table({"connection_id": connections, "queue": pc.list_flatten(queues)})
