"""What stands in a URI beside its place (passwords, options) is in no table and no message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_cli import SAMPLE_COUNTS, SAMPLES, complaint
from test_source import accounts, rows

from jobs import decode
from udfs.source.capture_bytes import CaptureFile, masked, public_uri
from udfs.source.paths import PathError, resolve
from udfs.source.sources import TcpRunsReader


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://key:secret@bucket/a/b.pcap?region=x", "s3://bucket/a/b.pcap"),
        ("s3://bucket/a.pcap", "s3://bucket/a.pcap"),
        ("gs://anonymous@bucket/a.pcap", "gs://anonymous@bucket/a.pcap"),
        ("abfs://container:pw@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("file:///a%20b.pcap", "file:///a%20b.pcap"),
        ("plain/path?.pcap", "plain/path?.pcap"),
        ("s3://bucket/a.pcap?", "s3://bucket/a.pcap"),
        # Of passwords with signs that should have been escaped; / is in every other key of a store.
        ("s3a://key:sec/ret@bucket/a.pcap", "s3a://bucket/a.pcap"),
        ("s3a://key:12/ret@bucket/a.pcap?x=y", "s3a://bucket/a.pcap"),
        ("s3://key:sec?ret@bucket/a.pcap?x=y", "s3://bucket/a.pcap"),
        ("s3://key:sec#r@et@bucket/a.pcap", "s3://bucket/a.pcap"),
        ("abfs://account:k/ey==@container/a", "abfs://account@container/a"),
        # What looks so behind the host is the name of a file.
        ("s3://key:secret@bucket/12:00/me@host.pcap", "s3://bucket/12:00/me@host.pcap"),
        ("s3://bucket/12:00/me@host.pcap", "s3://bucket/12:00/me@host.pcap"),
        ("hdfs://namenode:9000/me@host.pcap", "hdfs://namenode:9000/me@host.pcap"),
    ],
)
def test_shown_uris_hold_no_secrets(uri: str, expected: str) -> None:
    assert public_uri(uri) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no s3://key:a%2Fb@bucket/x?token=c%20d here", "no s3://bucket/x here"),
        ("no s3a://key:a/b@bucket/y here", "no s3a://bucket/y here"),  # as Java unescapes it
        ("bad options '?token=c d'", "bad options ''"),
        ("bucket is gone", "bucket is gone"),
    ],
)
def test_a_message_contains_no_secret_of_a_uri_in_any_spelling(text: str, expected: str) -> None:
    assert masked(text, "decode", "--output=s3://key:a%2Fb@bucket/x?token=c%20d", "file:///x?here", "/x") == expected


def test_unknown_scheme_is_named_without_its_password() -> None:
    with pytest.raises(PathError) as error:
        resolve(["quux://me:hunter2@host/x.pcap?token=abc"])
    assert str(error.value).startswith("quux://host/x.pcap: ")
    assert "hunter2" not in str(error.value)
    assert "abc" not in str(error.value)


def test_a_problem_in_the_tables_contains_no_secret(tmp_path: Path) -> None:
    """A store that is named as Hadoop names it, with a space in its options: Arrow quotes all of it, as s3://."""
    capture = tmp_path / "a.pcap"
    capture.touch()
    found, lost = resolve(["s3a://AKID:se/cret@amqp/day/*.pcap?region=a b", str(capture)])
    assert (lost.name, lost.size, found.problem) == ("s3://amqp/day/*.pcap", -1, None)
    assert str(lost.problem).startswith("Cannot parse URI: 's3://amqp/day' due to")


def test_a_uri_that_a_worker_cannot_open_is_reported_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver knew the file system; Arrow on the worker was built without it."""
    found = [CaptureFile("gopher://key:secret@host/x.pcap?token=abc", 1000)]
    monkeypatch.setattr("udfs.source.paths.resolve", lambda paths: found)
    (account,) = accounts(rows(TcpRunsReader, Path("unused"), paths="[]"))
    uri = "gopher://host/x.pcap"
    assert account["error"] == f"{uri}: Unrecognized filesystem type in URI: {uri}"


# The command


KEYED = [
    "s3a://AKID:se/cret@bucket/x",  # no file system takes it, and Arrow quotes it
    "s3a://AKID:secret@bucket/x?region=a b&token=secret",
    "gopher://AKID:secret@bucket/x?token=secret",
]


@pytest.mark.parametrize("uri", KEYED)
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("decode URI --output {tmp}/out", 2),
        ("decode URI/*.pcap --output {tmp}/out", 2),
        ("decode SAMPLE --output=URI", 2),
        ("audit URI", 3),
        ("audit {tmp} --report URI", 2),
        ("audit {tmp} --json=URI", 2),
        ("audit {tmp} --baseline URI", 2),
        ("audit {tmp} --config URI", 2),
        ("cut URI --connection 1 -o {tmp}/out", 3),
        ("cut {tmp} --connection 1 -o {tmp}/out --anonymise URI", 2),
        ("cut {tmp} --connection URI -o {tmp}/out", 2),
        ("schema URI", 2),
        ("decode SAMPLE --output {tmp}/out --unheard-of URI", 2),
        ("decode SAMPLE --output {tmp}/out --tables URI", 2),
        ("URI", 2),
    ],
)
def test_errors_do_not_contain_the_secrets_of_a_uri(
    argv: str, expected: int, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = {"URI": uri, "SAMPLE": str(SAMPLES / next(iter(SAMPLE_COUNTS)))}
    words = [re.sub("URI|SAMPLE", lambda found: indices[found[0]], word) for word in argv.format(tmp=tmp_path).split()]
    code, error = complaint(words, capsys)
    assert (code, error.count("\n")) == (expected, 1)
    assert "bucket" in error
    assert not re.search("AKID|cret|token", error)


def test_errors_of_spark_do_not_contain_the_secrets_of_a_uri(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(byte_size: int) -> None:
        raise RuntimeError("java.io.IOException: No FileSystem for gopher://AKID:se/cret@bucket/x\n\tat stack")

    monkeypatch.setattr(decode, "start", start)
    target = ["--output", str(tmp_path / "out")]
    code, error = complaint(["decode", str(SAMPLES), "gopher://AKID:se%2Fcret@bucket/x", *target], capsys)
    assert (code, error) == (4, "wirehare decode: java.io.IOException: No FileSystem for gopher://bucket/x\n")
