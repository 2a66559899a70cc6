"""Values of AMQP 0-10: every type by bytes worked out by hand, every entry of the fact table by an encoder of the
tests' own."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import encode_0_10 as encode
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.compiler.limits import LIMITS
from codec.protocol import v0_10_tables as T
from codec.protocol.v0_10_detection import content_length, segment_fits
from codec.protocol.v0_10_values import HEADER_SEGMENT, decode_segment, new_stack
from codec.variant import FULL, MALFORMED, METADATA, OK, TOO_DEEP, VALUE, Writer, decode, enlarge, new_writer, rollback

pytestmark = pytest.mark.usefixtures("plain_kernels")

TABLES, KEYS, STACK = T.v0_10_tables(), T.v0_10_keys(), new_stack()
INDEX = {entry.name: number for number, entry in enumerate(T.entries())}


def raw_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def decoded(data: bytes, kind: int, of: int, w: Writer | None = None) -> tuple[int, Any]:
    """(code, value) of what the framing keeps of a segment."""
    buf, w = raw_bytes(data), w or new_writer()
    while True:
        w.positions[VALUE] = w.positions[METADATA] = 0
        code = decode_segment(buf, 0, len(buf), kind, of, TABLES, KEYS, STACK, w)
        if code != FULL:
            break
        rollback(w)
        w = enlarge(w)
    return code, decode(bytes(w.value[: int(w.positions[VALUE])]), bytes(w.metadata[: int(w.positions[METADATA])]))


def arguments(payload: bytes, command_id: int = -1) -> tuple[int, Any]:
    """(code, arguments) of the payload of a control or command, from its class code on."""
    name = next(e.name for e in T.entries() if e.kind != 2 and (e.class_code, e.code) == tuple(payload[:2]))
    kind = T.entries()[INDEX[name]].kind
    prefix = struct.pack(">q", command_id) if kind == T.COMMAND_ENTRY else b""
    return decoded(prefix + payload[2:], kind, INDEX[name])


def properties(payload: bytes) -> tuple[int, Any]:
    return decoded(payload, HEADER_SEGMENT, int(TABLES.special[T.HEADER_SET]))


def in_map(type_code: int, data: bytes) -> tuple[int, Any]:
    """(code, value) of a value of a type code, carried as the one entry of connection.start's server-properties."""
    entry = b"\x01v" + bytes([type_code]) + data
    contents = struct.pack(">I", 1) + entry
    code, found = arguments(b"\x01\x01\x01\x00" + struct.pack(">I", len(contents)) + contents)
    return code, found.get("server_properties", {}).get("v")


# ---- types ----------------------------------------------------------------------------------------------------------

