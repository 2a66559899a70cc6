"""What a decoder knows of connections that have ended, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from codec.amqp.decoder import Decoder
from udfs.decode.connection_rows import connection_rows


class Fact(NamedTuple):
    """One connection; `facts` as `udfs.schemas.FACTS` names them."""

    connection_id: int
    facts: dict[str, Any]


def take_facts(decoder: Decoder, files: Sequence[str] = ("a.pcap",)) -> list[Fact]:
    """Connections that have ended since the last call, in captures `files`."""
    rows = [row for ended in decoder.take_ended() for row in connection_rows(ended, files).to_pylist()]
    return [Fact(row["connection_id"], row["facts"][0]) for row in rows]
