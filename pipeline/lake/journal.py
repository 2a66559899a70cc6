"""The atomic commit of a batch to all tables of a lake.

The batch writes its files, which no Delta log names yet. Then it writes `_wirehare/commit.json`, atomically, with the
files to add to and remove from each table: from here on the batch counts. The tables are committed one by one,
`captures` last, and the journal is deleted. A run that finds a journal finishes it, skipping tables that have the batch
already: no batch is decoded twice, even if its captures are gone. The files of a batch without a journal are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from pipeline.lake.confinement import READABLE, content_of, damaged, delete_file, delete_folder, one_line, read_document
from pipeline.lake.layout import INTERNAL, LakeFile, lake_tables
from pipeline.lake.log import Log, checked
from pipeline.output.location import Location, sink

NAME = "commit.json"


@dataclass(frozen=True)
class Change:
    """Files that a batch adds to and removes from a table."""

    add: list[LakeFile] = field(default_factory=list)
    remove: list[LakeFile] = field(default_factory=list)


def commit(log: Log, batch: int, changes: Mapping[str, Change]) -> None:
    """Commit the batch. `changes` by table; the other tables get an empty commit."""
    tables = {name: asdict(changes.get(name, Change())) for name in log.tables}
    with sink(_journal(log.root), READABLE) as file:
        file.write(json.dumps({"batch": batch, "tables": tables}, default=date.isoformat).encode())
    finish(log)


def finish(log: Log) -> int | None:
    """Finish the batch that is being committed; returns its number, None if there is none. Raises LakeError."""
    found = read(log.root)
    if found is None:
        return None
    batch, changes = found
    last = max(map(log.batch, log.tables))
    if batch not in (last, last + 1):
        raise damaged(_journal(log.root), f"has batch {batch}, after batch {last} of the lake")
    for name in log.tables:
        log.create(name)
        change = changes.get(name, Change())
        log.commit(name, batch, log.readable(name, change.add), change.remove)
    _clean(log, batch, {f"{name}/{file.path}" for name, change in changes.items() for file in change.add})
    for name, change in changes.items():
        if log.tables[name].private:  # no concurrent readers, and they may have secrets
            there = {file.path for file in log.files(name)}
            _delete(log.root, name, [file for file in change.remove if file.path not in there])
    delete_file(log.root, f"{INTERNAL}/{NAME}")
    return batch


def read(root: Location) -> tuple[int, dict[str, Change]] | None:
    """The batch that is being committed and its changes; None if there is none. Raises LakeError."""
    location = _journal(root)
    try:
        document = read_document(root, NAME)
    except FileNotFoundError:
        return None
    with content_of(location):
        batch = document["batch"]
        if type(batch) is not int or not 0 < batch < 1 << 62:
            raise ValueError("expected the number of a batch")
        changes = {
            name: Change(*([_file(root.child(name), each) for each in change[what]] for what in ("add", "remove")))
            for name, change in document["tables"].items()
        }
    for name, change in changes.items():
        if name not in lake_tables():
            raise damaged(location, f"names {one_line(name[:100])}, which is not a table of a lake")
        for file in change.add:
            if not file.path.startswith(f"{batch:08}/"):
                raise damaged(location, f"adds {file.path}, which batch {batch} has not written")
    return batch, changes


def discard(log: Log, batch: int) -> None:
    """Delete the files of the batch after this one, which was interrupted before its commit."""
    _clean(log, batch + 1, ())


def _journal(root: Location) -> Location:
    return root.child(INTERNAL).child(NAME)


def _file(table: Location, document: Mapping[str, Any]) -> LakeFile:
    day = document["day"]
    return checked(table, LakeFile(**{**document, "day": date.fromisoformat(day) if day else None}))


def _delete(root: Location, name: str, files: Iterable[LakeFile]) -> None:
    for file in files:
        delete_file(root, f"{name}/{file.path}")


def _clean(log: Log, batch: int, written: Collection[str]) -> None:
    """Delete the files of a batch except `written` (paths within the lake)."""
    for name in log.tables:
        delete_folder(log.root, f"{name}/{batch:08}", written)