BY_HAND: dict[str, tuple[str, Any]] = {
    "bin8": ("ff", b"\xff"),
    "int8": ("80", -128),
    "uint8": ("ff", 255),
    "char": ("a4", "€"),  # ISO 8859-15 has the euro where ISO 8859-1 has the currency sign
    "boolean": ("02", True),  # any byte but 0
    "bin16": ("0102", b"\x01\x02"),
    "int16": ("fffe", -2),
    "uint16": ("fffe", 65534),
    "bin32": ("01020304", b"\x01\x02\x03\x04"),
    "int32": ("80000000", -(2**31)),
    "uint32": ("80000000", 2**31),
    "float": ("3fc00000", 1.5),  # 0 01111111 100...: 2^0 * 1.5
    "char-utf32": ("0001f600", "\U0001f600"),
    "bin64": ("00" * 7 + "01", bytes(7) + b"\x01"),
    "int64": ("ffffffffffffffff", -1),
    "uint64": ("ffffffffffffffff", Decimal(2**64 - 1)),
    "double": ("c000000000000000", -2.0),  # 1 10000000000 000...: -2^1
    "datetime": ("0000000067748580", datetime(2025, 1, 1, tzinfo=UTC)),  # 20089 days * 86400 s = 1735689600
    "bin128": ("11" * 16, b"\x11" * 16),
    "uuid": ("00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"),
    "bin256": ("22" * 32, b"\x22" * 32),
    "bin512": ("33" * 64, b"\x33" * 64),
    "bin1024": ("44" * 128, b"\x44" * 128),
    "vbin8": ("02" + "00ff", b"\x00\xff"),
    "str8-latin": ("03" + "e9a8ff", "éšÿ"),
    "str8": ("03" + "e282ac", "€"),
    "str8-utf16": ("06" + "00e9d83dde00", "é\U0001f600"),  # the second character as a surrogate pair
    "vbin16": ("0001" + "00", b"\x00"),
    "str16-latin": ("0001" + "bd", "œ"),
    "str16": ("0002" + "c3a9", "é"),
    "str16-utf16": ("0004" + "feff0041", "A"),  # with a byte order mark
    "vbin32": ("00000003" + "616263", b"abc"),
    # size 4 + 1 + 1 + 1 + 1 = 8, one entry: "k", uint8 7
    "map": ("00000008" + "00000001" + "016b" + "0207", {"k": 7}),
    # size 4 + 2 + 1 = 7, two items: uint8 1, void
    "list": ("00000007" + "00000002" + "0201" + "f0", [1, None]),
    # size 1 + 4 + 4 = 9, elements uint16, two of them
    "array": ("00000009" + "12" + "00000002" + "00010002", [1, 2]),
    # size 2 + 2 + 2 = 6, class 6 code 1, field 0 of xa-result
    "struct32": ("00000006" + "0601" + "0100" + "0007", {"struct": "dtx.xa-result", "status": 7}),
    "bin40": ("0102030405", b"\x01\x02\x03\x04\x05"),
    "dec32": ("02" + "ffffff85", Decimal("-1.23")),  # -123 / 10^2
    "bin72": ("55" * 9, b"\x55" * 9),
    "dec64": ("03" + "00000000000004d2", Decimal("1.234")),
    "void": ("", None),
    "bit": ("", True),
}


def test_every_type_with_a_code_has_bytes_by_hand() -> None:
    assert BY_HAND.keys() == {entry["name"] for entry in encode.facts()["types"] if entry["code"] is not None}


@pytest.mark.parametrize("name", BY_HAND)
def test_bytes_of_a_type_give_its_value(name: str) -> None:
    data, expected = BY_HAND[name]
    assert in_map(encode.types()[name]["code"], bytes.fromhex(data)) == (OK, expected)


def test_types_without_a_code_are_decoded_in_fields() -> None:
    # sequence-set: 16 bytes, [0, 5] and [2^32-1, 0]; session.completed has class 2, code 10
    ranges = bytes.fromhex("0010" + "00000000" + "00000005" + "ffffffff" + "00000000")
    assert arguments(b"\x02\x0a\x01\x00" + ranges) == (
        OK,
        {"commands": [{"lower": 0, "upper": 5}, {"lower": 2**32 - 1, "upper": 0}]},
    )
    # byte-ranges inside of a command-fragment, sequence-no; field 1 of session.expected beside an empty set
    fragment = bytes.fromhex("00000007" + "0010" + "00" * 8 + "00" * 7 + "09")
    array = struct.pack(">IBI", 5 + len(fragment), 0xAB ^ 1, 1) + fragment
    assert arguments(b"\x02\x08\x03\x00" + b"\0\0" + array) == (
        OK,
        {"commands": [], "fragments": [{"command_id": 7, "byte_ranges": [{"lower": 0, "upper": 9}]}]},
    )


@pytest.mark.parametrize(("code", "width"), [(0x0F, 1), (0x1F, 2), (0x9F, 2), (0xCF, 5), (0xFF, 0)])
def test_undefined_types_are_bytes_of_the_width_of_their_range(code: int, width: int) -> None:
    data = b"\0\1z" if code == 0x9F else b"x" * width
    assert in_map(code, data) == (OK, b"z" if code == 0x9F else data)


