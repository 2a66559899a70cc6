"""Key logs: large ones, growing ones, damaged ones; and that no secret goes anywhere but to the ciphers."""

from __future__ import annotations

import base64
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numba
import pytest
from night import ENCRYPTED
from pyspark.sql import SparkSession
from submitting import submitted

import pipeline
from codec.layers.tls_ciphers import SUITES, cipher, keys_13
from codec.layers.tls_handshake import KeyLog, Opener, Secrets, Side, parse_line
from codec.layers.tls_recovery import Match
from jobs.cli import main
from udfs.decode.key_logs import KeyLogError, SecretFiles, require_key_logs

CAPTURES = Path(__file__).parents[1] / "captures"
LOG = CAPTURES / "091_tls13.keylog.txt"
LABELS = ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET", "CLIENT_TRAFFIC_SECRET_0")


def lines(count: int, first: int = 0) -> bytes:
    """Lines of many connections, three each, with Windows line ends in every other connection."""
    return b"".join(
        f"{label} {number:064x} {number + at:096x}".encode() + (b"\r\n" if number % 2 else b"\n")
        for number in range(first, first + count)
        for at, label in enumerate(LABELS)
    )


def test_a_line_is_label_random_and_secret() -> None:
    assert parse_line(b"CLIENT_RANDOM " + b"0A" * 32 + b" " + b"fF" * 48 + b"\r") == (
        b"CLIENT_RANDOM",
        b"\x0a" * 32,
        b"\xff" * 48,
    )
    for size in (31, 33, 47, 49):  # a line that is still being written
        assert parse_line(b"CLIENT_RANDOM " + b"0A" * 32 + b" " + b"fF" * size) is None
    for wrong in (b"", b"# a comment", b"CLIENT_RANDOM 00 11", b"CLIENT_RANDOM zz zz", b"RSA " + b"0" * 64 + b" 11"):
        assert parse_line(wrong) is None


def test_a_large_key_log_is_looked_up_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(b"# comment\n\nnonsense\n" + lines(30_000) + b"CLIENT_RANDOM " + b"ab" * 32 + b" " + b"cd" * 48)
    found = SecretFiles((str(path),)).open()
    for number in (0, 1, 17, 14_999, 29_999):
        expected = {label.encode(): ((number + at).to_bytes(48, "big"),) for at, label in enumerate(LABELS)}
        assert found.secrets(number.to_bytes(32, "big")) == expected
    assert found.secrets((30_000).to_bytes(32, "big")) == {}
    assert found.secrets(b"\xab" * 32) == {b"CLIENT_RANDOM": (b"\xcd" * 48,)}  # the last line has no end


@pytest.mark.parametrize(
    "line", [b"CLIENT_RANDOM " + b"ab" * 32 + b" " + b"cd" * 48 + b"\n", b"x" * 160 + b"\n", b"\n"]
)
def test_a_hostile_key_log_of_a_million_lines_costs_bounded_time(tmp_path: Path, line: bytes) -> None:
    """All of the same connection, or of none: indexing is linear, and a lookup reads few of them."""
    path = tmp_path / "keys.txt"
    path.write_bytes(line * 1_000_000 + lines(1))
    found, started = SecretFiles((str(path),)).open(), time.process_time()
    assert len(found.secrets(bytes(32))) == 3
    indexed = time.process_time()
    for _ in range(500):
        found.secrets(b"\xab" * 32)
    assert indexed - started < 20
    assert time.process_time() - indexed < 3


def test_a_growing_key_log_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(lines(2)[:-40])  # a line is just being written
    found = SecretFiles((str(path),)).open()
    assert len(found.secrets((1).to_bytes(32, "big"))) <= 3
    path.write_bytes(lines(5))
    assert found.secrets((1).to_bytes(32, "big"))[b"CLIENT_TRAFFIC_SECRET_0"] == ((3).to_bytes(48, "big"),)
    assert len(found.secrets((4).to_bytes(32, "big"))) == 3
    path.write_bytes(lines(3, 100))  # another file in its place
    assert found.secrets((4).to_bytes(32, "big")) == {}
    assert len(found.secrets((101).to_bytes(32, "big"))) == 3


def test_blocks_of_another_capture_of_the_set_are_found() -> None:
    client_random = next(iter(KeyLog(LOG.read_bytes())._known))
    here = SecretFiles((), (str(CAPTURES / "091_tls13.pcap"), str(CAPTURES / "091_tls13_dsb.pcapng")))
    assert here.open().secrets(client_random) == KeyLog(LOG.read_bytes()).secrets(client_random)
    assert SecretFiles((), (str(CAPTURES / "091_tls13.pcap"),)).open().secrets(client_random) == {}


