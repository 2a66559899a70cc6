"""A cut from beginning to end: from a choice to packets in a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.extract import CapturesError, CutError, Cutting, Result
from pipeline.extract.harmless import harmless
from pipeline.extract.originals import COLUMNS as OF_CAPTURES
from pipeline.extract.originals import Original, microseconds, originals
from pipeline.extract.pcapng import Sink, Writer
from pipeline.extract.picking import picked
from pipeline.extract.plaintext import rewritten, unwrapped
from pipeline.extract.rows import Rows
from pipeline.extract.secrets import bearing, without_secrets
from pipeline.extract.selection import Choice, Pair, connections, resolve, without
from pipeline.extract.streams import INSIDE, NULL, Frames, frames_of, numbered
from pipeline.extract.survey import NONE, UNMAPPED, Connection, Survey, flow_of, survey
from pipeline.extract.writing import Disguise, Taken, write
from udfs.source.files import public_uri

ENCRYPTED = ("tls", "websocket+tls")  # of transports
ENDS = ("client_ip", "client_port", "server_ip", "server_port")
OF_CONNECTIONS = ("connection_id", *ENDS, "opened_ts", "closed_ts", "conflicting_overlap_bytes", "transport")


def cut_choice(
    rows: Rows, chosen: Choice, sink: Sink, how: Cutting, captures: Sequence[Original] | None = None
) -> Result:
    """See `pipeline.extract.cut_rows`."""
    wanted = chosen.of_connections
    if not wanted and not chosen.packets:
        raise CutError("nothing matched")
    if captures is None:
        captures = originals(rows("captures", OF_CAPTURES), how.captures)
    writer = Writer(sink, f"Wirehare {_version()}")
    if not how.decrypted:
        return _written([_picked(rows, chosen, how, captures, writer)], writer)
    among = neighbours(rows, wanted)
    inside = {each.connection_id for each in among if each.transport in INSIDE} & wanted
    opened = unwrapped(_readable(captures, among, how.captures)[0], among, inside, how.key_logs)
    gone = {among[place].connection_id for place in opened.readable}
    problems = [f"connection {each}: not decrypted ({opened.reason(each)})" for each in sorted(inside - gone)]
    if wanted == inside and not gone:
        raise CutError("; ".join(problems))
    with rewritten(opened) as clear:
        picks = []
        if gone:
            named = {} if how.key is not None else {each.name: each.shown for each in captures}
            picks.append(_picked(clear.rows, clear.chosen(chosen, named), how, [clear.original], writer))
            picks[0].result.captures = sorted({each.shown for each in captures if each.name in opened.files.numbers})
        if wanted - gone:
            picks.append(_picked(rows, without(chosen, gone), how, captures, writer))
        result = _written(picks, writer)
    result.problems += problems
    return result


@dataclass
class _Pick:
    """What is to be written, and what is known of it before."""

    packets: Taken
    result: Result


def _written(picks: Sequence[_Pick], writer: Writer) -> Result:
    """Write what was picked, in the order of time."""
    result = Result(write([each.packets for each in picks], writer))
    for each in picks:
        result.connections += each.result.connections
        result.captures = list(dict.fromkeys([*result.captures, *each.result.captures]))
        result.blanked += each.result.blanked
        result.problems += [problem for problem in each.result.problems if problem not in result.problems]
    return result


def _picked(rows: Rows, chosen: Choice, how: Cutting, captures: Sequence[Original], writer: Writer) -> _Pick:
    """The packets of a choice; secrets that come along are written already."""
    if how.whole:
        chosen.widen()
    pairs = set() if how.whole else resolve(chosen, rows)
    among = neighbours(rows, chosen.of_connections)
    found, problems = _readable(captures, among, how.captures)
    frames = frames_of(rows, among, found)
    wished = frames.chosen(pairs, among)
    _all_there(pairs, frames, wished, among)
    secret = bearing(frames) if how.redact else np.empty(0, np.int64)
    seen = survey(found, among, _samples(frames, secret))
    problems += seen.errors.values()
    torn = [each for each in captures if each.file.problem] + [found[index] for index in seen.errors]
    _check(frames, seen, found, torn)
    inside = {each.connection_id for each in among if each.transport in INSIDE}  # one packet alone tells nothing there
    whole = chosen.connections | (inside & chosen.of_connections)
    taken = picked(seen, frames, whole, wished, chosen.packets, found, how.context)
    if not taken.any():
        raise CapturesError("; ".join(problems) or "the captures hold none of these packets")
    shown = harmless(frames, without_secrets(frames, seen, secret)) if how.redact else None
    index = {original.name: place for place, original in enumerate(found)}
    comments = {
        (index[name], number): [_remark(text, number, found[index[name]], how) for text in texts]
        for (name, number), texts in chosen.comments.items()
        if name in index
    }
    if how.secrets:
        ids = {among[place].connection_id for place in np.unique(seen.packets["connection"][taken]).tolist()}
        tls = {each.connection_id for each in among if each.transport in ENCRYPTED} & ids
        opened = unwrapped(found, among, tls, how.key_logs)
        if opened.readable:
            writer.secrets(opened.key_log())
        known = {among[place].connection_id for place in opened.readable}
        problems += [f"connection {each}: no secrets ({opened.reason(each)})" for each in sorted(tls - known)]
    written = seen.packets[taken]
    result = Result(
        0,
        len(np.unique(written["connection"])),
        [found[place].shown for place in np.unique(written["file"])],
        int(_unmapped(written, seen).sum()) if how.redact else 0,
        problems,
    )
    return _Pick(Taken(seen, taken, found, Disguise(shown, how.key), comments), result)


def _all_there(pairs: Collection[Pair], frames: Frames, wished: NDArray[np.bool_], among: Sequence[Connection]) -> None:
    """Raises CutError when a frame was chosen that the tables do not have."""
    if int(wished.sum()) == len(pairs):
        return
    found = zip((frames.group[wished] // 2).tolist(), frames.number[wished].tolist(), strict=True)
    missing = sorted(set(pairs) - {(among[connection].connection_id, number) for connection, number in found})
    raise CutError(f"there is no frame {missing[0][1]} of connection {missing[0][0]} in the tables")


def neighbours(rows: Rows, wanted: Collection[int]) -> list[Connection]:
    """The connections with these ids, and all others on the same addresses and ports: where one ends, another begins.

    Raises CutError for ids that the tables do not have.
    """
    found = rows("connections", OF_CONNECTIONS, connections(wanted)).to_pylist()
    missing = sorted(set(wanted) - {row["connection_id"] for row in found})
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CutError(f"there is no connection {missing[0]}{more} in the tables")
    both = [tuple(row[name] for name in ENDS) for row in found]
    both += [(*ends[2:], *ends[:2]) for ends in both]  # who is the client may have been judged otherwise
    types = (pa.string(), pa.int32(), pa.string(), pa.int32())
    keys = pa.table({name: pa.array([ends[at] for ends in both], types[at]) for at, name in enumerate(ENDS)})
    all_of_them = {row["connection_id"]: row for row in rows("connections", OF_CONNECTIONS, keys).to_pylist()}
    return [_connection(row) for row in all_of_them.values()]


def _connection(row: Mapping[str, object]) -> Connection:
    flow, client = flow_of(row)
    return Connection(
        int(str(row["connection_id"])),
        flow,
        client,
        microseconds(row["opened_ts"]),  # type: ignore[arg-type]
        microseconds(row["closed_ts"]),  # type: ignore[arg-type]
        bool(row["conflicting_overlap_bytes"]),
        row["transport"],  # type: ignore[arg-type]
    )


def _readable(
    captures: Sequence[Original], among: Sequence[Connection], directory: str | None
) -> tuple[list[Original], list[str]]:
    """The captures that can be opened, and a line for each other one that may hold packets of `among`."""
    problems = []
    for each in captures:
        if each.file.problem and any(each.overlaps(one.opened_us, one.closed_us) for one in among):
            where = f"not in {public_uri(directory)}" if directory else "use --captures when it was moved"
            problems.append(f"{each.name}: {each.file.problem} ({where})")
    return [each for each in captures if not each.file.problem], problems


def _samples(frames: Frames, indices: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The numbers of the packets that carry these frames, by original."""
    found: dict[int, list[NDArray[np.int64]]] = {}
    for index in indices[frames.file[indices] != NULL].tolist():
        numbers = np.arange(frames.first_packet[index], frames.last_packet[index] + 1)
        found.setdefault(int(frames.file[index]), []).append(numbers)
    return {file: np.unique(np.concatenate(parts)) for file, parts in found.items()}


