"""Packets and runs of captures: every packet once, whatever the splits; unreadable captures as rows."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import independent_tcp
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from test_capture_pcapng import enhanced, interface, section

import udfs
from codec.net.layers import SEGMENT
from codec.tables import TCP_RUNS
from udfs.arrow.spark_schemas import spark_schema
from udfs.source.captures import captures_of
from udfs.source.options import OptionError, parse_filter, parse_options, parse_time
from udfs.source.packets import PcapReader, PcapSource
from udfs.source.sources import ReadRuns, TcpRunsReader, run_tasks

CAPTURES = Path(__file__).parents[1] / "captures"
GOOD = CAPTURES / "091_handshake_ok.pcap"
REAL = sorted(path for path in CAPTURES.iterdir() if path.name.endswith((".pcap", ".pcapng", ".pcap.gz")))
Row = dict[str, Any]
# file, packet number, time, source, target, seq, ack, flags, bytes sent, bytes captured
Packet = tuple[str, int, int, tuple[str, int], tuple[str, int], int, int, int, int, bytes]


def batches(reader: type[PcapReader | TcpRunsReader], *paths: Path, **options: object) -> Iterator[pa.RecordBatch]:
    """What the tasks of a reader would yield, one after the other."""
    text = {name: str(value) for name, value in options.items()}
    source = reader(parse_options({"paths": json.dumps([str(path) for path in paths]), **text}))
    for partition in source.partitions():
        yield from source.read(partition)  # type: ignore[misc, arg-type]


def rows(reader: type[PcapReader | TcpRunsReader], *paths: Path, **options: object) -> list[Row]:
    return [row for batch in batches(reader, *paths, **options) for row in batch.to_pylist()]


def address(data: bytes) -> str:
    ip = IPv6Address(data)
    return str(ip.ipv4_mapped or ip)


def exploded(runs: list[Row]) -> list[Packet]:
    """The packets inside runs."""
    found = []
    for run in runs:
        if run["flow"] is None:
            continue
        low_port, high_port = struct.unpack(">HH", run["flow"][32:])
        ends = [(address(run["flow"][:16]), low_port), (address(run["flow"][16:32]), high_port)]
        for segment in np.frombuffer(run["segments"], SEGMENT):
            at = int(segment["payload_at"])
            payload = run["payload"][at : at + int(segment["cap_len"])]
            assert len(payload) == segment["cap_len"]
            source = int(segment["direction"])
            numbers = [int(segment[name]) for name in ("seq", "ack", "flags", "wire_len")]
            no, ts_ns = int(segment["packet_no"]), int(segment["ts_ns"])
            found.append((run["capture_file"], no, ts_ns, ends[source], ends[1 - source], *numbers, payload))
    return sorted(found)  # type: ignore[arg-type]


def accounts(runs: list[Row]) -> list[Row]:
    return [json.loads(run["account"]) for run in runs if run["account"] is not None]


def expected_packets(path: Path) -> list[Packet]:
    return [
        (path.as_uri(), p.no, p.ts_ns, p.source, p.target, p.seq, p.ack, p.flags, p.wire_len, p.payload)
        for p in independent_tcp.packets([path])
    ]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_runs_have_the_packets_that_the_independent_reader_finds(path: Path) -> None:
    runs = rows(TcpRunsReader, path)
    packets = exploded(runs)
    assert packets == expected_packets(path)
    (account,) = accounts(runs)
    assert account["packets"] == len(list(independent_tcp.records(path)))
    assert account["packets"] - sum(account["skipped"].values()) == len(packets)
    assert account["error"] is None


def test_a_run_is_one_flow_in_file_order_within_its_limits() -> None:
    runs = [run for run in rows(TcpRunsReader, CAPTURES / "091_gzip.pcap.gz", runBytes=20_000) if run["flow"]]
    assert len(runs) > 10
    last = 0
    for run in runs:
        segments = np.frombuffer(run["segments"], SEGMENT)
        assert (np.diff(segments["packet_no"]) > 0).all()
        assert run["first_packet_no"] == segments["packet_no"][0] > last
        assert run["order_ns"] == segments["order_ns"][0]
        assert len(run["payload"]) <= 20_000 or len(segments) == 1
        last = run["first_packet_no"]


def test_the_number_of_segments_of_a_run_is_bounded(tmp_path: Path) -> None:
    packets = [(0, 0, frame(10_000, 5672, n, b"")) for n in range(8193)]
    runs = [run for run in rows(TcpRunsReader, written(tmp_path / "many.pcap", packets)) if run["flow"]]
    assert [len(run["segments"]) // SEGMENT.itemsize for run in runs] == [8192, 1]


def frame(sport: int, dport: int, seq: int, payload: bytes) -> bytes:
    """Raw IPv4 and TCP, written out: version and header length, length, protocol 6; offset 5, flags ACK."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, b"\n\0\0\1", b"\n\0\0\2")
    return ip + struct.pack(">HHIIBBHHH", sport, dport, seq, 0, 0x50, 0x10, 1024, 0, 0) + payload


