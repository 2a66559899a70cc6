"""Findings: the rows of tables that break rules, as DuckDB evaluates them in this process.

    found = findings_of({"frames": ["tables/frames/part-0.parquet"], ...}, program)

Rules are data, and so is the program that checks them (`Program`): statements that derive relations from the tables,
contexts, each with the checks that its rows are put to, and queries from what breaks rules to findings. A program can
be pickled, so that other processes run the same one.

The rows may be in groups, each with all rows of some connections. A group answers questions (`answer`), and what it
answers is joined (`findings_across`):

    stage 0   each group: its findings, and its facts, a few rows for each connection (relations `fact_NAME`)
    stage 1   once: rules about several connections, on the facts of all groups
    stage 2   each group: more facts, about what stage 1 is looking for (keys of messages)
    stage 3   once: the other rules about several connections
    stage 4   each group: the packets of findings that stages 1 and 3 have made

A stage that nothing was found for is left out. Of one group all stages are evaluated at once.

Most time of a small audit goes into planning queries, so only checks that may match are run: a `Gate` is what the
tables must contain for a context, a guard is what a column must contain for a check.

A run reads the files of its tables and no others, and spills into its own scratch directory: DuckDB's access to files
is restricted to these, and the configuration is locked, before the first statement of the program is run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import numpy as np
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
    """A query `name` of tables and other relations, which it `reads`. `is_table`: it is evaluated once; others are
    common table expressions of the statements that read them. `stage`: of facts the one in which groups make them, else
    the one in which it can be read."""

    name: str
    query: str
    reads: frozenset[str] = frozenset()
    is_table: bool = False
    stage: int = 0


class Gate(NamedTuple):
    """What must occur in the tables for a context to have rows; empty: anything. `names` of methods, `products` of
    servers, `traits` of messages (TRAITS): one of them."""

    names: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


# Traits of messages by name, in SQL.
TRAITS = {
    "redelivered": "redelivered AND operation IN ('deliver', 'get')",
    "back": "outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL",
    "requeued": "outcome = 'requeued'",
    "refused": "outcome IN ('rejected', 'released', 'modified')",
    "returned": "operation = 'publish' AND mandatory AND returned_frame_no IS NOT NULL",
    "mandatory": "mandatory OR immediate",
    "waiting": "outcome = 'unsettled' OR settle_latency_ns > "
    "(least(setting('CF-04.limit_seconds'), setting('DL-13.limit_seconds')) * 1000000000)::BIGINT",
    "managing": "management_status IS NOT NULL",
}
Guard = tuple[str, frozenset[str]]


class Check(NamedTuple):
    """`condition` is true on rows that break the rule `rule_id`; of these `values` are the columns of HIT. It needs one
    of `versions`, and in each column of `guards` one of its words."""

    rule_id: str
    condition: str
    values: Mapping[str, str]
    versions: frozenset[str] = frozenset()
    guards: tuple[Guard, ...] = ()


class Context(NamedTuple):
    """The rows of a relation or query with the checks that they are put to. `place`: which columns of PLACE they have;
    `needs`: relations that must have been made; `census`: a relation that contains what its checks guard, and that has
    rows if the context has."""

    rows: str
    place: Sequence[str]
    checks: Sequence[Check]
    needs: frozenset[str]
    stage: int = 0
    gate: Gate = Gate()
    census: str | None = None


# Columns of a hit: a row of a context that breaks a rule. Those that locate it are null in contexts without channels.
PLACE = {"connection_id": "BIGINT", "channel": "INTEGER", "channel_life": "BIGINT"}
HIT = {
    "rule_id": "VARCHAR", "frame_no": "BIGINT", "at_ns": "BIGINT", "thing": "VARCHAR", "scope": "VARCHAR",
    "offender": "VARCHAR", "severity": "VARCHAR", "evidence": "VARCHAR", "occurrences": "BIGINT",
}  # fmt: skip
FACT = "fact_"  # how relations that groups return begin
FIRST_ACROSS, MORE_FACTS, LAST_ACROSS, PLACES = 1, 2, 3, 4  # stages


class Program(NamedTuple):
    """What is evaluated: `settings`, thresholds by name; `constants`, small tables as JSON arrays of objects; `macros`;
    `relations`, in an order in which each reads earlier ones only; `contexts`; `found`, the query of findings without
    their packets; `places`, the query of these in a group; `result`, the query of findings, whose `evidence` is JSON.
    `deferred`: rules with contexts of several stages. `schemas`: of the tables."""

    schemas: Mapping[str, Table]
    settings: Mapping[str, float]
    constants: Mapping[str, str]
    macros: Sequence[str]
    relations: Sequence[Relation]
    contexts: Sequence[Context]
    found: str
    places: str
    result: str
    deferred: Collection[str]
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


class Question(NamedTuple):
    """What a group is asked in a stage, with the relations of earlier stages that it needs for that."""

    stage: int
    shared: Mapping[str, pa.Table] = MappingProxyType({})


Answer = Mapping[str, pa.Table]
Ask = Callable[[Question], Iterable[Answer]]

USUAL = Resources()
EVERYTHING: Mapping[str, str] = MappingProxyType({})
PARALLEL_QUERIES = 2  # nearly all are planned for longer than they run, and DuckDB plans a query in one thread
TASK_BYTES = 1 << 30  # of memory for a run; beyond it DuckDB spills
OF_GROUPS, CENSUS, HITS = "findings", "census", "hits"  # in answers, beside facts


@dataclass
class Run:
    """The runs that another thread may cancel."""

    connections: list[duckdb.DuckDBPyConnection] = field(default_factory=list)

    def interruptAll(self) -> None:
        """Cancel the running statements, as SparkSession.interruptAll."""
        for connection in tuple(self.connections):
            connection.interrupt()


def findings_of(
    tables: Files,
    program: Program,
    resources: Resources = USUAL,
    conditions: Mapping[str, str] = EVERYTHING,
    run: Run | None = None,
) -> pa.Table:
    """The findings about `tables`, by name the paths of their Parquet files, or their rows: all rows of all
    connections. A table that is missing, or a column that is, is empty. `conditions`: by table, SQL that is true on the
    rows that count. What is running is in `run`. Raises duckdb.Error for an invalid program, and for files that cannot
    be read."""
    with evaluation(tables, program, resources, conditions, run) as session:
        session.check(census_of(session.connection), range(PLACES))
        return session.findings()


def answer(
    tables: Files,
    program: Program,
    question: Question,
    resources: Resources = USUAL,
    conditions: Mapping[str, str] = EVERYTHING,
    run: Run | None = None,
) -> Answer:
    """What a group with these tables answers. Raises duckdb.Error."""
    with evaluation(tables, program, resources, conditions, run) as session:
        facts = [each.name for each in program.relations if is_fact(each) and each.stage == question.stage]
        for name, rows in question.shared.items():
            session.add(name, rows)
        if question.stage == PLACES:
            return {"places": session.rows(program.places)}
        if question.stage:
            return session.relations(facts)
        census = census_of(session.connection)
        session.check(census, [0], facts)
        deferred = f"rule_id IN ({', '.join(map(quoted, ['', *program.deferred]))})"
        hits = session.rows(f"FROM hits WHERE {deferred}")
        session.connection.execute(f"DELETE FROM hits WHERE {deferred}")
        return {
            **session.relations(facts),
            OF_GROUPS: session.findings(), CENSUS: census, HITS: hits,
        }  # fmt: skip


def findings_across(ask: Ask, program: Program, resources: Resources = USUAL, run: Run | None = None) -> list[pa.Table]:
    """The findings about rows that are in groups, which `ask` puts a question to: those in the answers of the groups,
    and those that come from facts of several. Raises duckdb.Error."""
    answers = _joined(ask(Question(0)))
    found = answers.pop(OF_GROUPS, [])
    census = pa.concat_tables(answers.pop(CENSUS))
    with evaluation(None, program, resources, run=run) as session:
        for hits in answers.pop(HITS):
            session.add("arrived", hits)
            session.connection.execute("INSERT INTO hits FROM arrived")
            session.connection.execute("DROP TABLE arrived")
        for stage in (FIRST_ACROSS, LAST_ACROSS):
            for name, rows in answers.items():
                session.add(name, pa.concat_tables(rows))
            session.check(census, [stage])
            if stage == FIRST_ACROSS:
                shared = [name for each in program.relations if each.stage == MORE_FACTS for name in each.reads]
                shared = [each.name for each in program.relations if each.name in shared and each.stage == FIRST_ACROSS]
                wanted = session.relations(shared)
                if not any(rows.num_rows for rows in wanted.values()):
                    break
                answers = _joined(ask(Question(MORE_FACTS, wanted)))
        return [*found, session.findings(lambda frames: _joined(ask(Question(PLACES, {"found": frames})))["places"])]


def _joined(answers: Iterable[Answer]) -> dict[str, list[pa.Table]]:
    """What all groups answer, by name."""
    found: dict[str, list[pa.Table]] = {}
    for each in answers:
        for name, rows in each.items():
            found.setdefault(name, []).append(rows)
    return found


@contextmanager
def evaluation(
    tables: Files | None,
    program: Program,
    resources: Resources,
    conditions: Mapping[str, str] = EVERYTHING,
    run: Run | None = None,
) -> Iterator[Evaluation]:
    """DuckDB with these tables, in a scratch directory that exists while the body runs; None: without tables."""
    directory = tempfile.mkdtemp(prefix="findings-", dir=resources.directory)
    try:
        files = {
            name: _files(tables.get(name, ()), schema, directory, name)
            for name, schema in program.schemas.items()
            if tables is not None
        }
        with connected(files, program, directory, resources, conditions) as connection:
            session = Evaluation(connection, program, dataset(files.get("methods", ())))
            if run is not None:
                run.connections += session.connections
            try:
                yield session
            finally:
                if run is not None:
                    run.connections[:] = [each for each in run.connections if each not in session.connections]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# What must be made before, and what runs in a connection.
Task = tuple[Collection[str], Callable[[duckdb.DuckDBPyConnection], object]]
FACT_CONNECTIONS = "fact_connections"


class Evaluation:
    """A program in DuckDB, whose relations are made when they are needed. `methods`: a dataset of table methods."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, program: Program, methods: Any) -> None:
        self.connection, self._program, self._methods = connection, program, methods
        self._cursors = [connection.cursor() for _ in range(PARALLEL_QUERIES)]
        self.connections = [connection, *self._cursors]
        for each in self._cursors:
            each.execute(settings_of(program))
        self._made = set[str]()
        self._failed = False
        for macro in program.macros:
            connection.execute(macro)
        connection.execute(
            f"CREATE TABLE hits ({', '.join(f'{name} {kind}' for name, kind in {**PLACE, **HIT}.items())})"
        )

    def rows(self, query: str) -> pa.Table:
        """The rows of a query."""
        return self.connection.sql(query).to_arrow_table()

    def add(self, name: str, rows: pa.Table) -> None:
        """Make a relation of rows."""
        self.connection.register("given", rows)
        self.connection.execute(f"CREATE TABLE {name} AS FROM given")
        self.connection.unregister("given")
        self._made.add(name)

    def relations(self, names: Collection[str]) -> dict[str, pa.Table]:
        """The rows of relations."""
        self._run_all(self._making(names))
        return {name: self.rows(f"{self._with([name])}FROM {name}") for name in names}

    def check(self, census: pa.Table, stages: Collection[int], facts: Collection[str] = ()) -> None:
        """Put the rows of all contexts of these stages that may have some to their checks, and make facts. `census`: of
        the tables (`census_of`)."""
        occurring: dict[str, set[str]] = {}
        for kind, word in zip(*(census[name].to_pylist() for name in ("kind", "word")), strict=True):
            occurring.setdefault(kind, set()).add(word)
        wanted = [
            (context, checks)
            for context in self._program.contexts
            if context.stage in stages and (checks := possible(context, occurring))
        ]
        tasks = self._making({FACT_CONNECTIONS, *facts}.union(*(context.needs for context, _ in wanted)))
        for number, (context, checks) in enumerate(wanted):
            tasks[f"context {number}"] = (self._tables_of(context.needs), partial(self._check, context, checks))
        self._run_all(tasks)

    def _check(self, context: Context, checks: Sequence[Check], connection: duckdb.DuckDBPyConnection) -> None:
        """Put the rows of a context to checks, and add hits."""
        if context.census is not None:
            checks = guarded(checks, _words(connection, context.census, checks))
        if checks:
            connection.execute(f"INSERT INTO hits\n{self._with(context.needs)}{hits_of(context, checks)}")

    def findings(self, places: Callable[[pa.Table], list[pa.Table]] | None = None) -> pa.Table:
        """The findings of all hits. `places`: asks for the packets of frames, by default in the tables."""
        self.connection.execute(f"CREATE TABLE found AS {self._with([FACT_CONNECTIONS])}FROM ({self._program.found})")
        frames = "SELECT DISTINCT connection_id, frame_no FROM found WHERE frame_no IS NOT NULL"
        if places is None:
            self.connection.execute(f"CREATE VIEW places AS {self._program.places}")
        elif self.rows("SELECT 1 FROM found LIMIT 1").num_rows:
            self.add("places", pa.concat_tables(places(self.rows(frames))))
        else:
            return arrow_schema(self._program.findings).empty_table()
        return _with_variants(self.rows(self._program.result), self._program.findings)

    def _making(self, names: Collection[str]) -> dict[str, Task]:
        """The tasks that make the tables that relations consist of and read, each after those that it needs."""
        needed = set(names)
        for relation in reversed(self._program.relations):
            if relation.name in needed and relation.name not in self._made:
                needed |= relation.reads
        tables = [each for each in self._program.relations if each.name in needed - self._made and each.is_table]
        tasks: dict[str, Task] = {
            each.name: (self._tables_of(each.reads), partial(self._make, each)) for each in tables
        }
        self._made |= tasks.keys()
        return tasks

    def _make(self, relation: Relation, connection: duckdb.DuckDBPyConnection) -> None:
        if relation.name == "oddities":
            _make_oddities(connection, self._methods)
        else:
            rows = f"{self._with(relation.reads)}FROM ({relation.query})"
            connection.execute(f"CREATE TABLE {relation.name} AS {rows}")

    def _expressions(self, names: Collection[str]) -> list[Relation]:
        """The relations among these, and among those that they read, that are no tables here, in order."""
        return expressions(self._program.relations, names, self._made)

    def _tables_of(self, names: Collection[str]) -> Collection[str]:
        """The tables that relations are or read."""
        return {*names}.union(*(each.reads for each in self._expressions(names)))

    def _with(self, names: Collection[str]) -> str:
        """How a query begins that reads relations."""
        return with_clause(self._expressions(names))

    def _run_all(self, tasks: Mapping[str, Task]) -> None:
        """Run tasks, each connection one at a time, and each task after those that it needs. Raises the first error."""
        free = SimpleQueue[duckdb.DuckDBPyConnection]()
        for connection in self._cursors:
            free.put(connection)
        started = dict[str, Future[None]]()

        def run(needs: Collection[str], task: Callable[[duckdb.DuckDBPyConnection], object]) -> None:
            for name in needs:
                if name in started:
                    started[name].result()
            if self._failed:
                return
            connection = free.get()
            try:
                task(connection)
            except BaseException:
                self._failed = True
                raise
            finally:
                free.put(connection)

        with ThreadPoolExecutor(len(self._cursors)) as pool:
            for name, (needs, task) in tasks.items():
                started[name] = pool.submit(run, needs, task)
        for future in started.values():
            future.result()


