"""A program in DuckDB: of all rows, of a group, and across groups (the stages are in the package's docstring)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.fs

from codec.tables import Table
from codec.variant.python_values import encode
from udfs.arrow.types import arrow_schema, variants
from udfs.findings.program import (
    FACT_CONNECTIONS,
    FIRST_ACROSS,
    HIT,
    HIT_KEY,
    LAST_ACROSS,
    MORE_FACTS,
    PACKETS,
    TRAITS,
    Check,
    Context,
    Program,
    Relation,
    constant,
    expressions,
    guarded,
    hits_of,
    is_fact,
    possible,
    quoted,
    read_only,
    reading,
    settings_of,
    view_of,
    with_clause,
)
from udfs.sink.parquet import ParquetFiles

BATCH_ROWS = 32_768
Files = Mapping[str, "Sequence[str] | pa.Table"]


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
TASK_BYTES = 512 << 20  # of memory for a run; beyond it DuckDB spills
OF_GROUPS, CENSUS, HITS = "findings", "census", "hits"  # in answers, beside facts


@dataclass
class Run:
    """The runs that another thread may cancel."""

    connections: list[duckdb.DuckDBPyConnection] = field(default_factory=list)

    def interruptAll(self) -> None:
        """Cancel the running statements, as SparkSession.interruptAll."""
        for connection in tuple(self.connections):
            with suppress(duckdb.ConnectionException):  # it was closed meanwhile
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
        session.check(census_of(session.connection), range(PACKETS))
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
        if question.stage == PACKETS:
            return {"packets": session.rows(program.packets)}
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
    answers = _tables_by_name(ask(Question(0)))
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
                answers = _tables_by_name(ask(Question(MORE_FACTS, wanted)))
        return [
            *found,
            session.findings(lambda frames: _tables_by_name(ask(Question(PACKETS, {"found": frames})))["packets"]),
        ]


def _tables_by_name(answers: Iterable[Answer]) -> dict[str, list[pa.Table]]:
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
            session = Evaluation(connection, program)
            if run is not None:
                run.connections += session.connections
            try:
                yield session
            finally:
                if run is not None:
                    for each in session.connections:  # other groups are evaluated meanwhile
                        run.connections.remove(each)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# What must be made before, and what runs in a connection.
Task = tuple[frozenset[str], Callable[[duckdb.DuckDBPyConnection], object]]


class Evaluation:
    """A program in DuckDB, whose relations are made when they are needed."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, program: Program) -> None:
        self.connection, self._program = connection, program
        self._cursors = [connection.cursor() for _ in range(PARALLEL_QUERIES)]
        self.connections = [connection, *self._cursors]
        for each in self._cursors:
            each.execute(settings_of(program))
        self._existing = set[str]()
        for macro in program.macros:
            connection.execute(macro)
        connection.execute(
            f"CREATE TABLE hits ({', '.join(f'{name} {kind}' for name, kind in {**HIT_KEY, **HIT}.items())})"
        )

    def rows(self, query: str) -> pa.Table:
        """The rows of a query."""
        return self.connection.sql(query).to_arrow_table()

    def add(self, name: str, rows: pa.Table) -> None:
        """Make a relation of rows."""
        self.connection.register("given", rows)
        self.connection.execute(f"CREATE TABLE {name} AS FROM given")
        self.connection.unregister("given")
        self._existing.add(name)

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

    def findings(self, packets: Callable[[pa.Table], list[pa.Table]] | None = None) -> pa.Table:
        """The findings of all hits. `packets`: asks for the packets of frames, by default in the tables."""
        self.connection.execute(f"CREATE TABLE found AS {self._with([FACT_CONNECTIONS])}FROM ({self._program.found})")
        frames = "SELECT DISTINCT connection_id, frame_no FROM found WHERE frame_no IS NOT NULL"
        if packets is None:
            self.connection.execute(f"CREATE VIEW packets_of_frames AS {self._program.packets}")
        elif self.rows("SELECT 1 FROM found LIMIT 1").num_rows:
            self.add("packets_of_frames", pa.concat_tables(packets(self.rows(frames))))
        else:
            return arrow_schema(self._program.findings).empty_table()
        return _with_variants(self.rows(self._program.result), self._program.findings)

    def _making(self, names: Collection[str]) -> dict[str, Task]:
        """The tasks that make the tables that relations consist of and read, each after those that it needs."""
        needed = set(names)
        for relation in reversed(self._program.relations):
            if relation.name in needed and relation.name not in self._existing:
                needed |= relation.reads
        tables = [each for each in self._program.relations if each.name in needed - self._existing and each.is_table]
        tasks: dict[str, Task] = {
            each.name: (self._tables_of(each.reads), partial(self._make, each)) for each in tables
        }
        self._existing |= tasks.keys()
        return tasks

    def _make(self, relation: Relation, connection: duckdb.DuckDBPyConnection) -> None:
        rows = f"{self._with(relation.reads)}FROM ({relation.query})"
        connection.execute(f"CREATE TABLE {relation.name} AS {rows}")

    def _expressions(self, names: Collection[str]) -> list[Relation]:
        """The relations among these, and among those that they read, that are no tables here, in order."""
        return expressions(self._program.relations, names, self._existing)

    def _tables_of(self, names: Collection[str]) -> frozenset[str]:
        """The tables that relations are or read."""
        return frozenset(names).union(*(each.reads for each in self._expressions(names)))

    def _with(self, names: Collection[str]) -> str:
        """How a query begins that reads relations."""
        return with_clause(self._expressions(names))

    def _run_all(self, tasks: Mapping[str, Task]) -> None:
        """Run tasks, each connection one at a time, and each task after those that it needs. Raises the first error."""
        free = SimpleQueue[duckdb.DuckDBPyConnection]()
        for connection in self._cursors:
            free.put(connection)

        def run(task: Callable[[duckdb.DuckDBPyConnection], object]) -> None:
            connection = free.get()
            try:
                task(connection)
            finally:
                free.put(connection)

        waiting = {name: needs & tasks.keys() for name, (needs, _) in tasks.items()}
        running = dict[Future[None], str]()
        with ThreadPoolExecutor(len(self._cursors)) as pool:
            while waiting or running:
                for name in [name for name, needs in waiting.items() if not needs]:
                    running[pool.submit(run, tasks[name][1])] = name
                    del waiting[name]
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    if future.exception():
                        pool.shutdown(cancel_futures=True)
                    future.result()
                    relation = running.pop(future)
                    waiting = {name: needs - {relation} for name, needs in waiting.items()}


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
    # The condition of a table may read the connections.
    for name in sorted(files, key=lambda name: name != "connections"):
        query = reading(files[name]) if files[name] else None
        connection.execute(view_of(name, program.schemas[name], query, conditions.get(name, "true")))
    read_only(connection, (path for paths in files.values() for path in paths))
    connection.execute(settings_of(program))
    for name, rows in program.constants.items():
        connection.execute(constant(name, rows))
    return connection


