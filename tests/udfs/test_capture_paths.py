"""Which captures a path means: files, directories, globs, other file systems."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pyarrow as pa
import pytest
from pyarrow import fs
from test_source import accounts, expected_packets, exploded, rows

from jobs import decode
from jobs.cli import main
from udfs.source.capture_bytes import CaptureBytes, CaptureFile, first_line, locate
from udfs.source.paths import PathError, anchored, glob_pattern, require_capture, resolve
from udfs.source.sources import TcpRunsReader
from udfs.source.splits import plan

CAPTURE = (Path(__file__).parents[1] / "captures" / "091_handshake_ok.pcap").read_bytes()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Captures, and much that is none, in nested directories."""
    files = {
        "a.pcap": CAPTURE,
        "B.PCAPNG": b"",
        "c.cap.gz": b"",
        "rotated.pcap0": b"",
        "rotated.pcap.1": b"",
        "old.trc": b"",
        "a[1].pcap": CAPTURE,
        "with space & percent%41.pcap": CAPTURE,
        "no-extension": CAPTURE,
        "packed-no-extension": gzip.compress(CAPTURE),
        "README.md": b"# Captures",
        "notes.gz": gzip.compress(b"no capture"),
        "empty": b"",
        ".hidden.pcap": CAPTURE,
        "sub/d.pcap": CAPTURE,
        "sub/deep/e.pcap": CAPTURE,
        "sub/deep/table.csv": b"1,2",
        ".git/f.pcap": CAPTURE,
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def names(tree: Path, *paths: str) -> set[str]:
    """What the paths resolve to, relative to the tree."""
    return {
        str(Path(locate(file.uri).path).relative_to(tree)) for file in resolve([str(tree / path) for path in paths])
    }


IN_TREE = {
    "a.pcap", "B.PCAPNG", "c.cap.gz", "rotated.pcap0", "rotated.pcap.1", "old.trc", "a[1].pcap",
    "with space & percent%41.pcap", "no-extension", "packed-no-extension", "sub/d.pcap", "sub/deep/e.pcap",
}  # fmt: skip


def test_directory_gives_captures_below_it_by_name_or_content(tree: Path) -> None:
    assert names(tree, "") == IN_TREE


def test_a_named_file_is_read_whatever_its_content(tree: Path) -> None:
    assert names(tree, "README.md") == {"README.md"}
    assert names(tree, ".hidden.pcap") == {".hidden.pcap"}
    assert names(tree, "a[1].pcap") == {"a[1].pcap"}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.pcap", {"a.pcap", "a[1].pcap", "with space & percent%41.pcap"}),
        ("?.pcap", {"a.pcap"}),
        ("[a-c].*", {"a.pcap", "c.cap.gz"}),
        ("*/*.pcap", {"sub/d.pcap"}),
        ("**/*.pcap", {"a.pcap", "a[1].pcap", "with space & percent%41.pcap", "sub/d.pcap", "sub/deep/e.pcap"}),
        ("sub/**/e.pcap", {"sub/deep/e.pcap"}),
        ("s*", {"sub/d.pcap", "sub/deep/e.pcap"}),
        ("**", IN_TREE),
        ("*", IN_TREE),
    ],
)
def test_glob(tree: Path, pattern: str, expected: set[str]) -> None:
    assert names(tree, pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.pcap", "x.pcap", True),
        ("*.pcap", ".x.pcap", False),
        (".*.pcap", ".x.pcap", True),
        ("*.pcap", "d/x.pcap", False),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[!a]*", "bc", True),
        ("[!a]*", "ac", False),
        ("a[]]b", "a]b", True),
        ("a.b", "axb", False),
        ("**/x", "x", True),
        ("**/x", "a/b/x", True),
        ("**/x", "a/.b/x", False),
        ("a/**/x", "a/x", True),
        ("a[", "a[", True),
    ],
)
def test_glob_wildcards(pattern: str, path: str, matches: bool) -> None:
    assert bool(glob_pattern(pattern).fullmatch(path)) == matches


def test_each_file_once_in_the_order_of_uris(tree: Path) -> None:
    found = resolve([str(tree / "sub"), str(tree / "a.pcap"), f"{tree}/sub/../a.pcap", (tree / "a.pcap").as_uri()])
    assert [file.uri for file in found] == [
        (tree / name).as_uri() for name in ("a.pcap", "sub/d.pcap", "sub/deep/e.pcap")
    ]
    assert [file.size for file in found] == [len(CAPTURE)] * 3


