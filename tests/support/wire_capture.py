"""Hand-written TCP connections (`wire.Wire`) as a capture file, so that they go through readers, decoder and tables."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from wire import CLIENT, Wire

import pipeline
from codec.compiler.limits import LIMITS

RAW_IP = 101  # LINKTYPE_RAW
ADDRESSES = {True: bytes([10, 0, 0, 2]), False: bytes([10, 0, 0, 1])}
CLIENT_IP = ".".join(map(str, ADDRESSES[True]))
SERVER_PORT, FIRST_CLIENT_PORT = 5672, 40000
START_S = 1_700_000_000


def write_capture(path: Path, wires: Iterable[Wire]) -> None:
    """One pcap with these connections one after the other, each from a client port of its own, from 40000 on.

    Packet n of a connection is captured n microseconds after its first second; what a Wire lost is not in the file.
    """
    records = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, RAW_IP)]
    for index, wire in enumerate(wires):
        for number, _, _, at, seq, ack, size, *_, flags, direction in wire.segments:
            packet = ip_packet(index, direction == CLIENT, seq, ack, flags, wire.payload[at : at + size])
            records.append(struct.pack("<IIII", START_S + index, number, len(packet), len(packet)) + packet)
    path.write_bytes(b"".join(records))


def give_up(wire: Wire, lost: int) -> None:
    """The other side of direction `lost` goes on acknowledging until what is missing counts as lost."""
    for _ in range(LIMITS.reorder_patience + 2):
        wire.add(1 - lost, b"")


def ip_packet(index: int, by_client: bool, seq: int, ack: int, flags: int, data: bytes) -> bytes:
    """An IPv4 packet with a TCP segment; checksums are not looked at by anyone here."""
    ports = (FIRST_CLIENT_PORT + index, SERVER_PORT) if by_client else (SERVER_PORT, FIRST_CLIENT_PORT + index)
    tcp = struct.pack(">HHIIBBHHH", *ports, seq, ack, 5 << 4, flags, 65535, 0, 0) + data
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0)
    return head + ADDRESSES[by_client] + ADDRESSES[not by_client] + tcp


class Written:
    """Rows of the tables of connections of one version, by their names; `path` is where their capture may stand.
    `besides`: captures of other addresses that are decoded along with it, for tables that are planned once."""

    def __init__(
        self, spark: SparkSession, path: Path, wires: Mapping[str, Wire], version: str, besides: Iterable[Path] = ()
    ) -> None:
        write_capture(path, wires.values())
        self.tables = pipeline.decode(spark, [str(path), *map(str, besides)])
        ports = {FIRST_CLIENT_PORT + i: name for i, name in enumerate(wires)}
        ours = (row for row in self.tables.connections.collect() if row.client_ip == CLIENT_IP)
        self.name_of = {row.connection_id: ports[row.client_port] for row in ours}
        self.collected: dict[str, list[Any]] = {}

    def rows(self, table: str, script: str, *columns: str) -> list[tuple[Any, ...]]:
        if table not in self.collected:
            self.collected[table] = getattr(self.tables, table).collect()
        rows = [row for row in self.collected[table] if self.name_of.get(row.connection_id) == script]
        order = [name for name in ("first_frame_no", "opened_ts") if rows and name in rows[0]]
        rows.sort(key=lambda row: [(row[name] is None, row[name]) for name in order])
        return [tuple(row[name] for name in columns) for row in rows]
