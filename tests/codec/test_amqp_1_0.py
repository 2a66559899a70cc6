"""The type system, composites and sections of AMQP 1.0, from independent encoders: qpid-proton, and bytes by hand.

References: OASIS AMQP 1.0, part 1 (types), 2 (transport), 3 (messaging), 4 (transactions), 5 (security).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import proton
import pytest
from encode_1_0 import encoded
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.compiler.limits import LIMITS
from codec.protocol.rows import COLUMNS, ERROR, STATUS
from codec.protocol.v1_0_tables import (
    TYPES,
    Descriptor,
    descriptors,
    v1_0_tables,
)
from codec.protocol.v1_0_values import BROKEN, DEEP, NO_BODY, decode_frame, decode_value, new_scratch
from codec.protocol.versions import ERRORS, STATUSES, fact_table
from codec.variant import FULL, METADATA, VALUE, begin, decode, enlarge, error_code, finish_known, new_writer

pytestmark = pytest.mark.usefixtures("plain_kernels")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WIRE, VALUES = v1_0_tables()
SCRATCH = new_scratch()


def raw_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def written(w: Any) -> Any:
    """The value that a writer holds; None when it holds none."""
    if not w.positions[VALUE]:
        return None
    return decode(bytes(w.value[: w.positions[VALUE]]), bytes(w.metadata[: w.positions[METADATA]]))


def decode_flawed(data: bytes) -> tuple[Any, int, int]:
    """(value, offset after it, flaws) of one encoded value."""
    w = new_writer()
    while True:
        begin(w)
        at, flaws = decode_value(w, raw_bytes(data), 0, len(data), WIRE, VALUES, SCRATCH, VALUES.fixed_key_set, -1, 0)
        if finish_known(w, VALUES.keys, VALUES.fixed_key_set) != FULL:
            break
        w = enlarge(w)
    return written(w), int(at), int(flaws)


def decoded(data: bytes) -> Any:
    """The value of well-formed bytes, all of them."""
    value, at, flaws = decode_flawed(data)
    assert (at, flaws) == (len(data), 0)
    return value


def frame_values(body: bytes, sections: bytes = b"", section: int = NO_BODY) -> tuple[dict[str, Any], Any, str | None]:
    """(arguments, properties, error) of a performative, and of the sections in the same row."""
    data = bytes([section]) + body + sections
    row = np.zeros(len(COLUMNS), np.int64)
    definition = {d.code: index for index, d in enumerate(descriptors())}[body[2]]
    arguments, properties = new_writer(), new_writer()
    while (
        decode_frame(raw_bytes(data), 0, len(data), row, definition, WIRE, VALUES, SCRATCH, arguments, properties)
        == FULL
    ):
        arguments = enlarge(arguments) if error_code(arguments) == FULL else arguments
        properties = enlarge(properties) if error_code(properties) == FULL else properties
    assert (STATUSES[row[STATUS]] == "ok") == (row[ERROR] == 0)
    return written(arguments), written(properties), ERRORS[row[ERROR]]


# ---- scalars: every encoding of the fact table, by hand -------------------------------------------------------------

# constructor and bytes -> value; the comment says how the value follows from the bytes.
ENCODINGS = {
    "40": None,
    "56 01": True,
    "56 00": False,
    "41": True,
    "42": False,
    "50 ff": 255,
    "60 fffe": 65534,
    "70 fffffffe": 4294967294,
    "52 ff": 255,
    "43": 0,
    "80 7fffffffffffffff": 2**63 - 1,
    "80 ffffffffffffffff": Decimal(2**64 - 1),
    "53 ff": 255,
    "44": 0,
    "51 80": -128,
    "61 8000": -32768,
    "71 80000000": -(2**31),
    "54 ff": -1,
    "81 8000000000000000": -(2**63),
    "55 fe": -2,
    "72 3fc00000": 1.5,  # 0 01111111 100...: 1.1 in binary
    "82 c004000000000000": -2.5,  # 1 10000000000 0100...: -1.01 in binary, times 2
    "73 000020ac": "\u20ac",
    "73 0001f407": "\U0001f407",
    "83 0000000000000001": EPOCH + timedelta(milliseconds=1),
    "83 ffffffffffffffff": EPOCH - timedelta(milliseconds=1),
    "98 00112233445566778899aabbccddeeff": "00112233-4455-6677-8899-aabbccddeeff",
    "a0 02 00ff": b"\x00\xff",
    "b0 00000002 00ff": b"\x00\xff",
    "a1 03 e282ac": "\u20ac",
    "b1 00000001 61": "a",
    "a3 01 73": "s",
    "b3 00000001 73": "s",
    "45": [],
    "c0 03 02 40 41": [None, True],
    "d0 00000006 00000002 40 41": [None, True],
    "c1 05 02 a101 6b 41": {"k": True},
    "d1 00000008 00000002 a101 6b 41": {"k": True},
    "e0 04 02 50 0102": [1, 2],
    "f0 00000007 00000002 50 0102": [1, 2],
    # binary integer decimals: sign, biased exponent, coefficient; bias 101, 398, 6176
    "74 32800005": 5,  # 0 01100101 0...101: exponent 0
    "84 b1c0000000000019": Decimal("-25"),  # 1 0110001110 ...: exponent 398 - 398
    "94 303e0000000000000000000000000019": Decimal("2.5"),  # 0 01100000011111 ...: exponent 6175 - 6176
}


@pytest.mark.parametrize("wire", ENCODINGS, ids=lambda wire: wire.split()[0])
def test_every_encoding(wire: str) -> None:
    value = decoded(bytes.fromhex(wire))
    assert value == ENCODINGS[wire]
    assert isinstance(value, bool) == isinstance(ENCODINGS[wire], bool)


def test_the_examples_reach_every_encoding_of_the_fact_table() -> None:
    defined = {
        e["code_hex"].lower() for primitive in fact_table("1.0")["primitive_types"] for e in primitive["encodings"]
    }
    assert {wire[:2] for wire in ENCODINGS} == defined
    assert [primitive["name"] for primitive in fact_table("1.0")["primitive_types"]] == list(TYPES[:-1])


def test_decimal_with_a_large_coefficient() -> None:
    """0 11 01100101 (exponent 0) 0 0001 1000 0110 1001 1111: 100 is implied before these 21 bits."""
    assert decoded(bytes.fromhex("74 6ca1869f")) == (0b100 << 21) + 0x1869F


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ("74 78000000", {"type": "decimal32", "hex": "78000000"}),  # infinity: 0 1111 0...
        ("84 7c00000000000000", {"type": "decimal64", "hex": "7c00000000000000"}),  # NaN: 0 11111 ...
        (
            "94 5ffe0000000000000000000000000001",
            {"type": "decimal128", "hex": "5ffe0000000000000000000000000001"},
        ),  # 1E+6111
        ("74 00000001", {"type": "decimal32", "hex": "00000001"}),  # 1E-101
        ("74 00000000", Decimal(0)),  # 0E-101
        ("94 6c000000000000000000000000000000", Decimal(0)),  # implied 100: above 10^34, so its value is zero
    ],
)
def test_decimals_that_do_not_fit_DECIMAL_are_shown_as_bytes(wire: str, expected: Any) -> None:
    assert decoded(bytes.fromhex(wire)) == expected


@given(st.integers(0, 10**34 - 1), st.integers(-38, 0), st.booleans())
@settings(max_examples=50, deadline=None)
def test_decimal128_is_exact(coefficient: int, exponent: int, negative: bool) -> None:
    bits = (negative << 127) | ((exponent + 6176) << 113) | coefficient
    sign = int(negative and coefficient > 0)
    assert decoded(b"\x94" + bits.to_bytes(16, "big")) == Decimal((sign, tuple(map(int, str(coefficient))), exponent))


def test_timestamp_beyond_the_calendar_is_its_milliseconds() -> None:
    assert decoded(bytes.fromhex("83 7fffffffffffffff")) == 2**63 - 1


# ---- values from qpid-proton ----------------------------------------------------------------------------------------

UINT64 = st.integers(0, 2**64 - 1)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(proton.ubyte),
    st.integers(0, 2**16 - 1).map(proton.ushort),
    st.integers(0, 2**32 - 1).map(proton.uint),
    UINT64.map(proton.ulong),
    st.integers(-128, 127).map(proton.byte),
    st.integers(-(2**15), 2**15 - 1).map(proton.short),
    st.integers(-(2**31), 2**31 - 1).map(proton.int32),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, width=32).map(proton.float32),
    st.floats(allow_nan=False),
    st.characters(exclude_categories=["Cs"]).map(proton.char),
    st.integers(-62_135_596_800_000, 253_402_300_799_999).map(proton.timestamp),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    st.text(st.characters(codec="ascii"), max_size=20).map(proton.symbol),
)
KEYS = st.one_of(st.text(max_size=8), st.integers(0, 9).map(proton.ulong), st.uuids())
VALUES_OF_PROTON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=5),
        st.builds(proton.Described, st.sampled_from([proton.symbol("x:y"), proton.ulong(1 << 40)]), inner),
    ),
    max_leaves=20,
)


def as_decoded(thing: Any) -> Any:
    """What a row shows of a value of proton."""
    if isinstance(thing, proton.Described):
        return {"descriptor": as_decoded(thing.descriptor), "value": as_decoded(thing.value)}
    if isinstance(thing, proton.timestamp):
        return EPOCH + timedelta(milliseconds=int(thing))
    if isinstance(thing, proton.Array):
        return [as_decoded(element) for element in thing.elements]
    if isinstance(thing, UUID | proton.char | proton.symbol):
        return str(thing)
    if isinstance(thing, bool) or thing is None:
        return thing
    if isinstance(thing, int):
        return int(thing)
    if isinstance(thing, float):
        return float(thing)
    if isinstance(thing, list):
        return [as_decoded(item) for item in thing]
    if isinstance(thing, dict):
        if all(isinstance(key, str) for key in thing):
            return {str(key): as_decoded(value) for key, value in thing.items()}
        return [{"key": as_decoded(key), "value": as_decoded(value)} for key, value in thing.items()]
    return thing


@given(VALUES_OF_PROTON)
@settings(max_examples=200, deadline=None)
def test_values_of_proton(thing: Any) -> None:
    assert decoded(encoded(thing)) == as_decoded(thing)


ARRAYS = [
    (proton.Data.BOOL, [True, False, True]),
    (proton.Data.UBYTE, [proton.ubyte(1), proton.ubyte(255)]),
    (proton.Data.BYTE, [proton.byte(-1), proton.byte(2)]),
    (proton.Data.USHORT, [proton.ushort(1), proton.ushort(65535)]),
    (proton.Data.SHORT, [proton.short(-1), proton.short(2)]),
    (proton.Data.UINT, [proton.uint(1), proton.uint(2**32 - 1)]),
    (proton.Data.INT, [proton.int32(-1), proton.int32(2)]),
    (proton.Data.CHAR, [proton.char("a"), proton.char("\u20ac")]),
    (proton.Data.ULONG, [proton.ulong(1), proton.ulong(2**64 - 1)]),
    (proton.Data.LONG, [-1, 2]),
    (proton.Data.TIMESTAMP, [proton.timestamp(0)]),
    (proton.Data.FLOAT, [proton.float32(1.5)]),
    (proton.Data.DOUBLE, [-1.5]),
    (proton.Data.UUID, [UUID(int=5)]),
    (proton.Data.BINARY, [b"a", b""]),
    (proton.Data.STRING, ["a", ""]),
    (proton.Data.SYMBOL, [proton.symbol("s")]),
    (proton.Data.LIST, [[1], []]),
    (proton.Data.MAP, [{"a": 1}, {}]),
]


@pytest.mark.parametrize(("kind", "elements"), ARRAYS)
@pytest.mark.parametrize("descriptor", [proton.UNDESCRIBED, proton.symbol("urn:d")])
def test_arrays_of_every_type(kind: int, elements: list[Any], descriptor: Any) -> None:
    value = decoded(encoded(proton.Array(descriptor, kind, *elements)))
    expected = [as_decoded(element) for element in elements]
    assert value == (expected if descriptor is proton.UNDESCRIBED else {"descriptor": "urn:d", "value": expected})


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ("e0 02 ff 40", {"type": "null", "count": 255}),
        ("f0 00000005 ffffffff 41", {"type": "boolean", "count": 2**32 - 1}),
        ("f0 00000005 00000002 45", {"type": "list", "count": 2}),
        ("f0 00000008 40000000 00 5324 45", {"type": "accepted", "count": 2**30}),
        ("e0 01 00", []),
        ("f0 00000005 00000000 40", []),
    ],
)
def test_arrays_without_bytes_are_counted_and_not_expanded(wire: str, expected: Any) -> None:
    assert decoded(bytes.fromhex(wire)) == expected


def test_array_of_composites() -> None:
    accepted = proton.Array(proton.ulong(0x24), proton.Data.LIST, [], [])
    assert decoded(encoded(accepted)) == [{"type": "accepted"}] * 2


def test_array_with_a_described_descriptor() -> None:
    """Constructor 00, descriptor (00 a3 'd' 54 07), constructor 50; two elements."""
    wire = bytes.fromhex("e0 0b 02 00 00a30164 5407 50 0102")
    assert decoded(wire) == {"descriptor": {"descriptor": "d", "value": 7}, "value": [1, 2]}


# ---- bytes that break the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire",
    [
        "",
        "3f",
        "50",
        "a1 05 61",
        "c0 05 01 40",
        "c1 03 01 a1 00",
        "e0 03 09 50 01",
        "00 53",
        "f0 00000004 00000001",
        "00" * 50,
    ],
)
def test_malformed_bytes_are_null_and_reported(wire: str) -> None:
    value, _, flaws = decode_flawed(bytes.fromhex(wire))
    assert value is None
    assert flaws & BROKEN


def test_a_broken_item_ends_its_container_and_nothing_else() -> None:
    """A list of a broken list (its second item has the undefined constructor 3f) and 7."""
    value, at, flaws = decode_flawed(bytes.fromhex("c0 09 02 c0 04 02 41 3f 00 5407"))
    assert (value, at, flaws) == ([[True, None], 7], 11, BROKEN)


def test_nesting_beyond_the_limit_is_shown_as_bytes() -> None:
    wire = b"\x45"
    for _ in range(100):
        wire = b"\xd0" + (len(wire) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + wire
    value, at, flaws = decode_flawed(wire)
    assert (at, flaws) == (len(wire), DEEP)
    depth = 0
    while isinstance(value, list):
        (value,) = value
        depth += 1
    assert depth == LIMITS.nesting_depth
    assert isinstance(value, bytes)


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_value(data: bytes) -> None:
    _, at, flaws = decode_flawed(data)
    assert at <= len(data)
    assert at >= 0 or flaws & BROKEN


@given(VALUES_OF_PROTON, st.data())
@settings(max_examples=100, deadline=None)
def test_any_damage_gives_a_value(thing: Any, data: st.DataObject) -> None:
    wire = bytearray(encoded(thing))
    index = data.draw(st.integers(0, len(wire) - 1))
    wire[index] = data.draw(st.integers(0, 255))
    decode_flawed(bytes(wire[: data.draw(st.integers(0, len(wire)))]))


# ---- composites: every descriptor of the fact table -----------------------------------------------------------------

EXAMPLES = {
    "null": ("40", None), "boolean": ("41", True), "ubyte": ("5007", 7), "ushort": ("600007", 7), "uint": ("5207", 7),
    "ulong": ("5307", 7), "byte": ("51ff", -1), "short": ("61ffff", -1), "int": ("54ff", -1), "long": ("55ff", -1),
    "float": ("723fc00000", 1.5), "double": ("823ff8000000000000", 1.5), "decimal32": ("7432800005", Decimal(5)),
    "decimal64": ("8431c0000000000005", Decimal(5)), "decimal128": ("9430400000000000000000000000000005", Decimal(5)),
    "char": ("7300000061", "a"), "timestamp": ("830000000000000000", EPOCH),
    "uuid": ("98" + "00" * 15 + "05", str(UUID(int=5))), "binary": ("a00161", b"a"), "string": ("a10161", "a"),
    "symbol": ("a30161", "a"), "list": ("c0020141", [True]), "map": ("c10502a3016b41", {"k": True}),
    "array": ("e003015007", [7]), "described": ("00532445", {"type": "accepted"}),
}  # fmt: skip


def example(types: int) -> tuple[bytes, Any]:
    """(bytes, value) of a type that a field may have."""
    name = next(name for bit, name in enumerate(TYPES) if types >> bit & 1 and name != "null")
    wire, value = EXAMPLES[name]
    return bytes.fromhex(wire), value


def composite(described: Descriptor) -> tuple[bytes, dict[str, Any]]:
    """The list of a composite with an example for every field, and what a row shows of it."""
    items, values = [], {}
    for field in described.fields or ():
        wire, value = example(field.types)
        items.append(wire)
        values[field.key] = [value] if field.multiple else value
    body = b"".join(items)
    return b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + body, values


def composites() -> list[Descriptor]:
    return [described for described in descriptors() if described.fields is not None]


def without_secrets() -> list[Descriptor]:
    """Those with secrets have tests of their own."""
    return [described for described in composites() if not any(field.disclosure for field in described.fields or ())]


def forms(described: Descriptor) -> Iterator[bytes]:
    """Every form of a descriptor: smallulong, ulong, symbol."""
    yield bytes([0x00, 0x53, described.code])
    yield b"\x00\x80" + described.code.to_bytes(8, "big")
    symbol = described.symbol.encode()
    yield b"\x00\xa3" + bytes([len(symbol)]) + symbol
    yield b"\x00\xb3" + len(symbol).to_bytes(4, "big") + symbol


@pytest.mark.parametrize("described", without_secrets(), ids=lambda described: described.name)
def test_every_composite_with_every_field_in_every_form_of_its_descriptor(described: Descriptor) -> None:
    fields, values = composite(described)
    for form in forms(described):
        assert decoded(form + fields) == {"type": described.name, **values}


@pytest.mark.parametrize(
    "described", [d for d in composites() if d.frame_type >= 0], ids=lambda described: described.name
)
def test_every_performative_and_sasl_frame(described: Descriptor) -> None:
    fields, values = composite(described)
    arguments, properties, error = frame_values(bytes([0x00, 0x53, described.code]) + fields)
    for field in described.fields or ():
        if field.disclosure:
            values.pop(field.key)
    assert {key: arguments[key] for key in values} == values
    assert properties is None
    assert error is None


def test_every_descriptor_of_the_fact_table_has_an_example() -> None:
    table = fact_table("1.0")
    reached = {d.name for d in composites()} | {section["name"] for section in sections()}
    assert {entry["name"] for entry in table["descriptor_index"]} == reached
    assert {entry["name"] for entry in table["composite_types"]} == {d.name for d in composites()}
    fields = {entry["name"]: [f["name"] for f in entry["fields"]] for entry in table["composite_types"]}
    assert fields == {d.name: [f.name for f in d.fields or ()] for d in composites()}
    frames = {entry["name"] for entry in [*table["performatives"], *table["sasl_frames"]]}
    assert {d.name for d in descriptors() if d.frame_type >= 0} == frames


def test_nulls_and_omitted_fields_are_not_shown() -> None:
    arguments, _, error = frame_values(bytes.fromhex("005314 c0 04 03 43 40 40"))
    assert (arguments, error) == ({"handle": 0}, None)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ("005318 c0 05 02 40 a10161", {}),  # close has one field
        ("005316 c0 04 01 a10161", {"handle": "a"}),  # detach: handle is a uint
        ("005316 45", {}),  # detach: handle is mandatory
        ("005315 c0 03 02 41 40", {"role": True}),  # disposition: first is mandatory
    ],
)
def test_values_that_do_not_fit_the_definition(wire: str, expected: dict[str, Any]) -> None:
    arguments, _, error = frame_values(bytes.fromhex(wire))
    assert arguments == expected
    assert error == "values do not fit the performative's definition"


def test_a_field_that_may_be_multiple_is_always_an_array() -> None:
    one, _, _ = frame_values(bytes.fromhex("005340 c0 04 01 a30141"))
    two, _, _ = frame_values(bytes.fromhex("005340 c0 09 01 e0 06 02 a3 0141 0142"))
    assert one == {"sasl_server_mechanisms": ["A"]}
    assert two == {"sasl_server_mechanisms": ["A", "B"]}


@pytest.mark.parametrize(
    "mechanisms",
    [
        "a30161",  # lower case
        "a0024142",  # bytes
        "e0 06 02 a3 0141 0161",
        "e0 06 02 a0 0141 0142",
        "e0 06 03 a3 0141 0142",  # one less than there should be
        "e0 06 01 a3 0141 0142",
    ],
)
def test_text_that_cannot_be_mechanism_names_is_not_shown(mechanisms: str) -> None:
    raw_bytes = bytes.fromhex(mechanisms)
    arguments, _, _ = frame_values(bytes.fromhex("005340 c0") + bytes([len(raw_bytes) + 1, 1]) + raw_bytes)
    assert arguments == {}


# ---- credentials ----------------------------------------------------------------------------------------------------

SECRET = b"\0guest\0opensesame"


def sasl(code: int, *fields: Any) -> bytes:
    return encoded(proton.Described(proton.ulong(code), list(fields)))


def test_initial_response_shows_the_user_only() -> None:
    arguments, _, error = frame_values(sasl(0x41, proton.symbol("PLAIN"), SECRET, "host"))
    assert (arguments, error) == ({"mechanism": "PLAIN", "user": "guest", "hostname": "host"}, None)


def test_users_of_mechanisms_with_several_steps() -> None:
    scram = sasl(0x41, proton.symbol("SCRAM-SHA-256"), b"n,,n=guest,r=rOprNGfwEbeRWgbNEkqO", "host")
    assert frame_values(scram)[0] == {"mechanism": "SCRAM-SHA-256", "user": "guest", "hostname": "host"}
    answer = sasl(0x43, b"tim b913a602c7eda7a495b4e6e7334d3890")  # RFC 2195, section 2
    assert frame_values(answer)[0] == {"user": "tim"}


def test_a_challenge_shows_its_size_and_a_response_the_user() -> None:
    """A sasl-init without initial-response is answered by an empty challenge (RFC 4422, section 3.2)."""
    assert frame_values(sasl(0x42, SECRET))[0] == {"challenge_size": len(SECRET)}
    assert frame_values(sasl(0x43, SECRET))[0] == {"user": "guest"}
    assert frame_values(sasl(0x43, b"n,,n=guest,r=rOprNGfwEbeRWgbNEkqO"))[0] == {"user": "guest"}
    assert frame_values(sasl(0x43, SECRET[1:]))[0] == {}


@pytest.mark.parametrize("field", [SECRET, SECRET.decode(), [SECRET], {"k": "opensesame"}, proton.symbol("opensesame")])
@pytest.mark.parametrize("code", [0x41, 0x42, 0x43, 0x44])
def test_no_form_of_a_secret_gets_through(code: int, field: Any) -> None:
    needed: dict[int, list[Any]] = {0x41: [proton.symbol("PLAIN")], 0x44: [proton.ubyte(0)]}
    before = needed.get(code, [])
    arguments, _, _ = frame_values(sasl(code, *before, field))
    assert "opensesame" not in repr(arguments)


# ---- sections -------------------------------------------------------------------------------------------------------

TRANSFER = bytes.fromhex("005314 c0 02 01 43")


def message_of_proton() -> proton.Message:
    return proton.Message(
        body="x", inferred=True, durable=True, priority=7, ttl=1.5, id="m", user_id=b"u", address="a", subject="s",
        reply_to="r", correlation_id=UUID(int=7), content_type=proton.symbol("t"), content_encoding=proton.symbol("e"),
        expiry_time=1.0, creation_time=2.0, group_id="g", group_sequence=3, reply_to_group_id="h",
        instructions={proton.symbol("x-i"): 1}, annotations={proton.symbol("x-a"): [1]},
        properties={"p": proton.ulong(1)},
    )  # fmt: skip


def test_sections_of_a_message_of_proton() -> None:
    sections = message_of_proton().encode()
    body = sections.index(bytes.fromhex("005377"))
    _, properties, error = frame_values(TRANSFER, sections[:body], 7)
    assert error is None
    assert properties == {
        "header": {"durable": True, "priority": 7, "ttl": 1500},
        "delivery_annotations": {"x-i": 1},
        "message_annotations": {"x-a": [1]},
        "properties": {
            "message_id": "m", "user_id": b"u", "to": "a", "subject": "s", "reply_to": "r",
            "correlation_id": str(UUID(int=7)), "content_type": "t", "content_encoding": "e",
            "absolute_expiry_time": EPOCH + timedelta(seconds=1), "creation_time": EPOCH + timedelta(seconds=2),
            "group_id": "g", "group_sequence": 3, "reply_to_group_id": "h",
        },
        "application_properties": {"p": 1},
        "body_kind": "value",
    }  # fmt: skip


def sections() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = fact_table("1.0")["message_sections"]
    return listed


@pytest.mark.parametrize("section", sections(), ids=lambda section: section["name"])
def test_every_section(section: dict[str, Any]) -> None:
    described = next(d for d in descriptors() if d.name == section["name"])
    if section["body"]:  # of the body, only the kind is decoded
        kind = {"data": "data", "amqp-sequence": "sequence", "amqp-value": "value"}[section["name"]]
        assert frame_values(TRANSFER, b"", section["order"])[1:] == ({"body_kind": kind}, None)
        return
    wire, value = composite(described) if described.fields else (bytes.fromhex(EXAMPLES["map"][0]), EXAMPLES["map"][1])
    if section["name"] == "application-properties":  # whose keys are strings: "a" is true
        wire, value = bytes.fromhex("c1 05 02 a1 01 61 41"), {"a": True}
    _, properties, error = frame_values(TRANSFER, bytes([0x00, 0x53, described.code]) + wire)
    assert (properties, error) == ({section["name"].replace("-", "_"): value}, None)


def test_footer_and_operations_of_a_coordinator() -> None:
    declare, discharge = bytes.fromhex("005377 005331 45"), bytes.fromhex("005377 005332 c0 05 02 a00174 41")
    footer = bytes.fromhex("005378 c1 05 02 a30166 41")
    assert frame_values(TRANSFER, declare + footer, 7)[1] == {
        "body": {"type": "declare"},
        "footer": {"f": True},
        "body_kind": "value",
    }
    assert frame_values(TRANSFER, discharge, 7)[1] == {
        "body": {"type": "discharge", "txn_id": b"t", "fail": True},
        "body_kind": "value",
    }


def test_annotations_that_are_not_a_map_are_an_error() -> None:
    _, properties, error = frame_values(TRANSFER, bytes.fromhex("005371 41"))
    assert properties == {"delivery_annotations": True}
    assert error == "the sections of the message do not fit their definitions"