def expressions(relations: Sequence[Relation], names: Collection[str], made: Collection[str] = ()) -> list[Relation]:
    """The relations among `names`, and among those that they read, that are no tables and not `made`, in order."""
    needed = {*names}
    found = []
    for relation in reversed(relations):
        if relation.name in needed and relation.name not in made and not relation.is_table:
            needed |= relation.reads
            found.append(relation)
    return found[::-1]


def with_clause(relations: Sequence[Relation]) -> str:
    """The common table expressions of relations, before a query that reads them."""
    each = ",\n".join(f"{relation.name} AS NOT MATERIALIZED (\n{relation.query})" for relation in relations)
    return f"WITH {each}\n" if each else ""


def possible(context: Context, occurring: Mapping[str, Collection[str]]) -> list[Check]:
    """The checks of a context that rows of tables with these words may match."""
    gate = context.gate._asdict().items()
    if any(words and words.isdisjoint(occurring.get(kind, ())) for kind, words in gate):
        return []
    versions = occurring.get("versions", ())
    return [check for check in context.checks if not check.versions or not check.versions.isdisjoint(versions)]


def guarded(checks: Iterable[Check], words: Mapping[str, Collection[str]]) -> list[Check]:
    """The checks that rows with these words may match, by column; without rows none."""
    return [check for check in checks if words and not any(of.isdisjoint(words[column]) for column, of in check.guards)]


