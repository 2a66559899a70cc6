"""Batches of a lake decoded in this process, without Spark; captures cut into rotated ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import decoding
import pyarrow as pa
import pyarrow.compute as pc
from pcap_files import records

from pipeline.decoding import config
from pipeline.lake.arrivals import Arrival
from pipeline.lake.batch import Written
from pipeline.lake.batches import Ingest
from pipeline.lake.files import lake_file
from pipeline.lake.journal import Change
from pipeline.lake.layout import LakeFile, Options
from pipeline.lake.log import Log
from pipeline.schemas import DAY_OF
from udfs.decode.key_logs import SecretFiles
from udfs.sink.writers import ACCOUNT, UNREAD, EndConnections, LakeFolders, WriteBatch
from udfs.source.files import locate
from udfs.source.lake import StateFiles, partition_of
from udfs.source.sources import in_run_order

TASKS = 2


@dataclass
class LocalWork:
    """Decodes as Spark's workers do, flows distributed over TASKS of them; pairs no messages."""

    log: Log
    key_logs: tuple[str, ...] = ()
    carry_secrets: bool = False

    def decode(
        self,
        number: int,
        arrivals: Sequence[Arrival],
        states: Sequence[LakeFile],
        *,
        only: Collection[int] | None = None,
        keep_open: bool = True,
        lost: bool = False,
    ) -> Written:
        root, tables = self.log.root, self.log.tables
        schemas, options = (
            {name: getattr(table, of) for name, table in tables.items()} for of in ("schema", "options")
        )
        folders = LakeFolders(root.files, root.path, number, DAY_OF, schemas, options)
        secrets = SecretFiles(self.key_logs, tuple(arrival.file.uri for arrival in arrivals))
        paths = tuple(f"{root.path}/states/{file.path}" for file in states)
        carried = StateFiles(root.files, paths, None if only is None else frozenset(only))
        writer = WriteBatch(folders, config(True), carried, keep_open, lost, secrets, self.carry_secrets)
        found = Written()
        for task in range(TASKS):
            if only is None:
                filed = writer(iter(self._runs(arrivals, task)))
            else:
                filed = EndConnections(writer, TASKS)(iter([pa.record_batch({"id": [task]})]))
            for row in (row for batch in filed for row in batch.to_pylist()):
                self._take(found, row)
        return found

    def flows(self, number: int, written: Written, open_messages: Sequence[LakeFile], cutoff_ns: int) -> Change | None:
        return None

    def _take(self, found: Written, row: dict[str, str]) -> None:
        if row["folder"] == ACCOUNT:
            found.accounts.append(json.loads(row["note"]))
        elif row["folder"] == UNREAD:
            found.unread.add(int(row["note"]))
        elif row["rows"]:
            name, _, folder = row["folder"].partition("/")
            partition = partition_of(folder) if self.log.tables[name].partitioned else (None, None)
            place = self.log.root.child(name)
            found.files[name].append(lake_file(place, f"{folder}/{row['file']}", int(row["rows"]), *partition))

    def _runs(self, arrivals: Sequence[Arrival], task: int) -> list[pa.RecordBatch]:
        """Runs of a task, as Spark hands them over."""
        if not arrivals:
            return []
        read = {arrival.file.name: arrival.read for arrival in arrivals if arrival.read}
        paths = [Path(locate(arrival.file.uri).path) for arrival in arrivals]
        runs = decoding.runs(paths, packetsRead=json.dumps(read))
        tasks = [0 if flow is None else sum(flow) % TASKS for flow in runs["flow"].to_pylist()]
        return in_run_order(runs.filter(pc.equal(pa.array(tasks, pa.int64()), task)), 64)


def rotated(capture: Path, directory: Path, number: int) -> Iterator[Path]:
    """The capture in so many files, one after the other."""
    header, packets = records(capture)
    directory.mkdir(exist_ok=True)
    for piece in range(number):
        first, end = (len(packets) * at // number for at in (piece, piece + 1))
        path = directory / f"{capture.stem}-{piece:04}.pcap"
        path.write_bytes(header + b"".join(packets[first:end]))
        yield path


def moved_in_time(capture: Path, to: Path, seconds: int) -> Path:
    """The capture with all packets so much later."""
    header, packets = records(capture)
    for place, record in enumerate(packets):
        stamp = int.from_bytes(record[:4], "little") + seconds
        packets[place] = stamp.to_bytes(4, "little") + record[4:]
    to.write_bytes(header + b"".join(packets))
    return to


def main(lake: str, captures: str) -> None:
    """Take all captures, one a batch."""
    with Ingest.into(lake, LocalWork, Options(settle_ns=0, batch_bytes=1)) as ingest:
        for _ in ingest.batches([captures]):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
