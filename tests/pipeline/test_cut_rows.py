"""Rows of each table as packets, and what a cut does with the captures that it reads.

Packets are counted as tshark counts them.
"""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest
from cut_support import CAPTURES, NEEDS_TSHARK, Tables, cut, fields, moment, records, rightly_summed, tables_of
from pcap_files import pcap
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from pipeline.extract import CapturesError, Choice, CutOptions
from pipeline.extract.choice import KEYS
from pipeline.extract.cutting import cut_rows

CHANNELS = CAPTURES / "091_channel_exceptions.pcap"
BARE = CAPTURES / "091_confirms_and_return.pcap"
ROTATED = [CAPTURES / f"091_rotated_{number}.pcap" for number in (1, 2, 3)]


def numbers(tables: Tables, table: str, row: dict[str, object], path: Path, tmp_path: Path) -> list[int]:
    """The packets of `path` that a row of a table stands for."""
    choice = Choice()
    key = {name: row.get(name) for name in KEYS[table]}
    choice.add(table, tables.arrow(table, [key]))
    cut(tables, choice, tmp_path / "cut.pcapng", context=False)
    every = records(path)
    return [every.index(record) + 1 for record in records(tmp_path / "cut.pcapng")]


@NEEDS_TSHARK
@pytest.mark.parametrize("table", ["channels", "links"])
def test_a_channel_is_the_packets_of_its_frames_in_its_time(table: str, tmp_path: Path) -> None:
    tables = tables_of([CHANNELS])
    connection = tables.rows["connections"][0]
    seen = fields(CHANNELS, "frame.number", only=f"amqp.channel == 1 && tcp.port == {connection['client_port']}")
    expected = [int(number) for (number,) in seen]
    assert len(expected) > 20
    row = {"connection_id": connection["connection_id"], "channel": 1}
    assert numbers(tables, table, row, CHANNELS, tmp_path) == expected
    # its first incarnation: until the server closed the channel and the client agreed
    (closed, *_), times = tables.frames("channel.close-ok"), dict(fields(CHANNELS, "frame.number", "frame.time_epoch"))
    until = [number for number in expected if times[str(number)] <= times[str(closed["packet_no"])]]
    assert 0 < len(until) < len(expected)
    channel = {**row, "opened_ts": connection["opened_ts"], "closed_ts": moment(closed["ts_ns"])}
    assert numbers(tables, table, channel, CHANNELS, tmp_path) == until


@NEEDS_TSHARK
def test_a_stream_is_its_connection(tmp_path: Path) -> None:
    tables = tables_of([CHANNELS])
    connection = tables.rows["connections"][0]
    seen = fields(CHANNELS, "frame.number", only=f"tcp.port == {connection['client_port']}")
    row = {"connection_id": connection["connection_id"]}
    assert numbers(tables, "streams", row, CHANNELS, tmp_path) == [int(number) for (number,) in seen]


@NEEDS_TSHARK
def test_a_flow_is_its_publish_and_its_delivery(tmp_path: Path) -> None:
    path = CAPTURES / "091_declare_publish_consume_ack.pcap"
    tables = tables_of([path])
    publish, deliver = tables.frames("basic.publish")[0], tables.frames("basic.deliver")[0]
    # class basic (60), methods publish (40) and deliver (60)
    seen = [
        fields(path, "frame.number", only=f"amqp.method.class == 60 && amqp.method.method == {m}") for m in (40, 60)
    ]
    row = {
        f"{end}_{name}": frame[name if name == "connection_id" else "frame_no"]
        for end, frame in (("publish", publish), ("deliver", deliver))
        for name in ("connection_id", "frame_no")
    }
    (came, *_), (went, *_) = ([int(number) for (number,) in found] for found in seen)
    content = [came + 1, came + 2]  # this client sends method, header and body in packets of their own
    assert fields(path, "frame.number", only=f"amqp.type in {{2, 3}} && frame.number in {{{came}..{came + 2}}}") == [
        [str(number)] for number in content
    ]
    assert numbers(tables, "message_flows", row, path, tmp_path) == [came, *content, went]
    undelivered = {**row, "deliver_connection_id": None, "deliver_frame_no": None}
    assert numbers(tables, "message_flows", undelivered, path, tmp_path) == [came, *content]


