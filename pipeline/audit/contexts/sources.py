"""The rows that detectors read, as SQL over the tables: relations, and the contexts made of them.

A `Relation` is a named query over tables and other relations, named as in any SQL: FROM control_methods. It is computed
when the first query asks for it; most are few rows, and materialized. A `Context` is the query whose rows the detectors
of one context read, and what has to occur in the tables, without which it is not planned.

One SQL text per query, and few queries: on small tables Spark spends most of its time on calls and plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from threading import RLock
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from pipeline.audit.catalogue import ALL_VERSIONS, Number
from pipeline.audit.detectors import Sql, sql_in
from pipeline.schemas import TABLES
from pipeline.session import (
    COMPILED,
    INTERPRETED,
    INTERPRETED_BYTES,
    ONE_PARTITION,
    ONE_PARTITION_BYTES,
    grouping_settings,
)
from udfs.roles import DELIVERIES

if TYPE_CHECKING:
    from pipeline import Tables

FEW = 10_000  # rows
# The most values in a pushed-down IN filter. By default Spark pushes down ten values; of more it pushes down only the
# range from the least to the greatest.
MOST_VALUES = 200
PUSH_DOWN_VALUES = {"spark.sql.parquet.pushdown.inFilterThreshold": str(MOST_VALUES)}
# Filters that Spark infers from conditions and joins drop next to nothing here, and inferring them takes time.
UNINFERRED = {"spark.sql.constraintPropagation.enabled": "false"}
# Rules of Spark's optimizer that save work per row, or seldom apply: on few rows they take longer than they save.
NOT_WORTH_IT = """
    catalyst.analysis.UpdateAttributeNullability
    catalyst.optimizer.BooleanSimplification catalyst.optimizer.ConstantPropagation
    catalyst.optimizer.DecimalAggregates catalyst.optimizer.EliminateAggregateFilter
    catalyst.optimizer.EliminateDistinct catalyst.optimizer.EliminateOuterJoin
    catalyst.optimizer.EliminateWindowPartitions catalyst.optimizer.FoldablePropagation
    catalyst.optimizer.GenerateOptimization catalyst.optimizer.InjectRuntimeFilter
    catalyst.optimizer.LikeSimplification catalyst.optimizer.LimitPushDown
    catalyst.optimizer.NullDownPropagation catalyst.optimizer.NullPropagation
    catalyst.optimizer.ObjectSerializerPruning catalyst.optimizer.OptimizeCsvJsonExprs
    catalyst.optimizer.OptimizeIn catalyst.optimizer.OptimizeOneRowRelationSubquery
    catalyst.optimizer.OptimizeUpdateFields catalyst.optimizer.OptimizeWindowFunctions
    catalyst.optimizer.PruneFilters catalyst.optimizer.PullUpProjectAliasThroughWindow
    catalyst.optimizer.PushDownLeftSemiAntiJoin catalyst.optimizer.PushExtraPredicateThroughJoin
    catalyst.optimizer.PushFoldableIntoBranches catalyst.optimizer.RemoveNoopOperators
    catalyst.optimizer.RemoveRedundantAggregates catalyst.optimizer.RemoveRedundantAliases
    catalyst.optimizer.ReorderAssociativeOperator catalyst.optimizer.ReplaceNullWithFalseInPredicate
    catalyst.optimizer.SimplifyBinaryComparison catalyst.optimizer.SimplifyConditionals
    catalyst.optimizer.SimplifyExtractValueOps catalyst.optimizer.TransposeWindow
    catalyst.optimizer.UnwrapCastInBinaryComparison execution.datasources.PruneFileSourcePartitions
    execution.datasources.SchemaPruning execution.dynamicpruning.PartitionPruning
    execution.planmerging.MergeSubplans
