"""The oracle of test_loss: the expected decode when packets are lost, from the decode of the complete capture.

A model of TCP that counts bytes and knows no AMQP says which bytes remain; everything else is compared with the rows
of the complete capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from fuzz import PARTS
from wire import CLIENT, SERVER

from codec.amqp.decoder import Decoder
from codec.net.layers import ACK, FIN, SYN
from codec.protocol import rows as R
from codec.protocol.versions import FRAME_TYPES, STATUSES, VERSIONS
from codec.variant import decode

SPANS = {"gap", "skipped", "tls", "foreign"}
BEGINNING = {"0-10": 4, "1.0": 8}  # bytes that tell where a frame ends; 7 in the classic family
# Frames that are not trusted after a lost boundary.
WEAK = {"body", "empty", "protocol-header", "skipped"}


class Frame(NamedTuple):
    """One row; `content`: stream offset of the first frame of its content; variants as their bytes."""

    direction: int
    offset: int
    size: int
    kind: str
    status: str
    version: str | None
    fixed: tuple[int, ...]
    sender: int
    arguments: tuple[bytes, bytes]
    properties: tuple[bytes, bytes]
    digest: bytes | None
    content: int | None


LEDGER = ("payload_bytes", "missing_bytes", *PARTS)
FIXED = [R.CHANNEL, R.CLASS, R.METHOD_ID, R.CODE, R.NAME, R.PAYLOAD_SIZE]
HEAPS = (
    ("arguments", R.ARGUMENTS_END),
    ("arguments_metadata", R.ARGUMENTS_META_END),
    ("properties", R.PROPERTIES_END),
    ("properties_metadata", R.PROPERTIES_META_END),
)


class Decoded(NamedTuple):
    frames: list[Frame]
    ledgers: list[dict[str, int]]  # by direction


class Flow(NamedTuple):
    """One connection of a capture: its segments and their bytes."""

    name: str
    key: bytes
    segments: np.ndarray
    payload: np.ndarray


@cache
def decoder() -> Decoder:
    return Decoder()


def decoded(flow: Flow, keep: np.ndarray | None = None) -> list[Decoded]:
    """What the segments of `flow` (those that `keep` names) give, a connection each."""
    d = decoder()
    found: dict[int, list[Frame]] = {}
    numbers: dict[int, dict[int, tuple[int, int]]] = {}
    segments = flow.segments if keep is None else flow.segments[keep]
    for batches in (d.feed(flow.key, segments, flow.payload), d.finish()):
        for batch in batches:
            for frame, (connection, number, content) in batch_frames(batch):
                numbers.setdefault(connection, {})[number] = (frame.direction, frame.offset)
                found.setdefault(connection, []).append(frame._replace(content=content))
    result = []
    concluded = [
        (int(connection), directions)
        for ended in d.take_ended()
        for connection, directions in zip(ended.connections["connection_id"], ended.directions, strict=True)
    ]
    for connection_id, directions in concluded:
        frames, indices = found.get(connection_id, []), numbers.get(connection_id, {})
        named = [f._replace(content=None if f.content is None else indices[f.content][1]) for f in frames]
        assert all(f.content is None or indices[f.content][0] == f.direction for f in frames)
        ledgers = [{name: int(counted[name]) for name in LEDGER} for counted in directions]
        result.append(Decoded(named, ledgers))
    return result


def batch_frames(batch: Any) -> Iterator[tuple[Frame, tuple[int, int, int | None]]]:
    """Rows of a batch, and (connection, frame_no, frame_no of the content) of each."""
    heaps = [(getattr(batch, name).tobytes(), batch.cells[:, end].tolist()) for name, end in HEAPS]
    for i, cells in enumerate(batch.cells.tolist()):
        parts = [heap[ends[i - 1] if i else 0 : ends[i]] for heap, ends in heaps]
        frame = Frame(
            cells[R.DIRECTION],
            cells[R.OFFSET],
            cells[R.SIZE],
            FRAME_TYPES[cells[R.TYPE]],
            STATUSES[cells[R.STATUS]],
            VERSIONS[cells[R.VERSION]],
            tuple(cells[column] for column in FIXED),
            cells[R.SENDER],
            (parts[0], parts[1]),
            (parts[2], parts[3]),
            batch.digest[i].tobytes() if cells[R.DIGEST] else None,
            None,
        )
        yield frame, (cells[R.CONNECTION], cells[R.FRAME_NO], cells[R.CONTENT] if cells[R.CONTENT] >= 0 else None)


# ---- TCP, as far as the captures go ---------------------------------------------------------------------------------


def present(segments: np.ndarray, direction: int) -> tuple[int, np.ndarray] | None:
    """(sequence number of stream offset 0, which bytes were captured, by offset) of one direction; None without data.
    Bytes are known to have been sent up to the FIN, or up to what the peer acknowledged."""
    segments = segments.view(np.ndarray)
    own, peer = segments[segments["direction"] == direction], segments[segments["direction"] != direction]
    opening, data = own[own["flags"] & SYN != 0], own[own["wire_len"] > 0]
    if not len(opening) and not len(data):
        return None
    base = int(opening["seq"][0]) + 1 if len(opening) else int(data["seq"][0])

    def offsets(numbers: np.ndarray) -> np.ndarray:
        return np.asarray((numbers.astype(np.int64) - base + 2**31) % 2**32 - 2**31)

    begins, captured = offsets(data["seq"]) + (data["flags"] & SYN != 0), data["cap_len"].astype(np.int64)
    end = int((begins + data["wire_len"]).max(initial=0))
    finished = own[own["flags"] & FIN != 0]
    fins = offsets(finished["seq"]) + finished["wire_len"]
    acked = int(offsets(peer["ack"][peer["flags"] & ACK != 0]).max(initial=0))
    if len(fins):
        end = max(end, int(fins[0]))
    elif acked > end + 1:  # one number more is an acknowledged FIN that was lost itself
        end = acked
    there = np.zeros(end, bool)
    for at, size in zip(begins.tolist(), captured.tolist(), strict=True):
        there[max(at, 0) : max(at + size, 0)] = True
    return base, there


def runs_of(flags: np.ndarray) -> list[tuple[int, int]]:
    """(offset, length) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]


