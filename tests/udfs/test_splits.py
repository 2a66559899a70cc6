"""Large captures are cut exactly at records, also where payloads are full of what looks like records; compressed ones
are one part, read as a stream."""

from __future__ import annotations

import gzip
import itertools
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_capture_pcapng import enhanced, interface, section
from test_source import accounts, exploded, frame, rows

from codec.compiler.limits import LIMITS
from codec.net.layers import Filter
from udfs.source.capture_bytes import CaptureFile
from udfs.source.sources import TcpRunsReader
from udfs.source.splits import Account, cut, plan, read_blocks

RAW_IP = 101
SPLIT_SIZES = (11, 100, 777, 1_500, 4_096, 10_000)


def pcap_record(order: str, number: int, packet: bytes) -> bytes:
    return struct.pack(order + "IIII", 1_700_000_000, number, len(packet), len(packet)) + packet


def pcapng_record(order: str, number: int, packet: bytes) -> bytes:
    return enhanced(order, 1_700_000_000_000_000 + number, packet, wire=len(packet))


Record = Callable[[str, int, bytes], bytes]
# What a capture begins with, as the parts that it may be cut between.
HEADS: dict[Record, Callable[[str], list[bytes]]] = {
    pcap_record: lambda order: [struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, RAW_IP)],
    pcapng_record: lambda order: [section(order), interface(order, link=RAW_IP)],
}


def decoys(order: str) -> bytes:
    """A run of well-formed records of both formats, each with a packet of a connection that never was."""
    never_was = [frame(6666, 5672, number * 40, b"never was" + bytes(31)) for number in range(6)]
    return b"".join(form(order, number, packet) for form in HEADS for number, packet in enumerate(never_was))


@pytest.mark.parametrize("sizes", [SPLIT_SIZES, pytest.param((1,), marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("form", HEADS)
def test_records_inside_payloads_are_never_taken_for_records(
    tmp_path: Path, form: Record, order: str, sizes: tuple[int, ...]
) -> None:
    """Somebody downloads captures: each payload is a chain of plausible records, begun at another byte each time."""
    inside = decoys(order)
    payloads = [inside[number * 7 % 60 :] + bytes(number % 5) for number in range(40)]
    packets = [frame(40000, 5672, number, payload) for number, payload in enumerate(payloads)]
    records = [form(order, number, packet) for number, packet in enumerate(packets)]
    pieces = HEADS[form](order) + records
    path = tmp_path / "downloads"
    path.write_bytes(b"".join(pieces))
    begins = set(itertools.accumulate(map(len, pieces)))
    for split_bytes in sizes:
        parts = cut(CaptureFile(path.as_uri(), path.stat().st_size), split_bytes)
        assert len(parts) > (path.stat().st_size // max(split_bytes, 2 * len(records[0]))) // 2
        assert {part.start for part in parts[1:]} <= begins
        runs = rows(TcpRunsReader, path, splitBytes=split_bytes)
        assert [(packet[1], packet[9]) for packet in exploded(runs)] == list(enumerate(payloads, 1))
        assert [account["error"] for account in accounts(runs) if account["error"]] == []


def test_parts_are_of_about_one_size(tmp_path: Path) -> None:
    """A capture a little larger than a part is two halves, not a full part and a rest."""
    records = [pcap_record("<", number, frame(1, 2, number, bytes(60))) for number in range(400)]
    path = tmp_path / "equal"
    path.write_bytes(b"".join(HEADS[pcap_record]("<") + records))
    size, record = path.stat().st_size, len(records[0])
    for largest in (size - 1, size * 2 // 3, size // 2, size // 5):
        starts = [part.start for part in cut(CaptureFile(path.as_uri(), size), largest)]
        lengths = [end - start for start, end in itertools.pairwise([*starts, size])]
        assert len(lengths) == -(-size // largest)
        assert max(lengths) - min(lengths) <= 2 * record


@pytest.mark.parametrize("left", [24, 5_000])
def test_a_capture_that_shrinks_after_it_was_listed_is_damaged(tmp_path: Path, left: int) -> None:
    """A tool that rotates captures cuts it while they are read: when it is planned, or between plan and reading."""
    records = [pcap_record("<", number, frame(1, 2, number, bytes(60))) for number in range(400)]
    path = tmp_path / "cut"
    path.write_bytes(b"".join(HEADS[pcap_record]("<") + records))
    listed = CaptureFile(path.as_uri(), path.stat().st_size)
    planned_before = cut(listed, 10_000)
    assert len(planned_before) > 2
    os.truncate(path, left)
    errors = []
    for part in planned_before:
        account = Account(listed.name, listed.size)
        read = sum(len(block.records) for block in read_blocks(part, account, 1 << 16, Filter()))
        assert read == (max(0, left - 24) // len(records[0]) if part.start == 0 else 0)
        errors.append(account.error)
    shrunk = f"{listed.name}: the file became shorter while it was read; the packets that are left were read"
    assert errors == [shrunk] * len(planned_before)
    assert [part.start for part in cut(listed, 10_000)] == [0]
    path.unlink()
    account = Account(listed.name, listed.size)
    assert list(read_blocks(planned_before[1], account, 1 << 16, Filter())) == []
    assert account.error == f"{listed.name}: no such file or directory"


def test_a_compressed_capture_is_one_part_whatever_its_size(tmp_path: Path) -> None:
    records = b"".join(pcap_record("<", number, frame(1, 2, number, bytes(900))) for number in range(300))
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(b"".join(HEADS[pcap_record]("<")) + records))
    ((part,),) = plan([CaptureFile(path.as_uri(), path.stat().st_size)], 500)
    assert (part.start, part.end) == (0, None)
    assert path.stat().st_size > 500


# Packets of a capture, and the highest resident set of the process that read it.
READ = """
import json, os, sys
from benchmarks.processes import peak_bytes
from udfs.source.options import parse_options
from udfs.source.sources import TcpRunsReader

reader = TcpRunsReader(parse_options({"path": sys.argv[1]}))
for partition in reader.partitions():
    for batch in reader.read(partition):
        account = batch.column("account")[len(batch) - 1].as_py()
print(json.loads(account)["packets"], peak_bytes(os.getpid()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_memory_does_not_grow_with_a_compressed_capture(tmp_path: Path) -> None:
    """450 MB of packets against 225 MB, where it has settled: one block more at most."""
    packets = [frame(40000, 5672, number * 1448, bytes([number % 251]) * 1448) for number in range(3_000)]
    records = b"".join(pcap_record("<", number, packet) for number, packet in enumerate(packets))
    head, member = gzip.compress(b"".join(HEADS[pcap_record]("<"))), gzip.compress(records, 1)
    peaks = []
    for count in (50, 100):
        path = tmp_path / f"{count}.pcap.gz"
        path.write_bytes(head + member * count)  # members of a gzip file follow one another
        command = [sys.executable, "-c", READ, str(path)]
        ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
        found, peak = map(int, ran.stdout.split())
        assert found == count * len(packets)
        peaks.append(peak)
    assert peaks[1] - peaks[0] < LIMITS.block_bytes
