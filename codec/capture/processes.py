"""Processes of packets in pcapng: which program on the capturing machine sent a packet, or received it.

Four notations. In all of them a packet refers to a process, and says by epb_flags whether it was sent or received:

    Darwin     block 0x80000001 (tcpdump of macOS): process id, options; packets have the index of such a block in
               their section, options 0x8001 (the process) and 0x8003 (the one it works for)
    Wireshark  custom block of Wireshark, entry type 3: the same, little-endian in every section; packets have the
               process id, option 8 (epb_processid_threadid)
    draft      option 8 alone: a process id without a name
    ptcpdump   comments of packets: `PID: 7`, `Cmd: /usr/bin/curl`, `ContainerName: shop`, `PodName: shop-5b` ...,
               a line each

Sources: draft-ietf-opsawg-pcapng, section 4.3; its pull request 209; Wireshark's wiki, Development/PcapngCustom.

Arguments of commands are never read: they may have passwords. A process id that begins anew is another process: a block
counts for the packets behind it, of those with a start time the last one that had started. Python runs once for each
block, and once for each distinct process id and comment of the bytes that are walked together.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes, Process, read32
from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS
from codec.cursor import byte_at
from codec.text import LONG, escaped, masked

DARWIN_BLOCK = 0x80000001
CUSTOM_BLOCKS = 0x0BAD, 0x40000BAD
WIRESHARK = 32622  # private enterprise number
PROCESS_INFORMATION = 3  # type of the entry of such a block
COMMENT, FLAGS, PROCESS_ID, DARWIN_PROCESS, DARWIN_EFFECTIVE = 1, 2, 8, 0x8001, 0x8003  # options of packets
NAME, PATH, START_TIME = 2, 3, 9  # options of a process; the last one only in Wireshark's
INBOUND, OUTBOUND = 1, 2  # epb_flags, bits 0 and 1
FLAG_BITS = 2
NOT_STARTED = -1
MULTIPLIER_BITS = 30  # a product with 32 bits stays inside 63

ByteOrder = Literal["little", "big"]

# What a packet says of its process; NONE where it does not. COMMENTS, COMMENTS_END: where the comments about processes
# begin and end in the block of bytes.
REFERENCE = np.dtype(
    [(name, "i8") for name in ("row", "flags", "process_id", "index", "comments", "comments_end")], align=True
)
NONE = -1
# Comments that begin so are about processes.
_PREFIXES = np.frombuffer(bytearray(b"PID:ContPodN"), np.uint8)
_PREFIX_BYTES = 4
# Line of a comment -> field of Process.
LINES = {
    b"PID": "pid",
    b"Cmd": "name",
    b"Command": "name",
    b"ContainerName": "container_name",
    b"ContainerId": "container_id",
    b"ContainerImage": "container_image",
    b"PodName": "pod_name",
    b"PodNamespace": "pod_namespace",
}
# What follows these lines of a comment is made of arguments, labels and the like, which may have lines of their own.
FREE_TEXT = (b"Args", b"ContainerLabels", b"PodLabels", b"PodAnnotations")


@dataclass
class Processes:
    """The processes of a capture so far, numbered from 1; what refers to them in the current section. At most
    `Limits.processes` are told apart, each with texts of at most `Limits.process_text_bytes`."""

    known: list[Process] = field(default_factory=list)
    _numbers: dict[Process, int] = field(default_factory=dict)
    _comments: dict[bytes, int] = field(default_factory=dict)  # digest of comments -> number, 0: nothing is known
    _by_index: list[int] = field(default_factory=list)  # of Darwin's blocks -> number
    _by_id: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)  # (start, which block, number) in order
    _blocks: int = 0

    @property
    def room(self) -> bool:
        """Whether further blocks are read."""
        return self._blocks < LIMITS.processes

    def begin_section(self) -> None:
        """Indexes and process ids are those of a section."""
        self._by_index.clear()
        self._by_id.clear()

    def darwin(self, body: bytes, order: ByteOrder) -> None:
        """Read the body of a block of Darwin."""
        self._blocks += 1
        self._by_index.append(self._number(_described(body, order)[0]))

    def wireshark(self, body: bytes) -> None:
        """Read the body of a custom block of Wireshark."""
        self._blocks += 1
        kind, size = (int.from_bytes(body[at : at + 4], "little") for at in (4, 8))
        if kind == PROCESS_INFORMATION and 4 <= size <= len(body) - 12:
            process, start_ns = _described(body[12 : 12 + size], "little")
            if process.pid is not None:
                entry = (start_ns, self._blocks, self._number(process))
                insort(self._by_id.setdefault(process.pid, []), entry)

    def resolve(
        self, block: Bytes, references: NDArray[np.void], times: NDArray[np.int64], order: ByteOrder
    ) -> NDArray[np.int64]:
        """int64: the process that each of `references` (REFERENCE) into `block` is about, 0: none. `times`: ns, when
        their packets were captured. `order`: of the section."""
        found = np.zeros(len(references), np.int64)
        self._of_ids(references["process_id"], times, found)
        self._of_indexes(references["index"], found)
        self._of_comments(block, references, order, found)
        return found

    def _of_ids(self, ids: NDArray[np.int64], times: NDArray[np.int64], found: NDArray[np.int64]) -> None:
        rows = np.flatnonzero(ids > 0)
        rows = rows[np.argsort(ids[rows], kind="stable")]
        distinct, begins = np.unique(ids[rows], return_index=True)
        for process_id, of_id in zip(distinct.tolist(), np.split(rows, begins[1:]), strict=len(distinct) > 0):
            blocks = self._by_id.get(process_id)
            if blocks is None:
                found[of_id] = self._number(Process(process_id))
            elif len(of_id) < len(blocks):  # blocks and packets may alternate: the blocks are not read again for each
                for row in of_id.tolist():
                    last = bisect_right(blocks, (int(times[row]), self._blocks, len(self.known))) - 1
                    found[row] = blocks[max(last, 0)][2]
            else:
                starts = np.array([start_ns for start_ns, _, _ in blocks], np.int64)
                started = np.searchsorted(starts, times[of_id], "right") - 1
                found[of_id] = np.array([number for _, _, number in blocks])[np.maximum(started, 0)]

    def _of_indexes(self, indexes: NDArray[np.int64], found: NDArray[np.int64]) -> None:
        rows = np.flatnonzero((indexes >= 0) & (indexes < len(self._by_index)))
        if len(rows) < len(self._by_index):
            found[rows] = [self._by_index[index] for index in indexes[rows].tolist()]
        else:
            found[rows] = np.array(self._by_index, np.int64)[indexes[rows]]

    def _of_comments(
        self, block: Bytes, references: NDArray[np.void], order: ByteOrder, found: NDArray[np.int64]
    ) -> None:
        rows = np.flatnonzero(references["comments"] >= 0)
        if not len(rows):
            return
        begins, ends = (np.ascontiguousarray(references[name][rows]) for name in ("comments", "comments_end"))
        slots = np.full(1 << (2 * len(rows)).bit_length(), NONE, np.int64)
        group_of, firsts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        count = group_equal(block, begins, ends, slots, secrets.randbits(MULTIPLIER_BITS) | 1, group_of, firsts)
        numbers = [self._commented(block[begins[i] : ends[i]].tobytes(), order) for i in firsts[:count].tolist()]
        of_rows = np.array(numbers, np.int64)[group_of]
        found[rows] = np.where(of_rows > 0, of_rows, found[rows])

    def _commented(self, options: bytes, order: ByteOrder) -> int:
        """The process of the comments among options."""
        key = blake2b(options, digest_size=16, person=order.encode()).digest()
        number = self._comments.get(key)
        if number is None:
            number = 0
            if len(self._comments) < LIMITS.processes:
                number = self._number(commented(value for code, value in options_of(options, order) if code == COMMENT))
                self._comments[key] = number
        return number

    def _number(self, process: Process) -> int:
        """The number of a process, 0 if nothing is known of it, or too many are known."""
        number = self._numbers.get(process, 0)
        if not number and process != Process() and len(self.known) < LIMITS.processes:
            self.known.append(process)
            number = self._numbers[process] = len(self.known)
        return number


def options_of(data: bytes, order: ByteOrder) -> Iterator[tuple[int, bytes]]:
    """(code, value) of each complete option before the end mark."""
    at = 0
    while at + 4 <= len(data):
        code, size = (int.from_bytes(data[at + i : at + i + 2], order) for i in (0, 2))
        if code == 0 or at + 4 + size > len(data):
            return
        yield code, data[at + 4 : at + 4 + size]
        at += 4 + (size + 3) // 4 * 4


def _described(body: bytes, order: ByteOrder) -> tuple[Process, int]:
    """A process id and options: the process, and when it was started (ns since 1970), NOT_STARTED: not known."""
    name, path, start_ns = None, None, NOT_STARTED
    for code, value in options_of(body[4:], order):
        if code == NAME:
            name = _text(value)
        elif code == PATH:
            path = _text(value.rsplit(b"/", 1)[-1])
        elif code == START_TIME and len(value) == 8:
            start_ns = int.from_bytes(value, order)
    return Process(int.from_bytes(body[:4], order) or None, name or path), start_ns


def commented(comments: Iterable[bytes]) -> Process:
    """The process that these comments of a packet are about. Of a line that occurs again the first one counts."""
    found: dict[str, str | int | None] = {}
    for comment in comments:
        for line in comment.split(b"\n"):
            key, _, value = line.partition(b":")
            if key in FREE_TEXT:
                break
            name = LINES.get(key)
            if name == "pid":
                digits = value.strip()[:10]
                found.setdefault(name, int(digits) if digits.isdigit() else None)
            elif name == "name":  # a path; what follows it would be arguments
                found.setdefault(name, _text(value.strip().split(b" ", 1)[0].rsplit(b"/", 1)[-1]))
            elif name is not None:
                found.setdefault(name, _text(value.strip()))
    return Process(**{name: value for name, value in found.items() if value})  # type: ignore[arg-type]


def _text(data: bytes) -> str | None:
    """Text of a capture, with the userinfo of URIs masked; None: nothing."""
    text = escaped(data.rstrip(b"\0"))
    if "@" in text or "%" in text or len(data) >= LONG:
        text = masked(text)
    while len(text.encode()) > LIMITS.process_text_bytes:
        text = text[: LIMITS.process_text_bytes * len(text) // len(text.encode())]
    return text or None


@njit
def packet_options(block, at, end, big, reference):
    """Fill in `reference` (REFERENCE) from the options at `block[at:end]`; whether they name a process."""
    reference["flags"] = 0
    reference["process_id"] = NONE
    reference["index"] = NONE
    reference["comments"] = NONE
    effective = NONE
    while at + 4 <= end:
        both = read32(block, at, big)
        code, size = (both >> 16, both & 0xFFFF) if big else (both & 0xFFFF, both >> 16)
        value = at + 4
        if code == 0 or value + size > end:
            break
        after = value + (size + 3) // 4 * 4
        if code == COMMENT and _is_about_process(block, value, value + size):
            if reference["comments"] == NONE:
                reference["comments"] = at
            reference["comments_end"] = min(after, end)
        elif code == FLAGS and size == 4:
            reference["flags"] = read32(block, value, big) & 3
        elif code == PROCESS_ID and size == 8:
            reference["process_id"] = read32(block, value, big)
        elif code == DARWIN_PROCESS and size == 4:
            reference["index"] = read32(block, value, big)
        elif code == DARWIN_EFFECTIVE and size == 4:
            effective = read32(block, value, big)
        at = after
    if reference["index"] == NONE:
        reference["index"] = effective
    return reference["comments"] >= 0 or reference["process_id"] > 0 or reference["index"] >= 0


@njit
def _is_about_process(block, at, end):
    """Whether a comment begins like one about a process."""
    if at + _PREFIX_BYTES > end:
        return False
    for first in range(0, len(_PREFIXES), _PREFIX_BYTES):
        same = 0
        while same < _PREFIX_BYTES and byte_at(block, at + same) == _PREFIXES[first + same]:
            same += 1
        if same == _PREFIX_BYTES:
            return True
    return False


@njit
def group_equal(block, begins, ends, slots, multiplier, group_of, firsts):
    """Number equal pieces of `block` (from `begins` to `ends`) in order of appearance: `group_of` each piece, the first
    one of each group; returns the number of groups. `slots`: -1, a power of 2 of them, more than twice the pieces;
    `multiplier`: odd, below 2**30."""
    mask, groups = len(slots) - 1, 0
    for i in range(len(begins)):
        mixed = multiplier
        for at in range(begins[i], ends[i]):
            mixed = ((mixed ^ byte_at(block, at)) * multiplier) & 0xFFFFFFFF
            mixed ^= mixed >> 15
        slot = mixed & mask
        while slots[slot] >= 0 and not _equal(block, begins, ends, firsts[slots[slot]], i):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = groups
            firsts[groups] = i
            groups += 1
        group_of[i] = slots[slot]
    return groups


@njit
def _equal(block, begins, ends, a, b):
    size = ends[a] - begins[a]
    if ends[b] - begins[b] != size:
        return False
    for i in range(size):
        if byte_at(block, begins[a] + i) != byte_at(block, begins[b] + i):
            return False
    return True
