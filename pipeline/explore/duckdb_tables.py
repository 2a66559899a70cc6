"""Tables as views of DuckDB, for questions in SQL without Spark and Java.

    with connect("tables") as session:
        for columns, rows in session.run("SELECT outcome, count(*) FROM messages GROUP BY ALL"):
            ...

`connect` takes a directory that `wirehare decode` has written, one of such directories named like `date=2026-11-20`, or
a lake, on this machine. All tables of `codec.tables.TABLES` are views, in UTC; a table that was not written, or a
column that an older release did not have, is empty. VARIANT columns are DuckDB's: `arguments.queue`.

`open_tables` opens tables anywhere, of a span of time: the report counts with it. Those of other file systems are read
through Arrow, without their VARIANT columns.

A session reads the files of its tables and no others, and writes none, unless `any_files` allows it: DuckDB's access
to files is restricted to the listed ones and the configuration is locked, so a statement cannot lift it. Of statements
that DuckDB would still allow on a listed file (COPY to it), only those that read are run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.fs

from codec.errors import WirehareError
from codec.tables import FINDINGS, TABLES, with_former
from pipeline.lake.lake_tables import TIME_COLUMNS, Span, files_of
from pipeline.output import parquet_tables as parquet
from pipeline.output.location import Location, TablesError, location
from pipeline.run import scratch
from udfs.arrow.types import arrow_schema, variant_columns
from udfs.findings.program import read_only, reading, view_of
from udfs.source.capture_bytes import first_line, printable, special
from udfs.source.options import meant

VIEWS = {**TABLES, "findings": FINDINGS}
PARTITION_LEVELS = 3  # of folders name=value above tables
MEMORY_SHARE = 0.5  # of this machine's memory; beyond it DuckDB spills to the session's scratch directory
MEMORY = 512 << 20  # for counts, bytes
BATCH_ROWS = 1000
# Kinds of statements that name no files. A SET fails while the configuration is locked; EXPLAIN ANALYZE runs what it
# explains.
READING = {"SELECT", "EXPLAIN", "PRAGMA", "CALL", "SET", "TRANSACTION"}
IN_MEMORY = {"CREATE", "CREATE_FUNC", "DROP", "INSERT", "UPDATE", "DELETE", "ALTER"}
EXPLAINS = {"explain", "analyze"}


class QueryError(WirehareError):
    """A statement that cannot be run; the message is DuckDB's, or says why it was refused."""


@dataclass(frozen=True)
class Files:
    """The Parquet files of a table: `paths` on this machine, or in `system` (a pyarrow.fs.FileSystem). `in_folders`:
    their folders have columns (name=value)."""

    paths: Sequence[str] = ()
    in_folders: bool = False
    system: Any = None