@NEEDS_TSHARK
def test_a_message_that_came_back_has_its_return(tmp_path: Path) -> None:
    tables = tables_of([BARE])
    (given_back,) = fields(BARE, "frame.number", only="amqp.method.class == 60 && amqp.method.method == 50")
    published = max(row["frame_no"] for row in tables.frames("basic.publish") if row["packet_no"] < int(given_back[0]))
    returned = tables.frames("basic.return")[0]
    ids = {"connection_id": returned["connection_id"], "first_frame_no": published}
    tables.rows["messages"] = [{**ids, "returned_frame_no": returned["frame_no"]}]
    *_, last = numbers(tables, "messages", ids, BARE, tmp_path)
    assert last == int(given_back[0])
    tables.rows["messages"][0]["returned_frame_no"] = None
    assert last not in numbers(tables, "messages", ids, BARE, tmp_path)


def test_captures_are_closed_after_reading(tmp_path: Path) -> None:
    """Rotated files follow one another: there may be more of them than a process may hold open."""
    tables, still_open = tables_of(ROTATED), []

    class Sink(io.BytesIO):
        def write(self, data: object) -> int:  # what a small cut has to say, it says at its end
            opened = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
            still_open.append(opened & {str(path) for path in ROTATED})
            return len(data)  # type: ignore[arg-type]

    assert os.path.isdir("/proc/self/fd") or pytest.skip("no list of open files here")
    assert cut_rows(tables, Choice(set(tables.ids)), Sink(), CutOptions()).captures == [path.name for path in ROTATED]
    assert still_open[-1] == set()


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_one_wrong_capture_among_right_ones_is_refused_by_its_name(wrong: int, tmp_path: Path) -> None:
    tables = tables_of(ROTATED)
    for path in ROTATED:
        shutil.copy(path, tmp_path)
    spoil(tmp_path / ROTATED[wrong].name)
    with pytest.raises(CapturesError, match=f"{ROTATED[wrong].name}: its packets do not hold what the tables say"):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", captures=str(tmp_path))


def spoil(path: Path) -> None:
    """Make a capture one of the same name and size, with the packets of another connection."""
    data = bytearray(path.read_bytes())
    for at in range(24, len(data) - 1):
        if data[at : at + 2] == (5672).to_bytes(2, "big"):
            data[at : at + 2] = (5673).to_bytes(2, "big")
    path.write_bytes(data)


def damage(path: Path, after: int = 0) -> None:
    """Make the record after so many of a pcap, or what follows the section header of a pcapng, 4 GiB long."""
    data = bytearray(path.read_bytes())
    # pcap: a header of 24 bytes, then records of 16 and their packet: seconds, fraction, captured length, length.
    # pcapng: blocks with type and length.
    at = 24 + 8 if path.suffix == ".pcap" else int.from_bytes(data[4:8], "little") + 4
    for _ in range(after):
        at += 16 + int.from_bytes(data[at : at + 4], "little")
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)


@pytest.mark.parametrize("gone", [True, False])
def test_a_wrong_capture_is_refused_beside_one_that_is_gone_or_damaged(gone: bool, tmp_path: Path) -> None:
    """Their names begin alike; the connections are of other times."""
    wrong, other = tmp_path / "a.pcap", tmp_path / "a.pcapng"
    shutil.copy(BARE, wrong)
    shutil.copy(CAPTURES / "091_ipv6.pcapng", other)
    tables = tables_of([wrong, other])
    spoil(wrong)
    if gone:
        other.unlink()
    else:
        damage(other)
    with pytest.raises(CapturesError, match=r"a\.pcap: its packets do not hold what the tables say"):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")