def written(path: Path, packets: list[tuple[int, int, bytes]]) -> Path:
    """A pcap of (seconds, microseconds, raw IP packet)."""
    records = b"".join(struct.pack("<IIII", s, us, len(data), len(data)) + data for s, us, data in packets)
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101) + records)
    return path


def test_order_never_decreases_and_counts_packets_other_than_tcp(tmp_path: Path) -> None:
    arp_like = b"\x45" + bytes(19)  # an IPv4 header of length 0, protocol 0
    path = written(
        tmp_path / "back.pcap",
        [(5, 0, frame(1, 2, 0, b"a")), (9, 0, arp_like), (6, 0, frame(1, 2, 1, b"b")), (10, 0, frame(1, 2, 2, b"c"))],
    )
    for split_bytes, block_bytes in itertools.product([1, 64, 10**9], [1, 64, 10**9]):
        runs = [run for run in rows(TcpRunsReader, path, splitBytes=split_bytes, blockBytes=block_bytes) if run["flow"]]
        segments = np.concatenate([np.frombuffer(run["segments"], SEGMENT) for run in runs])
        assert segments["order_ns"].tolist() == [5_000_000_000, 9_000_000_000, 10_000_000_000]
        assert segments["packet_no"].tolist() == [1, 3, 4]


@pytest.fixture(scope="module")
def two_sections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sections of both byte orders, interfaces described late, several resolutions."""
    data = b""
    for order in ("<", ">", "<"):
        data += section(order) + interface(order, link=101)
        for n in range(20):
            data += enhanced(order, 1_000_000 + n, frame(1000 + n % 3, 5672, n, bytes([n]) * n), wire=60 + n)
            if n == 10:  # nanoseconds from here on
                data += interface(order, link=228, options=struct.pack(order + "HHBxxxHH", 9, 1, 9, 0, 0))
            if n > 10:
                data += enhanced(order, 2_000_000_000 + n, frame(5672, 1000 + n % 3, n, b"reply"), number=1)
    path = tmp_path_factory.mktemp("sections") / "two.pcapng"
    path.write_bytes(data)
    return path


GRID = list(itertools.product([400, 5000, 10**9], [100, 3000, 10**9], [1, 700, 10**9]))


@pytest.mark.parametrize("name", ["091_mixed_traffic.pcap", "091_ipv6.pcapng", "091_truncated_file.pcap", "sections"])
def test_no_split_block_or_run_size_changes_the_packets(name: str, two_sections: Path) -> None:
    path = two_sections if name == "sections" else CAPTURES / name
    reference = rows(TcpRunsReader, path)
    (account,) = accounts(reference)
    expected = exploded(reference)
    assert len(expected) == (3 * 29 if name == "sections" else len(expected_packets(path)))
    for split_bytes, block_bytes, run_bytes in GRID:
        cut = rows(TcpRunsReader, path, splitBytes=split_bytes, blockBytes=block_bytes, runBytes=run_bytes)
        assert exploded(cut) == expected
        parts = accounts(cut)
        assert (len(parts) > 1) == (split_bytes < path.stat().st_size)
        assert sum(part["packets"] for part in parts) == account["packets"]
        assert sum(sum(part["skipped"].values()) for part in parts) == sum(account["skipped"].values())
        assert any(part["truncated"] for part in parts) == account["truncated"]
        assert min(part["first_ts_ns"] for part in parts if part["packets"]) == account["first_ts_ns"]
        assert max(part["last_ts_ns"] for part in parts if part["packets"]) == account["last_ts_ns"]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000))
def test_any_sizes_give_the_same_packets(split_bytes: int, block_bytes: int, run_bytes: int) -> None:
    path = CAPTURES / "091_bigendian_nano.pcap"
    cut = rows(TcpRunsReader, path, splitBytes=split_bytes, blockBytes=block_bytes, runBytes=run_bytes)
    assert exploded(cut) == expected_packets(path)


def test_packet_rows_describe_the_packets() -> None:
    path = CAPTURES / "091_mixed_traffic.pcap"
    found = rows(PcapReader, path)
    assert [row["packet_no"] for row in found] == list(range(1, 738))
    assert {row["skipped"] for row in found} == {None, "udp", "icmp"}
    tcp = [
        (
            row["capture_file"], row["packet_no"], row["ts_ns"], (row["src_ip"], row["src_port"]),
            (row["dst_ip"], row["dst_port"]), row["seq"], row["ack"], row["tcp_flags"], row["wire_len"], row["payload"],
        )
        for row in found
        if row["skipped"] is None
    ]  # fmt: skip
    assert tcp == expected_packets(path)
    udp = next(row for row in found if row["skipped"] == "udp")
    assert (udp["src_ip"], udp["src_port"], udp["payload"], udp["link_type"]) == ("127.0.0.1", None, None, 1)


@pytest.mark.parametrize("name", ["091_ipv6.pcapng", "091_sll2_any.pcap", "091_snaplen96.pcap"])
def test_packet_rows_do_not_depend_on_sizes(name: str) -> None:
    reference = rows(PcapReader, CAPTURES / name)
    assert rows(PcapReader, CAPTURES / name, splitBytes=2000, blockBytes=300) == reference
    assert all(row["cap_len"] == len(row["payload"]) for row in reference if row["skipped"] is None)


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("udfs.source.columns.BATCH_BYTES", 20_000)
    path = CAPTURES / "091_gzip.pcap.gz"
    for reader in (PcapReader, TcpRunsReader):
        cut = list(batches(reader, path, runBytes=5000))
        assert len(cut) > 10
    assert exploded(rows(TcpRunsReader, path, runBytes=5000)) == expected_packets(path)


def test_filters_retain_matching_packets_and_count_the_rest() -> None:
    path = CAPTURES / "091_mixed_traffic.pcap"
    everything = expected_packets(path)
    amqp = [packet for packet in everything if 5672 in (packet[3][1], packet[4][1])]
    runs = rows(TcpRunsReader, path, ports="5672,5671")
    assert exploded(runs) == amqp
    (account,) = accounts(runs)
    assert account["skipped"] == {"icmp": 18, "udp": 18, "filtered": len(everything) - len(amqp)}
    assert account["packets"] == 737
    assert [row["packet_no"] for row in rows(PcapReader, path, ports=5672)] == [packet[1] for packet in amqp]
    begin, end = everything[100][2], everything[200][2]
    inside = [packet for packet in everything if begin <= packet[2] < end]
    assert exploded(rows(TcpRunsReader, path, since=begin, until=end)) == inside
    assert exploded(rows(TcpRunsReader, path, hosts="192.0.2.1")) == []
    assert exploded(rows(TcpRunsReader, path, hosts="192.0.2.1, 127.0.0.1")) == everything


def test_times_are_iso_or_nanoseconds() -> None:
    assert parse_time("1700000000000000001", "since") == 1_700_000_000_000_000_001
    assert parse_time("2023-11-14T22:13:20.000001Z", "since") == 1_700_000_000_000_001_000
    assert parse_time("2023-11-14 22:13:20", "since") == 1_700_000_000_000_000_000
    assert parse_time("2023-11-14T23:13:20+01:00", "since") == 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ports": "5672,amqp"}, "ports: 'amqp' is not a valid TCP port"),
        ({"ports": "65536"}, "ports: '65536' is not a valid TCP port"),
        ({"hosts": "broker"}, "hosts: 'broker' is not a valid IP address"),
        ({"since": "yesterday"}, "since: 'yesterday' is not a valid time"),
        ({"until": "2026-13-01"}, "until: '2026-13-01' is not a valid time"),
    ],
)
def test_meaningless_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_filter(**options)


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    with pytest.raises(OptionError, match="there is no option 'port'; did you mean 'ports'"):
        parse_options({"path": "a.pcap", "port": "5672"})


@pytest.mark.parametrize("options", [{"splitBytes": "0"}, {"runBytes": "-1"}, {"blockBytes": "1M"}, {"paths": "a"}])
def test_meaningless_sizes_and_paths_are_named(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        parse_options(options)


def test_the_capture_row_describes_the_capture() -> None:
    (account,) = accounts(rows(TcpRunsReader, CAPTURES / "091_truncated_file.pcap"))
    path = CAPTURES / "091_truncated_file.pcap"
    times = [ts for ts, _, _ in independent_tcp.records(path)]
    assert account == {
        "capture_file": path.as_uri(),
        "byte_size": path.stat().st_size,
        "format": "pcap",
        "compression": None,
        "link_types": ["ethernet"],
        "packets": len(times),
        "first_ts_ns": min(times),
        "last_ts_ns": max(times),
        "snaplen": 262144,
        "dropped": None,
        "truncated": True,
        "error": None,
        "skipped": {},
    }


def test_spark_reads_packets_and_runs(spark: SparkSession) -> None:
    udfs.register(spark)
    path = CAPTURES / "091_ipv6.pcapng"
    packets = spark.read.format("pcap").option("splitBytes", 2000).load(str(path))
    assert packets.count() == 51
    first = packets.orderBy("packet_no").first()
    assert first is not None
    assert (first.ts_ns, first.src_ip, first.skipped) == (expected_packets(path)[0][2], "::1", None)
    options = {"paths": json.dumps([str(path), str(GOOD)]), "splitBytes": "2000"}
    tasks = run_tasks(options)
    runs = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(ReadRuns(options, tasks), spark_schema(TCP_RUNS))
    collected = [row.asDict() for row in runs.collect()]
    assert exploded(collected) == sorted(expected_packets(path) + expected_packets(GOOD))
    assert {account["capture_file"] for account in accounts(collected)} == {path.as_uri(), GOOD.as_uri()}


MIXED = CAPTURES / "091_mixed_traffic.pcap"
# SQL, and what it says of an independently read packet; the numbers of packets differ.
QUERIES: dict[str, Callable[[independent_tcp.Packet], bool]] = {
    "dst_port = 5672": lambda p: p.target[1] == 5672,
    "dst_port IN (5672, 80) AND wire_len > 0": lambda p: p.target[1] in (5672, 80) and p.wire_len > 0,
    "src_port <> 5672 AND packet_no <= 200": lambda p: p.source[1] != 5672 and p.no <= 200,
    "seq < 2000000000 AND ack >= 5": lambda p: p.seq < 2_000_000_000 and p.ack >= 5,
    "tcp_flags = 24 AND src_ip IS NOT NULL": lambda p: p.flags == 24,
}


def scanned_rows(query: DataFrame) -> int:
    """Rows that a query has got from its data source, by Spark's own count."""
    query.collect()
    leaf = query._jdf.queryExecution().executedPlan().collectLeaves().apply(0)  # type: ignore[operator]
    return int(leaf.metrics().apply("numOutputRows").value())


