"""A cut has the complete packets of its rows, in order, at their times: as independent readers see both files."""

from __future__ import annotations

import gzip
from pathlib import Path

import independent_tcp
import pytest
from cut_support import CAPTURES, NEEDS_TSHARK, Tables, cut, fields, records, tables_of
from pcap_files import pcap
from scapy.utils import PcapNgReader

from codec.pseudonyms import key_of
from pipeline.extract import Choice, CutError

KEY = key_of(b"a passphrase")
BARE = CAPTURES / "091_confirms_and_return.pcap"
# pcap in both byte orders and units, pcapng, gzip; Ethernet, VLAN, cooked, loopback, raw IP; IPv4, IPv6; all versions.
EVERY = [
    "091_handshake_ok.pcap", "091_bigendian_nano.pcap", "091_ipv6.pcapng", "091_gzip.pcap.gz", "091_qinq.pcap",
    "091_sll2_any.pcap", "091_bsd_loopback.pcap", "091_raw_ip.pcap", "091_snaplen96.pcap", "091_truncated_file.pcap",
    "08_amqplib_session.pcap", "09_qpid_client.pcap", "010_messaging_api_python.pcapng", "10_qpidd_link_errors.pcapng",
    "091_mixed_traffic.pcap", "091_tls13_dsb.pcapng", "mixed_0x_one_file.pcapng",
]  # fmt: skip


def packet_numbers(path: Path, end: independent_tcp.Endpoint) -> list[int]:
    """Numbers of the packets that a side sent or got."""
    return [packet.no for packet in independent_tcp.packets([path]) if end in (packet.source, packet.target)]


@pytest.mark.parametrize("name", EVERY)
def test_a_connection_is_all_its_packets(name: str, tmp_path: Path) -> None:
    tables, all_of_them = tables_of([CAPTURES / name]), records(CAPTURES / name)
    for row in tables.rows["connections"][:3]:
        result = cut(tables, Choice({row["connection_id"]}), tmp_path / "cut.pcapng")
        numbers = packet_numbers(CAPTURES / name, (row["client_ip"], row["client_port"]))
        assert len(numbers) >= 3
        assert records(tmp_path / "cut.pcapng") == [all_of_them[number - 1] for number in numbers]
        assert (result.packets, result.connections, result.captures) == (len(numbers), 1, [name])
    # scapy takes the file apart as well, and finds the lengths that packets had on the wire
    with PcapNgReader(str(tmp_path / "cut.pcapng")) as reader:
        assert len(list(reader)) == result.packets


@NEEDS_TSHARK
def test_tshark_sees_the_same_packets(tmp_path: Path) -> None:
    """Lengths on the wire, times to the last digit, interfaces of each link type, and the same dissection."""
    paths = [CAPTURES / name for name in ("091_snaplen96.pcap", "091_sll_any.pcap", "010_tx.pcap", "091_raw_ip.pcap")]
    columns = ["frame.time_epoch", "frame.len", "frame.cap_len", "frame.encap_type", "_ws.col.Info"]
    for path in paths:
        tables = tables_of([path])
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
        assert fields(tmp_path / "cut.pcapng", *columns) == fields(path, *columns, only="tcp")
    tables = tables_of(paths[:2])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
    assert {each[3] for each in fields(tmp_path / "cut.pcapng", *columns)} == {"1", "25"}  # Ethernet, cooked


def test_ports_used_again_are_two_connections(tmp_path: Path) -> None:
    path = CAPTURES / "091_port_reuse.pcap"
    tables = tables_of([path])
    syns = [packet.no for packet in independent_tcp.packets([path]) if packet.flags == independent_tcp.SYN]
    assert len(syns) == len(tables.ids) == 2
    every = records(path)
    parts = []
    for connection in tables.ids:
        cut(tables, Choice({connection}), tmp_path / "cut.pcapng")
        parts.append(records(tmp_path / "cut.pcapng"))
    assert parts == [every[: syns[1] - 1], every[syns[1] - 1 :]]


def test_rotated_files_come_in_the_order_of_time(tmp_path: Path) -> None:
    paths = [CAPTURES / f"091_rotated_{number}.pcap" for number in (1, 2, 3)]
    tables = tables_of(reversed(paths))
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
    expected = [record for path in paths for record in records(path)]
    assert records(tmp_path / "cut.pcapng") == expected


