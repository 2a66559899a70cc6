"""A batch is in a lake as a whole or not at all, wherever it is interrupted; compaction and expiry change no row that
stays."""

from __future__ import annotations

import json
import threading
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from lake_support import TABLES, changes, commit, new_lake, numbers, opened, stored

from codec.tables import LONG, STRING, VARIANT, Column, table_of, with_columns
from pipeline.lake import journal
from pipeline.lake import lake_files as files
from pipeline.lake.lake_files import write_file
from pipeline.lake.layout import LAYOUT, LakeError, LakeTable, lake_tables
from pipeline.lake.log import Log, storage_options
from pipeline.lake.opening import locked, open_lake, open_or_create_lake

OLD = date(2026, 1, 2)
FRIDAY, SATURDAY, MONDAY = date(2026, 11, 20), date(2026, 11, 21), date(2026, 11, 23)


class Killed(BaseException):
    """The process ends here."""


def test_final_rows_are_added_and_open_rows_replaced(tmp_path: Path) -> None:
    log = new_lake(tmp_path / "lake")
    commit(log, 1, [1, 2], [3], FRIDAY)
    commit(log, 2, [3, 4], [5, 6], SATURDAY)
    assert numbers(log, "frames") == [1, 2, 3, 4, 5, 6]
    assert numbers(log, "frames", batch=1) == [1, 2, 3]
    assert log.batch("captures") == 2


@pytest.mark.parametrize("survived", range(len(lake_tables())))
def test_a_batch_that_was_killed_between_two_commits_is_finished_by_the_next_run(tmp_path: Path, survived: int) -> None:
    path = tmp_path / "lake"
    commit(new_lake(path), 1, [1], [2], FRIDAY)
    log = opened(path)
    remaining = survived

    def dying(name: str, *arguments: object, **named: object) -> None:
        nonlocal remaining
        if not remaining:
            raise Killed
        remaining -= 1
        Log.commit(log, name, *arguments, **named)  # type: ignore[arg-type]

    log.commit = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        journal.commit(log, 2, changes(log, 2, [2], [3], SATURDAY))
    reader = opened(path)
    before = reader.batch("captures")
    assert before == 1, "captures are committed last"
    assert [numbers(reader, name, batch=before) for name in TABLES] == [[1, 2]] * 2
    found = opened(path)
    assert journal.finish(found) == 2
    assert [numbers(found, name) for name in TABLES] == [[1, 2, 3]] * 2
    assert {name: found.batch(name) for name in found.tables} == dict.fromkeys(found.tables, 2)
    assert journal.finish(found) is None


def test_uncommitted_files_of_a_killed_run_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    commit(new_lake(path), 1, [1], [2], FRIDAY)
    log = opened(path)
    there = stored(path, "frames")
    changes(log, 2, [2], [3], SATURDAY)
    assert stored(path, "frames") > there
    journal.discard(log, 1)
    assert stored(path, "frames") == there
    assert numbers(log, "frames") == [1, 2]


def test_files_of_tasks_that_were_tried_again_are_deleted_with_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    log = new_lake(path)
    twice = [changes(log, 1, [1], [2], FRIDAY) for _ in range(2)]
    journal.commit(log, 1, twice[1])
    assert stored(path, "frames") == {file.path for file in log.files("frames")}


def test_rows_are_not_replaced_twice(tmp_path: Path) -> None:
    log = new_lake(tmp_path / "lake")
    commit(log, 1, [1], [2], FRIDAY)
    gone = [file for file in log.files("frames") if file.open]
    log.commit("frames", None, [], gone)
    with pytest.raises(LakeError, match="replaced by another process"):
        log.commit("frames", None, [], gone)


def test_a_second_ingest_ends_with_one_line(tmp_path: Path) -> None:
    root = open_or_create_lake(str(tmp_path / "lake"))
    with locked(root), pytest.raises(LakeError, match="is running on this lake"), locked(root):
        pass
    with locked(root):
        pass


