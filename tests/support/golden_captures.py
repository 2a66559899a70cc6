"""Frames that tshark shows of a capture of 0-10 or 1.0, beside rows of `frames`, those of a sender in their order."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Collection, Iterator
from itertools import zip_longest
from typing import Any

import decoding
import golden
from golden import Node

# Captures that were cut from others so that tshark does not find the frames: the golden of the other holds.
SAME_FRAMES = {
    "010_tiny_segments.pcap": "010_lowlevel_methods.pcap",
    "10_tiny_segments.pcap": "10_qpidd_all_types.pcap",
}


def capture_disagreements(
    name: str, differs: Callable[[Node, dict[str, Any]], Iterator[str]], refused: Collection[int] = ()
) -> Iterator[str]:
    """One line for each difference; `differs` compares a frame with its row. `refused`: packets with a frame that
    tshark shows and the framing rightly skips."""
    source = SAME_FRAMES.get(name, name)
    in_tshark: dict[tuple[int, int], list[Node]] = {}
    with gzip.open(golden.CAPTURES / f"{source}.frames.jsonl.gz", "rt") as lines:
        for frame in map(json.loads, lines):
            if frame["frame"] not in refused:
                in_tshark.setdefault((frame["stream"], frame["srcport"]), []).append(frame)
    talking = [connection for connection in decoding.decoded(name) if connection.rows]
    for (stream, port), frames in in_tshark.items():
        connection = talking[sorted({number for number, _ in in_tshark}).index(stream)]
        sender = "client" if port == connection.facts["client_port"] else "server"
        rows = [row for row in connection.rows if row["sender"] == sender]
        rows = [row for row in rows if not refused or row["frame_type"] != "skipped"]
        for frame, row in zip_longest(frames, rows):
            if frame is None or row is None:
                yield f"only one side knows {frame or row}"
                return
            if row["status"] != "ok" or (source == name and frame["frame"] != row["packet_no"]):
                yield f"packet {row['packet_no']} is {row['status']} ({row['error']}), tshark: {frame['frame']}"
            if row["frame_type"] != "protocol-header":
                yield from differs(frame, row)