def _words(
    connection: duckdb.DuckDBPyConnection, relation: str, checks: Iterable[Check]
) -> Mapping[str, Collection[str]]:
    """What occurs in the columns of a relation that checks guard, and in column '' if it has rows."""
    columns = sorted({column for check in checks for column, _ in check.guards})
    listed = "".join(f", list(DISTINCT {column}) FILTER (WHERE {column} IS NOT NULL)" for column in columns)
    ((rows, *found),) = connection.execute(f"SELECT count(*){listed} FROM {relation}").fetchall()
    if not rows:
        return {}
    flat = ({word for each in words or () for word in ([each] if isinstance(each, str) else each)} for words in found)
    return {"": (), **dict(zip(columns, flat, strict=True))}


def hits_of(context: Context, checks: Sequence[Check]) -> str:
    """The query of table hits: a row for each check that matches a row of the context."""
    conditions = ",\n    ".join(f"CASE WHEN {check.condition} THEN {at} END" for at, check in enumerate(checks))
    fields = ",\n    ".join(
        f"{chosen_value([check.values[name] for check in checks], kind)} AS {name}" for name, kind in HIT.items()
    )
    located = ", ".join(
        f"CAST({name if name in context.place else 'NULL'} AS {kind}) AS {name}" for name, kind in PLACE.items()
    )
    return (
        f"SELECT {located},\n    {fields}\nFROM (SELECT *, unnest(broken) AS detector\n"
        f"FROM (SELECT *, compact([\n    {conditions}]) AS broken\nFROM {context.rows}) WHERE len(broken) > 0)"
    )


