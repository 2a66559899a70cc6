"""Key logs: large ones, growing ones, damaged ones; and that no secret goes anywhere but to the ciphers."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipeline
from codec.layers.tls.keylog import KeyLog, parse_line
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
    for wrong in (b"", b"# a comment", b"CLIENT_RANDOM 00 11", b"CLIENT_RANDOM zz zz", b"RSA " + b"0" * 64 + b" 11"):
        assert parse_line(wrong) is None


def test_a_large_key_log_is_looked_up_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(b"# comment\n\nnonsense\n" + lines(30_000) + b"CLIENT_RANDOM " + b"ab" * 32 + b" " + b"cd" * 48)
    found = SecretFiles((str(path),)).open()
    for number in (0, 1, 17, 14_999, 29_999):
        wanted = {label.encode(): (number + at).to_bytes(48, "big") for at, label in enumerate(LABELS)}
        assert found.secrets(number.to_bytes(32, "big")) == wanted
    assert found.secrets((30_000).to_bytes(32, "big")) == {}
    assert found.secrets(b"\xab" * 32) == {b"CLIENT_RANDOM": b"\xcd" * 48}  # the last line has no end


def test_a_growing_key_log_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(lines(2)[:-40])  # a line is just being written
    found = SecretFiles((str(path),)).open()
    assert len(found.secrets((1).to_bytes(32, "big"))) <= 3
    path.write_bytes(lines(5))
    assert found.secrets((1).to_bytes(32, "big"))[b"CLIENT_TRAFFIC_SECRET_0"] == (3).to_bytes(48, "big")
    assert len(found.secrets((4).to_bytes(32, "big"))) == 3
    path.write_bytes(lines(3, 100))  # another file in its place
    assert found.secrets((4).to_bytes(32, "big")) == {}
    assert len(found.secrets((101).to_bytes(32, "big"))) == 3


def test_blocks_of_another_capture_of_the_set_are_found() -> None:
    client_random = next(iter(KeyLog(LOG.read_bytes())._known))
    here = SecretFiles((), (str(CAPTURES / "091_tls13.pcap"), str(CAPTURES / "091_tls13_dsb.pcapng")))
    assert here.open().secrets(client_random) == KeyLog(LOG.read_bytes()).secrets(client_random)
    assert SecretFiles((), (str(CAPTURES / "091_tls13.pcap"),)).open().secrets(client_random) == {}


@pytest.mark.parametrize("content", [b"\x00\xff" * 5000, b"no line of a key log\n", b"x" * 20_000_000])
def test_what_is_no_key_log_gives_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(content)
    assert SecretFiles((str(path),)).open().secrets(bytes(32)) == {}


def test_a_key_log_that_is_none_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    """Every secret of the key log: its octets, as hexadecimal digits, in base64."""
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
    said = "".join(capfd.readouterr()).encode() + repr(connection).encode()
    searched = [path.read_bytes() for path in files(tmp_path)]
    assert len(searched) > 5
    for form in spellings():
        assert form not in said
        assert not any(form in octets for octets in searched)
