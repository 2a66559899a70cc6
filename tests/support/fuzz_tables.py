"""Damaged inputs side by side through all that workers make: rows of every table, checked for what always holds.

    rows = tables([runs, runs, ...])        # flows of each input get addresses of their own
    check(rows); digest.update(spelled_out(rows))

Tables cost Python some milliseconds however little is in them, so inputs are tried together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import decoding
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.net.identity import IP_BYTES
from codec.net.layers import SEGMENT
from codec.tables import TCP_RUNS
from codec.variant import decode
from pipeline.tables.decoding import config
from udfs.arrow.types import VARIANT, arrow_schema
from udfs.decode.key_logs import SecretFiles
from udfs.tables import tables_of
from udfs.workers.worker_config import Config

Run = tuple[bytes, np.ndarray, bytes]  # flow, segments, payload
Rows = dict[str, list[pa.RecordBatch]]  # by table
LEDGER = ("frame_bytes", "skipped_bytes", "tls_bytes", "websocket_bytes", "foreign_bytes", "tail_bytes")
OF_FRAMES = ("frame_no", "first_frame_no", "content_frame_no", "reply_frame_no", "settled_frame_no")


def own(flow: bytes, number: int) -> bytes:
    """A flow between addresses that only input `number` has."""
    prefix = (number + 1).to_bytes(2, "big")
    return prefix + flow[2:IP_BYTES] + prefix + flow[IP_BYTES + 2 :]


def in_one_table(inputs: Sequence[list[Run]]) -> pa.Table:
    """TCP_RUNS rows of all inputs, as the shuffle sorts them."""
    rows = [
        {
            "flow": own(flow, number), "order_ns": int(segments["order_ns"][0]), "capture_file": "file:a.pcap",
            "first_packet_no": int(segments["packet_no"][0]), "segments": segments.astype(SEGMENT).tobytes(),
            "payload": bytes(payload),
        }
        for number, runs in enumerate(inputs)
        for flow, segments, payload in runs
        if len(segments)
    ]  # fmt: skip
    return decoding.in_flow_order(pa.Table.from_pylist(rows, schema=arrow_schema(TCP_RUNS)))


@cache
def table_config(payload: bool) -> Config:
    return config(payload=payload)


def tables(inputs: Sequence[list[Run]], payload: bool = False, secrets: SecretFiles | None = None) -> Rows:
    """Rows of all tables; `secrets` of TLS."""
    found: Rows = defaultdict(list)
    batches = in_one_table(inputs).combine_chunks().to_batches()
    for part in tables_of(iter(batches), table_config(payload), secrets=secrets):
        assert not part.still_open
        found[part.table].append(part.rows)
    return found


def table_of(rows: Rows, table: str, *columns: str) -> pa.Table:
    """Some columns of a table."""
    selected = [batch.select(columns) for batch in rows[table]]
    return (
        pa.Table.from_batches(selected) if selected else pa.table({name: pa.array([], pa.int64()) for name in columns})
    )


def check(rows: Rows) -> None:
    """What holds of any input: text is UTF-8, each frame has a sender, bytes add up, rows name frames that are
    there."""
    for batch in (batch for batches in rows.values() for batch in batches):
        batch.validate(full=True)  # texts, too
    ledgers = table_of(rows, "streams", "connection_id", "payload_bytes", *LEDGER)
    sums = sum(ledgers[name].to_numpy() for name in LEDGER)
    assert (ledgers["payload_bytes"].to_numpy() == sums).all(), "ledgers do not add up"
    connections = table_of(rows, "connections", "connection_id")["connection_id"].to_numpy()
    assert len(np.unique(connections)) == len(connections), "a connection has two rows"
    assert (np.sort(ledgers["connection_id"].to_numpy()) == np.repeat(np.sort(connections), 2)).all()
    frames = table_of(rows, "frames", "connection_id", "frame_no", "sender")
    assert frames["sender"].null_count == 0, "a frame without a sender"
    there = set(zip(frames["connection_id"].to_pylist(), frames["frame_no"].to_pylist(), strict=True))
    assert len(there) == len(frames), "two frames of one number"
    assert {connection for connection, _ in there} <= set(connections.tolist()), "frames of no connection"
    for table, batches in rows.items():
        for batch in batches:
            for name in set(OF_FRAMES) & set(batch.schema.names):
                named = batch.select(["connection_id", name]).filter(batch[name].is_valid())
                pairs = set(zip(named["connection_id"].to_pylist(), named[name].to_pylist(), strict=True))
                assert pairs <= there, f"{table}.{name} is not a frame: {sorted(pairs - there)[:3]}"


def spelled_out(rows: Rows) -> bytes:
    """All values in words, each VARIANT as what it means, whose texts must be UTF-8."""
    lines = []
    for table, batches in sorted(rows.items()):
        for batch in batches:
            names, columns = batch.schema.names, [list(meant(column)) for column in batch.columns]
            lines += [f"{table} {dict(zip(names, row, strict=True))}" for row in zip(*columns, strict=True)]
    return "\n".join(lines).encode()


def meant(column: pa.Array) -> Iterator[Any]:
    """Values of a column."""
    if column.type == VARIANT:
        parts = (pc.struct_field(column, [i]).to_pylist() for i in (0, 1))
        there = column.is_valid().to_pylist()
        for value, metadata, known in zip(*parts, there, strict=True):
            yield decode(value, metadata) if known else None
    else:
        yield from column.to_pylist()


def raw_bytes(rows: Rows) -> bytes:
    """All texts, bytes and what is in a VARIANT, of every table."""
    return b"\n".join(bytes_of(column) for batches in rows.values() for batch in batches for column in batch.columns)


def bytes_of(column: pa.Array) -> bytes:
    """Of a column, parts of its values included."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return bytes_of(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return b"\n".join(bytes_of(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return bytes_of(
            pa.StructArray.from_arrays([column.keys, column.items], ["key", "item"])
            if pa.types.is_map(kind)
            else column.values
        )
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    if pa.types.is_binary(column.type):
        return b"\n".join(value for value in column.to_pylist() if value)
    return b""
