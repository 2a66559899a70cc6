"""Findings by tasks of Spark, each of which looks for them in one group of connections.

Tables that a job has written are in files with the same connections, those of one of its tasks (`groups`): a task of
the audit reads the files of a group where they are. Rows of a lake, of filtered tables, and of tables that were not
written come to the tasks through a shuffle by connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pyarrow as pa
import pyarrow.fs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from codec.tables import FINDINGS
from pipeline.audit.file_groups import GROUP_BYTES, grouped, joined_files
from pipeline.explore.duckdb_tables import table_files
from pipeline.lake.lake_tables import Span
from pipeline.output.location import OutputError, TablesError, location
from pipeline.tables.dataframes import Tables
from udfs.arrow.spark_schemas import spark_schema
from udfs.findings.evaluation import OF_GROUPS, Question, findings_across
from udfs.findings.group_tasks import (
    CONNECTIONS,
    FILES,
    PACKED,
    AnswerFiles,
    AnswerRows,
    PackRows,
    ReadConnections,
    pack,
    unpacked,
    unpacked_findings,
)
from udfs.findings.program import Program

# Their rows, and the function for `mapInArrow` that answers a question for one.
Groups = tuple[DataFrame, Callable[[Question], AnswerFiles | AnswerRows]]
COLUMNS = spark_schema(PACKED)
LARGEST_SHARE, TASKS = 2, 16  # of a group, in equal shares of the tasks, or of so many


def findings_of(tables: Tables, program: Program) -> DataFrame:
    """Table findings of `tables`, on the disks of Spark."""
    spark = tables.frames.sparkSession
    groups, answering = groups_in_files(tables, program) or groups_of_rows(tables, program)
    groups = groups.persist(StorageLevel.DISK_ONLY)
    answers = groups.mapInArrow(answering(Question(0)), COLUMNS).persist(StorageLevel.DISK_ONLY)

    def ask(question: Question) -> list[dict[str, pa.Table]]:
        """What the groups answer; their findings stay where they are."""
        asked = answers if question.stage == 0 else groups.mapInArrow(answering(question), COLUMNS)
        rows = asked.filter(f"name != '{OF_GROUPS}'").toArrow()
        return [
            {name: unpacked(data.as_buffer())}
            for name, data in zip(rows["name"].to_pylist(), rows["data"], strict=True)
        ]

    (across,) = findings_across(ask, program)
    found = answers.filter(f"name = '{OF_GROUPS}'")
    if across.num_rows:
        one = pa.Table.from_batches([pack(OF_GROUPS, across)])
        found = found.unionAll(spark.createDataFrame(one, COLUMNS))
    found = found.mapInArrow(unpacked_findings, spark_schema(FINDINGS)).persist(StorageLevel.DISK_ONLY)
    found.count()
    for each in (groups, answers):
        each.unpersist()
    return found


def groups_of_rows(tables: Tables, program: Program) -> Groups:
    """PACKED rows of all tables, a group of connections in each partition."""
    number = partitions(tables.frames.sparkSession)
    packed = [
        rows.mapInArrow(PackRows(name, number), COLUMNS) for name, rows in tables.items() if name in program.tables
    ]
    shuffled = reduce(DataFrame.unionAll, packed).repartitionById(number, "group_no")
    return shuffled, lambda question: AnswerRows(program, question)


def groups_in_files(tables: Tables, program: Program) -> Groups | None:
    """FILES of all tables, a group of connections in each partition; None: the tables are not those in files, or a
    group has much more than its share, so that other tasks would wait for it."""
    spark = tables.frames.sparkSession
    paths, system = files_of(tables, program)
    if not paths or system is None:
        return None
    number = partitions(spark)
    with_connections = rows_of([(name, path, at % number) for at, (path, name) in enumerate(paths.items())])
    shares = spark.createDataFrame(with_connections).repartitionById(number, "group_no")
    found = shares.mapInArrow(ReadConnections(system), spark_schema(CONNECTIONS))
    pairs = found.selectExpr("min(path) OVER (PARTITION BY connection_id) AS first", "path").distinct().toArrow()
    leads = joined_files(zip(pairs["first"].to_pylist(), pairs["path"].to_pylist(), strict=True))
    sizes = {info.path: info.size or 0 for info in system.get_file_info([*paths])}
    size = sum(sizes.values())
    groups = grouped(sizes, leads, min(GROUP_BYTES, size // number))
    if max(sum(map(sizes.__getitem__, group)) for group in groups) > LARGEST_SHARE * size / min(number, TASKS):
        return None
    rows = rows_of([(paths[path], path, number) for number, group in enumerate(groups) for path in sorted(group)])
    of_groups = spark.createDataFrame(rows).repartitionById(len(groups), "group_no")
    return of_groups, lambda question: AnswerFiles(program, question, system)


def files_of(tables: Tables, program: Program) -> tuple[dict[str, str], pyarrow.fs.FileSystem | None]:
    """The name of the table of each file that tables are read from, unchanged, and their file system."""
    if tables.directory is None:
        return {}, None
    try:
        root = location(tables.directory)
        files = table_files(root, tables.directory, Span())
    except (OSError, OutputError, TablesError):  # Spark reaches what this machine does not
        return {}, None
    return {path: name for name in program.tables for path in files[name].paths}, root.files


def rows_of(files: list[tuple[str, str, int]]) -> pa.Table:
    """FILES of (table, path, group)."""
    names, paths, groups = (list(column) for column in zip(*files, strict=True))
    return pa.table([pa.array(groups, pa.int32()), pa.array(names), pa.array(paths)], names=FILES.names)


def partitions(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
