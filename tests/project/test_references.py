"""Runs that say where their payloads are in the capture give the rows of runs that carry them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import golden
import independent_tcp
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from decoding import decode_table, in_flow_order, runs
from pcap_files import pcap
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether

from benchmarks.generate import generate
from udfs.decode.flow_order import Files, Group, flows_in_order

CAPTURES = sorted(golden.captures().values(), key=lambda capture: capture.file)


def tcp_payload(packet: bytes) -> bytes:
    return bytes(Ether(packet)[TCP].payload)


SMALL_BLOCKS = {"blockBytes": 3000, "runBytes": 2000}


def referring(paths: list[Path], **sizes: int) -> pa.Table:
    options: dict[str, Any] = {**sizes, "references": "true"}
    return in_flow_order(runs(paths, **options))


@pytest.mark.parametrize("sizes", [{}, SMALL_BLOCKS], ids=["whole", "small blocks"])
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.file)
def test_rows_are_the_same(capture: golden.Capture, sizes: dict[str, int]) -> None:
    carried = in_flow_order(runs(capture.paths, **sizes))
    assert decode_table(referring(capture.paths, **sizes)).equals(decode_table(carried))


def test_payloads_of_uncompressed_captures_are_references_and_of_compressed_ones_are_not() -> None:
    plain, packed = (
        referring(golden.captures()[name].paths) for name in ("091_confirms_and_return.pcap", "091_gzip.pcap.gz")
    )
    assert [pc.any(table["payload"].is_valid()).as_py() for table in (plain, packed)] == [False, True]


def test_compressed_and_uncompressed_captures_together() -> None:
    """Some runs of a batch carry their payloads, others refer to them."""
    paths = [
        golden.captures()[name].paths[0]
        for name in ("091_gzip.pcap.gz", "091_tx.pcap", "010_tx.pcap", "091_confirms_and_return.pcap")
    ]
    rows = decode_table(referring(paths))
    assert rows.num_rows > 100
    assert rows.equals(decode_table(in_flow_order(runs(paths))))


def test_runs_far_apart_in_a_large_file(tmp_path: Path) -> None:
    """Connections that take turns, so that a run spans more of the file than is read at once."""
    path = tmp_path / "large.pcap"
    generate(path, 3_000_000)
    rows = decode_table(referring([path]))
    assert rows.num_rows > 1000
    assert rows.equals(decode_table(in_flow_order(runs([path]))))


def test_the_sides_of_a_connection_in_two_captures(tmp_path: Path) -> None:
    """One of them without any payload: all that it has are acknowledgements."""
    packets = list(independent_tcp.records(golden.captures()["091_confirms_and_return.pcap"].paths[0]))
    sides = [tmp_path / name for name in ("a.pcap", "b.pcap")]
    for side, full in zip(sides, (False, True), strict=True):
        side.write_bytes(pcap([(ns, data) for ns, _, data in packets if bool(tcp_payload(data)) == full]))
    for paths in (sides, sides[::-1]):
        rows = decode_table(referring(paths))
        assert rows.num_rows > 40
        assert rows.equals(decode_table(in_flow_order(runs(paths))))


def test_a_capture_that_has_become_shorter_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    shutil.copy(golden.captures()["091_confirms_and_return.pcap"].paths[0], path)
    table = referring([path])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(OSError, match=r"cut\.pcap: has become shorter while it was read"):
        decode_table(table)
    path.unlink()
    with pytest.raises(OSError, match=r"cut\.pcap: cannot be read again \(no such file or directory\)"):
        decode_table(table)


def test_payloads_remain_when_their_capture_is_truncated(tmp_path: Path) -> None:
    """As when a ring of captures begins again. Payloads in memory maps would end the process."""
    original = golden.captures()["091_confirms_and_return.pcap"].paths[0]
    path = tmp_path / "ring.pcap"
    shutil.copy(original, path)
    group = next(part for part in flows_in_order(referring([path]).to_batches(), Files()) if isinstance(part, Group))
    path.write_bytes(b"")
    begins = group.segments["payload_at"]
    payloads = [
        group.payload[begin : begin + size].tobytes()
        for begin, size in zip(begins, group.segments["cap_len"], strict=True)
    ]
    in_file = [tcp_payload(data) for _, _, data in independent_tcp.records(original)]
    assert payloads == in_file[: len(payloads)]
    assert any(payloads)
