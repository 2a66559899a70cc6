"""Tables in Parquet files as views of DuckDB, and a connection that reads no other file.

Paths and texts come from people and from the wire. In a statement they are literals (`quoted`); a path is also a glob
of DuckDB, so that its signs are escaped (`as_glob`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import duckdb

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
)

NAMES = {
    STRING: "VARCHAR", LONG: "BIGINT", INT: "INTEGER", BOOLEAN: "BOOLEAN", BINARY: "BLOB", TIMESTAMP: "TIMESTAMPTZ",
    VARIANT: "VARIANT",
}  # fmt: skip
GLOB_SIGNS = re.compile(r"[*?[]")


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


def reading(paths: Sequence[str], *, in_folders: bool = False, with_names: bool = False) -> str:
    """The query for all rows of these files. `in_folders`: their folders have columns (name=value); `with_names`: a
    column `filename`."""
    listed = ", ".join(quoted(as_glob(path)) for path in paths)
    options = f"hive_partitioning = {str(in_folders).lower()}, filename = {str(with_names).lower()}"
    return f"SELECT * FROM read_parquet([{listed}], union_by_name = true, {options})"


def as_glob(path: str) -> str:
    """The glob that only this path matches."""
    return GLOB_SIGNS.sub(r"[\g<0>]", path)


def read_only(connection: duckdb.DuckDBPyConnection, paths: Iterable[str]) -> None:
    """Let a connection read these files and nothing else, write none, and never be configured otherwise. DuckDB asks
    for the globs of paths, too."""
    allowed = sorted({name for path in paths for name in (path, as_glob(path))})
    connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


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
