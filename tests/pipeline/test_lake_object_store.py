"""A lake in an object store: logs by delta-rs, files by Arrow, a lease for a lock; captures there are listed, not asked
for one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path

import golden
import pytest
from lake_support import TABLES, changes, commit, numbers
from lake_work import rotated
from object_store import Store, object_store
from test_lake_batches import compared, decoded_at_once, ingest, rows_in

from pipeline.lake import journal
from pipeline.lake import lake_files as files
from pipeline.lake.arrivals import find
from pipeline.lake.layout import DamagedLakeError, LakeError, Options
from pipeline.lake.log import Log
from pipeline.lake.opening import locked, open_lake, open_or_create_lake
from udfs.source.paths import resolve

FRIDAY, MONDAY = date(2026, 11, 20), date(2026, 11, 23)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with object_store() as server:
        yield server


def test_batches_are_committed_finished_and_read(store: Store) -> None:
    uri = store.uri("lakes/one")
    log = Log(open_or_create_lake(uri), uri)
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
    reader = Log(open_lake(uri), uri)
    assert [numbers(reader, name, reader.batch("captures")) for name in TABLES] == [[1, 2]] * 2
    assert journal.finish(reader) == 2
    assert [numbers(reader, name) for name in TABLES] == [[1, 2, 3]] * 2
    assert files.compact(reader).removed == 0


@pytest.fixture(scope="module")
def planted(store: Store) -> str:
    """A lake with a batch, for commits that are refused: its URI."""
    uri = store.uri("lakes/planted")
    log = Log(open_or_create_lake(uri), uri)
    for name in log.tables:
        log.create(name)
    commit(log, 1, [1], [2], FRIDAY)
    return uri


@pytest.mark.parametrize(
    "path", ["../../victims/thesis.parquet", "/victims/thesis.parquet", "s3://victims/thesis.parquet"]
)
def test_names_in_its_files_are_confined_to_it(store: Store, planted: str, path: str) -> None:
    root = open_lake(planted)
    gone = {"path": path, "size": 1, "rows": 1, "open": None, "day": None}
    document = {"batch": 2, "tables": {"states": {"add": [], "remove": [gone]}}}
    with root.files.open_output_stream(f"{root.path}/_wirehare/commit.json") as file:
        file.write(json.dumps(document).encode())
    asked = len(store.requests)
    with pytest.raises(DamagedLakeError, match="which is not the path of a file of this table"):
        journal.finish(Log(root, planted))
    assert not [request for request in store.requests[asked:] if "thesis" in str(request) or "DELETE" in str(request)]


@pytest.mark.parametrize(
    "content", [b"[]", b"7", b'{"who": 1}', b'{"who": "a", "at": "soon"}', b"\xff", b"[" * 100_000]
)
def test_a_lease_that_is_none_does_not_hold(store: Store, content: bytes) -> None:
    root = open_or_create_lake(store.uri("lakes/leased"))
    with root.files.open_output_stream(f"{root.path}/_wirehare/lock") as file:
        file.write(content)
    with locked(root):
        pass


def test_a_second_ingest_waits_for_its_lease(store: Store) -> None:
    root = open_or_create_lake(store.uri("lakes/two"))
    with locked(root), pytest.raises(LakeError, match="is running on this lake"), locked(root):
        pass
    with locked(root) as renew:
        renew()


def test_an_ingest_fills_it_with_the_rows_of_one_decode(store: Store, tmp_path: Path) -> None:
    uri = store.uri("lakes/three")
    pieces = list(rotated(golden.captures()["091_tx.pcap"].paths[0], tmp_path / "captures", 2))
    for end in (1, 2):
        (batch,) = ingest(uri, pieces[:end])
        assert (batch["batch"], batch["files"]) == (end, 1)
    compared(rows_in(Log(open_lake(uri), uri)), decoded_at_once(pieces))


def test_checking_for_new_captures_is_one_listing(store: Store, tmp_path: Path) -> None:
    pieces = list(rotated(golden.captures()["091_tx.pcap"].paths[0], tmp_path / "captures", 20))
    store.put(*pieces, folder="many")
    files = resolve([store.uri("many")])
    assert len(files) == len(pieces)
    look = partial(find, options=Options(settle=0), now_ns=0, newest_ns=None)
    known = [arrival.taken_row(1, 0, 0) for arrival in look(files, []).arrivals]
    asked = len(store.requests)
    found = look(resolve([store.uri("many")]), known)
    assert (found.arrivals, len(found.known)) == ([], len(pieces))
    assert len(store.requests) - asked < len(pieces) // 2


def test_directories_that_are_not_a_lake(store: Store) -> None:
    with pytest.raises(LakeError, match="is not a lake") as refused:
        open_lake(store.uri("nothing"))
    assert "object-store-secret" not in str(refused.value)
