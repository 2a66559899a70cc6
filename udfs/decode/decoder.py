"""Runs to decoded rows: the function that `mapInArrow` calls on every partition of sorted runs.

Input: batches of `TCP_RUNS` rows, in the order that `udfs.decode.runs` needs. Output: batches of `DECODED` rows:
frames, the facts of every TCP connection, and the accounts of the splits, which pass through. Memory holds the current
connection and a group of runs. Kernels do the work; Python code runs once per group and once per batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.amqp.batches import Batch
from codec.amqp.decoder import Decoder
from codec.conversation.states import find_ids
from codec.layers.stack import Layers
from codec.variant import encode
from udfs.arrow.rows import to_int64, with_columns
from udfs.arrow.types import variants, with_null_columns
from udfs.decode.connection_rows import connection_rows
from udfs.decode.frame_rows import ARROW_DECODED, frame_rows
from udfs.decode.key_logs import SecretFiles
from udfs.decode.runs import AddressSpaces, Files, flows_in_order
from udfs.decode.stall_rows import ARROW_STALLS, stall_rows
from udfs.source.processes import FlowProcesses


def account_row(account: dict[str, Any]) -> pa.RecordBatch:
    """The account of a split as a DECODED row of kind 'capture'."""
    columns = {
        "kind": pa.array(["capture"]),
        "capture_file": pa.array([account["capture_file"]], pa.string()),
        "arguments": variants([encode(account)]),
    }
    return with_null_columns(columns, ARROW_DECODED)


class StallsOfConnections:
    """Collects the stalls of TCP until their connections have ended."""

    def __init__(self) -> None:
        self._rows = ARROW_STALLS.empty_table()

    def add(self, rows: NDArray[np.int64], files: Sequence[str]) -> None:
        """Take rows of `codec.stalls`; `files`: capture files by number."""
        if len(rows):
            self._rows = pa.concat_tables([self._rows, pa.Table.from_batches([stall_rows(rows, files)])])

    def on(self, connections: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of kind 'connection' with their stalls."""
        at = find_ids(to_int64(connections["connection_id"]), to_int64(self._rows["connection_id"]))
        if not (at >= 0).any():
            return connections
        order = np.argsort(at, kind="stable")[np.count_nonzero(at < 0) :]
        counts = np.bincount(at[order], minlength=connections.num_rows)
        own = self._rows.take(pa.array(order)).combine_chunks().to_batches()[0]
        self._rows = self._rows.filter(pa.array(at < 0))
        kind = connections.schema.field("stalls").type
        values = pa.StructArray.from_arrays(own.columns, fields=list(own.schema))
        column = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), values).cast(kind)
        return with_columns(connections, {"stalls": column})


def decode_runs(
    payload: bool = False, secrets: SecretFiles | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` over sorted runs. `payload`: with the bytes of content bodies. `secrets`: where TLS
    secrets are."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(payload, layers=Layers(secrets.open() if secrets else None))
        files, spaces, processes = Files(), AddressSpaces(), FlowProcesses()
        stalls = StallsOfConnections()

        def rows_of(decoded: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
            yield from (frame_rows(batch, files.names, payload) for batch in decoded)
            stalls.add(decoder.take_stalls(), files.names)
            for ended in decoder.take_ended():
                yield stalls.on(connection_rows(ended, files.names, processes))

        for part in flows_in_order(batches, files, processes):
            if isinstance(part, str):
                yield account_row(json.loads(part))
            else:
                for group in spaces.feed(part):
                    yield from rows_of(decoder.feed_flows(*group))
        for group in spaces.finish():
            yield from rows_of(decoder.feed_flows(*group))
        yield from rows_of(decoder.finish())

    return decode
