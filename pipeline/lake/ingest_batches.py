"""An ingest: captures into a lake, batch by batch.

    with Ingest.into("lake", start, Options()) as ingest:
        for batch in ingest.batches(["captures"]): ...       # all that is new
        for batch in ingest.batches(["captures"]): ...       # what has come since

A batch that was interrupted is finished or discarded first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from codec.tables import TABLES
from pipeline.lake import journal
from pipeline.lake.arrivals import Arrival, KnownCapture, Listing, find, known_from_rows, split_into_batches
from pipeline.lake.confinement import (
    OTHERS_WRITE,
    check_internal,
    check_owners,
    content_of,
    create_directory,
    make_private,
)
from pipeline.lake.journal import Change
from pipeline.lake.lake_files import read_rows, rows_of, states_in_flow_order, write_file
from pipeline.lake.lake_tables import day_of
from pipeline.lake.layout import BATCHES, KNOWN_CAPTURES, NS, LakeFile, Options
from pipeline.lake.log import Log
from pipeline.lake.opening import locked, open_or_create_lake
from pipeline.output.location import PRIVATE
from udfs.arrow.types import arrow_schema
from udfs.source.captures import capture_rows, captures_of
from udfs.source.paths import resolve

if TYPE_CHECKING:
    from pipeline.lake.work import LakeWork, Written

VACUUM_EVERY = 32  # batches
# Tables whose rows belong to one connection.
OF_CONNECTIONS = tuple(name for name in TABLES if name not in ("captures", "message_flows"))
OF_STATES = ("last_ns", "connection_id", "over", "size", "secrets")  # columns that tell which ones end
MOST_FILES = 16  # with open rows, or states; if more, they are compacted into one
# A capture that ends this much later than now has a wrong clock: others are not late because of it.
AHEAD_NS = 24 * 3600 * NS
LINGER_NS = 120 * NS  # late copies of packets may still arrive for so long: 2 MSL (RFC 9293)


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
            if table.private:
                make_private(self.log.root, name)
        journal.discard(self.log, self.log.batch("captures"))

    def batches(self, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Ingest new captures; yields the row of table batches of each batch once it is committed. Raises PathError."""
        found = self._list(paths)
        self.copies, self.unsettled = found.copies, found.unsettled
        known_captures = {each.capture_file: each for each in found.known}
        for arrivals in split_into_batches(found.arrivals, self.options.batch_bytes):
            yield self._take(arrivals, known_captures)

    def _list(self, paths: Sequence[str]) -> Listing:
        rows = read_rows(self.log.root, "taken", self.log.files("taken")).to_pylist()
        with content_of(self.log.root.child("taken")):
            known = known_from_rows(rows)
        return find(resolve(paths), known, self.options, self.clock(), self._newest())

    def _newest(self) -> int | None:
        """Time of the latest packet of the lake, ns."""
        last = f"{self.log.batch('captures'):08}/"
        files = [file for file in self.log.files("batches") if file.path.startswith(last)]
        rows = read_rows(self.log.root, "batches", files, ["newest_ns"])
        return next(iter(rows["newest_ns"].to_pylist()), None)

    def _take(self, arrivals: Sequence[Arrival], known_captures: dict[str, KnownCapture]) -> dict[str, Any]:
        """Ingest a batch of these captures; returns its row of table batches."""
        self.renew()
        check_internal(self.log.root)
        check_owners(self.log.root, self.log.tables)
        number = self.log.batch("captures") + 1
        batch = Batch(self.log, self.work(), number, self.options, self._newest())
        try:
            for name in self.log.tables:  # private until they are committed
                create_directory(self.log.root, f"{name}/{number:08}", PRIVATE)
            changes, summary, packets = batch.take(arrivals)
        except BaseException:
            journal.discard(self.log, number - 1)
            raise
        for arrival in arrivals:
            name = arrival.file.name
            known_captures[name] = arrival.taken_row(number, packets.get(name, 0), self.clock())
        listing = batch.table("taken", map(vars, known_captures.values()), arrow_schema(KNOWN_CAPTURES))
        changes["taken"] = Change([listing], self.log.files("taken"))
        for table in TABLES:  # the internal tables stay private
            self.log.root.child(table).child(f"{number:08}").publish(OTHERS_WRITE)
        journal.commit(self.log, number, changes)
        for name, kind in self.log.tables.items():
            if number % VACUUM_EVERY == 0:
                self.log.vacuum(name, 0 if kind.private else 1)
        return summary


