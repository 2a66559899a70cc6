"""What the functions say of flows, and what they leave out: secrets, addresses, names."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import classic_frames
import encode_0_10
import golden
import proton
import pyarrow as pa
import pytest
from decoding import decoded
from encode_1_0 import SASL, frame, performative
from test_classic_credentials import AMQPLAIN, PASSWORD, PLAIN
from test_functions import as_single, column, frames, in_streams, versions_column
from yacryptopan import CryptoPAn

from codec.pseudonyms import key_of
from udfs.functions.privacy_functions import (
    anonymise_ip,
    flow_id,
    pseudonyms,
    redact_frame,
)

OVERLAY = json.loads(resources.files("codec.protocol.spec").joinpath("overlay.json").read_text("utf-8"))
SECRETIVE = set(OVERLAY["credentials"]) - {"about"}
KEY = bytes(range(32))


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def redacted(version: str, *rows: bytes | None) -> list[bytes | None]:
    found: list[bytes | None] = redact_frame(column(*rows), versions_column(version, len(rows))).to_pylist()
    return found


def sasl(code: int, *fields: Any) -> bytes:
    """A SASL frame of 1.0."""
    return frame(performative(code, *fields), kind=SASL)


# ---- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0-8", "0-9", "0-9-1"])
@pytest.mark.parametrize(("mechanism", "response"), [("PLAIN", PLAIN), ("AMQPLAIN", AMQPLAIN)])
def test_only_the_response_of_start_ok_is_blanked(version: str, mechanism: str, response: bytes) -> None:
    start_ok = classic_frames.method(version, "connection.start-ok", 0, mechanism=mechanism, response=response)
    (blank,) = redacted(version, start_ok)
    assert blank == start_ok.replace(response, b"*" * len(response))
    (row,) = frames(version, blank)
    assert (row["status"], row["name"], row["arguments"]["mechanism"]) == ("ok", "connection.start-ok", mechanism)


def test_every_field_with_a_secret_is_blanked() -> None:
    update = classic_frames.method("0-9-1", "connection.update-secret", 0, new_secret=PASSWORD, reason="expired")
    control = encode_0_10.one_frame("connection.start-ok", {"mechanism": "PLAIN", "response": PLAIN, "locale": "en_US"})
    secure = encode_0_10.one_frame("connection.secure-ok", {"response": PLAIN})
    init = sasl(0x41, proton.symbol("PLAIN"), PLAIN, "host")
    rest = [sasl(code, PLAIN) for code in (0x42, 0x43)]
    outcome = sasl(0x44, proton.ubyte(0), PASSWORD)
    given = {"0-9-1": [update], "0-10": [control, secure], "1.0": [init, *rest, outcome]}
    for version, rows in given.items():
        for row, blank in zip(rows, redacted(version, *rows), strict=True):
            secret = PLAIN if PLAIN in row else PASSWORD
            assert blank == row.replace(secret, b"*" * len(secret))


def test_frames_that_cannot_be_redacted_are_null() -> None:
    start_ok = classic_frames.method("0-9-1", "connection.start-ok", 0, mechanism="PLAIN", response=PLAIN)
    unknown = classic_frames.frame(1, 0, b"\0\x0a\x7f\xff" + PASSWORD)
    nulls = redact_frame(column(start_ok[:-1], start_ok + b"\xce", unknown, b"", None), versions_column("0-9-1", 5))
    assert nulls.to_pylist() == [None] * 5
    assert PASSWORD not in nulls.buffers()[2].to_pybytes()
    part = encode_0_10.frame(0, encode_0_10.segment("connection.secure-ok", {"response": PLAIN})[:30], flags=0x0E)
    assert redacted("0-10", part) == [None]
    assert redacted("1.0", sasl(0x41, proton.symbol("PLAIN"), PLAIN)[:-1]) == [None]


def test_a_field_that_does_not_fit_is_blanked_with_all_that_follows() -> None:
    """The response says that it is longer than its frame; then the table before it does."""
    start_ok = classic_frames.method("0-9-1", "connection.start-ok", 0, mechanism="PLAIN", response=PLAIN)
    at = start_ok.index(PLAIN)
    lying = start_ok[: at - 4] + b"\0\0\xff\xff" + start_ok[at:]
    assert redacted("0-9-1", lying) == [lying[: at - 4] + b"*" * (len(lying) - at + 3) + b"\xce"]
    table_at = 7 + 4
    lying = start_ok[:table_at] + b"\0\0\xff\xff" + start_ok[table_at + 4 :]
    assert redacted("0-9-1", lying) == [lying[:table_at] + b"*" * (len(lying) - table_at - 1) + b"\xce"]


def test_a_secret_after_a_size_that_is_too_short_is_blanked() -> None:
    """The size says 0, or less than there is: what it leaves out stands where other fields should, or behind them."""
    zero = bytes(4)
    table_and_name = zero + b"\x05PLAIN"
    start_ok = classic_frames.frame(1, 0, b"\0\x0a\0\x0b" + table_and_name + zero + PLAIN)
    secure_ok = classic_frames.frame(1, 0, b"\0\x0a\0\x15" + zero + PASSWORD)
    response = encode_0_10.segment("connection.secure-ok", {"response": b""}) + PASSWORD
    segmented = encode_0_10.frame(0, response)
    # sasl-init with two fields: a symbol, and a response of no bytes (vbin8, 0xa0 0x00), with it and behind the list
    fields = b"\xa3\x05PLAIN" + b"\xa0\0"
    in_list = b"\0\x53\x41\xc0" + bytes([len(fields + PASSWORD) + 1, 2]) + fields + PASSWORD
    behind = b"\0\x53\x41\xc0" + bytes([len(fields) + 1, 2]) + fields + PASSWORD
    described = [(8 + len(body)).to_bytes(4, "big") + b"\x02\x01\0\0" + body for body in (in_list, behind)]
    # with its size, which may be a part of it: of vbin8 two bytes with the constructor; behind a list it has none
    sizes = {"0-9-1": [4, 4], "0-10": [4], "1.0": [2, 0]}
    given = {"0-9-1": [start_ok, secure_ok], "0-10": [segmented], "1.0": described}
    for version, rows in given.items():
        for row, size, blanked in zip(rows, sizes[version], redacted(version, *rows), strict=True):
            secret = PLAIN if PLAIN in row else PASSWORD
            at = row.index(secret) - size
            assert blanked == row[:at] + b"*" * (size + len(secret)) + row[at + size + len(secret) :]
    assert redacted("0-9-1", b"AMQPpass") == [None]


def test_frames_of_all_captures_lose_their_secrets_and_nothing_else() -> None:
    seen = set()
    for name in sorted(golden.captures()):
        for version in ("0-8", "0-9", "0-9-1", "0-10", "1.0"):
            pairs = [pair for pair in in_streams(name) if pair[0]["version"] == version and pair[0]["status"] == "ok"]
            blank = redacted(version, *(data for _, data in pairs))
            rows = frames(version, *blank)
            for (row, data), ours, again in zip(pairs, blank, rows, strict=True):
                if row["name"] not in SECRETIVE:
                    assert ours == data, (name, row["frame_no"])
                    continue
                assert ours is not None
                seen.add((version, row["name"]))
                expected = as_single(row)
                without = {key: value for key, value in expected["arguments"].items() if key != "user"}
                notes = [note for note in expected["notes"] or () if "password" not in note] or None
                assert repr(again) == repr(expected | {"arguments": without, "notes": notes})
                assert b"\0guest\0guest" not in ours
    assert {version for version, name in seen} == {"0-8", "0-9", "0-9-1", "0-10", "1.0"}


# ---- addresses and names --------------------------------------------------------------------------------------------


def test_addresses_of_both_families_in_one_column() -> None:
    given = ["10.0.0.1", "2001:db8::1", None, "10.0.0.2", "no address", "", "fe80::1%eth0", "10.0.0.1", "2001:DB8:0::1"]
    other = CryptoPAn(KEY)
    expected = {text: other.anonymize(text) for text in ("10.0.0.1", "10.0.0.2", "2001:db8::1")}
    expected["2001:DB8:0::1"] = expected["2001:db8::1"]
    found = anonymise_ip(texts(*given), pa.array([KEY] * len(given)))
    assert found.to_pylist() == [expected.get(text or "") for text in given]


def test_keys_may_be_passphrases_and_differ_by_row() -> None:
    keys = texts("one", "two", "one", None)
    found = anonymise_ip(texts(*["192.0.2.1"] * 4), keys).to_pylist()
    assert found[:2] == [CryptoPAn(key_of(key)).anonymize("192.0.2.1") for key in (b"one", b"two")]
    assert found[2:] == [found[0], None]


def test_pseudonyms_of_a_column() -> None:
    names, prefixes = texts("orders", "audit", None, "", "orders"), texts("queue", "queue", "queue", "queue", "key")
    orders, audit, nothing, default, key = pseudonyms(names, prefixes, texts(*["k"] * 5)).to_pylist()
    assert orders.split("-")[1] == key.split("-")[1] != audit.split("-")[1]
    assert (nothing, default, key[:4]) == (None, "", "key-")


def test_without_a_key_the_error_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"no key: call amqp_anonymise_ip\(ip, key\), or register .* udfs.register"):
        anonymise_ip(texts("10.0.0.1"))


# ---- flows ------------------------------------------------------------------------------------------------


# From the baseline of the Community ID specification: flow, protocol, seed, identifier.
BASELINE = [
    ("128.232.110.120", 34855, "66.35.250.204", 80, 6, 0, "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
    ("66.35.250.204", 80, "128.232.110.120", 34855, 6, 0, "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
    ("128.232.110.120", 34855, "66.35.250.204", 80, 6, 1, "1:3V71V58M3Ksw/yuFALMcW0LAHvc="),
    ("192.168.1.52", 54585, "8.8.8.8", 53, 17, 0, "1:d/FP5EW3wiY1vCndhwleRRKHowQ="),
    ("192.168.1.52", 54585, "8.8.8.8", 53, 17, 1, "1:Q9We8WO3piVF8yEQBNJF4uiSVrI="),
]


def test_community_ids_of_the_baseline() -> None:
    ip, port, other_ip, other_port, protocol, seed, expected = (pa.array(part) for part in zip(*BASELINE, strict=True))
    assert flow_id(ip, port, other_ip, other_port, protocol, seed).to_pylist() == expected.to_pylist()
    usual = flow_id(ip, port, other_ip, other_port).to_pylist()
    assert usual[:3] == [BASELINE[0][-1]] * 3


def test_community_ids_of_the_captures() -> None:
    """As the table `connections` has them, whose tests know them from elsewhere."""
    for name in ("091_ipv6.pcapng", "091_handshake_ok.pcap"):
        facts = decoded(name)[0].facts
        ends = [texts(facts["server_ip"]), pa.array([facts["server_port"]])]
        ends += [texts(facts["client_ip"]), pa.array([facts["client_port"]])]
        assert flow_id(*ends).to_pylist() == [facts["community_id"]]


def test_an_invalid_flow_has_no_id() -> None:
    ips, ports = texts(None, "nowhere", "10.0.0.1", "10.0.0.1", "10.0.0.1"), pa.array([1, 1, 65536, 1, None])
    found = flow_id(ips, ports, texts(*["::1"] * 5), pa.array([5672] * 5))
    assert found.is_valid().to_pylist() == [False, False, False, True, False]
    assert flow_id(texts("::1"), pa.array([1]), texts("::2"), pa.array([1]), pa.array([1])).to_pylist() == [None]
