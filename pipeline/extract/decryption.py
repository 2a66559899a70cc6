"""Connections inside TLS or WebSocket, decoded again with their secrets.

    found = decrypt(captures, connections, ids, key_logs)
    found.key_log()                             # lines of a key log: the secrets of these connections, and no others
    with rewrite_in_clear(found) as clear: ...  # a capture with these connections in clear, and the rows of its tables

A rewritten connection has one packet per decrypted piece, with the time and number of the packet that completed it, and
one per packet without payload. Link layer and IP options are dropped; the server's port becomes 5672, which dissectors
expect. Lost or undecrypted bytes are missing from the stream.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.layers.connection import LayeredConnection, Part
from codec.layers.stack import Layers
from codec.layers.tls_handshake import NO_SECRETS
from codec.memory import as_records, readonly
from codec.net.headers import PROTOCOL_TCP
from codec.net.identity import IPV4_MAPPED
from codec.net.layers import (
    ENDS_LAYERS,
    FIN,
    FLOW_KEY_BYTES,
    RST,
    SYN,
)
from codec.net.runs import gather_runs
from codec.tables import TABLES, WORKER_TABLES
from pipeline.extract.choice import Choice, Packet, with_keys
from pipeline.extract.header_stack import FULL, folded, word_sum
from pipeline.extract.originals import Interface, Original, originals
from pipeline.extract.packet_writer import Writer
from pipeline.extract.survey import Connection, coarse_filter, connection_id, connection_name, pair_ids
from udfs.arrow.types import arrow_schema, cast_to
from udfs.decode.flow_order import AddressSpaces, Files, Group, flow_of, flows_in_order
from udfs.decode.key_logs import SecretFiles
from udfs.source.columns import run_batches
from udfs.source.sources import in_run_order, read_runs
from udfs.source.splits import Account, Split, read_blocks
from udfs.tables import tables_of
from udfs.workers.worker_config import Config

RAW_IP = Interface(101)  # LINKTYPE_RAW
AMQP_PORT = 5672
PIECE_BYTES = 60_000  # of a packet: an IPv4 packet has at most 65,535


class Piece(NamedTuple):
    """Consecutive decrypted segments of one connection."""

    segments: NDArray[np.void]  # SEGMENT
    payload: NDArray[np.uint8]


@dataclass
class Decrypted:
    """Decrypted segments and layers by index of the connection; `files`: capture files by number."""

    connections: Sequence[Connection]
    files: Files
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    layers: dict[int, LayeredConnection] = field(default_factory=dict)

    @property
    def readable(self) -> list[int]:
        """Indices of the connections with any decrypted bytes."""
        return sorted(
            index for index, layered in self.layers.items() if any(layered.output_bytes) and not layered.passthrough
        )

    def reason(self, connection_id: int) -> str:
        """Why a connection was not decrypted."""
        index = next(at for at, each in enumerate(self.connections) if each.connection_id == connection_id)
        layered = self.layers.get(index)
        return (layered.facts()["undecoded_reason"] if layered is not None else None) or NO_SECRETS

    def key_log(self) -> bytes:
        """Lines of a key log with the secrets of the readable connections, and no others."""
        lines = []
        for index in self.readable:
            tls = self.layers[index].tls
            if tls is not None and tls.hellos[0] is not None:
                random = tls.hellos[0].random.hex()
                pairs = sorted((label, secret) for label, secrets in tls.secrets.items() for secret in secrets)
                lines += [f"{label.decode()} {random} {secret.hex()}\n" for label, secret in pairs]
        return "".join(lines).encode()


def decrypt(
    captures: Sequence[Original], candidates: Sequence[Connection], wanted: Collection[int], key_logs: Sequence[str]
) -> Decrypted:
    """Read the connections `candidates` that are `wanted` (ids), with the secrets in key logs and in the captures
    themselves. Those of one set of addresses and ports must all be there."""
    secrets = SecretFiles(tuple(key_logs), tuple(each.file.uri for each in captures))
    layers, files = Layers(secrets.open(), together=False), Files()
    found = Decrypted(candidates, files)
    on_flow: dict[bytes, list[int]] = {}
    for index in sorted(range(len(candidates)), key=lambda index: candidates[index].opened_us):
        on_flow.setdefault(flow_of(candidates[index].flow), []).append(index)
    on_flow = {
        flow: indices
        for flow, indices in on_flow.items()
        if any(candidates[at].connection_id in wanted for at in indices)
    }
    runs = _runs(captures, [candidates[index] for indices in on_flow.values() for index in indices])
    if any(len(indices) > 1 for indices in on_flow.values()):
        for group in _in_spaces(flows_in_order(runs, Files())):
            _move(candidates, on_flow, group)
    for group in _in_spaces(flows_in_order(runs, files)):
        # Arrays have the types for which the decoder has compiled the kernels.
        segments = readonly(as_records(group.segments))
        parts = layers.feed(readonly(group.flows), group.ends, segments, readonly(group.payload))
        _collect(found, on_flow, wanted, parts)
    _collect(found, on_flow, wanted, layers.finish())
    return found


def _in_spaces(groups: Iterable[Group | str]) -> Iterator[Group]:
    spaces = AddressSpaces()
    for group in groups:
        assert not isinstance(group, str)
        yield from spaces.feed(group)
    yield from spaces.finish()


def _move(candidates: Sequence[Connection], on_flow: dict[bytes, list[int]], group: Group) -> None:
    """Move those connections in `on_flow` that begin on a later flow of their flow key to that flow."""
    begin = 0
    for flow, end in zip((each.tobytes() for each in group.flows), group.ends.tolist(), strict=True):
        segments, begin = group.segments[begin:end], end
        key = flow[:FLOW_KEY_BYTES]
        for index in [index for index in on_flow.get(flow_of(key), ()) if flow != flow_of(key)]:
            candidate = candidates[index]
            for g in segments[segments["ts_ns"] // 1000 == candidate.opened_us]:
                name = connection_name(key, int(g["ts_ns"]), int(g["seq"]))
                if connection_id(name, 0) == candidate.connection_id:
                    on_flow[flow_of(key)].remove(index)
                    on_flow.setdefault(flow, []).append(index)
                    break


def _runs(captures: Sequence[Original], connections: Sequence[Connection]) -> list[pa.RecordBatch]:
    """Runs (TCP_RUNS) on the addresses and ports of these connections, in RUN_ORDER."""
    flows = pa.array({each.flow for each in connections}, pa.binary())
    found = []
    for capture in captures:
        if not any(capture.overlaps(each.opened_us, each.closed_us) for each in connections):
            continue
        account = Account(capture.name, capture.file.size)
        for block in read_blocks(Split(capture.file), account, LIMITS.block_bytes, coarse_filter(connections)):
            runs = gather_runs(block.data, block.packets, LIMITS.run_bytes)
            found += [rows.filter(pc.is_in(rows["flow"], flows)) for rows in run_batches(runs, capture.name)]
    if not found:
        return []
    return in_run_order(pa.Table.from_batches(found))


def _collect(
    found: Decrypted, on_flow: Mapping[bytes, Sequence[int]], wanted: Collection[int], parts: Iterable[Part]
) -> None:
    """Collect the wanted parts; connections on the same addresses and ports follow one another in time."""
    for part in parts:
        begin = 0
        for flow, end in zip(part.flows, part.ends.tolist(), strict=True):
            segments, begin = part.segments[begin:end], end
            indices = on_flow.get(flow.tobytes(), ())
            opened = np.array([found.connections[index].opened_us for index in indices])
            at = np.maximum(np.searchsorted(opened, segments["order_ns"] // 1000, "right") - 1, 0)
            for number, index in enumerate(indices):
                mine = segments[(at == number) & (segments["flags"] & ENDS_LAYERS == 0)]
                if len(mine) and found.connections[index].connection_id in wanted:
                    found.pieces.setdefault(index, []).append(Piece(mine.copy(), part.payload))
                    if part.layered is not None:
                        found.layers[index] = part.layered


@dataclass(frozen=True)
class DecryptedCapture:
    """A capture in clear. `packets`: which of its packets is which one of the captures before; the last piece of
    several. `tables`: as far as a cut needs them."""

    original: Original
    packets: Mapping[Packet, int]
    tables: Mapping[str, pa.Table]

    def choice(self, choice: Choice, names_of: Mapping[str, str]) -> Choice:
        """All of these connections, with the comments of a choice on their packets. `names_of`: display names of
        captures, if comments may have them."""
        comments: dict[Packet, list[str]] = {}
        for (name, number), texts in choice.comments.items():
            if (name, number) in self.packets:
                origin = f" (packet {number} of {names_of[name]})" if name in names_of else f" (packet {number})"
                here = self.original.name, self.packets[name, number]
                comments.setdefault(here, []).extend(text + origin for text in texts)
        return Choice(set(self.tables["connections"]["connection_id"].to_pylist()), comments=comments)

    def rows(self, table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        """Rows of its tables, as `pipeline.extract.Rows` reads them."""
        return with_keys(self.tables[table], keys).select(list(columns))


@contextmanager
def rewrite_in_clear(found: Decrypted) -> Iterator[DecryptedCapture]:
    """The readable connections as a capture in clear, in a temporary directory with mode 700."""
    with tempfile.TemporaryDirectory(prefix="wirehare-") as folder:
        path = Path(folder) / "decrypted.pcapng"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            packets = _write(found, Writer(file, "Wirehare"))
        yield _decoded(path, packets)


def _write(found: Decrypted, writer: Writer) -> dict[Packet, int]:
    """Write all packets in the order of time; return the mapping from original packets to new numbers."""
    columns = [np.zeros((4, 0), np.int64)]
    for index in found.readable:
        for number, piece in enumerate(found.pieces[index]):
            rows = np.flatnonzero(_carrying_or_control(piece.segments))
            same = [np.full(len(rows), value, np.int64) for value in (index, number)]
            columns.append(np.array([piece.segments["order_ns"][rows], *same, rows]))
    cells = np.concatenate(columns, axis=1)
    numbers: dict[Packet, int] = {}
    count = 0
    for _, index, number, row in cells[:, np.lexsort(cells[::-1])].T.tolist():
        segments, payload = found.pieces[index][number]
        segment = segments[row]
        begin, size = int(segment["payload_at"]), int(segment["cap_len"])
        data = payload[begin : begin + size].tobytes()
        for at in range(0, max(size, 1), PIECE_BYTES):
            packet = _packet(found.connections[index], segment, at, data[at : at + PIECE_BYTES])
            writer.packet(RAW_IP, int(segment["ts_ns"]), memoryview(packet), len(packet))
            count += 1
        named = found.files.names[int(segment["file"])], int(segment["packet_no"])
        if size or named not in numbers:
            numbers[named] = count
    writer.close()
    return numbers


def _carrying_or_control(segments: NDArray[np.void]) -> NDArray[np.bool_]:
    """bool (n,): segments with payload, control segments, and pure acknowledgements."""
    carrying = segments["cap_len"] > 0
    packet = pair_ids(segments["file"], segments["packet_no"].astype(np.int64))
    control = (segments["flags"] & (SYN | FIN | RST)) != 0
    lost = (segments["wire_len"] > 0) & ~carrying
    needed: NDArray[np.bool_] = carrying | (~lost & (control | ~np.isin(packet, packet[carrying])))
    return needed


def _packet(connection: Connection, segment: Any, at: int, payload: bytes) -> bytes:
    """An IP packet with a TCP segment, with checksums."""
    key, way = connection.flow, int(segment["direction"])
    hosts = key[:16], key[16:32]
    ports = [int.from_bytes(key[32:34], "big"), int.from_bytes(key[34:36], "big")]
    ports[1 - connection.client] = AMQP_PORT
    source, target = hosts[way], hosts[1 - way]
    if key.startswith(IPV4_MAPPED):
        source, target = source[12:], target[12:]
    flags = int(segment["flags"]) & 0x1FF
    seq, ack = (int(segment["seq"]) + at) % (1 << 32), int(segment["ack"])
    tcp = struct.pack(">HHIIHHHH", ports[way], ports[1 - way], seq, ack, 5 << 12 | flags, FULL, 0, 0) + payload
    pseudo = source + target + struct.pack(">II", len(tcp), PROTOCOL_TCP)
    tcp = tcp[:16] + _sum(pseudo + tcp) + tcp[18:]
    if len(source) == 4:
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, PROTOCOL_TCP, 0) + source + target
        return head[:10] + _sum(head) + head[12:] + tcp
    return struct.pack(">IHBB", 6 << 28, len(tcp), PROTOCOL_TCP, 64) + source + target + tcp


def _sum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071)."""
    return (FULL - folded(word_sum(np.frombuffer(data, np.uint8)))).to_bytes(2, "big")


def _decoded(path: Path, packets: Mapping[Packet, int]) -> DecryptedCapture:
    """Decode the capture: the rows of its tables that a cut needs."""
    wanted = {name: TABLES[name] for name in WORKER_TABLES}
    config = Config(wanted, False, frozenset({"frames", "connections"}))
    found: dict[str, list[pa.RecordBatch]] = {name: [] for name in config.tables}
    for table, _, rows in tables_of(in_run_order(read_runs({"paths": json.dumps([str(path)])})), config):
        if table in found:
            schema = arrow_schema(wanted[table])
            found[table].append(cast_to({name: rows[name] for name in schema.names}, schema))
    tables = {name: pa.Table.from_batches(rows, arrow_schema(wanted[name])) for name, rows in found.items()}
    connections = tables["connections"]
    times = {"first_ts": pc.min(connections["opened_ts"]), "last_ts": pc.max(connections["closed_ts"])}
    (file,) = pc.unique(connections["capture_file"])
    captures = {"capture_file": file, "byte_size": path.stat().st_size, **times}
    (original,) = originals(pa.table({name: pa.array([value]) for name, value in captures.items()}))
    return DecryptedCapture(replace(original, rewritten=True), packets, tables)