def _files(rows: Sequence[str] | pa.Table, schema: Table, directory: str, name: str) -> Sequence[str]:
    """The paths of files with these rows of a table; those that are not in files are written."""
    if not isinstance(rows, pa.Table):
        return rows
    directory = f"{directory}/{name}"
    file = parquet_file(directory, schema)
    for batch in rows.to_batches(BATCH_ROWS):
        file.write(batch)
    return paths_of(file, directory, schema)


def parquet_file(directory: str, schema: Table) -> ParquetFiles:
    """A file for rows of a table in `directory`, which is made."""
    os.mkdir(directory, 0o700)
    return ParquetFiles(pyarrow.fs.LocalFileSystem(), directory, schema)


def paths_of(file: ParquetFiles, directory: str, schema: Table) -> list[str]:
    """The paths of what was written into `directory`."""
    file.close(arrow_schema(schema))
    return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]


def _with_variants(found: pa.Table, schema: Table) -> pa.Table:
    """Findings as their schema declares them: evidence from JSON."""
    texts = found["evidence"].to_pylist()
    evidence = [encode(json.loads(text or "{}", parse_float=_number, parse_int=_integer)) for text in texts]
    at = found.schema.get_field_index("evidence")
    return found.set_column(at, "evidence", variants(evidence)).select(schema.names).cast(arrow_schema(schema))


def _integer(text: str) -> int | Decimal | float:
    """An integer of JSON; a decimal or a float if it has more than 64 bits."""
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else _number(text)


def _number(text: str) -> Decimal | float:
    """A number of JSON: a decimal, as it is written, or a float if it has an exponent or too many digits."""
    number = Decimal(text)
    fits = "e" not in text.lower() and len(number.as_tuple().digits) <= 38
    return number if fits else float(text)
