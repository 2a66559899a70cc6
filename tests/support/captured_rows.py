"""All shipped captures as decoded rows in one table, each with connections and addresses of its own.

Captures that were rewritten from one another share addresses, ports and times: they are decoded one by one, without
Spark, and their connections told apart afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import decoding
import golden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NUMBERS = 1 << 8  # of captures: the last bits of a connection's id say of which it is


def write_rows(folder: Path, names: Iterable[str] | None = None) -> dict[int, str]:
    """DECODED rows of these captures (all) as Parquet under `folder`, by kind; number of a capture -> its name."""
    numbers = {}
    for number, name in enumerate(names or golden.captures()):
        numbers[number] = name
        table = decoding.decode_table(decoding.in_flow_order(decoding.runs(golden.captures()[name].paths)))
        table = table.set_column(
            table.schema.get_field_index("connection_id"), "connection_id", renumbered(table["connection_id"], number)
        )
        for kind in ("frame", "connection", "capture"):
            rows = table.filter(pc.equal(table["kind"], kind)).drop_columns(["kind"])
            rows = with_addresses(rows, number) if kind == "connection" else rows
            (folder / f"kind={kind}").mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, folder / f"kind={kind}" / f"{number}.parquet")
    return numbers


def renumbered(ids: pa.ChunkedArray, number: int) -> pa.Array:
    plain = np.array(
        [-1 if value is None else value // NUMBERS * NUMBERS + number for value in ids.to_pylist()], np.int64
    )
    return pa.array(plain, pa.int64(), mask=plain < 0)


def capture_of(connection_id: int, numbers: dict[int, str]) -> str:
    return numbers[connection_id % NUMBERS]


def with_addresses(rows: pa.Table, number: int) -> pa.Table:
    """Facts of connections with addresses that no other capture has."""

    def own(facts: dict[str, Any]) -> dict[str, Any]:
        return facts | {side: f"{facts[side]}#{number}" for side in ("client_ip", "server_ip")}

    at = rows.schema.get_field_index("facts")
    changed = [[own(facts)] for (facts,) in rows["facts"].to_pylist()]
    return rows.set_column(at, rows.schema.field(at), pa.array(changed, rows.schema.field(at).type))
