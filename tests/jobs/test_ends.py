"""How commands end that would wait for ever: an ingest between its batches, late captures alone, a Spark server that
does not answer, a baseline or a key that is no file, an output that is none."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import golden
import pyspark.daemon
import pytest
from lake_support import rows_of_lake, rows_of_table
from lake_work import moved_in_time, rotated

import pipeline
from jobs import cut, report
from jobs.cli import main
from jobs.terminal import running
from jobs.terminal.arguments import output_file
from jobs.terminal.running import INTERRUPTED, OK, Stopped, UsageError
from pipeline.output.location import OutputError, location, sink
from pipeline.run import session as sessions
from pipeline.run.local_processes import LocalProcesses
from udfs.workers import daemon

ROOT = Path(__file__).resolve().parents[2]
SESSION, OTHER = (golden.captures()[name].paths[0] for name in ("091_tx.pcap", "091_rpc_reply_to.pcap"))
DAY = 86400


def no_session() -> NoReturn:
    raise AssertionError("Spark was begun")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_ingest_between_batches_ends_at_the_first_signal_and_its_lines_are_out(tmp_path: Path, number: int) -> None:
    capture = next(rotated(SESSION, tmp_path / "captures", 3))
    words = ["ingest", str(capture.parent), "--lake", str(tmp_path / "lake"), "--every", "10m", "--settle", "0"]
    command = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main(sys.argv[1:]))", *words]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("Batch 1: 1 capture (")  # a pipe, as of a log, gets it at once
        time.sleep(0.5)
        asked = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == INTERRUPTED
        assert time.monotonic() - asked < 10
        assert process.stderr.read().splitlines()[-1].startswith("wirehare: stopped; the lake is as of its last batch")
    assert main(["lake", str(tmp_path / "lake"), "--quiet"]) == OK


def test_waiting_hears_a_request_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    running.wait(0)
    monkeypatch.setattr(running.stop_request, "requested", True)
    with pytest.raises(Stopped):
        running.wait(3600)


@pytest.mark.parametrize("late", [1, 2])
def test_late_captures_alone_are_ingested(tmp_path: Path, late: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As they are beside others: decoded on their own, once."""
    lake, folder, everything = tmp_path / "lake", tmp_path / "captures", tmp_path / "out"
    folder.mkdir()
    captures = [moved_in_time(SESSION, folder / "new.pcap", 0)]
    command = ["ingest", str(folder), "--lake", str(lake), "--once", "--settle", "0"]
    assert main(command) == OK
    for number, session in enumerate([SESSION, OTHER][:late], 1):
        captures.append(moved_in_time(session, folder / f"old-{number}.pcap", -number * DAY))
    assert main(command) == OK
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["Batch 1", "Batch 2"]
    assert printed[1].count(f"{late} late") == 1
    assert main(command) == OK
    assert capsys.readouterr().out == ""
    for number, capture in enumerate(captures):
        pipeline.write(LocalProcesses(), [str(capture)], str(everything / str(number)))
    apart = [path for number in range(len(captures)) for path in (everything / f"{number}/methods").glob("*.parquet")]
    assert len(rows_of_lake(lake, "methods")) == len(rows_of_table("methods", apart))


@contextmanager
def listening(answers: bool) -> Iterator[int]:
    """A port at which nobody listens, or one where connections are accepted and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answers:
            yield port
    if not answers:
        yield port


@pytest.mark.parametrize("answers", [False, True])
def test_a_spark_server_that_does_not_answer_is_one_line_without_its_token(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SERVER_S", 1)
    monkeypatch.setattr(sessions, "is_running", lambda: False)
    with listening(answers) as port:
        monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{port}/;token=gnitirb")
        started = time.monotonic()
        with pytest.raises(sessions.ServerMissing) as error:
            sessions.session()
    assert time.monotonic() - started < 15
    expected = f"no Spark Connect server answers at 127.0.0.1:{port}; start one, or correct SPARK_REMOTE"
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("error", "is_shown"), [(BrokenPipeError, False), (ConnectionResetError, False), (OSError, True)]
)
def test_workers_whose_results_nobody_waits_for_are_silent(
    error: type[OSError], is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `pyspark.daemon` reports what its workers raise."""
    try:
        raise error("of a worker")
    except OSError:
        daemon._print("failed to flush", file=sys.stderr)
        daemon._Tracebacks.print_exc()
    printed = capsys.readouterr().err
    assert ("failed to flush" in printed, "of a worker" in printed) == (is_shown, is_shown)


