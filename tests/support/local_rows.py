"""Tables of connections written by hand, or of captures, made without Spark; VARIANT as Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import decoding
import pieces
from wire import FIRST_CLIENT_PORT, Wire, write_capture

from codec.variant import decode
from pipeline.tables.decoding import config
from udfs.tables import tables_of

Row = dict[str, Any]


def plain(value: Any) -> Any:
    """A value of a row, VARIANT as what it means."""
    if isinstance(value, dict):
        if value.keys() == {"value", "metadata"}:
            return decode(value["value"], value["metadata"])
        return {name: plain(part) for name, part in value.items()}
    return value


def tables_of_captures(paths: Iterable[Path]) -> dict[str, list[Row]]:
    """The rows of all tables, those of a connection in the order of their frames."""
    runs = decoding.in_flow_order(decoding.runs(list(paths)))
    found: dict[str, list[Row]] = {}
    for table, _, rows in tables_of(runs.to_batches(max_chunksize=64), config(payload=True)):
        found.setdefault(table, []).extend(
            {name: plain(value) for name, value in row.items()} for row in rows.to_pylist()
        )
    for table, order in (("messages", "first_frame_no"), ("methods", "frame_no"), ("frames", "frame_no")):
        found.get(table, []).sort(key=lambda row: row[order])
    return found


class LocalTables:
    """The tables of connections by name, whose capture is written to `path`."""

    def __init__(self, path: Path, wires: Mapping[str, Wire]) -> None:
        write_capture(path, wires.values())
        self._path, self._wires, self._tables = path, wires, tables_of_captures([path])
        names = {FIRST_CLIENT_PORT + at: name for at, name in enumerate(wires)}
        self._names = {row["connection_id"]: names[row["client_port"]] for row in self._tables["connections"]}

    def rows(self, table: str, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of the rows of a connection."""
        rows = (row for row in self._tables.get(table, ()) if self._names[row["connection_id"]] == name)
        return [tuple(row[column] for column in columns) for row in rows]

    def check_pieces(self) -> None:
        """All tables are the same when these connections, all at a time, are decoded in pieces."""
        path = self._path.with_name("together.pcap")
        write_capture(path, self._wires.values(), apart_ns=0)
        check_pieces(path)


def check_pieces(path: Path) -> None:
    """A capture gives the same rows in two pieces, wherever it is cut, and in one for each time."""
    runs = decoding.in_flow_order(decoding.runs([path])).combine_chunks()
    whole, times = pieces.rows_of(runs), pieces.times(runs)[1:]
    for cuts in (*([time] for time in times), times):
        pieces.same(pieces.in_pieces(runs, cuts), whole, f"{path.name} {cuts}")