# ---- the oracle -----------------------------------------------------------------------------------------------------


@dataclass
class Loss:
    """One direction of `complete`, a decode, and the `remaining` rows when only the bytes in `there` were captured."""

    complete: list[Frame]
    remaining: list[Frame]
    there: np.ndarray
    ledger: dict[str, Any]
    named: bool  # a protocol header was captured, in either direction

    def check(self) -> None:
        self.holes = runs_of(~self.there)
        self.by_offset = {f.offset: f for f in self.complete if f.kind not in SPANS}
        self.found = {f.offset: f for f in self.remaining if f.kind not in SPANS}
        self.opaque = any(f.kind in ("tls", "foreign") for f in (*self.complete, *self.remaining))
        self.check_bytes()
        self.check_frames()
        for frame in self.found.values():
            if frame.status != "partial" and self.intact(frame):
                self.check_values(frame)

    def intact(self, frame: Frame) -> bool:
        return bool(self.there[frame.offset : frame.offset + frame.size].all()) and (
            frame.offset + frame.size <= len(self.there)
        )

    def check_bytes(self) -> None:
        assert self.ledger["payload_bytes"] == sum(self.ledger[part] for part in PARTS) == int(self.there.sum())
        assert self.ledger["missing_bytes"] == sum(size for _, size in self.holes)
        missing = np.zeros(len(self.there), bool)
        for f in self.remaining:
            if f.kind == "gap":
                assert not missing[f.offset : f.offset + f.size].any()
                missing[f.offset : f.offset + f.size] = True
        if self.opaque:
            return  # what is not read ends as one row, holes or not
        assert runs_of(missing) == self.holes
        rows = np.zeros(len(self.there) + 1, int)
        for f in self.remaining:
            if f.kind != "gap":
                assert f.offset + f.size <= len(self.there)
                rows[f.offset] += 1
                rows[f.offset + f.size] -= 1
        times = np.cumsum(rows)[:-1]
        assert (times <= 1).all()
        assert times[self.there].all()

    def check_frames(self) -> None:
        for frame in self.found.values():
            assert frame.offset in self.by_offset, ("invented", frame)
            origin = self.by_offset[frame.offset]
            assert (frame.size, frame.kind) == (origin.size, origin.kind)
            assert frame.content in (origin.content, None)
        synced = {0} | {f.offset + f.size for f in self.found.values()}
        for frame in self.by_offset.values():
            if frame.offset in self.found:
                continue
            if self.intact(frame):
                assert self.unproven(frame), ("missing", frame)
            elif frame.status == "ok" and frame.offset in synced and frame.offset + frame.size <= len(self.there):
                begin = BEGINNING.get(frame.version or "", 7)
                # a protocol header has no size to step over
                begin = frame.size if frame.kind in ("protocol-header", "skipped") else begin
                assert not self.there[frame.offset : frame.offset + begin].all(), ("not partial", frame)

    def unproven(self, frame: Frame) -> bool:
        """Whether no frame since the last hole proves itself, or, before a stream is known to be AMQP, just one does
        up to the next hole."""
        last = max((at + size for at, size in self.holes if at <= frame.offset), default=0)
        after = min((at for at, _ in self.holes if at > frame.offset), default=len(self.there))
        stretch = [f for f in self.by_offset.values() if last <= f.offset and f.offset + f.size <= after]
        proven = [f.offset for f in stretch if f.kind not in WEAK and f.status == "ok"]
        if not self.named and len(proven) < 2:
            return True
        return last > 0 and all(at > frame.offset for at in proven)

    def check_values(self, frame: Frame) -> None:
        origin = self.by_offset[frame.offset]
        if frame == origin:
            return
        assert frame[:4] == origin[:4]
        assert frame.version == origin.version or not self.named
        assert frame[6:8] == origin[6:8]
        torn = self.is_torn(origin)
        if frame.status != origin.status:
            # a piece of a segment whose beginning is missing
            assert torn, (origin, frame)
            assert (origin.version, frame.status) == ("0-10", "unknown")
        elif frame.arguments != origin.arguments:
            assert frame.version == "0-10"
            expected = decode(*origin.arguments)
            del expected["own_command_id" if "own_command_id" in expected else "command_id"]
            assert decode(*frame.arguments) == expected
        if frame.properties != origin.properties:
            assert torn
            assert (
                frame.version != "1.0"
                or not frame.properties[0]
                or decode(*frame.properties).items() <= (decode(*origin.properties).items())
            )
        assert frame.content in ((origin.content, None) if torn else (origin.content,)), (origin, frame)
        assert frame.digest == (None if torn else origin.digest), (origin, frame)

    def is_torn(self, frame: Frame) -> bool:
        """Whether the content of `frame` lost a byte, or a boundary was lost between its first and last frame."""
        parts = [f for f in self.complete if f.content == frame.content] if frame.content is not None else []
        first = min((f.offset for f in parts), default=frame.offset)
        last = max((f.offset + f.size for f in parts), default=frame.offset)
        return any(at < last and at + size > first for at, size in self.holes)


def check_loss(flow: Flow, complete: Decoded, keep: np.ndarray) -> None:
    """The segments of `flow` that `keep` names give what they must."""
    segments = flow.segments[keep]
    results = decoded(flow, keep)
    assert len(results) == 1
    named = any(f.kind == "protocol-header" for f in results[0].frames)
    for direction in (CLIENT, SERVER):
        before, after = present(flow.segments, direction), present(segments, direction)
        if before is None or after is None or not after[1].any():
            continue
        shift = (after[0] - before[0] + 2**31) % 2**32 - 2**31  # where a stream begins that was joined in the middle

        def moved(frame: Frame, shift: int = shift) -> Frame:
            content = None if frame.content is None else frame.content - shift
            return frame._replace(offset=frame.offset - shift, content=content)

        mine = [moved(f) for f in complete.frames if f.direction == direction]
        remaining = [f for f in results[0].frames if f.direction == direction]
        Loss([f for f in mine if f.offset >= 0], remaining, after[1], results[0].ledgers[direction], named).check()
