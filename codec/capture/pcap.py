"""The pcap format: a 24-byte header, then records of a 16-byte header and the packet's bytes.

Source: draft-ietf-opsawg-pcap. The magic number gives byte order and unit of time. The Linux "modified" variant (magic
a1b2cd34) has 8 more bytes per record header: interface, protocol, packet type.

Some programs write nanoseconds below the magic number of microseconds. A fraction of a second above 999,999 shows it;
where most records at the beginning of a file have one, the unit is nanoseconds. Elsewhere such a fraction counts as it
is written, and `doubt` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from codec.capture import records as R
from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS

FILE_HEADER_BYTES = 24
SECOND_NS = 1_000_000_000
VERSION = 2  # all files since 1998; the minor version does not change these fields

# Magic number in file order -> (big-endian, bytes of a record header, nanoseconds per unit of time).
MAGICS: dict[bytes, tuple[bool, int, int]] = {
    bytes.fromhex("a1b2c3d4"): (True, 16, 1000),
    bytes.fromhex("d4c3b2a1"): (False, 16, 1000),
    bytes.fromhex("a1b23c4d"): (True, 16, 1),
    bytes.fromhex("4d3cb2a1"): (False, 16, 1),
    bytes.fromhex("a1b2cd34"): (True, 24, 1000),
    bytes.fromhex("34cdb2a1"): (False, 24, 1000),
}


@dataclass
class PcapWalker(R.Walker):
    """Reads one pcap file."""

    format: str = "pcap"
    header_bytes: int = 0  # of a record; 0 until the file header was read
    misread: bool = False  # the unit is nanoseconds, whatever the magic number says
    beyond: int = 0  # records with a fraction of a second or more
    unit_ns: int = 0
    link_type: int = 0

    @classmethod
    def of(cls, head: bytes) -> PcapWalker:
        """The reader of a file that starts with `head`."""
        walker, sample = cls(), cls()
        octets = R.writable(np.frombuffer(head, np.uint8))
        records, _ = sample.walk(octets, False)
        if sample.beyond > len(records) // 2:
            walker.misread = True
        return walker

    def walk(self, block: R.Bytes, final: bool) -> tuple[R.Records, int]:
        """Complete records of `block`, and the bytes consumed."""
        block = R.writable(block)
        begin = 0
        if not self.header_bytes:
            begin = self._file_header(block[:FILE_HEADER_BYTES].tobytes(), final)
        if not self.header_bytes or self.error:
            return np.empty(0, R.RECORD), 0
        records = np.empty((len(block) - begin) // self.header_bytes, R.RECORD)
        count, consumed, outcome, beyond = _walk(
            block, begin, self.big_endian, self.header_bytes, self.unit_ns, self.link_type, LIMITS.record_bytes, records
        )
        self.position += consumed
        self.beyond += beyond
        if self.beyond:
            most = SECOND_NS // self.unit_ns - 1
            self.doubt = f"records have more than {most} in their fraction of a second; their times may be wrong"
        if outcome == R.BAD_CAPTURED:
            self.error = (
                f"the record at byte {self.position} claims more than {LIMITS.record_bytes} captured bytes; "
                "the file is damaged from there on"
            )
        elif final and consumed < len(block):
            self.truncated = True
        return records[:count], consumed

    def _file_header(self, head: bytes, final: bool) -> int:
        """Read the file header when it is complete; returns its length, else 0."""
        if len(head) < FILE_HEADER_BYTES:
            if final:
                self.truncated = True
                self.error = (
                    f"the file ends after {len(head)} bytes, inside the pcap header of {FILE_HEADER_BYTES} bytes"
                )
            return 0
        big_endian, header_bytes, unit_ns = MAGICS[head[:4]]
        order: Literal["big", "little"] = "big" if big_endian else "little"
        major = int.from_bytes(head[4:6], order)
        if major != VERSION:
            self.error = f"the header names pcap version {major}; expected version {VERSION}"
            return 0
        self.big_endian, self.header_bytes, self.unit_ns = big_endian, header_bytes, 1 if self.misread else unit_ns
        self.snaplen = int.from_bytes(head[16:20], order) or None
        self.link_type = int.from_bytes(head[20:24], order) & 0xFFFF  # the upper half describes frame check sequences
        return FILE_HEADER_BYTES


@njit
def _walk(block, at, big, header_bytes, unit_ns, link_type, limit, records):
    """Fill `records` from `block[at:]`; returns (records filled, offset of the first byte not consumed, outcome,
    records whose fraction is a second or more)."""
    offset = records["offset"]
    cap_len = records["cap_len"]
    wire_len = records["wire_len"]
    ts_ns = records["ts_ns"]
    interface = records["interface"]
    link = records["link_type"]
    count = beyond = 0
    while at + header_bytes <= len(block):
        captured = R.read32(block, at + 8, big)
        if captured > limit:
            return count, at, R.BAD_CAPTURED, beyond
        if at + header_bytes + captured > len(block):
            break
        offset[count] = at + header_bytes
        cap_len[count] = captured
        wire_len[count] = max(captured, R.read32(block, at + 12, big))
        # seconds and fraction of 32 bits each: always below 2**63 ns together
        fraction_ns = R.read32(block, at + 4, big) * unit_ns
        ts_ns[count] = R.read32(block, at, big) * SECOND_NS + fraction_ns
        if fraction_ns >= SECOND_NS:
            beyond += 1
        interface[count] = 0
        link[count] = link_type
        count += 1
        at += header_bytes + captured
    return count, at, R.NEED_MORE, beyond
