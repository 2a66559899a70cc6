"""A lake in an object store: logs by delta-rs, files by Arrow, a lease for a lock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest
from lake_support import TABLES, changes, commit, numbers
from object_store import Store, object_store

from pipeline.lake import house, journal
from pipeline.lake.layout import LakeError
from pipeline.lake.lock import locked
from pipeline.lake.log import Log
from pipeline.lake.place import existing, made

FRIDAY, MONDAY = date(2026, 11, 20), date(2026, 11, 23)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with object_store() as standing:
        yield standing


def test_batches_are_committed_finished_and_read(store: Store) -> None:
    uri = store.uri("lakes/one")
    log = Log(made(uri), uri)
    for name in log.tables:
        log.create(name)
    commit(log, 1, [1], [2], FRIDAY)
    under_way = changes(log, 2, [2], [3], MONDAY)

    def dying(name: str, *arguments: object, **named: object) -> None:
        if name == "messages":
            raise KeyboardInterrupt
        Log.commit(log, name, *arguments, **named)  # type: ignore[arg-type]

    log.commit = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        journal.commit(log, 2, under_way)
    reader = Log(existing(uri), uri)
    assert [numbers(reader, name, reader.batch("captures")) for name in TABLES] == [[1, 2]] * 2
    assert journal.finish(reader) == 2
    assert [numbers(reader, name) for name in TABLES] == [[1, 2, 3]] * 2
    assert house.compact(reader).removed == 0


def test_a_second_ingest_waits_for_its_lease(store: Store) -> None:
    root = made(store.uri("lakes/two"))
    with locked(root), pytest.raises(LakeError, match="another ingest works on this lake"), locked(root):
        pass
    with locked(root) as renew:
        renew()


def test_what_is_no_lake(store: Store) -> None:
    with pytest.raises(LakeError, match="is not a lake") as refused:
        existing(store.uri("nothing"))
    assert "object-store-secret" not in str(refused.value)