@dataclass
class Batch:
    """Captures and the states of open connections in, files for the lake out. `newest_ns`: time of the latest packet of
    the lake so far.

    It reads from the lake only what may still change (states, open rows, messages that may still be paired), so its
    cost does not depend on the size of the lake. Rows of connections without a packet in the batch are only copied.
    """

    log: Log
    work: LakeWork
    number: int
    options: Options
    newest_ns: int | None

    def take(self, arrivals: Sequence[Arrival]) -> tuple[dict[str, Change], dict[str, Any], dict[str, int]]:
        """(changes of the tables, row of table batches, packets by capture) of a batch of these captures."""
        started_ns, started = time.time_ns(), time.monotonic()
        states = self.log.files("states")
        known = read_rows(self.log.root, "states", states, OF_STATES)  # before workers open the files
        in_order = [arrival for arrival in arrivals if not arrival.late]
        late = [arrival for arrival in arrivals if arrival.late]
        if in_order:
            written = self.work.decode(self.number, in_order, states)
            if late:
                written.add(self.work.decode(self.number, late, [], keep_open=False))
        else:  # late ones may be all that came
            written = self.work.decode(self.number, late, [], keep_open=False)
        captures = captures_of(written.accounts)
        ahead = self._update_newest(captures, started_ns + AHEAD_NS)
        touched = self._touched(written) | written.unread
        ended, lost = self._to_close(known, touched)
        for which, is_lost in ((ended, False), (lost, True)):
            if which:
                written.add(self.work.decode(self.number, [], states, only=which, keep_open=False, lost=is_lost))
        gone = touched | ended | lost
        changes = {name: self._connection_table(name, written, gone) for name in OF_CONNECTIONS}
        changes["states"], open_connections, state_bytes = self._states(states, written, gone)
        cutoff_ns = (self.newest_ns or 0) - int(self.options.pair_within * NS)
        files = {name: self._after(changes[name], name) for name in ("messages", "links", "stalls")}
        if (flows := self.work.flows(self.number, written, files, cutoff_ns)) is not None:
            changes["message_flows"] = flows
            for name in ("pairing", "brokers"):
                changes[name] = Change(written.files[name], self.log.files(name))
        changes["captures"] = self._captures(captures, arrivals)
        summary = {
            "batch": self.number,
            "started_ts": started_ns // 1000,
            "seconds": round(time.monotonic() - started),
            "files": len(arrivals),
            "late_files": len(late),
            "ahead_files": ahead,
            "damaged_files": sum(row["error"] is not None for row in captures),
            "bytes": sum(max(0, arrival.file.size) for arrival in arrivals),
            "packets": sum(row["packets"] for row in captures) - sum(arrival.read for arrival in arrivals),
            "frames": _rows(written, "frames"),
            "messages": _rows(written, "messages"),
            "newest_ts": None if self.newest_ns is None else self.newest_ns // 1000,
            "newest_ns": self.newest_ns,
            "lag_ns": None if self.newest_ns is None else started_ns - self.newest_ns,
            "open_connections": open_connections,
            "forgotten_connections": len(lost),
            "unread_states": len(written.unread),
            "state_bytes": state_bytes,
        }
        changes["batches"] = Change([self.table("batches", [summary], arrow_schema(BATCHES))])
        return changes, summary, {row["capture_file"]: row["packets"] for row in captures}

    def table(self, name: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> LakeFile:
        """A new file with these rows, at least one, of a table that is not partitioned."""
        whole = pa.Table.from_pylist(list(rows), schema=schema)
        (file,) = self._write(name, whole.to_batches())
        return file

    def _write(
        self, name: str, rows: Iterable[pa.RecordBatch], *, open_rows: bool = False, day: date | None = None
    ) -> list[LakeFile]:
        return write_file(self.log.root, self.log.tables[name], self.number, rows, open_rows=open_rows, day=day)

    def _update_newest(self, captures: Iterable[dict[str, Any]], most_ns: int) -> int:
        """Update `newest_ns`, without packets from `most_ns` on; returns how many captures have such ones."""
        times = [row["last_ts_ns"] for row in captures if row["last_ts_ns"] is not None]
        known = [time_ns for time_ns in times if time_ns < most_ns]
        self.newest_ns = max((*known, *([] if self.newest_ns is None else [self.newest_ns])), default=None)
        return len(times) - len(known)

    def _touched(self, written: Written) -> set[int]:
        """Connections with rows in this batch."""
        found = read_rows(self.log.root, "connections", written.files["connections"], ["connection_id"])
        return set(found["connection_id"].to_pylist())

    def _to_close(self, rows: pa.Table, touched: set[int]) -> tuple[set[int], set[int]]:
        """(ended, lost) of the connections without a packet in this batch; `rows`: of table states, the columns
        OF_STATES. Ended: TCP closed them LINGER_NS ago, or their secrets may no longer be carried. Expired: too
        old, or beyond `state_bytes` of all states."""
        if self.newest_ns is None:
            return set(), set()
        known = zip(*(rows[name].to_pylist() for name in OF_STATES), strict=True)
        ended, lost, size = set[int](), set[int](), 0
        # The most recent first.
        for last_ns, connection, over, data, secrets in sorted(known, key=lambda state: state[:2], reverse=True):
            size += data or 0  # null in states of older releases
            if connection in touched:
                continue
            if (over and last_ns < self.newest_ns - LINGER_NS) or (secrets and not self.options.carry_secrets):
                ended.add(connection)
            elif last_ns < self.newest_ns - self.options.forget_after * NS or size > self.options.state_bytes:
                lost.add(connection)
        return ended, lost

    def _connection_table(self, name: str, written: Written, gone: set[int]) -> Change:
        """Change of a table: the written files, and open rows copied for connections without a packet. Open rows of
        connections whose state cannot be read become final."""
        files = [file for file in self.log.files(name) if file.open]
        change = self._replaced(name, files, gone)
        if written.unread and self.newest_ns is not None:
            unread, day = pa.array(sorted(written.unread), pa.int64()), day_of(self.newest_ns)
            rows = rows_of(self.log.root, name, change.remove, lambda rows: pc.is_in(rows["connection_id"], unread))
            change.add.extend(self._write(name, rows, day=day))
        change.add.extend(written.files[name])
        return change

    def _states(self, states: Sequence[LakeFile], written: Written, gone: set[int]) -> tuple[Change, int, int]:
        """(change, connections that TCP has not ended, bytes) of table states."""
        touched = self._with_connections("states", states, gone)
        others = states_in_flow_order(self.log.root, touched, pa.array(sorted(gone), pa.int64()))
        change = Change([*self._write("states", others), *written.files["states"]], touched)
        after = self._after(change, "states")
        over = read_rows(self.log.root, "states", after, ["over"])["over"].to_pylist()
        return change, len(over) - sum(map(bool, over)), sum(file.size for file in after)

    def _with_connections(self, name: str, files: Sequence[LakeFile], gone: set[int]) -> list[LakeFile]:
        """The files that have rows of connections `gone`; all if there are more than MOST_FILES."""
        if len(files) > MOST_FILES:
            return list(files)
        known = {file.path: read_rows(self.log.root, name, [file], ["connection_id"]) for file in files}
        return [file for file in files if not gone.isdisjoint(known[file.path]["connection_id"].to_pylist())]

    def _replaced(self, name: str, files: Sequence[LakeFile], gone: set[int]) -> Change:
        """Replace those of `files` that have rows of the connections `gone` by one file with their other rows."""
        touched = self._with_connections(name, files, gone)
        others = partial(_others, "connection_id", pa.array(sorted(gone), pa.int64()))
        return Change(self._write(name, rows_of(self.log.root, name, touched, others), open_rows=True), touched)

    def _after(self, change: Change, name: str) -> list[LakeFile]:
        """The files of a table once the batch is committed."""
        removed = {file.path for file in change.remove}
        return [*(file for file in self.log.files(name) if file.path not in removed), *change.add]

    def _captures(self, captures: Sequence[dict[str, Any]], arrivals: Sequence[Arrival]) -> Change:
        """Rows of table captures; one that grew has a row already, which is replaced."""
        known = {arrival.file.name: arrival for arrival in arrivals}
        rows = capture_rows(captures, TABLES["captures"])
        rows = rows.append_column("batch", pa.array([self.number] * len(captures), pa.int64()))
        rows = rows.append_column("late", pa.array([known[row["capture_file"]].late for row in captures], pa.bool_()))
        change, days = Change(), rows["last_ts"].cast(pa.date32())
        for day in pc.unique(days).to_pylist():
            of_day = rows.filter(pc.equal(days, day) if day else pc.is_null(days)).to_batches()
            change.add.extend(self._write("captures", of_day, day=day))
        again = {(arrival.again.batch, arrival.file.name) for arrival in arrivals if arrival.again}
        for file in self.log.files("captures") if again else ():
            names = pa.array([name for batch, name in again if file.path.startswith(f"{batch:08}/")], pa.string())
            if len(names):
                others = rows_of(self.log.root, "captures", [file], partial(_others, "capture_file", names))
                change.add.extend(self._write("captures", others, day=file.day))
                change.remove.append(file)
        return change


def _others(column: str, values: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    return pc.invert(pc.is_in(rows[column], values))


def _rows(written: Written, name: str) -> int:
    return sum(file.rows for file in written.files[name] if not file.open)
