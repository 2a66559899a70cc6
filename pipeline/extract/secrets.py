"""Blanks secrets in frames: SASL responses, tokens, and bodies inside of methods.

The decoder's data says which fields are secret (`codec.amqp.spec`, overlay.json, `credentials`), and its kernels blank
them. For that, the few frames of the login are reassembled from their packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from codec.amqp.classic import kinds
from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from codec.amqp.disclosure import SHOW_ALL
from codec.amqp.redaction import blank_secrets
from codec.amqp.v0_10.tables import entries
from codec.amqp.v1_0.tables import descriptors
from codec.amqp.versions import VERSIONS
from pipeline.extract.frames import Frames, Streams
from pipeline.extract.survey import UNMAPPED, Survey

SECRET_KINDS = (kinds.SECRET, kinds.SASL_RESPONSE)


@lru_cache
def methods_with_secrets() -> Mapping[str, tuple[str, ...]]:
    """Names of methods, controls and performatives with a secret field, or content in a field, by version."""
    found: dict[str, tuple[str, ...]] = {
        version: tuple(
            each.name
            for each in methods(version)
            if any(field.kind in (*SECRET_KINDS, kinds.CONTENT) for field in each.fields)
        )
        for version in CLASSIC_VERSIONS
    }
    found["0-10"] = tuple(each.name for each in entries() if any(field.disclosure != SHOW_ALL for field in each.fields))
    found["1.0"] = tuple(
        each.name for each in descriptors() if any(field.disclosure != SHOW_ALL for field in each.fields or ())
    )
    return found


@lru_cache
def _with_content(version: str) -> frozenset[str]:
    """Names of the methods with content in a field (0-9, class message)."""
    if version not in CLASSIC_VERSIONS:
        return frozenset()
    return frozenset(
        each.name for each in methods(version) if any(field.kind == kinds.CONTENT for field in each.fields)
    )


def frames_with_secrets(frames: Frames) -> NDArray[np.int64]:
    """Indices of the frames that may carry secrets."""
    found = np.zeros(len(frames), np.bool_)
    for version, names in methods_with_secrets().items():
        found |= frames.are("version", version) & frames.are("name", *names)
    indices: NDArray[np.int64] = np.flatnonzero(found)
    return indices


def without_secrets(frames: Frames, survey: Survey, indices: NDArray[np.int64]) -> dict[int, NDArray[np.uint8] | None]:
    """The octets of the frames with these `indices`, with secrets blanked; None if these cannot be located.

    The survey must have the payloads of their packets.
    """
    streams = Streams(survey.packets)
    return {index: _blanked(frames, survey, streams, index) for index in indices.tolist()}


def _blanked(frames: Frames, survey: Survey, streams: Streams, index: int) -> NDArray[np.uint8] | None:
    version, name = frames.version[index].as_py(), frames.name[index].as_py()
    octets = _octets_of(frames, survey, streams, index)
    if octets is None or frames.status[index].as_py() != "ok" or name in _with_content(version):
        return None
    vouched = blank_secrets(octets, np.array([0, len(octets)], np.int64), VERSIONS.index(version))
    return octets if vouched.all() else None


def _octets_of(frames: Frames, survey: Survey, streams: Streams, index: int) -> NDArray[np.uint8] | None:
    """The octets of a frame, from its packets; None if some are missing."""
    these = streams[int(frames.group[index])]
    at, wire_len = survey.packets["at"][these], survey.packets["wire_len"][these]
    start, end = int(frames.start[index]), int(frames.end[index])
    octets, seen = np.zeros(end - start, np.uint8), np.zeros(end - start, np.bool_)
    near = (at != UNMAPPED) & (at < end) & (at + wire_len > start)
    for packet in survey.packets[these[near]][::-1]:  # of conflicting copies the first one wins: it is written last
        payload = survey.payloads.get((int(packet["file"]), int(packet["packet_no"])), b"")
        skipped, to = max(0, start - int(packet["at"])), max(0, int(packet["at"]) - start)
        part = np.frombuffer(payload, np.uint8)[skipped : skipped + end - start - to]
        octets[to : to + len(part)] = part
        seen[to : to + len(part)] = True
    return octets if seen.all() else None
