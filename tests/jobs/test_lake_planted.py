"""What other users may leave in a lake: nothing outside of it is read, changed or waited for, and each command ends
with at most one line of complaint and a known exit code."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import golden
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_support import commit, new_lake, numbers, opened
from lake_work import LocalWork, rotated
from test_lake_commits import FRIDAY, MONDAY, captured_on

from codec.tables import TABLES as SCHEMAS
from jobs.cli import main
from jobs.report import open_tables
from jobs.terminal.running import DAMAGED, OK, UNREADABLE, USAGE
from pipeline.lake import journal
from pipeline.lake.ingest_batches import Ingest
from pipeline.lake.layout import DamagedLakeError, LakeError, Options, lake_tables
from pipeline.lake.opening import locked, open_lake
from pipeline.output.location import OutputError, location, sink
from pipeline.output.swap import staged, staged_child
from pipeline.run import scratch

SESSION = golden.captures()["091_tx.pcap"].paths[0]
SECONDS = 20  # that a command may take
READERS = (["lake", "LAKE"], ["lake", "LAKE", "--compact"], ["lake", "LAKE", "--expire", "1d"])
FOR_ALL = [
    *READERS,
    ["cut", "LAKE", "--connection", "1", "-o", "OUT"],
    ["sql", "LAKE", "SELECT count(*) FROM frames", "--format", "csv"],
]


def snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    """All that a command could change below a directory."""
    found = dict[str, tuple[object, ...]]()
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_nlink, content)
    return found


@contextmanager
def never_waiting(directory: Path) -> Iterator[None]:
    """The body may take SECONDS; then whoever waits at a FIFO is let go, and the test fails."""
    over = threading.Event()

    def release() -> None:
        while not over.wait(SECONDS):
            for path in directory.rglob("*"):
                if stat.S_ISFIFO(path.lstat().st_mode):
                    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    watcher = threading.Thread(target=release)
    watcher.start()
    started = time.monotonic()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert time.monotonic() - started < SECONDS


def new_small_lake(path: Path) -> Path:
    """Three batches of numbers."""
    log = new_lake(path)
    for batch, day in enumerate([FRIDAY, FRIDAY, MONDAY], 1):
        commit(log, batch, [batch], [100], day)
        captured_on(log, batch, day)
    return path


SmallLake = Callable[[Path], Path]


@pytest.fixture(scope="module")
def small_lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    """Copies such a lake to a path."""
    result = new_small_lake(tmp_path_factory.mktemp("small") / "lake")
    return partial(shutil.copytree, result)


@pytest.fixture(scope="module")
def real_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batches of a session that continues in a third capture; `LAKE/../captures` has all three."""
    base = tmp_path_factory.mktemp("real")
    first, second, _ = rotated(SESSION, base / "captures", 3)
    for captures in ([first], [first, second]):
        with Ingest.into(str(base / "lake"), LocalWork, Options(settle=0)) as ingest:
            assert len(list(ingest.batches([str(path) for path in captures]))) == 1
    return base


@pytest.fixture
def victims(tmp_path: Path) -> Path:
    """Files and folders of somebody else, next to where lakes are."""
    folder = tmp_path / "victims"
    (folder / "00000004").mkdir(parents=True)
    for name in ("thesis.parquet", "00000004/thesis.parquet", "lock", "commit.json"):
        (folder / name).write_text("years of work")
    return folder


def ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code of a command, and its complaints."""
    capsys.readouterr()
    code = main([*words, "--quiet"])
    return code, capsys.readouterr().err.splitlines()


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code, lines = ended(words, capsys)
    assert code == DAMAGED, lines
    (line,) = lines
    assert line.startswith(f"wirehare {words[0]}: ")
    return line


# --- what a lake's own files name ----------------------------------------------------------------------------------
HOSTILE_PATHS = [
    "../../victims/thesis.parquet",
    "00000004/../../../victims/thesis.parquet",
    "/victims/thesis.parquet",
    "file:///victims/thesis.parquet",
    "00000004/..%2f..%2fvictims/thesis.parquet",
    "_delta_log/00000000000000000000.json",
    "00000004/.parquet",
    "thesis.parquet",
    "00000004/the\nsis.parquet",
    "00000004/\ud800.parquet",
    "a/" * 300 + "b.parquet",
    "",
    7,
    None,
    ["00000004/thesis.parquet"],
]


def journal_of(**file: object) -> bytes:
    """The journal of batch 4, which adds a file to table states."""
    return json.dumps({"batch": 4, "tables": {"states": {"add": [file], "remove": []}}}).encode()


@pytest.mark.parametrize("what", ["add", "remove"])
@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=range(len(HOSTILE_PATHS)))
def test_a_journal_that_names_other_files_deletes_nothing(
    tmp_path: Path, small_lake: SmallLake, victims: Path, path: object, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, before = small_lake(tmp_path / "lake"), snapshot(victims)
    planted = {"path": path, "size": 1, "rows": 1, "open": None, "day": None}
    change = {"add": [], "remove": [], what: [planted]}
    (lake / "_wirehare/commit.json").write_text(json.dumps({"batch": 4, "tables": {"states": change}}))
    of_lake = snapshot(lake / "states")
    assert "which is not the path of a file of this table" in refused(["ingest", "x", "--lake", str(lake)], capsys)
    assert snapshot(victims) == before
    assert snapshot(lake / "states") == of_lake


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\x00\xff",
        b"[" * 100_000,
        b'{"batch": ' + b"9" * 5000 + b"}",
        b"[]",
        b"7",
        b'{"batch": 4}',
        b'{"batch": "4", "tables": {}}',
        b'{"batch": true, "tables": {}}',
        b'{"batch": 1000000, "tables": {}}',
        b'{"batch": -1, "tables": {}}',
        b'{"batch": 4, "tables": []}',
        b'{"batch": 4, "tables": {"../victims": {"add": [], "remove": []}}}',
        b'{"batch": 4, "tables": {"states": {"add": [7], "remove": []}}}',
        b'{"batch": 4, "tables": {"states": {"add": [{"path": "00000004/a.parquet"}], "remove": []}}}',
        journal_of(path="00000004/a.parquet", size=1e9, rows=None, open=3, day="tomorrow"),
        journal_of(path="00000002/a.parquet", size=1, rows=1, open=None, day=None),
        journal_of(path="00000004/a.parquet", size=1, rows=1, open=None, day=None),
    ],
)
def test_a_damaged_journal_is_one_line(
    tmp_path: Path, small_lake: SmallLake, document: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = small_lake(tmp_path / "lake")
    (lake / "_wirehare/commit.json").write_bytes(document)
    refused(["ingest", "x", "--lake", str(lake)], capsys)


@pytest.mark.parametrize(
    "document",
    [b"", b"[" * 100_000, b"[]", b"7", b'{"layout": "1"}', b'{"layout": null}', b'{"layout": 1e99}', b"\xff"],
)
def test_a_damaged_mark_of_a_lake_is_one_line(
    tmp_path: Path, small_lake: SmallLake, document: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = small_lake(tmp_path / "lake")
    (lake / "_wirehare/lake.json").write_bytes(document)
    for words in (["ingest", "x", "--lake", str(lake)], ["lake", str(lake)]):
        refused(words, capsys)
    with pytest.raises(DamagedLakeError):
        open_tables(str(lake))


def test_files_that_are_too_large_are_not_read(
    tmp_path: Path, small_lake: SmallLake, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_wirehare/commit.json", "_wirehare/lake.json", "frames/_delta_log/00000000000000000004.json"):
        lake = small_lake(tmp_path / name.replace("/", "-"))
        with (lake / name).open("ab") as file:
            file.truncate(1 << 40)  # sparse
        assert "expected at most" in refused(["ingest", "x", "--lake", str(lake)], capsys)


def planted_commit(lake: Path, table: str, *actions: dict[str, object]) -> None:
    """A further commit in the log of a table."""
    log = lake / table / "_delta_log"
    number = max(int(path.stem) for path in log.glob("*.json")) + 1
    (log / f"{number:020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("path", [path for path in HOSTILE_PATHS if isinstance(path, str) and path])
def test_a_log_that_names_other_files(
    tmp_path: Path, small_lake: SmallLake, victims: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither are files that it adds read, nor those that it removed long ago deleted."""
    before = snapshot(victims)
    values = {"open": "false", "day": "2026-11-20"}
    add = {"path": path, "partitionValues": values, "size": 1, "modificationTime": 1, "dataChange": True}
    adding = small_lake(tmp_path / "adding")
    planted_commit(adding, "frames", {"add": {**add, "stats": '{"numRecords": 1}'}})
    removing = small_lake(tmp_path / "removing")
    planted_commit(removing, "frames", {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}})
    for lake in (adding, removing):
        for words in FOR_ALL:
            code, lines = ended([word.replace("LAKE", str(lake)) for word in words], capsys)
            assert code in (OK, DAMAGED, 1, 3), lines
            assert len(lines) == (code != OK), lines
    assert ended(["lake", str(adding)], capsys)[0] == DAMAGED
    assert ended(["lake", str(removing), "--compact"], capsys)[0] == DAMAGED
    assert snapshot(victims) == before


