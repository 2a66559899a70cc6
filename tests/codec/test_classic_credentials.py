"""Passwords do not reach what is decoded; the user name does."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from classic_support import (
    TABLE,
    arguments,
    described_methods,
    example,
    long_prefixed,
    method_named,
    shortstr,
    with_padding,
)

from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import classic_tables
from codec.protocol.classic_values import classify_method, decode_arguments
from codec.protocol.versions import VERSIONS
from codec.variant import FULL, OK, new_writer

pytestmark = pytest.mark.usefixtures("plain_kernels")

PASSWORD = b"tops3cret-pa55"
PLAIN = b"\x00alice\x00" + PASSWORD
AMQPLAIN = shortstr(b"LOGIN") + b"S" + long_prefixed(b"alice") + shortstr(b"PASSWORD") + b"S" + long_prefixed(PASSWORD)
REVERSED = shortstr(b"PASSWORD") + b"S" + long_prefixed(PASSWORD) + shortstr(b"LOGIN") + b"S" + long_prefixed(b"alice")


def start_ok(mechanism: bytes, response: bytes) -> bytes:
    return long_prefixed(b"") + shortstr(mechanism) + long_prefixed(response) + shortstr(b"en_US")


def without_secret(version: str, name: str, data: bytes) -> Any:
    """The decoded fields; the password must not be anywhere in the writer's buffers."""
    w = new_writer()
    _, _, fields = arguments(version, name, data, w)
    for array in w:
        assert PASSWORD not in array.tobytes()
    return fields


@pytest.mark.parametrize("version", CLASSIC_VERSIONS)
@pytest.mark.parametrize(
    ("mechanism", "response", "user"),
    [
        (b"PLAIN", PLAIN, "alice"),
        (b"PLAIN", b"admin\x00alice\x00" + PASSWORD, "alice"),
        (b"PLAIN", b"\x00\xff\xfe\x00" + PASSWORD, r"\xff\xfe"),
        (b"PLAIN", b"\x00\x00" + PASSWORD, ""),
        (b"AMQPLAIN", AMQPLAIN, "alice"),
        (b"AMQPLAIN", REVERSED, "alice"),
    ],
)
def test_the_user_is_shown_and_the_password_is_not(version: str, mechanism: bytes, response: bytes, user: Any) -> None:
    assert without_secret(version, "connection.start-ok", start_ok(mechanism, response)) == {
        "client_properties": {},
        "mechanism": mechanism.decode(),
        "user": user,
        "locale": "en_US",
    }


NONCE = b"rOprNGfwEbeRWgbNEkqO"  # RFC 7677, section 3


@pytest.mark.parametrize(
    ("first", "user"),
    [
        (b"n,,n=alice,r=" + NONCE, "alice"),
        (b"y,,n=alice,r=" + NONCE + b",x=1", "alice"),
        (b"p=tls-exporter,a=admin,n=al=2Cice,r=" + NONCE, "al=2Cice"),
        (b"n,,n=alice", None),
        (b"n,,m=1,n=alice,r=" + NONCE, "alice"),  # RFC 5802, section 7: [reserved-mext ","] username "," nonce
        (b"n,,m=1,m=2,n=alice,r=" + NONCE, None),
        (b"c=biws,r=" + NONCE + b",p=" + PASSWORD, None),
        (b"n,,n=ali\0ce,r=" + NONCE, None),
        (b"", None),
    ],
)
def test_the_user_of_scram_is_in_its_first_message(first: bytes, user: str | None) -> None:
    fields = without_secret("0-9-1", "connection.start-ok", start_ok(b"SCRAM-SHA-256", first))
    assert fields.get("user") == user


