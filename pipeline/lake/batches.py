"""The loop of an ingest: captures into a lake, batch by batch.

    with Ingest.into("lake", start, Options()) as ingest:
        for batch in ingest.batches(["captures"]): ...       # all that is new
        for batch in ingest.batches(["captures"]): ...       # what has come since

A batch that was interrupted is finished or discarded first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.lake import journal
from pipeline.lake.arrivals import Arrival, Listing, Taken, find, split_into_batches, taken_from_rows
from pipeline.lake.batch import Batch
from pipeline.lake.files import read_rows
from pipeline.lake.journal import Change
from pipeline.lake.layout import TAKEN, Options
from pipeline.lake.log import Log
from pipeline.lake.place import locked, open_or_create_lake
from pipeline.output.place import PRIVATE
from pipeline.schemas import TABLES
from udfs.arrow.types import arrow_schema
from udfs.source.paths import resolve

if TYPE_CHECKING:
    from pipeline.lake.work import LakeWork

VACUUM_EVERY = 32  # batches


@dataclass
class Ingest:
    """An ingest that has locked the lake; `work` is called when there is something to decode. `copies`, `unsettled`: of
    the last listing (`pipeline.lake.arrivals.Listing`). `resumed`: number of the batch that was finished at the
    start."""

    log: Log
    work: Callable[[], LakeWork]
    options: Options
    renew: Callable[[], None]
    clock: Callable[[], int] = time.time_ns
    copies: list[tuple[str, str]] = field(default_factory=list)
    unsettled: int = 0
    resumed: int | None = None

    @classmethod
    @contextmanager
    def into(cls, lake: str, work: Callable[[Log], LakeWork], options: Options) -> Iterator[Ingest]:
        """An ingest into this lake, which is created if there is none. Raises LakeError."""
        root = open_or_create_lake(lake)
        with locked(root) as renew:
            log = Log(root, lake)
            ingest = cls(log, cache(lambda: work(log)), options, renew)
            ingest.resume()
            yield ingest

    def resume(self) -> None:
        """Finish the batch that was being committed, and delete the files of one that was not."""
        self.resumed = journal.finish(self.log)
        for name in self.log.tables:
            self.log.create(name)
        for name, table in self.log.tables.items():
            if table.private and self.log.root.local:
                os.chmod(self.log.root.child(name).path, PRIVATE)
        journal.discard(self.log, self.log.batch("captures"))

    def batches(self, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Ingest new captures; yields the row of table batches of each batch once it is committed. Raises PathError."""
        found = self._list(paths)
        self.copies, self.unsettled = found.copies, found.unsettled
        taken = {each.capture_file: each for each in found.taken}
        for arrivals in split_into_batches(found.arrivals, self.options.batch_bytes):
            yield self._take(arrivals, taken)

    def _list(self, paths: Sequence[str]) -> Listing:
        known = taken_from_rows(read_rows(self.log.root, "taken", self.log.files("taken")).to_pylist())
        return find(resolve(paths), known, self.options, self.clock(), self._newest())

    def _newest(self) -> int | None:
        """Time of the latest packet of the lake, ns."""
        last = f"{self.log.batch('captures'):08}/"
        files = [file for file in self.log.files("batches") if file.path.startswith(last)]
        rows = read_rows(self.log.root, "batches", files, ["newest_ns"])
        return next(iter(rows["newest_ns"].to_pylist()), None)

    def _take(self, arrivals: Sequence[Arrival], taken: dict[str, Taken]) -> dict[str, Any]:
        """Ingest a batch of these captures; returns its row of table batches."""
        self.renew()
        number = self.log.batch("captures") + 1
        batch = Batch(self.log, self.work(), number, self.options, self._newest())
        try:
            changes, summary, packets = batch.take(arrivals)
        except BaseException:
            journal.discard(self.log, number - 1)
            raise
        for arrival in arrivals:
            name = arrival.file.name
            taken[name] = arrival.taken(number, packets.get(name, 0), self.clock())
        listing = batch.table("taken", map(vars, taken.values()), arrow_schema(TAKEN))
        changes["taken"] = Change([listing], self.log.files("taken"))
        for table in TABLES:  # the internal tables stay private
            self.log.root.child(table).child(f"{number:08}").publish()
        journal.commit(self.log, number, changes)
        for name, kind in self.log.tables.items():
            if number % VACUUM_EVERY == 0:
                self.log.vacuum(name, 0 if kind.private else 1)
        return summary
