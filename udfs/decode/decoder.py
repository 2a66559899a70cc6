"""Runs to decoded rows: the function that `mapInArrow` calls on every partition of sorted runs.

Input: batches of `TCP_RUNS` rows, in the order that `udfs.decode.runs` needs. Output: batches of `DECODED` rows:
frames, the facts of every TCP connection, and the accounts of the splits, which pass through. Memory holds the current
connection and a group of runs. Kernels do the work; Python code runs once per group and once per batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from codec.amqp.batches import Batch
from codec.amqp.decoder import Decoder
from codec.layers.stack import Layers
from codec.variant import encode
from udfs.arrow.types import padded, variants
from udfs.decode.connection_rows import connection_rows
from udfs.decode.frame_rows import ARROW_DECODED, frame_rows
from udfs.decode.key_logs import SecretFiles
from udfs.decode.processes import FlowProcesses
from udfs.decode.runs import Files, flows_in_order
from udfs.decode.spaces import AddressSpaces


def account_row(account: dict[str, Any]) -> pa.RecordBatch:
    """The account of a split as a DECODED row of kind 'capture'."""
    columns = {
        "kind": pa.array(["capture"]),
        "capture_file": pa.array([account["capture_file"]], pa.string()),
        "arguments": variants([encode(account)]),
    }
    return padded(columns, ARROW_DECODED)


def decode_runs(
    payload: bool = False, secrets: SecretFiles | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` over sorted runs. `payload`: with the bytes of content bodies. `secrets`: where TLS
    secrets are."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(payload, layers=Layers(secrets.open() if secrets else None))
        files, spaces, processes = Files(), AddressSpaces(), FlowProcesses()

        def rows_of(decoded: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
            yield from (frame_rows(batch, files.names, payload) for batch in decoded)
            yield from (connection_rows(ended, files.names, processes) for ended in decoder.take_ended())

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
