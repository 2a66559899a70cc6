"""IP fragments: scapy cuts datagrams up, tshark and a plain model put them together, no split size changes a row."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from encapsulations import MACS, OUTER, WRAPS, vxlan
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, fragment6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from test_layers import PAYLOAD, V4, V6, dissected, tcp
from test_tunnels import encapsulation_text, segment

from codec.capture import RECORD
from codec.compiler.limits import LIMITS, Limits
from codec.net.fragments import Fragments
from codec.net.headers import skip_name
from codec.net.layers import Packets, dissect

RAW = 101
WAITING, COPY, OVERLAP, BAD = "ip-fragment", "ip-fragment-copy", "ip-fragment-overlap", "malformed-ip-fragment"
OVER = "ip-fragment-over-limit"


def reasons(packets: Packets) -> list[str | None]:
    return [skip_name(int(code)) if code else None for code in packets.skip]


def limits(monkeypatch: pytest.MonkeyPatch, **changes: int) -> Limits:
    """Other limits for fragments; the kernels take them from the size of their arrays."""
    changed = replace(LIMITS, **changes)
    monkeypatch.setattr("codec.net.fragments.LIMITS", changed)
    monkeypatch.setattr("udfs.source.splits.LIMITS", changed)
    return changed


def pieces(size: int = 8) -> list[bytes]:
    """The segment of `tcp()` (28 bytes) as IPv4 fragments."""
    return [bytes(part) for part in fragment(IP(**V4, id=77) / tcp(), fragsize=size)]


def piece(offset: int, data: bytes, more: bool = True, number: int = 77, source: bytes = b"\n\0\0\t") -> bytes:
    """One IPv4 fragment of a TCP datagram, written by hand: `offset` in units of eight bytes, MF is 0x2000."""
    flags = offset | (0x2000 if more else 0)
    size = 20 + len(data)
    return struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, number, flags, 64, 6, 0, source, b"\n\0\0\2") + data


def with_id(frame: bytes, number: int) -> Packet:
    """The IP packet of a frame with another identification, to be cut up."""
    packet: Packet = Ether(frame)[IP]
    packet.id, packet.flags = number, 0
    return packet


SEGMENT = bytes(IP(**V4) / tcp())[20:]


def test_fragments_in_any_order_give_the_segment_to_the_packet_that_completes_it() -> None:
    parts = pieces()
    assert len(parts) == 4
    for seed in range(24):
        random.Random(seed).shuffle(parts)
        packets = dissected(*parts, link=RAW)
        assert reasons(packets) == [WAITING, WAITING, WAITING, None]
        assert segment(packets, 3) == (("10.0.0.9", 40000), ("10.0.0.2", 5672), 0xFFFFFFF0, PAYLOAD)
        assert packets.segments["packet_no"].tolist() == [1, 2, 3, 4]


def test_datagrams_of_one_identification_come_one_after_the_other() -> None:
    """As of a sender that numbers nothing; copies of their fragments begin no datagram."""
    first, second = SEGMENT, SEGMENT[:4] + bytes(4) + SEGMENT[8:20] + bytes(8)  # another sequence number, other bytes
    parts = [
        piece(offset, data[8 * offset : 8 * offset + 16], offset == 0) for data in (first, second) for offset in (0, 2)
    ]
    packets = dissected(parts[0], parts[1], parts[1], parts[0], parts[2], parts[2], parts[3], parts[3], link=RAW)
    assert reasons(packets) == [WAITING, None, COPY, COPY, WAITING, COPY, None, COPY]
    assert [segment(packets, row)[2] for row in (1, 6)] == [0xFFFFFFF0, 0]


def test_ipv6_fragments_behind_other_extension_headers() -> None:
    datagram = IPv6(**V6) / IPv6ExtHdrHopByHop() / IPv6ExtHdrFragment(id=5) / (tcp() / Raw(bytes(3000)))
    parts = [bytes(part) for part in fragment6(datagram, 1280)]
    assert len(parts) == 3
    packets = dissected(*reversed(parts), link=RAW)
    assert reasons(packets) == [WAITING, WAITING, None]
    assert segment(packets, 2) == (("2001:db8::9", 40000), ("2001:db8::2", 5672), 0xFFFFFFF0, PAYLOAD + bytes(3000))


def test_fragments_in_tunnels_and_tunnels_in_fragments() -> None:
    wrap = WRAPS["gre key 0"]
    inside = [wrap(bytes(14) + part) for part in pieces(16)]  # the inner datagram was cut, then wrapped
    outer = [
        bytes(Ether(**MACS) / part)
        for number, frame in enumerate(inside)
        for part in fragment(with_id(frame, 1000 + number), fragsize=24)
    ]  # and that cut again
    for data in (inside, outer):
        packets = dissected(*data)
        assert reasons(packets) == [WAITING] * (len(data) - 1) + [None]
        assert segment(packets, len(data) - 1)[3] == PAYLOAD
        assert encapsulation_text(packets, len(data) - 1) == "gre key=0"
    assert len(outer) == 4


def test_duplicates_are_ignored_also_after_the_datagram_is_complete() -> None:
    first, second = pieces(16)
    packets = dissected(first, first, second, second, first, link=RAW)
    assert reasons(packets) == [WAITING, COPY, None, COPY, COPY]


def test_bare_and_wrapped_fragments_are_one_datagram() -> None:
    first, second = (bytes(Ether(**MACS) / part) for part in fragment(IP(**V4, id=77) / tcp(), fragsize=16))
    wrap = WRAPS["vxlan"]
    assert reasons(dissected(first, wrap(first), second, wrap(second))) == [WAITING, COPY, None, COPY]


def test_first_bytes_win_where_fragments_overlap() -> None:
    packets = dissected(
        piece(0, SEGMENT[:24]),
        piece(2, b"\xee" * 16),  # its first half is there already, its second half is the last four bytes and more
        link=RAW,
    )
    assert reasons(packets) == [WAITING, OVERLAP]
    packets = dissected(piece(0, SEGMENT[:24]), piece(1, b"\xee" * 16 + SEGMENT[24:], more=False), link=RAW)
    assert reasons(packets) == [WAITING, None]
    assert segment(packets, 1)[3] == PAYLOAD
    late = dissected(piece(1, b"\xee" * 16 + SEGMENT[24:], more=False), piece(0, SEGMENT[:24]), link=RAW)
    # bytes 8 to 23 came first: acknowledgement, offset (0xe0: 14 words, beyond the end) and all that follows
    assert reasons(late) == [WAITING, "malformed-tcp-header"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([piece(0, bytes(12))], [BAD]),  # 12 bytes, and more to come
        ([piece(8191, bytes(8), more=False)], [BAD]),  # 20 + 65528 + 8 bytes: beyond 65535
        ([piece(8189, bytes(3), more=False)], [WAITING]),  # 20 + 65512 + 3: the longest there is
        ([piece(8189, bytes(4), more=False)], [BAD]),
        ([piece(3, b"", more=False)], [BAD]),
        ([piece(0, bytes(8)), piece(2, bytes(5), more=False), piece(3, bytes(8))], [WAITING, WAITING, BAD]),
        ([piece(2, bytes(5), more=False), piece(1, bytes(5), more=False)], [WAITING, BAD]),  # two ends
        ([piece(3, bytes(8)), piece(2, bytes(5), more=False)], [WAITING, BAD]),  # an end before the end
        ([piece(0, bytes(8)), piece(0, bytes(8), number=78)], [WAITING, WAITING]),
        ([piece(0, bytes(8)), piece(1, bytes(8), more=False, source=b"\n\0\0\x08")], [WAITING, WAITING]),
        ([piece(0, bytes(8)), piece(1, bytes(1), more=False)], [WAITING, "malformed-tcp-header"]),
    ],
)
def test_hostile_fragments_are_counted_by_name(parts: list[bytes], expected: list[str]) -> None:
    assert reasons(dissected(*parts, link=RAW)) == expected


def test_the_longest_datagram() -> None:
    payload = random.Random(1).randbytes(65535 - 40)
    parts = [bytes(part) for part in fragment(IP(**V4) / TCP(sport=40000, dport=5672) / Raw(payload), fragsize=1480)]
    packets = dissected(*parts, link=RAW)
    assert segment(packets, len(parts) - 1)[3] == payload
    unfragmented = bytes(TCP(sport=40000, dport=5672)) + payload + bytes(20)
    parts = [
        bytes(
            IPv6(**V6)
            / IPv6ExtHdrFragment(nh=6, id=5, m=at + 1440 < 65535, offset=at // 8)
            / Raw(unfragmented[at : at + 1440])
        )
        for at in range(0, 65535, 1440)
    ]
    assert segment(dissected(*parts, link=RAW), len(parts) - 1)[3] == payload + bytes(20)


def test_snaplen_in_a_fragment_ends_what_was_captured() -> None:
    unfragmented = IP(**V4, id=3) / tcp() / Raw(bytes(range(52)))  # 20 + 8 + 52 bytes behind the IP header
    parts = [bytes(part) for part in fragment(unfragmented, fragsize=32)]  # 32, 32, 16
    block = np.frombuffer(bytearray(parts[0] + parts[1][:30] + parts[2]), np.uint8)
    records = np.zeros(3, RECORD)
    records["cap_len"] = [52, 30, 36]
    records["wire_len"] = [52, 52, 36]
    records["offset"] = [0, 52, 82]
    records["link_type"] = RAW
    packets = dissect(block, records, 1, 0)
    found = packets.segments[2]
    assert (packets.skip[2], found["wire_len"], found["cap_len"]) == (0, 60, 12 + 10)  # 12 in the first, 10 in the next
    assert packets.data[found["payload_at"] :][:22].tobytes() == PAYLOAD + bytes(range(14))


def test_datagrams_wait_for_a_bounded_number_of_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, fragment_packets=8)
    first, second = pieces(16)
    other = bytes(IP(**V4) / tcp())
    assert reasons(dissected(first, *[other] * 7, second, link=RAW)) == [WAITING, *[None] * 7, WAITING]
    assert reasons(dissected(first, *[other] * 6, second, link=RAW)) == [WAITING, *[None] * 6, None]


def test_a_bounded_number_of_datagrams_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, fragment_packets=8, fragment_datagrams=2)
    parts = [piece(0, SEGMENT[:16], number=n) for n in range(4)] + [piece(2, SEGMENT[16:], False, n) for n in range(4)]
    # the third and fourth find no buffer, nor do their ends until the first two are complete
    assert reasons(dissected(*parts, link=RAW)) == [WAITING, WAITING, OVER, OVER, None, None, WAITING, WAITING]


def test_endless_fragments_take_bounded_memory() -> None:
    fragments, packet_no = Fragments(), 1
    for _ in range(8):
        data = [piece(offset % 3, bytes(8), number=packet_no + n) for n, offset in enumerate(range(2000))]
        block = np.frombuffer(bytearray(b"".join(data)), np.uint8)
        records = np.zeros(len(data), RECORD)
        records["cap_len"] = records["wire_len"] = 28
        records["offset"] = np.arange(len(data)) * 28
        records["link_type"] = RAW
        packets = dissect(block, records, packet_no, 0, fragments)
        packet_no += len(data)
        assert len(packets.data) == len(block)
    assert sum(array.nbytes for array in fragments.buffers()) < 20 * 2**20
    saved = fragments.save(packet_no)
    assert saved is not None
    assert len(saved.datagrams) <= LIMITS.fragment_datagrams
    assert fragments.save(packet_no + LIMITS.fragment_packets) is None


# ---- a model, byte by byte ------------------------------------------------------------------------------------------

Fragment = tuple[int, int, int, bool, int, bool]  # datagram, offset, units, last and odd, variant, wrapped


def model(packets: list[Fragment], known: int, buffers: int) -> Iterator[tuple[str, bytes]]:
    """What each fragment is, and the datagram that it completes."""
    stored: list[dict[str, Any]] = []
    added: list[tuple[int, tuple[int, int, bytes]]] = []
    for no, (number, offset, units, last, variant, _) in enumerate(packets):
        stored = [each for each in stored if each["no"] > no - known]
        start, stop = offset * 8, offset * 8 + units * 8 - (3 if last else 0)
        piece = number, offset, variants()[variant][start:stop]
        known_as = next((each for each in reversed(stored) if each["number"] == number), None)
        if known_as is not None and known_as["done"]:
            if any(each == piece and at > no - known for at, each in added):
                yield COPY, b""
                continue
            known_as = None  # other bytes begin another datagram
        if known_as is None:
            if sum(not each["done"] for each in stored) == buffers:
                yield OVER, b""
                continue
            known_as = {"no": no, "number": number, "done": False, "bytes": {}, "total": None}
            stored.append(known_as)
        end, total = max(known_as["bytes"], default=-1) + 1, known_as["total"]
        if (total is not None and (stop > total or (last and stop != total))) or (last and stop < end):
            yield BAD, b""
            continue
        known_as["total"] = stop if last else total
        added.append((no, piece))
        fresh = [at for at in range(start, stop) if at not in known_as["bytes"]]
        known_as["bytes"].update({at: variants()[variant][at] for at in fresh})
        if len(known_as["bytes"]) == known_as["total"]:
            known_as["done"] = True
            yield "", bytes(known_as["bytes"][at] for at in range(known_as["total"]))
        else:
            yield COPY if not fresh else WAITING if len(fresh) == stop - start else OVERLAP, b""


def variants() -> list[bytes]:
    """Datagrams of 64 bytes whose TCP headers agree and whose payloads do not."""
    header = bytes(TCP(sport=40000, dport=5672, seq=1000, flags="A"))
    return [header + bytes([variant + 1]) * 44 for variant in range(3)]


def packet(each: Fragment, version: int) -> bytes:
    number, offset, units, last, variant, wrapped = each
    data = variants()[variant][offset * 8 : offset * 8 + units * 8 - (3 if last else 0)]
    if version == 4:
        inner = Ether(**MACS) / IP(**V4, id=number, flags=0 if last else "MF", frag=offset, proto=6) / Raw(data)
    else:
        inner = Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrFragment(nh=6, id=number, m=not last, offset=offset) / Raw(data)
    return bytes(OUTER / vxlan() / inner if wrapped else inner)


FRAGMENTS = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(0, 5), st.integers(1, 3), st.booleans(), st.integers(0, 2), st.booleans()
    ).filter(lambda each: each[1] > 0 or not each[3]),  # a piece that is first and last is no fragment
    max_size=40,
)


@pytest.mark.parametrize("version", [4, 6])
@given(each=FRAGMENTS)
@example(each=[(1, 0, 1, False, 0, False)] * 2 + [(1, 1, 1, True, 0, False), (1, 0, 2, False, 0, False)])
@settings(max_examples=60, deadline=None)
def test_fragments_agree_with_the_model(version: int, each: list[Fragment]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        limits(patch, fragment_packets=12, fragment_datagrams=2)
        packets = dissected(*[packet(one, version) for one in each])
    for row, (reason, datagram) in enumerate(model(each, 12, 2)):
        if reason:
            assert reasons(packets)[row] == reason
        elif len(datagram) < 20:
            assert reasons(packets)[row] == "malformed-tcp-header"
        else:
            assert reasons(packets)[row] is None
            assert segment(packets, row) == (
                ("10.0.0.9" if version == 4 else "2001:db8::9", 40000),
                ("10.0.0.2" if version == 4 else "2001:db8::2", 5672),
                1000,
                datagram[20:],
            )
