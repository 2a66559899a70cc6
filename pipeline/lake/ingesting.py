"""Captures into a lake, batch after batch.

    with Ingest.into("lake", start, Options()) as ingest:
        for batch in ingest.batches(["captures"]): ...       # all that is new
        for batch in ingest.batches(["captures"]): ...       # what has come since

A batch that died is finished or begun anew before anything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.lake import journal
from pipeline.lake.arrivals import Arrival, Found, Taken, find, in_batches, taken_of
from pipeline.lake.batch import Batch, Work
from pipeline.lake.files import rows_of
from pipeline.lake.journal import Change
from pipeline.lake.layout import TAKEN
from pipeline.lake.lock import locked
from pipeline.lake.log import Log
from pipeline.lake.options import Options
from pipeline.lake.place import made
from pipeline.output.swap import PRIVATE
from pipeline.schemas import TABLES
from udfs.arrow.types import arrow_schema
from udfs.source.paths import resolve

VACUUM_EVERY = 32  # batches: until then, files that were replaced take up room


@dataclass
class Ingest:
    """An ingest that has the lake for itself; `work` begins what decodes when there is something to decode. `copies`
    and `unsettled`: what the last look found (`pipeline.lake.arrivals.Found`)."""

    log: Log
    work: Callable[[], Work]
    options: Options
    renew: Callable[[], None]
    clock: Callable[[], int] = time.time_ns
    copies: list[tuple[str, str]] = field(default_factory=list)
    unsettled: int = 0
    resumed: int | None = None

    @classmethod
    @contextmanager
    def into(cls, lake: str, work: Callable[[Log], Work], options: Options) -> Iterator[Ingest]:
        """An ingest into this lake, which is made if there is none. Raises LakeError."""
        root = made(lake)
        with locked(root) as renew:
            log = Log(root, lake)
            begun: list[Work] = []

            def begin() -> Work:
                if not begun:
                    begun.append(work(log))
                return begun[0]

            ingest = cls(log, begin, options, renew)
            ingest.resume()
            yield ingest

    def resume(self) -> None:
        """Finish the batch that was being committed, and delete what others have left."""
        self.resumed = journal.finish(self.log)
        for name in self.log.tables:
            self.log.create(name)
        for name, table in self.log.tables.items():
            if table.private and self.log.root.local:
                os.chmod(self.log.root.child(name).path, PRIVATE)
        journal.discard(self.log, self.log.batch("captures"))

    def batches(self, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Take what is new among the captures; a row of table batches for each batch, once it is in the lake. Raises
        PathError."""
        found = self._look(paths)
        self.copies, self.unsettled = found.copies, found.unsettled
        taken = {each.capture_file: each for each in found.taken}
        for arrivals in in_batches(found.arrivals, self.options.batch_bytes):
            yield self._take(arrivals, taken)

    def _look(self, paths: Sequence[str]) -> Found:
        known = taken_of(rows_of(self.log.root, "taken", self.log.files("taken")).to_pylist())
        return find(
            resolve(paths),
            known,
            now_ns=self.clock(),
            settle_ns=self.options.settle_ns,
            newest_ns=self._newest(),
            late_ns=self.options.late_ns,
            forget_ns=self.options.forget_ns,
        )

    def _newest(self) -> int | None:
        """The latest packet of the lake."""
        last = f"{self.log.batch('captures'):08}/"
        files = [file for file in self.log.files("batches") if file.path.startswith(last)]
        rows = rows_of(self.log.root, "batches", files, ["newest_ns"])
        return next(iter(rows["newest_ns"].to_pylist()), None) if rows.num_columns else None

    def _take(self, arrivals: Sequence[Arrival], taken: dict[str, Taken]) -> dict[str, Any]:
        """A batch of these captures."""
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
        known = batch.table("taken", map(vars, taken.values()), arrow_schema(TAKEN))
        changes["taken"] = Change([known], self.log.files("taken"))
        for table in TABLES:  # not what only an ingest reads
            self.log.root.child(table).child(f"{number:08}").publish()
        journal.commit(self.log, number, changes)
        for name, kind in self.log.tables.items():
            if number % VACUUM_EVERY == 0:
                self.log.vacuum(name, 0 if kind.private else 1)
        return summary
