"""pcap records, from bytes laid out by hand after draft-ietf-opsawg-pcap and from real captures."""

from __future__ import annotations

import copy
import gzip
import pickle
import struct
from pathlib import Path

import independent_tcp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.capture import CaptureError, Walker, new_walker, sniff

CAPTURES = Path(__file__).parents[1] / "captures"
REAL = sorted(path for path in CAPTURES.iterdir() if path.name.endswith((".pcap", ".pcapng", ".pcap.gz")))
SMALL = ["091_handshake_ok.pcap", "091_ipv6.pcapng", "091_bigendian_nano.pcap", "091_truncated_file.pcap"]

Record = tuple[int, int, int, bytes]  # time in ns, length on the wire, link type, captured bytes


def walked(data: bytes, cuts: list[int] | None = None) -> tuple[list[Record], Walker]:
    """Feed `data` in the pieces that `cuts` make of it, as a reader does: the rest of last time in front."""
    walker = new_walker(data)
    found: list[Record] = []
    begin = 0
    for end in [*(cuts or []), len(data)]:
        block = np.frombuffer(data[begin:end], np.uint8)
        records, consumed = walker.walk(block, end == len(data))
        for record in records:
            packet = block[record["offset"] : record["offset"] + record["cap_len"]].tobytes()
            found.append((int(record["ts_ns"]), int(record["wire_len"]), int(record["link_type"]), packet))
        begin += consumed
        assert walker.position == begin
    return found, walker


def capture_bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def file_header(order: str, magic: int, snaplen: int = 65535, link: int = 1, major: int = 2) -> bytes:
    # magic, major, minor, time zone, accuracy, snaplen, link type
    return struct.pack(order + "IHHiIII", magic, major, 4, 0, 0, snaplen, link)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit_ns"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_both_units_in_both_byte_orders(order: str, magic: int, unit_ns: int) -> None:
    first = struct.pack(order + "IIII", 1_700_000_000, 5, 4, 90) + b"abcd"  # seconds, fraction, captured, on the wire
    second = struct.pack(order + "IIII", 1_700_000_001, 999_999, 0, 60)
    found, walker = walked(file_header(order, magic, snaplen=4) + first + second)
    assert found == [
        (1_700_000_000_000_000_000 + 5 * unit_ns, 90, 1, b"abcd"),
        (1_700_000_001_000_000_000 + 999_999 * unit_ns, 60, 1, b""),
    ]
    assert (walker.format, walker.snaplen, walker.truncated, walker.error) == ("pcap", 4, False, None)


@pytest.mark.parametrize("order", ["<", ">"])
def test_modified_variant_has_longer_record_headers(order: str) -> None:
    header = struct.pack(order + "IIII", 7, 8, 3, 3) + struct.pack(order + "IHBB", 2, 0x0800, 4, 0)
    found, _ = walked(file_header(order, 0xA1B2CD34) + 2 * (header + b"xyz"))
    assert found == 2 * [(7_000_008_000, 3, 1, b"xyz")]


def test_times_after_2038_are_unsigned() -> None:
    found, _ = walked(file_header("<", 0xA1B23C4D) + struct.pack("<IIII", 0xFFFFFFFF, 999_999_999, 0, 0))
    assert found[0][0] == 4_294_967_295_999_999_999


def test_link_type_is_read_without_the_frame_check_bits() -> None:
    # bit 26: the length of the frame check sequence is given; bits 28 to 31: 2 words of it
    found, _ = walked(file_header("<", 0xA1B2C3D4, link=0x24000000 | 113) + struct.pack("<IIII", 0, 0, 1, 1) + b"x")
    assert found[0][2] == 113


def test_wire_length_is_at_least_what_was_captured() -> None:
    found, _ = walked(file_header("<", 0xA1B2C3D4) + struct.pack("<IIII", 0, 0, 2, 0) + b"xy")
    assert found[0][1] == 2


