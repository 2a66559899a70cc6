"""What the decoder knows before tables are made, as one table: frames, facts of connections, accounts of splits.

Tests of decoding read these rows; tests of tables write some by hand and let `TableRows` make tables of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.amqp.batches import Batch
from codec.amqp.decoder import Decoder
from codec.layers.stack import Layers
from codec.variant import encode
from codec.variant.python_values import decode as variant_value
from udfs.arrow.types import VARIANT, variants, with_null_columns
from udfs.conversation.frame_batch import FrameBatch
from udfs.decode.connection_rows import CONNECTION_FACTS, connection_rows
from udfs.decode.flow_order import AddressSpaces, Files, flows_in_order
from udfs.decode.frame_rows import ARROW_FRAMES, frame_rows
from udfs.decode.key_logs import SecretFiles
from udfs.decode.stall_rows import ARROW_STALLS, stall_rows
from udfs.source.connection_processes import FlowProcesses
from udfs.tables import Tables
from udfs.tables.packed import packed
from udfs.workers.worker_config import Config

# `kind`: 'frame', 'connection' (with `facts` and `stalls`) or 'capture' (its account in `arguments`).
DECODED = pa.schema(
    [
        pa.field("kind", pa.string()),
        *ARROW_FRAMES,
        CONNECTION_FACTS.field("facts"),
        pa.field("stalls", pa.list_(pa.struct(list(ARROW_STALLS)))),
    ]
)


def of_kind(kind: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = {name: rows[name] for name in rows.schema.names}
    return with_null_columns({"kind": pa.repeat(pa.scalar(kind), len(rows)), **columns}, DECODED)


def decode_runs(
    payload: bool = False, secrets: SecretFiles | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Runs in flow order -> DECODED."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(payload, layers=Layers(secrets.open() if secrets else None))
        files, spaces, processes = Files(), AddressSpaces(), FlowProcesses()
        waiting: list[pa.Table] = []  # stalls

        def rows_of(decoded: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
            yield from (of_kind("frame", frame_rows(batch, files.names, payload)) for batch in decoded)
            waiting.append(pa.Table.from_batches([stall_rows(decoder.take_stalls(), files.names)]))
            for ended in decoder.take_ended():
                facts = connection_rows(ended, files.names, processes)
                stalls = pa.concat_tables(waiting).to_pylist()
                own = [[row for row in stalls if row["connection_id"] == id_] for id_ in facts[0].to_pylist()]
                first_ns = pa.array(np.ascontiguousarray(ended.connections["first_ns"]))
                more = {"ts_ns": first_ns, "stalls": pa.array(own, DECODED.field("stalls").type)}
                columns = {name: facts[name] for name in facts.schema.names} | more
                yield of_kind("connection", pa.RecordBatch.from_pydict(columns))

        for part in flows_in_order(batches, files, processes):
            if isinstance(part, str):
                account = json.loads(part)
                columns = {
                    "capture_file": pa.array([account["capture_file"]]),
                    "arguments": variants([encode(account)]),
                }
                yield of_kind("capture", pa.RecordBatch.from_pydict(columns))
            else:
                for group in spaces.feed(part):
                    yield from rows_of(decoder.feed_flows(*group))
        for group in spaces.finish():
            yield from rows_of(decoder.feed_flows(*group))
        yield from rows_of(decoder.finish())

    return decode


def as_arrow(rows: Iterable[dict[str, object]]) -> pa.Table:
    """DECODED rows of scripts, null where a row does not name a column; `ts` from `ts_ns`."""
    rows, columns = list(rows), {}
    for field in DECODED:
        values = [row.get(field.name) for row in rows]
        if field.type == VARIANT:
            encoded = [encode(value or {}) for value in values]
            parts = [pa.array([part[i] for part in encoded], pa.binary()) for i in (0, 1)]
            mask = pa.array([value is None for value in values])
            columns[field.name] = pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=mask)
        elif field.name == "ts":
            microseconds = [None if (ns := row.get("ts_ns")) is None else ns // 1000 for row in rows]  # type: ignore[operator]
            columns["ts"] = pa.array(microseconds, pa.int64()).cast(field.type)
        else:
            columns[field.name] = pa.array(values, field.type)
    return pa.table(columns, schema=DECODED)


@dataclass(frozen=True)
class TableRows:
    """DECODED rows by connection, frames in their order and facts behind them -> table, rows."""

    config: Config

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        tables = Tables(self.config)
        for rows in batches:
            yield from tables.feed(FrameBatch(rows.filter(pc.equal(rows["kind"], "frame"))))
            ended = rows.filter(pc.equal(rows["kind"], "connection"))
            stalls = pc.list_flatten(ended["stalls"])
            if len(stalls):
                tables.add_stalls(pa.RecordBatch.from_struct_array(stalls))
            yield from tables.end(ended.select(CONNECTION_FACTS.names))
        yield from tables.finish()


def in_order(rows: pa.Table) -> pa.Table:
    """As `TableRows` needs them."""
    order = [("connection_id", "ascending"), ("kind", "descending"), ("frame_no", "ascending")]
    return rows.filter(pc.field("kind") != "capture").sort_by(order).combine_chunks()


def packed_tables(rows: pa.Table, config: Config) -> list[tuple[str, bytes]]:
    """The tables of DECODED rows as rows of `codec.tables.PACKED`."""
    result = TableRows(config).rows(in_order(rows).to_batches())
    accounts = rows.filter(pc.equal(rows["kind"], "capture"))["arguments"].to_pylist()
    texts = pa.record_batch({"account": [json.dumps(variant_value(**each)) for each in accounts]})
    found = [(table, packed(batch)) for table, batch in result if batch.num_rows]
    return [*found, *([("accounts", packed(texts))] if accounts else [])]