def chosen_value(values: Sequence[str], kind: str) -> str:
    """The value of the row's check, of which `detector` is the number. A value from the wire that does not fit becomes
    null: wire data must not raise."""
    of_value: dict[str, list[int]] = {}
    for at, value in enumerate(values):
        of_value.setdefault(value, []).append(at)
    usual = max(of_value, key=lambda value: len(of_value[value]))
    cases = (
        f"WHEN detector IN ({', '.join(map(str, numbers))}) THEN TRY_CAST({value} AS {kind})"
        for value, numbers in of_value.items()
        if value != usual
    )
    other = f"TRY_CAST({usual} AS {kind})"
    return f"CASE {' '.join(cases)} ELSE {other} END" if len(of_value) > 1 else other


def is_fact(relation: Relation) -> bool:
    """Whether groups return it."""
    return relation.name.startswith(FACT)


def census_of(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Rows (kind, word): `versions`, and the words of a Gate that occur in the tables, by its fields."""
    listed = ", ".join(f"CASE WHEN bool_or({sql}) THEN {quoted(name)} END" for name, sql in TRAITS.items())
    return connection.sql(f"""
        WITH named AS (SELECT DISTINCT version, name FROM frames UNION SELECT DISTINCT version, name FROM methods)
        SELECT DISTINCT kind, word
        FROM (SELECT 'versions' AS kind, version AS word FROM named
              UNION ALL SELECT 'names', name FROM named
              UNION ALL SELECT 'versions', version FROM connections
              UNION ALL SELECT 'versions', split_part(unnest(versions_offered), ' ', 2) FROM connections
              UNION ALL SELECT 'products', server_product FROM connections
              UNION ALL SELECT 'traits', unnest([{listed}]) FROM messages)
        WHERE word IS NOT NULL""").to_arrow_table()


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
    """DuckDB with the tables in `files` as views, the constants as tables, and nothing else that it may read."""
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
    for name in sorted(files, key=lambda name: name != "connections"):
        connection.execute(view_of(name, program.schemas[name], files[name], conditions.get(name, "true")))
        allowed += files[name]
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


def few_at_once(rows: Any, columns: Collection[str]) -> pa.RecordBatchReader:
    """A reader of the methods of sessions in a dataset. By default Arrow reads millions of rows ahead."""
    import pyarrow.dataset

    field = pyarrow.dataset.field
    return rows.scanner(
        columns=[name for name in rows.schema.names if name in columns],
        filter=field("version").isin(SESSION_VERSIONS) & field("frame_type").isin(METHOD_FRAMES),
        batch_size=BATCH_ROWS,
        batch_readahead=2,
        fragment_readahead=1,
    ).to_reader()


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
        cursor.register("arrow_methods", few_at_once(rows, METHOD_COLUMNS))
        batches = cursor.sql(f"""
            SELECT {columns}
            FROM arrow_methods
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


# Rows in transit: `octets` is a stream of Arrow with some rows of the table or answer `name`; tables have a `group_no`.
PACKED = table_of(
    "packed", ("group_no", INT, "group of connections"), ("name", STRING, "table"), ("octets", BINARY, "some rows")
)


def pack(name: str, rows: pa.Table | pa.RecordBatch, group: int = 0) -> pa.RecordBatch:
    """A row of PACKED."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    octets = pa.array([sink.getvalue().to_pybytes()], pa.binary())
    return pa.RecordBatch.from_arrays([pa.array([group], pa.int32()), pa.array([name]), octets], names=PACKED.names)


def unpacked(octets: pa.Buffer) -> pa.Table:
    """The rows of a stream of Arrow."""
    return pa.ipc.open_stream(octets).read_all()


@dataclass(frozen=True)
class PackRows:
    """Rows of table `name` -> PACKED, for `mapInArrow`. A connection is in one of `groups`."""

    name: str
    groups: int = 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in as_structs(batches):
            if self.groups == 1 or "connection_id" not in batch.schema.names:
                yield pack(self.name, batch)
                continue
            group = batch["connection_id"].to_numpy(zero_copy_only=False) % self.groups
            for number in np.unique(group).tolist():
                yield pack(self.name, batch.filter(pa.array(group == number)), number)


@dataclass(frozen=True)
class AnswerRows:
    """PACKED rows of all tables of a group -> PACKED rows of its answer, for `mapInArrow` on one partition."""

    program: Program
    question: Question

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schemas = self.program.schemas
        with tempfile.TemporaryDirectory(prefix="findings-") as directory:
            files: dict[str, ParquetFiles] = {}
            for batch in batches:
                for name, octets in zip(batch["name"].to_pylist(), batch["octets"], strict=True):
                    if name not in files:
                        files[name] = _file(f"{directory}/{name}", schemas[name])
                    rows = unpacked(octets.as_buffer())
                    for each in as_variants(rows, variant_columns(schemas[name])).to_batches():
                        files[name].write(each)
            paths = {name: _closed(file, f"{directory}/{name}", schemas[name]) for name, file in files.items()}
            resources = Resources(None, TASK_BYTES, directory)
            for name, rows in answer(paths, self.program, self.question, resources).items():
                yield pack(name, rows)


def unpacked_findings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """PACKED rows of findings -> these, for `mapInArrow`."""
    for batch in batches:
        for octets in batch["octets"]:
            yield from unpacked(octets.as_buffer()).to_batches()


def _integer(text: str) -> int | Decimal | float:
    """An integer of JSON; a decimal or a float if it has more than 64 bits."""
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else _number(text)


def _number(text: str) -> Decimal | float:
    """A number of JSON: a decimal, as it is written, or a float if it has an exponent or too many digits."""
    number = Decimal(text)
    fits = "e" not in text.lower() and len(number.as_tuple().digits) <= 38
    return number if fits else float(text)
