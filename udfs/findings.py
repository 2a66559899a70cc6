"""Findings: the rows of tables that break rules, as DuckDB evaluates them in this process.

    found = findings_of({"frames": ["tables/frames/part-0.parquet"], ...}, program)

Rules are data, and so is the program that checks them (`Program`): SQL statements that derive relations from the
tables, one query for each context with the conditions of all its rules, and one query from what they found to findings.
A program can be pickled, so that Spark's workers run the same one.

A run reads the files of its tables and no others, and spills into its own scratch directory: DuckDB's access to files
is restricted to these, and the configuration is locked, before the first statement of the program is run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.fs

from codec.tables import (
    BINARY,
    BOOLEAN,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    VARIANT,
    ListOf,
    MapOf,
    Table,
    Type,
    table_of,
)
from codec.variant.python_values import encode
from udfs.arrow.types import arrow_schema, as_structs, as_variants, variant_columns, variants
from udfs.roles import METHOD_FRAMES, SESSION_VERSIONS
from udfs.sink.parquet import ParquetFiles

NAMES = {
    STRING: "VARCHAR", LONG: "BIGINT", INT: "INTEGER", BOOLEAN: "BOOLEAN", BINARY: "BLOB", TIMESTAMP: "TIMESTAMPTZ",
    VARIANT: "VARIANT",
}  # fmt: skip
BATCH_ROWS = 32_768
ROUND_TRIP_NS = 10**9  # assumed if the capture does not show it
SOURCES: dict[str, str] = {"oddities": "methods"}  # relations that kernels make, and the table that they read

Files = Mapping[str, "Sequence[str] | pa.Table"]


class Relation(NamedTuple):
    """A statement that makes the relation `name` from tables and other relations."""

    name: str
    statement: str


class Program(NamedTuple):
    """What is evaluated: `settings`, thresholds by name; `constants`, small tables as JSON arrays of objects;
    `relations`, in an order in which each reads earlier ones only; `hits`, queries of rows that break rules; `result`,
    the query of findings, whose `evidence` is JSON. `schemas`: of the tables."""

    schemas: Mapping[str, Table]
    settings: Mapping[str, float]
    constants: Mapping[str, str]
    relations: Sequence[Relation]
    hits: Sequence[str]
    result: str
    findings: Table

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it may read."""
        return tuple(self.schemas)


class Resources(NamedTuple):
    """What a run may use: threads, bytes of memory, and a directory for what does not fit; None: the default."""

    threads: int | None = None
    memory_bytes: int | None = None
    directory: str | None = None


USUAL = Resources()
EVERYTHING: Mapping[str, str] = MappingProxyType({})
MEMORY_SHARE = 0.5  # of this machine's memory
PARALLEL_QUERIES = 2
TASK_BYTES = 1 << 30  # of memory for a run in a task of Spark; beyond it DuckDB spills


def memory_share() -> int:
    """Bytes of memory for a run in the only process of a command."""
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE)


@dataclass(frozen=True)
class Run:
    """A run that another thread may cancel."""

    connections: Sequence[duckdb.DuckDBPyConnection]

    def interruptAll(self) -> None:
        """Cancel the running statements, as SparkSession.interruptAll."""
        for connection in self.connections:
            connection.interrupt()


def findings_of(
    tables: Files,
    program: Program,
    resources: Resources = USUAL,
    conditions: Mapping[str, str] = EVERYTHING,
    runs: list[Any] | None = None,
) -> pa.Table:
    """The findings about `tables`, by name the paths of their Parquet files, or their rows: all rows of some
    connections. A table that is missing, or a column that is, is empty. `conditions`: by table, SQL that is true on the
    rows that count. The Run is appended to `runs`. Raises duckdb.Error for an invalid program, and for files that
    cannot be read."""
    directory = tempfile.mkdtemp(prefix="findings-", dir=resources.directory)
    try:
        files = {
            name: _files(tables.get(name, ()), schema, directory, name) for name, schema in program.schemas.items()
        }
        with connected(files, program, directory, resources, conditions) as connection:
            others = [connection.cursor() for _ in range(PARALLEL_QUERIES)]
            if runs is not None:
                runs.append(Run((connection, *others)))
            for relation in program.relations:
                if relation.name == "oddities":
                    _make_oddities(connection, dataset(files.get("methods", ())))
                else:
                    connection.execute(relation.statement)
            _run_all(others, program)
            return _with_variants(connection.sql(program.result).to_arrow_table(), program.findings)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_all(connections: Sequence[duckdb.DuckDBPyConnection], program: Program) -> None:
    """Run the queries of hits, each connection one at a time: nearly all are planned for longer than they run, and
    DuckDB plans a query in one thread. Raises the first error."""
    free = SimpleQueue[duckdb.DuckDBPyConnection]()
    for connection in connections:
        connection.execute(settings_of(program))
        free.put(connection)

    def run(query: str) -> None:
        connection = free.get()
        try:
            connection.execute(query)
        finally:
            free.put(connection)

    with ThreadPoolExecutor(len(connections)) as pool:
        for _ in pool.map(run, program.hits):
            pass


