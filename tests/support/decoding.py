"""Captures through the readers and the decoder as plain Python generators, without a Spark session.

One capture (or one rotated set) at a time: captures that were rewritten from one another share addresses, ports and
times, so reading them together would merge their connections.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import golden
import pyarrow as pa
from decoder_rows import DECODED, decode_runs
from pyspark.sql.variant_utils import VariantUtils

from codec.tables import RUN_ORDER
from udfs.source.sources import read_runs

Row = dict[str, Any]


@dataclass(frozen=True)
class Connection:
    """Facts of one connection and its rows of `frames` in the order of frame_no; `file` is the capture's bare name."""

    facts: Row
    first_ns: int
    rows: list[Row]


def runs(paths: list[Path], **sizes: int | str) -> pa.Table:
    """The runs of these files, all partitions in their order; `sizes` as options."""
    options = {"paths": json.dumps([str(path) for path in paths])} | {name: str(size) for name, size in sizes.items()}
    return read_runs(options)


def in_flow_order(table: pa.Table) -> pa.Table:
    """As the shuffle sorts them."""
    return table.sort_by([(key, "ascending") for key in RUN_ORDER])


def decode_batches(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Batches of runs in flow order -> DECODED rows, payloads included."""
    return pa.Table.from_batches(decode_runs(payload=True)(iter(batches)), schema=DECODED)


def decode_table(table: pa.Table, batch_rows: int = 64) -> pa.Table:
    """The same for all runs at once."""
    return decode_batches(table.combine_chunks().to_batches(max_chunksize=batch_rows))


def variants(column: pa.ChunkedArray) -> list[Any]:
    return [None if v is None else VariantUtils.to_python(v["value"], v["metadata"]) for v in column.to_pylist()]


def rows_of(table: pa.Table) -> list[Row]:
    """Plain Python rows; VARIANT as Python values, `capture_file` also as the bare name `file`."""
    plain: list[Row] = table.drop_columns(["arguments", "properties"]).to_pylist()
    for name in ("arguments", "properties"):
        for row, value in zip(plain, variants(table[name]), strict=True):
            row[name] = value
    for row in plain:
        row["file"] = row["capture_file"].rsplit("/", 1)[-1] if row["capture_file"] else None
    return plain


def connections(rows: list[Row]) -> list[Connection]:
    """In the order of their first packets."""
    frames: dict[int, list[Row]] = {}
    for row in rows:
        if row["kind"] == "frame":
            frames.setdefault(row["connection_id"], []).append(row)
    found = [
        Connection(
            row["facts"], row["ts_ns"], sorted(frames.get(row["connection_id"], []), key=lambda r: r["frame_no"])
        )
        for row in rows
        if row["kind"] == "connection"
    ]
    return sorted(found, key=lambda connection: connection.first_ns)


@cache
def decoded(name: str) -> list[Connection]:
    """The connections of a shipped capture, decoded once a test run, payloads included."""
    return connections(rows_of(decode_table(in_flow_order(runs(golden.captures()[name].paths)))))


def dump(names: list[str]) -> Iterator[str]:
    """One JSON line a connection: what a decode of these captures gives, to compare two processes."""
    for name in names:
        for connection in decoded(name):
            yield json.dumps([name, connection.facts, connection.rows], default=repr, sort_keys=True)


if __name__ == "__main__":
    for line in dump(sys.argv[1:]):
        print(line)
