"""A login whose fields are not where its mechanism has them: the password is not visible in any version."""

from __future__ import annotations

import base64
from collections import Counter

import fuzz_tables
import pytest
from logins import PASSWORD, TOKEN, amqplain, login_frames
from wire import FLOW, Wire

VERSIONS = ("0-8", "0-9", "0-9-1", "0-10", "1.0")
BASE64 = base64.b64encode(b"\0alice\0" + PASSWORD)
# RFC 4616, section 2: [authzid] NUL authcid NUL passwd, where passwd has at least one character.
HIDDEN_PLAIN = {
    "first NUL missing": b"alice\0" + PASSWORD + b"\0",
    "first NUL missing, a line end after it": b"alice\0" + PASSWORD + b"\0\r\n",
    "first NUL missing, the user again": b"alice\0" + PASSWORD + b"\0alice",
    "first NUL missing, the password again": b"alice\0" + PASSWORD + b"\0" + PASSWORD,
    "two fields": b"alice\0" + PASSWORD,
    "two fields after a NUL": b"\0" + PASSWORD,
    "four fields": b"\0alice\0" + PASSWORD + b"\0",
    "four fields without the first": b"alice\0" + PASSWORD + b"\0\0",
    "lines": b"alice\r\n" + PASSWORD + b"\r\n",
    "lines between NULs": b"\0alice\r\n" + PASSWORD + b"\0",
    "line ends for one NUL": b"\0alice\n" + PASSWORD + b"\0x",
    "lengths": b"\0\x05alice\0\x0e" + PASSWORD,
    "lengths of two bytes": b"\0\0\x05alice\0\x0e" + PASSWORD,
    "length and NULs": b"\0\x0e" + PASSWORD + b"\0x",
    "base64": BASE64,
    "base64 between NULs": b"\0" + BASE64 + b"\0",
    "base64 for the user": b"\0" + BASE64 + b"\0" + PASSWORD,
    "base64 of a colon": b"\0" + base64.b64encode(b"alice:" + PASSWORD) + b"\0",
    "base64url without padding": b"\0" + base64.urlsafe_b64encode(b"alice\0" + PASSWORD).rstrip(b"=") + b"\0x",
    "a colon": b"\0alice:" + PASSWORD + b"\0",
    "a colon, and the password again": b"\0alice:" + PASSWORD + b"\0" + PASSWORD,
    "a blank": b"\0alice " + PASSWORD + b"\0",
    "a token for the user": b"\0" + TOKEN + b"\0",
    "a token for the user, and a password": b"\0" + TOKEN + b"\0x",
    "a table": amqplain((b"LOGIN", b"alice"), (b"PASSWORD", PASSWORD)),
    "a URI for the user": b"\0amqp://alice:" + PASSWORD + b"@host\0x",
}
HIDDEN_AMQPLAIN = {
    "fields of PLAIN": b"\0alice\0" + PASSWORD,
    "no password": amqplain((b"LOGIN", PASSWORD)),
    "two users": amqplain((b"LOGIN", b"alice"), (b"LOGIN", PASSWORD), (b"PASSWORD", b"")),
    "another name": amqplain((b"USER", b"alice"), (b"LOGIN", PASSWORD)),
    "both for the user": amqplain((b"LOGIN", b"alice:" + PASSWORD), (b"PASSWORD", b"")),
    "both with NULs for the user": amqplain((b"LOGIN", b"\0alice\0" + PASSWORD), (b"PASSWORD", b"")),
    "base64 for the user": amqplain((b"LOGIN", BASE64), (b"PASSWORD", b"")),
    "a token for the user": amqplain((b"LOGIN", TOKEN), (b"PASSWORD", b"x")),
    "its length before it": (41).to_bytes(4, "big") + amqplain((b"LOGIN", b"alice"), (b"PASSWORD", PASSWORD)),
}
CASES = [
    *(("PLAIN", name, response) for name, response in HIDDEN_PLAIN.items()),
    *(("AMQPLAIN", name, response) for name, response in HIDDEN_AMQPLAIN.items()),
]
SECRETS = (PASSWORD, TOKEN, BASE64, base64.b64encode(b"alice:" + PASSWORD)[:16])


def visible(logins: list[list[tuple[int, bytes]]]) -> tuple[bytes, list[str | None]]:
    """All that the tables have of these logins, and `connections.user` of each."""
    wires = []
    for frames in logins:
        wire = Wire()
        for direction, data in frames:
            wire.add(direction, data)
        wires.append([(FLOW, *wire.arrays())])
    rows = fuzz_tables.tables(wires, payload=True)
    fuzz_tables.check(rows)
    users = fuzz_tables.table_of(rows, "connections", "user")["user"].to_pylist()
    texts = [fuzz_tables.bytes_of(column) for batches in rows.values() for each in batches for column in each.columns]
    return fuzz_tables.spelled_out(rows) + b"\n".join(texts), users


@pytest.mark.parametrize("version", VERSIONS)
def test_a_user_that_may_be_the_password_is_not_shown(version: str) -> None:
    logins = [login_frames(version, mechanism, response) for mechanism, _, response in CASES]
    logins += [login_frames(version, mechanism, b"", response) for mechanism, _, response in CASES]  # by its form alone
    text, users = visible(logins)
    assert [secret for secret in SECRETS if secret in text] == []
    assert {user for user in users if user} <= {"alice", "amqp://****@host"}


VISIBLE = {
    b"\0alice\0" + PASSWORD: "alice",
    b"Ursel\0Kurt\0xipj3plmq": "Kurt",  # RFC 4616, section 4
    b"guest\0guest\0guest": "guest",
    b"\0guest\0guest": "guest",
    b"\0alice\0": "alice",
    b"alice\0alice\0": "alice",
    b"\0rabbit12\0x": "rabbit12",  # base64 digits that are no text
    b"\0tenant:alice\0x": "tenant:alice",
    b"\0" + b"u" * 60 + b"\0x": "u" * 60,
    b"\0m\xc3\xbcller\0x": "m\u00fcller",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_other_users_are_shown(version: str) -> None:
    logins = [login_frames(version, "PLAIN", response) for response in VISIBLE]
    logins += [login_frames(version, "PLAIN", b"", response) for response in VISIBLE]
    assert Counter(visible(logins)[1]) == Counter(2 * list(VISIBLE.values()))
