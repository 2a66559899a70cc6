"""What is evaluated: relations, contexts with their checks, and the statements that these become.

A relation is a table, made once, or a common table expression of the statements that read it. All checks of a context
are one query over its rows (`hits_of`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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
    with_former,
)
from udfs.arrow.former import current_expressions

# Tables in Parquet files as views of DuckDB, and a connection that reads no other file.
#
# Paths and texts come from people and from the wire. In a statement they are literals (`quoted`); a path is also a glob
# of DuckDB, so that its signs are escaped (`as_glob`).


NAMES = {
    STRING: "VARCHAR", LONG: "BIGINT", INT: "INTEGER", BOOLEAN: "BOOLEAN", BINARY: "BLOB", TIMESTAMP: "TIMESTAMPTZ",
    VARIANT: "VARIANT",
}  # fmt: skip
GLOB_SIGNS = re.compile(r"[*?[]")


def no_rows(schema: Table) -> str:
    """A query that gives no rows, of all columns of a table: others in a UNION ALL BY NAME may lack some."""
    columns = ", ".join(f'CAST(NULL AS {type_name(column.type)}) AS "{column.name}"' for column in schema)
    return f"SELECT {columns} WHERE false"


def view_of(name: str, schema: Table, query: str | None, condition: str = "true") -> str:
    """The statement for a view of the rows of a table on which `condition` is true. `query`: of its files, which may be
    of earlier releases; None: there are none."""
    rows = no_rows(with_former(schema)) + (f" UNION ALL BY NAME {query}" if query else "")
    current = ", ".join(f'{value} AS "{name}"' for name, value in current_expressions(schema, "duckdb").items())
    former = ", ".join(each.formerly for each in schema if each.formerly)
    columns = f"*{f' EXCLUDE ({former})' if former else ''}{f' REPLACE ({current})' if current else ''}"
    return f"CREATE VIEW {name} AS SELECT {columns} FROM ({rows}) WHERE {condition}"


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


FACT = "fact_"  # how relations that groups return begin
FACT_CONNECTIONS = "fact_connections"
FIRST_ACROSS, MORE_FACTS, LAST_ACROSS, PACKETS = 1, 2, 3, 4  # stages
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
# Columns of a hit: a row of a context that breaks a rule. Those that locate it are null in contexts without channels.
HIT_KEY = {"connection_id": "BIGINT", "channel": "INTEGER", "channel_incarnation": "BIGINT"}
HIT = {
    "rule_id": "VARCHAR", "frame_no": "BIGINT", "at_ns": "BIGINT", "thing": "VARCHAR", "scope": "VARCHAR",
    "offender": "VARCHAR", "severity": "VARCHAR", "evidence": "VARCHAR", "occurrences": "BIGINT",
}  # fmt: skip
Guard = tuple[str, frozenset[str]]


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


class Check(NamedTuple):
    """`condition` is true on rows that break the rule `rule_id`; of these `values` are the columns of HIT. It needs one
    of `versions`, and in each column of `guards` one of its words."""

    rule_id: str
    condition: str
    values: Mapping[str, str]
    versions: frozenset[str] = frozenset()
    guards: tuple[Guard, ...] = ()


class Context(NamedTuple):
    """The rows of a relation or query with the checks that they are put to. `key`: which columns of HIT_KEY they have;
    `needs`: relations that must have been made; `census`: a relation that contains what its checks guard, and that has
    rows if the context has."""

    rows: str
    key: Sequence[str]
    checks: Sequence[Check]
    needs: frozenset[str]
    stage: int = 0
    gate: Gate = Gate()
    census: str | None = None


class Program(NamedTuple):
    """What is evaluated: `settings`, thresholds by name; `constants`, small tables as JSON arrays of objects; `macros`;
    `relations`, in an order in which each reads earlier ones only; `contexts`; `found`, the query of findings without
    their packets; `packets`, the query of these in a group; `result`, the query of findings, whose `evidence` is JSON.
    `deferred`: rules with contexts of several stages. `schemas`: of the tables."""

    schemas: Mapping[str, Table]
    settings: Mapping[str, float]
    constants: Mapping[str, str]
    macros: Sequence[str]
    relations: Sequence[Relation]
    contexts: Sequence[Context]
    found: str
    packets: str
    result: str
    deferred: Collection[str]
    findings: Table

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it may read."""
        return tuple(self.schemas)


def is_fact(relation: Relation) -> bool:
    """Whether groups return it."""
    return relation.name.startswith(FACT)


def expressions(
    relations: Sequence[Relation], names: Collection[str], existing: Collection[str] = ()
) -> list[Relation]:
    """The relations among `names`, and among those that they read, that are no tables and not `existing`, in order."""
    needed = {*names}
    found = []
    for relation in reversed(relations):
        if relation.name in needed and relation.name not in existing and not relation.is_table:
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


def hits_of(context: Context, checks: Sequence[Check]) -> str:
    """The query of table hits: a row for each check that matches a row of the context."""
    conditions = ",\n    ".join(f"CASE WHEN {check.condition} THEN {at} END" for at, check in enumerate(checks))
    fields = ",\n    ".join(
        f"{chosen_value([check.values[name] for check in checks], kind)} AS {name}" for name, kind in HIT.items()
    )
    located = ", ".join(
        f"CAST({name if name in context.key else 'NULL'} AS {kind}) AS {name}" for name, kind in HIT_KEY.items()
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


def settings_of(program: Program) -> str:
    """The statement that sets the thresholds of a program, for one connection."""
    limits = ", ".join(f"{quoted(name)}: {value!r}::DOUBLE" for name, value in program.settings.items())
    return f"SET VARIABLE settings = MAP {{{limits}}}"


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
