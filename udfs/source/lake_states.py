"""States of open connections as a task finds them: in files of the lake, when the first run of their flow comes.

    states = StateFiles(filesystem, ("lake/states/00000012/part-....parquet",)).open()
    octets = states.get(flow)

Nothing is handed out but what is asked for. A task keeps where the states of all flows are, and of each file the row
group that was read last: runs come in the order of their flows, and so do the states in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

OCTETS = "octets"
GROUP_BYTES = 1 << 20  # of a row group: what is read for one state


@dataclass(frozen=True)
class StateFiles:
    """Files of table states; `only`: ids of the connections that are wanted, None: all of them. This is what plans
    carry."""

    filesystem: fs.FileSystem
    paths: tuple[str, ...] = ()
    only: frozenset[int] | None = None

    def open(self) -> States:
        """The states in these files."""
        return States(self)


class Place(NamedTuple):
    """Where a state is."""

    connection_id: int
    file: int
    group: int
    row: int


class States(Mapping[bytes, bytes]):
    """States by the flow of their connection (36 octets)."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._groups: dict[int, tuple[int, pa.ChunkedArray]] = {}  # of each file: number and octets of the last one
        self._places: dict[bytes, Place] | None = None

    def connection(self, flow: bytes) -> int:
        """The id of the connection."""
        return self._known[flow].connection_id

    def __getitem__(self, flow: bytes) -> bytes:
        place = self._known[flow]
        number, octets = self._groups.get(place.file, (-1, None))
        if number != place.group:
            with self._file(place.file) as source:
                octets = source.read_row_group(place.group, columns=[OCTETS])[OCTETS]
            self._groups[place.file] = place.group, octets
        found: bytes = octets[place.row].as_py()  # type: ignore[index]
        return found

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def _known(self) -> dict[bytes, Place]:
        if self._places is None:
            self._places = dict(self._listed())
        return self._places

    def _listed(self) -> Iterator[tuple[bytes, Place]]:
        only = self._files.only
        for number in range(len(self._files.paths)):
            with self._file(number) as source:
                for group in range(source.num_row_groups):
                    rows = source.read_row_group(group, columns=["flow", "connection_id"])
                    flows, connections = (rows[name].to_pylist() for name in ("flow", "connection_id"))
                    for row, (flow, connection) in enumerate(zip(flows, connections, strict=True)):
                        if only is None or connection in only:
                            yield flow, Place(connection, number, group, row)

    def _file(self, number: int) -> pq.ParquetFile:
        return pq.ParquetFile(self._files.filesystem.open_input_file(self._files.paths[number]))