@pytest.mark.parametrize("code", [0xB0, 0xEF])
def test_reserved_types_have_no_width(code: int) -> None:
    assert in_map(code, b"\0\0\0\0") == (MALFORMED, None)


def test_invalid_text_is_escaped_and_other_encodings_are_binary() -> None:
    assert in_map(0x85, b"\x02\xff\xfe") == (OK, r"\xff\xfe")
    assert in_map(0x86, b"\x02\xd8\x00") == (OK, b"\xd8\x00")  # half a surrogate pair
    assert in_map(0x86, b"\x03\x00\x41\x00") == (OK, b"\x00\x41\x00")  # half a unit
    assert in_map(0x27, b"\x00\x11\x00\x00") == (OK, b"\x00\x11\x00\x00")  # above U+10FFFF


def test_a_decimal_with_too_many_places_is_scale_and_value() -> None:
    assert in_map(0xD8, bytes([39]) + (5).to_bytes(8, "big")) == (OK, {"scale": 39, "value": 5})


def test_a_decimal_as_scale_and_value_in_an_array_leaves_the_fields_around_it() -> None:
    # connection.start (class 1, code 1), two bytes of flags; bit 1: mechanisms, an array of size 10: type dec32
    # (0xc8), count 1, scale 39, value 5; the locales (bit 2), an array of no bytes, follow
    mechanisms = bytes.fromhex("0000000a c8 00000001 27 00000005".replace(" ", ""))
    assert arguments(bytes.fromhex("0101 0600") + mechanisms + bytes(4)) == (
        OK,
        {"mechanisms": [{"scale": 39, "value": 5}], "locales": []},
    )


def test_elements_without_bytes_are_counted_not_expanded() -> None:
    array = struct.pack(">IBI", 5, 0xF0, 2**32 - 1)
    assert in_map(0xAA, array) == (OK, {"type": "void", "count": 2**32 - 1})


@pytest.mark.parametrize(("code", "empty"), [(0xA8, {}), (0xA9, []), (0xAA, [])])
def test_containers_without_any_byte_are_empty(code: int, empty: Any) -> None:
    assert in_map(code, b"\0\0\0\0") == (OK, empty)


def test_an_undefined_struct_is_shown_as_its_bytes() -> None:
    assert in_map(0xAB, struct.pack(">IBB", 4, 77, 3) + b"zz") == (OK, {"struct": "77.3", "value": b"zz"})


def test_nesting_beyond_the_limit_is_bytes() -> None:
    data = b"\xf0"
    for _ in range(LIMITS.nesting_depth + 3):
        data = b"\xa9" + struct.pack(">II", 4 + len(data), 1) + data
    code, value = in_map(data[0], data[1:])
    assert code == TOO_DEEP
    for _ in range(LIMITS.nesting_depth - 2):  # below the arguments and their map
        value = value[0]
    assert isinstance(value, bytes)


# ---- entries --------------------------------------------------------------------------------------------------------

