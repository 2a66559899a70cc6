"""The same traffic in several files: two sniffers, rotation, ranges that overlap, one direction a file, a file that is
still being written. What the decoder makes of them is what it makes of the one capture that they were cut from.

Captures are real ones, taken apart here; `independent_tcp` reads their packets. Rotated sets that a tool wrote are in
test_invariance, all kinds of tunnels in test_tunnels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import independent_tcp
import pytest
from decoding import Connection, connections, decode_table, decoded, in_flow_order, rows_of, runs
from encapsulations import MACS, WRAPS
from pcap_files import pcap
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from scapy.layers.inet import fragment
from scapy.layers.l2 import Ether
from test_fragments import WAITING, with_id
from test_source import accounts
from test_source import rows as read

import pipeline
import udfs.decode.flow_order as runs_in_groups
from udfs.source.sources import TcpRunsReader

CAPTURES = Path(__file__).parents[1] / "captures"
MS = 1_000_000
Record = tuple[int, int, bytes]  # time in ns, link type, packet

# Every version; several connections; port reuse; body frames over many packets; segments of one byte; both links.
NAMES = [
    "08_amqplib_session.pcap",
    "09_qpid_client.pcap",
    "010_lowlevel_methods.pcap",
    "091_big_message_many_bodies.pcap",
    "091_declare_publish_consume_ack.pcap",
    "091_port_reuse.pcap",
    "091_rpc_reply_to.pcap",
    "091_sll_any.pcap",
    "091_tiny_segments.pcap",
    "10_rabbitmq_multi_frame_transfer.pcap",
    "10_rhea_peer_to_peer.pcap",
]
WHAT = (
    "sender", "channel", "frame_type", "version", "name", "arguments", "properties", "stream_offset", "size", "payload",
    "body_sha256", "status", "error",
)  # fmt: skip
WHEN = ("frame_no", "ts_ns", "first_ts_ns")

every_capture = pytest.mark.parametrize("name", NAMES)


def records(name: str) -> list[Record]:
    return list(independent_tcp.records(CAPTURES / name))


def write(path: Path, packets: Iterable[Record], wrap: Callable[[bytes], bytes] = bytes, later_ns: int = 0) -> Path:
    packets = list(packets)
    path.write_bytes(pcap([(ns + later_ns, wrap(data)) for ns, _, data in packets], packets[0][1]))
    return path


def decode(paths: Iterable[Path]) -> list[Connection]:
    return connections(rows_of(decode_table(in_flow_order(runs(list(paths))))))


def values(found: Iterable[Connection], *columns: str) -> list[list[tuple[Any, ...]]]:
    return [[tuple(row[column] for column in columns) for row in connection.rows] for connection in found]


def facts(found: Iterable[Connection], name: str) -> list[tuple[int, int]]:
    return [(each.facts["client"][name], each.facts["server"][name]) for each in found]


def one_byte_segments(name: str) -> int:
    return sum(packet.wire_len == 1 for packet in independent_tcp.packets([CAPTURES / name]))


# ---- two sniffers ---------------------------------------------------------------------------------------------------


@every_capture
@pytest.mark.parametrize("later_ms", [3, -3])
@pytest.mark.parametrize("wrap", [None, "vxlan", "gre"])
def test_two_sniffers_whose_clocks_differ(tmp_path: Path, name: str, later_ms: int, wrap: str | None) -> None:
    """Both saw all of it; the second one bare, or as the copy that a switch sends through a tunnel."""
    packets, once = records(name), decoded(name)
    if wrap is not None and packets[0][1] != 1:
        pytest.skip("what has no Ethernet header is not mirrored")
    first = write(tmp_path / "1.pcap", packets)
    second = write(tmp_path / "2.pcap", packets, WRAPS[wrap] if wrap else bytes, later_ms * MS)
    twice = decode([first, second])
    assert values(twice, *WHAT, "frame_no") == values(once, *WHAT, "frame_no")
    # Times are those of the sniffer whose clock is behind.
    shift = min(later_ms, 0) * MS
    assert values(twice, "ts_ns", "packet_no", "file") == [
        [(row["ts_ns"] + shift, row["packet_no"], "2.pcap" if shift else "1.pcap") for row in connection.rows]
        for connection in once
    ]
    for part in ("payload_bytes", "missing_bytes"):
        assert facts(twice, part) == facts(once, part)
    assert [each.facts["conflicting_overlap_bytes"] for each in twice] == [0] * len(once)
    # All is there once more. A copy of one byte may be taken for a keep-alive, which repeats one byte as well.
    again = [
        2 * before + size - now
        for copies, sizes, counted in zip(*(facts(of, what) for of, what in (
            (once, "retransmitted_bytes"), (once, "payload_bytes"), (twice, "retransmitted_bytes"))), strict=True)
        for before, size, now in zip(copies, sizes, counted, strict=True)
    ]  # fmt: skip
    assert min(again) >= 0
    assert sum(again) <= one_byte_segments(name)


@every_capture
@pytest.mark.parametrize("lost", [0.1, 0.5])
def test_packets_lost_by_one_sniffer_come_from_the_other(tmp_path: Path, name: str, lost: float) -> None:
    """Each packet is lost by one of them at most; their clocks agree as well as synchronised ones do."""
    packets, rng = records(name), random.Random(7)
    losers = [rng.random() // lost for _ in packets]
    files = [
        write(
            tmp_path / f"{sniffer}.pcap",
            [packet for packet, loser in zip(packets, losers, strict=True) if loser != sniffer],
            later_ns=sniffer * 20_000,
        )
        for sniffer in (0, 1)
    ]
    found, expected = decode(files), decoded(name)
    assert facts(found, "missing_bytes") == facts(expected, "missing_bytes")
    # What came late was awaited: frames of the two directions may have ended in another order.
    assert in_stream_order(found) == in_stream_order(expected)


def in_stream_order(found: Iterable[Connection]) -> list[list[tuple[Any, ...]]]:
    """Rows without their numbers, one direction after the other."""
    return [
        sorted(rows, key=lambda row: (row[WHAT.index("sender")], row[WHAT.index("stream_offset")]))
        for rows in values(found, *WHAT)
    ]


# ---- one connection in many files -----------------------------------------------------------------------------------


@every_capture
def test_rotated_files_with_names_in_no_order(tmp_path: Path, name: str) -> None:
    packets, rng = records(name), random.Random(name)
    names = rng.sample([f"{letter}.pcap" for letter in "abcdefghi"], 9)
    cuts = [number * len(packets) // 9 for number in range(10)]
    files = [
        write(tmp_path / names[number], packets[cuts[number] : cuts[number + 1]])
        for number in range(9)
        if cuts[number] < cuts[number + 1]
    ]
    rng.shuffle(files)
    assert values(decode(files), *WHAT, *WHEN) == values(decoded(name), *WHAT, *WHEN)


@every_capture
@pytest.mark.parametrize("names", [("1.pcap", "2.pcap"), ("2.pcap", "1.pcap")])
def test_files_whose_ranges_overlap(tmp_path: Path, name: str, names: tuple[str, str]) -> None:
    packets = records(name)
    third = len(packets) // 3
    parts = packets[: 2 * third], packets[third:]
    found = decode([write(tmp_path / file, part) for file, part in zip(names, parts, strict=True)])
    assert values(found, *WHAT, *WHEN) == values(decoded(name), *WHAT, *WHEN)
    assert facts(found, "payload_bytes") == facts(decoded(name), "payload_bytes")
    counted = sum(map(sum, facts(found, "retransmitted_bytes")))
    before = sum(map(sum, facts(decoded(name), "retransmitted_bytes")))
    sent = {packet.no: packet.wire_len for packet in independent_tcp.packets([CAPTURES / name])}
    again = sum(sent.get(number, 0) for number in range(third + 1, 2 * third + 1))
    assert 0 <= before + again - counted <= one_byte_segments(name)


@every_capture
@pytest.mark.parametrize("group_bytes", [runs_in_groups.GROUP_BYTES, 1])
def test_each_direction_in_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, group_bytes: int
) -> None:
    """However many runs are ordered at a time."""
    monkeypatch.setattr(runs_in_groups, "GROUP_BYTES", group_bytes)
    packets = records(name)
    halves: dict[bool, list[Record]] = {True: [], False: []}
    for packet in independent_tcp.packets([CAPTURES / name]):
        halves[packet.source > packet.target].append(packets[packet.no - 1])
    files = [write(tmp_path / f"{side}.pcap", half) for side, half in halves.items()]
    assert values(decode(files), *WHAT, *WHEN) == values(decoded(name), *WHAT, *WHEN)


def test_fragments_of_one_datagram_in_two_files(tmp_path: Path) -> None:
    """Each file is read by itself: a datagram that a rotation cuts is counted in both, and missing in the stream."""
    name = "091_confirms_and_return.pcap"
    torn = next(packet for packet in independent_tcp.packets([CAPTURES / name]) if packet.wire_len > 300)
    before: list[Record] = []
    behind: list[Record] = []
    for number, (ns, link, data) in enumerate(records(name), 1):
        parts = [(ns, link, bytes(Ether(**MACS) / part)) for part in fragment(with_id(data, number), fragsize=200)]
        before += parts if number < torn.no else parts[:1] if number == torn.no else []
        behind += parts if number > torn.no else parts[1:] if number == torn.no else []
    one_file = write(tmp_path / "one.pcap", before + behind)
    assert values(decode([one_file]), *WHAT, *WHEN) == values(decoded(name), *WHAT, *WHEN)
    (together,) = accounts(read(TcpRunsReader, one_file))
    both = write(tmp_path / "1.pcap", before), write(tmp_path / "2.pcap", behind)
    waiting = [account["skipped"].get(WAITING, 0) for account in accounts(read(TcpRunsReader, *both))]
    assert sum(waiting) == together["skipped"][WAITING] + 1  # none completes it
    assert sum(map(sum, facts(decode(both), "missing_bytes"))) == torn.wire_len


# ---- a file that is still being written -----------------------------------------------------------------------------


@pytest.mark.parametrize("written", [1, 15, 16, 40])
def test_the_last_file_is_read_up_to_where_it_is_written(tmp_path: Path, written: int) -> None:
    """Rotated files, the last one with `written` bytes of a record whose rest is not on the disk yet."""
    name = "091_rpc_reply_to.pcap"
    packets = records(name)
    ready, last = packets[:60], packets[60:101]
    first = write(tmp_path / "z.pcap", ready)
    second = write(tmp_path / "a.pcap", last)
    size = second.stat().st_size - 16 - len(last[-1][2])
    second.write_bytes(second.read_bytes()[: size + written])
    expected = decode([write(tmp_path / "complete.pcap", packets[:100])])
    assert values(decode([first, second]), *WHAT, *WHEN) == values(expected, *WHAT, *WHEN)
    found = {
        account["capture_file"].rsplit("/", 1)[1]: account for account in accounts(read(TcpRunsReader, first, second))
    }
    assert {file: (account["packets"], account["truncated"], account["error"]) for file, account in found.items()} == {
        "z.pcap": (60, False, None),
        "a.pcap": (40, True, None),
    }


# ---- all of it at once, to the tables -------------------------------------------------------------------------------

SNIFFED, MIRRORED, ROTATED, OVERLAPPING, APART = (
    "091_tx.pcap", "091_get_and_empty.pcap", "091_rpc_reply_to.pcap", "091_confirms_and_return.pcap",
    "091_librabbitmq_tools.pcap",
)  # fmt: skip
TABLES = ("connections", "links", "messages", "streams")
# Where, how often and up to when something was seen, not what was.
OF_PACKETS = {
    "capture_file", "packet_no", "client_packets", "server_packets", "retransmitted_bytes", "out_of_order_segments",
    "packets", "closed_ts", "max_silence_ns", "client_max_silence_ns", "server_max_silence_ns",
}  # fmt: skip


def scattered(folder: Path) -> None:
    """Five captures as many files, in names without order; the last of the rotated ones is being written."""
    first = records(SNIFFED)
    write(folder / "b-sniffer.pcap", first)
    write(folder / "a-sniffer.pcap", first, later_ns=3 * MS)
    mirrored = records(MIRRORED)
    write(folder / "switch.pcap", mirrored)
    write(folder / "mirror.pcap", mirrored, WRAPS["vxlan"], 3 * MS)
    rotated = records(ROTATED)
    for number, file in enumerate(("r3.pcap", "r1.pcap", "r4.pcap", "r2.pcap")):
        write(folder / file, rotated[number * 30 : (number + 1) * 30])
    last = write(folder / "r0.pcap", rotated[120:])
    with last.open("ab") as out:
        out.write(bytes(15))  # not even the header of the next record
    overlapping = records(OVERLAPPING)
    write(folder / "from.pcap", overlapping[10:])
    write(folder / "until.pcap", overlapping[:30])
    halves: dict[bool, list[Record]] = {True: [], False: []}
    packets = records(APART)
    for packet in independent_tcp.packets([CAPTURES / APART]):
        halves[packet.source > packet.target].append(packets[packet.no - 1])
    write(folder / "one-way.pcap", halves[True])
    write(folder / "other-way.pcap", halves[False])


def rows_by_table(tables: pipeline.Tables) -> dict[str, list[str]]:
    found = {}
    for name in TABLES:
        table = getattr(tables, name).drop(*OF_PACKETS)
        found[name] = sorted(row.text for row in table.select(F.to_json(F.struct("*")).alias("text")).collect())
    return found


def test_a_folder_of_such_captures_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    scattered(tmp_path)
    originals = [str(CAPTURES / name) for name in (SNIFFED, MIRRORED, ROTATED, OVERLAPPING, APART)]
    reference = pipeline.decode(spark, originals)
    expected = rows_by_table(reference)
    reference.release()
    tables = pipeline.decode(spark, str(tmp_path))
    found = rows_by_table(tables)
    captures = {row.capture_file.rsplit("/", 1)[1]: row for row in tables.captures.collect()}
    tables.release()
    for name in TABLES:
        assert found[name] == expected[name]
        assert found[name]
    assert len(captures) == len(list(tmp_path.iterdir())) == 13
    assert [file for file, row in captures.items() if row.truncated] == ["r0.pcap"]
    assert {row.error for row in captures.values()} == {None}
