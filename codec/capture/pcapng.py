"""The pcapng format: blocks of (type, length, body, length again), in sections that each choose their byte order.

Source: draft-ietf-opsawg-pcapng. A kernel reads packet blocks (enhanced, simple, obsolete) and skips unused ones. It
stops at section headers, interface descriptions, interface statistics and processes (`codec.capture.processes`), which
are rare and read in Python.

Wireshark counts custom blocks and journal entries as packets. They become records with link type NOT_A_PACKET, so that
packet numbers agree.

Times are 64 bits in units of the interface (section 4.2, options if_tsresol and if_tsoffset). They become nanoseconds
within 63 bits: a damaged time ends at LAST_NS and does not wrap, nor does a difference of two times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from codec.capture import records as R
from codec.capture.processes import (
    CUSTOM_BLOCKS,
    DARWIN_BLOCK,
    FLAG_BITS,
    REFERENCE,
    WIRESHARK,
    ByteOrder,
    Processes,
    options_of,
    packet_options,
)
from codec.capture.records import read32, writable
from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS

SECTION_HEADER = bytes.fromhex("0a0d0d0a")  # the same in both byte orders
SECTION, INTERFACE, OBSOLETE_PACKET, SIMPLE_PACKET, STATISTICS, ENHANCED_PACKET = 0x0A0D0D0A, 1, 2, 3, 5, 6
JOURNAL = 9
CUSTOM, CUSTOM_NOT_COPIED = CUSTOM_BLOCKS
BYTE_ORDER_MAGIC = 0x1A2B3C4D
BLOCK_BYTES = 12  # type, length, length again
PROCESS_BYTES = 16  # of a block that may name a process
REFERRING_BYTES = 40  # of the shortest packet block with an option
NO_PROCESSES = np.zeros(0, np.int64)
SECTION_BYTES = 28  # the shortest section header

END_OF_OPTIONS = 0
IF_TSRESOL, IF_TSOFFSET = 9, 14  # options of an interface description
ISB_IFDROP, ISB_OSDROP = 5, 7  # options of interface statistics
MICROSECONDS = 6  # if_tsresol when it is not given: units of 10**-6 s
MAX_NS = 2**63 - 1
SECOND_NS = 1_000_000_000
# The last whole second of 62 bits, in 2116; the seconds of a pcap end in 2106.
LAST_NS = 2**62 // SECOND_NS * SECOND_NS

# Conversions of units to nanoseconds: times `factor`, half of them (of 64 bits) divided by `factor`, or fractions of
# 2**-factor seconds.
MULTIPLY, DIVIDE, SHIFT = range(3)

INTERFACE_ROW = np.dtype(
    [("link_type", "i4"), ("rule", "i4"), ("factor", "i8"), ("offset_ns", "i8"), ("snaplen", "i8")], align=True
)


def time_rule(resolution: int) -> tuple[int, int]:
    """if_tsresol -> (rule, factor). The high bit chooses between powers of 2 and of 10 (section 4.2 of the draft)."""
    power = resolution & 0x7F
    if resolution & 0x80:
        return SHIFT, power
    if power <= 9:
        return MULTIPLY, 10 ** (9 - power)
    if power <= 28:
        return DIVIDE, 10 ** (power - 9) // 2
    return SHIFT, 0x7F  # no time reaches a nanosecond


@dataclass
class PcapngWalker(R.Walker):
    """Reads one pcapng file."""

    format: str = "pcapng"
    section: int = 0  # 0 until the first section header was read
    interface_count: int = 0  # of the section
    interfaces: np.ndarray = field(default_factory=lambda: np.zeros(4, INTERFACE_ROW))
    last_ns: int = 0  # time of the previous packet, for packets without time
    drops: dict[int, int] = field(default_factory=dict)  # of the section, by interface: the last statistics count
    drops_sum: int = 0  # of all sections
    _processes: Processes = field(default_factory=Processes)

    def walk(self, block: R.Bytes, final: bool) -> tuple[R.Records, int]:
        """Complete records of `block`, and the bytes consumed."""
        block = R.writable(block)
        records = np.empty(len(block) // BLOCK_BYTES, R.RECORD)
        references = np.empty(len(block) // REFERRING_BYTES + 1, REFERENCE)
        process_of = self.process_of = NO_PROCESSES
        count = at = referring = resolved = 0
        outcome = R.OTHER_BLOCK
        begin = self.position
        while outcome == R.OTHER_BLOCK and self.error is None:
            if self.section:
                count, at, outcome, self.last_ns, referring = _walk(
                    block, at, self.big_endian, self.interfaces, self.interface_count, LIMITS.record_bytes,
                    self.last_ns, records, count, references, referring, self._processes.room,
                )  # fmt: skip
                self.position = begin + at
                if referring > resolved:
                    process_of = process_of if len(process_of) else np.zeros(len(records), np.int64)
                    self._resolve(block, records, references[resolved:referring], process_of)
                    resolved = referring
            if outcome == R.OTHER_BLOCK:
                length = self._other_block(block, at)
                at += length
                self.position = begin + at
                outcome = R.OTHER_BLOCK if length else R.NEED_MORE
        if outcome not in (R.OTHER_BLOCK, R.NEED_MORE):
            self.error = self._damage(block, at, outcome)
        if final and self.error is None and at < len(block):
            self.truncated = True
            if not self.section:
                self.error = f"the file ends after {len(block)} bytes, inside the section header of pcapng"
        self.process_of, self.processes = process_of[:count], self._processes.known
        return records[:count], at

    def _resolve(
        self, block: R.Bytes, records: R.Records, references: NDArray[np.void], process_of: NDArray[np.int64]
    ) -> None:
        """Fill in the processes that packets refer to."""
        rows = references["row"]
        numbers = self._processes.resolve(block, references, records["ts_ns"][rows], self._byte_order)
        process_of[rows] = np.where(numbers > 0, numbers << FLAG_BITS | references["flags"], 0)

    def _other_block(self, block: R.Bytes, at: int) -> int:
        """Read the block that the kernel stopped at; returns its length, 0 when it is incomplete or damaged."""
        if block[at : at + 4].tobytes() == SECTION_HEADER or not self.section:
            return self._section_header(block, at)
        length = self._number(block[at + 4 : at + 8].tobytes())
        body = block[at + 8 : at + length - 4].tobytes()
        kind = self._number(block[at : at + 4].tobytes())
        if kind == INTERFACE:
            self._interface_description(body)
        elif kind == DARWIN_BLOCK:
            self._processes.darwin(body, self._byte_order)
        elif kind in CUSTOM_BLOCKS:
            self._processes.wireshark(body)
        else:
            self._interface_statistics(body)
        return length

    @property
    def _byte_order(self) -> ByteOrder:
        return "big" if self.big_endian else "little"

    def _number(self, data: bytes) -> int:
        return int.from_bytes(data, self._byte_order)

    def _section_header(self, block: R.Bytes, at: int) -> int:
        """Begin a section, with its byte order and new interface numbers; returns its length, else 0."""
        head = block[at : at + SECTION_BYTES].tobytes()
        if len(head) < SECTION_BYTES:
            return 0
        where = f"the section header at byte {self.position}"
        orders = {BYTE_ORDER_MAGIC.to_bytes(4, "little"): False, BYTE_ORDER_MAGIC.to_bytes(4, "big"): True}
        if head[8:12] not in orders:
            self.error = (
                f"{where} has the byte-order magic {head[8:12].hex()}; expected {BYTE_ORDER_MAGIC:x} either way"
            )
            return 0
        order: Literal["big", "little"] = "big" if orders[head[8:12]] else "little"
        length, major = int.from_bytes(head[4:8], order), int.from_bytes(head[12:14], order)
        if major != 1:
            self.error = f"{where} names pcapng version {major}; expected version 1"
        elif length < SECTION_BYTES or length % 4 or length > LIMITS.record_bytes:
            self.error = f"{where} claims a length of {length} bytes; the file is damaged from there on"
        elif at + length <= len(block):
            self.big_endian = orders[head[8:12]]
            self.section += 1
            self.interface_count = 0
            self.drops.clear()
            self._processes.begin_section()
            return length
        return 0

    def _interface_description(self, body: bytes) -> None:
        """Link type (2 bytes), reserved (2), snaplen (4), options."""
        if self.interface_count == LIMITS.interfaces:
            return  # its packets have no interface
        if self.interface_count == len(self.interfaces):
            self.interfaces = np.concatenate([self.interfaces, np.zeros_like(self.interfaces)])
        resolution, offset_s = MICROSECONDS, 0
        for code, value in options_of(body[8:], self._byte_order):
            if code == IF_TSRESOL and len(value) == 1:
                resolution = value[0]
            elif code == IF_TSOFFSET and len(value) == 8:
                offset_s = int.from_bytes(value, self._byte_order, signed=True)
        rule, factor = time_rule(resolution)
        offset_ns = max(-MAX_NS, min(MAX_NS, offset_s * SECOND_NS))
        snaplen = self._number(body[4:8])
        link_type = self._number(body[:2])
        self.interfaces[self.interface_count] = (link_type, rule, factor, offset_ns, snaplen)
        self.interface_count += 1
        if snaplen:
            self.snaplen = max(snaplen, self.snaplen or 0)

    def _interface_statistics(self, body: bytes) -> None:
        """Interface (4 bytes), time (8), options. Counters grow from block to block: the last one holds."""
        options = options_of(body[12:], self._byte_order)
        counters = [self._number(value) for code, value in options if code in (ISB_IFDROP, ISB_OSDROP)]
        interface = self._number(body[:4])
        if counters and interface < self.interface_count:
            self.drops_sum += sum(counters) - self.drops.get(interface, 0)
            self.drops[interface] = sum(counters)
            self.dropped = min(MAX_NS, self.drops_sum)

    def _damage(self, block: R.Bytes, at: int, outcome: int) -> str:
        kind, length = self._number(block[at : at + 4].tobytes()), self._number(block[at + 4 : at + 8].tobytes())
        wrong = {
            R.BAD_BLOCK: f"claims a length of {length} bytes, which no block of its kind has",
            R.BAD_TRAILER: f"does not repeat its length of {length} bytes at its end",
            R.BAD_CAPTURED: f"claims more captured bytes than its {length} bytes hold",
        }[outcome]
        return f"the block of type {kind:#x} at byte {self.position} {wrong}; the file is damaged from there on"


@njit
def nanoseconds(high, low, rule, factor, offset_ns):
    """Time of a packet from two halves of 32 bits, in the interface's units, within -LAST_NS..LAST_NS."""
    if rule == SHIFT:
        ns = _binary_fraction(high, low, factor)
    elif rule == DIVIDE:
        ns = ((high << 31) | (low >> 1)) // factor
    elif high >= 1 << 31:
        ns = MAX_NS
    else:
        units = (high << 32) | low
        ns = units * factor if units <= MAX_NS // factor else MAX_NS
    if offset_ns > 0 and ns > LAST_NS - offset_ns:
        return LAST_NS
    return max(-LAST_NS, min(ns + offset_ns, LAST_NS))


