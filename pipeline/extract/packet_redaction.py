"""Redaction: blanks all TCP payload that is not known to be harmless. Lengths and headers stay.

Visible are complete and valid frames, without their bodies and credentials. Bytes outside of frames, malformed or
partial frames and those with userinfo of a URI (except their frame header), and streams of other protocols are blanked.
An encrypted stream stays as it is. A header of the PROXY protocol becomes one without addresses, so that the stream
after it can be read.

Secrets in frames are SASL responses, tokens, and bodies inside of methods. The decoder's data says which fields are
secret (`codec.protocol.spec`, overlay.json, `credentials`), and its kernels blank them. For that, the few frames of the
login are reassembled from their packets.

Dissectors parse the payload of a 1.0 transfer. It becomes one data section of blanks with the same length (1.0 part 3
section 3.2.6).

Anonymisation changes the addresses in all headers of a packet: IP addresses keep their common prefixes, hardware
addresses become locally administered ones and keep the group bit. Options of IP and TCP that may have addresses become
padding, a header of the PROXY protocol one without addresses. Text in payloads (host names, client properties, queue
names) is not changed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from codec.amqp.redaction import BLANK, blank_secrets
from codec.capture.records import Bytes, Records
from codec.framing.proxy_header import without_addresses
from codec.names import CLASSIC_VERSIONS
from codec.net.headers import PROTOCOL_TCP
from codec.protocol import classic_tables as kinds
from codec.protocol.classic_tables import methods
from codec.protocol.disclosure import SHOW_ALL
from codec.protocol.v0_10_tables import entries
from codec.protocol.v1_0_tables import descriptors
from codec.protocol.versions import VERSIONS
from codec.pseudonyms import anonymise_ipv4, anonymise_ipv6
from pipeline.extract.frame_packets import NULL, PROXY, Frames, grouped, groups, packets_by_group
from pipeline.extract.header_stack import ABSENT, HARDWARE_BYTES, TCP_SUM_AT, Stack, folded, plain_options, word_sum
from pipeline.extract.survey import NONE, UNMAPPED, Connection, Survey, merged

SECRET_KINDS = (kinds.SECRET, kinds.SASL_RESPONSE)
HEADER_BYTES = {"0-8": 7, "0-9": 7, "0-9-1": 7, "0-10": 12, "1.0": 8}
BODIES, UNKNOWN = ("body", "oob-body", "trace"), ("skipped", "foreign", PROXY)
MISSING, ENCRYPTED = "gap", "tls"
# Sections by the bytes of payload that they take up: vbin32, vbin8, amqp-value null.
DATA_32, DATA_8, VALUE_NULL = bytes.fromhex("005375b0"), bytes.fromhex("005375a0"), bytes.fromhex("00537740")
PATCH_BYTES = 8
Patch = tuple[NDArray[np.int64], NDArray[np.uint8]]  # where bytes are overwritten, and by what


@cache
def methods_with_secrets() -> Mapping[str, tuple[str, ...]]:
    """Names of methods, controls and performatives with a secret field, or content in a field, by version."""
    classic = {version: _with_fields(version, *SECRET_KINDS, kinds.CONTENT) for version in CLASSIC_VERSIONS}
    others = {
        version: tuple(each.name for each in known if any(field.disclosure != SHOW_ALL for field in each.fields or ()))
        for version, known in (("0-10", entries()), ("1.0", descriptors()))
    }
    return classic | others


@cache
def _with_fields(version: str, *of_kinds: int) -> tuple[str, ...]:
    """Names of the methods of a classic version with a field of one of these kinds; of other versions none."""
    known = methods(version) if version in CLASSIC_VERSIONS else ()
    return tuple(each.name for each in known if any(field.kind in of_kinds for field in each.fields))


def frames_with_secrets(frames: Frames) -> NDArray[np.int64]:
    """Indices of the frames that may carry secrets."""
    found = np.zeros(len(frames), np.bool_)
    for version, names in methods_with_secrets().items():
        found |= frames.are("version", version) & frames.are("name", *names)
    indices: NDArray[np.int64] = np.flatnonzero(found)
    return indices


def without_secrets(frames: Frames, survey: Survey, indices: NDArray[np.int64]) -> dict[int, NDArray[np.uint8] | None]:
    """The bytes of the frames with these `indices`, with secrets blanked; None if these cannot be located.

    The survey must have the payloads of their packets.
    """
    blanked: dict[int, NDArray[np.uint8] | None] = dict.fromkeys(indices.tolist())
    streams = packets_by_group(survey.packets)
    readable = frames.are("status", "ok") & ~frames.userinfo
    for version in CLASSIC_VERSIONS:
        readable &= ~(frames.are("version", version) & frames.are("name", *_with_fields(version, kinds.CONTENT)))
    for group, members in grouped(frames.group[indices]):
        these = indices[members]
        data, offsets, complete = _bytes_of(frames, survey, streams[group], these)
        for version in methods_with_secrets():
            of = complete & readable[these] & frames.are("version", version)[these]
            rows = np.flatnonzero(of)
            if not len(rows):
                continue
            parts = [data[offsets[at] : offsets[at + 1]] for at in rows.tolist()]
            ends = np.cumsum([0, *map(len, parts)])
            captured = np.concatenate([np.empty(0, np.uint8), *parts])
            located = blank_secrets(captured, ends, VERSIONS.index(version))
            for at in np.flatnonzero(located).tolist():
                blanked[int(these[rows[at]])] = captured[ends[at] : ends[at + 1]]
    return blanked


def _bytes_of(
    frames: Frames, survey: Survey, packets: NDArray[np.int64], indices: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """The bytes of frames of one direction, in the order of the stream, from its packets: (data, offsets, whether no
    byte of a frame is missing)."""
    starts, ends = frames.start[indices], frames.end[indices]
    offsets = np.concatenate([[0], np.cumsum(ends - starts)])
    data, seen = np.zeros(offsets[-1], np.uint8), np.zeros(offsets[-1], np.bool_)
    for packet in survey.packets[packets][::-1]:  # of conflicting copies the first one wins: it is written last
        payload = survey.payloads.get((int(packet["file"]), int(packet["packet_no"])))
        if payload is None or packet["at"] == UNMAPPED:
            continue
        begin, end = packet["at"][None], packet["at"][None] + len(payload)
        _, first, last, interval = _overlaps(starts, ends, begin, end)
        which, source = _ranges(first, last)
        to = source - starts[interval[which]] + offsets[interval[which]]
        data[to] = np.frombuffer(payload, np.uint8)[source - begin]
        seen[to] = True
    return data, offsets, np.diff(np.concatenate([[0], np.cumsum(seen)])[offsets]) == ends - starts


@dataclass(frozen=True)
class Visible:
    """Of one direction of a connection: the visible ranges `starts`, `ends` (int64, disjoint, ascending stream
    offsets), and bytes to overwrite: `patch_at` (int64, ascending), `patch` (uint8)."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    patch_at: NDArray[np.int64]
    patch: NDArray[np.uint8]


