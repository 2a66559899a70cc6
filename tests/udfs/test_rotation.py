"""Rotated captures whose clock steps back: their packets keep the order of the files if TCP goes on in it."""

from __future__ import annotations

import struct
from pathlib import Path

import local_rows
import pcap_files
import pytest

from udfs.source.paths import resolve
from udfs.source.rotation import beginnings

CAPTURE = Path(__file__).parents[1] / "captures" / "091_confirms_and_return.pcap"
SECOND = 10**9
Packet = tuple[int, bytes]  # time in ns, bytes


def packets() -> list[Packet]:
    """Those of a connection of pika with confirms, in microseconds (the capture has these)."""
    _, records = pcap_files.records(CAPTURE)
    found = []
    for record in records:
        seconds, micros = struct.unpack_from("<II", record)
        found.append((seconds * SECOND + micros * 1000, record[16:]))
    return found


def parts(number: int, *steps_ns: int) -> list[list[Packet]]:
    """The capture in so many files, of which each has its clock moved."""
    whole = packets()
    size = -(-len(whole) // number)
    cut = [whole[at : at + size] for at in range(0, len(whole), size)]
    return [[(ns + step, data) for ns, data in part] for part, step in zip(cut, steps_ns, strict=True)]


def written(folder: Path, names: list[str], files: list[list[Packet]]) -> Path:
    for name, part in zip(names, files, strict=True):
        (folder / name).write_bytes(pcap_files.pcap(part))
    return folder


def outcomes(folder: Path) -> list[tuple[object, ...]]:
    """Of all messages, and the number of their connections."""
    tables = local_rows.tables_of_captures([folder])
    rows = sorted(tables["messages"], key=lambda row: row["first_frame_no"])
    return [(len(tables["connections"]),), *((row["operation"], row["outcome"], row["body_size"]) for row in rows)]


STEPS = {
    "an hour": (0, -3600 * SECOND, -3600 * SECOND),
    "a day, then an hour more": (0, -86_400 * SECOND, -90_000 * SECOND),
    "and forward again": (0, -3600 * SECOND, 3600 * SECOND),
}
NAMES = {
    "numbers": ["part1.pcap", "part2.pcap", "part3.pcap"],
    "numbers of another length": ["part9.pcap", "part10.pcap", "part11.pcap"],
    "numbers and times": ["a_00001_20261128120000.pcap", "a_00002_20261128110000.pcap", "a_00003_20261128110001.pcap"],
    "suffixes": ["trace.pcap", "trace.pcap1", "trace.pcap2"],
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("steps", STEPS)
def test_one_connection_over_files_whose_clock_steps_back(steps: str, names: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    expected = outcomes(written(tmp_path / "whole", ["a.pcap"], [packets()]))
    assert ("publish", "confirmed") in {row[:2] for row in expected[1:]}
    assert outcomes(written(tmp_path / "parts", NAMES[names], parts(3, *STEPS[steps]))) == expected


def test_a_ring_of_files_stays_in_the_order_of_its_times(tmp_path: Path) -> None:
    """The oldest file of a ring follows the newest one by its name, and goes on where no file ends."""
    first, second, third = parts(3, 0, 0, 0)
    written(tmp_path, ["ring.pcap0", "ring.pcap1", "ring.pcap2"], [third, first, second])
    assert beginnings(resolve([str(tmp_path)])) == {}
    tables = local_rows.tables_of_captures([tmp_path])
    assert len(tables["connections"]) == 1


def test_captures_that_have_nothing_in_common_stay_in_the_order_of_their_times(tmp_path: Path) -> None:
    other = CAPTURE.with_name("091_tx.pcap")
    (tmp_path / "run1.pcap").write_bytes(pcap_files.pcap([(ns + 86_400 * SECOND, data) for ns, data in packets()]))
    (tmp_path / "run2.pcap").write_bytes(other.read_bytes())
    (tmp_path / "run3.pcap").write_bytes(b"")
    (tmp_path / "run4.pcap").write_bytes(b"no capture")
    assert beginnings(resolve([str(tmp_path)])) == {}
