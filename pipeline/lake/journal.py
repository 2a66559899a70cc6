"""The atomic commit of a batch to all tables of a lake.

The batch writes its files, which no Delta log names yet. Then it writes `_wirehare/commit.json`, atomically, with the
files to add to and remove from each table: from here on the batch counts. The tables are committed one by one,
`captures` last, and the journal is deleted. A run that finds a journal finishes it, skipping tables that have the batch
already: no batch is decoded twice, even if its captures are gone. The files of a batch without a journal are deleted.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

import pyarrow.fs

from pipeline.lake.layout import INTERNAL, LakeError, LakeFile
from pipeline.lake.log import Log
from pipeline.output.place import Place, sink

NAME = "commit.json"


@dataclass(frozen=True)
class Change:
    """Files that a batch adds to and removes from a table."""

    add: list[LakeFile] = field(default_factory=list)
    remove: list[LakeFile] = field(default_factory=list)


def commit(log: Log, batch: int, changes: Mapping[str, Change]) -> None:
    """Commit the batch. `changes` by table; the other tables get an empty commit."""
    tables = {name: asdict(changes.get(name, Change())) for name in log.tables}
    with sink(_journal(log.root)) as file:
        file.write(json.dumps({"batch": batch, "tables": tables}, default=date.isoformat).encode())
    finish(log)


def finish(log: Log) -> int | None:
    """Finish the batch that is being committed; returns its number, None if there is none."""
    found = read(log.root)
    if found is None:
        return None
    batch, changes = found
    for name in log.tables:
        log.create(name)
        change = changes.get(name, Change())
        log.commit(name, batch, change.add, change.remove)
    _clean(log, batch, {f"{name}/{file.path}" for name, change in changes.items() for file in change.add})
    for name, change in changes.items():
        if log.tables[name].private:  # no concurrent readers, and they may have secrets
            _delete(log.root, name, change.remove)
    log.root.files.delete_file(_journal(log.root).path)
    return batch


def read(root: Place) -> tuple[int, dict[str, Change]] | None:
    """The batch that is being committed and its changes; None if there is none. Raises LakeError."""
    place = _journal(root)
    try:
        with root.files.open_input_stream(place.path) as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LakeError(f"{place.display_name}: is damaged ({error}); expected what a batch was to commit") from error
    return document["batch"], {
        name: Change(*([_file(each) for each in change[what]] for what in ("add", "remove")))
        for name, change in document["tables"].items()
    }


def discard(log: Log, batch: int) -> None:
    """Delete the files of the batch after this one, which was interrupted before its commit."""
    _clean(log, batch + 1, set())


def _journal(root: Place) -> Place:
    return root.child(INTERNAL).child(NAME)


def _file(document: Mapping[str, Any]) -> LakeFile:
    day = document["day"]
    return LakeFile(**{**document, "day": date.fromisoformat(day) if day else None})


def _delete(root: Place, name: str, files: Iterable[LakeFile]) -> None:
    for file in files:
        with suppress(FileNotFoundError):
            root.files.delete_file(f"{root.path}/{name}/{file.path}")


def _clean(log: Log, batch: int, written: set[str]) -> None:
    """Delete the files of a batch except `written` (paths within the lake)."""
    for name in log.tables:
        place = log.root.child(name).child(f"{batch:08}")
        if place.entries() is None:
            continue
        found = log.root.files.get_file_info(pyarrow.fs.FileSelector(place.path, recursive=True))
        files = {info.path for info in found if info.type == pyarrow.fs.FileType.File}
        gone = {path for path in files if posixpath.relpath(path, log.root.path) not in written}
        if gone == files:
            place.remove()
        else:
            for path in gone:
                log.root.files.delete_file(path)