def test_two_taps_are_interleaved(tmp_path: Path) -> None:
    """What each side sent is in a file of its own: in the cut the packets alternate as they did on the wire."""
    every = records(BARE)
    parts: list[list[tuple[int, bytes]]] = [[], []]
    server = independent_tcp.packets([BARE])[1].source
    for packet in independent_tcp.packets([BARE]):
        parts[packet.source == server].append((packet.ts_ns, every[packet.no - 1][2]))
    for number, part in enumerate(parts):
        (tmp_path / f"tap{number}.pcap").write_bytes(pcap(part))
    tables = tables_of([tmp_path / "tap0.pcap", tmp_path / "tap1.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
    assert records(tmp_path / "cut.pcapng") == sorted(every)


def carriers(path: Path, sender: str, start: int, end: int) -> set[int]:
    """Numbers of the packets that carry stream bytes of a client or server, copies too; one connection a capture."""
    (connection,) = independent_tcp.connections(independent_tcp.packets([path]))
    half = next(half for at, half in connection.halves.items() if (at == connection.client) == (sender == "client"))
    assert half.base is not None
    found = set()
    for packet in independent_tcp.packets([path]):
        begin = (packet.seq - half.base + 2**31) % 2**32 - 2**31
        if packet.source == half.sender and begin < end and begin + packet.wire_len > start:
            found.add(packet.no)
    return found


@pytest.mark.parametrize(
    "name", ["091_tiny_segments.pcap", "091_reorder_dup_overlap.pcap", "091_seq_wrap.pcap", "010_tiny_segments.pcap"]
)
def test_a_frame_is_every_packet_that_carries_its_bytes(name: str, tmp_path: Path) -> None:
    tables, every = tables_of([CAPTURES / name]), records(CAPTURES / name)
    for row in tables.frames()[4:40:5]:
        choice = Choice(frames={(row["connection_id"], row["frame_no"])})
        cut(tables, choice, tmp_path / "cut.pcapng", context=False)
        start = row["stream_offset"]
        numbers = carriers(CAPTURES / name, row["sender"], start, start + row["size"]) | {row["packet_no"]}
        assert records(tmp_path / "cut.pcapng") == [every[number - 1] for number in sorted(numbers)]


def message_of(tables: Tables, at: int, settled: str | None = None) -> Choice:
    """The message that the publish or transfer number `at` begins; the next frame named `settled` settles it."""
    begins = [row for row in tables.frames() if row["content_frame_no"] == row["frame_no"]]
    first = begins[at]
    fate = (
        next((row for row in tables.frames(settled) if row["frame_no"] > first["frame_no"]), None) if settled else None
    )
    tables.rows["messages"].append(
        {
            "connection_id": first["connection_id"],
            "first_frame_no": first["frame_no"],
            "settled_frame_no": fate and fate["frame_no"],
            "message_id": "m-1",
        }
    )
    return Choice(messages={(first["connection_id"], first["frame_no"])})


@NEEDS_TSHARK
@pytest.mark.parametrize(
    ("name", "at", "settled", "expected"),
    [
        ("091_confirms_and_return.pcap", 0, "basic.ack", ["Basic.Publish", "Basic.Ack"]),
        ("091_mtu1500_frames_across_segments.pcap", -1, None, ["Basic.Deliver"]),  # begins inside a packet
        ("010_big_message.pcap", 0, None, ["message.transfer"]),
        ("10_rabbitmq_multi_frame_transfer.pcap", 1, "disposition", ["transfer", "disposition"]),
    ],
)
def test_a_message_is_dissected_as_in_the_complete_capture(
    name: str, at: int, settled: str | None, expected: list[str], tmp_path: Path
) -> None:
    """Each packet of the cut, if it ends a frame of the message, shows what it shows in the original."""
    tables = tables_of([CAPTURES / name])
    choice = message_of(tables, at, settled)
    cut(tables, choice, tmp_path / "cut.pcapng")
    columns = ["frame.time_epoch", "_ws.col.Info", "_ws.malformed", "frame.number"]
    seen, of_all = (fields(path, *columns) for path in (tmp_path / "cut.pcapng", CAPTURES / name))
    infos, uncut = ({time: info for time, info, *_ in each} for each in (seen, of_all))
    assert len(infos) < len(uncut) / 2
    malformed = [{time for time, _, wrong, _ in each if wrong} for each in (seen, of_all)]
    assert malformed[0] <= malformed[1]  # tshark takes the later frames of a 1.0 delivery for complete messages
    first = next(iter(choice.messages))[1]
    done = {row["packet_no"] for row in tables.frames() if row["content_frame_no"] == first}
    times = [time for time, _, _, number in of_all if int(number) in done]
    assert times
    for time in times:
        assert infos[time].rpartition("] ")[2] == uncut[time].rpartition("] ")[2]
    assert all(any(word in info for info in infos.values()) for word in expected)


@NEEDS_TSHARK
def test_packets_of_a_finding_say_so(tmp_path: Path) -> None:
    tables = tables_of([BARE])
    publish = tables.frames("basic.publish")[1]
    row = {**publish, "rule_id": "CF-05", "severity": "info", "summary": "The server refused."}
    choice = Choice()
    choice.add("findings", tables.arrow("findings", [row]))
    cut(tables, choice, tmp_path / "cut.pcapng", whole=True)
    comment = f"CF-05 info: The server refused. (packet {publish['packet_no']} of {BARE.name})"
    found = fields(tmp_path / "cut.pcapng", "frame.number", "frame.comment", only="frame.comment")
    assert found == [[str(publish["packet_no"]), comment]]
    # whoever gets it without addresses does not get names of files
    cut(tables, choice, tmp_path / "cut.pcapng", whole=True, key=KEY)
    assert BARE.name.encode() not in (tmp_path / "cut.pcapng").read_bytes()


def test_captures_that_moved_are_found_by_name(tmp_path: Path) -> None:
    tables = tables_of([CAPTURES / "091_gzip.pcap.gz"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "before.pcapng")
    for row in (*tables.rows["captures"], *tables.rows["frames"]):
        row["capture_file"] = "file:///elsewhere/091_gzip.pcap.gz"
    with pytest.raises(CutError, match=r"no such file or directory.*use --captures"):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", captures=str(CAPTURES))
    assert (tmp_path / "cut.pcapng").read_bytes() == (tmp_path / "before.pcapng").read_bytes()
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked" / "091_gzip.pcap").write_bytes(gzip.decompress((CAPTURES / "091_gzip.pcap.gz").read_bytes()))
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", captures=str(tmp_path / "unpacked"))
    assert (tmp_path / "cut.pcapng").read_bytes() == (tmp_path / "before.pcapng").read_bytes()
    tables.rows["captures"][0]["byte_size"] += 1
    with pytest.raises(CutError, match="it is another file now"):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", captures=str(CAPTURES))


def test_other_captures_than_the_tables_are_refused(tmp_path: Path) -> None:
    tables = tables_of([BARE])
    for row in tables.rows["frames"]:
        row["stream_offset"] += 100_000
    with pytest.raises(CutError, match="do not hold what the tables say"):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
    with pytest.raises(CutError, match="there is no connection 5 in the tables"):
        cut(tables, Choice({5}), tmp_path / "cut.pcapng")
    with pytest.raises(CutError, match="nothing matched"):
        cut(tables, Choice(), tmp_path / "cut.pcapng")


def test_a_second_section_with_a_finer_clock_keeps_its_times(tmp_path: Path) -> None:
    """pcapng files one after the other are one file: here one with a clock of 1 us, then one of 1 ns."""
    parts = [CAPTURES / name for name in ("091_tls12_dsb.pcapng", "091_ipv6.pcapng")]
    assert [any(ns % 1000 for ns, _, _ in records(path)) for path in parts] == [False, True]
    (tmp_path / "both.pcapng").write_bytes(b"".join(path.read_bytes() for path in parts))
    tables = tables_of([tmp_path / "both.pcapng"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
    every = records(parts[0]) + records(parts[1])
    assert sorted(records(tmp_path / "cut.pcapng")) == sorted(every)
