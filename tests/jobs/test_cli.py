"""The command `wirehare`: arguments, messages, exit codes, and what stands on disk after good, bad and killed runs.

Counts of the samples are Wireshark's (tshark 4.0: packets, AMQP frames, TCP streams), as in samples/README.md.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import tomllib
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import decode_with
from independent_tcp import pcap_records
from pyspark.sql import SparkSession

import pipeline
from codec.tables import TABLES
from jobs.cli import main
from jobs.terminal.arguments import moment
from pipeline.output.location import OutputError

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
CAPTURES = Path(__file__).parents[1] / "captures"
# file: packets, TCP connections, AMQP frames without protocol headers
SAMPLE_COUNTS = {
    "091_channel_exceptions.pcap": (92, 2, 64),
    "091_confirms_and_return.pcap": (52, 1, 41),
    "091_declare_publish_consume_ack.pcap": (74, 1, 116),
    "091_heartbeats.pcap": (76, 2, 41),
    "091_rpc_reply_to.pcap": (141, 2, 200),
}
STEP = re.compile(r"(Spark started|\d+ captures? decoded|\d+ tables? written) in [\d.]+ s|.* \.\.\. \d+ s(, .*)?")


def complaint(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr of a command that should print nothing else."""
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else -1
    out, error = capsys.readouterr()
    assert out == ""
    return code, error


def rows(table: Path, *columns: str) -> list[dict[str, object]]:
    """Rows of a written table, read without Spark."""
    found: list[dict[str, object]] = pq.read_table(table, columns=list(columns) or None).to_pylist()
    return found


