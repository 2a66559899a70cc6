"""Captures that are decoded in pieces, with the states of their connections carried from one to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.net.layers import SEGMENT
from codec.variant import decode
from pipeline.tables.decoding import config
from udfs.tables import ACCOUNTS, STATES, tables_of

BEGINNING, END = -(1 << 62), 1 << 62
Rows = dict[str, Counter[str]]


def times(table: pa.Table) -> list[int]:
    """When the packets of runs were captured."""
    segments = np.concatenate([np.frombuffer(run, SEGMENT) for run in table["segments"].drop_null().to_pylist()])
    found: list[int] = np.unique(segments["order_ns"]).tolist()
    return found


def piece(table: pa.Table, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The packets from one time on and before another."""
    return batches(between(table, first, end))


def between(table: pa.Table, first: int, end: int) -> pa.Table:
    rows = []
    for run in table.filter(table["flow"].is_valid()).to_pylist():
        segments = np.frombuffer(run["segments"], SEGMENT)
        part = segments[(segments["order_ns"] >= first) & (segments["order_ns"] < end)]
        if len(part):
            begins = {"order_ns": int(part["order_ns"][0]), "first_packet_no": int(part["packet_no"][0])}
            rows.append({**run, "segments": part.tobytes(), **begins})
    return pa.Table.from_pylist(rows, schema=table.schema)


def batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.combine_chunks().to_batches(max_chunksize=64))


def as_text(value: Any) -> str:
    """A value, VARIANT as what it means."""
    if isinstance(value, dict):
        if value.keys() == {"value", "metadata"}:
            return repr(decode(value["value"], value["metadata"]))
        return repr({name: as_text(part) for name, part in value.items()})
    return repr(value)


def texts(rows: pa.RecordBatch) -> list[str]:
    return [" ".join(f"{name}={as_text(value)}" for name, value in row.items()) for row in rows.to_pylist()]


def rows_of(of_capture: pa.Table) -> Rows:
    """All rows of runs."""
    found: Rows = {}
    for table, still_open, rows in tables_of(of_capture.to_batches(max_chunksize=64), config(payload=True)):
        if table != ACCOUNTS:
            assert not still_open
            found.setdefault(table, Counter()).update(texts(rows))
    return found


class OpenRows(NamedTuple):
    """Rows of a table that the next piece may replace; `connections`: those of which no later piece had anything."""

    table: str
    rows: pa.RecordBatch
    connections: set[int]


class Lake:
    """What someone keeps who decodes piece after piece: final rows, the open rows and the state of each connection."""

    def __init__(self) -> None:
        self.final: Rows = {}
        self.open: list[OpenRows] = []
        self.states: dict[bytes, bytes] = {}

    def add(self, batches: Iterator[pa.RecordBatch], keep_open: bool = True) -> None:
        parts = [
            (*part, set(part.rows["connection_id"].to_pylist()))
            for part in tables_of(batches, config(payload=True), states=self.states, keep_open=keep_open)
            if part.table != ACCOUNTS
        ]
        touched = {connection for *_, connections in parts for connection in connections}
        rest = (each._replace(connections=each.connections - touched) for each in self.open)
        self.open = [each for each in rest if each.connections]
        for table, still_open, rows, connections in parts:
            if table == STATES:
                assert rows["error"].null_count == len(rows)
                self.states |= zip(rows["flow"].to_pylist(), rows["octets"].to_pylist(), strict=True)
            elif still_open:
                self.open.append(OpenRows(table, rows, connections))
            else:
                self.final.setdefault(table, Counter()).update(texts(rows))

    def rows(self) -> Rows:
        """All rows, those of what is still open among them."""
        found = {table: Counter(rows) for table, rows in self.final.items()}
        for table, rows, connections in self.open:
            own = rows.filter(pc.is_in(rows["connection_id"], pa.array(sorted(connections))))
            found.setdefault(table, Counter()).update(texts(own))
        return found


def in_pieces(of_capture: pa.Table, cuts: list[int]) -> Rows:
    """All rows of runs that are decoded piece after piece."""
    lake = Lake()
    for first, end in pairwise([BEGINNING, *cuts, END]):
        lake.add(piece(of_capture, first, end))
    return lake.rows()


def same(found: Rows, expected: Rows, where: str) -> None:
    for table in found.keys() | expected.keys():
        more, fewer = (found.get(table, Counter()), expected.get(table, Counter()))
        assert (where, table, more - fewer, fewer - more) == (where, table, Counter(), Counter())