def test_relative_paths_become_uris(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert [file.uri for file in resolve(["a.pcap", "./a.pcap", "file:a.pcap"])] == [(tree / "a.pcap").as_uri()]
    assert resolve(["sub/*.pcap"])[0].uri == (tree / "sub/d.pcap").as_uri()


@pytest.mark.parametrize("path", ["a.pcap", "./a.pcap", "file:a.pcap", "sub", "*.pcap", "a[1].pcap", "nowhere/*"])
def test_a_relative_path_means_the_same_in_another_directory(
    tree: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(path: str) -> set[str]:
        try:
            return {file.uri for file in resolve([path])}
        except PathError:
            return set()

    monkeypatch.chdir(tree)
    here, moved = found(path), anchored(path)
    monkeypatch.chdir("/")
    assert found(moved) == here
    assert bool(here) == (path != "nowhere/*")


def test_wildcards_in_the_name_of_the_directory_are_not_a_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("[1]/a.pcap", "1/b.pcap"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(CAPTURE)
    monkeypatch.chdir(tmp_path / "[1]")
    assert [Path(locate(file.uri).path).name for file in resolve([anchored("*.pcap")])] == ["a.pcap"]
    assert [Path(locate(file.uri).path).name for file in resolve([anchored("a.pcap")])] == ["a.pcap"]


@pytest.mark.parametrize("path", ["/a.pcap", "file:/a.pcap", "file:///a.pcap", "s3a://bucket/*.pcap", "hdfs:///a", ""])
def test_other_paths_are_unchanged(path: str) -> None:
    assert anchored(path) == path


def test_odd_names_are_read_through_their_uri(tree: Path) -> None:
    path = tree / "with space & percent%41.pcap"
    runs = rows(TcpRunsReader, path)
    assert exploded(runs) == expected_packets(path)
    assert accounts(runs)[0]["capture_file"] == path.as_uri()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "no such file or directory"),
        ("*.nothing", "no such file or directory"),
        ("empty-directory", "no pcap or pcapng file found"),
        ("no[", "no such file or directory"),
    ],
)
def test_nothing_found_is_one_clear_line(tree: Path, path: str, message: str) -> None:
    (tree / "empty-directory").mkdir()
    with pytest.raises(PathError) as error:
        resolve([str(tree / path)])
    assert str(error.value) == f"{tree / path}: {message}"


def test_nothing_found_beside_something_is_a_file_with_a_problem(tree: Path) -> None:
    found = resolve([str(tree / "nowhere"), str(tree / "a.pcap")])
    assert [(file.size, file.problem) for file in found] == [(len(CAPTURE), None), (-1, "no such file or directory")]


def test_wildcards_in_the_options_are_not_a_glob() -> None:
    with pytest.raises(PathError, match=r"^s3://bucket/x\.pcap: Unexpected query parameter in S3 URI: 'a'$"):
        resolve(["s3://bucket/x.pcap?region=x&a=*"])


def test_a_compressed_capture_counts_for_more_than_its_size() -> None:
    for name, times in {"a.pcap": 1, "a.pcap.gz": 10, "a.ZST": 10, "a.cap.lz4": 10, "gz": 1, "gz/a.pcap": 1}.items():
        assert CaptureFile(f"s3://bucket/{name}?region=x", 7).expected_size == 7 * times
    assert CaptureFile("file:///gone.pcap.gz", -1).expected_size == 0


def test_compressed_captures_are_planned_by_their_uncompressed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 bytes packed and 4 plain ones: 10 to one, as large captures of AMQP pack."""
    (tmp_path / "a.pcap.gz").write_bytes(b"\x1f\x8b" + bytes(6))
    (tmp_path / "b.pcap").write_bytes(CAPTURE[:4])
    sizes = []

    def start(byte_size: int) -> None:
        sizes.append(byte_size)
        raise RuntimeError("no Spark")

    monkeypatch.setattr(decode, "start", start)
    monkeypatch.setattr("pipeline.tables.decoding.decoded_locally", lambda locations: False)
    assert main(["decode", str(tmp_path), "--output", str(tmp_path / "out")]) == 4
    assert sizes == [84]


def test_a_scheme_may_be_spelled_in_capital_letters(tree: Path) -> None:
    """RFC 3986 section 3.1."""
    uri = (tree / "a.pcap").as_uri()
    assert [file.uri for file in resolve([uri.replace("file", "FILE", 1), uri])] == [uri]
    locations = [locate(f"{scheme}://bucket/a.pcap?region=x") for scheme in ("s3", "S3", "s3a", "S3A")]
    assert {location.uri("bucket/b.pcap") for location in locations} == {"s3://bucket/b.pcap?region=x"}


@pytest.fixture
def store(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An object store at s3://key:secret@bucket, whose paths begin with the bucket as in Arrow's."""
    (tree / "bucket").mkdir()
    for name in ("sub", "a.pcap", "README.md", "with space & percent%41.pcap"):
        (tree / name).rename(tree / "bucket" / name)

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        path = fs.FileSystem.from_uri("file:///" + uri.partition("?")[0].removeprefix("s3://key:secret@"))[1]
        return fs.SubTreeFileSystem(str(tree), fs.LocalFileSystem()), path.strip("/")

    shim = SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri), LocalFileSystem=fs.LocalFileSystem)
    monkeypatch.setattr("udfs.source.capture_bytes.fs", shim)
    return tree / "bucket"


