"""The same traffic in TLS: `python -m benchmarks.encrypt CLEAR.pcap TLS.pcap KEYS.txt`, of a capture that
`benchmarks.generate` wrote.

Each connection begins with a handshake of OpenSSL's, TLS 1.3 with AES-128-GCM where it is asked for; what was the
payload of a packet in clear is one write to TLS, and the payload of the same packet. So both captures hold the same
messages in as many packets.
"""

from __future__ import annotations

import argparse
import contextlib
import ssl
import struct
from pathlib import Path
from typing import BinaryIO

from tls_peers import Peers

RECORD_HEAD, PACKET_HEAD = 16, 66  # of pcap; Ethernet, IPv4, TCP with the option of time stamps
SYN = 2


class Connection:
    """One connection: both ends of its TLS, and the sequence numbers of both directions."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        self.inputs, self.outputs = ((ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2))
        self.ends = (
            contexts[0].wrap_bio(self.inputs[0], self.outputs[0], server_hostname="mq.example"),
            contexts[1].wrap_bio(self.inputs[1], self.outputs[1], server_side=True),
        )
        self.seq = [0, 0]
        self.heads = [b"", b""]  # of the last packet of each direction
        self.greeted = False

    def handshake(self) -> list[tuple[int, bytes]]:
        """The flights of the handshake."""
        flights, done = [], [False, False]
        while not all(done):
            for side in (0, 1):
                with contextlib.suppress(ssl.SSLWantReadError):
                    done[side] = done[side] or self.ends[side].do_handshake() is None
                data = self.outputs[side].read()
                if data:
                    flights.append((side, data))
                    self.inputs[1 - side].write(data)
        return flights

    def encrypted(self, side: int, data: bytes) -> bytes:
        """`bytes` as records."""
        self.ends[side].write(data)
        return self.outputs[side].read()


def packet(connection: Connection, side: int, record: bytes, head: bytes, payload: bytes) -> bytes:
    """A packet of the encrypted capture: the heads of one in clear, with other numbers."""
    size = PACKET_HEAD + len(payload)
    seq, ack = connection.seq[side] % (1 << 32), connection.seq[1 - side] % (1 << 32)
    out = bytearray(head)
    struct.pack_into(">H", out, 16, size - 14)
    struct.pack_into(">II", out, 38, seq, ack)
    connection.seq[side] += len(payload) + bool(head[47] & 3)
    return record[:8] + struct.pack("<II", size, size) + bytes(out) + payload


def encrypt(clear: BinaryIO, out: BinaryIO, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Write the capture `clear` encrypted."""
    out.write(clear.read(24))
    connections: dict[tuple[bytes, bytes], Connection] = {}
    while record := clear.read(RECORD_HEAD):
        data = clear.read(struct.unpack_from("<I", record, 8)[0])
        head, payload = data[:PACKET_HEAD], data[PACKET_HEAD:]
        here, there = head[26:30] + head[34:36], head[30:34] + head[36:38]
        flags = head[47]
        if flags & SYN and (here, there) not in connections and (there, here) not in connections:
            connections[here, there] = Connection(contexts)
        side = 0 if (here, there) in connections else 1
        connection = connections[(here, there) if side == 0 else (there, here)]
        if flags & SYN:
            connection.seq[side] = struct.unpack_from(">I", head, 38)[0]
        elif not connection.greeted and payload:
            connection.greeted = True
            for way, flight in connection.handshake():
                for at in range(0, len(flight), 1400):
                    out.write(packet(connection, way, record, connection.heads[way], flight[at : at + 1400]))
        connection.heads[side] = head if not flags & SYN else head[:47] + b"\x18" + head[48:]
        out.write(packet(connection, side, record, head, connection.encrypted(side, payload) if payload else b""))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encrypt", description="The same traffic in TLS.")
    for name in ("clear", "encrypted", "keys"):
        parser.add_argument(name, type=Path)
    selected = parser.parse_args()
    peers = Peers()
    client = peers.contexts[0]
    client.keylog_filename = str(selected.keys)
    with selected.clear.open("rb") as clear, selected.encrypted.open("wb") as out:
        encrypt(clear, out, peers.contexts)


if __name__ == "__main__":
    main()
