"""Write aside and swap: whatever happens to a run, a directory of tables is the old one or the new one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.output import location as locations
from pipeline.output import parquet_tables as parquet
from pipeline.output import swap as output
from pipeline.output.location import Location, OutputError
from pipeline.output.swap import staged

KNOWN = ("frames", "messages")
ROOT = Path(__file__).parents[2]


def fill(directory: Path, table: str, text: str) -> None:
    (directory / table).mkdir(parents=True)
    (directory / table / "part-0").write_text(text)


def contents(directory: Path) -> dict[str, str]:
    return {str(file.relative_to(directory)): file.read_text() for file in directory.rglob("*") if file.is_file()}


def hidden(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir() if entry.name.startswith(".wirehare-")]


def test_the_stage_becomes_the_output(tmp_path: Path) -> None:
    with staged(str(tmp_path / "a b" / "out"), known=KNOWN) as stage:
        fill(Path(stage.path), "frames", "new")
        assert not (tmp_path / "a b" / "out").exists()
    assert contents(tmp_path / "a b" / "out") == {"frames/part-0": "new"}
    assert hidden(tmp_path / "a b") == []


def test_an_empty_directory_may_be_filled_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staged(str(tmp_path / "out"), known=KNOWN) as stage:
        fill(Path(stage.path), "frames", "new")
    assert contents(tmp_path / "out") == {"frames/part-0": "new"}


def test_tables_are_replaced_as_a_whole(tmp_path: Path) -> None:
    fill(tmp_path / "out", "messages", "old")
    with staged(str(tmp_path / "out"), known=KNOWN, overwrite=True) as stage:
        fill(Path(stage.path), "frames", "new")
    assert contents(tmp_path) == {"out/frames/part-0": "new"}


def test_a_failure_leaves_the_old_output_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path / "out", "frames", "old")
    with pytest.raises(ZeroDivisionError), staged(str(tmp_path / "out"), known=KNOWN, overwrite=True) as stage:
        fill(Path(stage.path), "frames", "half")
        _ = 1 / 0
    assert contents(tmp_path) == {"out/frames/part-0": "old"}


def test_tables_are_replaced_only_with_overwrite(tmp_path: Path) -> None:
    fill(tmp_path / "out", "frames", "old")
    with (
        pytest.raises(OutputError, match="already holds tables; use --overwrite"),
        staged(str(tmp_path / "out"), known=KNOWN),
    ):
        pytest.fail("the body must not run")
    assert contents(tmp_path) == {"out/frames/part-0": "old"}


def test_a_directory_with_anything_else_is_never_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "out", "frames", "old")
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(OutputError, match=r"holds thesis\.tex"),
        staged(str(tmp_path / "out"), known=KNOWN, overwrite=True),
    ):
        pytest.fail("the body must not run")
    assert (tmp_path / "out" / "thesis.tex").exists()


def test_a_file_is_not_a_valid_output(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with (
        pytest.raises(OutputError, match="is a file; expected a directory"),
        staged(str(tmp_path / "out"), known=KNOWN),
    ):
        pytest.fail("the body must not run")


def test_a_symbolic_link_still_points_to_the_output(tmp_path: Path) -> None:
    fill(tmp_path / "disk" / "real", "frames", "old")
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real")
    with staged(str(tmp_path / "out"), known=KNOWN, overwrite=True) as stage:
        fill(Path(stage.path), "frames", "new")
    assert (tmp_path / "out").is_symlink()
    assert contents(tmp_path / "disk" / "real") == {"frames/part-0": "new"}


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from pipeline.output import location as locations
from pipeline.output import swap as output
with output.staged(sys.argv[1], known=("frames",), overwrite=True) as stage:
    (Path(stage.path) / "frames").mkdir()
    if sys.argv[2] == "swap":
        Path(sys.argv[1]).rename(stage.path + "-old")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["decode", "swap"])
def test_the_next_run_removes_the_files_of_a_killed_one(tmp_path: Path, moment: str) -> None:
    out = tmp_path / "out"
    fill(out, "frames", "old")
    root = Path(output.__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", KILLED_RUN, str(out), moment], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert hidden(tmp_path) != []
    assert out.exists() is (moment == "decode")

    with pytest.raises(ZeroDivisionError), staged(str(out), known=KNOWN, overwrite=True):
        assert contents(out) == {"frames/part-0": "old"}
        _ = 1 / 0
    assert contents(tmp_path) == {"out/frames/part-0": "old"}
    assert hidden(tmp_path) == []


def test_the_output_of_a_run_in_progress_is_not_touched(tmp_path: Path) -> None:
    """And of two runs that may not overwrite, the later to finish gives up."""
    out = str(tmp_path / "out")
    with pytest.raises(OutputError, match="already holds tables"), staged(out, known=KNOWN) as slow:
        fill(Path(slow.path), "frames", "slow")
        with staged(out, known=KNOWN) as fast:
            fill(Path(fast.path), "frames", "fast")
        assert contents(Path(slow.path)) == {"frames/part-0": "slow"}
    assert contents(tmp_path) == {"out/frames/part-0": "fast"}


def test_a_store_without_local_paths_is_swapped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    monkeypatch.setattr(output, "location", lambda _: Location(store, "bucket/out", "store://bucket/out"))
    for text in ("first", "second"):
        with staged("store://bucket/out", known=KNOWN, overwrite=True) as stage:
            assert stage.uri.startswith("store://bucket/.wirehare-out-")
            fill(tmp_path / stage.path, "frames", text)
        assert contents(tmp_path) == {"bucket/out/frames/part-0": text}
    (tmp_path / "bucket/.wirehare-out-1-0123abcd").mkdir()  # begun in 1970
    with staged("store://bucket/out", known=KNOWN, overwrite=True):
        assert len(hidden(tmp_path / "bucket")) == 1


@pytest.mark.parametrize(
    "uri", ["gopher://me:pw/d@host/out?key=pw/d", "s3a://AKID:pw/d@bucket/out", "s3://AKID:pw/d%ZZ@bucket/out?x=pw/d"]
)
def test_errors_do_not_contain_the_secrets_of_a_uri(uri: str) -> None:
    with pytest.raises(OutputError, match=r"^\w+://(host|bucket)/out: cannot be reached \(.*/out'") as error:
        locations.location(uri)
    assert "pw/d" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__  # a stack would show what the error quotes


def test_a_place_is_shown_by_its_path_or_without_its_key(tmp_path: Path) -> None:
    assert locations.location(f"file://{tmp_path}/a%20b").display_name == f"{tmp_path}/a b"
    store = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/file").touch()
    location = Location(store, "bucket/file", "s3a://key:secret@bucket/file")
    assert location.display_name == "s3a://bucket/file"
    with pytest.raises(OutputError, match=r"^s3a://bucket/file: is a file"):
        location.entries()


def test_an_unknown_file_system_is_named() -> None:
    with (
        pytest.raises(OutputError, match="gopher://host/out: cannot be reached"),
        staged("gopher://host/out", known=KNOWN),
    ):
        pytest.fail("the body must not run")


@pytest.mark.parametrize("name", ["50%", "a%41b", "new\nline", "{a,b}", "{a", "[x]", "[x", "st*r", "q?", "ha#sh", "\\"])
def test_any_name_that_is_text_can_be_an_output(tmp_path: Path, name: str, spark: SparkSession) -> None:
    """Written by Spark and by Arrow, read back by both; what stands beside it is not taken for it."""
    fill(tmp_path / "a" / "a", "frames", "not to be read")
    with staged(str(tmp_path / name), known=KNOWN) as stage:
        frames = stage.child("frames")
        parquet.write(spark.range(3).coalesce(1), frames.uri)
        assert spark.read.schema("id long").parquet(frames.pattern).count() == 3
        assert frames.dataset().count_rows() == 3
    assert [entry.name for entry in (tmp_path / name).iterdir()] == ["frames"]
    assert spark.read.parquet(locations.location(str(tmp_path / name)).child("frames").pattern).count() == 3


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    for spelling in (bad, f"file://{tmp_path}/caf%E9"):
        with (
            pytest.raises(OutputError, match=re.escape(f"{tmp_path}/caf\\xe9: this name is not UTF-8")),
            staged(spelling, known=KNOWN),
        ):
            pytest.fail("the body must not run")


def test_an_error_about_a_name_with_a_newline_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a\nb").touch()
    with pytest.raises(OutputError, match=r"/a\\x0ab: is a file"), staged(str(tmp_path / "a\nb"), known=KNOWN):
        pytest.fail("the body must not run")


def write(directory: Path, **columns: list[object]) -> None:
    directory.mkdir(parents=True)
    pq.write_table(pa.table(columns), directory / "part-0.parquet")


def test_tables_of_no_capture_do_not_block_the_next_run(tmp_path: Path) -> None:
    """As a run leaves them that was given a text file."""
    known = (*KNOWN, "captures")
    write(tmp_path / "out/captures", capture_file=["file:///notes.txt"], format=pa.array([None], pa.string()))
    write(tmp_path / "out/frames", frame_no=pa.array([], pa.int64()))
    with staged(str(tmp_path / "out"), known=known) as stage:
        write(Path(stage.path) / "captures", capture_file=["file:///a.pcap"], format=["pcap"])
        write(Path(stage.path) / "frames", frame_no=pa.array([], pa.int64()))
    with pytest.raises(OutputError, match="already holds tables"), staged(str(tmp_path / "out"), known=known):
        pytest.fail("the body must not run")


def test_files_of_others_beside_the_output_are_not_touched(tmp_path: Path) -> None:
    """Pipes, links and files with names like those of killed runs: nothing waits for them, follows or removes them."""
    elsewhere = tmp_path / "elsewhere"
    fill(elsewhere, "frames", "of somebody")
    planted = [f".wirehare-out-{number}-0000000{number}" for number in range(5)]
    os.mkfifo(tmp_path / planted[0])
    os.mkfifo(tmp_path / f"{planted[1]}{output.OLD}")
    (tmp_path / planted[2]).symlink_to(elsewhere)
    (tmp_path / f"{planted[3]}{locations.SCRATCH}").symlink_to(elsewhere)
    (tmp_path / f"{planted[4]}{output.OLD}").symlink_to(elsewhere)
    before = sorted(hidden(tmp_path))
    program = "import sys; from pipeline.output.swap import staged\nwith staged(sys.argv[1], known=()): pass"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], cwd=ROOT, check=True, timeout=60)
    assert sorted(hidden(tmp_path)) == before
    assert contents(elsewhere) == {"frames/part-0": "of somebody"}
    assert list((tmp_path / "out").iterdir()) == []


def test_stages_of_other_users_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / ".wirehare-out-1-00000001", "frames", "somebody's")
    fill(tmp_path / f".wirehare-out-2-00000002{output.OLD}", "frames", "planted")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with staged(str(tmp_path / "out"), known=KNOWN):
        pass
    assert len(hidden(tmp_path)) == 2
    assert list((tmp_path / "out").iterdir()) == []