class Session:
    """A connection to DuckDB with the tables as views. A context manager; `close` removes what it spilled."""

    def __init__(
        self,
        files: Mapping[str, Files],
        *,
        any_files: bool = False,
        span: Span | None = None,
        memory: int | None = None,
        copies: Collection[str] = ("findings",),
    ) -> None:
        """`files`: by table of VIEWS. `span`: only its rows are in the views. `memory`: bytes before it spills.
        `copies`: tables whose files are copied to this machine if they are elsewhere, since their VARIANT is read."""
        self._directory = tempfile.mkdtemp(prefix="sql-", dir=scratch.directories({}).partition(",")[0])
        share = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE)
        memory = share if memory is None else min(memory, share)
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory}B",
            "temp_directory": f"{self._directory}/spilled",
        }
        self._connection = duckdb.connect(config=settings | {"autoinstall_known_extensions": "false"})
        self._any_files = any_files
        self._cursors = list[Self]()
        # Arguments and properties of tables on other file systems are not read.
        self.has_variants = all(found.system is None for name, found in files.items() if name != "findings")
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of cursors, too
        allowed = list[str]()
        conditions = span_conditions(span or Span())
        # The condition of a table without times reads the view of the connections.
        for name in sorted(VIEWS, key=lambda name: name in conditions and name not in TIME_COLUMNS):
            found = files.get(name, Files())
            if found.system is not None and name in copies:
                found = Files(copied(found, f"{self._directory}/{name}"), found.in_folders)
            query = self._source(name, found) if found.paths else None
            self._connection.execute(view_of(name, VIEWS[name], query, conditions.get(name, "true")))
            allowed += found.paths if found.system is None else ()
        if not any_files:
            read_only(self._connection, allowed)

    def _source(self, name: str, files: Files) -> str:
        """The query for all rows of these files."""
        if files.system is None:
            return reading(files.paths, in_folders=files.in_folders)
        import pyarrow.dataset  # takes half a second

        schema = with_former(VIEWS[name])
        rows = pyarrow.dataset.dataset(
            list(files.paths), schema=arrow_schema(schema), filesystem=files.system, format="parquet"
        )
        self._connection.register(f"{name}_files", rows)
        variants = variant_columns(schema)
        columns = [column for at, column in enumerate(schema.names) if at not in variants]
        return f"SELECT {', '.join(columns)} FROM {name}_files"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and remove its temporary files."""
        for each in self._cursors:
            each._connection.close()
        self._connection.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def cursor(self) -> Self:
        """Another session with the same views, for another thread; it ends with this one. Temporary tables and
        variables are its own."""
        other = copy(self)
        other._connection = self._connection.cursor()
        self._cursors.append(other)
        return other

    def interruptAll(self) -> None:
        """Cancel the running statements; called from another thread."""
        self._connection.interrupt()
        for each in self._cursors:
            each._connection.interrupt()

    def names(self) -> list[str]:
        """Tables and their columns, for completion."""
        found = self._connection.execute("SELECT table_name, column_name FROM information_schema.columns").fetchall()
        return sorted({name for row in found for name in row})

    def run(self, text: str) -> Iterator[tuple[list[str], Iterator[list[Any]]]]:
        """Run the statements in `text`; of each that has a result the names of its columns and its rows, which are read
        as they are needed, before the next statement. Raises QueryError."""
        try:
            for statement in self._connection.extract_statements(text):
                self._require_allowed(statement)
                result = self._connection.execute(statement)
                if result.description:
                    yield distinct([str(column[0]) for column in result.description]), self._rows()
        except duckdb.Error as error:
            raise QueryError(self._explained(error)) from error

    def rows(self, query: str) -> list[dict[str, Any]]:
        """All rows of one query. Raises QueryError."""
        return [dict(zip(names, row, strict=True)) for names, rows in self.run(query) for row in rows]

    def table(self, query: str) -> pa.Table:
        """All rows of one query, as Arrow. Raises QueryError, also for more than one statement."""
        try:
            statements = self._connection.extract_statements(query)
            if len(statements) != 1:
                raise QueryError("expected one statement")
            self._require_allowed(statements[0])
            return self._connection.sql(query).to_arrow_table()
        except duckdb.Error as error:
            raise QueryError(self._explained(error)) from error

    def execute(self, statement: str) -> None:
        """Run a statement without rows, such as CREATE TEMP TABLE. Raises QueryError."""
        self.rows(statement)

    def _rows(self) -> Iterator[list[Any]]:
        while batch := self._connection.fetchmany(BATCH_ROWS):
            yield from map(list, batch)

    def _require_allowed(self, statement: Any) -> None:
        kind = statement.type.name
        if self._any_files:
            return
        if kind == "EXPLAIN":
            inner = without_explain(statement.query)
            parts = self._connection.extract_statements(inner) if inner else []
            kind = parts[0].type.name if len(parts) == 1 else kind
        if kind not in READING | IN_MEMORY:
            raise QueryError(f"{kind} is refused: a query only reads the tables (--any-files allows the rest)")

    def _explained(self, error: duckdb.Error) -> str:
        text = str(error)
        if "disabled by configuration" in text:
            return f"{text.splitlines()[0]}. A query reads only the tables (--any-files allows the rest)"
        return text


def without_explain(text: str) -> str:
    """What a statement explains: its text without the words EXPLAIN and ANALYZE, and options, at its begin."""
    tokens = [at for at, _ in duckdb.tokenize(text)]
    for at, end in zip(tokens, [*tokens[1:], len(text)], strict=True):
        word = text[at:end].strip().lower()
        if word in EXPLAINS:
            continue
        if not word.startswith("("):
            return text[at:]
        # EXPLAIN (ANALYZE, FORMAT json) SELECT ...
        return text[text.find(")", at) + 1 :]
    return ""


def distinct(names: Sequence[str]) -> list[str]:
    """Names of columns, numbered where one occurs again."""
    found: list[str] = []
    for name in names:
        again = sum(each == name or each.startswith(f"{name}:") for each in found)
        found.append(f"{name}:{again}" if again else name)
    return found


def span_conditions(span: Span) -> Mapping[str, str]:
    """By table the condition of the rows that overlap the span. Rows without an end are still open."""
    if not span.bounded:
        return {}

    def within(begins: str, ends: str) -> str:
        since = "true" if span.since_ns is None else f"coalesce({ends} >= {span.since_ns}, true)"
        return since if span.until_ns is None else f"{since} AND coalesce({begins} < {span.until_ns}, true)"

    def ns(column: str) -> str:
        return column if column.endswith("_ns") else f"epoch_us({column}) * 1000"

    at = "coalesce(publish_ts_ns, deliver_ts_ns)"
    found = {name: within(ns(begins), ns(ends)) for name, (begins, ends) in TIME_COLUMNS.items()}
    of_connections = "connection_id IN (SELECT connection_id FROM connections)"
    return {**dict.fromkeys(TABLES, of_connections), **found, "message_flows": within(at, at)}


def connect(directory: str, *, any_files: bool = False) -> Session:
    """The tables in a directory of this machine, or of a lake as of its last batch. Raises TablesError, OutputError,
    LakeError."""
    root = location(directory)
    if not root.local:
        raise TablesError(f"{root.display_name}: `wirehare sql` reads tables of this machine; copy them here first")
    return _opened(root, directory, any_files=any_files)


def open_tables(
    directory: str,
    *,
    span: Span | None = None,
    findings: Location | None = None,
    copies: Collection[str] = ("findings",),
) -> Session:
    """The same for tables of any file system; `span`: only its rows; `findings`: the table, if it is not beside the
    others; `copies`: tables whose VARIANT is read. Raises TablesError, OutputError, LakeError."""
    return _opened(location(directory), directory, findings, span=span, memory=MEMORY, copies=copies)


def has_tables(source: str) -> bool:
    """Whether a source is a directory of tables, not of captures. Raises OutputError."""
    from pipeline.lake.opening import is_lake

    root = location(source)
    names = (root.entries() or ()) if not os.path.isfile(root.path) else ()
    return any(name in TABLES or "=" in name for name in names) or is_lake(root)


def _opened(root: Location, directory: str, findings: Location | None = None, **how: Any) -> Session:
    from pipeline.lake.layout import DamagedLakeError
    from pipeline.lake.opening import is_lake

    try:
        files = table_files(root, directory, how.get("span") or Span())
        return Session(files if findings is None else {**files, "findings": _in_folder(findings)}, **how)
    except (duckdb.IOException, duckdb.InvalidInputException, NotADirectoryError) as error:
        kind = DamagedLakeError if is_lake(root) else TablesError
        raise kind(f"{root.display_name}: cannot be read ({first_line(error)})") from error


@contextmanager
def files_here(root: Location, directory: str, span: Span) -> Iterator[dict[str, Sequence[str]]]:
    """By table the paths of its files on this machine (`table_files`); those of another file system are copied into the
    scratch directory while the body runs."""
    files = table_files(root, directory, span)
    with tempfile.TemporaryDirectory(prefix="tables-", dir=scratch.directories({}).partition(",")[0]) as folder:
        yield {name: copied(found, f"{folder}/{name}") for name, found in files.items() if name in TABLES}


def copied(files: Files, folder: str) -> Sequence[str]:
    """The paths of the files; those of another file system are copied into `folder`, which is made."""
    if files.system is None:
        return files.paths
    os.mkdir(folder)
    paths = [f"{folder}/{number}.parquet" for number in range(len(files.paths))]
    for source, target in zip(files.paths, paths, strict=True):
        pyarrow.fs.copy_files(source, target, files.system, pyarrow.fs.LocalFileSystem())
    return paths


def table_files(root: Location, directory: str, span: Span) -> dict[str, Files]:
    """By table its files; of a lake those that may have rows in the span."""
    from pipeline.lake.opening import is_lake

    if is_lake(root):
        from pipeline.lake.log import Log
        from pipeline.lake.opening import open_lake

        system = None if root.local else root.files
        return {
            **{
                name: Files([f"{root.path}/{name}/{file.path}" for file in files], system=system)
                for name, files in files_of(Log(open_lake(directory), directory), span).items()
            },
            "findings": _in_folder(root.child("findings")),
        }
    if not root.local:
        return {name: _in_folder(root.child(name)) for name in VIEWS}
    for level in range(PARTITION_LEVELS + 1):
        folders = sorted(Path(root.path).glob("*=*/" * level)) if level else [Path(root.path)]
        if any((folder / name).is_dir() for folder in folders for name in TABLES):
            found = {name: [str(file) for each in folders for file in _parquet_in(each / name)] for name in VIEWS}
            return {name: Files(_regular(paths), level > 0) for name, paths in found.items()}
    info = root.files.get_file_info(root.path)
    if info.type == pyarrow.fs.FileType.NotFound:
        hint = meant(root.name, os.listdir(root.parent.path) if os.path.isdir(root.parent.path) else ())
        raise TablesError(f"{root.display_name}: no such file or directory{hint}")
    raise TablesError(f"{root.display_name}: holds none of our tables; expected a directory of `wirehare decode`")


def _in_folder(folder: Location) -> Files:
    """The files of a table in its folder, which need not exist."""
    paths = [f"{folder.path}/{name}" for name in parquet.files(folder)]
    return Files(_regular(paths)) if folder.local else Files(paths, system=folder.files)


def _parquet_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _regular(paths: Sequence[str]) -> Sequence[str]:
    """The paths. Raises TablesError if one is not a regular file: to open a FIFO would block."""
    for path in paths:
        if problem := special(os.stat(path)):
            raise TablesError(f"{printable(path)} {problem}")
    return paths