def settings_of(program: Program) -> str:
    """The statement that sets the thresholds of a program, for one connection."""
    limits = ", ".join(f"{quoted(name)}: {value!r}::DOUBLE" for name, value in program.settings.items())
    return f"SET VARIABLE settings = MAP {{{limits}}}"


def connected(
    files: Mapping[str, Sequence[str]],
    program: Program,
    directory: str,
    resources: Resources = USUAL,
    conditions: Mapping[str, str] = EVERYTHING,
) -> duckdb.DuckDBPyConnection:
    """DuckDB with the tables as views, the constants as tables, and nothing else that it may read."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": f"{directory}/spilled",
        "autoinstall_known_extensions": "false",
        "threads": resources.threads or os.cpu_count() or 1,
        "preserve_insertion_order": "false",
    }
    if resources.memory_bytes:
        settings["memory_limit"] = f"{resources.memory_bytes}B"
    connection = duckdb.connect(config=settings)
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    allowed = list[str]()
    # The condition of a table may read the connections.
    for name, schema in sorted(program.schemas.items(), key=lambda item: item[0] != "connections"):
        connection.execute(view_of(name, schema, files.get(name, ()), conditions.get(name, "true")))
        allowed += files.get(name, ())
    connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    connection.execute(settings_of(program))
    for name, rows in program.constants.items():
        connection.execute(constant(name, rows))
    return connection


def constant(name: str, rows: str) -> str:
    """The statement for a small table from a JSON array of objects."""
    types = json.dumps([{key: _json_type(value) for key, value in json.loads(rows)[0].items()}])
    return (
        f"CREATE TABLE {name} AS SELECT unnest(from_json({quoted(rows)}, {quoted(types)}), recursive := true)"
        if json.loads(rows)
        else ""
    )


def _json_type(value: object) -> object:
    kinds = {bool: "BOOLEAN", int: "BIGINT", list: ["VARCHAR"]}
    return kinds.get(type(value), "VARCHAR")


def no_rows(schema: Table) -> str:
    """A query that gives no rows, of all columns of a table: others in a UNION ALL BY NAME may lack some."""
    columns = ", ".join(f'CAST(NULL AS {type_name(column.type)}) AS "{column.name}"' for column in schema)
    return f"SELECT {columns} WHERE false"


def view_of(name: str, schema: Table, paths: Sequence[str], condition: str = "true") -> str:
    """The statement for a view of the rows of a table in files on which `condition` is true; without files there are
    none."""
    read = f" UNION ALL BY NAME {reading(paths)}" if paths else ""
    rows = f"{no_rows(schema)}{read}"
    return f"CREATE VIEW {name} AS {rows if condition == 'true' else f'SELECT * FROM ({rows}) WHERE {condition}'}"


def reading(paths: Sequence[str]) -> str:
    """The query for all rows of these files."""
    listed = ", ".join(map(quoted, paths))
    return f"SELECT * FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"


def type_name(kind: Type) -> str:
    """DuckDB's name of a type."""
    if isinstance(kind, ListOf):
        return f"{type_name(kind.element)}[]"
    if isinstance(kind, MapOf):
        return f"MAP({type_name(kind.key)}, {type_name(kind.value)})"
    if isinstance(kind, Table):
        return f"STRUCT({', '.join(f'{quoted_name(each.name)} {type_name(each.type)}' for each in kind)})"
    return NAMES[kind]


