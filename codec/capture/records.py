"""Packet records of all capture formats, and the interface of their readers.

A `Walker` does no I/O: the caller passes the bytes it has (with the unread rest of the last call in front), and gets
the complete records and the number of bytes consumed. The state of the file (byte order, interfaces, position) is in
the walker, which can be copied and pickled; a copy continues at the same position. Records do not depend on the blocks
that the bytes come in.

Damage never raises: `error` is set, the records before it are returned, and the walker stays at its position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS
from codec.cursor import byte_at
from codec.errors import WirehareError

RECORD = np.dtype(
    [
        ("offset", "i8"),  # where the packet's bytes begin in the block that was walked
        ("cap_len", "i8"),  # bytes captured
        ("wire_len", "i8"),  # bytes on the wire, at least cap_len
        ("ts_ns", "i8"),  # capture time, nanoseconds since 1970-01-01 UTC
        ("interface", "i4"),  # interface number of a pcapng section; 0 in pcap
        ("link_type", "i4"),  # LINKTYPE_ number, or one of the two below
    ],
    align=True,
)

NO_INTERFACE = -1  # link_type of a packet on an interface that the file does not describe
NOT_A_PACKET = -2  # link_type of a block that counts as a packet but has none

# Outcomes of the kernels.
NEED_MORE, OTHER_BLOCK, BAD_CAPTURED, BAD_BLOCK, BAD_TRAILER = range(5)

Bytes = NDArray[np.uint8]
Records = NDArray[np.void]


class Process(NamedTuple):
    """What is known of a process; its container and its pod, if it runs in one."""

    pid: int | None = None
    name: str | None = None
    container_name: str | None = None
    container_id: str | None = None
    container_image: str | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None


class CaptureError(WirehareError, ValueError):
    """The bytes are not a readable capture; the message has what was found and expected."""


@dataclass
class Walker(ABC):
    """Reads the packet records of one capture file, block by block."""

    format: str
    position: int = 0  # offset in the file of the first byte not yet consumed
    snaplen: int | None = None  # largest the file declares; None when it declares no limit
    dropped: int | None = None  # packets that the capturing machine lost; None when the file has no count
    truncated: bool = False  # the file ends inside a record
    error: str | None = None  # one line: where reading stopped and why
    doubt: str | None = None  # one line: what was read, but may be wrong
    big_endian: bool = False
    # Of the records of the last call: the number of the process that a packet is about, an index in `processes` from 1
    # on, times 4, and the two bits of epb_flags that say whether it was sent; 0: none. Empty: there are none.
    process_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    processes: Sequence[Process] = ()

    @abstractmethod
    def walk(self, block: Bytes, final: bool) -> tuple[Records, int]:
        """Complete records of `block` (uint8, 1-D, contiguous) as a RECORD array, and the number of bytes consumed.

        `block` begins at `position`; `final`: no byte follows it in the file.
        """


def writable(block: Bytes) -> Bytes:
    """The block, or a copy when it is read-only: kernels are compiled for one kind of array."""
    if block.flags.writeable and block.flags.c_contiguous and type(block) is np.ndarray:
        return block
    return np.array(block, np.uint8, copy=True, order="C")


@njit
def read32(block, at, big):
    """Unsigned 32-bit integer at `at`, in either byte order; the caller guarantees that it is inside the block."""
    a, b, c, d = byte_at(block, at), byte_at(block, at + 1), byte_at(block, at + 2), byte_at(block, at + 3)
    if big:
        return (a << 24) | (b << 16) | (c << 8) | d
    return (d << 24) | (c << 16) | (b << 8) | a


# The pcap format: a 24-byte header, then records of a 16-byte header and the packet's bytes.
#
# Source: draft-ietf-opsawg-pcap. The magic number gives byte order and unit of time. The Linux "modified" variant
# (magic a1b2cd34) has 8 more bytes per record header: interface, protocol, packet type.
#
# Some programs write nanoseconds below the magic number of microseconds. A fraction of a second above 999,999 shows it;
# where most records at the beginning of a file have one, the unit is nanoseconds. Elsewhere such a fraction counts as
# it is written, and `doubt` says so.


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
class PcapWalker(Walker):
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
        data = writable(np.frombuffer(head, np.uint8))
        records, _ = sample.walk(data, False)
        if sample.beyond > len(records) // 2:
            walker.misread = True
        return walker

    def walk(self, block: Bytes, final: bool) -> tuple[Records, int]:
        """Complete records of `block`, and the bytes consumed."""
        block = writable(block)
        begin = 0
        if not self.header_bytes:
            begin = self._file_header(block[:FILE_HEADER_BYTES].tobytes(), final)
        if not self.header_bytes or self.error:
            return np.empty(0, RECORD), 0
        records = np.empty((len(block) - begin) // self.header_bytes, RECORD)
        count, consumed, outcome, beyond = _walk(
            block, begin, self.big_endian, self.header_bytes, self.unit_ns, self.link_type, LIMITS.record_bytes, records
        )
        self.position += consumed
        self.beyond += beyond
        if self.beyond:
            most = SECOND_NS // self.unit_ns - 1
            self.doubt = f"records have more than {most} in their fraction of a second; their times may be wrong"
        if outcome == BAD_CAPTURED:
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
        captured = read32(block, at + 8, big)
        if captured > limit:
            return count, at, BAD_CAPTURED, beyond
        if at + header_bytes + captured > len(block):
            break
        offset[count] = at + header_bytes
        cap_len[count] = captured
        wire_len[count] = max(captured, read32(block, at + 12, big))
        # seconds and fraction of 32 bits each: always below 2**63 ns together
        fraction_ns = read32(block, at + 4, big) * unit_ns
        ts_ns[count] = read32(block, at, big) * SECOND_NS + fraction_ns
        if fraction_ns >= SECOND_NS:
            beyond += 1
        interface[count] = 0
        link[count] = link_type
        count += 1
        at += header_bytes + captured
    return count, at, NEED_MORE, beyond
