"""What of a stream may be shown when it is redacted: everything else is blanked.

Harmless is what the decoder knows, less what is nobody's business: frames that are whole and sound, without their
bodies and their secrets. Bytes in no frame, frames that broke the rules or lost bytes (but for their frame header), and
streams of other protocols are not known, so they are not shown. An encrypted stream stays as it is.

The payload of a 1.0 transfer has a form of its own, and dissectors read it. It becomes one data section of blanks, as
long as what was there (1.0 part 3 section 3.2.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codec.amqp.classic.tables import CLASSIC_VERSIONS
from pipeline.extract.picking import merged
from pipeline.extract.streams import NULL, Frames, grouped

HEADER_BYTES = {"0-8": 7, "0-9": 7, "0-9-1": 7, "0-10": 12, "1.0": 8}
BODIES, UNKNOWN, MISSING, ENCRYPTED = ("body", "oob-body", "trace"), ("skipped", "foreign"), "gap", "tls"
# Sections by the octets of payload that they take up: vbin32, vbin8, amqp-value null.
DATA_32, DATA_8, VALUE_NULL = bytes.fromhex("005375b0"), bytes.fromhex("005375a0"), bytes.fromhex("00537740")
PATCH_BYTES = 8


@dataclass(frozen=True)
class Harmless:
    """Of one direction of a connection: `starts`, `ends` int64, disjoint stream offsets in order, that may be shown;
    and octets to write where others were: `patch_at` int64 in order, `patch` uint8."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    patch_at: NDArray[np.int64]
    patch: NDArray[np.uint8]


def harmless(frames: Frames, blanked: Mapping[int, NDArray[np.uint8] | None]) -> dict[int, Harmless]:
    """What may be shown, by group (see Frames). `blanked`: frames with secrets, by index: their octets without them;
    None: nobody knows where they are, nothing behind the frame header is shown."""
    header, size = np.zeros(len(frames), np.int64), frames.end - frames.start
    for version, length in HEADER_BYTES.items():
        header[frames.are("version", version)] = length
    header = np.minimum(header, size)
    known = frames.are("kind", "protocol-header") | (
        frames.are("status", "ok") & ~frames.are("kind", *UNKNOWN, MISSING)
    )
    described = frames.are("version", "1.0")
    transfer = known & described & (frames.payload > 0)
    body = known & frames.are("kind", *BODIES)
    # how much of each frame is shown, from its first byte
    shown = np.where(known & ~body, size, header)
    shown = np.where(transfer, size - frames.payload, shown)
    shown[known & described & (frames.payload == NULL) & ~frames.are("kind", ENCRYPTED)] = HEADER_BYTES["1.0"]
    shown[frames.are("kind", *UNKNOWN, MISSING)] = 0
    for index, octets in blanked.items():
        shown[index] = header[index] if octets is None else 0
    closing = np.flatnonzero(body & frames.are("version", *CLASSIC_VERSIONS))  # the octet that ends the frame
    group = np.concatenate([frames.group, frames.group[closing]])
    start = np.concatenate([frames.start, frames.end[closing] - 1])
    end = np.concatenate([frames.start + shown, frames.end[closing]])
    patches = _Patches()
    for index, octets in blanked.items():
        if octets is not None:
            patches.add(int(frames.group[index]), frames.start[index] + np.arange(len(octets)), octets)
    for each, rows in frames.by_group(transfer):
        patches.add(each, *_sections(frames.end[rows], frames.payload[rows]))
    return {each: Harmless(*merged(start[rows], end[rows]), *patches.of(each)) for each, rows in grouped(group)}


class _Patches:
    """Octets to write, collected by group."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[NDArray[np.int64], NDArray[np.uint8]]]] = {}

    def add(self, group: int, at: NDArray[np.int64], octets: NDArray[np.uint8]) -> None:
        self._found.setdefault(group, []).append((at, octets))

    def of(self, group: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        parts = self._found.get(group, [])
        at = np.concatenate([np.empty(0, np.int64), *(at for at, _ in parts)])
        octets = np.concatenate([np.empty(0, np.uint8), *(octets for _, octets in parts)])
        order = np.argsort(at, kind="stable")
        return at[order], octets[order]


def _sections(end: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Where data sections begin that fill payloads of `size` octets before `end`, and what stands there."""
    octets = np.zeros((len(size), PATCH_BYTES), np.uint8)
    octets[:, :4] = np.frombuffer(DATA_8, np.uint8)
    octets[:, 4] = np.clip(size - 5, 0, 255)
    large, null = size >= PATCH_BYTES, size == len(VALUE_NULL)
    octets[large, :4] = np.frombuffer(DATA_32, np.uint8)
    octets[large, 4:] = (size[large] - PATCH_BYTES).astype(">u4").view(np.uint8).reshape(-1, 4)
    octets[null, :4] = np.frombuffer(VALUE_NULL, np.uint8)
    length = np.select([size >= PATCH_BYTES, size > 4, size == 4], [PATCH_BYTES, 5, 4], 0)
    within = np.arange(PATCH_BYTES) < length[:, None]
    at = (end - size)[:, None] + np.arange(PATCH_BYTES)
    return at[within], octets[within]