def quoted(text: str) -> str:
    """A string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _files(rows: Sequence[str] | pa.Table, schema: Table, directory: str, name: str) -> Sequence[str]:
    """The paths of files with these rows of a table; those that are not in files are written."""
    if not isinstance(rows, pa.Table):
        return rows
    directory = f"{directory}/{name}"
    file = _file(directory, schema)
    for batch in rows.to_batches(BATCH_ROWS):
        file.write(batch)
    return _closed(file, directory, schema)


def _file(directory: str, schema: Table) -> ParquetFiles:
    """A file for rows of a table in `directory`, which is made."""
    os.mkdir(directory, 0o700)
    return ParquetFiles(pyarrow.fs.LocalFileSystem(), directory, schema)


def _closed(file: ParquetFiles, directory: str, schema: Table) -> list[str]:
    """The paths of what was written into `directory`."""
    file.close(arrow_schema(schema))
    return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]


def dataset(paths: Sequence[str]) -> Any:
    """The files as a dataset of Arrow, whose VARIANT columns are structs of bytes, as kernels read them."""
    import pyarrow.dataset

    return pyarrow.dataset.dataset(list(paths), format="parquet") if paths else None


def _make_oddities(connection: duckdb.DuckDBPyConnection, rows: Any) -> None:
    """Table oddities: what is odd in the sequence of frames of 0-10 and 1.0 (`udfs.conversation.checks`)."""
    from udfs.conversation.checks import METHOD_COLUMNS, ODD, odd_rows

    schema = arrow_schema(ODD)
    versions = str(SESSION_VERSIONS)
    sessions = connection.execute(f"SELECT 1 FROM known_connections WHERE version IN {versions} LIMIT 1").fetchall()
    found = schema.empty_table()
    if sessions and rows is not None:
        # The transaction that a transfer discharges is in the body of its message.
        columns = ", ".join(METHOD_COLUMNS)
        cursor = connection.cursor()
        cursor.register("arrow_methods", rows)
        batches = cursor.sql(f"""
            SELECT {columns}
            FROM (SELECT * FROM arrow_methods
                  WHERE version IN {versions} AND frame_type IN {METHOD_FRAMES})
            JOIN (SELECT connection_id, coalesce(tcp_rtt_ns, {ROUND_TRIP_NS}) AS grace_ns, ts_ns AS last_ns,
                         channel_max AS agreed_channel_max FROM known_connections) USING (connection_id)
            LEFT JOIN (SELECT connection_id, frame_no, TRY_CAST(properties.body.txn_id AS BLOB) AS discharged
                       FROM frames
                       SEMI JOIN (SELECT connection_id, frame_no FROM methods
                                  WHERE transaction_command = 'discharge') USING (connection_id, frame_no))
                USING (connection_id, frame_no)
            ORDER BY connection_id, frame_no""").to_arrow_reader(BATCH_ROWS)
        found = pa.Table.from_batches(odd_rows(batches), schema)
    connection.register("arrow_oddities", found)
    connection.execute("CREATE TABLE oddities AS FROM arrow_oddities")
    connection.unregister("arrow_oddities")


def _with_variants(found: pa.Table, schema: Table) -> pa.Table:
    """Findings as their schema declares them: evidence from JSON."""
    texts = found["evidence"].to_pylist()
    evidence = [encode(json.loads(text or "{}", parse_float=_number, parse_int=_integer)) for text in texts]
    at = found.schema.get_field_index("evidence")
    return found.set_column(at, "evidence", variants(evidence)).select(schema.names).cast(arrow_schema(schema))


# Rows of a table in transit: `octets` is a stream of Arrow with one batch.
PACKED = table_of("packed", ("name", STRING, "table"), ("octets", BINARY, "some of its rows"))


@dataclass(frozen=True)
class PackRows:
    """Rows of table `name` -> PACKED, for `mapInArrow`."""

    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in as_structs(batches):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            octets = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([pa.array([self.name]), octets], names=PACKED.names)


@dataclass(frozen=True)
class FindRows:
    """PACKED rows of all tables -> findings, for `mapInArrow` on one partition."""

    program: Program

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory(prefix="findings-") as directory:
            files: dict[str, ParquetFiles] = {}
            for batch in batches:
                for name, octets in zip(batch["name"].to_pylist(), batch["octets"], strict=True):
                    if name not in files:
                        files[name] = _file(f"{directory}/{name}", self.program.schemas[name])
                    rows = pa.ipc.open_stream(octets.as_buffer()).read_all()
                    for each in as_variants(rows, variant_columns(self.program.schemas[name])).to_batches():
                        files[name].write(each)
            paths = {
                name: _closed(file, f"{directory}/{name}", self.program.schemas[name]) for name, file in files.items()
            }
            yield from findings_of(paths, self.program, Resources(None, TASK_BYTES, directory)).to_batches()


def _integer(text: str) -> int | Decimal | float:
    """An integer of JSON; a decimal or a float if it has more than 64 bits."""
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else _number(text)


def _number(text: str) -> Decimal | float:
    """A number of JSON: a decimal, as it is written, or a float if it has an exponent or too many digits."""
    number = Decimal(text)
    fits = "e" not in text.lower() and len(number.as_tuple().digits) <= 38
    return number if fits else float(text)
