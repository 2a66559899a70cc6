"""What detectors read. A context is a set of rows, computed once from the tables for all detectors that name it.

Columns that the engine looks for, where a context has them: connection_id, version, frame_no, ts_ns; channel,
channel_life (rules on channels, links, messages); content_frame_no (the message, see `Detector.thing`).

    connections  one row a connection: columns of the table, what is known of it, and the first of each method of the
                 connection class: `c.start`, `c.tune_ok` ... (`facts`)
    frames       one row a frame of any type, beside what is known of its connection (`c`); not those that are plain
    events       one row a method of the classic family on a channel other than that of the connection, with its
                 arguments (`said`), what earlier rows of the channel say (`State`), and its connection (`c`); not those
                 that are plain

Which rows are plain, so that no rule can be about them, says `plain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import RLock
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.arguments import SAID, SAID_OF_CONNECTION, said
from pipeline.audit.catalogue import Number
from pipeline.audit.detector import State
from pipeline.audit.facts import CONTROL, facts, lists
from pipeline.audit.kept import kept
from pipeline.audit.plain import stretches, unusual
from pipeline.shared import shared

if TYPE_CHECKING:
    from pipeline import Tables

Parameters = Mapping[str, Mapping[str, Number]]
FRAME_COLUMNS = (
    "connection_id", "frame_no", "ts_ns", "sender", "version", "channel", "frame_type", "class_id", "method_id", "code",
    "name", "size", "payload_size", "body_size", "status", "error", "notes", "content_frame_no",
)  # fmt: skip
PARTITIONS = {
    "channel": ("connection_id", "channel"),
    "direction": ("connection_id", "channel", "sender"),
    "connection": ("connection_id",),
}
# What rows of frames and events say of their connection, beside its first methods.
OF_CONNECTION = (
    "frame_max", "channel_max", "heartbeat_s", "user", "vhost", "state", "version_known", "tcp_end", "tcp_end_by",
    "tcp_rtt_ns", "client_properties", "server_properties", "client_framed", "server_framed", "loss_frame",
    "loss_from_ns",
)  # fmt: skip


class Sources:
    """The tables, the thresholds by rule, and what several contexts are made of: few rows, computed at once, because
    planning all contexts that are made of them down to the files would cost more than everything else."""

    def __init__(self, tables: Tables, parameters: Parameters) -> None:
        self.tables = tables
        self.parameters = parameters
        self.lock = RLock()

    @shared
    def frames(self) -> DataFrame:
        """Table frames, narrow, and `arguments`."""
        rows = self.tables.frames
        rows = rows if "notes" in rows.columns else rows.withColumn("notes", F.lit(None).cast("array<string>"))
        return rows.select(*FRAME_COLUMNS, "first_ts_ns", "arguments")

    @shared
    def control(self) -> DataFrame:
        """Protocol headers and methods of connections themselves, with their arguments: few rows."""
        words = [value.alias(name) for name, value in lists().items()]
        return self.frames.filter(CONTROL).select(*FRAME_COLUMNS, said(SAID_OF_CONNECTION).alias("said"), *words)

    @shared
    def connections(self) -> DataFrame:
        """Context 'connections'."""
        return kept(facts(self.tables.connections, self.frames, self.control))

    @shared
    def stretches(self) -> DataFrame:
        """Where messages pass and nothing else happens, by channel (`plain.stretches`)."""
        return kept(stretches(self))

    @shared
    def unusual(self) -> DataFrame:
        """Rows of `frames` that are not plain (`plain.unusual`)."""
        return kept(unusual(self))

    @shared
    def knowledge(self) -> DataFrame:
        """What is known of each connection, and whose it is."""
        return self.connections.select(
            "connection_id", "start", "both", "order", "loss_from_ns", "client_product", "user", "vhost"
        )

    @shared
    def of_connection(self) -> DataFrame:
        """`c` of frames and events, by connection_id."""
        own = [*OF_CONNECTION, F.col("ts_ns").alias("last_ns"), F.col("start").alias("from_start")]
        return self.connections.select("connection_id", F.struct("c.*", *own).alias("c"))


def frames(sources: Sources) -> DataFrame:
    """Context 'frames'."""
    rows = sources.unusual.filter("as_frame").select(*FRAME_COLUMNS)
    return rows.join(sources.of_connection, "connection_id", "left")


def events(sources: Sources, states: Mapping[str, State]) -> DataFrame:
    """Context 'events'."""
    rows = sources.unusual.filter("as_event").select(*FRAME_COLUMNS, said(SAID).alias("said"))
    for layer in sorted({state.layer for state in states.values()}):
        rows = rows.withColumns({name: _before(state) for name, state in states.items() if state.layer == layer})
    opens = F.when(F.col("name") == "channel.open", 1).otherwise(0)
    rows = rows.withColumn("channel_life", F.col("opens_before") + opens)
    return rows.join(sources.of_connection, "connection_id", "left")


def _before(state: State) -> Column:
    """The state over the rows before the current one."""
    window = Window.partitionBy(*PARTITIONS[state.by]).orderBy("frame_no")
    return F.expr(state.value).over(window.rowsBetween(Window.unboundedPreceding, -1))
