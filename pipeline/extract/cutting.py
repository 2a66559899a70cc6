"""A whole cut: from a choice to packets in a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.extract.choice import Choice, Pair, Rows, connections, excluding, resolve
from pipeline.extract.cut_options import CapturesError, CutError, CutOptions, Result
from pipeline.extract.decryption import decrypt, rewrite_in_clear
from pipeline.extract.frame_packets import (
    ENCAPSULATED,
    NULL,
    Frames,
    frames_of,
    select_packets,
)
from pipeline.extract.originals import COLUMNS as OF_CAPTURES
from pipeline.extract.originals import Original, originals
from pipeline.extract.packet_redaction import frames_with_secrets, proxy_headers, visible_ranges, without_secrets
from pipeline.extract.packet_writer import PacketSelection, Writer, write
from pipeline.extract.survey import NONE, UNMAPPED, Connection, Samples, Survey, pair_ids, survey
from udfs.source.capture_bytes import public_uri

ENCRYPTED = ("tls", "websocket+tls")  # of transports
ENDS = ("client_ip", "client_port", "server_ip", "server_port")
CONNECTION_COLUMNS = ("connection_id", *ENDS, "opened_ts", "closed_ts", "conflicting_overlap_bytes", "transport")


def cut_rows(
    rows: Rows, choice: Choice, sink: BinaryIO, options: CutOptions, captures: Sequence[Original] | None = None
) -> Result:
    """Write the packets of a choice to an open file. `captures`: those of the tables, if they are located already.
    Raises CutError."""
    wanted = choice.all_connections
    if not wanted and not choice.packets:
        raise CutError("nothing matched")
    if captures is None:
        captures = originals(rows("captures", OF_CAPTURES), options.captures)
    writer = Writer(sink, f"Wirehare {_version()}")
    if not options.decrypted:
        return _write_selections([_select(rows, choice, options, captures, writer)], writer)
    candidates = with_neighbours(rows, wanted)
    inside = {each.connection_id for each in candidates if each.transport in ENCAPSULATED} & wanted
    opened = decrypt(_readable(captures, candidates, options.captures)[0], candidates, inside, options.key_logs)
    decrypted = {candidates[index].connection_id for index in opened.readable}
    problems = [f"connection {each}: not decrypted ({opened.reason(each)})" for each in sorted(inside - decrypted)]
    if wanted == inside and not decrypted:
        raise CutError("; ".join(problems))
    with rewrite_in_clear(opened) as clear:
        selections = []
        if decrypted:
            named = {} if options.key is not None else {each.name: each.display_name for each in captures}
            packets, result = _select(clear.rows, clear.choice(choice, named), options, [clear.original], writer)
            result.captures = sorted({each.display_name for each in captures if each.name in opened.files.numbers})
            selections.append((packets, result))
        if wanted - decrypted:
            selections.append(_select(rows, excluding(choice, decrypted), options, captures, writer))
        result = _write_selections(selections, writer)
    result.problems += problems
    return result


def _write_selections(selections: Sequence[tuple[PacketSelection, Result]], writer: Writer) -> Result:
    """Write the selected packets in the order of time; the sum of the results."""
    whole = Result(write([packets for packets, _ in selections], writer))
    for _, result in selections:
        whole.connections += result.connections
        whole.captures = list(dict.fromkeys([*whole.captures, *result.captures]))
        whole.blanked += result.blanked
        whole.problems += [problem for problem in result.problems if problem not in whole.problems]
    return whole


def _select(
    rows: Rows, choice: Choice, options: CutOptions, captures: Sequence[Original], writer: Writer
) -> tuple[PacketSelection, Result]:
    """Select the packets of a choice; the result lacks only their number. Secrets, if requested, are written to
    `writer` at once."""
    if options.whole:
        choice.connections = choice.all_connections
    pairs = set() if options.whole else resolve(choice, rows)
    candidates = with_neighbours(rows, choice.all_connections)
    found, problems = _readable(captures, candidates, options.captures)
    frames = frames_of(rows, candidates, found)
    requested = frames.mask_of(pairs, candidates)
    _require_frames(pairs, frames, requested, candidates)
    secret = frames_with_secrets(frames) if options.redact else np.empty(0, np.int64)
    seen = survey(found, candidates, _samples(frames, secret))
    problems += seen.errors.values()
    incomplete = [each for each in captures if each.file.problem] + [found[index] for index in seen.errors]
    _require_same_captures(frames, seen, found, incomplete)
    # inside of TLS or WebSocket a single packet means nothing
    inside = {each.connection_id for each in candidates if each.transport in ENCAPSULATED}
    whole = choice.connections | (inside & choice.all_connections)
    selected = select_packets(seen, frames, whole, requested, choice.packets, found, options.context)
    if not selected.any():
        raise CapturesError("; ".join(problems) or "the captures hold none of these packets")
    visible = visible_ranges(frames, without_secrets(frames, seen, secret)) if options.redact else None
    index = {original.name: at for at, original in enumerate(found)}
    comments = {
        (index[name], number): [_comment(text, number, found[index[name]], options) for text in texts]
        for (name, number), texts in choice.comments.items()
        if name in index
    }
    if options.secrets:
        ids = {candidates[index].connection_id for index in np.unique(seen.packets["connection"][selected]).tolist()}
        tls = {each.connection_id for each in candidates if each.transport in ENCRYPTED} & ids
        opened = decrypt(found, candidates, tls, options.key_logs)
        if opened.readable:
            writer.secrets(opened.key_log())
        known = {candidates[index].connection_id for index in opened.readable}
        problems += [f"connection {each}: no secrets ({opened.reason(each)})" for each in sorted(tls - known)]
    written = seen.packets[selected]
    result = Result(
        0,
        len(np.unique(written["connection"])),
        [found[index].display_name for index in np.unique(written["file"])],
        int(_wholly_blanked(written, seen).sum()) if options.redact else 0,
        problems,
    )
    proxies = proxy_headers(frames) if options.key is not None and not options.redact else {}
    return PacketSelection(seen, selected, found, comments, visible, options.key, proxies), result


def _require_frames(
    pairs: Collection[Pair], frames: Frames, requested: NDArray[np.bool_], candidates: Sequence[Connection]
) -> None:
    """Raise CutError if the tables lack a chosen frame."""
    if int(requested.sum()) == len(pairs):
        return
    found = zip((frames.group[requested] // 2).tolist(), frames.number[requested].tolist(), strict=True)
    missing = sorted(set(pairs) - {(candidates[connection].connection_id, number) for connection, number in found})
    raise CutError(f"there is no frame {missing[0][1]} of connection {missing[0][0]} in the tables")


def with_neighbours(rows: Rows, wanted: Collection[int]) -> list[Connection]:
    """The connections with these ids, and all others on the same addresses and ports, which bound them in time.

    Raises CutError for unknown ids.
    """
    found = rows("connections", CONNECTION_COLUMNS, connections(wanted)).to_pylist()
    missing = sorted(set(wanted) - {row["connection_id"] for row in found})
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CutError(f"there is no connection {missing[0]}{more} in the tables")
    both = [tuple(row[name] for name in ENDS) for row in found]
    both += [(*ends[2:], *ends[:2]) for ends in both]  # the other one may have client and server swapped
    types = (pa.string(), pa.int32(), pa.string(), pa.int32())
    keys = pa.table({name: pa.array([ends[at] for ends in both], types[at]) for at, name in enumerate(ENDS)})
    all_of_them = {row["connection_id"]: row for row in rows("connections", CONNECTION_COLUMNS, keys).to_pylist()}
    return [Connection.of(row) for row in all_of_them.values()]


def _readable(
    captures: Sequence[Original], candidates: Sequence[Connection], directory: str | None
) -> tuple[list[Original], list[str]]:
    """The captures that can be opened, and one line for each other capture that may have packets of `candidates`."""
    problems = []
    for each in captures:
        if each.file.problem and any(each.overlaps(one.opened_us, one.closed_us) for one in candidates):
            where = f"not in {public_uri(directory)}" if directory else "use --captures when it was moved"
            problems.append(f"{each.name}: {each.file.problem} ({where})")
    return [each for each in captures if not each.file.problem], problems


def _samples(frames: Frames, indices: NDArray[np.int64]) -> Samples:
    """The packets that carry these frames."""
    group = frames.group[indices]
    columns = (frames.file, group // 2, group % 2, frames.first_packet, frames.last_packet)
    return Samples(*(each if len(each) == len(group) else each[indices] for each in columns))


def _require_same_captures(
    frames: Frames, seen: Survey, found: Sequence[Original], incomplete: Sequence[Original]
) -> None:
    """Raise CapturesError if a capture is not the one that the tables were made of: the packets of a frame must carry
    bytes of it.

    The packet that completed a frame may only have filled a gap before it, and the packet that began it may be in the
    previous file. So one of the two is enough, and more than half of the frames must have it.

    A connection without its first packet has no packets here. Connections whose first packet may be in one of the
    `incomplete` captures (missing or damaged) are not checked.
    """
    opened = [one.opened_us for one in seen.connections]
    lost = np.array([any(each.overlaps(ts, ts) for each in incomplete) for ts in opened], np.bool_)
    lost[seen.packets["connection"]] = False
    these = frames.are("status", "ok") & (frames.end > frames.start) & (frames.file != NULL) & ~lost[frames.group // 2]
    order = np.argsort(pair_ids(seen.packets["file"], seen.packets["packet_no"]))
    rows = seen.packets[order]
    packet_ids, file = pair_ids(rows["file"], rows["packet_no"]), frames.file[these]
    fits = np.zeros(len(file), np.bool_)
    for packet in (frames.first_packet[these], frames.last_packet[these]) if len(rows) else ():
        wanted = pair_ids(file, packet)
        row = np.minimum(np.searchsorted(packet_ids, wanted), len(packet_ids) - 1)
        begin = rows["at"][row]
        carries = (begin < frames.end[these]) & (frames.start[these] < begin + rows["wire_len"][row])
        fits |= (packet_ids[row] == wanted) & carries
    expected = np.bincount(file, minlength=len(found))
    for index in np.flatnonzero(2 * np.bincount(file[fits], minlength=len(found)) < expected).tolist():
        if index not in seen.errors:
            raise CapturesError(
                f"{found[index].name}: its packets do not hold what the tables say; expected the capture that they "
                "were made of"
            )


def _wholly_blanked(packets: NDArray[np.void], seen: Survey) -> NDArray[np.bool_]:
    """bool (n,): packets with the whole payload blanked, because the meaning of its bytes is unknown."""
    conflicting = np.array([each.conflicting for each in seen.connections], np.bool_)[packets["connection"]]
    unknown = (packets["datagram"] != NONE) | ((packets["at"] == UNMAPPED) & (packets["wire_len"] > 0))
    blanked: NDArray[np.bool_] = unknown | (conflicting & (packets["copy"] != 0) & (packets["wire_len"] > 0))
    return blanked


def _comment(text: str, number: int, original: Original, options: CutOptions) -> str:
    """The comment on a packet: the finding, and the original packet number."""
    if original.rewritten:
        return text
    return f"{text} (packet {number}{'' if options.key is not None else f' of {original.display_name}'})"


def _version() -> str:
    try:
        return version("wirehare")
    except PackageNotFoundError:
        return ""
