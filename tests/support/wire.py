"""TCP connections written by hand, for the decoder itself (`Wire`) or as a capture for the pipeline (`Written`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pcap_files import RAW_IP, pcap, tcp_packet
from pyspark.sql import SparkSession
from tables_support import Found

import pipeline
from codec.amqp.batches import Batch
from codec.amqp.decoder import Decoder
from codec.compiler.limits import LIMITS
from codec.layers.stack import Layers
from codec.net.layers import ACK, SEGMENT, SYN
from codec.protocol import rows as R
from codec.protocol.rows import NAMES, note_names
from codec.protocol.versions import ERRORS, FRAME_TYPES, STATUSES, VERSIONS
from codec.variant import decode
from udfs.decode.connection_rows import connection_rows


class Fact(NamedTuple):
    """One connection; `facts` as `codec.tables.FACTS` names them."""

    connection_id: int
    facts: dict[str, Any]


def take_facts(decoder: Decoder, files: Sequence[str] = ("a.pcap",)) -> list[Fact]:
    """Connections that have ended since the last call, in captures `files`."""
    rows = [row for ended in decoder.take_ended() for row in connection_rows(ended, files).to_pylist()]
    return [Fact(row["connection_id"], row["facts"]) for row in rows]


FLOW = bytes(15) + b"\x01" + bytes(15) + b"\x02" + (5672).to_bytes(2, "big") + (40000).to_bytes(2, "big")
CLIENT, SERVER = 1, 0  # directions: the high endpoint of FLOW is the client

Row = dict[str, Any]
NUMBERS = ("frame_no", "packet", "offset", "size", "channel", "code", "payload_size", "body_size", "content")
NULLABLE = {"class_id": R.CLASS, "method_id": R.METHOD_ID}


class Wire:
    """Segments of one connection in capture order; a handshake first when `syn`."""

    def __init__(self, syn: bool = True) -> None:
        self.segments: list[tuple[Any, ...]] = []
        self.payload = bytearray()
        self.waited_ns = 0  # beside a nanosecond a segment
        self.seq = [1000, 2000]
        if syn:
            self.add(CLIENT, b"", SYN)
            self.add(SERVER, b"", SYN | ACK)

    def add(
        self, direction: int, data: bytes, flags: int = ACK, captured: int | None = None, window: int = 65535
    ) -> None:
        """A segment; `captured` bytes of its `data` are within the snaplen."""
        number = len(self.segments) + 1
        ns = number + self.waited_ns
        ack = self.seq[1 - direction] if flags & ACK else 0
        at, seq, size = len(self.payload), self.seq[direction], len(data)
        there = data[:captured]
        self.segments.append((ns, ns, number, at, seq, ack, size, len(there), 0, window, flags, direction, 0, 0))
        self.payload += there
        self.seq[direction] += size + (1 if flags & SYN else 0)

    def lose(self, direction: int, size: int) -> None:
        """`size` bytes that the capture lacks, acknowledged by the other side."""
        self.seq[direction] += size
        self.add(1 - direction, b"")

    def without(self, lost: set[int]) -> Wire:
        """The same without these segments (0-based, behind the handshake), which the other sides acknowledge."""
        wire = Wire()
        for number, segment in enumerate(self.segments[2:]):
            at, data, direction = segment[3], segment[7], segment[11]
            if number in lost:
                wire.lose(direction, data)
            else:
                wire.add(direction, bytes(self.payload[at : at + data]))
        for direction in (CLIENT, SERVER):
            give_up(wire, direction)
        return wire

    def arrays(self) -> tuple[np.ndarray, bytes]:
        """Its segments and their payload, as a run has them."""
        return np.array(self.segments, SEGMENT), bytes(self.payload)

    def rows(self, layers: Layers | None = None) -> tuple[list[Row], Row]:
        """Rows in the order of frame_no, and the facts of the connection; `layers` as for the decoder."""
        (found,) = rows_of([self], layers)
        return found


def rows_of(wires: Sequence[Wire], layers: Layers | None = None) -> list[tuple[list[Row], Row]]:
    """`Wire.rows` of each, from one decoder: much faster than a decoder for each."""
    decoder = Decoder(keep_payload=True, layers=layers)
    rows: dict[int, list[Row]] = {}

    def take(batches: Iterable[Batch]) -> None:
        for batch in batches:
            for connection, row in zip(batch.cells[:, R.CONNECTION].tolist(), batch_rows(batch), strict=True):
                rows.setdefault(connection, []).append(row)

    for number, wire in enumerate(wires):
        segments, data = wire.arrays()
        flow = FLOW[:-2] + (int.from_bytes(FLOW[-2:], "big") + number).to_bytes(2, "big")
        take(decoder.feed(flow, segments, np.frombuffer(bytearray(data or b"\0"), np.uint8)))
    take(decoder.finish())
    facts = take_facts(decoder)
    assert len(facts) == len(wires)
    return [
        (sorted(rows.get(each.connection_id, ()), key=lambda row: int(row["frame_no"])), each.facts) for each in facts
    ]


def batch_rows(batch: Any) -> list[Row]:
    """Rows as dicts; numbers as in the cells (-1: null)."""

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


CLIENT_ADDRESS, SERVER_ADDRESS = bytes([10, 0, 0, 2]), bytes([10, 0, 0, 1])
CLIENT_IP = ".".join(map(str, CLIENT_ADDRESS))
SERVER_PORT, FIRST_CLIENT_PORT = 5672, 40000
START_S = 1_700_000_000


def write_capture(
    path: Path, wires: Iterable[Wire], first_port: int = FIRST_CLIENT_PORT, apart_ns: int = 10**9
) -> None:
    """One pcap with these connections, each from a client port of its own, `apart_ns` after the one before.

    Packet n of a connection is captured n microseconds after its first second, and later by the time that it waited;
    what a Wire lost is not in the file.
    """
    packets = []
    for index, wire in enumerate(wires):
        ends = {CLIENT: (CLIENT_ADDRESS, first_port + index), SERVER: (SERVER_ADDRESS, SERVER_PORT)}
        for ns, _, number, at, seq, ack, size, _, _, _, flags, direction, _, _ in wire.segments:
            data = bytes(wire.payload[at : at + size])
            packet = tcp_packet(ends[direction], ends[1 - direction], seq, ack, flags, data)
            packets.append((START_S * 10**9 + index * apart_ns + number * 1000 + ns - number, packet))
    path.write_bytes(pcap(sorted(packets, key=lambda each: each[0]), RAW_IP))


def give_up(wire: Wire, lost: int) -> None:
    """The other side of direction `lost` acknowledges it again after the time when what is missing counts as lost."""
    wire.add(1 - lost, b"")
    wire.waited_ns += LIMITS.reorder_ns
    wire.add(1 - lost, b"")


class Written(Found):
    """Tables of connections by their names; `path`: for their capture. `besides`: captures of other addresses that are
    decoded along with it, for tables that are planned once."""

    order = ("first_frame_no", "opened_ts")

    def __init__(
        self, spark: SparkSession, path: Path, wires: Mapping[str, Wire], besides: Iterable[Path] = ()
    ) -> None:
        write_capture(path, wires.values())
        tables = pipeline.decode(spark, [str(path), *map(str, besides)])
        ports = {FIRST_CLIENT_PORT + i: name for i, name in enumerate(wires)}
        ours = (row for row in tables.connections.collect() if row.client_ip == CLIENT_IP)
        super().__init__(tables, {row.connection_id: ports[row.client_port] for row in ours})