def block(kind: int, body: bytes, order: Any = "little") -> bytes:
    """A block of a pcapng."""
    body += bytes(-len(body) % 4)
    size = (12 + len(body)).to_bytes(4, order)
    return kind.to_bytes(4, order) + size + body + size


def blocks_of_one_line(count: int) -> bytes:
    """Sections of both byte orders, with a Decryption Secrets Block for each line of a key log, the last line of each
    without its end, blocks of other kinds and of no length between them."""
    parts = []
    for number, line in enumerate(lines(count).splitlines()):
        order: Any = ("little", "big")[number // 1000 % 2]
        if number % 1000 == 0:
            magic = 0x1A2B3C4D.to_bytes(4, order) + (1).to_bytes(2, order) + bytes(2) + b"\xff" * 8
            parts.append(block(0x0A0D0D0A, magic, order))
        tls = 0x544C534B.to_bytes(4, order)
        parts.append(block(10, tls + len(line).to_bytes(4, order) + line, order))
        parts += [block(10, tls + bytes(4), order), block(10, b"", order), block(0xBAD, b"x" * (number % 9), order)]
    return b"".join(parts)


def test_small_blocks_of_secrets_are_read_together(tmp_path: Path) -> None:
    """Each cost a third of a millisecond. Python does the same for many as for few."""
    paths = {count: tmp_path / f"{count}.pcapng" for count in (1, 30, 3000)}
    calls = dict.fromkeys(paths, 0)
    for count, path in paths.items():
        path.write_bytes(blocks_of_one_line(count))

        def called(frame: FrameType, event: str, _: Any, of: int = count) -> None:
            name = frame.f_code.co_filename
            calls[of] += event == "call" and ("/udfs/decode/" in name or "/codec/capture/" in name)

        found = SecretFiles((), (str(path),)).open()
        sys.setprofile(called)
        try:
            found.secrets(bytes(32))
        finally:
            sys.setprofile(None)
        for number in {0, count // 2, count - 1}:
            expected = {label.encode(): ((number + at).to_bytes(48, "big"),) for at, label in enumerate(LABELS)}
            assert found.secrets(number.to_bytes(32, "big")) == expected
    if not numba.config.DISABLE_JIT:
        assert calls[3000] <= calls[30] + 200, "9000 lines of secrets, 36,000 blocks"


@pytest.mark.parametrize("content", [b"\x00\xff" * 5000, b"no line of a key log\n", b"x" * 20_000_000])
def test_other_files_as_key_log_give_no_secrets(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(content)
    assert SecretFiles((str(path),)).open().secrets(bytes(32)) == {}


def test_a_file_that_is_not_a_key_log_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyLogError, match="no such file"):
        require_key_logs([str(tmp_path / "none.txt")])
    log = tmp_path / "keys.txt"
    log.write_bytes(b"hunter2\n")
    with pytest.raises(KeyLogError) as refused:
        require_key_logs([str(log)])
    assert "hunter2" not in str(refused.value)
    arguments = ["decode", str(CAPTURES / "091_tls13.pcap"), "--output", str(tmp_path / "out"), "--keylog", str(log)]
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def spellings() -> list[bytes]:
    """Every secret of the key log: its bytes, as hexadecimal digits, in base64."""
    secrets = [bytes.fromhex(line.split()[2]) for line in LOG.read_text().splitlines() if not line.startswith("#")]
    found = [form for secret in secrets for form in (secret, secret.hex().encode(), base64.b64encode(secret))]
    return [*found, *(form.upper() for form in found if re.fullmatch(rb"[0-9a-f]+", form))]


def files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            yield from (Path(parent) / name for name in names)


def test_secrets_are_in_no_table_no_plan_and_no_file(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "tables"
    pipeline.write(spark, str(CAPTURES / "091_tls13.pcap"), str(output), payload=True, keylog=str(LOG))
    tables = pipeline.load(spark, str(output))
    (connection,) = tables.connections.collect()
    assert (connection.transport, connection.tls.decrypted, connection.content) == ("tls", True, "amqp")
    assert tables.frames.count() == 54
    lazy = pipeline.decode(spark, str(CAPTURES / "091_tls13_dsb.pcapng"))
    assert lazy.frames.count() == 54
    lazy.frames.explain("extended")
    lazy.release()
    printed = "".join(capfd.readouterr()).encode() + repr(connection).encode()
    searched = [path.read_bytes() for path in files(tmp_path)]
    assert len(searched) > 5
    for form in spellings():
        assert form not in printed
        assert not any(form in data for data in searched)


def test_secrets_are_in_no_report_and_only_in_cuts_that_request_them(
    night: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Reports of the night in every format, and cuts of every kind."""
    key, capture = str(tmp_path / "key"), (night / "captures" / ENCRYPTED).as_uri()
    Path(key).write_bytes(os.urandom(32))
    cuts: tuple[list[str], ...] = ([], ["--redact"], ["--anonymise", key], ["--decrypted"], ["--decrypted", "--redact"],
            ["--decrypted", "--anonymise", key])  # fmt: skip
    cut = ["cut", str(night / "tables"), "--where", f"capture_file = '{capture}'", "-o"]
    for number, options in enumerate(cuts):
        assert main([*cut, str(tmp_path / f"{number}.pcapng"), *options]) == 0
    printed = (night / "printed").read_bytes() + "".join(capfd.readouterr()).encode()
    assert b"sarif" in printed
    written = [*files(tmp_path, night / "tables"), *(path for path in night.iterdir() if path.is_file())]
    searched = {str(path): path.read_bytes() for path in written}
    names = {path.name for path in written}
    assert {"audit.html", "audit.json", *(f"{number}.pcapng" for number in range(len(cuts)))} <= names
    assert b"AMQP" in searched[str(tmp_path / "3.pcapng")]  # the connection in clear
    for form in spellings():
        assert form not in printed
        assert not [name for name, data in searched.items() if form in data]
    assert main([*cut, str(tmp_path / "asked.pcapng"), "--with-secrets"]) == 0
    asked = (tmp_path / "asked.pcapng").read_bytes()
    assert sum(form in asked for form in spellings()) >= len(LABELS)


JOB = """
import sys, traceback

from pyspark.sql import SparkSession

import pipeline

capture, log, output = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
pipeline.write(spark, capture, output, payload=True, keylog=log)
lazy = pipeline.decode(spark, capture, keylog=log)
for mode in ("simple", "extended", "codegen", "cost", "formatted"):
    lazy.frames.explain(mode)


def broken(batches):
    for batch in batches:
        raise ValueError(f"broken on purpose: {batch.num_rows}")
    yield


try:
    lazy.frames.mapInArrow(broken, "n long").collect()
except Exception:
    traceback.print_exc()
spark.stop()
"""


@contextmanager
def looking(folder: Path, forms: list[bytes]) -> Iterator[tuple[set[str], set[str], set[bytes]]]:
    """While this runs: the files below `folder` that were seen; where one of `forms` was found in them or in the
    arguments of a process; and all these arguments."""
    files_seen: set[str] = set()
    found_in: set[str] = set()
    started: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        last = False
        while not last:
            last = over.wait(0.1)  # once more when all is done
            for path in [*files(folder), *Path("/proc").glob("[0-9]*/cmdline")]:
                with suppress(OSError):  # what is gone, and processes of others
                    data = path.read_bytes()
                    (started.add(data) if path.parts[1] == "proc" else files_seen.add(path.name))
                    if any(form in data for form in forms):
                        found_in.add(str(path))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield files_seen, found_in, started
    finally:
        over.set()
        thread.join()


def test_secrets_are_in_no_event_log_no_argument_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of its own, with Spark's event log: tables, plans of every kind, and a failure in a Python worker that has
    the rows of the decrypted connection at hand."""
    events, temporary, output = tmp_path / "events", tmp_path / "temporary", tmp_path / "tables"
    for folder in (events, temporary):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    (tmp_path / "job.py").write_text(JOB)
    settings = {"eventLog.enabled": "true", "eventLog.dir": events.as_uri(), "eventLog.compress": "false",
                "local.dir": str(temporary), "master": "local[2]", "sql.shuffle.partitions": "2"}  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--conf", f"spark.{name}={value}")]
    capture = str(CAPTURES / "091_tls13.pcap")
    with looking(tmp_path, spellings()) as (seen, found_in, started):
        ran = submitted(*words, "job.py", capture, str(LOG), str(output), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout + ran.stderr
    assert "broken on purpose: 54" in printed
    assert "Physical Plan" in printed
    logged = b"".join(path.read_bytes() for path in files(events))
    assert b"broken on purpose: 54" in logged
    assert b"SparkListenerSQLExecutionStart" in logged
    assert len(seen) > 20  # tables, and what Spark writes meanwhile
    assert any(b"pyspark" in data and b"daemon" in data for data in started)
    assert any(str(LOG).encode() in data for data in started)
    assert found_in == set()
    assert not any(form in printed.encode() for form in spellings())


def test_no_object_with_a_secret_prints_it() -> None:
    """As a message or a log would, that quotes one by mistake."""
    secret, suite = bytes(range(32)), SUITES[0x1301]
    keys = keys_13(suite, secret)
    opener = Opener(b"", secret, cipher(suite, keys))
    known: Secrets = {b"": (secret,)}
    holders = (keys, opener, Side(secret=secret, stages=[[opener]]), Match(known, suite, True, known, 1.0))
    for holder in holders:
        assert not any(repr(each)[2:-1] in repr(holder) for each in (secret, keys.key, keys.iv))