def _check(frames: Frames, seen: Survey, found: Sequence[Original], torn: Sequence[Original]) -> None:
    """The packets that a frame names must carry bytes of it. Raises CapturesError: a capture is another one now.

    The packet with which a frame was complete may have brought what was missing before it, and the one that began it
    may be in the file before: one of the two is enough, and in the right capture nearly all frames have it.

    Without its first packet a connection has no packets: where that may be lost with one of the captures `torn`, which
    are not there or not whole, the others are not to blame.
    """
    opened = [one.opened_us for one in seen.connections]
    lost = np.array([any(each.overlaps(ts, ts) for each in torn) for ts in opened], np.bool_)
    lost[seen.packets["connection"]] = False
    these = frames.are("status", "ok") & (frames.end > frames.start) & (frames.file != NULL) & ~lost[frames.group // 2]
    order = np.argsort(numbered(seen.packets["file"], seen.packets["packet_no"]))
    rows = seen.packets[order]
    places, file = numbered(rows["file"], rows["packet_no"]), frames.file[these]
    fits = np.zeros(len(file), np.bool_)
    for packet in (frames.first_packet[these], frames.last_packet[these]) if len(rows) else ():
        wanted = numbered(file, packet)
        row = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
        begin = rows["at"][row]
        carries = (begin < frames.end[these]) & (frames.start[these] < begin + rows["wire_len"][row])
        fits |= (places[row] == wanted) & carries
    expected = np.bincount(file, minlength=len(found))
    for index in np.flatnonzero(2 * np.bincount(file[fits], minlength=len(found)) < expected).tolist():
        if index not in seen.errors:
            raise CapturesError(
                f"{found[index].name}: its packets do not hold what the tables say; expected the capture that they "
                "were made of"
            )


def _unmapped(packets: NDArray[np.void], seen: Survey) -> NDArray[np.bool_]:
    """bool (n,): packets whose payload had to be blanked wholly, since nobody can tell what its bytes are."""
    conflicting = np.array([each.conflicting for each in seen.connections], np.bool_)[packets["connection"]]
    unknown = (packets["datagram"] != NONE) | ((packets["at"] == UNMAPPED) & (packets["wire_len"] > 0))
    blanked: NDArray[np.bool_] = unknown | (conflicting & (packets["copy"] != 0) & (packets["wire_len"] > 0))
    return blanked


def _remark(text: str, number: int, original: Original, how: Cutting) -> str:
    """A comment on a packet: what was found, and where the packet was."""
    if original.rewritten:
        return text
    return f"{text} (packet {number})" if how.key is not None else f"{text} (packet {number} of {original.shown})"


def _version() -> str:
    try:
        return version("wirehare")
    except PackageNotFoundError:
        return ""
