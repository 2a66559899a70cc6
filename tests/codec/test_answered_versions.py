"""A server that answers with the protocol header of another version: what it says after that is read in its version."""

from __future__ import annotations

import classic_frames as classic
import encode_0_10 as v0_10
import encode_1_0 as v1_0
import pytest
from wire import CLIENT, SERVER, Wire

HEADERS = {
    "0-8": "414d515001010800", "0-9": "414d515001010009", "0-9-1": "414d515000000901", "0-10": "414d51500101000a",
    "1.0": "414d515000010000",
}  # fmt: skip
CLOSE = {"reply_code": 540, "reply_text": "NOT_IMPLEMENTED", "class_id": 0, "method_id": 0}


def reason(version: str) -> tuple[bytes, list[str]]:
    """How a server of this version says why it refuses, and the names of its frames."""
    if version == "1.0":
        performatives = (v1_0.performative(v1_0.OPEN, "broker"), v1_0.performative(v1_0.CLOSE))
        return b"".join(map(v1_0.frame, performatives)), ["open", "close"]
    if version == "0-10":
        close = v0_10.one_frame("connection.close", {"reply-code": 501, "reply-text": b"framing-error"})
        return close, ["connection.close"]
    return classic.method(version, "connection.close", 0, **CLOSE), ["connection.close"]


PAIRS = [(asked, answered) for asked in HEADERS for answered in HEADERS if asked != answered]


@pytest.mark.parametrize(("asked", "answered"), PAIRS, ids=[f"{asked} {answered}" for asked, answered in PAIRS])
@pytest.mark.parametrize("cut", [None, 3, 12])
def test_frames_after_the_servers_own_header(asked: str, answered: str, cut: int | None) -> None:
    wire = Wire()
    wire.add(CLIENT, bytes.fromhex(HEADERS[asked]))
    frames, names = reason(answered)
    data = bytes.fromhex(HEADERS[answered]) + frames
    for part in (data,) if cut is None else (data[:cut], data[cut:]):
        wire.add(SERVER, part)
    rows, facts = wire.rows()
    assert [row["name"] for row in rows if row["sender"] == "server"] == [None, *names]
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["version"] for row in rows if row["sender"] == "server"} == {answered}
    assert facts["versions_offered"] == [f"client {asked}", f"server {answered}"]
    assert facts["server"]["frame_bytes"] == len(data)
    assert facts["content"] == "amqp"


def test_the_client_is_read_in_its_own_version() -> None:
    """It sends an open of 1.0 with its header, before it knows the answer."""
    wire = Wire()
    wire.add(CLIENT, bytes.fromhex(HEADERS["1.0"]) + v1_0.frame(v1_0.performative(v1_0.OPEN, "client")))
    wire.add(SERVER, bytes.fromhex(HEADERS["0-9-1"]) + reason("0-9-1")[0])
    wire.add(CLIENT, v1_0.frame(v1_0.performative(v1_0.CLOSE)))
    rows, _ = wire.rows()
    assert [(row["sender"], row["version"], row["name"]) for row in rows] == [
        ("client", "1.0", None), ("client", "1.0", "open"), ("server", "0-9-1", None),
        ("server", "0-9-1", "connection.close"), ("client", "1.0", "close"),
    ]  # fmt: skip


def test_an_unknown_version_is_answered() -> None:
    wire = Wire()
    wire.add(CLIENT, b"AMQP\x02\x01\x00\x00")
    wire.add(SERVER, bytes.fromhex(HEADERS["1.0"]) + reason("1.0")[0])
    rows, facts = wire.rows()
    assert [row["name"] for row in rows] == [None, None, "open", "close"]
    assert facts["server"]["frame_bytes"] == 8 + len(reason("1.0")[0])


def test_bytes_of_the_answer_are_missing() -> None:
    """The hole is inside the close: its frame is partial, in the server's version."""
    wire = Wire()
    wire.add(CLIENT, bytes.fromhex(HEADERS["0-9-1"]))
    wire.add(SERVER, bytes.fromhex(HEADERS["1.0"]) + v1_0.frame(v1_0.performative(v1_0.OPEN, "broker")))
    close = v1_0.frame(v1_0.performative(v1_0.CLOSE, v1_0.described(0x1D, "amqp:connection:framing-error", "x" * 50)))
    wire.add(SERVER, close[:20])
    wire.lose(SERVER, len(close) - 20)
    rows, _ = wire.rows()
    found = [(row["version"], row["name"], row["status"]) for row in rows if row["sender"] == "server"]
    assert found[:2] == [("1.0", None, "ok"), ("1.0", "open", "ok")]
    assert ("1.0", "close", "partial") in found


# ---- another protocol before AMQP, and instead of it ----

START = classic.method("0-9-1", "connection.start", 0, version_major=0, version_minor=9, server_properties={},
                       mechanisms=b"PLAIN", locales=b"en_US")  # fmt: skip