# --- links, FIFOs and the like -------------------------------------------------------------------------------------
def plant_link(path: Path, victims: Path) -> None:
    path.symlink_to(victims if path.suffix == "" and path.name != "lock" else victims / "thesis.parquet")


def plant_fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def plant_socket(path: Path, victims: Path) -> None:
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(victims.parent / "socket"))
    (victims.parent / "socket").rename(path)


def plant_device(path: Path, _: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("may not make devices")


def plant_directory(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "note.txt").touch()


def plant_loop(path: Path, _: Path) -> None:
    path.symlink_to(path)


def plant_noise(path: Path, _: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(3000))


def plant_list(path: Path, _: Path) -> None:
    path.write_text("[[], {}, 7, null]")


def plant_nested(path: Path, _: Path) -> None:
    path.write_bytes(b'{"add":' * 100_000)


def plant_other_columns(path: Path, _: Path) -> None:
    pq.write_table(pa.table({"connection_id": ["a"], "capture_file": [None], "day": [3.5], "flow": [1]}), path)


KINDS: list[Callable[[Path, Path], None]] = [
    plant_link, plant_fifo, plant_socket, plant_device, plant_directory, plant_loop, plant_noise, plant_list,
    plant_nested, plant_other_columns,
]  # fmt: skip
NEVER_FOLLOWED = KINDS[:6]


def replaced(path: Path, plant: Callable[[Path, Path], None], victims: Path) -> None:
    """Something else in place of a file or folder, or where nothing was."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    plant(path, victims)


@pytest.mark.parametrize("plant", NEVER_FOLLOWED, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize(
    "name",
    [
        "_wirehare/lock",
        "_wirehare/lake.json",
        "_wirehare/commit.json",
        "_wirehare/note",
        "frames",
        "states",
        "frames/_delta_log",
        "frames/_delta_log/00000000000000000004.json",
        "frames/_delta_log/_last_checkpoint",
        "frames/00000003",
        "frames/00000004",
    ],
)
def test_what_is_no_file_of_a_lake_is_not_opened(
    tmp_path: Path,
    small_lake: SmallLake,
    victims: Path,
    name: str,
    plant: Callable[[Path, Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = small_lake(tmp_path / "lake")
    capture = tmp_path / "none.pcap"
    capture.touch()
    replaced(lake / name, plant, victims)
    before = snapshot(victims)
    with never_waiting(lake):
        for words in (["ingest", "CAPTURE", "--lake", "LAKE", "--once", "--settle", "0"], *FOR_ALL):
            locations = {"LAKE": str(lake), "OUT": str(tmp_path / "out.pcapng"), "CAPTURE": str(capture)}
            code, lines = ended([locations.get(word, word) for word in words], capsys)
            assert code in (OK, DAMAGED, 1, 3), (words, lines)
            assert len(lines) == (code not in (OK, UNREADABLE if words[0] == "ingest" else OK)), lines
    assert snapshot(victims) == before


def test_the_folder_of_an_interrupted_batch_is_deleted_without_following_its_links(
    tmp_path: Path, small_lake: SmallLake, victims: Path
) -> None:
    lake, before = small_lake(tmp_path / "lake"), snapshot(victims)
    folder = lake / "frames/00000004/open=false"
    folder.mkdir(parents=True)
    (folder / "day=2026-11-20").symlink_to(victims)
    (folder / "part.parquet").symlink_to(victims / "thesis.parquet")
    os.mkfifo(folder / "pipe")
    journal.discard(opened(lake), 3)
    assert not (lake / "frames/00000004").exists()
    assert snapshot(victims) == before


def test_a_second_name_of_somebodys_file_is_not_a_lock(tmp_path: Path, small_lake: SmallLake, victims: Path) -> None:
    lake = small_lake(tmp_path / "lake")
    os.link(victims / "lock", lake / "_wirehare/lock")
    with pytest.raises(DamagedLakeError, match="second name"), locked(open_lake(str(lake))):
        pass
    assert (victims / "lock").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "_wirehare", "_wirehare/lake.json", "frames", "states/_delta_log"])
def test_a_lake_that_others_can_change_is_not_written_to(
    tmp_path: Path, small_lake: SmallLake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for kernels. It can be read."""
    for change, restore in (
        (lambda path: path.chmod(path.stat().st_mode | stat.S_IWOTH), lambda path: path.chmod(0o755)),
        (lambda path: os.chown(path, 54321, -1), lambda path: os.chown(path, 0, -1)),
    ):
        lake = small_lake(tmp_path / f"lake-{len(list(tmp_path.iterdir()))}")
        change(lake / name)
        for words in (["ingest", "x", "--lake", str(lake)], ["lake", str(lake), "--compact"]):
            assert "others could replace files of the lake" in refused(words, capsys)
        assert ended(["lake", str(lake)], capsys) == (OK, [])
        restore(lake / name)
        assert ended(["lake", str(lake), "--compact"], capsys) == (OK, [])


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_nobody_else_can_write_to_a_new_lake_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        lake = new_small_lake(tmp_path / "lake")
    finally:
        os.umask(before)
    directories = [path for path in (lake, *lake.rglob("*")) if path.is_dir()]
    outer = [path for path in directories if len(path.relative_to(lake).parts) <= 2]
    assert [path for path in outer if path.stat().st_mode & 0o022] == []
    assert [path for path in (lake / "_wirehare").iterdir() if path.stat().st_mode & 0o022] == []


# --- everything everywhere -----------------------------------------------------------------------------------------
def names_in(lake: Path) -> list[str]:
    """Every name in the lake, and some that the next batch would use."""
    there = [str(path.relative_to(lake)) for path in lake.rglob("*")]
    coming = [f"{table}/00000003" for table in lake_tables()]
    logs = [
        f"{table}/_delta_log/{name}" for table in ("frames", "taken") for name in ("_last_checkpoint", f"{9:020}.json")
    ]
    return sorted({*there, *coming, *logs, "_wirehare/commit.json", "_wirehare/lock", "findings"})


def planted_cases() -> list[object]:
    """Seeds: a few by default."""
    return [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 200))]


