"""Extraction: from rows of the tables to their packets in the original captures.

    pipeline.cut(tables, "one.pcapng", connections=[4711])
    slow = tables.messages.where("settle_latency_ns > 1e9")
    pipeline.cut(tables, "slow.pcapng", rows={"messages": slow}, redact=True)

Modules, in the order of the work:

    choice              reads the tables: rows -> connections, frames, packets, comments
    originals           locates the captures
    survey, headers     first pass over the captures: packets of the connections, with their stream offsets
    frames              frames -> packets
    decryption          connections inside TLS or WebSocket: their secrets, or the connections in clear
    writing             second pass: packets into a pcapng file
    redaction           changes to the packets, with checksums by headers
    cutting             all of this, in order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from codec.errors import WirehareError
from pipeline.extract.choice import KEYS, Choice, Rows, from_dataframes, from_files
from pipeline.output.place import TablesError, place, sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline import Tables

__all__ = [
    "KEYS", "CapturesError", "Choice", "CutError", "CutOptions", "Result", "Rows", "TablesError", "cut",
    "from_dataframes", "from_files",
]  # fmt: skip


class CutError(WirehareError):
    """Nothing can be cut; the message is one line that says why."""


class CapturesError(CutError):
    """The captures are missing, or differ from those that the tables were made of."""


@dataclass(frozen=True)
class CutOptions:
    """Options of a cut. `whole`: write all packets of every selected connection. `context`: also write the packets that
    open a connection and lead to a frame. `captures`: directory where the captures are now. `key`: 32 octets
    (codec.pseudonyms.key_of), to anonymise addresses. `secrets`: add the TLS secrets of these connections as a
    Decryption Secrets Block. `decrypted`: rewrite connections inside TLS or WebSocket in clear. `key_logs`: files with
    secrets, besides the captures."""

    whole: bool = False
    context: bool = True
    captures: str | None = None
    redact: bool = False
    key: bytes | None = None
    secrets: bool = False
    decrypted: bool = False
    key_logs: tuple[str, ...] = ()


@dataclass
class Result:
    """What was written. `problems`: one line per capture that could not be read completely."""

    packets: int = 0
    connections: int = 0
    captures: list[str] = field(default_factory=list)
    blanked: int = 0
    problems: list[str] = field(default_factory=list)


def cut(
    tables: Tables,
    output: str,
    *,
    connections: Iterable[int] = (),
    messages: Iterable[tuple[int, int]] = (),
    rows: Mapping[str, DataFrame] | None = None,
    **options: object,
) -> Result:
    """Write the packets of some rows to a pcapng file `output`, a path or a URI.

    `connections`: connection_ids. `messages`: (connection_id, first_frame_no). `rows`: rows of any table by its name,
    with the columns `pipeline.extract.KEYS`. `options`: the fields of `CutOptions`. Raises CutError.
    """
    chosen = Choice(set(connections), messages=set(messages))
    for table, frame in (rows or {}).items():
        chosen.add(table, frame.select(*KEYS[table]).distinct().toArrow())
    from pipeline.extract.cutting import cut_rows  # not above: its kernels take a second to load

    with sink(place(output)) as file:
        return cut_rows(from_dataframes(tables), chosen, file, CutOptions(**options))  # type: ignore[arg-type]
