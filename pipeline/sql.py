"""Tables as views of DuckDB, for questions in SQL without Spark and Java.

    with connect("tables") as session:
        for columns, rows in session.run("SELECT outcome, count(*) FROM messages GROUP BY ALL"):
            ...

`connect` takes a directory that `wirehare decode` has written, one of such directories named like `date=2026-11-20`, or
a lake, on this machine. All tables of `pipeline.schemas.TABLES` are views, in UTC; a table that was not written, or a
column that an older release did not have, is empty. VARIANT columns are DuckDB's: `arguments.queue`.

A session reads the files of its tables and no others, and writes none, unless `any_files` allows it: DuckDB's access
to files is restricted to the listed ones and the configuration is locked, so a statement cannot lift it. Of statements
that DuckDB would still allow on a listed file (COPY to it), only those that read are run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow.fs

from codec.errors import WirehareError
from pipeline.output import scratch
from pipeline.output.parquet import write_rows
from pipeline.output.place import Place, TablesError, place
from pipeline.schemas import TABLES
from udfs.source.files import printable, special
from udfs.source.suggestions import meant

PARTITION_LEVELS = 3  # of folders name=value above tables
MEMORY_SHARE = 0.5  # of this machine's memory; beyond it DuckDB spills to the session's scratch directory
BATCH_ROWS = 1000
# Kinds of statements that name no files. A SET fails while the configuration is locked; EXPLAIN ANALYZE runs what it
# explains.
READING = {"SELECT", "EXPLAIN", "PRAGMA", "CALL", "SET", "TRANSACTION"}
IN_MEMORY = {"CREATE", "CREATE_FUNC", "DROP", "INSERT", "UPDATE", "DELETE", "ALTER"}
EXPLAINS = {"explain", "analyze"}


class QueryError(WirehareError):
    """A statement that cannot be run; the message is DuckDB's, or says why it was refused."""


class Session:
    """A connection to DuckDB with the tables as views. A context manager; `close` removes what it spilled."""

    def __init__(self, views: Mapping[str, tuple[Sequence[str], bool]], *, any_files: bool = False) -> None:
        """`views`: by table the paths of its files, and whether their folders have columns (name=value)."""
        self._directory = tempfile.mkdtemp(prefix="sql-", dir=scratch.directories({}).partition(",")[0])
        memory = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE)
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory}B",
            "temp_directory": f"{self._directory}/spilled",
        }
        self._connection = duckdb.connect(config=settings | {"autoinstall_known_extensions": "false"})
        self._any_files = any_files
        self._connection.execute("SET TimeZone = 'UTC'")
        allowed = list[str]()
        for name, schema in TABLES.items():
            paths, in_folders = views.get(name, ((), False))
            # An empty file with all columns comes first: the others may lack some.
            empty = place(f"{self._directory}/{name}")
            write_rows(empty, schema)
            first = [str(path) for path in sorted(Path(empty.path).iterdir())]
            sources = [reading(first), *([reading(paths, in_folders)] if paths else [])]
            self._connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(sources)}")
            allowed += [*first, *paths]
        if not any_files:
            self._connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and remove its temporary files."""
        self._connection.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def interruptAll(self) -> None:
        """Cancel the running statement; called from another thread."""
        self._connection.interrupt()

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


def reading(paths: Sequence[str], in_folders: bool = False) -> str:
    """The query for all rows of these files; `in_folders`: their folders have columns (name=value)."""
    listed = ", ".join(map(quoted, paths))
    return f"SELECT * FROM read_parquet([{listed}], union_by_name=true, hive_partitioning={str(in_folders).lower()})"


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


def quoted(text: str) -> str:
    """A string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def connect(directory: str, *, any_files: bool = False) -> Session:
    """The tables in a directory of this machine, or of a lake as of its last batch. Raises TablesError, OutputError,
    LakeError."""
    root = place(directory)
    if not root.local:
        raise TablesError(f"{root.display_name}: `wirehare sql` reads tables of this machine; copy them here first")
    return Session(_files(root, directory), any_files=any_files)


def _files(root: Place, directory: str) -> dict[str, tuple[list[str], bool]]:
    """By table the paths of its files, and whether their folders have columns."""
    from pipeline.lake.place import is_lake

    if is_lake(root):
        from pipeline.lake.log import Log
        from pipeline.lake.place import open_lake

        log = Log(open_lake(directory), directory)
        batch = log.batch("captures")
        named = {
            name: [each.path for each in log.readable(name, log.files(name, batch))] if batch else [] for name in TABLES
        }
        return {name: ([f"{root.path}/{name}/{path}" for path in paths], False) for name, paths in named.items()}
    for level in range(PARTITION_LEVELS + 1):
        folders = sorted(Path(root.path).glob("*=*/" * level)) if level else [Path(root.path)]
        found = {
            name: [str(file) for folder in folders for file in sorted((folder / name).glob("*.parquet"))]
            for name in TABLES
        }
        for path in (path for paths in found.values() for path in paths):
            if problem := special(os.stat(path)):  # to open a FIFO would block
                raise TablesError(f"{printable(path)} {problem}")
        if any((folder / name).is_dir() for folder in folders for name in TABLES):
            return {name: (paths, level > 0) for name, paths in found.items()}
    info = root.files.get_file_info(root.path)
    if info.type == pyarrow.fs.FileType.NotFound:
        hint = meant(root.name, os.listdir(root.parent.path) if os.path.isdir(root.parent.path) else ())
        raise TablesError(f"{root.display_name}: no such file or directory{hint}")
    raise TablesError(f"{root.display_name}: holds none of our tables; expected a directory of `wirehare decode`")