@pytest.mark.parametrize("seed", planted_cases())
def test_anything_in_any_place_of_a_lake(
    tmp_path: Path, victims: Path, real_lake: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, before = random.Random(seed), snapshot(victims)
    for number in range(3):
        lake = tmp_path / f"lake-{number}"
        shutil.copytree(real_lake / "lake", lake)
        for name in chance.sample(names_in(lake), chance.choice([1, 1, 2])):
            if (lake / name).parent.is_dir():
                replaced(lake / name, chance.choice(KINDS), victims)
        with never_waiting(lake):
            for words in FOR_ALL:
                locations = {"LAKE": str(lake), "OUT": str(tmp_path / "out.pcapng")}
                code, lines = ended([locations.get(word, word) for word in words], capsys)
                assert code in (OK, DAMAGED, USAGE, 1, 3), (words, lines)
                assert len(lines) == (code != OK), lines
            try:
                with Ingest.into(str(lake), LocalWork, Options(settle=0)) as ingest:
                    list(ingest.batches([str(real_lake / "captures")]))
            except LakeError as error:
                complaints = str(error).splitlines()
                if len(complaints) != 1:
                    raise
            with suppress(OSError, OutputError), staged_child(str(lake), "findings"):
                pass
        assert snapshot(victims) == before


# --- outputs of decode ---------------------------------------------------------------------------------------------
def test_an_output_with_a_fifo_among_its_tables_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "out/frames").mkdir(parents=True)
    os.mkfifo(tmp_path / "out/frames/part-0.parquet")
    with (
        never_waiting(tmp_path),
        pytest.raises(Exception, match="already holds tables"),
        staged(str(tmp_path / "out"), known=("frames",)),
    ):
        pass