@njit
def _binary_fraction(high, low, bits):
    """Nanoseconds of (high * 2**32 + low) units of 2**-bits seconds, rounded down, within 63 bits."""
    if bits <= 32:
        if high > (MAX_NS // SECOND_NS - 1) >> (32 - bits):
            return MAX_NS
        seconds = (high << (32 - bits)) | (low >> bits)
        return seconds * SECOND_NS + (((low & ((1 << bits) - 1)) * SECOND_NS) >> bits)
    shift = bits - 32
    if shift > 62:
        return 0
    seconds = high >> min(shift, 32)
    fraction = high & ((1 << min(shift, 32)) - 1)
    return seconds * SECOND_NS + ((fraction * SECOND_NS + ((low * SECOND_NS) >> 32)) >> shift)


@njit
def _walk(
    block, at, big, interfaces, interface_count, limit, last_ns, records, count, references, referring, read_processes
):
    """Fill `records[count:]` from `block[at:]`, and `references[referring:]` (REFERENCE) where they name a process;
    returns (records filled, first byte not consumed, outcome, last_ns, references filled).

    Stops with OTHER_BLOCK at a section header (unchecked), an interface description, statistics, or a process
    (`read_processes`), each whole and checked.
    """
    while at + BLOCK_BYTES <= len(block):
        kind = R.read32(block, at, big)
        if kind == SECTION:
            return count, at, R.OTHER_BLOCK, last_ns, referring
        length = R.read32(block, at + 4, big)
        shortest = BLOCK_BYTES
        if kind in (ENHANCED_PACKET, OBSOLETE_PACKET):
            shortest = 32
        elif kind == SIMPLE_PACKET:
            shortest = 16
        elif kind == INTERFACE:
            shortest = 20
        elif kind == STATISTICS:
            shortest = 24
        is_custom = kind in (CUSTOM, CUSTOM_NOT_COPIED)
        is_process = False
        if read_processes and at + PROCESS_BYTES <= len(block) and length >= PROCESS_BYTES:
            is_process = kind == DARWIN_BLOCK or (is_custom and R.read32(block, at + 8, big) == WIRESHARK)
        if length < shortest or length > limit or length % 4 != 0:
            return count, at, R.BAD_BLOCK, last_ns, referring
        if at + length > len(block):
            break
        if R.read32(block, at + length - 4, big) != length:
            return count, at, R.BAD_TRAILER, last_ns, referring
        if is_custom or kind == JOURNAL:
            _fill(records, count, at + 8, 0, 0, last_ns, 0, R.NOT_A_PACKET)
            count += 1
        if is_process or kind in (INTERFACE, STATISTICS):
            return count, at, R.OTHER_BLOCK, last_ns, referring
        if kind in (ENHANCED_PACKET, OBSOLETE_PACKET, SIMPLE_PACKET):
            outcome, last_ns = _packet(
                block, at, kind, length, big, interfaces, interface_count, last_ns, records, count
            )
            if outcome != R.NEED_MORE:
                return count, at, outcome, last_ns, referring
            options = int(records["offset"][count]) + (int(records["cap_len"][count]) + 3) // 4 * 4
            if kind != SIMPLE_PACKET and options + 4 < at + length - 4:
                reference = references[referring]
                if packet_options(block, options, at + length - 4, big, reference):
                    reference["row"] = count
                    referring += 1
            count += 1
        at += length
    return count, at, R.NEED_MORE, last_ns, referring


@njit
def _packet(block, at, kind, length, big, interfaces, interface_count, last_ns, records, count):
    """One packet block into `records[count]`; returns (NEED_MORE or BAD_CAPTURED, its time)."""
    if kind == SIMPLE_PACKET:
        interface = 0
        wire = R.read32(block, at + 8, big)
        captured = min(wire, length - 16)
        if interface_count > 0:
            snaplen = int(interfaces["snaplen"][0])
            if snaplen > 0:
                captured = min(captured, snaplen)
        begin = at + 12
    else:
        if kind == ENHANCED_PACKET:
            interface = R.read32(block, at + 8, big)
        else:  # two bytes of interface number, two of dropped packets
            both = R.read32(block, at + 8, big)
            interface = (both >> 16) if big else (both & 0xFFFF)
        captured = R.read32(block, at + 20, big)
        wire = R.read32(block, at + 24, big)
        begin = at + 28
        if captured > length - 32:
            return R.BAD_CAPTURED, last_ns
    link_type = R.NO_INTERFACE
    if interface < interface_count:
        link_type = int(interfaces["link_type"][interface])
        if kind != SIMPLE_PACKET:
            last_ns = nanoseconds(
                R.read32(block, at + 12, big),
                R.read32(block, at + 16, big),
                int(interfaces["rule"][interface]),
                int(interfaces["factor"][interface]),
                int(interfaces["offset_ns"][interface]),
            )
    _fill(records, count, begin, captured, max(captured, wire), last_ns, min(interface, 0x7FFFFFFF), link_type)
    return R.NEED_MORE, last_ns


@njit
def _fill(records, count, offset, captured, wire, ts_ns, interface, link_type):
    records["offset"][count] = offset
    records["cap_len"][count] = captured
    records["wire_len"][count] = wire
    records["ts_ns"][count] = ts_ns
    records["interface"][count] = interface
    records["link_type"][count] = link_type


# Decryption Secrets Blocks of pcapng (draft-ietf-opsawg-pcapng, section 4.7), anywhere in a file.
#
# A kernel finds them and skips all other blocks, of which it reads only the heads. Cost: constant per block.


SECRETS_BLOCK = 0x0000000A
TLS_KEY_LOG = 0x544C534B
SECRETS_BYTES = LIMITS.secrets_bytes
AT_ONCE = 256  # blocks that one call of the kernel finds
HEAD_BYTES = 20  # type, length, secrets type, secrets length; of a section also its magic


@njit
def _key_logs(data, at, big, found):
    """Write (begin, end) of key logs in complete blocks from the block at `at` on to `found` int64 (n, 2): (how many,
    where the next block begins, whether its section is big-endian, whether no block begins there)."""
    count = 0
    while count < len(found) and at + HEAD_BYTES <= len(data):
        kind = read32(data, at, big)
        if kind == SECTION:
            big = read32(data, at + 8, True) == BYTE_ORDER_MAGIC
        length = read32(data, at + 4, big)
        if length < BLOCK_BYTES or (kind != SECTION and length % 4):
            return count, at, big, True
        if kind == SECRETS_BLOCK and length <= SECRETS_BYTES:
            if at + length > len(data):
                break
            if read32(data, at + 8, big) == TLS_KEY_LOG:
                found[count, 0] = at + 16
                found[count, 1] = at + min(16 + read32(data, at + 12, big), length - 4)
                count += 1
        at += length
    return count, at, big, False


class SecretsWalker:
    """Reads one file; `bytes` of a call begin after the bytes that the last call consumed."""

    def __init__(self) -> None:
        self.damaged = False
        self._big = False
        self._ahead = 0  # bytes to skip before the next block

    def walk(self, data: np.ndarray) -> tuple[list[bytes], int]:
        """Key logs in complete blocks of `bytes` (uint8), and the number of bytes consumed."""
        data = writable(data)
        logs: list[bytes] = []
        at, end, found, count = self._ahead, len(data), np.empty((AT_ONCE, 2), np.int64), AT_ONCE
        while count == AT_ONCE and not self.damaged:
            count, at, self._big, self.damaged = _key_logs(data, at, self._big, found)
            logs += [data[first:last].tobytes() for first, last in found[:count].tolist() if first < last]
        self._ahead = max(0, at - end)
        return logs, min(at, end)