# Usage


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "wirehare: the following arguments are required: COMMAND (see wirehare --help)"),
        (["decode", "a.pcap"], "the following arguments are required: --output (see wirehare decode --help)"),
        (["decode", "--output", "o"], "the following arguments are required: CAPTURE (see wirehare decode --help)"),
        (["decode", "a", "--output", "o", "--port", "70000"], "'70000' is not a valid port; expected a number"),
        (["decode", "a", "--output", "o", "--host", "broker"], "'broker' is not a valid address; expected one"),
        (["decode", "a", "--output", "o", "--since", "noon"], "'noon' is not a valid time; expected one like"),
        (
            ["decode", "a", "--output", "o", "--tables", "frames,conections"],
            "there is no table 'conections'; did you mean 'connections'? Expected one of captures,",
        ),
        (["schema", "frame"], "there is no table 'frame'; did you mean 'frames'? Expected one of captures,"),
        (["decod", "a"], "there is no command 'decod'; did you mean 'decode'? Expected one of decode, explain, diff"),
        (["xyzzy"], "there is no command 'xyzzy'; expected one of decode, "),
        (
            ["decode", "a", "--output", "o", "--overwite"],
            "wirehare decode: unrecognized arguments: --overwite; did you mean '--overwrite'? (see wirehare decode",
        ),
        (
            ["decode", "a", "--ouput", "o"],
            "wirehare decode: unrecognized arguments: --ouput; did you mean '--output'? (see wirehare decode --help)",
        ),
        (["schema", "frames", "links"], "wirehare schema: unrecognized arguments: links (see wirehare schema --help)"),
        (
            ["decode", "a", "--output", "o", "--tables", "frames,colour"],
            "there is no table 'colour'; expected one of captures,",
        ),
        (["schema", "colour"], "there is no table 'colour'; expected one of captures,"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = complaint(argv, capsys)
    assert code == 2
    assert error.count("\n") == 1
    assert line in error


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:01", 10**9),
        ("1970-01-02", 86_400 * 10**9),
        ("1970-01-01T01:00:00.5+01:00", 5 * 10**8),
        ("1795169133437685123", 1795169133437685123),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, nanoseconds: int) -> None:
    assert moment(text) == nanoseconds


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gone.pcap", "no such file or directory"),
        ("*.pcap", "no such file or directory"),
        ("", "no pcap or pcapng file found"),
        ("notes.txt", "the file begins with the text 'nothing here'; expected the magic number of pcap or pcapng"),
    ],
    ids=["missing file", "pattern", "directory without captures", "another file"],
)
def test_no_capture_found_is_exit_code_2(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    code, error = complaint(["decode", str(tmp_path / name), "--output", str(tmp_path / "out")], capsys)
    assert code == 2
    assert re.fullmatch(rf"wirehare decode: (file://)?{re.escape(str(tmp_path / name))}: {re.escape(problem)}\n", error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["decode", "nightly"])
def test_files_that_are_not_captures_change_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Spark starts: a wrong path given with --overwrite costs no table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Dear diary")
    (tmp_path / "mail.gz").write_bytes(gzip.compress(b"Dear diary"))
    old = tmp_path / "out" / "frames" / "part-0.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    monkeypatch.setattr("jobs.decode.start", lambda byte_size: pytest.fail("Spark is not needed"))
    for captures in (["notes.txt"], ["mail.gz"], ["notes.txt", "mail.gz", "gone.pcap"]):
        code, error = complaint([command, *captures, "--output", "out", "--overwrite"], capsys)
        assert (code, error.count("\n")) == (2, 1)
        assert ("gone.pcap" if "gone.pcap" in captures else "Dear diary") in error
    assert old.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mail.gz", "notes.txt", "out"]


def test_output_of_another_program_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letters").mkdir()
    code, error = complaint(["decode", str(SAMPLES), "--output", str(tmp_path), "--overwrite"], capsys)
    assert code == 2
    assert error.startswith(f"wirehare decode: {tmp_path}: holds letters, which is not one of our tables")


def test_output_that_cannot_be_made_is_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, error = complaint(["decode", str(SAMPLES), "--output", str(tmp_path / "file" / "below" / "out")], capsys)
    assert (code, error.count("\n")) == (4, 1)
    assert "cannot be written to" in error


def test_the_module_has_the_exit_statuses_of_the_command() -> None:
    words = [sys.executable, "-m", "jobs.cli", "rule", "CH-90"]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("wirehare rule: no rule 'CH-90'")


def test_without_java_small_captures_are_decoded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs.cli", "decode", str(SAMPLES), "--output", str(tmp_path / "out")]
    assert without_java(tmp_path, command).returncode == 0
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {*TABLES}


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    ran = without_java(tmp_path, decode_with("Spark", str(SAMPLES), "--output", str(tmp_path / "out")))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (4, "", 1)
    assert ran.stderr.startswith("wirehare decode: Spark needs Java 17 or later: install it")
    assert list(tmp_path.iterdir()) == []


def without_java(tmp_path: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    return subprocess.run(
        command, env=environment | {"PATH": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_help_is_enough_to_work_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["decode", "--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    for word in ("CAPTURE", "--output DIR", "--payload", "--tables", "--port", "--host", "--since", "--until"):
        assert word in text
    assert "examples:" in text
    assert [int(code) for code in re.findall(r"^  (\d)  ", text, re.MULTILINE)] == [0, 2, 3, 4]


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out.startswith(f"wirehare {version}, pyspark 4.")


def test_help_does_not_load_spark() -> None:
    program = """
import sys
from jobs.cli import main
try:
    main(["--help"])
finally:
    print([name for name in ("pyspark", "numba", "pandas") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_schema_prints_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    text = capsys.readouterr().out
    for name, schema in TABLES.items():
        assert re.search(rf"^{name}$", text, re.MULTILINE)
        assert all(re.search(rf"^  {column} ", text, re.MULTILINE) for column in schema.names)


# Decoding


@pytest.mark.usefixtures("spark")
def test_the_samples_decode_to_all_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", str(SAMPLES), "--output", str(tmp_path / "out")]) == 0
    out, error = capsys.readouterr()

    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == sorted(TABLES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    captures = rows(tmp_path / "out/captures", "capture_file", "packets", "error")
    assert {Path(str(row["capture_file"])).name: row["packets"] for row in captures} == {
        name: packets for name, (packets, _, _) in SAMPLE_COUNTS.items()
    }
    assert {row["error"] for row in captures} == {None}
    frames = rows(tmp_path / "out/frames", "frame_type", "status", "payload")
    assert sum(row["frame_type"] != "protocol-header" for row in frames) == sum(
        frames for _, _, frames in SAMPLE_COUNTS.values()
    )
    assert {row["status"] for row in frames} == {"ok"}
    assert {row["payload"] for row in frames} == {None}
    connections = sum(connections for _, connections, _ in SAMPLE_COUNTS.values())
    assert len(rows(tmp_path / "out/connections", "connection_id")) == connections

    assert f"Captures: {len(SAMPLE_COUNTS)}\n" in out
    assert f"Connections: {connections}\n" in out
    written = re.escape(str(tmp_path / "out"))
    last = rf"Decoded in [\d.]+ s\. The tables are in {written}\nNext: wirehare audit {written} --report audit.html\n$"
    assert re.search(last, out)
    assert [line for line in error.splitlines() if not STEP.fullmatch(line)] == []


@pytest.mark.parametrize(
    ("argv", "connections", "line"),
    [
        # packets of all samples
        ([str(SAMPLES), "--port", "5673"], "", "--port, --host, --since or --until left out 435 of 435 "),
        ([str(CAPTURES / "091_tls13.pcap")], "Connections: 1 (1 TLS)", "to read TLS, give its secrets "),
        # tshark -T fields -e tcp.stream: 30 streams, 6 of them with -Y amqp
        ([str(CAPTURES / "091_mixed_traffic.pcap")], "Connections: 30 (6 AMQP, 24 other protocols)\n", ""),
    ],
    ids=["filtered", "TLS", "other protocols"],
)  # fmt: skip
def test_the_summary_says_where_amqp_is_missing(
    argv: list[str], connections: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", *argv, "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert connections in out
    assert ("No AMQP was found: " in out) == bool(line)
    assert line in out


def test_some_tables_with_payloads_of_one_host_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--host, --port, --since and --until together keep what lies in all of them."""
    argv = [
        "decode",
        str(SAMPLES / "091_declare_publish_consume_ack.pcap"),
        str(SAMPLES / "091_rpc_reply_to.pcap"),
        *("--output", str(tmp_path / "out"), "--tables", "messages,connections", "--payload"),
        *("--host", "127.0.0.1", "--port", "44650", "--since", "2026-11-20T00:00", "--until", "2026-11-21"),
    ]
    assert main([*argv, "--json", str(tmp_path / "found.json")]) == 0
    assert "Next: in Python, tables = wirehare.load(" in capsys.readouterr().out
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["connections", "messages"]
    assert [row["client_port"] for row in rows(tmp_path / "out/connections", "client_port")] == [44650]
    bodies = rows(tmp_path / "out/messages", "body", "body_size")
    assert bodies
    assert all(len(row["body"] or b"") == row["body_size"] for row in bodies)  # type: ignore[arg-type]

    found = json.loads((tmp_path / "found.json").read_text())
    assert found["output"] == str(tmp_path / "out")
    assert {Path(each["capture_file"]).name: each["packets"] for each in found["captures"]} == {
        "091_declare_publish_consume_ack.pcap": 74,
        "091_rpc_reply_to.pcap": 141,
    }
    assert found["connections"]["count"] == 1
    assert found["connections"]["first"][0]["client_port"] == 44650
    assert found["tables"] == {"messages": len(bodies), "connections": 1}
    assert sum(group["messages"] for group in found["messages"]) == len(bodies)
    assert sum(group["body_bytes"] for group in found["messages"]) == sum(int(str(row["body_size"])) for row in bodies)
    assert found["closed_with_error"] == []


def test_a_quiet_run_prints_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary as JSON on standard output, or nothing."""
    argv = ["decode", str(SAMPLES / "091_channel_exceptions.pcap"), "--output", str(tmp_path / "out"), "-q"]
    assert main([*argv, "--tables", "channels"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*argv, "--tables", "channels", "--overwrite", "--json", "-"]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    # tshark: amqp.method.method == 40 in packets 34, 42, 50, 56, 62, 72
    closed = json.loads(out)["closed_with_error"]
    assert [each["code"] for each in closed] == [403, 404, 404, 405, 406, 406]
    assert {(each["times"], each["closed"], each["by"]) for each in closed} == {(1, "channel", "server")}


def test_errors_of_1_0_have_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary has the errors of closes, ends and detaches, as tshark dissects them in `frame.number`."""
    names = ("10_rabbitmq_idle_empty_frames.pcap", "10_rabbitmq_link_errors.pcap", "10_qpidd_link_errors.pcapng")
    argv = ["decode", *(str(CAPTURES / name) for name in names), "--output", str(tmp_path / "out"), "-q"]
    assert main([*argv, "--tables", "connections,channels,links", "--json", "-"]) == 0
    closed = json.loads(capsys.readouterr().out)["closed_with_error"]
    rejected = 'Attach rejected: {unknown_destination,"/nonsense/with/parts/x"}'
    assert [(each["times"], each["closed"], each["by"], each["code"], each["text"]) for each in closed] == [
        # idle_empty_frames 17 and 35
        (2, "connection", "client", None, "amqp:resource-limit-exceeded: local-idle-timeout expired"),
        # RabbitMQ's link_errors 23, an end: its links are not listed again
        (1, "channel", "server", None, f"amqp:invalid-field: {rejected}"),
        # Qpid's link_errors 21, 19, 15 and 17, each a detach
        (1, "link", None, None, "amqp:not-found: Node not found: /exchange/no-such-exchange/k"),
        (1, "link", None, None, "amqp:not-found: Node not found: /nonsense/with/parts/x"),
        (1, "link", None, None, "amqp:not-found: Node not found: /queue/no-such-thing-xyz"),
        (1, "link", None, None, "amqp:not-found: Node not found: no-such-node-abc"),
    ]


def test_a_session_writes_what_the_command_writes(spark: SparkSession, tmp_path: Path) -> None:
    """One path for both; here without a word, and never over what is there unless asked."""
    capture = SAMPLES / "091_heartbeats.pcap"
    (row,) = pipeline.write(spark, str(capture), str(tmp_path / "out"), tables=["connections", "frames"])
    assert (row["packets"], row["error"]) == (SAMPLE_COUNTS[capture.name][0], None)
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["connections", "frames"]
    assert len(rows(tmp_path / "out/connections", "connection_id")) == SAMPLE_COUNTS[capture.name][1]
    with pytest.raises(OutputError, match="already holds tables"):
        pipeline.write(lambda: pytest.fail("not begun in vain"), str(capture), str(tmp_path / "out"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("spark")
def test_bad_captures_are_reported_and_the_others_are_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "captures"
    bad.mkdir()
    expected_packets = damaged_captures(bad)
    code = main(["decode", str(bad), "--output", str(tmp_path / "out")])
    out, error = capsys.readouterr()

    assert code == 3
    complaints = [line for line in error.splitlines() if not STEP.fullmatch(line)]
    found = {Path(str(row["capture_file"])).name: row for row in rows(tmp_path / "out/captures")}
    assert {name: row["packets"] or 0 for name, row in found.items()} == expected_packets
    damaged = sorted(set(expected_packets) - {"good.pcap"})
    assert sorted(name for name, row in found.items() if row["error"]) == damaged
    for name in damaged:
        assert len([line for line in complaints if f"/{name}: " in line]) == 1
    assert len(complaints) == len(damaged)
    frames = [
        Path(str(row["capture_file"])).name
        for row in rows(tmp_path / "out/frames", "capture_file", "frame_type")
        if row["frame_type"] != "protocol-header"
    ]
    assert frames.count("good.pcap") == SAMPLE_COUNTS["091_rpc_reply_to.pcap"][2]
    assert frames.count("corrupt-block.pcapng") > 0
    assert frames.count("cut.pcap.gz") > 0
    assert "damaged, see below" in out
    assert re.search(r"^  text\.pcap .* not read, see below$", out, re.M)


def damaged_captures(folder: Path) -> dict[str, int]:
    """Write captures that are damaged in all the usual ways; file name -> complete packets, counted by hand."""
    good = (SAMPLES / "091_rpc_reply_to.pcap").read_bytes()
    (folder / "good.pcap").write_bytes(good)
    (folder / "empty.pcap").write_bytes(b"")
    (folder / "text.pcap").write_text("No.  Time  Source\n1    0.0   127.0.0.1\n")
    (folder / "header-cut.pcap").write_bytes(good[:10])

    # The fortieth packet block claims to be 7 bytes long: neither a multiple of four nor as long as its own header.
    blocks = bytearray((CAPTURES / "091_ipv6.pcapng").read_bytes())
    at, packets = 0, 0
    while True:
        kind, length = struct.unpack_from("<II", blocks, at)
        packets += kind == 6  # enhanced packet block
        if packets == 40:
            break
        at += length
    struct.pack_into("<I", blocks, at + 4, 7)
    (folder / "corrupt-block.pcapng").write_bytes(blocks)

    # Half of a gzip file: deflate gives back what comes before the cut.
    half = gzip.compress((SAMPLES / "091_channel_exceptions.pcap").read_bytes())
    half = half[: len(half) // 2]
    cut = len([*pcap_records(zlib.decompressobj(wbits=31).decompress(half))])
    (folder / "cut.pcap.gz").write_bytes(half)

    return {
        "good.pcap": SAMPLE_COUNTS["091_rpc_reply_to.pcap"][0],
        "empty.pcap": 0,
        "text.pcap": 0,
        "header-cut.pcap": 0,
        "corrupt-block.pcapng": 39,
        "cut.pcap.gz": cut,
    }


def started(tmp_path: Path, means: str) -> subprocess.Popen[str]:
    """A decode in a process group of its own, as in a terminal."""
    return subprocess.Popen(
        decode_with(means, str(SAMPLES), "--output", str(tmp_path / "out"), "--overwrite"),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


# What is there when the signal comes; None: nothing yet, the command line is read.
MOMENTS = {"start": None, "JVM": "", "tasks": "-scratch/frames"}
DECODED = re.compile(r"captures? decoded")  # then tables are planned, for seconds


@pytest.mark.parametrize(
    ("means", "moment", "number"),
    [
        ("Spark", "start", signal.SIGINT),
        ("Spark", "JVM", signal.SIGINT),
        ("Spark", "tasks", signal.SIGINT),
        ("Spark", "planning", signal.SIGTERM),
        ("processes", "JVM", signal.SIGINT),
        ("processes", "tasks", signal.SIGINT),
        ("processes", "tasks", signal.SIGTERM),
    ],
)
def test_a_run_that_is_stopped_says_so_in_one_line_and_leaves_the_old_output(
    means: str, moment: str, number: signal.Signals, tmp_path: Path
) -> None:
    """As Ctrl-C in a terminal does, the signal goes to the whole group."""
    old = tmp_path / "out" / "frames" / "part-0.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    (tmp_path / "tmp").mkdir()
    run, stderr = started(tmp_path, means), ""
    deadline = time.monotonic() + 600  # it takes seconds, and minutes where others keep the processor busy
    try:
        if MOMENTS.get(moment, "") is None:
            while b"jobs.cli" not in Path(f"/proc/{run.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            while not catches(run.pid, number):
                assert time.monotonic() < deadline
        elif moment == "planning":
            assert run.stderr is not None
            while not DECODED.search(stderr):
                stderr += run.stderr.readline()
                assert time.monotonic() < deadline
            time.sleep(0.5)
        else:
            while not list(tmp_path.glob(f".wirehare-out-*{MOMENTS[moment]}")):
                assert run.poll() is None, run.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.002)
        os.killpg(run.pid, number)
        out, error = run.communicate(timeout=600)
        error = stderr + error
    finally:
        run.kill()
    assert (run.returncode, out) == (130, "")
    assert error.splitlines()[-1] == "wirehare: stopped; the previous output, if any, is as it was"
    assert [line for line in error.splitlines()[:-1] if not STEP.fullmatch(line)] == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "tmp"]
    assert old.read_text() == "old"


def test_a_process_ends_with_its_output_its_exit_handlers_and_its_exit_code() -> None:
    program = (
        "import atexit; from jobs.terminal import running; "
        "atexit.register(print, 'b'); print('a'); running.end_process(3)"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "a\nb\n", "")


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal that is not the one of Python itself (for SIGINT)."""
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    assert caught is not None
    return all(int(caught[1], 16) >> (each - 1) & 1 for each in (number, signal.SIGTERM))


@pytest.mark.parametrize(("means", "few"), [("Spark", ("--tables", "frames")), ("processes", ())])
def test_a_full_disk_is_one_line(tmp_path: Path, means: str, few: tuple[str, ...]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    (tmp_path / "tmp").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    try:
        words = decode_with(means, str(SAMPLES), "--output", str(small / "out"), *few)
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        remaining = list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert (ran.returncode, ran.stdout, remaining) == (4, "", [])
    complaints = [line for line in ran.stderr.splitlines() if not STEP.fullmatch(line)]
    where = "for the output or for temporary files (SPARK_LOCAL_DIRS, TMPDIR)"
    assert complaints == [f"wirehare decode: No space left on device, {where}"]