@pytest.mark.parametrize("end", ["", "/", "/**", "/**/*.pcap"])
def test_other_file_systems_are_listed(store: Path, end: str) -> None:
    found = resolve([f"s3://key:secret@bucket{end}?region=x"])
    base = "s3://key:secret@bucket/"
    assert [file.uri for file in found] == [
        f"{base}{name}?region=x"
        for name in ("a.pcap", "sub/d.pcap", "sub/deep/e.pcap", "with%20space%20%26%20percent%2541.pcap")
    ]
    assert found[1].name == "s3://bucket/sub/d.pcap"


def test_other_file_systems_are_read_in_splits(store: Path) -> None:
    expected = [packet[1:] for packet in expected_packets(store / "a.pcap")]
    for name in ("a.pcap", "with%20space%20%26%20percent%2541.pcap"):
        runs = rows(TcpRunsReader, Path("unused"), paths=f'["s3://key:secret@bucket/{name}?region=x"]', splitBytes=500)
        assert [packet[1:] for packet in exploded(runs)] == expected
        assert {run["capture_file"] for run in runs} == {f"s3://bucket/{name}"}
        assert len(accounts(runs)) > 3


def test_few_files_are_a_task_each_and_many_small_ones_share() -> None:
    def files(count: int, size: int) -> list[CaptureFile]:
        return [CaptureFile(f"file:///{n:05}.pcap", size) for n in range(count)]

    assert [len(task) for task in plan(files(5, 1000), 10**6)] == [1] * 5
    tiny = plan(files(1000, 2000), 10**6)
    assert len(tiny) <= 40
    assert [split.file for task in tiny for split in task] == files(1000, 2000)
    medium = plan(files(1000, 5_000_000), 64 * 1024 * 1024)
    assert all(sum(split.file.size for split in task) <= 32 * 1024 * 1024 for task in medium)
    assert 150 <= len(medium) <= 200  # 5 GB in tasks of up to 32 MiB, 6 files each


def test_errors_of_file_systems_are_one_line() -> None:
    assert first_line(OSError("first\nsecond")) == "first"
    assert first_line(OSError()) == "OSError"
    assert first_line(PermissionError(13, "x")) == "permission denied"


