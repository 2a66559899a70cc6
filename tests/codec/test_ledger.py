"""Every payload byte of a capture is in exactly one place of the ledger, and every missing byte is counted."""

from __future__ import annotations

from typing import Any

import golden
import independent_tcp as tcp
import pytest
from decoding import decoded
from expected import captured
from golden import Capture

CAPTURES = list(golden.captures().values())
SIDES = ("client", "server")
PARTS = ("frame_bytes", "skipped_bytes", "tls_bytes", "foreign_bytes", "tail_bytes")

every_capture = pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.file)


def sides(capture: Capture) -> list[tuple[tcp.Half, dict[str, Any], list[dict[str, Any]]]]:
    """(bytes as the second reader has them, ledger, rows of frames) of every direction."""
    found = []
    for reassembled, connection in zip(captured(capture.file), decoded(capture.file), strict=True):
        facts = connection.facts
        for side in SIDES:
            rows = [row for row in connection.rows if row["sender"] == side]
            half = reassembled.halves[facts[f"{side}_ip"], facts[f"{side}_port"]]
            found.append((half, facts[side], rows))
    return found


@every_capture
def test_payload_bytes_are_the_sum_of_the_parts(capture: Capture) -> None:
    for _half, ledger, _rows in sides(capture):
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS)


@every_capture
def test_payload_and_missing_bytes_are_those_of_the_second_reader(capture: Capture) -> None:
    for half, ledger, _rows in sides(capture):
        missing = sum(length for _offset, length in half.holes())
        assert ledger["payload_bytes"] == len(half.data) - missing
        assert ledger["missing_bytes"] == missing


@every_capture
def test_gap_rows_are_exactly_the_holes(capture: Capture) -> None:
    for half, _ledger, rows in sides(capture):
        gaps = [(row["stream_offset"], row["size"]) for row in rows if row["frame_type"] == "gap"]
        assert sorted(gaps) == half.holes()


@every_capture
def test_every_captured_byte_is_in_exactly_one_row(capture: Capture) -> None:
    """Rows that are no gaps do not overlap and cover the stream but for holes; a hole may also lie inside a frame."""
    for half, _ledger, rows in sides(capture):
        covered = bytearray(len(half.data))
        for row in rows:
            if row["frame_type"] != "gap":
                stretch = slice(row["stream_offset"], row["stream_offset"] + row["size"])
                assert not any(covered[stretch]), row
                covered[stretch] = b"\1" * row["size"]
        assert len(covered) == len(half.data)
        bare = {offset for offset, seen in enumerate(covered) if not seen}
        assert bare <= {at for offset, length in half.holes() for at in range(offset, offset + length)}


@every_capture
def test_the_parts_are_the_sizes_of_the_rows(capture: Capture) -> None:
    for half, ledger, rows in sides(capture):
        sums = dict.fromkeys(PARTS, 0)
        for row in rows:
            if row["frame_type"] == "gap":
                continue
            start = row["stream_offset"]
            seen = sum(packet is not None for packet in half.arrival[start : start + row["size"]])
            if row["frame_type"] == "skipped":
                sums["tail_bytes" if row["status"] == "partial" else "skipped_bytes"] += seen
            elif row["frame_type"] in ("tls", "foreign"):
                sums[f"{row['frame_type']}_bytes"] += seen
            else:
                sums["frame_bytes"] += seen
        assert {part: ledger[part] for part in PARTS} == sums


@every_capture
def test_complete_captures_miss_nothing_and_conflict_nowhere(capture: Capture) -> None:
    for reassembled, connection in zip(captured(capture.file), decoded(capture.file), strict=True):
        assert connection.facts["conflicting_overlap_bytes"] == 0
        if reassembled.complete:
            assert [connection.facts[side]["missing_bytes"] for side in SIDES] == [0, 0]


@every_capture
def test_packets_of_both_sides_are_counted(capture: Capture) -> None:
    packets = tcp.packets(capture.paths)
    counted = sum(connection.facts[side]["packets"] for connection in decoded(capture.file) for side in SIDES)
    assert counted == len(packets)


def test_every_version_is_among_the_captures() -> None:
    assert {version for capture in CAPTURES for version in capture.versions} == {"0-8", "0-9", "0-9-1", "0-10", "1.0"}
