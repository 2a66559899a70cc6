"""Extraction: from rows of the tables to their packets in the original captures.

    pipeline.cut(tables, "one.pcapng", connections=[4711])
    slow = tables.messages.where("settle_latency_ns > 1e9")
    pipeline.cut(tables, "slow.pcapng", rows={"messages": slow}, redact=True)

Modules, in the order of the work:

    cut_options         options of a cut, its result, its errors
    choice              reads the tables: rows -> connections, frames, packets, comments
    originals           locates the captures
    survey              first pass over the captures: packets of the connections, with their stream offsets
    frame_packets       frames -> packets
    decryption          connections inside TLS or WebSocket: their secrets, or the connections in clear
    packet_writer       second pass: packets into a pcapng file
    packet_redaction    changes to the packets, with checksums by header_stack
    cutting             all of this, in order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pipeline.extract.choice import KEYS, Choice, Rows, from_dataframes, from_files
from pipeline.extract.cut_options import CapturesError, CutError, CutOptions, Result
from pipeline.output.location import TablesError, location, sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline.tables.dataframes import Tables

__all__ = [
    "KEYS", "CapturesError", "Choice", "CutError", "CutOptions", "Result", "Rows", "TablesError", "cut",
    "from_dataframes", "from_files",
]  # fmt: skip


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
    choice = Choice(set(connections), messages=set(messages))
    for table, frame in (rows or {}).items():
        choice.add(table, frame.select(*KEYS[table]).distinct().toArrow())
    from pipeline.extract.cutting import cut_rows  # not above: its kernels take a second to load

    with sink(location(output)) as file:
        return cut_rows(from_dataframes(tables), choice, file, CutOptions(**options))  # type: ignore[arg-type]
