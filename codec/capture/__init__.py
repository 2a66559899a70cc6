"""Capture files as columns: bytes in, packet records out. No files, no clock.

    walker = new_walker(data)
    records, consumed = walker.walk(np.frombuffer(data, np.uint8), final=True)

It reads pcap in microseconds and nanoseconds, in both byte orders, and with the longer record headers of the Linux
"modified" variant; and pcapng with any number of sections and interfaces. The magic number determines the format, never
the file name. Cost: linear in records and blocks. The public names:

    new_walker, sniff              a reader of a capture; its format, both from the first bytes
    Walker, Records, RECORD        what a reader is, and the packet records that it returns
    NO_INTERFACE, NOT_A_PACKET     link types of records without interface, and of blocks that are not packets
    CaptureError                   the error for files that are not captures, a `codec.errors.WirehareError`
"""

from __future__ import annotations

from codec.capture.pcapng import SECTION_HEADER, PcapngWalker
from codec.capture.records import MAGICS, NO_INTERFACE, NOT_A_PACKET, RECORD, CaptureError, PcapWalker, Records, Walker

__all__ = (
    "HEAD_BYTES", "NOT_A_PACKET", "NO_INTERFACE", "RECORD", "SNIFF_BYTES", "CaptureError", "Records", "Walker",
    "new_walker", "sniff",
)  # fmt: skip

MAGIC_BYTES = 4  # they identify a capture
SNIFF_BYTES = 16  # error messages show these of other files
HEAD_BYTES = 1 << 16  # from which the reader of a capture is made


def sniff(head: bytes) -> str:
    """'pcap' or 'pcapng', from the first bytes of a file.

    Raises CaptureError with what was found and what was expected.
    """
    magic = bytes(head[:MAGIC_BYTES])
    if magic in MAGICS:
        return "pcap"
    if magic == SECTION_HEADER:
        return "pcapng"
    if not magic:
        raise CaptureError("the file is empty; expected a pcap or pcapng capture")
    if len(magic) < MAGIC_BYTES and any(known.startswith(magic) for known in (*MAGICS, SECTION_HEADER)):
        raise CaptureError(f"the file ends after {len(magic)} bytes, inside the magic number of a capture")
    raise CaptureError(
        f"the file begins with {_printable(bytes(head[:SNIFF_BYTES]))}; expected the magic number of pcap or pcapng"
    )


def new_walker(head: bytes) -> Walker:
    """A reader of the file that starts with `head`, its first HEAD_BYTES. Raises CaptureError when it is not a
    capture."""
    return PcapWalker.of(head[:HEAD_BYTES]) if sniff(head) == "pcap" else PcapngWalker()


def _printable(head: bytes) -> str:
    """The first bytes for a message: text as text, else hexadecimal."""
    printable = all(0x20 <= byte < 0x7F or byte in b"\t\r\n" for byte in head)
    return f"the text {head.decode('ascii')!r}" if printable else f"the bytes {head[:MAGIC_BYTES].hex(' ')}"