OPEN_1_0 = v1_0.frame(v1_0.performative(v1_0.OPEN, "x"))
AMQP = {"0-9-1": (b"", START), "1.0": (OPEN_1_0, bytes.fromhex(HEADERS["1.0"]) + OPEN_1_0)}
# What the client and the server say by turns, before AMQP.
PREAMBLES = {
    "connect": [b"CONNECT broker.example:5672 HTTP/1.1\r\nHost: broker.example\r\n\r\n",
                b"HTTP/1.1 200 Connection established\r\n\r\n"],
    "socks 4": [bytes.fromhex("0401 1628 c0000216 00"), bytes.fromhex("005a 0000 00000000")],
    "socks 5": [bytes.fromhex("050100"), bytes.fromhex("0500"), bytes.fromhex("05010001c00002161628"),
                bytes.fromhex("05000001000000000000")],
    "noise of the client": [b"\x99" * 20],
    "text with the name": [b"hello AMQP server\n"],
}  # fmt: skip


def behind(preamble: list[bytes], version: str, step: int = 1 << 20) -> Wire:
    """AMQP of this version behind a preamble; every part in packets of `step` bytes."""
    wire = Wire()
    client, server = AMQP[version]
    turns = [(n % 2, part) for n, part in enumerate(preamble)]
    turns += [(0, bytes.fromhex(HEADERS[version])), (1, server), (0, client)]
    for side, part in turns:
        for at in range(0, len(part), step):
            wire.add((CLIENT, SERVER)[side], part[at : at + step])
    return wire


@pytest.mark.parametrize("step", [1 << 20, 7, 1])
@pytest.mark.parametrize("version", AMQP)
@pytest.mark.parametrize("name", PREAMBLES)
def test_amqp_behind_the_preamble_of_a_proxy(name: str, version: str, step: int) -> None:
    preamble = PREAMBLES[name]
    rows, facts = behind(preamble, version, step).rows()
    sizes = {"client": sum(map(len, preamble[::2])), "server": sum(map(len, preamble[1::2]))}
    foreign = {row["sender"]: row["size"] for row in rows if row["frame_type"] == "foreign"}
    assert foreign == {sender: size for sender, size in sizes.items() if size}
    alone, _ = behind([], version).rows()
    columns = ("sender", "frame_type", "name", "version", "status", "size")
    found = [tuple(row[name] for name in columns) for row in rows if row["frame_type"] != "foreign"]
    assert found == [tuple(row[name] for name in columns) for row in alone]
    assert facts["content"] == "amqp"
    assert [facts[sender]["foreign_bytes"] for sender in sizes] == list(sizes.values())
    assert facts["client"]["skipped_bytes"] == facts["server"]["skipped_bytes"] == 0


OTHERS = {
    "MQTT": (bytes.fromhex("101600044d5154540402003c000a") + b"my-client1", 0x10160004),
    "STOMP": (b"STOMP\naccept-version:1.2\n\n\0", 0x53544F4D),
    "telnet": (bytes.fromhex("fff4fffd06"), 0xFFF4FFFD),
    "Redis": (b"*1\r\n$4\r\nPING\r\n", 0x2A310D0A),
    "a password in capitals": (b"PASS s3cret\r\n", -1),
    "a login in text": (b"secret\n", -1),
}


@pytest.mark.parametrize("answered", [None, *HEADERS])
@pytest.mark.parametrize("name", OTHERS)
def test_another_protocol_is_foreign_whatever_the_broker_answers(name: str, answered: str | None) -> None:
    data, code = OTHERS[name]
    wire = Wire()
    wire.add(CLIENT, data)
    if answered is not None:
        wire.add(SERVER, bytes.fromhex(HEADERS[answered]))
    rows, facts = wire.rows()
    (row,) = [row for row in rows if row["sender"] == "client"]
    assert (row["frame_type"], row["size"], row["code"]) == ("foreign", len(data), code)
    assert facts["content"] == "foreign"
    assert facts["client"]["foreign_bytes"] == len(data)


def test_tls_answered_by_the_header_of_amqp() -> None:
    wire = Wire()
    wire.add(CLIENT, bytes.fromhex("16030100050100000100"))
    wire.add(SERVER, bytes.fromhex(HEADERS["0-9-1"]))
    rows, facts = wire.rows()
    assert facts["content"] == "tls"
    assert {row["sender"]: row["frame_type"] for row in rows} == {"client": "tls", "server": "protocol-header"}


@pytest.mark.parametrize("captured", [4, 5, 7])
def test_a_snaplen_inside_the_protocol_header_leaves_amqp(captured: int) -> None:
    """Every packet has so many bytes of its payload."""
    wire = Wire()
    for side, data in ((CLIENT, bytes.fromhex(HEADERS["0-9-1"])), (SERVER, START), (CLIENT, START), (SERVER, START)):
        wire.add(side, data, captured=captured)
    rows, facts = wire.rows()
    assert facts["content"] == "amqp"
    assert not [row for row in rows if row["frame_type"] == "foreign"]
    sent = [8 + len(START), 2 * len(START)]
    assert [facts[side]["skipped_bytes"] + facts[side]["frame_bytes"] + facts[side]["tail_bytes"]
            + facts[side]["missing_bytes"] for side in ("client", "server")] == sent  # fmt: skip
