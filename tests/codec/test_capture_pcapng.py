"""pcapng blocks, laid out by hand after draft-ietf-opsawg-pcapng."""

from __future__ import annotations

import struct
import time
from fractions import Fraction

import numpy as np
import pytest
from growth import assert_linear
from hypothesis import given, settings
from hypothesis import strategies as st
from test_capture_pcap import walked

from codec.capture import NO_INTERFACE, NOT_A_PACKET
from codec.capture.pcapng import LAST_NS, PcapngWalker, nanoseconds, time_rule
from codec.compiler.limits import LIMITS

ORDERS = ["<", ">"]


def block(order: str, kind: int, body: bytes) -> bytes:
    """Type, length, body padded to 4 bytes, length again."""
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str, major: int = 1) -> bytes:
    # byte-order magic, version, section length unknown
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, major, 0, -1))


def interface(order: str, link: int = 1, snaplen: int = 0, options: bytes = b"") -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link, 0, snaplen) + options)


def enhanced(order: str, ts: int, data: bytes, number: int = 0, wire: int | None = None) -> bytes:
    head = struct.pack(order + "IIIII", number, ts >> 32, ts & 0xFFFFFFFF, len(data), wire or len(data))
    return block(order, 6, head + data)


@pytest.mark.parametrize("order", ORDERS)
def test_enhanced_packets_in_microseconds_by_default(order: str) -> None:
    data = (
        section(order)
        + interface(order, link=113, snaplen=96)
        + enhanced(order, 1_700_000_000_000_005, b"abcde", wire=77)
    )
    found, walker = walked(data)
    assert found == [(1_700_000_000_000_005_000, 77, 113, b"abcde")]
    assert (walker.format, walker.snaplen, walker.dropped, walker.error) == ("pcapng", 96, None, None)


@pytest.mark.parametrize("order", ORDERS)
def test_options_after_the_packet_are_skipped(order: str) -> None:
    flags = option(order, 2, bytes(4)) + option(order, 1, b"a comment") + option(order, 0, b"")
    head = struct.pack(order + "IIIII", 0, 0, 9, 5, 5) + b"abcde\0\0\0"
    found, _ = walked(section(order) + interface(order) + block(order, 6, head + flags) + enhanced(order, 10, b"x"))
    assert [packet for *_, packet in found] == [b"abcde", b"x"]


@pytest.mark.parametrize("order", ORDERS)
def test_each_interface_has_its_own_link_type_resolution_and_offset(order: str) -> None:
    nanoseconds_since_1000_s = option(order, 9, b"\x09") + option(order, 14, struct.pack(order + "q", 1000))
    data = (
        section(order)
        + interface(order, link=1)
        + interface(order, link=276, options=nanoseconds_since_1000_s + option(order, 0, b""))
        + enhanced(order, 3, b"a", number=1)
        + enhanced(order, 3, b"b", number=0)
    )
    found, _ = walked(data)
    assert found == [(1_000_000_000_003, 1, 276, b"a"), (3000, 1, 1, b"b")]


def test_a_section_may_change_the_byte_order_and_restarts_interface_numbers() -> None:
    data = b"".join(
        section(order) + interface(order, link=link) + enhanced(order, 1, order.encode())
        for order, link in [("<", 1), (">", 101), ("<", 0)]
    )
    found, _ = walked(data)
    assert found == [(1000, 1, 1, b"<"), (1000, 1, 101, b">"), (1000, 1, 0, b"<")]


@pytest.mark.parametrize("order", ORDERS)
def test_simple_packet_takes_the_time_before_it_and_is_bounded_by_the_snaplen(order: str) -> None:
    simple = block(order, 3, struct.pack(order + "I", 100) + b"12345678")  # 100 on the wire, 8 captured
    data = section(order) + interface(order, snaplen=8) + simple + enhanced(order, 7, b"x") + simple
    found, _ = walked(data)
    assert found == [(0, 100, 1, b"12345678"), (7000, 1, 1, b"x"), (7000, 100, 1, b"12345678")]