def visible_ranges(frames: Frames, blanked: Mapping[int, NDArray[np.uint8] | None]) -> dict[int, Visible]:
    """The visible ranges by group (see Frames). `blanked`: frames with secrets, by index: their bytes with the secrets
    blanked; None if these cannot be located, then only the frame header is visible."""
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
    visible = np.where(known & ~body, size, header)
    visible = np.where(transfer, size - frames.payload, visible)
    visible[known & described & (frames.payload == NULL) & ~frames.are("kind", ENCRYPTED)] = HEADER_BYTES["1.0"]
    visible[frames.are("kind", *UNKNOWN, MISSING)] = 0
    for index, data in blanked.items():
        visible[index] = header[index] if data is None else 0
    visible[frames.userinfo] = header[frames.userinfo]
    closing = np.flatnonzero(body & frames.are("version", *CLASSIC_VERSIONS))  # the byte that ends the frame
    group = np.concatenate([frames.group, frames.group[closing]])
    start = np.concatenate([frames.start, frames.end[closing] - 1])
    end = np.concatenate([frames.start + visible, frames.end[closing]])
    patches = defaultdict[int, list[Patch]](list)
    for index, data in blanked.items():
        if data is not None:
            patches[int(frames.group[index])].append((frames.start[index] + np.arange(len(data)), data))
    for each, patch in _proxy_headers(frames):
        patches[each].append(patch)
    for each, rows in frames.by_group(transfer):
        patches[each].append(_data_sections(frames.end[rows], frames.payload[rows]))
    return {each: Visible(*merged(start[rows], end[rows]), *_in_order(patches[each])) for each, rows in grouped(group)}


def _proxy_headers(frames: Frames) -> Iterator[tuple[int, Patch]]:
    """(group, bytes to write) of each header of the PROXY protocol."""
    for index in np.flatnonzero(frames.are("kind", PROXY)).tolist():
        data = without_addresses(int(frames.end[index] - frames.start[index]))
        yield int(frames.group[index]), (frames.start[index] + np.arange(len(data)), data)