def test_a_directory_with_other_files_does_not_become_a_lake(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(LakeError, match=r"is not a lake, but holds holiday\.jpg"):
        open_or_create_lake(str(tmp_path))
    with pytest.raises(LakeError, match="is not a lake"):
        open_lake(str(tmp_path))


def test_a_lake_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    open_or_create_lake(str(tmp_path / "lake"))
    (tmp_path / "lake/_wirehare/lake.json").write_text(json.dumps({"layout": LAYOUT + 1}))
    for function in (open_lake, open_or_create_lake):
        with pytest.raises(LakeError, match=f"layout {LAYOUT + 1}, this release reads up to {LAYOUT}"):
            function(str(tmp_path / "lake"))


def test_a_reader_in_a_loop_sees_whole_batches_and_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch n makes row n final and opens row n + 1, in both tables; files are joined meanwhile, and row 1, of an old
    day, is dropped."""
    few = {name: table for name, table in lake_tables().items() if name in (*TABLES, "captures")}
    monkeypatch.setattr("pipeline.lake.log.lake_tables", lambda: few)  # each table is a commit
    monkeypatch.setattr("pipeline.lake.lake_files.TABLES", list(few))
    path, batches = tmp_path / "lake", 30
    commit(new_lake(path), 1, [1], [2], OLD)
    over = threading.Event()

    def write() -> None:
        log = opened(path)
        try:
            for batch in range(2, batches + 1):
                commit(log, batch, [batch], [batch + 1], FRIDAY)
                if batch == 10:
                    captured_on(log, batch, MONDAY)
                if batch % 10 == 0:
                    files.compact(opened(path))
                if batch == 15:
                    files.expire(opened(path), 30)
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen, begins = [1], dict.fromkeys(TABLES, 1)
    while not over.is_set():
        reader = opened(path)
        batch = reader.batch("captures")
        for name in TABLES:
            found = numbers(reader, name, batch)
            assert found[0] in range(begins[name], 3), "what is gone does not come again"
            begins[name] = found[0]
            assert found == list(range(found[0], batch + 2))
        seen.append(batch)
    writer.join()
    assert seen == sorted(seen)
    assert [numbers(opened(path), name)[0] for name in TABLES] == [2, 2]
    assert opened(path).batch("captures") == batches
    assert len(set(seen)) > 3


def test_small_files_of_days_that_are_over_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    log = new_lake(path)
    for batch, day in enumerate([FRIDAY, FRIDAY, FRIDAY, SATURDAY, MONDAY, MONDAY], 1):
        commit(log, batch, [batch], [100 + batch], day)
        captured_on(log, batch, day)
    before = {name: numbers(log, name) for name in TABLES}
    files.compact(opened(path))
    assert {name: numbers(log, name) for name in TABLES} == before
    found = sorted(file.day for file in log.files("frames") if file.day)
    assert found == [FRIDAY, SATURDAY, MONDAY, MONDAY]
    assert log.batch("frames") == 6
    commit(log, 7, [106, 7], [107], MONDAY)
    assert numbers(log, "frames") == [1, 2, 3, 4, 5, 6, 7, 106, 107]


def test_a_commit_that_began_before_a_compaction_ends_after_it(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    log = new_lake(path)
    for batch, day in enumerate([FRIDAY, FRIDAY, MONDAY], 1):
        commit(log, batch, [batch], [100], day)
        captured_on(log, batch, day)
    under_way = changes(log, 4, [4], [100], MONDAY)
    files.compact(opened(path))
    journal.commit(log, 4, under_way)
    assert numbers(log, "frames") == [1, 2, 3, 4, 100]


def test_old_days_are_dropped_and_open_rows_stay(tmp_path: Path) -> None:
    log = new_lake(tmp_path / "lake")
    for batch, day in enumerate([FRIDAY, SATURDAY, MONDAY], 1):
        commit(log, batch, [batch], [100], day)
        captured_on(log, batch, day)
    files.expire(log, 2)
    assert numbers(log, "frames") == [2, 3, 100]


def test_a_column_that_an_older_release_did_not_have_is_added_and_its_rows_are_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = table_of("rows", ("connection_id", LONG), ("arguments", VARIANT))
    today = lake_tables()
    monkeypatch.setattr(
        "pipeline.lake.log.lake_tables", lambda: today | {name: LakeTable(name, first) for name in TABLES}
    )
    path = tmp_path / "lake"
    commit(new_lake(path), 1, [1], [2], FRIDAY)
    later = with_columns(first, Column("weather", STRING))
    monkeypatch.setattr(
        "pipeline.lake.log.lake_tables", lambda: today | {name: LakeTable(name, later) for name in TABLES}
    )
    log = opened(path)
    commit(log, 2, [2], [3], SATURDAY)
    rows = deltalake.DeltaTable(path / "frames").to_pyarrow_dataset().to_table(columns=["connection_id", "weather"])
    assert sorted(rows.to_pylist(), key=lambda row: row["connection_id"]) == [
        {"connection_id": number, "weather": None} for number in (1, 2, 3)
    ]


def test_other_readers_of_delta_tables_see_the_same_rows(tmp_path: Path) -> None:
    log = new_lake(tmp_path / "lake")
    commit(log, 1, [1], [2, 3], FRIDAY)
    commit(log, 2, [2], [3, 4], SATURDAY)
    rows = deltalake.DeltaTable(tmp_path / "lake/frames").to_pyarrow_dataset()
    found = rows.to_table(columns=["connection_id", "open", "day"]).to_pylist()
    assert sorted((row["connection_id"], row["open"], row["day"]) for row in found if row["day"]) == [
        (1, False, FRIDAY),
        (2, False, SATURDAY),
    ]
    assert sorted(row["connection_id"] for row in found if row["open"]) == [3, 4]


def test_credentials_of_a_uri_become_options_of_delta() -> None:
    uri = "s3://AKIDEXAMPLE:se%2Fcret@amqp/lake?scheme=http&endpoint_override=127.0.0.1%3A5000&region=us-east-1"
    assert storage_options(uri) == {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "se/cret", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:5000", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def captured_on(log: Log, batch: int, day: date) -> None:
    """A row in captures, which tell which days there are."""
    row = pa.RecordBatch.from_arrays([pa.array([batch], pa.int64())], names=["batch"])
    (file,) = write_file(log.root, log.tables["captures"], f"by-hand-{batch}", [row], day=day)
    log.commit("captures", None, [file], [])


def test_a_log_stays_short(tmp_path: Path) -> None:
    """Each commit looks at all files of a log."""
    log = new_lake(tmp_path / "lake")
    commit(log, 1, [1], [2], FRIDAY)
    for batch in range(2, 150):
        log.commit("frames", batch, [], [])
    there = tmp_path / "lake" / "frames" / "_delta_log"
    log.vacuum("frames", 1)
    assert (there / f"{1:020}.json").exists(), "somebody may still read it"
    log.vacuum("frames", 0)
    assert len(list(there.glob("*.json"))) <= 64 + 20
    reader = opened(tmp_path / "lake")
    assert [reader.as_of("frames", batch).transaction_version("wirehare") for batch in (90, 148, 149)] == [90, 148, 149]
    assert numbers(reader, "frames", 90) == numbers(reader, "frames") == [1, 2]
    commit(log, 150, [3], [4], SATURDAY)
    assert numbers(opened(tmp_path / "lake"), "frames") == [1, 3, 4]


def test_a_late_batch_opens_no_more_logs_than_an_early_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, log = [0], new_lake(tmp_path / "lake")
    for name in ("__init__", "update_incremental"):
        found = getattr(deltalake.DeltaTable, name)

        def counting(*arguments: Any, found: Any = found, **named: Any) -> Any:
            steps[-1] += 1
            return found(*arguments, **named)

        monkeypatch.setattr(deltalake.DeltaTable, name, counting)
    for batch in range(1, 13):
        commit(log, batch, [batch], [batch + 1], FRIDAY)
        steps.append(0)
    assert steps[2] == steps[11]
    assert steps[11] <= 2 * len(log.tables)
