"""Files of a lake in the workers: the folders of partitions, and the states of open connections.

    states = States(StateFiles(filesystem, ("lake/states/00000012/part-....parquet",)))
    bytes = states.get(flow)

States are read one by one, when the first run of their flow comes. A task caches where all states are, and the row
group last read of each file: runs come in the order of their flows, and so do the states in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from codec.net.layers import FLOW_BYTES

OPEN, DAY = "open", "day"
NO_DAY = "__HIVE_DEFAULT_PARTITION__"  # as in Hive; readers infer null from it
STATE = "octets"
GROUP_BYTES = 1 << 20  # of a row group, the unit of reading


@dataclass(frozen=True)
class StateFiles:
    """Files of table states; `only`: ids of the connections wanted, None: all. Pickled into plans."""

    filesystem: fs.FileSystem
    paths: tuple[str, ...] = ()
    only: frozenset[int] | None = None


class StateRow(NamedTuple):
    """Where a state is."""

    connection_id: int
    file: int
    group: int
    row: int


class States(Mapping[bytes, bytes]):
    """States by the flow of their connection (FLOW_BYTES bytes)."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._groups: dict[int, tuple[int, pa.ChunkedArray]] = {}  # of each file: number and bytes of the last one

    def connection(self, flow: bytes) -> int:
        return self._known[flow].connection_id

    def __getitem__(self, flow: bytes) -> bytes:
        state = self._known[flow]
        number, data = self._groups.get(state.file, (-1, None))
        if number != state.group:
            with self._file(state.file) as source:
                data = source.read_row_group(state.group, columns=[STATE])[STATE]
            self._groups[state.file] = state.group, data
        found: bytes = data[state.row].as_py()  # type: ignore[index]
        return found

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @cached_property
    def _known(self) -> dict[bytes, StateRow]:
        only, found = self._files.only, dict[bytes, StateRow]()
        for number in range(len(self._files.paths)):
            with self._file(number) as source:
                for group in range(source.num_row_groups):
                    rows = source.read_row_group(group, columns=["flow", "connection_id"])
                    flows, connections = (rows[name].to_pylist() for name in ("flow", "connection_id"))
                    for row, (flow, connection) in enumerate(zip(flows, connections, strict=True)):
                        if only is None or connection in only:
                            found[flow.ljust(FLOW_BYTES, b"\0")] = StateRow(connection, number, group, row)
        return found

    def _file(self, number: int) -> pq.ParquetFile:
        return pq.ParquetFile(self._files.filesystem.open_input_file(self._files.paths[number]))


def folder(batch: int | str, *, open_rows: bool, day: date | None) -> str:
    """The folder of a partition that a batch (number) or a compaction (name) writes."""
    return f"{str(batch).zfill(8)}/{OPEN}={str(open_rows).lower()}/{DAY}={day.isoformat() if day else NO_DAY}"


def partition_of(path: str) -> tuple[bool, date | None]:
    """(open, day) of a path made by `folder`."""
    parts = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
    return parts[OPEN] == "true", None if parts[DAY] == NO_DAY else date.fromisoformat(parts[DAY])