def proxy_headers(frames: Frames) -> dict[int, Visible]:
    """By group what `overwrite` writes over headers of the PROXY protocol."""
    none = np.empty(0, np.int64)
    return {each: Visible(none, none, *patch) for each, patch in _proxy_headers(frames)}


def overwrite(data: Bytes, packets: NDArray[np.void], stacks: Sequence[Stack], patches: Mapping[int, Visible]) -> None:
    """Write patches over the payloads of packets, which otherwise stay as they are. A fragment that may have some is
    blanked after its header."""
    if not patches:
        return
    for row, (group, packet, stack) in enumerate(zip(groups(packets).tolist(), packets, stacks, strict=True)):
        if group not in patches:
            continue
        if packet["datagram"] != NONE:
            data[stack.payload : stack.end] = BLANK
        elif packet["at"] != UNMAPPED:
            size = min(stack.end - stack.payload, int(packet["wire_len"]))
            these = packets[row : row + 1]
            to = np.array([stack.payload], np.int64)
            offsets, patch = _within(patches[group], these["at"], np.array([size], np.int64), to)
            data[offsets] = patch


def _in_order(patches: Sequence[Patch]) -> Patch:
    at = np.concatenate([np.empty(0, np.int64), *(at for at, _ in patches)])
    data = np.concatenate([np.empty(0, np.uint8), *(data for _, data in patches)])
    order = np.argsort(at, kind="stable")
    return at[order], data[order]


def _data_sections(end: NDArray[np.int64], size: NDArray[np.int64]) -> Patch:
    """Data sections that fill payloads of `size` bytes before `end`: (positions, bytes) of their headers."""
    data = np.zeros((len(size), PATCH_BYTES), np.uint8)
    data[:, :4] = np.frombuffer(DATA_8, np.uint8)
    data[:, 4] = np.clip(size - 5, 0, 255)
    large, null = size >= PATCH_BYTES, size == len(VALUE_NULL)
    data[large, :4] = np.frombuffer(DATA_32, np.uint8)
    data[large, 4:] = (size[large] - PATCH_BYTES).astype(">u4").view(np.uint8).reshape(-1, 4)
    data[null, :4] = np.frombuffer(VALUE_NULL, np.uint8)
    length = np.select([size >= PATCH_BYTES, size > 4, size == 4], [PATCH_BYTES, 5, 4], 0)
    within = np.arange(PATCH_BYTES) < length[:, None]
    at = (end - size)[:, None] + np.arange(PATCH_BYTES)
    return at[within], data[within]


def redact(
    data: Bytes,
    records: Records,
    packets: NDArray[np.void],
    stacks: Sequence[Stack],
    visible: Mapping[int, Visible],
    connections: Sequence[Connection],
) -> None:
    """Blank the payloads of packets in place. `records` (RECORD) point into `bytes`; `packets` (PACKET) are their rows
    of the survey, `stacks` their headers.

    Fragments are blanked completely, and so are retransmissions on a connection where they conflict.
    """
    begin = np.array([stack.payload for stack in stacks], np.int64)
    start = records["offset"]
    # up to the end of the captured bytes: padding after the payload may contain old memory
    end = start + records["cap_len"]
    intact = [(start, begin)]
    conflicting = np.array([each.conflicting for each in connections], np.bool_)[packets["connection"]]
    mapped = (packets["at"] != UNMAPPED) & (packets["datagram"] == NONE) & ~(conflicting & (packets["copy"] != 0))
    length = np.minimum(end - begin, packets["wire_len"])
    candidates = np.flatnonzero(mapped)
    patched = []
    for each, these in grouped(groups(packets)[candidates]):
        if each in visible:
            rows = candidates[these]
            at, size, to, ranges = packets["at"][rows], length[rows], begin[rows], visible[each]
            which, first, last, _ = _overlaps(ranges.starts, ranges.ends, at, at + size)
            moved = to[which] - at[which]
            intact.append((first + moved, last + moved))
            patched.append(_within(ranges, at, size, to))
    opening, closing = (
        np.bincount(np.concatenate(edges), minlength=len(data) + 1) for edges in zip(*intact, strict=True)
    )
    data[np.cumsum(opening - closing)[:-1] <= 0] = BLANK
    for offsets, patch in patched:
        data[offsets] = patch


