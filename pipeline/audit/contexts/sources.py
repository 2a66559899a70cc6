"""The contexts that detectors read. A context is a set of rows, computed once for all detectors that name it.

Columns that the engine looks for, where a context has them: connection_id, version, frame_no, ts_ns; channel,
channel_life (rules on channels, links, messages); content_frame_no (the message, see `Detector.thing`).

    connections  one row per connection: columns of the table, what is known of it, and the first of each method of
                 class connection: `c.start`, `c.tune_ok` ... (`connections`)
    frames       one row per frame of any type, with its connection (`c`)
    events       one row per method of the classic family on a channel other than 0, with its arguments (`args`), the
                 states from earlier rows of the channel (`detectors.STATES`), and its connection (`c`)

Contexts 'frames' and 'events' leave out routine rows, which no rule can be about (`prefilter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from threading import RLock
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.catalogue import Number
from pipeline.audit.contexts.connections import (
    arguments_struct,
    connection_rows,
    control_rows,
    first_rows,
    header_frames,
    seconds,
)
from pipeline.audit.contexts.materialized import FEW, few_values, having_values, materialize_counted
from pipeline.audit.contexts.messages import count_kinds, count_messages
from pipeline.audit.contexts.outstanding import compute_peaks
from pipeline.audit.contexts.prefilter import (
    ON_CHANNEL,
    SESSION_TRANSFERS,
    TRANSFER_SENDERS,
    flagged_frames,
    negotiated_limits,
    stretches,
    transfer_counts,
    unusual_frames,
    unusual_transfers,
)
from pipeline.audit.detector import Sql
from pipeline.lazy import shared_property
from pipeline.session import INTERPRETED

if TYPE_CHECKING:
    from pipeline import Tables

# Filters that Spark infers from conditions and joins drop next to nothing here, and inferring them takes time.
UNINFERRED = {"spark.sql.constraintPropagation.enabled": "false"}
# For plans over few rows: no code generation, and no adaptive planning after each exchange.
SMALL = {
    **INTERPRETED,
    **UNINFERRED,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}

Parameters = Mapping[str, Mapping[str, Number]]
FRAME_COLUMNS = (
    "connection_id", "frame_no", "ts_ns", "sender", "version", "channel", "frame_type", "class_id", "method_id", "code",
    "name", "size", "payload_size", "body_size", "status", "error", "notes", "content_frame_no",
)  # fmt: skip
CONTROL_METHOD_COLUMNS = (
    *FRAME_COLUMNS, "ts", "arguments", "exchange", "queue", "reply_frame_no", "reply_name", "reply_latency_ns",
)  # fmt: skip
# Arguments of methods on channels, context 'events'.
CHANNEL_ARGUMENTS = {
    "exchange": "string",
    "routing_key": "string",
    "queue": "string",
    "consumer_tag": "string",
    "delivery_tag": "bigint",
    "type": "string",
    "source": "string",
    "destination": "string",
    "identifier": "string",
    "reply_code": "int",
    "reply_text": "string",
    "class_id": "int",
    "method_id": "int",
    "ticket": "int",
    "prefetch_count": "int",
    "active": "boolean",
    "multiple": "boolean",
    "requeue": "boolean",
    "no_wait": "boolean",
    "no_ack": "boolean",
    "exclusive": "boolean",
    "passive": "boolean",
    "durable": "boolean",
    "auto_delete": "boolean",
    "internal": "boolean",
    "mandatory": "boolean",
    "immediate": "boolean",
    "redelivered": "boolean",
    "global": "boolean",
    "realm": "string",
}
# Columns of `c` in contexts 'frames' and 'events', besides the first methods.
OF_CONNECTION = (
    "frame_max", "channel_max", "heartbeat_s", "user", "vhost", "state", "version_known", "tcp_end", "tcp_end_by",
    "tcp_rtt_ns", "client_properties", "server_properties", "client_framed", "server_framed", "loss_frame",
    "loss_from_ns",
)  # fmt: skip


class Sources:
    """The tables, the thresholds by rule, and intermediate results that several contexts share. These are few rows and
    materialized: planning every context down to the files would cost more than everything else."""

    def __init__(self, tables: Tables, parameters: Parameters) -> None:
        self.tables = tables
        self.parameters = parameters
        self.rules: Collection[str] = parameters.keys()  # rules to check
        self.largest = 0  # row count of the largest materialized result
        self.lock = RLock()

    def materialize(self, rows: DataFrame) -> DataFrame:
        """Materialized rows."""
        checkpoint, number = materialize_counted(rows)
        self.largest = max(self.largest, number)
        return checkpoint

    def materialize_if_any(self, rows: DataFrame) -> DataFrame | None:
        """The same; None if there are no rows."""
        checkpoint, number = materialize_counted(rows)
        self.largest = max(self.largest, number)
        return checkpoint if number else None

    def settings(self) -> Mapping[str, str]:
        """Spark settings for queries on materialized rows. On few rows Spark would spend most of its time compiling. In
        unions of checkpoints it fails to infer filters ("key not found")."""
        return SMALL if self.largest <= FEW else UNINFERRED

    @shared_property
    def frames(self) -> DataFrame:
        """Table frames, FRAME_COLUMNS only."""
        return _with_notes(self.tables.frames).select(*FRAME_COLUMNS, "first_ts_ns")

    @shared_property
    def methods(self) -> DataFrame:
        """Table methods, with the columns of frames that it lacks."""
        return _with_notes(self.tables.methods).withColumn("body_size", F.lit(None).cast("bigint"))

    @shared_property
    def control_methods(self) -> DataFrame:
        """Rows of `methods` except those that carry or settle messages: columns CONTROL_METHOD_COLUMNS, few rows.
        Arguments (VARIANT) are slower to read than all other columns together, and are read here once."""
        rows = self.methods.filter(~F.coalesce(F.col("name").isin(*TRANSFER_SENDERS, *SESSION_TRANSFERS), F.lit(False)))
        return self.materialize(rows.select(*CONTROL_METHOD_COLUMNS))

    @shared_property
    def method_counts(self) -> Counter[str]:
        """The number of `control_methods` by name."""
        rows = self.control_methods.filter("name IS NOT NULL").groupBy("name").count().collect()
        return Counter({row.name: row[1] for row in rows})

    @shared_property
    def message_kind_counts(self) -> Mapping[str, int]:
        """The number of messages of each kind (`message_counts.KINDS`)."""
        return count_kinds(self.message_counts)

    @shared_property
    def seconds(self) -> DataFrame:
        """What each side of each connection sent second by second (`connections.seconds`), and every unusual frame:
        both in one pass over all frames."""
        return self.materialize(seconds(flagged_frames(self)))

    @shared_property
    def versions(self) -> set[str]:
        """The AMQP versions that occur."""
        both = self.seconds.select("version").union(self.connections.select("version"))
        return {row.version for row in both.distinct().collect() if row.version is not None}

    @shared_property
    def control(self) -> DataFrame:
        """Protocol headers and methods of connections themselves, with their arguments: few rows."""
        return self.materialize(control_rows(header_frames(self.frames), self.control_methods, FRAME_COLUMNS))

    @shared_property
    def first_rows(self) -> DataFrame:
        """The first row of each kind of `control`, by connection (`connections.first_rows`)."""
        return self.materialize(first_rows(self.control))

    @shared_property
    def negotiated(self) -> DataFrame:
        """The negotiated limits, by connection (`prefilter.negotiated_limits`)."""
        return self.materialize(negotiated_limits(self))

    @shared_property
    def connections(self) -> DataFrame:
        """Context 'connections'."""
        return self.materialize(connection_rows(self.tables.connections, self.seconds, self.first_rows))

    @shared_property
    def stretches(self) -> DataFrame:
        """The longest stretch of each channel with nothing but message traffic (`prefilter.stretches`)."""
        return self.materialize(stretches(self))

    @shared_property
    def transfer_counts(self) -> DataFrame:
        """Counts of methods that carry or settle messages (`prefilter.transfer_counts`)."""
        return self.materialize(transfer_counts(self))

    @shared_property
    def unusual_frames(self) -> DataFrame | None:
        """The unusual rows of `frames` (`prefilter.unusual_frames`)."""
        unusual = few_values(self.seconds.filter("unusual_frame IS NOT NULL"), "unusual_frame")
        return (
            None if unusual == [] else self.materialize_if_any(having_values(unusual_frames(self), "frame_no", unusual))
        )

    @shared_property
    def unusual_methods(self) -> DataFrame | None:
        """Unusual methods on channels: FRAME_COLUMNS, `arguments` and `stretch_life` (`prefilter.with_stretches`)."""
        columns = (*FRAME_COLUMNS, "arguments")
        rows = self.control_methods.filter(ON_CHANNEL).select(
            *columns, F.lit(None).cast("bigint").alias("stretch_life")
        )
        unusual = few_values(self.transfer_counts.filter("unusual_frame IS NOT NULL"), "unusual_frame")
        if unusual != []:  # arguments are slow to read: only those of a few frames are read
            rows = rows.unionByName(
                having_values(unusual_transfers(self), "frame_no", unusual).select(*columns, "stretch_life")
            )
        return self.materialize_if_any(rows)

    @shared_property
    def message_counts(self) -> DataFrame:
        """Messages counted (`traffic.message_counts`)."""
        return self.materialize(count_messages(self.tables.messages, self.parameters))

    @shared_property
    def outstanding_peaks(self) -> DataFrame | None:
        """Context 'outstanding_peaks' (`outstanding.compute_peaks`)."""
        rows = compute_peaks(self)
        return None if rows is None else self.materialize_if_any(rows)

    @shared_property
    def knowledge(self) -> DataFrame:
        """KNOWLEDGE of each connection, and its client, user and virtual host."""
        return self.connections.select(
            "connection_id", "start", "both", "order", "loss_from_ns", "client_product", "user", "vhost"
        )

    @shared_property
    def connection_facts(self) -> DataFrame:
        """Column `c` of contexts 'frames' and 'events', by connection_id."""
        own = [*OF_CONNECTION, F.col("ts_ns").alias("last_ns"), F.col("start").alias("from_start")]
        return self.connections.select("connection_id", F.struct("c.*", *own).alias("c"))


def _with_notes(rows: DataFrame) -> DataFrame:
    return rows if "notes" in rows.columns else rows.withColumn("notes", F.lit(None).cast("array<string>"))


def frames(sources: Sources) -> DataFrame | None:
    """Context 'frames'."""
    if sources.unusual_frames is None:
        return None
    return sources.unusual_frames.select(*FRAME_COLUMNS).join(sources.connection_facts, "connection_id", "left")


def events(sources: Sources, states: Mapping[str, Sql]) -> DataFrame | None:
    """Context 'events' with these states of the channel (`detectors.STATES`)."""
    if sources.unusual_methods is None:
        return None
    before = Window.partitionBy("connection_id", "channel").orderBy("frame_no").rowsBetween(
        Window.unboundedPreceding, -1
    )  # fmt: skip
    rows = sources.unusual_methods.select(*FRAME_COLUMNS, arguments_struct(CHANNEL_ARGUMENTS).alias("args"))
    opens = F.when(F.col("name") == "channel.open", 1)
    return rows.withColumns(
        {
            **{name: F.expr(sql).over(before) for name, sql in states.items()},
            "channel_life": F.count(opens).over(before) + F.coalesce(opens, F.lit(0)),
        }
    ).join(sources.connection_facts, "connection_id", "left")
