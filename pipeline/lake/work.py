"""What Spark does for a batch: decoding, and pairing messages across batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pipeline.decoding.decode import Chosen, by_flow
from pipeline.decoding.lazy import stream_queues
from pipeline.lake.arrivals import Arrival
from pipeline.lake.batch import Written
from pipeline.lake.files import listed
from pipeline.lake.journal import Change
from pipeline.lake.layout import DAY_OF, OF_BROKERS, LakeFile, LakeTable
from pipeline.lake.log import Log
from pipeline.output.swap import escaped
from pipeline.schemas import TABLES
from pipeline.session import planned, settings
from pipeline.tables.config import config
from pipeline.tables.flows import message_flows
from udfs.pairing.columns import OF_MESSAGES
from udfs.source.partitions import DAY, OPEN, partition_of

if TYPE_CHECKING:
    from udfs.sink.lake import Filing

SIDES = ("publish", "deliver")
CONNECTIONS_OF_A_TASK = 1000  # that only end: a task takes a second for them


@dataclass(frozen=True)
class SparkWork:
    """`payload`: with the bytes of content bodies; `chosen`: which connections; `key_logs`: files with secrets of TLS,
    which are read anew with each batch; `carry_secrets`: as for `udfs.tables.tables_of`."""

    spark: SparkSession
    log: Log
    payload: bool
    chosen: Chosen
    key_logs: tuple[str, ...] = ()
    carry_secrets: bool = False

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
        """See `pipeline.lake.batch.Work`."""
        from udfs.decode.key_logs import SecretFiles
        from udfs.sink.lake import FILED, EndConnections, WriteBatch
        from udfs.source.lake_states import StateFiles

        folder, uris = self.log.root.child("states"), [arrival.file.uri for arrival in arrivals]
        paths = tuple(f"{folder.path}/{file.path}" for file in states)
        carried = StateFiles(self.log.root.files, paths, None if only is None else frozenset(only))
        secrets = SecretFiles(self.key_logs, tuple(uris))
        filing = self._filing(number, self.log.tables)
        writer = WriteBatch(filing, config(self.payload), carried, keep_open, lost, secrets, self.carry_secrets)
        with settings(self.spark, planned(small=True)):  # to Spark, runs are few rows
            if only is None:
                read = {arrival.file.name: arrival.read for arrival in arrivals if arrival.read}
                return self._written(by_flow(self.spark, uris, writer, FILED, self.chosen, read).collect())
            tasks = 1 + len(only) // CONNECTIONS_OF_A_TASK
            numbers = self.spark.range(0, tasks, 1, tasks)
            return self._written(numbers.mapInArrow(EndConnections(writer, tasks), FILED).collect())

    def flows(self, number: int, written: Written, open_messages: Sequence[LakeFile], cutoff_ns: int) -> Change | None:
        """See `pipeline.lake.batch.Work`. Messages are paired with all that came since `cutoff_ns` or still changes;
        later, a pair is final, and its messages are forgotten."""
        messages = self._read("pairing", self.log.files("pairing")).unionByName(
            self._read("messages", [file for file in written.files["messages"] if not file.open]).select(*OF_MESSAGES)
        )
        still_open = self._read("messages", open_messages).select(*OF_MESSAGES)
        brokers = self._brokers(written)
        streams = brokers.select("connection_id", F.explode("stream_queues").alias("queue"))
        with settings(self.spark, planned(small=True)):
            known = brokers.select(*OF_BROKERS)
            flows = message_flows(messages.unionByName(still_open), known, streams)
            pairs = _with_partition(flows, still_open, cutoff_ns)
            pairs = pairs.persist()
            try:
                written.add(self._rows_into("message_flows", number, pairs))
                held = _sides(pairs.filter(OPEN))
                recent = messages.filter(F.col("ts_ns") >= cutoff_ns)
                older = messages.filter(F.col("ts_ns") < cutoff_ns).join(
                    held, ["connection_id", "first_frame_no"], "left_semi"
                )
                kept = recent.unionByName(older)
                written.add(self._rows_into("pairing", number, kept))
            finally:
                pairs.unpersist()
            of_kept = kept.unionByName(still_open).select("connection_id").distinct()
            recent_end = F.coalesce(F.unix_micros("closed_ts") * 1000 >= cutoff_ns, F.lit(True))
            tells = recent_end | (F.size("stream_queues") > 0)
            others = brokers.filter(~tells).join(of_kept, "connection_id", "left_semi")
            written.add(self._rows_into("brokers", number, brokers.filter(tells).unionByName(others)))
        return Change(written.files["message_flows"], [file for file in self.log.files("message_flows") if file.open])

    def _brokers(self, written: Written) -> DataFrame:
        """Connections that may have messages to pair, as this batch leaves them."""
        fresh = self._read("connections", written.files["connections"])
        told = (
            stream_queues(self._read("methods", written.files["methods"]))
            .groupBy("connection_id")
            .agg(F.collect_set("queue").alias("told"))
        )
        before = self._read("brokers", self.log.files("brokers"))
        told_before = before.select("connection_id", F.col("stream_queues").alias("before"))
        none = F.array().cast("array<string>")
        queues = F.array_union(F.coalesce("told", none), F.coalesce("before", none))
        renewed = (
            fresh.select(*OF_BROKERS)
            .join(told, "connection_id", "left")
            .join(told_before, "connection_id", "left")
            .select(*OF_BROKERS, queues.alias("stream_queues"))
        )
        others = before.join(fresh.select("connection_id"), "connection_id", "left_anti")
        return others.unionByName(renewed)

    def _rows_into(self, name: str, number: int, rows: DataFrame) -> Written:
        """Rows of a table into files of a batch."""
        from udfs.sink.lake import FILED, WriteRows

        table = self.log.tables[name]
        if not table.partitioned:
            rows = rows.withColumn(OPEN, F.lit(None).cast("boolean")).withColumn(DAY, F.lit(None).cast("date"))
        writer = WriteRows(self._filing(number, {name: table}), name, table.partitioned)
        return self._written(rows.select(*table.schema.names, OPEN, DAY).mapInArrow(writer, FILED).collect())

    def _filing(self, number: int, tables: Mapping[str, LakeTable]) -> Filing:
        from udfs.sink.lake import Filing

        schemas, options = (
            {name: getattr(table, of) for name, table in tables.items()} for of in ("schema", "options")
        )
        return Filing(self.log.root.files, self.log.root.path, number, DAY_OF, schemas, options)

    def _written(self, rows: Iterable[Row]) -> Written:
        """What workers have told (FILED)."""
        from udfs.sink.lake import ACCOUNT, UNREAD

        found = Written()
        for row in rows:
            if row.folder == ACCOUNT:
                found.accounts.append(json.loads(row.note))
            elif row.folder == UNREAD:
                found.unread.add(int(row.note))
            elif row.rows:
                name, _, folder = row.folder.partition("/")
                place = self.log.root.child(name)
                partition = partition_of(folder) if self.log.tables[name].partitioned else (None, None)
                found.files[name].append(listed(place, f"{folder}/{row.file}", row.rows, *partition))
        return found

    def _read(self, name: str, files: Iterable[LakeFile]) -> DataFrame:
        folder = self.log.root.child(name)
        paths = [escaped(f"{folder.uri}/{file.path}") for file in files]
        schema = self.log.tables[name].schema
        if not paths:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)


def _with_partition(flows: DataFrame, still_open: DataFrame, cutoff_ns: int) -> DataFrame:
    """Flows with OPEN, whether a pair may still change, and DAY, that of its later message."""
    last_ns = F.greatest(*(f"{side}_ts_ns" for side in SIDES))
    open_ids = still_open.select("connection_id", "first_frame_no").withColumn("is_open", F.lit(True))
    for side in SIDES:
        of_side = open_ids.select(
            F.col("connection_id").alias(f"{side}_connection_id"),
            F.col("first_frame_no").alias(f"{side}_frame_no"),
            F.col("is_open").alias(f"{side}_open"),
        )
        flows = flows.join(of_side, [f"{side}_connection_id", f"{side}_frame_no"], "left")
    changes = (last_ns >= cutoff_ns) | F.coalesce(*(f"{side}_open" for side in SIDES), F.lit(False))
    day = F.to_date(F.timestamp_micros(F.expr("greatest(publish_ts_ns, deliver_ts_ns) div 1000")))
    return flows.select(*TABLES["message_flows"].names, changes.alias(OPEN), day.alias(DAY))


def _sides(flows: DataFrame) -> DataFrame:
    """The messages of flows."""
    sides = [
        flows.select(
            F.col(f"{side}_connection_id").alias("connection_id"), F.col(f"{side}_frame_no").alias("first_frame_no")
        )
        for side in SIDES
    ]
    return sides[0].unionByName(sides[1]).filter(F.col("connection_id").isNotNull())