@pytest.mark.parametrize("order", ORDERS)
def test_simple_packet_without_snaplen_ends_at_its_length_not_at_the_padding(order: str) -> None:
    found, _ = walked(section(order) + interface(order) + block(order, 3, struct.pack(order + "I", 5) + b"12345"))
    assert found == [(0, 5, 1, b"12345")]


@pytest.mark.parametrize("order", ORDERS)
def test_obsolete_packet_block(order: str) -> None:
    # interface (2 bytes), drops (2), time, captured, on the wire
    body = struct.pack(order + "HHIIII", 1, 9, 0, 44, 3, 60) + b"xyz"
    found, _ = walked(section(order) + interface(order) + interface(order, link=101) + block(order, 2, body))
    assert found == [(44_000, 60, 101, b"xyz")]


@pytest.mark.parametrize("order", ORDERS)
def test_drop_counters_add_up_over_interfaces_and_the_last_value_of_each_counts(order: str) -> None:
    def statistics(number: int, interface_drops: int, system_drops: int) -> bytes:
        counters = option(order, 5, struct.pack(order + "Q", interface_drops))
        counters += option(order, 7, struct.pack(order + "Q", system_drops)) + option(order, 0, b"")
        return block(order, 5, struct.pack(order + "III", number, 0, 0) + counters)

    head = section(order) + interface(order) + interface(order)
    _, walker = walked(head + statistics(0, 1, 2) + statistics(0, 10, 20) + statistics(1, 0, 5))
    assert walker.dropped == 10 + 20 + 5
    _, walker = walked(head + statistics(0, 1, 0) + head + statistics(0, 4, 0) + statistics(2, 8, 0))
    assert walker.dropped == 1 + 4  # of both sections; the second one describes no third interface


def test_time_and_memory_are_linear_in_the_number_of_interfaces() -> None:
    """Each statistics block of an interface of its own: what they count was once added up anew for each."""
    counters = option("<", 5, struct.pack("<Q", 1)) + option("<", 0, b"")

    def seconds_of(number: int) -> float:
        blocks = [block("<", 5, struct.pack("<III", i, 0, 0) + counters) for i in range(number)]
        data = section("<") + interface("<") * number + b"".join(blocks)
        began = time.process_time()
        _, walker = walked(data)
        assert walker.dropped == number
        return time.process_time() - began

    assert_linear(seconds_of, (5_000, 40_000), spread=3)
    many = LIMITS.interfaces + 10
    packets = enhanced("<", 1, b"x", many - 1) + enhanced("<", 1, b"y")
    found, walker = walked(section("<") + interface("<") * many + packets)
    assert [link for _, _, link, _ in found] == [NO_INTERFACE, 1]
    assert isinstance(walker, PcapngWalker)
    assert len(walker.interfaces) <= 2 * LIMITS.interfaces


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [4, 10, 0x80000001, 0x204])  # names, secrets, private, unknown
def test_blocks_of_other_types_are_skipped(order: str, kind: int) -> None:
    other = block(order, kind, b"whatever it is")
    found, walker = walked(section(order) + other + interface(order) + other + enhanced(order, 1, b"x") + other)
    assert len(found) == 1
    assert walker.error is None


@pytest.mark.parametrize("kind", [0x0BAD, 0x40000BAD, 9])  # custom blocks, journal entries: tshark 4.0 numbers them
def test_blocks_that_wireshark_numbers_keep_packet_numbers_aligned(kind: int) -> None:
    data = section("<") + interface("<") + block("<", kind, b"\0\0\0\0data") + enhanced("<", 1, b"x")
    found, _ = walked(data)
    assert [link for _, _, link, _ in found] == [NOT_A_PACKET, 1]


