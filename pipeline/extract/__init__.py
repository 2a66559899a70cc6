"""The way back: from rows of the tables to their packets, cut out of the original captures.

    pipeline.cut(tables, "one.pcapng", connections=[4711])
    slow = tables.messages.where("settle_latency_ns > 1e9")
    pipeline.cut(tables, "slow.pcapng", rows={"messages": slow}, redact=True)

Rooms, in the order of the work:

    rows                 where tables are read from
    choice               rows of tables -> connections, frames, packets, comments
    originals            the captures, where they are now
    survey, headers      first pass over them: packets of the connections, with their stream offsets
    streams, picking     frames -> packets
    secrets, harmless    what may be shown when a stream is redacted
    plaintext            connections inside TLS: their secrets, or the same connections in clear
    chunks, writing      second pass: packets into a pcapng file (pcapng)
    redaction, anonymity, checksums   what happens to them on the way
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from codec.errors import WirehareError
from pipeline.extract.rows import Rows, TablesError, lazy, written
from pipeline.extract.selection import KEYS, Choice
from pipeline.output.file import sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline import Tables
    from pipeline.extract.originals import Original
    from pipeline.extract.pcapng import Sink

__all__ = [
    "KEYS", "CapturesError", "Choice", "CutError", "Cutting", "Result", "Rows", "TablesError", "cut", "cut_rows",
    "lazy", "written",
]  # fmt: skip


class CutError(WirehareError):
    """Nothing can be cut; the message is one line that says why."""


class CapturesError(CutError):
    """The captures are gone, or are not those that the tables were made of."""


@dataclass(frozen=True)
class Cutting:
    """How to cut. `whole`: all packets of every connection that something was chosen of. `context`: what opens a
    connection and leads to a frame comes with it. `captures`: directory where the captures are now. `key`: 32 octets
    (codec.pseudonyms.key_of); addresses are anonymised under it. `secrets`: those of the connections cut come along, in
    a Decryption Secrets Block. `decrypted`: connections inside TLS or WebSocket are rewritten in clear. `key_logs`:
    where secrets are looked up, beside the captures."""

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
    """What was written. `problems`: one line for each capture that could not be read, or not to its end."""

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
    **how: object,
) -> Result:
    """Write the packets of some rows to a pcapng file `output`, a path or a URI.

    `connections`: connection_ids. `messages`: (connection_id, first_frame_no). `rows`: rows of any table by its name,
    with the columns `pipeline.extract.KEYS`. `how`: the fields of `Cutting`. Raises CutError.
    """
    chosen = Choice(set(connections), messages=set(messages))
    for table, frame in (rows or {}).items():
        chosen.add(table, frame.select(*KEYS[table]).distinct().toArrow())
    from pipeline.output.swap import place

    with sink(place(output)) as file:
        return cut_rows(lazy(tables), chosen, file, Cutting(**how))  # type: ignore[arg-type]


def cut_rows(
    rows: Rows, chosen: Choice, file: Sink, how: Cutting, captures: Sequence[Original] | None = None
) -> Result:
    """Write the packets of a choice, of the tables behind `rows`, to an open `file`. Raises CutError.

    `captures`: those of the tables, where somebody has looked for them already.
    """
    # Here, not above: the kernels take a second to load.
    from pipeline.extract.extraction import cut_choice

    return cut_choice(rows, chosen, file, how, captures)
