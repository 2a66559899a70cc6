"""Pairs of whole captures: connections captured on both sides of a NAT, strangers at the port of the broker."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import decoding
import local_rows
import pcap_files
import pieces
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import audit
from pipeline.run.local_processes import LocalProcesses

CAPTURES = Path(__file__).parents[1] / "captures"
# One of each version that publishes and delivers, captured on Ethernet.
OF_VERSIONS = {
    "0-8": "08_amqplib_session.pcap", "0-9": "09_qpid_client.pcap", "0-9-1": "091_rpc_reply_to.pcap",
    "0-10": "010_cpp_send_receive.pcap", "1.0": "10_rabbitmq_proton_send_receive.pcap",
}  # fmt: skip
SECOND = 10**9
# Offsets of the addresses of IPv4, of the ports and of both numbers of TCP, behind Ethernet.
SOURCE, TARGET, PORTS, NUMBERS = 26, 30, 34, 38
FLAGS, SYN = 47, 2
PROXY = bytes([172, 17, 0, 9])
SERVER_PORT = (5672).to_bytes(2, "big")
Packet = tuple[int, bytes]  # time in ns, bytes
Pair = tuple[Any, ...]


def packets(name: str) -> list[Packet]:
    head, records = pcap_files.records(CAPTURES / name)
    unit = 1 if head[:4] == b"\x4d\x3c\xb2\xa1" else 1000
    found = []
    for record in records:
        seconds, fraction = struct.unpack_from("<II", record)
        found.append((seconds * SECOND + fraction * unit, record[16:]))
    return found


def pairs(some: list[Packet], folder: Path) -> Counter[Pair]:
    """The pairs of packets, with what tells them apart."""
    folder.mkdir()
    capture = folder / "a.pcap"
    capture.write_bytes(pcap_files.pcap(sorted(some)))
    with LocalProcesses(1) as here:
        pipeline.write(here, str(capture), str(folder / "out"))
    names = ("exchange", "routing_key", "queue", "publish_frame_no", "deliver_frame_no", "match", "ambiguous")
    rows = pq.read_table(folder / "out" / "message_flows", columns=list(names)).to_pylist()
    return Counter(tuple(row.values()) for row in rows)


def translated(packet: Packet, side: str, address: bytes, later_ns: int) -> Packet:
    """A packet as a NAT passes it on, which gives one side another address: later from the client, before it to it."""
    ns, data = packet
    from_server = data[PORTS : PORTS + 2] == SERVER_PORT
    at = SOURCE if from_server == (side == "server") else TARGET
    return ns - later_ns if from_server else ns + later_ns, data[:at] + address + data[at + 4 :]


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("version", OF_VERSIONS)
def test_pairs_of_both_sides_of_a_nat_stay_apart(version: str, side: str, tmp_path: Path) -> None:
    once = packets(OF_VERSIONS[version])
    again = [translated(packet, side, bytes([172, 17, 0, 2]), 5_000) for packet in once]
    expected = pairs(once, tmp_path / "once")
    assert False in {pair[-1] for pair in expected}
    assert True not in {pair[-1] for pair in expected}
    assert pairs([*once, *again], tmp_path / "twice") == Counter({pair: 2 * n for pair, n in expected.items()})


@pytest.mark.parametrize("count", [2, 3])
def test_connections_behind_several_nats(count: int, tmp_path: Path) -> None:
    once = packets(OF_VERSIONS["0-9-1"])
    legs = [once]
    for leg in range(1, count):
        legs.append([translated(packet, "server", bytes([172, 17, 0, leg]), 20_000 * leg) for packet in once])
    expected = pairs(once, tmp_path / "once")
    found = pairs([packet for leg in legs for packet in leg], tmp_path / "many")
    assert found == Counter({pair: count * n for pair, n in expected.items()})


def renumbered(some: list[Packet]) -> list[Packet]:
    """One connection, whose sequence numbers begin at 1000 and 2000, as programs write them."""
    sides = [data[PORTS : PORTS + 2] == SERVER_PORT for _, data in some]
    first = [struct.unpack_from(">I", some[sides.index(side)][1], NUMBERS)[0] for side in (False, True)]
    shifts = [1000 - first[0], 2000 - first[1]]
    found = []
    for (ns, data), from_server in zip(some, sides, strict=True):
        numbers = struct.unpack_from(">II", data, NUMBERS)
        moved = [
            (number + shifts[side]) % (1 << 32)
            for number, side in zip(numbers, (from_server, not from_server), strict=True)
        ]
        found.append((ns, data[:NUMBERS] + struct.pack(">II", *moved) + data[NUMBERS + 8 :]))
    return found


@pytest.mark.parametrize(("port", "apart"), [(None, True), (40_001, False)])
def test_numbers_that_are_not_random_tell_sides_of_a_nat_only_with_the_clients_port(
    port: int | None, apart: bool, tmp_path: Path
) -> None:
    once = renumbered(packets("091_tx.pcap"))
    expected = pairs(once, tmp_path / "once")
    assert {pair[-2:] for pair in expected} & {("message-id", False), ("fingerprint", False)}
    again = [translated(packet, "server", bytes([172, 17, 0, 2]), 5_000) for packet in once]
    if port is not None:
        again = [(ns, with_port(data, port)) for ns, data in again]
    found = pairs([*once, *again], tmp_path / "twice")
    assert (found == Counter({pair: 2 * n for pair, n in expected.items()})) is apart


def with_port(data: bytes, port: int) -> bytes:
    """The packet with another port of the client."""
    at = PORTS + 2 if data[PORTS : PORTS + 2] == SERVER_PORT else PORTS
    return data[:at] + port.to_bytes(2, "big") + data[at + 2 :]


def relayed(packet: Packet, near: bool, proxy: bytes = PROXY) -> Packet:
    """A packet as it was on a side of a proxy, which passes it on after 50 µs: on the side of the broker (`near`) the
    proxy is the client, with a port and sequence numbers of its own; on the other one it is the server."""
    ns, data = packet
    from_server = data[PORTS : PORTS + 2] == SERVER_PORT
    at = TARGET if from_server == near else SOURCE
    port_at = PORTS + 2 if from_server else PORTS
    changed = bytearray(data)
    changed[at : at + 4] = proxy
    if near:
        own, acknowledged = struct.unpack_from(">II", data, NUMBERS)
        shifts = (7 << 24, 5 << 24) if from_server else (5 << 24, 7 << 24)
        numbers = ((number + shift) % (1 << 32) for number, shift in zip((own, acknowledged), shifts, strict=True))
        struct.pack_into(">II", changed, NUMBERS, *numbers)
        struct.pack_into(">H", changed, port_at, int.from_bytes(data[port_at : port_at + 2], "big") ^ 1)
    return ns + 50_000 if near else ns + 100_000 * from_server, bytes(changed)


@pytest.mark.parametrize("version", OF_VERSIONS)
def test_pairs_of_both_sides_of_a_proxy_stay_apart(version: str, tmp_path: Path) -> None:
    once = packets(OF_VERSIONS[version])
    expected = pairs(once, tmp_path / "once")
    assert True not in {pair[-1] for pair in expected}
    sides = [relayed(packet, near) for near in (False, True) for packet in once]
    assert pairs(sides, tmp_path / "sides") == Counter({pair: 2 * n for pair, n in expected.items()})
    copied = sum(data[FLAGS] == SYN for _, data in once)  # each connection
    assert findings(tmp_path / "sides" / "out", "CAP-07") == copied > 0
    assert findings(tmp_path / "once" / "out", "CAP-07") == 0


def findings(tables: Path, rule: str) -> int:
    files = {folder.name: sorted(map(str, folder.glob("*.parquet"))) for folder in tables.iterdir() if folder.is_dir()}
    return int(audit.findings_in(files, rules=[rule]).num_rows)


def test_clients_of_two_brokers_that_do_the_same_have_no_proxy_between_them(tmp_path: Path) -> None:
    """The second one comes from a third host, as the first one's server says nothing about it."""
    once = packets(OF_VERSIONS["0-9-1"])
    other = [relayed(packet, near=True, proxy=bytes([172, 17, 0, 10])) for packet in once]
    found = pairs([*(relayed(packet, near=False) for packet in once), *other], tmp_path / "two")
    assert sum(n for pair, n in found.items() if pair[-1]) > 0


