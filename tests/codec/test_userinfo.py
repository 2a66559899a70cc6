"""Userinfo of URIs is masked wherever one stands in a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import text as userinfo
from codec import variant as W
from codec.text import LONG, masked, overwrite_userinfo
from codec.variant.writer import METADATA, VALUE

pytestmark = pytest.mark.usefixtures("plain_kernels")

SECRET = "wonderland"
CUT = "x" * LONG
MASKED = {
    "amqp://guest:s3cret@broker:5672/vhost": "amqp://****@broker:5672/vhost",
    "see amqps://u:p@h, http://x:y@z/": "see amqps://****@h, http://****@z/",
    # several in one text, with nothing but a comma between
    "amqp://a:b@h1,amqp://c:wonderland@h2": "amqp://****@h1,amqp://****@h2",
    "failover:(tcp://a:b@h:1,tcp://c:d@h)?x=y": "failover:(tcp://****@h:1,tcp://****@h)?x=y",
    "mongodb://a:wonderland@h1:1,h2:2/db": "mongodb://****@h1:1,h2:2/db",
    # without a user, without a password, without a scheme
    "redis://:wonderland@h:6379": "redis://****@h:6379",
    "https://wonderland@github.com/x": "https://****@github.com/x",
    "//alice:wonderland@h/q": "//****@h/q",
    "jdbc:postgresql://u:p@h/d": "jdbc:postgresql://****@h/d",
    "jdbc:oracle:thin:scott/tiger@h:1521:x": "jdbc:oracle:thin:****@h:1521:x",
    "JDBC:Oracle:OCI:scott/tiger@//h:1521/x": "JDBC:Oracle:OCI:****@//h:1521/x",
    # encoded: all of it; as by Python, which leaves the slash; as a segment of a path; twice; as JSON of PHP
    "amqp%3A%2F%2Falice%3Awonderland%40h%2Fq": "amqp%3A%2F%2F****%40h%2Fq",
    "amqp%3a//alice%3Awonderland%40h/q": "amqp%3a//****%40h/q",
    "/queues/amqp:%2F%2Falice:wonderland@h": "/queues/amqp:%2F%2F****@h",
    "amqp%253A%252F%252Fa%253Awonderland%2540h": "amqp%253A%252F%252F****%2540h",
    "http://h/?u=amqp%3A%2F%2Fa%3Awonderland%40h": "http://h/?u=amqp%3A%2F%2F****%40h",
    "amqp://amqp%3A%2F%2Fa%3Awonderland%40h": "amqp://****%40h",
    "/queues/amqp://alice:wonderland%40h": "/queues/amqp://****%40h",
    "/queues/amqp:/%2Falice:wonderland%2540h": "/queues/amqp:/%2F****%2540h",
    "//alice%3Awonderland@h": "//****@h",
    "queue://alice:wonderland@h": "queue://****@h",
    r'{"u":"amqp:\/\/a:wonderland@h\/q","m":"a@b"}': r'{"u":"amqp:\/\/****@h\/q","m":"a@b"}',
    # encoded signs of a password do not end it
    "amqp://alice:12%2F34%40x@h/q": "amqp://****@h/q",
    # signs of a password that should have been encoded
    "amqp://u:a/b@c@h/x": "amqp://****@h/x",
    "amqp://u:wonder land@h/x": "amqp://****@h/x",
    'amqp://u:wonder"<>land@h/x': "amqp://****@h/x",
    "no queue 'amqp://u:it's@h/q' in vhost '/'": "no queue 'amqp://****@h/q' in vhost '/'",
    "amqp://o'brien:wonderland@h": "amqp://****@h",
    "amqp://u:123456/78@h": "amqp://****@h",  # no port has six digits
    "amqp://u:/wonderland@h": "amqp://****@h",
    "amqp://u:a:12/3@h": "amqp://****@h",
    # cut, as reply texts are after 255 bytes
    CUT + " amqp://alice:wonderl": CUT + " amqp://****",
}
AS_THEY_ARE = (
    "https://host:8080/me@home", "https://host/12:00/me@home", "https://github.com/x@y", "me@home",
    "queue://orders@home", "temp-topic://orders@home", "://", "a://@",
    "['amqp://h:5672', 'me@home']", "http://[::1]:5672/me@home", "http://[::1]/me@home", "orders//me@home", "%", "%4",
    "amqp://alice:wonderl", CUT + " http://host:5672", "mailto:me@home", "50% of a//b:c", "\\/\\/",
)  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [*MASKED.items(), *((text, text) for text in AS_THEY_ARE)])
def test_userinfo_of_uris_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
    assert masked(expected) == expected


@pytest.mark.parametrize("text", MASKED)
def test_overwritten_userinfo_keeps_its_size_and_shows_as_much(text: str) -> None:
    data = np.frombuffer(bytearray(text.encode()), np.uint8).copy()
    overwrite_userinfo(data, 0, len(data))
    assert len(data) == len(text)
    assert re.sub(r"\*+", "****", data.tobytes().decode()) == MASKED[text]


NAMES = st.text("abcdefgh019.-_~!$&()*+,;=", min_size=1, max_size=9)


@given(NAMES, NAMES, st.sampled_from(["", " ", "x,", "see: ", '{"u":"']), st.integers(0, 3))
def test_a_uri_is_masked_however_often_it_is_encoded(user: str, password: str, before: str, times: int) -> None:
    """By urllib, which knows nothing of this project."""
    uri, expected = f"amqp://{quote(user)}:{quote(password)}s3cr3t@host/q", "amqp://@host/q"
    for _ in range(times):
        uri, expected = quote(uri, safe=""), quote(expected, safe="")
    at = expected.rindex("@") if times == 0 else expected.index("%" + "25" * (times - 1) + "40")
    assert masked(before + uri) == before + expected[:at] + "****" + expected[at:]


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_keep_what_is_no_userinfo(before: bytes, after: bytes) -> None:
    text = (before + b"\n://u:s3cr3t@h\n" + after).decode("latin-1").encode()
    data = np.frombuffer(bytearray(text), np.uint8).copy()
    overwrite_userinfo(data, 0, len(data))
    assert b"s3cr3t" not in data.tobytes()
    assert len(data) == len(text)


def built(write: Callable[[W.Writer], None]) -> tuple[Any, W.Writer]:
    """What `write` writes, and its writer."""
    w = W.new_writer()
    W.begin(w)
    write(w)
    assert W.finish(w) == W.OK
    value, metadata = (w.value[: int(w.positions[VALUE])], w.metadata[: int(w.positions[METADATA])])
    return W.decode(value.tobytes(), metadata.tobytes()), w


URI = b"amqp://me:wonderland@host/"
LATIN = b"K\xfc " + URI


@pytest.mark.parametrize(
    ("put", "data", "expected"),
    [
        (W.put_text, URI, "amqp://****@host/"),
        (W.put_bytes, URI, "amqp://****@host/"),
        (W.put_binary, URI, b"amqp://****@host/"),
        (W.put_text, LATIN, r"K\xfc amqp://****@host/"),
        (W.put_bytes, LATIN, b"K\xfc amqp://****@host/"),
        (W.put_text, b"a" * 60 + URI, "a" * 60 + "amqp://****@host/"),
        (W.put_text, b"amqp://m@h" + b"/" * 60, "amqp://****@h" + "/" * 60),  # longer than it was
        (W.put_text, b"amqp://K\xfc:p@h", "amqp://****@h"),
        (W.put_text, b"\0" + URI, "\0amqp://****@host/"),
    ],
)
def test_values_are_masked_as_they_are_written(put, data, expected) -> None:  # type: ignore[no-untyped-def]
    buf = np.frombuffer(bytearray(data), np.uint8).copy()
    value, w = built(lambda w: put(w, buf, 0, len(buf)))
    assert value == expected
    assert all(SECRET.encode() not in array.tobytes() for array in w)


def test_a_key_is_masked() -> None:
    buf = np.frombuffer(bytearray(URI + LATIN), np.uint8).copy()

    def write(w: W.Writer) -> None:
        W.begin_object(w)
        W.text_key(w, buf, 0, len(URI))
        W.put_int(w, 1)
        W.text_key(w, buf, len(URI), len(buf))
        W.put_int(w, 2)
        W.end_object(w)

    value, w = built(write)
    assert value == {"amqp://****@host/": 1, r"K\xfc amqp://****@host/": 2}
    assert all(SECRET.encode() not in array.tobytes() for array in w)


HOSTILE = (
    b"//", b"//:a", b"://a:b", b"http://x:y ", b'//a:b"', b"//a:b ", b"%25", b"%252525252F", b"%3A%2F%2Fa%3Ab%20",
    b"://a:b%2F%2F%252F%252F%25252F%25252F", b"oracle:thin:", b"//%3A%3A%3A", b"a://u:p@h ",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_byte_is_read_a_few_times_at_most(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in steps, in a text of twice the size: it takes twice the steps."""
    steps = [0]
    read = userinfo._sign

    def counted(*given: Any) -> Any:
        steps[0] += 1
        return read(*given)

    monkeypatch.setattr(userinfo, "_sign", counted)
    counts = []
    for size in (1 << 11, 1 << 12):
        data = np.frombuffer(bytearray((piece * size)[:size]), np.uint8)
        steps[0] = 0
        userinfo.masked_size(data, 0, size)
        counts.append(steps[0])
    assert counts[1] <= 2.2 * counts[0]
    assert counts[1] <= 6 * (1 << 12)