EXAMPLES: dict[str, tuple[Any, Any]] = {
    "bit": (True, True),
    "uint8": (2, 2),
    "uint16": (0xFFFE, 0xFFFE),
    "uint32": (2**32 - 1, 2**32 - 1),
    "sequence-no": (2**31, 2**31),
    "uint64": (2**63, Decimal(2**63)),
    "datetime": (datetime(2024, 2, 29, 12, 0, 1, tzinfo=UTC), datetime(2024, 2, 29, 12, 0, 1, tzinfo=UTC)),
    "uuid": (uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "str8": ("naïve", "naïve"),
    "str16": ("x" * 300, "x" * 300),
    "vbin8": (b"\x00\x01", b"\x00\x01"),
    "vbin16": (b"s\xff", b"s\xff"),
    "vbin32": (b"challenge", b"challenge"),
    "sequence-set": ([(1, 1), (3, 9)], [{"lower": 1, "upper": 1}, {"lower": 3, "upper": 9}]),
    "byte-ranges": ([(0, 2**40)], [{"lower": 0, "upper": 2**40}]),
    "map": ({"a": ("int64", -5), "b": ("list", [("str16", "x")])}, {"a": -5, "b": ["x"]}),
    "array": (("str16", ["a", ""]), ["a", ""]),
    "struct32": (("dtx.xa-result", {"status": 3}), {"struct": "dtx.xa-result", "status": 3}),
}


def example(kind: str, name: str = "") -> tuple[Any, Any]:
    """(value for the encoder, value in a row) of a type, the first for an array of declared structs already bytes."""
    if kind in encode.entries():
        fields = {field["name"]: example_of(field, kind) for field in encode.entries()[kind]["fields"]}
        return {n: e[0] for n, e in fields.items()}, {n.replace("-", "_"): e[1] for n, e in fields.items()}
    if name == "in-doubt":
        given, expected = example("dtx.xid")
        return ("struct32", [("dtx.xid", given)] * 2), [{"struct": "dtx.xid", **expected}] * 2
    return EXAMPLES[kind]


def example_of(field: dict[str, Any], owner: str) -> tuple[Any, Any]:
    return example(encode.plain_type(field["type"], owner.partition(".")[0]), field["name"])


def all_fields(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    given, expected = example(name)
    if name in ("session.expected", "session.confirmed"):
        del given["fragments"], expected["fragments"]  # see test_types_without_a_code_are_decoded_in_fields
    return given, expected


CODED = [name for name, entry in encode.entries().items() if entry["group"] != "structs"]
STRUCTS = [
    name for name, entry in encode.entries().items() if entry["group"] == "structs" and entry["code"] is not None
]
DECLARED = {
    "session.header": "sync of every command",
    "session.command-fragment": "test_types_without_a_code_are_decoded_in_fields",
    "message.reply-to": "message.message-properties",
}


def test_the_cases_cover_every_entry_of_the_fact_table() -> None:
    assert {*CODED, *STRUCTS, *DECLARED} == encode.entries().keys() == INDEX.keys()


@pytest.mark.parametrize("name", CODED)
def test_controls_and_commands_with_all_their_fields(name: str) -> None:
    given, expected = all_fields(name)
    expected.pop("response", None)  # credentials
    if "challenge" in expected:
        expected["challenge_size"] = len(expected.pop("challenge"))
    if "mechanism" in expected:
        given["mechanism"] = expected["mechanism"] = "PLAIN"
    payload = encode.segment(name, given, sync=True)
    if encode.entries()[name]["group"] == "commands":
        expected["sync"] = True
        expected["own_command_id" if "command_id" in expected else "command_id"] = 77
    assert arguments(payload, 77) == (OK, expected)
    assert segment_fits(raw_bytes(payload), 0, len(payload), T.entries()[INDEX[name]].kind, TABLES)
    assert not segment_fits(raw_bytes(payload + b"\0"), 0, len(payload) + 1, T.entries()[INDEX[name]].kind, TABLES)


@pytest.mark.parametrize("name", CODED)
def test_controls_and_commands_without_fields(name: str) -> None:
    assert arguments(encode.segment(name, {})) == (OK, {})


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_as_results_and_as_sections(name: str) -> None:
    given, expected = all_fields(name)
    code, found = arguments(encode.segment("execution.result", {"command-id": 4, "value": (name, given)}))
    assert (code, found) == (OK, {"command_id": 4, "value": {"struct": name, **expected}})
    sections = {section.partition(".")[2].replace("-", "_") for section in (*T.SECTIONS, *T.OTHER_SECTIONS)}
    key = name.partition(".")[2].replace("-", "_")
    code, found = properties(encode.header((name, given)))
    assert code == OK
    if key in sections:
        assert found == {key: expected}
    else:
        packed = encode.packed(name, given)
        assert found == {f"{encode.entries()[name]['class_code']}.{encode.entries()[name]['code']}": packed}


# ---- segments -------------------------------------------------------------------------------------------------------


def test_a_transfer_written_by_hand() -> None:
    # class 4 code 1; session header: size 1, sync; flags 0x07 0x00: destination "d", accept-mode 1, acquire-mode 0
    assert arguments(bytes.fromhex("0401" + "0101" + "0700" + "0164" + "01" + "00"), 0) == (
        OK,
        {"sync": True, "command_id": 0, "destination": "d", "accept_mode": 1, "acquire_mode": 0},
    )


def test_sections_in_any_order_and_repeated() -> None:
    message = bytes.fromhex("0000000c" + "0403" + "0100" + "0000000000000005")
    delivery = bytes.fromhex("00000007" + "0401" + "0002" + "02") + b"rk"
    both = {"message_properties": {"content_length": 5}, "delivery_properties": {"routing_key": "rk"}}
    assert properties(message + delivery) == properties(delivery + message) == (OK, both)
    assert content_length(raw_bytes(delivery + message), 0, len(delivery + message), TABLES) == 5
    assert content_length(raw_bytes(delivery), 0, len(delivery), TABLES) == -1
    code, found = properties(delivery + delivery)
    assert code == MALFORMED
    assert found == {"delivery_properties": {"routing_key": "rk"}, "4.1": b"\x00\x02\x02rk"}


def test_a_flag_without_a_field_is_malformed() -> None:
    assert arguments(b"\x01\x0a\x01\x00") == (MALFORMED, {})


def test_a_value_that_does_not_fit_ends_its_container_and_no_other() -> None:
    # delivery-properties whose routing-key claims 9 bytes; message-properties after it are read
    broken = bytes.fromhex("00000007" + "0401" + "0002" + "09") + b"rk"
    message = bytes.fromhex("0000000c" + "0403" + "0100" + "0000000000000005")
    assert properties(broken + message) == (
        MALFORMED,
        {"delivery_properties": {}, "message_properties": {"content_length": 5}},
    )


def test_credentials_are_not_shown() -> None:
    fields = {"mechanism": "PLAIN", "response": b"\0anna\0s3cret", "locale": "en_US"}
    assert arguments(encode.segment("connection.start-ok", fields)) == (
        OK,
        {"mechanism": "PLAIN", "user": "anna", "locale": "en_US"},
    )
    assert arguments(encode.segment("connection.start-ok", {**fields, "mechanism": "CRAM-MD5"})) == (
        OK,
        {"mechanism": "CRAM-MD5", "locale": "en_US"},
    )
    assert arguments(encode.segment("connection.secure-ok", {"response": b"s3cret"})) == (OK, {})
    first = b"n,,n=anna,r=rOprNGfwEbeRWgbNEkqO"  # after an empty challenge
    assert arguments(encode.segment("connection.secure-ok", {"response": first})) == (OK, {"user": "anna"})
    answer = b"tim b913a602c7eda7a495b4e6e7334d3890"  # RFC 2195, section 2
    assert arguments(encode.segment("connection.secure-ok", {"response": answer})) == (OK, {"user": "tim"})


@given(st.binary(max_size=200), st.sampled_from([INDEX[name] for name in CODED]))
def test_any_bytes_give_a_value(data: bytes, of: int) -> None:
    kind = T.entries()[of].kind
    code, value = decoded(bytes(8) + data if kind == T.COMMAND_ENTRY else data, kind, of)
    assert code in (OK, MALFORMED)
    assert isinstance(value, dict)
    code, value = properties(data)
    assert code in (OK, MALFORMED)
    assert isinstance(value, dict)


@given(st.data())
def test_damaged_segments_give_a_value(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*CODED, *STRUCTS]))
    given, _ = all_fields(name)
    damaged = bytearray(encode.header((name, given)) if name in STRUCTS else encode.segment(name, given)[2:])
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    kind = T.entries()[INDEX[name]].kind
    prefix = bytes(8) if kind == T.COMMAND_ENTRY else b""
    code, value = properties(bytes(damaged)) if kind == 2 else decoded(prefix + bytes(damaged), kind, INDEX[name])
    assert code in (OK, MALFORMED)
    assert isinstance(value, dict)