def test_file_that_ends_inside_a_record_is_truncated() -> None:
    data = file_header("<", 0xA1B2C3D4) + 2 * (struct.pack("<IIII", 0, 0, 2, 2) + b"xy")
    for end in range(24, len(data)):
        found, walker = walked(data[:end])
        assert (len(found), walker.truncated) == ((end - 24) // 18, (end - 24) % 18 != 0)
        assert walker.error is None


def test_absurd_record_length_stops_there_and_keeps_what_came_before() -> None:
    good = struct.pack("<IIII", 0, 0, 2, 2) + b"xy"
    bad = struct.pack("<IIII", 0, 0, 0x7FFFFFFF, 2)
    found, walker = walked(file_header("<", 0xA1B2C3D4) + good + bad + good)
    assert len(found) == 1
    assert walker.error is not None
    assert "byte 42" in walker.error  # header 24, first record 16 + 2
    assert "damaged" in walker.error


@pytest.mark.parametrize("size", [4, 23])
def test_a_file_truncated_inside_its_header_is_an_error(size: int) -> None:
    _, walker = walked(file_header("<", 0xA1B2C3D4)[:size])
    assert walker.error == f"the file ends after {size} bytes, inside the pcap header of 24 bytes"


def test_an_unsupported_version_is_an_error() -> None:
    _, walker = walked(file_header("<", 0xA1B2C3D4, major=9))
    assert walker.error == "the header names pcap version 9; expected version 2"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "the file is empty"),
        (b"\xd4\xc3", "ends after 2 bytes"),
        (b"Hello, world", "the text 'Hello, world'; expected the magic number of pcap or pcapng"),
        (b"\x7fELF\x02\x01", "the bytes 7f 45 4c 46; expected the magic number"),
    ],
)
def test_other_files_are_named_in_the_error(head: bytes, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        sniff(head)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_captures_agree_with_the_independent_reader(path: Path) -> None:
    found, walker = walked(capture_bytes(path))
    assert [(ts, link, data) for ts, _, link, data in found] == list(independent_tcp.records(path))
    assert walker.error is None
    assert walker.truncated == (path.name == "091_truncated_file.pcap")


@pytest.mark.parametrize("name", SMALL)
def test_byte_by_byte_gives_the_same_records(name: str) -> None:
    data = capture_bytes(CAPTURES / name)[:3000]
    assert walked(data, list(range(1, len(data))))[0] == walked(data)[0]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SMALL), st.data())
def test_any_cuts_give_the_same_records(name: str, draw: st.DataObject) -> None:
    data = capture_bytes(CAPTURES / name)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=12)))
    cut, walker = walked(data, cuts)
    uncut, other = walked(data)
    assert cut == uncut
    assert (walker.truncated, walker.error, walker.snaplen) == (other.truncated, other.error, other.snaplen)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SMALL), st.lists(st.tuples(st.integers(0, 2999), st.integers(0, 255)), max_size=8), st.data())
def test_damage_never_raises_and_never_depends_on_cuts(
    name: str, damage: list[tuple[int, int]], draw: st.DataObject
) -> None:
    data = bytearray(capture_bytes(CAPTURES / name)[:3000])
    for at, value in damage:
        data[4 + at % (len(data) - 4)] = value  # the magic number decides which walker it is
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=5)))
    cut, walker = walked(bytes(data), cuts)
    uncut, other = walked(bytes(data))
    assert (cut, walker.error) == (uncut, other.error)


@pytest.mark.parametrize("name", SMALL)
def test_a_pickled_walker_resumes_at_its_position(name: str) -> None:
    data = capture_bytes(CAPTURES / name)
    block = np.frombuffer(data, np.uint8)
    walker = new_walker(data)
    first, consumed = walker.walk(block[:1500], False)
    again = pickle.loads(pickle.dumps(copy.deepcopy(walker)))
    rest, _ = again.walk(block[consumed:], True)
    assert len(first) + len(rest) == len(walked(data)[0])


def fractions(order: str, magic: int, values: list[int]) -> bytes:
    """Records at 1,700,000,000 s and these fractions."""
    records = (struct.pack(order + "IIII", 1_700_000_000, value, 3, 3) + b"abc" for value in values)
    return file_header(order, magic) + b"".join(records)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("cuts", [[], [24], [30, 31, 90]])
def test_nanoseconds_below_the_magic_number_of_microseconds(order: str, cuts: list[int]) -> None:
    values = [0, 999_936, 1_999_872, 2_999_808, 999_999_999]  # the first two may be microseconds, the others may not
    found, walker = walked(fractions(order, 0xA1B2C3D4, values), cuts)
    assert [ns - 1_700_000_000 * 10**9 for ns, *_ in found] == values
    assert (walker.error, walker.doubt) == (None, None)


def test_single_fractions_of_more_than_a_second_are_in_doubt() -> None:
    found, walker = walked(fractions("<", 0xA1B2C3D4, [1, 1_000_000, 999_999, 2]))
    assert [ns - 1_700_000_000 * 10**9 for ns, *_ in found] == [1000, 10**9, 999_999_000, 2000]
    assert (walker.error, walker.doubt) == (
        None, "records have more than 999999 in their fraction of a second; their times may be wrong",
    )  # fmt: skip
    found, walker = walked(fractions("<", 0xA1B23C4D, [1, 10**9, 2]))
    assert [ns - 1_700_000_000 * 10**9 for ns, *_ in found] == [1, 10**9, 2]
    assert "999999999" in (walker.doubt or "")
    _, walker = walked(fractions("<", 0xA1B2C3D4, [0, 999_999]))
    assert walker.doubt is None
