"""Captures of fragments: tshark completes the same datagrams, and no split size changes a row."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import independent_tcp
import pytest
from decoding import decode_table, in_flow_order, runs
from encapsulations import MACS, WRAPS
from hypothesis import given, settings
from hypothesis import strategies as st
from pcap_files import pcap
from scapy.layers.inet import IP, fragment
from scapy.layers.l2 import Ether
from test_fragments import COPY, FRAGMENTS, WAITING, Fragment, limits, packet, with_id
from test_layers import V4, tcp
from test_source import accounts, exploded, rows
from test_tunnels import BARE, bare_frames, frames

from udfs.source import splits
from udfs.source.packets import PcapReader
from udfs.source.sources import TcpRunsReader


def cut_up(path: Path, size: int, rng: random.Random) -> list[tuple[int, bytes]]:
    """The packets of a capture in fragments of `size`, those of a datagram shuffled, some of them twice."""
    packets = []
    for number, (ns, _, data) in enumerate(independent_tcp.records(path)):
        parts = [(ns, bytes(Ether(**MACS) / part)) for part in fragment(with_id(data, number + 1), fragsize=size)]
        rng.shuffle(parts)
        packets += [copy for part in parts for copy in [part] * rng.choice([1, 1, 1, min(2, len(parts))])]
    return packets


@pytest.fixture(scope="module")
def fragmented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fragments") / "fragmented.pcap"
    path.write_bytes(pcap(cut_up(BARE, 40, random.Random(3))))
    return path


def test_fragmented_capture_gives_the_frames_of_the_whole_one(fragmented: Path) -> None:
    columns = ["frame_type", "name", "arguments", "properties", "stream_offset", "size", "ts_ns", "payload", "status"]
    found, expected = (
        [row for row in each if row["kind"] == "frame"] for each in (frames(fragmented), bare_frames(BARE))
    )
    assert [[row[column] for column in columns] for row in found] == [
        [row[column] for column in columns] for row in expected
    ]
    (account,) = accounts(rows(TcpRunsReader, fragmented))
    assert account["skipped"].keys() == {WAITING, COPY}
    assert account["packets"] - sum(account["skipped"].values()) == len(independent_tcp.packets([BARE]))


def test_reassembled_payloads_are_copied_where_others_are_references(fragmented: Path) -> None:
    carried, referring = runs([fragmented]), runs([fragmented], references="true", blockBytes=500)
    assert {row["payload"] is None for row in referring.to_pylist() if row["flow"]} == {False, True}
    assert decode_table(in_flow_order(referring)).equals(decode_table(in_flow_order(carried)))


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_datagrams_are_complete_where_tshark_completes_them(tmp_path: Path) -> None:
    path = tmp_path / "fragmented.pcap"
    data = list(dict.fromkeys(cut_up(BARE, 40, random.Random(3))))  # tshark begins a new datagram with a late copy
    wrap = WRAPS["erspan ii"]
    path.write_bytes(pcap([(ns, wrap(wire_bytes)) for ns, wire_bytes in data]))
    command = ["tshark", "-n", "-r", str(path), "-o", "ip.defragment:TRUE", "-Y", "tcp", "-T", "fields"]
    command += [part for name in ("frame.number", "tcp.seq_raw", "tcp.payload") for part in ("-e", name)]
    tshark_lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    expected = [tuple((line + "\t").split("\t")[:3]) for line in tshark_lines]
    found = [row for row in rows(PcapReader, path) if row["skipped"] is None]
    assert [(str(row["packet_no"]), str(row["seq"]), row["payload"].hex()) for row in found] == expected
    assert {row["encapsulation"] for row in found} == {"erspan-ii session=5"}
    assert len(found) > 20


def reader_output(path: Path, **sizes: int) -> tuple[list[Any], Counter[str], list[Any]]:
    """All that may not depend on the sizes."""
    read = rows(TcpRunsReader, path, **sizes)
    counted: Counter[str] = Counter()
    for account in accounts(read):
        counted.update(account["skipped"])
    return exploded(read), counted, rows(PcapReader, path, **sizes)


@given(st.integers(100, 30_000), st.integers(1, 30_000))
@settings(max_examples=15, deadline=None)
def test_split_size_changes_no_packet_of_a_fragmented_capture(
    fragmented: Path, split_bytes: int, block_bytes: int
) -> None:
    assert reader_output(fragmented, splitBytes=split_bytes, blockBytes=block_bytes) == reader_output(fragmented)


@given(
    each=FRAGMENTS, known=st.integers(1, 12), split_bytes=st.integers(100, 1500), block_bytes=st.integers(1, 3000),
    searched_bytes=st.integers(0, 1500),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_split_size_changes_no_packet_of_hostile_fragments(
    tmp_path_factory: pytest.TempPathFactory, each: list[Fragment], known: int, split_bytes: int, block_bytes: int,
    searched_bytes: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("hostile") / "hostile.pcap"
    bare = bytes(Ether(**MACS) / IP(**V4) / tcp())
    data = [packet(one, 4) if one[1] < 5 else bare for one in each]  # some packets in between are not fragmented
    path.write_bytes(pcap(enumerate(data)))
    with pytest.MonkeyPatch.context() as patch:
        limits(patch, fragment_packets=known, fragment_datagrams=2, block_bytes=block_bytes)
        patch.setattr(splits, "SEARCHED_BYTES", searched_bytes)
        assert reader_output(path, splitBytes=split_bytes, blockBytes=block_bytes) == reader_output(path)


@pytest.mark.parametrize("gap", range(5, 9))
@pytest.mark.parametrize("searched", [0, 4, 8, 12])
def test_a_split_knows_the_fragments_that_wait(
    gap: int, searched: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fragment, other packets, the second fragment, with a cut everywhere: they are joined up to 7 packets on,
    however many packets before it the driver searches."""
    limits(monkeypatch, fragment_packets=8, block_bytes=100)
    monkeypatch.setattr(splits, "SEARCHED_BYTES", searched * 80)
    bare = bytes(Ether(**MACS) / IP(**V4) / tcp())
    first, second = (bytes(Ether(**MACS) / part) for part in fragment(IP(**V4, id=7) / tcp(), fragsize=16))
    for before in range(14):
        path = tmp_path / f"{before}.pcap"
        path.write_bytes(pcap(enumerate([bare] * before + [first] + [bare] * (gap - 1) + [second] + [bare] * 3)))
        cut, uncut = reader_output(path, splitBytes=10 * (16 + len(bare))), reader_output(path)
        assert cut == uncut
        assert uncut[1] == {WAITING: 1 if gap < 8 else 2}