@pytest.mark.parametrize("where", QUERIES)
def test_packets_that_a_query_filters_out_do_not_reach_spark(spark: SparkSession, where: str) -> None:
    udfs.register(spark)
    query = spark.read.format("pcap").load(str(MIXED)).where(where)
    wanted = [packet.no for packet in independent_tcp.packets([MIXED]) if QUERIES[where](packet)]
    assert sorted(row.packet_no for row in query.collect()) == wanted
    assert 0 < scanned_rows(query) <= 1.2 * len(wanted)


def test_only_the_columns_of_a_given_schema_are_made(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    udfs.register(spark)
    narrow = spark.read.format("pcap").schema("packet_no long, dst_port int").load(str(GOOD)).where("dst_port = 5672")
    expected = [(packet.no, 5672) for packet in independent_tcp.packets([GOOD]) if packet.target[1] == 5672]
    assert sorted(map(tuple, narrow.collect())) == expected
    monkeypatch.setattr("udfs.source.columns.gather_payloads", None)  # would be called for payloads
    reader = PcapSource({"path": str(GOOD)}).reader(narrow.schema)
    (batch,) = (batch for part in reader.partitions() for batch in reader.read(part))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == ["packet_no", "dst_port"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("packetno long", "there is no column 'packetno'; did you mean 'packet_no'"),
        ("seq int", "column seq is of type"),
    ],
)
def test_a_schema_of_other_columns_is_refused(schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PcapSource({"path": str(GOOD)}).reader(StructType().fromDDL(schema))  # type: ignore[arg-type]


def test_an_unreadable_capture_is_a_row_whatever_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """But for queries that no such row meets."""
    udfs.register(spark)
    (tmp_path / "a.pcap").write_bytes(b"no capture")
    packets = spark.read.format("pcap").load(str(tmp_path))
    assert packets.where("error IS NOT NULL AND packet_no IS NULL").count() == 1
    assert packets.where("dst_port = 5672").count() == 0


def test_doubtful_times_are_named_behind_damage(tmp_path: Path) -> None:
    """Of four records one has a fraction of a second and more, with the magic number of microseconds."""
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    records = [struct.pack("<IIII", 1_700_000_000, fraction, 3, 3) + b"abc" for fraction in (1, 2_000_000, 3, 4)]
    capture = tmp_path / "a.pcap"
    for data, wrong in (
        (b"".join(records), "records have more than 999999 in their fraction of a second; their times may be wrong"),
        (b"".join(records) + struct.pack("<IIII", 0, 0, 1 << 30, 0), "claims more than 16777216 captured bytes"),
    ):
        capture.write_bytes(head + data)
        (row,) = captures_of(accounts(rows(TcpRunsReader, capture)))
        assert wrong in row["error"]
        assert row["packets"] == 4