def _overlaps(
    starts: NDArray[np.int64], ends: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the stretches `begin:end` overlap the disjoint intervals `starts:ends`: (stretch, first, last, interval) of
    each."""
    low, high = np.searchsorted(ends, begin, "right"), np.searchsorted(starts, end, "left")
    which, interval = _ranges(low, np.maximum(high, low))
    return which, np.maximum(starts[interval], begin[which]), np.minimum(ends[interval], end[which]), interval


def _within(ranges: Visible, at: NDArray[np.int64], size: NDArray[np.int64], to: NDArray[np.int64]) -> Patch:
    """The bytes to write for packets with stream offsets `at` and payloads at `to` in the buffer."""
    low, high = np.searchsorted(ranges.patch_at, at), np.searchsorted(ranges.patch_at, at + size)
    which, index = _ranges(low, high)
    return ranges.patch_at[index] - at[which] + to[which], ranges.patch[index]


def _ranges(low: NDArray[np.int64], high: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(i, number) for all numbers in the ranges low[i]:high[i], range after range."""
    counts = high - low
    which = np.repeat(np.arange(len(low)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + low[which]


def set_fragment_checksums(
    data: Bytes, packets: NDArray[np.void], stacks: Sequence[Stack], lengths: Mapping[int, int]
) -> None:
    """Compute the TCP checksum of a blanked fragmented datagram, in its first fragment.

    `lengths`: TCP payload bytes by datagram.
    """
    for row, stack in enumerate(stacks):
        length = lengths.get(int(packets["datagram"][row]))
        if not stack.fragment or stack.tcp == ABSENT or length is None:
            continue
        field = stack.sums.pop()
        header = stack.payload - stack.tcp
        data[field.at : field.at + 2] = 0
        total = word_sum(data[field.pseudo : field.pseudo_end]) + PROTOCOL_TCP + header + length
        total += word_sum(data[stack.tcp : stack.payload]) + word_sum(np.full(length, BLANK, np.uint8))
        assert field.at == stack.tcp + TCP_SUM_AT
        data[field.at : field.at + 2] = np.frombuffer((0xFFFF - folded(total)).to_bytes(2, "big"), np.uint8)


def remove_notes(data: Bytes, stacks: Sequence[Stack]) -> None:
    """Write zeros over what the capturing host noted beside packets, such as processes and users."""
    for stack in stacks:
        for begin, end in stack.noted:
            data[begin:end] = 0


IPV4_AT, IPV6_AT = 12, 8  # of the source address in the header; the target follows
GROUP, LOCAL = 0x01, 0x02  # bits of the first byte of a hardware address (IEEE 802)
_HARDWARE = b"wirehare mac"


def anonymise(data: Bytes, stacks: Sequence[Stack], key: bytes) -> None:
    """Replace the addresses of packets in place. `key`: 32 bytes (codec.pseudonyms).

    Fragments of a tunnel are blanked after the outer header: their inner headers cannot be parsed.
    """
    for stack in stacks:
        for each in stack.options:
            plain_options(data, *each)
        if stack.fragment and not stack.fragment_of_tcp:
            data[stack.payload : stack.end] = BLANK
    fours = _address_offsets(stacks, 4, IPV4_AT, 4)
    addresses = np.ascontiguousarray(data[fours]).view(">u4").reshape(-1).astype(np.uint32)
    if len(addresses):
        data[fours] = anonymise_ipv4(addresses, key).astype(">u4").view(np.uint8).reshape(-1, 4)
    sixes = _address_offsets(stacks, 6, IPV6_AT, 16)
    if len(sixes):
        data[sixes] = anonymise_ipv6(np.ascontiguousarray(data[sixes]), key)
    offsets = np.array([at for stack in stacks for at in stack.hardware], np.int64).reshape(-1, 1)
    if len(offsets):
        offsets = offsets + np.arange(HARDWARE_BYTES)
        known, which = np.unique(data[offsets], axis=0, return_inverse=True)
        fresh = np.array([list(_hardware(each.tobytes(), key)) for each in known], np.uint8)
        data[offsets] = fresh[which.reshape(-1)]


def _address_offsets(stacks: Sequence[Stack], version: int, offset: int, size: int) -> NDArray[np.int64]:
    """int64 (n, size): where the bytes of each address of IP `version` are; source and target of each header."""
    starts = [
        at + offset + side * size for stack in stacks for at, each in stack.ips if each == version for side in (0, 1)
    ]
    return np.array(starts, np.int64).reshape(-1, 1) + np.arange(size)


def _hardware(address: bytes, key: bytes) -> bytes:
    if address in (bytes(HARDWARE_BYTES), b"\xff" * HARDWARE_BYTES):
        return address  # unspecified, broadcast
    digest = hashlib.blake2b(address, key=key, person=_HARDWARE, digest_size=HARDWARE_BYTES).digest()
    return bytes([(digest[0] & ~GROUP) | LOCAL | (address[0] & GROUP)]) + digest[1:]