DIGEST = b"b913a602c7eda7a495b4e6e7334d3890"  # RFC 2195, section 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"tim " + DIGEST, {"user": "tim"}),
        # After an empty challenge the response is what a start-ok may have (RFC 4422, section 3.2).
        (PLAIN, {"user": "alice"}),
        (b"alice\0alice\0" + PASSWORD, {"user": "alice"}),
        (b"admin\0alice\0" + PASSWORD, {"user": "alice"}),
        # What other mechanisms say, with two NULs by damage.
        (b"\0ali ce\0" + PASSWORD, {}),
        (b"tim\0" + DIGEST[:7] + b"\0" + DIGEST[8:], {}),
        (b"tim " + DIGEST[:7] + b"\0" + DIGEST[8:12] + b"\0" + DIGEST[13:], {}),
        (b"c=biws,r=rOpr\0NGgF\0BeRW", {}),
        (b"n,,n=alice,r=" + NONCE, {"user": "alice"}),
        (b"\0\0" + PASSWORD, {}),
        (b"\x05\0alice\0" + PASSWORD, {}),
        (b"\0al\x05ice\0" + PASSWORD, {}),
        (PASSWORD, {}),
        (b"tim  " + DIGEST, {}),
        (b"my tim " + DIGEST, {}),
        (b" " + DIGEST, {}),
        (b"tim " + DIGEST[1:], {}),
        (b"tim " + DIGEST.upper(), {}),
        (b"\0tim " + DIGEST, {}),
        (DIGEST, {}),
    ],
)
def test_the_user_is_read_from_an_answer_whose_challenge_identifies_the_mechanism(
    answer: bytes, expected: dict[str, str]
) -> None:
    assert without_secret("0-9-1", "connection.secure-ok", long_prefixed(answer)) == expected


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        (b"PLAIN", PASSWORD),
        (b"PLAIN", b"\x00" + PASSWORD),
        (b"PLAIN", b"\x00a\x00b\x00" + PASSWORD),
        (b"PLAIN", b""),
        (b"AMQPLAIN", PLAIN),
        (b"AMQPLAIN", long_prefixed(AMQPLAIN)),
        (b"AMQPLAIN", shortstr(b"LOGIN") + b"?" + PASSWORD),
        (b"AMQPLAIN", AMQPLAIN[30:]),
        (b"RABBIT-CR-DEMO", PASSWORD),
        (b"EXTERNAL", PASSWORD),
        (b"XOAUTH2", PASSWORD),
    ],
)
def test_without_a_readable_user_nothing_of_the_response_is_shown(mechanism: bytes, response: bytes) -> None:
    fields = without_secret("0-9-1", "connection.start-ok", start_ok(mechanism, response))
    assert fields == {"client_properties": {}, "mechanism": mechanism.decode(), "locale": "en_US"}


@pytest.mark.parametrize("mechanism", [b"", b"plain", b"PLAIN ", b"PL\0IN", "PLÄIN".encode(), b"P" * 21])
def test_text_that_is_not_a_mechanism_name_is_not_shown(mechanism: bytes) -> None:
    fields = without_secret("0-9-1", "connection.start-ok", start_ok(mechanism, PLAIN))
    assert fields == {"client_properties": {}, "locale": "en_US"}


@pytest.mark.parametrize("mechanism", [b"P" * 20, b"SCRAM-SHA-256", b"X_9"])
def test_text_that_may_be_a_mechanism_name_is_shown(mechanism: bytes) -> None:
    assert without_secret("0-9-1", "connection.start-ok", start_ok(mechanism, PLAIN))["mechanism"] == mechanism.decode()


@pytest.mark.parametrize("mechanism", [b"PLAIN", b"AMQPLAIN"])
def test_damage_does_not_uncover_the_password(mechanism: bytes) -> None:
    data = start_ok(mechanism, PLAIN if mechanism == b"PLAIN" else AMQPLAIN)
    for size in range(len(data)):
        fields = without_secret("0-9-1", "connection.start-ok", data[:size])
        assert "response" not in fields
    without_secret("0-9-1", "connection.start-ok", data + PASSWORD)


def test_other_secrets() -> None:
    assert without_secret("0-9-1", "connection.secure-ok", long_prefixed(PLAIN + b"\0")) == {}
    update = long_prefixed(PASSWORD) + shortstr(b"token refresh")
    assert without_secret("0-9-1", "connection.update-secret", update) == {"reason": "token refresh"}
    token = next(i for i, f in enumerate(method_named("0-9", "message.transfer").fields) if f.name == "security-token")
    fields = dict(described_methods("0-9"))["message.transfer"]["fields"]
    before, after = example(fields[:token], 0)[0], TABLE + b"\x00" + long_prefixed(b"body")
    assert "security_token" not in without_secret("0-9", "message.transfer", before + long_prefixed(PASSWORD) + after)


def test_a_full_heap_does_not_uncover_the_password() -> None:
    t, version = classic_tables(), VERSIONS.index("0-9-1")
    data = struct.pack(">HH", 10, 11) + start_ok(b"PLAIN", PLAIN)
    buf = with_padding(data)
    index = classify_method(buf, 3, 3 + len(data), t, version)
    for room in range(80):
        w = new_writer(room, room)
        code, _ = decode_arguments(buf, 7, 3 + len(data), t, version, index, w)
        assert code in (OK, FULL)
        for array in w:
            assert PASSWORD not in array.tobytes()