# Local directories as they may be found


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """TimeoutError if the body takes longer."""

    def late(number: int, frame: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO without a writer would be waited for, /dev/zero be read for ever."""
    (tmp_path / "good.pcap").write_bytes(CAPTURE)
    os.mkfifo(tmp_path / "live.pcap")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening, within(20):
        listening.bind(str(tmp_path / "socket"))
        found = resolve([str(tmp_path)])
        assert [(Path(file.uri).name, file.problem) for file in found] == [
            ("good.pcap", None),
            ("live.pcap", "is a FIFO; only regular files are read"),
        ]
        for name, kind in {"pipe": "a FIFO", "socket": "a socket", "zero": "a character device"}.items():
            with pytest.raises(PathError, match=rf"/{name}: is {kind}; only regular files are read$"):
                resolve([str(tmp_path / name)])
        errors = [account["error"] for account in accounts(rows(TcpRunsReader, tmp_path)) if account["error"]]
    assert errors == [f"{(tmp_path / 'live.pcap').as_uri()}: is a FIFO; only regular files are read"]


def test_a_regular_file_that_becomes_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pcap")
    with (
        within(20),
        pytest.raises(OSError, match="is a FIFO"),
        CaptureBytes(CaptureFile(f"file://{tmp_path}/a.pcap", 9)),
    ):
        pass


@pytest.mark.parametrize("path", [b"", b"caf\xe9.pcap", b"c*.pcap", b"\xff/**/*.pcap", b"caf\xe9*"])
def test_a_name_that_is_not_utf_8_is_read_through_its_uri(
    tmp_path: Path, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 3986 section 2.5: an byte becomes % and two digits."""
    monkeypatch.chdir(tmp_path)
    os.mkdir(b"\xff")
    for name in (b"caf\xe9.pcap", b"\xff/caf\xe9.pcap"):
        Path(os.fsdecode(name)).write_bytes(CAPTURE)
    expected = {
        b"": ["%FF/caf%E9.pcap", "caf%E9.pcap"],
        b"\xff/**/*.pcap": ["%FF/caf%E9.pcap"],
    }.get(path, ["caf%E9.pcap"])  # fmt: skip
    for given in (os.fsdecode(path) or ".", anchored(os.fsdecode(path) or ".")):
        assert [file.uri for file in resolve([given])] == [f"{tmp_path.as_uri()}/{name}" for name in expected]
    anchored(os.fsdecode(path)).encode()  # can be sent to Spark
    capture = f"{tmp_path.as_uri()}/caf%E9.pcap"
    assert accounts(rows(TcpRunsReader, Path("unused"), paths=json.dumps([capture])))[0]["packets"] > 0


def test_a_missing_file_whose_name_is_not_utf_8_is_named_in_text(tmp_path: Path) -> None:
    with pytest.raises(PathError) as error:
        resolve([os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pcap")])
    assert str(error.value) == f"{tmp_path}/caf\\xe9.pcap: no such file or directory"


def test_directories_that_link_to_themselves_give_each_file_once(tmp_path: Path) -> None:
    for name in ("a.pcap", "sub/b.pcap"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(CAPTURE)
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "sub/up").symlink_to("..")
    (tmp_path / "0-first.pcap").symlink_to("a.pcap")
    (tmp_path / "0-hard.pcap").hardlink_to(tmp_path / "sub/b.pcap")
    (tmp_path / "self.pcap").symlink_to("self.pcap")
    expected = [((tmp_path / name).as_uri(), None) for name in ("0-hard.pcap", "a.pcap")]
    for path in ("", "*.pcap", "**/*.pcap", "**"):
        found = resolve([str(tmp_path / path)])
        assert [(file.uri, file.problem) for file in found if not file.uri.endswith("self.pcap")] == expected
        assert ["symbolic links" in str(file.problem) for file in found if file.uri.endswith("self.pcap")] == [True]
    assert names(tmp_path, "0-first.pcap") == {"0-first.pcap"}  # the name that was given
    assert names(tmp_path, "again/again/sub/*.pcap") == {"again/again/sub/b.pcap"}
    assert names(tmp_path, "sub/up", "sub") == {"sub/up/a.pcap", "sub/b.pcap", "sub/up/self.pcap"}


def test_a_directory_that_may_not_be_listed_is_a_file_with_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.pcap").write_bytes(CAPTURE)
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("udfs.source.paths.os.scandir", refusing)
    found = resolve([str(tmp_path)])
    assert [(Path(file.uri).name, file.problem) for file in found] == [
        ("a.pcap", None),
        ("closed", "permission denied"),
    ]
    with pytest.raises(PathError, match=r"closed: permission denied$"):
        resolve([str(tmp_path / "closed")])


# Is any of it a capture?


@pytest.mark.parametrize("codec", [None, "gzip", "zstd", "lz4"])
def test_the_first_bytes_tell_whether_any_file_is_a_capture(tmp_path: Path, codec: str | None) -> None:
    for name, data in {"notes.txt": b"Dear diary", "a.pcap": CAPTURE}.items():
        with pa.output_stream(str(tmp_path / name), compression=codec) as out:
            out.write(data)
    require_capture(resolve([str(tmp_path / "notes.txt"), str(tmp_path / "a.pcap")]))
    with pytest.raises(PathError, match=r"notes\.txt: the file begins with the text 'Dear diary'; expected"):
        require_capture(resolve([str(tmp_path / "notes.txt")]))


def test_no_capture_among_several_files_is_one_line(tmp_path: Path) -> None:
    for name in ("empty.pcap", "b.pcap", "c.pcap"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(PathError, match=r"^none of these 3 files is a capture; .*/b\.pcap: the file is empty;"):
        require_capture(resolve([str(tmp_path)]))


def test_a_remote_file_is_identified_with_one_small_read(store: Path) -> None:
    require_capture(resolve(["s3://key:secret@bucket/a.pcap?region=x"]))
    with pytest.raises(PathError, match=r"^s3://bucket/README\.md: the file begins with"):
        require_capture(resolve(["s3://key:secret@bucket/README.md?region=x"]))
