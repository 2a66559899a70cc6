"""TCP connections written by hand, through the decoder without readers and without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
from ended import take_facts

from codec.amqp import rows as R
from codec.amqp.decoder import Decoder
from codec.amqp.notes import note_names
from codec.amqp.rows import NAMES
from codec.amqp.versions import ERRORS, FRAME_TYPES, STATUSES, VERSIONS
from codec.layers.stack import Layers
from codec.net.segments import ACK, SEGMENT, SYN
from codec.variant import decode

FLOW = bytes(15) + b"\x01" + bytes(15) + b"\x02" + (5672).to_bytes(2, "big") + (40000).to_bytes(2, "big")
CLIENT, SERVER = 1, 0  # directions: the high endpoint of FLOW is the client

Row = dict[str, Any]
NUMBERS = ("frame_no", "packet", "offset", "size", "channel", "code", "payload_size", "body_size", "content")
NULLABLE = {"class_id": R.CLASS, "method_id": R.METHOD_ID}


class Wire:
    """Segments of one connection in capture order; a handshake first when `syn`."""

    def __init__(self, syn: bool = True) -> None:
        self.segments: list[tuple[Any, ...]] = []
        self.payload = b""
        self.seq = [1000, 2000]
        if syn:
            self.add(CLIENT, b"", SYN)
            self.add(SERVER, b"", SYN | ACK)

    def add(
        self, direction: int, data: bytes, flags: int = ACK, captured: int | None = None, window: int = 65535
    ) -> None:
        """A segment; of its `data` the snaplen left `captured` bytes."""
        number = len(self.segments) + 1
        ack = self.seq[1 - direction] if flags & ACK else 0
        at, seq, size = len(self.payload), self.seq[direction], len(data)
        there = data[:captured]
        self.segments.append((number, number, number, at, seq, ack, size, len(there), 0, window, flags, direction))
        self.payload += there
        self.seq[direction] += size + (1 if flags & SYN else 0)

    def lose(self, direction: int, size: int) -> None:
        """`size` bytes that the capture lacks, acknowledged by the other side."""
        self.seq[direction] += size
        self.add(1 - direction, b"")

    def arrays(self) -> tuple[np.ndarray, bytes]:
        """Its segments and their payload, as a run has them."""
        return np.array(self.segments, SEGMENT), self.payload

    def rows(self, layers: Layers | None = None) -> tuple[list[Row], Row]:
        """Rows in the order of frame_no, and the facts of the connection; `layers` as for the decoder."""
        decoder = Decoder(keep_payload=True, layers=layers)
        segments, octets = self.arrays()
        payload = np.frombuffer(bytearray(octets or b"\0"), np.uint8)
        found: list[Row] = []
        for batches in (decoder.feed(FLOW, segments, payload), decoder.finish()):
            for batch in batches:
                found += batch_rows(batch)
        (facts,) = take_facts(decoder)
        return sorted(found, key=lambda row: row["frame_no"]), facts.facts


def batch_rows(batch: Any) -> list[Row]:
    """Plain rows; numbers as they stand in the cells (-1: null)."""

    def value(name: str, row: int) -> Any:
        heaps = []
        for heap, end in ((name, f"{name}_END"), (f"{name}_metadata", f"{name}_META_END")):
            column = getattr(R, end.upper())
            start = int(batch.cells[row - 1, column]) if row else 0
            heaps.append(bytes(getattr(batch, heap)[start : int(batch.cells[row, column])]))
        return decode(*heaps) if heaps[0] else None

    rows = []
    for i, cells in enumerate(batch.cells):
        row: Row = {name: int(cells[getattr(R, name.upper())]) for name in NUMBERS}
        row |= {name: int(cells[column]) for name, column in NULLABLE.items()}
        row |= {
            "sender": ("client", "server", None)[cells[R.SENDER]],  # -1: null
            "version": VERSIONS[cells[R.VERSION]],
            "known": bool(cells[R.KNOWN]),
            "frame_type": FRAME_TYPES[cells[R.TYPE]],
            "name": NAMES[cells[R.NAME]] if cells[R.NAME] >= 0 else None,
            "status": STATUSES[cells[R.STATUS]],
            "error": ERRORS[cells[R.ERROR]],
            "notes": note_names(int(cells[R.NOTES])) or [],
            "digest": bytes(batch.digest[i]).hex() if cells[R.DIGEST] else None,
            "arguments": value("arguments", i),
            "properties": value("properties", i),
        }
        rows.append(row)
    return rows