@pytest.mark.parametrize("later_ns", [0, 2 * SECOND, 3600 * SECOND])
def test_connections_with_equal_numbers_at_other_times_are_of_one_broker(later_ns: int, tmp_path: Path) -> None:
    """The same traffic replayed to another address of the broker: each id occurs twice there. No NAT takes no time."""
    once = packets(OF_VERSIONS["0-9-1"])
    again = [translated((ns + later_ns, data), "server", bytes([172, 17, 0, 2]), 0) for ns, data in once]
    found = pairs([*once, *again], tmp_path / "twice")
    assert sum(n for pair, n in found.items() if pair[-1]) > 0


def test_the_first_sequence_numbers_are_those_of_the_packets(tmp_path: Path) -> None:
    """tshark -e tcp.seq_raw: 2407745415 and 2829208264, then 535836970 and 3277298700; the first byte follows the
    SYN."""
    rows = local_rows.tables_of_captures([CAPTURES / "091_port_reuse.pcap"])["connections"]
    found = [row["tcp_origin"] % (1 << 64) for row in sorted(rows, key=lambda row: row["opened_ts"])]
    assert found == [2407745416 << 32 | 2829208265, 535836971 << 32 | 3277298701]
    runs = decoding.in_flow_order(decoding.runs([CAPTURES / "091_port_reuse.pcap"]))
    times = pieces.times(runs)
    pieces.same(pieces.in_pieces(runs, [times[3], times[20]]), pieces.rows_of(runs), "tcp_origin")


STRANGERS = {
    "five bytes": b"hello",
    "a request of HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "MQTT": bytes.fromhex("101600044d51545405c2003c00000a") + b"client",
    "nothing": b"",
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("version", OF_VERSIONS)
def test_strangers_at_the_brokers_port_make_no_pair_ambiguous(version: str, stranger: str, tmp_path: Path) -> None:
    once = packets(OF_VERSIONS[version])
    server = next(wire_bytes for _, wire_bytes in once if wire_bytes[PORTS : PORTS + 2] == SERVER_PORT)[
        SOURCE : SOURCE + 4
    ]
    ends = (bytes([192, 0, 2, 66]), 40066), (server, 5672)
    data, later_ns = STRANGERS[stranger], once[-1][0] + 3600 * SECOND
    syn, ack, push, fin = 0x02, 0x10, 0x18, 0x11
    segments = [
        (0, 7000, 0, syn, b""), (1, 8000, 7001, syn | ack, b""), (0, 7001, 8001, push if data else ack, data),
        (0, 7001 + len(data), 8001, fin, b""), (1, 8001, 7002 + len(data), fin, b""),
    ]  # fmt: skip
    strange = [
        (
            later_ns + at * 1000,
            once[0][1][:14] + pcap_files.tcp_packet(ends[side], ends[1 - side], seq, to, flags, wire_bytes),
        )
        for at, (side, seq, to, flags, wire_bytes) in enumerate(segments)
    ]
    expected = pairs(once, tmp_path / "alone")
    assert False in {pair[-1] for pair in expected}
    assert True not in {pair[-1] for pair in expected}
    assert pairs([*once, *strange], tmp_path / "with") == expected
