"""What the decoder notes about frames that only their bytes tell, one case each; and nothing about ordinary ones."""

from __future__ import annotations

import inspect
import struct
from typing import Any

import amqp.serialization
import encode_0_10 as segmented
import golden
import pika.frame
import pika.spec
import proton
import pytest
from classic_support import described_methods, long_prefixed, shortstr
from decoding import decoded
from encode_1_0 import frame as frame_1_0
from encode_1_0 import performative, section
from wire import CLIENT, Wire

from codec.protocol.classic_tables import methods
from codec.protocol.rows import NOTE_NAMES

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
GREETINGS = {"0-8": b"AMQP\x01\x01\x08\x00", "0-9": b"AMQP\x01\x01\x00\x09", "0-9-1": b"AMQP\x00\x00\x09\x01"}
GREETINGS |= {"0-10": b"AMQP\x01\x01\x00\x0a", "1.0": b"AMQP\0\1\0\0"}


def frame(kind: int, payload: bytes, channel: int = 1, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(class_id: int, method_id: int, *arguments: bytes) -> bytes:
    return frame(METHOD, struct.pack(">HH", class_id, method_id) + b"".join(arguments))


def header(size: int, flags_and_values: bytes = b"\0\0", class_id: int = 60, weight: int = 0) -> bytes:
    return frame(HEADER, struct.pack(">HHQ", class_id, weight, size) + flags_and_values)


def table(*entries: bytes) -> bytes:
    return long_prefixed(b"".join(entries))


def declare(arguments: bytes, bits: int = 0, ticket: int = 0, queue: bytes = b"q") -> bytes:
    return method(50, 10, struct.pack(">H", ticket), shortstr(queue), bytes([bits]), arguments)


def notes(*frames: bytes, version: str = "0-9-1") -> list[list[str]]:
    """Of each row after the protocol header."""
    wire = Wire()
    wire.add(CLIENT, GREETINGS[version] + b"".join(frames))
    rows, _ = wire.rows()
    assert {row["version"] for row in rows} == {version}
    return [row["notes"] for row in rows[1:]]


def start_ok(mechanism: bytes, response: bytes) -> bytes:
    return method(10, 11, table(), shortstr(mechanism), long_prefixed(response), shortstr(b"en_US"))


def login(password: bytes) -> bytes:
    """The table of AMQPLAIN, which has no length before it."""
    return shortstr(b"LOGIN") + b"S" + long_prefixed(b"user") + shortstr(b"PASSWORD") + b"S" + long_prefixed(password)


PUBLISH = pika.frame.Method(1, pika.spec.Basic.Publish(exchange="e", routing_key="k")).marshal()
ACK = pika.frame.Method(1, pika.spec.Basic.Ack(1)).marshal()
ARRAY_OF_S = b"A" + long_prefixed(b"s\0\x01")
PLAIN = {"shortstr": "text", "longstr": "text", "table": {"a": "text"}, "bit": True}
PLAIN |= dict.fromkeys(("octet", "short", "long", "longlong"), 1)
CONTENT = [PUBLISH, header(3), frame(BODY, b"abc")]
CASES: dict[str, tuple[list[bytes], list[list[str]]]] = {
    "end byte": ([frame(METHOD, ACK[7:-1], end=b"\xcf"), ACK], [["frame-end"], []]),
    "size that hides frames": (
        [struct.pack(">BHI", BODY, 1, 3 * len(ACK)) + 3 * ACK + b"\0", ACK],
        [["frame-end"], [], [], [], ["frame-type"], []],
    ),
    "frame type": ([frame(9, b"abc"), ACK], [["frame-type"], []]),
    "no frame": ([b"\x77" * 20, ACK], [["frame-type"], []]),
    "size": ([struct.pack(">BHI", BODY, 1, (128 << 20) + 1), ACK], [["size-implausible"], []]),
    "size that is only large": ([struct.pack(">BHI", BODY, 1, 128 << 20), ACK], [[], []]),
    "size in noise": ([b"\x77" * 10 + b"\x03\0\x01\xff\xff\xff\xff", ACK], [["frame-type"], []]),
    "method without its numbers": ([frame(METHOD, b"\0\x3c\0")], [["fields-short"]]),
    "argument missing": ([method(60, 80, bytes(8))], [["fields-short"]]),  # basic.ack without its bit
    "argument cut": ([method(60, 80, bytes(7))], [["fields-short"]]),
    "string longer than the payload": ([method(20, 10, b"\x05ab")], [["fields-short"]]),  # channel.open
    "argument too many": ([method(60, 80, bytes(8), b"\0", b"\0")], [["bytes-left"]]),
    "table of unknown tag": ([declare(table(shortstr(b"a"), b"?"))], [["table-broken"]]),
    "table whose name is longer than it": ([declare(table(b"\x09ab"))], [["table-broken"]]),
    "table whose value is longer than it": ([declare(table(shortstr(b"a"), b"I\0\0"))], [["table-broken"]]),
    "array of unknown tag": ([declare(table(shortstr(b"a"), b"A", long_prefixed(b"?")))], [["table-broken"]]),
    "tag s": ([declare(table(shortstr(b"a"), b"s\0\x01"))], [["ambiguous-tag"]]),
    "tag l": ([declare(table(shortstr(b"a"), b"l", bytes(8)))], [["ambiguous-tag"]]),
    "tag L": ([declare(table(shortstr(b"a"), b"L", bytes(8)))], [["ambiguous-tag"]]),
    "tag U": ([declare(table(shortstr(b"a"), b"U\0\x01"))], [["ambiguous-tag"]]),
    "tag s in an array": ([declare(table(shortstr(b"a"), ARRAY_OF_S))], [["ambiguous-tag"]]),
    "tag s in headers": ([PUBLISH, header(0, b"\x20\0" + table(shortstr(b"a"), b"s\0\x01"))], [[], ["ambiguous-tag"]]),
    "zero byte": ([declare(table(), queue=b"a\0b")], [["zero-byte"]]),
    "not UTF-8": ([declare(table(), queue=b"\xc3")], [["not-utf8"]]),
    "zero byte, not UTF-8": ([declare(table(), queue=b"\0\xc3")], [["zero-byte", "not-utf8"]]),
    "UTF-8": ([declare(table(), queue="grün".encode())], [[]]),
    "name of zero byte": ([declare(table(shortstr(b"a\0"), b"t\0"))], [["zero-byte"]]),
    "name not UTF-8": ([declare(table(shortstr(b"\xff"), b"t\0"))], [["not-utf8"]]),
    "name in UTF-8": ([declare(table(shortstr("ü".encode()), b"t\0"))], [[]]),
    "long string of anything": ([declare(table(shortstr(b"a"), b"S", long_prefixed(b"\0\xff")))], [[]]),
    "property not UTF-8": ([PUBLISH, header(0, b"\x80\0" + shortstr(b"\xff"))], [[], ["not-utf8"]]),
    "ticket": ([declare(table(), ticket=1)], [["reserved-set"]]),
    "low byte of the ticket": ([declare(table(), ticket=256)], [["reserved-set"]]),
    "out-of-band": ([method(20, 10, shortstr(b"x"))], [["reserved-set"]]),
    "insist": ([method(10, 40, shortstr(b"/"), shortstr(b""), b"\x01")], [["reserved-set"]]),
    # passive, durable, auto-delete, internal, no-wait: the third and fourth are reserved in the text only
    "auto-delete, internal": ([method(40, 10, b"\0\0", shortstr(b"x"), shortstr(b"direct"), b"\x0c", table())], [[]]),
    "sixth bit of five": ([declare(table(), bits=0x20)], [["unused-bits"]]),
    "five bits of five": ([declare(table(), bits=0x1F)], [[]]),
    "second bit of one": ([method(60, 80, bytes(8), b"\x02")], [["unused-bits"]]),
    "everything at once": (
        [declare(table(shortstr(b"\0"), b"s\0\x01"), bits=0x80, ticket=1) + b"", ACK],
        [["ambiguous-tag", "zero-byte", "reserved-set", "unused-bits"], []],
    ),
    "cluster-id": ([PUBLISH, header(0, b"\0\x04" + shortstr(b"c"))], [[], ["reserved-set"]]),
    "weight": ([PUBLISH, header(0, weight=1)], [[], ["weight"]]),
    "flag of no property": ([PUBLISH, header(0, b"\0\x02")], [[], ["undefined-flags"]]),
    "flag in a second word": ([PUBLISH, header(0, b"\0\x01\x80\0")], [[], ["undefined-flags"]]),
    "second word of nothing": ([PUBLISH, header(0, b"\0\x01\0\0")], [[], []]),
    "property missing": ([PUBLISH, header(0, b"\x80\0")], [[], ["fields-short"]]),
    "header without flags": ([PUBLISH, frame(HEADER, struct.pack(">HHQ", 60, 0, 0))], [[], ["fields-short"]]),
    "second word missing": ([PUBLISH, header(0, b"\0\x01")], [[], ["fields-short"]]),
    "octets after the properties": ([PUBLISH, header(0, b"\0\0\0")], [[], ["bytes-left"]]),
    "header of another class": ([PUBLISH, header(0, class_id=50)], [[], ["class-differs"]]),
    "method for a header": ([PUBLISH, ACK, *CONTENT], [[], ["header-missing"], [], [], []]),
    "body for a header": ([PUBLISH, frame(BODY, b"abc")], [[], ["header-missing"]]),
    "publish for a header": ([PUBLISH, *CONTENT], [[], ["header-missing"], [], []]),
    "method for a body": ([PUBLISH, header(3), ACK], [[], [], ["body-short"]]),
    "header for a body": ([PUBLISH, header(3), header(3)], [[], [], ["body-short"]]),
    "method within a body": ([PUBLISH, header(3), frame(BODY, b"ab"), ACK], [[], [], [], ["body-short"]]),
    "other channel within a body": (
        [PUBLISH, header(3), frame(BODY, b"ab"), frame(METHOD, ACK[7:-1], channel=2), frame(BODY, b"c")],
        [[], [], [], [], []],
    ),
    "heartbeat within a body": ([PUBLISH, header(3), frame(HEARTBEAT, b"", 0), frame(BODY, b"abc")], [[], [], [], []]),
    "body that is too long": ([PUBLISH, header(2), frame(BODY, b"abc")], [[], [], ["body-long"]]),
    "body after the end": ([*CONTENT, frame(BODY, b"d")], [[], [], [], ["body-long"]]),
    "body of nothing": ([PUBLISH, header(0), frame(BODY, b"a")], [[], [], ["unexpected-body"]]),
    "header only": ([header(3)], [["orphan-content"]]),
    "body only": ([frame(BODY, b"a")], [["orphan-content"]]),
    "header after the end": ([*CONTENT, header(3)], [[], [], [], ["orphan-content"]]),
    "password": ([start_ok(b"PLAIN", b"\0user\0secret")], [[]]),
    "no password": ([start_ok(b"PLAIN", b"\0user\0")], [["empty-password"]]),
    "token": ([start_ok(b"PLAIN", b"\0\0eyJhbGciOiJ.eyJz-_dWIi.c2ln")], [["token-password"]]),
    "token of two parts": ([start_ok(b"PLAIN", b"\0\0eyJhbGciOiJ.eyJz")], [[]]),
    "token with a part of nothing": ([start_ok(b"PLAIN", b"\0\0eyJhbGciOiJ..c2ln")], [[]]),
    "token of other bytes": ([start_ok(b"PLAIN", b"\0\0eyJhbGciOiJ.ey z.c2ln")], [[]]),
    "other text with dots": ([start_ok(b"PLAIN", b"\0\0a.b.c")], [[]]),
    "other mechanism": ([start_ok(b"EXTERNAL", b"\0user\0")], [[]]),
    "AMQPLAIN": ([start_ok(b"AMQPLAIN", login(b"secret"))], [[]]),
    "AMQPLAIN without password": ([start_ok(b"AMQPLAIN", login(b""))], [["empty-password"]]),
    "AMQPLAIN with token": ([start_ok(b"AMQPLAIN", login(b"eyJh.eyJz.c2ln"))], [["token-password"]]),
    "URI with a password": ([declare(table(), queue=b"amqp://a:b@h")], [["userinfo"]]),
    "size beyond all": ([PUBLISH, header(2**63), frame(BODY, b"a"), ACK], [[], [], [], []]),
}


FIRST_SEGMENT, LAST_SEGMENT, SINGLE_FRAME = 8, 4, 3
CONTROL, COMMAND, HEADER_OF, BODY_OF = range(4)
POINT = segmented.one_frame("session.command-point", {"command-id": 0, "command-offset": 0}, 1)
SYNC, TRANSFER, STAGE = (segmented.segment(name, {}) for name in ("execution.sync", "message.transfer", "file.stage"))
PROPERTIES = ("message.delivery-properties", {"routing-key": "q"})
OPEN = frame_1_0(performative(0x10, "container"))


def command(payload: bytes, flags: int = 15) -> bytes:
    return segmented.frame(COMMAND, payload, 1, flags)


def header_of(*structs: tuple[str, dict[str, str]], flags: int = LAST_SEGMENT | SINGLE_FRAME) -> bytes:
    return segmented.frame(HEADER_OF, segmented.header(*structs), 1, flags)


BEGUN = command(TRANSFER, FIRST_SEGMENT | SINGLE_FRAME)
# Case -> version, frames, notes.
OF_SESSIONS: dict[str, tuple[str, list[bytes], list[list[str]]]] = {
    "a command and its header": ("0-10", [POINT, BEGUN, header_of(PROPERTIES)], [[], [], []]),
    "a frame of 11 bytes": (
        "0-10", [POINT, POINT[:2] + b"\0\x0b" + POINT[4:11], *4 * [POINT]], [[], ["frame-short"], [], [], [], []]
    ),
    "reserved flags": ("0-10", [POINT, bytes([POINT[0] | 16]) + POINT[1:], POINT], [[], ["frame-flags"], []]),
    "a control on track 1": ("0-10", [POINT, POINT[:5] + b"\1" + POINT[6:], POINT], [[], ["track"], []]),
    "a header that is a first segment": (
        "0-10", [POINT, BEGUN, header_of(PROPERTIES, flags=15), POINT], [[], [], ["segment-order"], []]
    ),
    "a control of several segments": (
        "0-10", [POINT, bytes([POINT[0] & ~LAST_SEGMENT]) + POINT[1:], POINT], [[], ["control-with-content"], []]
    ),
    "a segment without its last frame": (
        "0-10", [POINT, command(SYNC, 15 - 1), command(SYNC)], [[], [], ["segment-cut"]]
    ),
    "a body behind a command that has none": (
        "0-10", [POINT, command(SYNC, 15 - LAST_SEGMENT)], [[], ["segments-unexpected"]]
    ),
    "no header behind a command that must have one": ("0-10", [POINT, command(STAGE)], [[], ["header-missing"]]),
    "a struct twice": ("0-10", [POINT, BEGUN, header_of(PROPERTIES, PROPERTIES)], [[], [], ["entry-unexpected"]]),
    "packing flags of no field": (
        "0-10", [POINT, command(SYNC[:-2] + b"\0\x80"), POINT], [[], ["undefined-flags"], []]
    ),
    "a frame of 7 bytes": ("1.0", [OPEN, b"\0\0\0\7\2\0\0", *3 * [OPEN]], [[], ["frame-short"], [], [], []]),
    "an attach whose name does not fit": (
        "1.0", [OPEN, frame_1_0(bytes.fromhex("005312c00603a190616263"))], [[], ["values-broken"]]
    ),
    "a message without a body": (
        "1.0",
        [OPEN, frame_1_0(performative(0x14, proton.uint(0), proton.uint(0), b"t", proton.uint(0), True)
                         + section(0x74, {"a": "b"}))],
        [[], ["body-missing"]],
    ),
    "a begin without windows": ("1.0", [OPEN, frame_1_0(performative(0x11))], [[], ["fields-missing"]]),
    "an attach with a handle that is null": (
        "1.0", [OPEN, frame_1_0(performative(0x12, "l", None, True))], [[], ["fields-missing"]]
    ),
    "a detach of four fields": (
        "1.0", [OPEN, frame_1_0(performative(0x16, proton.uint(0), True, None, "more"))], [[], ["fields-extra"]]
    ),
    "octets behind a detach": (
        "1.0", [OPEN, frame_1_0(performative(0x16, proton.uint(0)) + b"\x40")], [[], ["bytes-left"]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_SESSIONS)
def test_notes_on_frames_of_sessions(case: str) -> None:
    version, frames, expected = OF_SESSIONS[case]
    assert notes(*frames, version=version) == expected


@pytest.mark.parametrize("case", CASES)
def test_notes_on_frames(case: str) -> None:
    frames, expected = CASES[case]
    assert notes(*frames) == expected


def test_every_note_has_its_case() -> None:
    of_spans = {"snap-length"}
    of_order = {"peer-late", "captured-late"}  # tests/pipeline/test_order_far_apart.py
    noted = [expected for _, expected in CASES.values()] + [expected for *_, expected in OF_SESSIONS.values()]
    assert {note for expected in noted for row in expected for note in row} | of_spans | of_order == set(NOTE_NAMES)


def test_bytes_cut_by_the_snap_length_are_distinguished_from_lost_ones() -> None:
    wire = Wire()
    wire.add(CLIENT, GREETINGS["0-9-1"])
    wire.add(CLIENT, ACK)
    *ids, wire_len, captured_len = wire.segments[-1][:8]
    wire.segments[-1] = (*ids, wire_len, captured_len - 5, *wire.segments[-1][8:])
    wire.payload = wire.payload[:-5]
    wire.add(CLIENT, ACK)
    wire.lose(CLIENT, 20)
    wire.add(CLIENT, ACK)
    rows, _ = wire.rows()
    assert [(row["size"], row["notes"]) for row in rows if row["frame_type"] == "gap"] == [
        (5, ["snap-length"]),
        (20, []),
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n", 0x47455420),
        (b"\x16\x03\xff\x02\0\x01\0", 0x1603FF02),
        (b"PASS s3cret\r\n", -1),
        (b"\xff" * 8, 0xFFFFFFFF),
        (b"GET", -1),
    ],
)
def test_the_code_of_a_foreign_stream_is_its_detected_protocol(data: bytes, code: int) -> None:
    wire = Wire()
    wire.add(CLIENT, data)
    wire.add(CLIENT, b"and so on")
    ((row, *_), _) = wire.rows()
    assert (row["frame_type"], row["code"]) == ("foreign", code)


def test_the_bytes_of_a_protocol_header() -> None:
    wire = Wire()
    wire.add(CLIENT, b"AMQP\x01\x01\x08\x00")
    ((row, *_), _) = wire.rows()
    assert row["code"] == 0x01010800


def test_a_ticket_is_reserved_only_in_0_9_1() -> None:
    passive = method(50, 10, b"\0\x01", shortstr(b"q"), b"\x01", table())
    assert notes(passive, version="0-8") == notes(passive, version="0-9") == [[]]
    assert notes(passive) == [["reserved-set"]]


def test_the_optional_table_of_basic_consume_in_0_8_is_not_trailing_bytes() -> None:
    consume = [b"\0\0", shortstr(b"q"), shortstr(b"t"), b"\0"]
    assert notes(method(60, 20, *consume), version="0-8") == [[]]
    assert notes(method(60, 20, *consume, table()), version="0-8") == [[]]
    assert notes(method(60, 20, *consume, table(), b"\0"), version="0-8") == [["bytes-left"]]


def test_no_note_compares_frames_across_a_loss() -> None:
    """The capture lacks the frames between a header and a method that would interrupt it."""
    wire = Wire()
    wire.add(CLIENT, GREETINGS["0-9-1"] + PUBLISH + header(3))
    wire.lose(CLIENT, len(frame(BODY, b"abc")))
    wire.add(CLIENT, ACK)
    wire.add(CLIENT, ACK)
    rows, _ = wire.rows()
    assert [row["notes"] for row in rows] == [[]] * len(rows)
    assert "gap" in {row["frame_type"] for row in rows}


@pytest.mark.parametrize("number", pika.spec.methods, ids=lambda number: pika.spec.methods[number].NAME)
def test_methods_of_pika_have_no_notes(number: int) -> None:
    of_method = pika.spec.methods[number]
    name = next(m.name for m in methods("0-9-1") if (m.class_id << 16 | m.method_id) == number)
    fields = dict(described_methods("0-9-1"))[name]["fields"]
    parameters = list(inspect.signature(of_method.__init__).parameters.values())[1:]
    values = {
        parameter.name: parameter.default
        if parameter.default not in (None, inspect.Parameter.empty)
        else PLAIN[field["type"]]
        for parameter, field in zip(parameters, fields, strict=True)
    }
    assert notes(method(number >> 16, number & 0xFFFF, *of_method(**values).encode())) == [[]]


def test_tables_of_py_amqp_have_no_notes() -> None:
    written: Any = amqp.serialization.dumps("F", [{"a": 1, "b": True, "c": "text", "d": {"e": [1, 2]}, "f": None}])
    assert notes(declare(written)) == [[]]


INSIST = ("connection.open", ("reserved-set",))  # the bit that pika and librabbitmq set, as tshark shows
# What the manifest says was broken or set on purpose; and contents whose beginning the capture lost.
ODD_CAPTURES = {
    "091_connection_exceptions.pcap": {
        (None, ("orphan-content",)),
        (None, ("frame-type",)),
        ("channel.open", ("frame-end",)),
        ("queue.declare", ("fields-short",)),
    },
    "091_field_tables.pcap": {("basic", ("ambiguous-tag", "reserved-set"))},
    "091_loss.pcap": {(None, ("orphan-content",)), ("basic", ("orphan-content",))},
    # Packets cut at 96 bytes.
    "091_snaplen96.pcap": {("basic", ("orphan-content",)), (None, ("snap-length",))},
}


@pytest.mark.parametrize("capture", [c for c in golden.captures().values() if c.classic], ids=lambda c: c.file)
def test_captures_of_brokers_have_no_other_notes(capture: golden.Capture) -> None:
    rows = [row for connection in decoded(capture.file) for row in connection.rows if row["notes"]]
    assert {(row["name"], tuple(row["notes"])) for row in rows} - {INSIST} == ODD_CAPTURES.get(capture.file, set())
    assert all(row["arguments"]["insist"] for row in rows if row["name"] == INSIST[0])