def test_a_wrong_capture_is_refused_where_the_one_before_ends_early(tmp_path: Path) -> None:
    """The packet that the connection begins with is there."""
    tables = tables_of(ROTATED)
    for path in ROTATED:
        shutil.copy(path, tmp_path)
    damage(tmp_path / ROTATED[0].name, after=100)
    spoil(tmp_path / ROTATED[1].name)
    with pytest.raises(CapturesError, match=f"{ROTATED[1].name}: its packets do not hold what the tables say"):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", captures=str(tmp_path))


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_damage_in_one_capture_is_not_put_down_to_the_others(torn: int, tmp_path: Path) -> None:
    """Packets of a connection cannot be identified without its first one; without others they can."""
    paths = [tmp_path / path.name for path in ROTATED]
    for path in ROTATED:
        shutil.copy(path, tmp_path)
    tables = tables_of(paths)
    damage(paths[torn])
    rest = [path for path in paths if path != paths[torn]]
    if torn:
        (problem,) = cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng").problems
        assert records(tmp_path / "cut.pcapng") == [each for path in rest for each in records(path)]
    else:
        with pytest.raises(CapturesError) as refusal:
            cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng")
        problem = str(refusal.value)
    assert problem.startswith(f"{paths[torn].as_uri()}: ")
    assert [path for path in rest if path.name in problem] == []


def test_tls_after_a_header_of_1_0_is_unchanged(tmp_path: Path) -> None:
    """1.0 part 5 section 5.2.1: both sides name protocol 2, then TLS begins. Here before the records of a capture."""
    header = b"AMQP\x02\x01\0\0"
    original = rightly_summed(CAPTURES / "091_tls12.pcap", 1000)
    ns, acknowledgement = original[2]  # the last packet of TCP's handshake
    packets = [*original[:3], *((ns + 1, opening(acknowledgement, header, by_server)) for by_server in (False, True))]
    for ns, data in original[3:]:
        packet = Ether(data)
        packet[TCP].seq += len(header)
        packet[TCP].ack += len(header)
        del packet[TCP].chksum
        packets.append((ns, bytes(packet)))
    (tmp_path / "tls.pcap").write_bytes(pcap(packets))
    tables = tables_of([tmp_path / "tls.pcap"])
    assert {row["frame_type"] for row in tables.frames()} == {"protocol-header", "tls"}
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    assert records(tmp_path / "cut.pcapng") == records(tmp_path / "tls.pcap")


def opening(acknowledgement: bytes, data: bytes, by_server: bool) -> bytes:
    """A packet that begins what the client, or the server, has to say after this last packet of TCP's handshake."""
    packet = Ether(acknowledgement)
    ip, tcp = packet[IP], packet[TCP]
    if by_server:
        packet.src, packet.dst, ip.src, ip.dst = packet.dst, packet.src, ip.dst, ip.src
        tcp.sport, tcp.dport, tcp.seq, tcp.ack = tcp.dport, tcp.sport, tcp.ack, tcp.seq + len(data)
    tcp.flags = "PA"
    tcp.remove_payload()
    del ip.len, ip.chksum, tcp.chksum
    return bytes(packet / data)


def test_options_cut_off_by_the_snaplen_are_not_a_fragment(tmp_path: Path) -> None:
    """58 bytes of each packet: Ethernet 14, IPv4 20, TCP 20, and 4 of its options."""
    cut_off = [(ns, data[:58]) for ns, data in rightly_summed(BARE, 60)]
    (tmp_path / "short.pcap").write_bytes(shortened(cut_off, [len(data) for _, data in rightly_summed(BARE, 60)]))
    tables = tables_of([tmp_path / "short.pcap"])
    result = cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    assert (result.packets, result.blanked) == (len(cut_off), 0)
    every = records(tmp_path / "short.pcap")
    assert records(tmp_path / "cut.pcapng") == every
    packet_no = 8
    choice = Choice(packet_connections={tables.ids[0]}, packets={((tmp_path / "short.pcap").as_uri(), packet_no)})
    cut(tables, choice, tmp_path / "cut.pcapng", context=False)
    assert records(tmp_path / "cut.pcapng") == [every[packet_no - 1]]


def shortened(packets: list[tuple[int, bytes]], lengths: list[int]) -> bytes:
    """A pcap whose records say how long their packets were on the wire."""
    wire_bytes, at = bytearray(pcap(packets)), 24
    for (_, data), length in zip(packets, lengths, strict=True):
        wire_bytes[at + 12 : at + 16] = length.to_bytes(4, "little")
        at += 16 + len(data)
    return bytes(wire_bytes)
