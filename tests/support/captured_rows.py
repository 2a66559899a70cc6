"""All shipped captures in one table, each with connections and addresses of its own.

Captures that were rewritten from one another share addresses, ports and times. As runs they get other addresses; as
decoded rows they are decoded one by one, without Spark, and their connections separated afterwards.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

import decoding
import golden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUMBERS = 1 << 8  # of captures: the last bits of a connection's id say of which it is
OWN = bytes.fromhex("3fff")  # begins addresses of runs, the number of their capture behind it (RFC 9637)
IP_BYTES = 16


def rows_apart(names: Iterable[str]) -> pa.Table:
    """DECODED rows of these captures."""
    found = []
    for number, name in enumerate(names):
        table = decoding.decode_table(decoding.in_flow_order(decoding.runs(golden.captures()[name].paths)))
        at = table.schema.get_field_index("connection_id")
        table = table.set_column(at, table.schema.field(at), renumbered(table["connection_id"], number))
        for kind in ("frame", "connection", "capture"):
            rows = table.filter(pc.equal(table["kind"], kind))
            found.append(with_addresses(rows, number) if kind == "connection" else rows)
    return pa.concat_tables(found)


def runs_apart() -> Iterator[pa.RecordBatch]:
    """The runs of all captures, in the order of their flows."""
    for number, name in enumerate(golden.captures()):
        runs = decoding.runs(golden.captures()[name].paths)
        flows = [None if flow is None else with_number(flow, number) for flow in runs["flow"].to_pylist()]
        own = runs.set_column(runs.schema.get_field_index("flow"), "flow", pa.array(flows, pa.binary()))
        yield from decoding.in_flow_order(own).to_batches()


def with_number(flow: bytes, number: int) -> bytes:
    """The key of a flow with addresses of its own; the lower one stays the lower one."""
    prefix = OWN + number.to_bytes(2, "big")
    low, high = flow[:IP_BYTES], flow[IP_BYTES : 2 * IP_BYTES]
    assert low[: len(prefix)] == high[: len(prefix)] == bytes(len(prefix))
    return prefix + low[len(prefix) :] + prefix + high[len(prefix) :] + flow[2 * IP_BYTES :]


def capture_at(ip: str) -> str | None:
    """The capture of runs with such an address; None: it is of none of them."""
    data = ipaddress.ip_address(ip).packed
    own = len(data) == IP_BYTES and data.startswith(OWN)
    return [*golden.captures()][int.from_bytes(data[2:4], "big")] if own else None


def renumbered(ids: pa.ChunkedArray, number: int) -> pa.Array:
    plain = np.array(
        [-1 if value is None else value // NUMBERS * NUMBERS + number for value in ids.to_pylist()], np.int64
    )
    return pa.array(plain, pa.int64(), mask=plain < 0)


def with_addresses(rows: pa.Table, number: int) -> pa.Table:
    """Facts of connections with addresses that no other capture has."""

    def own(facts: dict[str, Any]) -> dict[str, Any]:
        return facts | {side: f"{facts[side]}#{number}" for side in ("client_ip", "server_ip")}

    at = rows.schema.get_field_index("facts")
    ids, stalls = rows["connection_id"].to_pylist(), rows["stalls"].to_pylist()
    own_stalls = [[{**row, "connection_id": id_} for row in of] for id_, of in zip(ids, stalls, strict=True)]
    column = rows.schema.get_field_index("stalls")
    rows = rows.set_column(column, rows.schema.field(column), pa.array(own_stalls, rows.schema.field(column).type))
    changed = [own(facts) for facts in rows["facts"].to_pylist()]
    return rows.set_column(at, rows.schema.field(at), pa.array(changed, rows.schema.field(at).type))