def test_a_packet_on_an_undescribed_interface_is_a_record_without_link_type() -> None:
    data = (
        section("<")
        + interface("<")
        + enhanced("<", 5, b"a")
        + enhanced("<", 9, b"b", number=7)
        + enhanced("<", 6, b"c")
    )
    found, walker = walked(data)
    assert found == [(5000, 1, 1, b"a"), (5000, 1, NO_INTERFACE, b"b"), (6000, 1, 1, b"c")]
    assert walker.error is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (struct.pack("<III", 6, 0, 0), "claims a length of 0 bytes"),
        (struct.pack("<III", 6, 30, 0) + bytes(30), "claims a length of 30 bytes"),
        (struct.pack("<III", 77, 0x7FFFFFF0, 0), "claims a length of 2147483632 bytes"),
        (enhanced("<", 1, b"abcd")[:-4] + b"\x01\0\0\0", "does not repeat its length of 36 bytes"),
        (block("<", 6, struct.pack("<IIIII", 0, 0, 0, 400, 400) + b"abcd"), "claims more captured bytes"),
    ],
)
def test_damage_stops_with_the_place_and_keeps_what_came_before(bad: bytes, message: str) -> None:
    head = section("<") + interface("<") + enhanced("<", 1, b"good")
    found, walker = walked(head + bad + enhanced("<", 1, b"lost"))
    assert [packet for *_, packet in found] == [b"good"]
    assert walker.error is not None
    assert message in walker.error
    assert f"at byte {len(head)} " in walker.error


def test_damaged_section_headers_are_named() -> None:
    assert "byte-order magic" in (walked(b"\x0a\x0d\x0d\x0a" + bytes(40))[1].error or "")
    assert "version 3" in (walked(section("<", major=3))[1].error or "")
    assert "inside the section header" in (walked(section("<")[:20])[1].error or "")


def test_file_that_ends_inside_a_block_is_truncated() -> None:
    data = section("<") + interface("<") + enhanced("<", 1, b"x")
    for end in range(len(data) - 30, len(data)):
        found, walker = walked(data[:end])
        assert (found, walker.truncated, walker.error) == ([], True, None)


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.integers(-(2**33), 2**33))
def test_times_are_exact_or_at_their_bound(units: int, resolution: int, offset_s: int) -> None:
    power = resolution & 0x7F
    exact = int(Fraction(units * 10**9, (2 if resolution & 0x80 else 10) ** power))
    rule, factor = time_rule(resolution)
    got = int(nanoseconds(units >> 32, units & 0xFFFFFFFF, rule, factor, offset_s * 10**9))
    if exact <= LAST_NS:
        assert got == max(-LAST_NS, min(exact + offset_s * 10**9, LAST_NS))
    assert -LAST_NS <= got <= LAST_NS
    assert LAST_NS - -LAST_NS < 2**63  # from the first time to the last


def test_blocks_of_one_process_id_and_packets_may_alternate() -> None:
    """A process id that begins anew before each of 3,000 packets; no block is read again for each packet."""
    count = 3_000

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))

    parts = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)), block(1, struct.pack("<HHI", 1, 0, 65535))]
    for i in range(count):
        entry = struct.pack("<IHH", 7, 2, 4) + f"{i:04}".encode() + struct.pack("<HHQ", 9, 8, i * 1000) + bytes(4)
        parts.append(block(0x0BAD, struct.pack("<III", 32622, 3, len(entry)) + entry))
        packet = struct.pack("<IIIII", 0, 0, i, 14, 14) + bytes(16) + struct.pack("<HHQ", 8, 8, 7) + bytes(4)
        parts.append(block(6, packet))
    data = b"".join(parts)
    walker = PcapngWalker()
    walker.walk(np.frombuffer(bytearray(data), np.uint8), True)
    found = [walker.processes[number - 1].name for number in (walker.process_of[walker.process_of > 0] >> 2).tolist()]
    assert found == [f"{i:04}" for i in range(count)]