"""
WITHOUT_RULES = {
    "spark.sql.optimizer.excludedRules": ",".join(f"org.apache.spark.sql.{rule}" for rule in NOT_WORTH_IT.split())
}
# For plans over few rows: no code generation, one task per query, and less optimization. The audit of the samples takes
# a tenth less processor time without those rules.
SMALL = {**INTERPRETED, **UNINFERRED, **ONE_PARTITION, **WITHOUT_RULES}


def audit_settings(spark: SparkSession, byte_size: int) -> Mapping[str, str]:
    """Spark settings for the audit of tables whose files have `byte_size` bytes."""
    plans = {**(INTERPRETED if byte_size < INTERPRETED_BYTES else COMPILED), **UNINFERRED}
    return {**grouping_settings(spark), **(SMALL if byte_size < ONE_PARTITION_BYTES else plans)}


Parameters = Mapping[str, Mapping[str, Number]]
CHANNEL = ("connection_id", "channel", "channel_life")
BROKER = ("server_ip", "server_port", "vhost")
DELIVERED: Sql = sql_in("operation", DELIVERIES)  # on rows of messages
EARLIER: Sql = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"  # of a window
CONNECTION_VERSIONS: Sql = "(SELECT connection_id, version FROM connections)"
READS = re.compile(r"\b(FROM|JOIN)\s+([a-z_]+)\b(\s+AS\b)?")


@dataclass(frozen=True)
class Relation:
    """`sql`: the query, or a function that returns it. `counts`: SQL aggregates of its rows, computed with them.
    `materialized`: computed once; otherwise the query is repeated wherever it is read."""

    sql: Sql | Callable[[Sources], Sql | DataFrame]
    counts: Mapping[str, Sql] = field(default_factory=dict)
    materialized: bool = True


@dataclass(frozen=True)
class Context:
    """`sql`: the query, or a function that returns it, or None if there are no rows. `place`: which of CHANNEL its rows
    have. `full_scan`: it reads a whole table.

    Without rows if no row of `rows`, no version of `versions`, no method of `methods` or no message of the kind
    `messages` (`messages.KINDS`) occurs, where these are given.
    """

    sql: Sql | Callable[[Sources], Sql | None]
    place: Collection[str] = CHANNEL[:1]
    rows: str | None = None
    versions: Collection[str] = ()
    methods: Collection[str] = ()
    messages: str | None = None
    full_scan: bool = False


class Sources:
    """The tables, the relations over them, and the thresholds by rule."""

    def __init__(self, tables: Tables, relations: Mapping[str, Relation], parameters: Parameters) -> None:
        self.tables = tables
        self.relations = relations
        self.parameters = parameters
        self.rules: Collection[str] = parameters.keys()  # rules to check
        self.largest = 0  # row count of the largest materialized relation
        self.spark = tables.frames.sparkSession
        self._prefix = f"wirehare_{token_hex(8)}_"
        self._views: dict[str, str] = {}
        self._counts: dict[str, Mapping[str, Any]] = {}
        self._lock = RLock()
        self._locks: dict[str, RLock] = {}

    def limit(self, rule: str, parameter: str) -> Number:
        """A threshold; 0 if the rule is not checked."""
        return self.parameters.get(rule, {}).get(parameter, 0)

    def query(self, sql: Sql) -> DataFrame:
        """The rows of a query over tables and relations."""
        return self.spark.sql(self.bound(sql))

    def bound(self, sql: Sql) -> Sql:
        """A query with the temporary views of the tables and relations that it reads, which are made first."""

        def view(found: re.Match[str]) -> str:
            keyword, name, alias = found.groups()
            known = name in self.relations or name in TABLES
            return f"{keyword} {self.view(name)}{alias or f' AS {name}'}" if known else found[0]

        return READS.sub(view, sql)

    def view(self, name: str) -> str:
        """The temporary view of a table or relation."""
        with self._lock:
            own = self._locks.setdefault(name, RLock())
        with own:
            if name not in self._views:
                view = self._prefix + name
                self.rows(name).createOrReplaceTempView(view)
                self._views[name] = view
            return self._views[name]

    def rows(self, name: str) -> DataFrame:
        """The rows of a table or relation, computed for the caller."""
        if name not in self.relations:
            rows: DataFrame = getattr(self.tables, name)
            return rows
        relation = self.relations[name]
        sql = relation.sql if isinstance(relation.sql, str) else relation.sql(self)
        found = self.query(sql) if isinstance(sql, str) else sql
        return self._materialized(name, found, relation.counts) if relation.materialized else found

    def _materialized(self, name: str, rows: DataFrame, counts: Mapping[str, Sql]) -> DataFrame:
        """`rows`, computed now and stored in memory and on the executors' disks.

        A small result is coalesced into one partition and broadcast in joins: Spark's plan of a checkpoint does not
        know its size and would shuffle it for each window, aggregate and join. The counts are made while it is
        computed: a query would take as long to plan. A client of Spark Connect does not receive them and runs one.
        """
        seen = Observation()
        columns = [F.expr(sql).alias(of) for of, sql in {"rows": "count(1)", **counts}.items()]
        checkpoint = rows.observe(seen, *columns).localCheckpoint()
        found = seen.get if isinstance(rows, ClassicFrame) else checkpoint.agg(*columns).collect()[0].asDict()
        self._counts[name] = found
        self.largest = max(self.largest, found["rows"])
        if not found["rows"]:
            return checkpoint.limit(0)  # Spark plans nothing for what is joined to no rows
        return checkpoint if found["rows"] > FEW else F.broadcast(checkpoint.coalesce(1))

    def count(self, name: str, of: str = "rows") -> Any:
        """A count of a materialized relation, by default of its rows."""
        self.view(name)
        return self._counts[name][of]

    @property
    def few_frames(self) -> bool:
        """Whether all tables have few rows."""
        return bool(self.count("seconds", "frames") <= FEW)

    @property
    def versions(self) -> set[str]:
        """The AMQP versions that occur."""
        return {*self.count("seconds", "versions"), *self.count("known_connections", "versions")} & {*ALL_VERSIONS}

    @property
    def methods(self) -> set[str]:
        """The names of `control_methods`."""
        return {*self.count("control_methods", "names")}

    def occurs(self, context: Context) -> bool:
        """Whether everything occurs without which a context has no rows."""
        return not (
            (context.versions and not self.versions & {*context.versions})
            or (context.methods and not self.methods & {*context.methods})
            or (context.messages and not self.count("message_counts", context.messages))
            or (context.rows and not self.count(context.rows))
        )

    def only(self, name: str, column: str, of: str) -> Sql:
        """SQL for a filter: `column` is one of the values of column `of` of a relation, so that Spark can skip files;
        true if there are few rows in all, or more than MOST_VALUES."""
        if self.few_frames:
            return "true"
        rows = self.query(f"SELECT DISTINCT {of} FROM {name} WHERE {of} IS NOT NULL LIMIT {MOST_VALUES + 1}").collect()
        return f"{column} IN ({', '.join(str(row[0]) for row in rows)})" if 0 < len(rows) <= MOST_VALUES else "true"

    def settings(self) -> Mapping[str, str]:
        """Spark settings for queries on materialized rows. On few rows Spark would spend most of its time compiling. In
        unions of checkpoints it fails to infer filters ("key not found")."""
        return SMALL if self.largest <= FEW else UNINFERRED

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the temporary views."""
        for view in self._views.values():
            with suppress(Exception):  # if the JVM is gone, the original error matters
                self.spark.catalog.dropTempView(view)


def columns(names: Iterable[str]) -> Sql:
    return ", ".join(names)
