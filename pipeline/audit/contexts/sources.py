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

from collections import Counter
from collections.abc import Collection, Mapping
from threading import RLock
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.catalogue import Number
from pipeline.audit.contexts.arguments import SAID, said
from pipeline.audit.contexts.facts import facts, firsts, heads, seconds, words
from pipeline.audit.contexts.materialized import FEW, counted, few, near
from pipeline.audit.contexts.outstanding import piles
from pipeline.audit.contexts.prefilter import (
    MOVES,
    ON_CHANNEL,
    SENT_BY,
    agreed,
    judged_frames,
    odd_frames,
    odd_passing,
    passing,
    stretches,
)
from pipeline.audit.contexts.traffic import tallied, traffic
from pipeline.audit.detector import State
from pipeline.decoding.shared import shared
from pipeline.session import INTERPRETED

if TYPE_CHECKING:
    from pipeline import Tables

# Filters that Spark infers from conditions and joins leave out next to nothing here: to infer them takes more time.
UNINFERRED = {"spark.sql.constraintPropagation.enabled": "false"}
# For plans over few rows: besides compiling, Spark plans anew what comes behind each exchange.
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
        self.rules: Collection[str] = parameters.keys()  # that are looked for
        self.most = 0  # rows of anything that is kept
        self.lock = RLock()

    def keep(self, rows: DataFrame) -> DataFrame:
        """`kept` rows."""
        standing, number = counted(rows)
        self.most = max(self.most, number)
        return standing

    def keep_if_any(self, rows: DataFrame) -> DataFrame | None:
        """The same, None where there are none."""
        standing, number = counted(rows)
        self.most = max(self.most, number)
        return standing if number else None

    def brief(self) -> Mapping[str, str]:
        """Settings for what is made of kept rows: where they are few, Spark would spend most of its time compiling. In
        unions of kept rows it fails to infer filters: constraints name columns that are no more ("key not found")."""
        return SMALL if self.most <= FEW else UNINFERRED

    @shared
    def frames(self) -> DataFrame:
        """Table frames, narrow."""
        return _with_notes(self.tables.frames).select(*FRAME_COLUMNS, "first_ts_ns")

    @shared
    def methods(self) -> DataFrame:
        """Table methods, as wide as whoever reads it asks for, with the columns of frames that it lacks."""
        return _with_notes(self.tables.methods).withColumn("body_size", F.lit(None).cast("bigint"))

    @shared
    def control_methods(self) -> DataFrame:
        """Rows of `methods` but those that carry or settle messages: columns CONTROL_METHOD_COLUMNS, few rows.
        Arguments take longer to
        read than all that stands in plain columns, and are read here once."""
        rows = self.methods.filter(~F.coalesce(F.col("name").isin(*SENT_BY, *MOVES), F.lit(False)))
        return self.keep(rows.select(*CONTROL_METHOD_COLUMNS))

    @shared
    def said(self) -> Counter[str]:
        """How often each of the names of `control_methods` was said."""
        rows = self.control_methods.filter("name IS NOT NULL").groupBy("name").count().collect()
        return Counter({row.name: row[1] for row in rows})

    @shared
    def traffic(self) -> Mapping[str, int]:
        """How many messages there are of each kind that a context is about (`traffic.KINDS`)."""
        return traffic(self.tallied)

    @shared
    def seconds(self) -> DataFrame:
        """What each side of each connection sent second by second (`facts.seconds`), and each frame that is not
        plain: both in one pass over all frames."""
        return self.keep(seconds(judged_frames(self)))

    @shared
    def versions(self) -> set[str]:
        """Versions of which there are any rows."""
        both = self.seconds.select("version").union(self.connections.select("version"))
        return {row.version for row in both.distinct().collect() if row.version is not None}

    @shared
    def control(self) -> DataFrame:
        """Protocol headers and methods of connections themselves, with their arguments: few rows."""
        return self.keep(words(heads(self.frames), self.control_methods, FRAME_COLUMNS))

    @shared
    def firsts(self) -> DataFrame:
        """The first row of each kind of `control`, by connection (`facts.firsts`)."""
        return self.keep(firsts(self.control))

    @shared
    def agreed(self) -> DataFrame:
        """What was agreed on, by connection (`plain.agreed`)."""
        return self.keep(agreed(self))

    @shared
    def connections(self) -> DataFrame:
        """Context 'connections'."""
        return self.keep(facts(self.tables.connections, self.seconds, self.firsts))

    @shared
    def stretches(self) -> DataFrame:
        """Where messages pass and nothing else happens, by channel (`plain.stretches`)."""
        return self.keep(stretches(self))

    @shared
    def passing(self) -> DataFrame:
        """Methods that carry or settle messages, counted (`plain.passing`)."""
        return self.keep(passing(self))

    @shared
    def odd_frames(self) -> DataFrame | None:
        """Rows of `frames` that are not plain (`plain.odd_frames`)."""
        odd = few(self.seconds.filter("odd_frame IS NOT NULL"), "odd_frame")
        return None if odd == [] else self.keep_if_any(near(odd_frames(self), "frame_no", odd))

    @shared
    def odd_methods(self) -> DataFrame | None:
        """Methods on channels that are not plain: FRAME_COLUMNS, `arguments` and `calm_life` (`plain.in_stretches`)."""
        columns = (*FRAME_COLUMNS, "arguments")
        rows = self.control_methods.filter(ON_CHANNEL).select(*columns, F.lit(None).cast("bigint").alias("calm_life"))
        odd = few(self.passing.filter("odd_frame IS NOT NULL"), "odd_frame")
        if odd != []:  # arguments take long to read: those of a few frames are looked for
            rows = rows.unionByName(near(odd_passing(self), "frame_no", odd).select(*columns, "calm_life"))
        return self.keep_if_any(rows)

    @shared
    def tallied(self) -> DataFrame:
        """Messages counted (`traffic.tallied`)."""
        return self.keep(tallied(self.tables.messages, self.parameters))

    @shared
    def piles(self) -> DataFrame | None:
        """How many messages were outstanding at a time, by life of a channel (`outstanding.piles`)."""
        rows = piles(self)
        return None if rows is None else self.keep_if_any(rows)

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


def _with_notes(rows: DataFrame) -> DataFrame:
    return rows if "notes" in rows.columns else rows.withColumn("notes", F.lit(None).cast("array<string>"))


def frames(sources: Sources) -> DataFrame | None:
    """Context 'frames'."""
    if sources.odd_frames is None:
        return None
    return sources.odd_frames.select(*FRAME_COLUMNS).join(sources.of_connection, "connection_id", "left")


def events(sources: Sources, states: Mapping[str, State]) -> DataFrame | None:
    """Context 'events'."""
    if sources.odd_methods is None:
        return None
    rows = sources.odd_methods.select(*FRAME_COLUMNS, said(SAID).alias("said"))
    for layer in sorted({state.layer for state in states.values()}):
        rows = rows.withColumns({name: _before(state) for name, state in states.items() if state.layer == layer})
    opens = F.when(F.col("name") == "channel.open", 1).otherwise(0)
    rows = rows.withColumn("channel_life", F.col("opens_before") + opens)
    return rows.join(sources.of_connection, "connection_id", "left")


def _before(state: State) -> Column:
    """The state over the rows before the current one."""
    window = Window.partitionBy(*PARTITIONS[state.by]).orderBy("frame_no")
    return F.expr(state.value).over(window.rowsBetween(Window.unboundedPreceding, -1))