def test_tables_with_a_fifo_among_them_are_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in SCHEMAS:
        (tmp_path / "out" / name).mkdir(parents=True)
        os.mkfifo(tmp_path / f"out/{name}/part-0.parquet")
    with never_waiting(tmp_path):
        code, (line,) = ended(["audit", str(tmp_path / "out")], capsys)
        assert (code, "is a FIFO" in line or "is a pipe" in line) == (UNREADABLE, True), line
        code, (line,) = ended(["sql", str(tmp_path / "out"), "SELECT 1"], capsys)
        assert code == USAGE, line
        code, (line,) = ended(["cut", str(tmp_path / "out"), "--connection", "1", "-o", str(tmp_path / "x")], capsys)
        assert code == UNREADABLE, line


@pytest.mark.parametrize("sticky", [0, stat.S_ISVTX])
def test_directories_that_everybody_can_rename_are_not_removed_as_leftovers(tmp_path: Path, sticky: int) -> None:
    """Somebody may have given the name of a killed run to a directory that is private, and full of work."""
    location = tmp_path / "shared"
    for name in (".wirehare-out-1-00000000", f"{scratch.PREFIX}work"):
        (location / name).mkdir(mode=0o700, parents=True)
        (location / name / "thesis").write_text("years of work")
    location.chmod(0o777 | sticky)
    scratch.clean(str(location))
    with staged(str(location / "out"), known=("frames",)):
        pass
    assert [path.name for path in location.rglob("thesis")] == ([] if sticky else ["thesis"] * 2)


def test_links_in_an_output_are_replaced_and_not_followed(tmp_path: Path, victims: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/frames").symlink_to(victims)
    before = snapshot(victims)
    with staged(str(tmp_path / "out"), known=("frames",), overwrite=True) as stage:
        (Path(stage.path) / "frames").mkdir()
        (Path(stage.path) / "link").symlink_to(victims / "thesis.parquet")
    assert snapshot(victims) == before
    assert not (tmp_path / "out/frames").is_symlink()


def test_a_planted_draft_is_not_written_to(tmp_path: Path, victims: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 7)
    monkeypatch.setattr("secrets.token_hex", lambda _: "00")
    (tmp_path / ".report.json-7-00").symlink_to(victims / "thesis.parquet")
    before = snapshot(victims)
    with pytest.raises(FileExistsError), sink(location(str(tmp_path / "report.json"))):
        pass
    assert snapshot(victims) == before


def test_a_lake_that_nobody_touched_stays_as_it_was(
    tmp_path: Path, small_lake: SmallLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = small_lake(tmp_path / "lake")
    for words in READERS[:2]:
        assert ended([word.replace("LAKE", str(lake)) for word in words], capsys) == (OK, [])
    assert numbers(opened(lake), "frames") == [1, 2, 3, 100]
