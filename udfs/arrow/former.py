"""Rows in files of earlier releases, with the names of columns and the values of this one (`Column.formerly`,
`former_values`): for Arrow, and as expressions of DuckDB and Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from codec.tables import STRINGS, Column, Table

LAMBDAS = {"duckdb": "list_transform({}, lambda each: {})", "spark": "transform({}, each -> {})"}


def present_columns(table: Table, names: Sequence[str], present: Sequence[str]) -> list[str]:
    """The columns `names` of a table as a file with the columns `present` calls them, without those that it lacks."""
    former = {each.name: each.formerly for each in table if each.formerly}
    return [own for name in names for own in (name, former.get(name, "")) if own in present]


def current_rows(rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:
    """Rows of a file, with the names and values of this release."""
    renamed = {each.formerly: each.name for each in table if each.formerly}
    columns: dict[str, pa.Array] = {}
    for former, values in zip(rows.schema.names, rows.columns, strict=True):
        name = renamed.get(former, former)
        columns[name] = pc.coalesce(columns[name], values) if name in columns else values
    for column in table:
        if column.former_values and column.name in columns:
            columns[column.name] = _current_values(columns[column.name], column)
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _current_values(values: pa.Array, column: Column) -> pa.Array:
    if pa.types.is_list(values.type):
        flat = _current_values(values.values, column)
        return pa.ListArray.from_arrays(values.offsets, flat, mask=values.is_null())
    texts = values.cast(pa.string())
    for before, now in column.former_values:
        texts = pc.if_else(pc.equal(texts, before), now, texts)
    return texts


def current_expressions(table: Table, dialect: str) -> dict[str, str]:
    """By column that had another name or other values: its value in SQL, of rows of `codec.tables.with_former`."""
    return {each.name: _expression(each, dialect) for each in table if each.formerly or each.former_values}


def _expression(column: Column, dialect: str) -> str:
    value = f"coalesce({column.name}, {column.formerly})" if column.formerly else column.name
    if not column.former_values:
        return value
    cases = " ".join(f"WHEN '{before}' THEN '{now}'" for before, now in column.former_values)
    if column.type == STRINGS:
        return LAMBDAS[dialect].format(value, f"CASE each {cases} ELSE each END")
    return f"CASE {value} {cases} ELSE {value} END"