def test_the_daemon_is_that_of_spark_with_these_names() -> None:
    """The two names are looked up in its module when a worker fails."""
    source = inspect.getsource(pyspark.daemon)
    assert "traceback.print_exc()" in source
    assert 'print(\n                    "PySpark daemon failed to flush' in source
    assert sessions.one_machine_settings()["spark.python.daemon.module"] == daemon.__name__


def entry(**other: object) -> str:
    """A baseline with one finding."""
    usual = {"key": "0" * 16, "rule_id": "CH-01", "severity": "warning", "findings": 1, "occurrences": 1}
    return json.dumps({"format": "wirehare-audit/1", "findings": [{**usual, **other}]})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 200_000,
        b'{"format":' * 100_000,
        b'{"format": "wirehare-audit/1", "findings": [' + b"9" * 10_000 + b"]}",
        b'{"format": "wirehare-audit/1", "findings": 7}',
        b'{"format": "wirehare-audit/1", "findings": [], "audited": ["a"]}',
        b'{"format": {"a": 1}, "findings": []}',
        *(
            entry(**{name: value}).encode()
            for name, value in (
                ("key", 7), ("rule_id", None), ("rule_id", ["CH-01"]), ("severity", "deadly"), ("severity", ["info"]),
                ("findings", "many"), ("findings", 1 << 70), ("occurrences", -1), ("occurrences", True),
                ("server", {"a": 1}), ("user", 5), ("entities", [[]]),
            )
        ),
    ],
)  # fmt: skip
def test_a_hostile_baseline_is_bad_usage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "baseline.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"^--baseline ") as error:
        inputs(str(tmp_path / "baseline.json"))
    assert "\n" not in str(error.value)


def test_a_baseline_that_is_no_file_or_too_large_is_bad_usage(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    for name in ("fifo", "large", "missing", "."):
        with pytest.raises(UsageError, match=r"^--baseline "):
            inputs(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"^--baseline /dev/zero: cannot be read \(is a character device; only"):
        inputs("/dev/zero")


@pytest.mark.parametrize("name", ["fifo", "link", "socket"])
def test_what_is_no_file_is_not_replaced_by_an_output(tmp_path: Path, name: str) -> None:
    """A regular file in the place of /dev/null would harm everybody on the machine."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    before = os.lstat(tmp_path / name)
    with pytest.raises(UsageError, match=r"is a (FIFO|socket); expected the name of a file to write$"):
        output_file(str(tmp_path / name))
    with pytest.raises(OutputError, match="expected the name of a file"), sink(location(str(tmp_path / name))) as file:
        file.write(b"a cut")
    assert os.lstat(tmp_path / name) == before


def test_a_key_that_is_no_file_or_too_large_is_bad_usage(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    for name in (
        str(tmp_path / "fifo"),
        str(tmp_path / "large"),
        "/dev/zero",
        str(tmp_path),
        str(tmp_path / "missing"),
    ):
        line = ["tables", "--connection", "1", "-o", "cut.pcapng", "--anonymise", name]
        parser = argparse.ArgumentParser()
        cut.add_arguments(parser)
        with pytest.raises(UsageError, match=f"^--anonymise {name}: cannot be read "):
            cut.cut_options(parser.parse_args(line))


def test_a_usual_baseline_is_read(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text(entry(user=None, server="10.0.0.1:5672"))
    previous = inputs(str(tmp_path / "baseline.json")).previous
    assert previous is not None
    assert list(previous.entries) == ["0" * 16]


def inputs(baseline: str) -> report.Inputs:
    from types import SimpleNamespace

    arguments = SimpleNamespace(report=None, json=None, baseline=baseline, config=None)
    return report.check_inputs(arguments)  # type: ignore[arg-type]
