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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import njit
from codec.cursor import octet
from codec.errors import WirehareError

if TYPE_CHECKING:
    from codec.capture.processes import Process

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
    a, b, c, d = octet(block, at), octet(block, at + 1), octet(block, at + 2), octet(block, at + 3)
    if big:
        return (a << 24) | (b << 16) | (c << 8) | d
    return (d << 24) | (c << 16) | (b << 8) | a
