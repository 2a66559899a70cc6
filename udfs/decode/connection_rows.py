"""Facts of connections that have ended as columns.

    rows = connection_rows(ended, files)

Columns are made from the fields of the decoder's records. Each distinct text is formatted once. Facts of TLS come from
its hellos.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.framing.connection import TCP_ENDS, EndedConnections
from codec.framing.proxy_header import proxied_ends
from codec.layers.connection_facts import (
    CONTENTS,
    carried_protocols,
    limit_names,
    limits_reached,
    offered_versions,
)
from codec.layers.stack import TRANSPORTS, layer_facts, transports, unread
from codec.memory import as_records
from codec.names import SIDES
from codec.net.identity import IP_BYTES, NAME_BYTES, PORT_BYTES, flow_key, name_flows
from codec.net.layers import FLOW_KEY_BYTES
from codec.protocol.rows import KNOWN_BY
from codec.protocol.versions import VERSIONS
from codec.tables import FACTS, LEDGER
from udfs.arrow.types import (
    TextTable,
    arrow_type,
    binary_column,
    cast_column,
    map_distinct,
    map_distinct_bytes,
    missing,
    nullable,
)
from udfs.source.columns import address_text
from udfs.source.connection_processes import FlowProcesses, process_columns

# Field of the decoder's records, where the ledger has another name for it.
COUNTED_AS = {"out_of_order_segments": "out_of_order"}
END_BYTES = IP_BYTES + PORT_BYTES
_TEXTS = pa.list_(pa.string())
_SIDES, _VERSIONS, _CONTENTS = TextTable.of(SIDES), TextTable.of(VERSIONS), TextTable.of(CONTENTS)
_TRANSPORTS = TextTable.of(TRANSPORTS)
_TCP_ENDS, _KNOWN_BY = TextTable.of(TCP_ENDS), TextTable.of(KNOWN_BY)
_FACTS, _LEDGER = list(arrow_type(FACTS)), list(arrow_type(LEDGER))
_TLS = arrow_type(FACTS["tls"].type)
CONNECTION_FACTS = pa.schema(
    {"connection_id": pa.int64(), "version": pa.string(), "version_known": pa.bool_(), "facts": arrow_type(FACTS)}
)


def connection_rows(
    ended: EndedConnections, files: Sequence[str], processes: FlowProcesses | None = None
) -> pa.RecordBatch:
    """CONNECTION_FACTS of connections; `files`: capture files by number; `processes`: those of their flows."""
    connections = ended.connections.view(np.ndarray)
    is_amqp = carried_protocols(ended) == CONTENTS.index("amqp")
    columns = {
        "connection_id": pa.array(np.ascontiguousarray(connections["connection_id"])),
        "version": _texts(np.where(is_amqp, connections["version"], 0), _VERSIONS),
        "version_known": pa.array(is_amqp & (connections["version_known"] != 0)),
        "facts": facts(ended, files, processes),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=CONNECTION_FACTS)


def concat_ended(parts: Sequence[EndedConnections]) -> EndedConnections:
    """The connections of all `parts`, at least one, in order."""
    if len(parts) == 1:
        return parts[0]
    connections, layers = list[np.ndarray](), dict[int, Mapping[str, Any]]()
    first = first_prefix = 0
    for part in parts:
        own = part.connections.copy()
        own["tls_prefix_at"][own["tls_prefix_at"] >= 0] += first_prefix
        connections.append(own)
        layers |= {first + index: known for index, known in part.layers.items()}
        first += len(own)
        first_prefix += len(part.tls_prefixes)
    names = ("flows", "directions", "tls_prefixes")
    flows, directions, prefixes = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    whole = as_records(np.concatenate(connections))
    return EndedConnections(flows, whole, as_records(directions), prefixes, layers)


def facts(ended: EndedConnections, files: Sequence[str], processes: FlowProcesses | None = None) -> pa.StructArray:
    """FACTS of each connection."""
    connections, directions = ended.connections.view(np.ndarray), ended.directions.view(np.ndarray)
    indices = np.arange(len(connections))
    client = np.ascontiguousarray(connections["client"])
    addresses = ended.flows[:, : 2 * IP_BYTES].reshape(-1, 2, IP_BYTES)
    ports = np.ascontiguousarray(ended.flows[:, 2 * IP_BYTES : FLOW_KEY_BYTES]).view(">u2").astype(np.int32)
    end_by = connections["tcp_end_by"]
    columns: dict[str, pa.Array] = {
        "community_id": _fixed_texts(name_flows(ended.flows), NAME_BYTES),
        "capture_file": pa.array(files, pa.string()).take(pa.array(connections["first_file"])),
        "opened_ts_ns": pa.array(np.ascontiguousarray(connections["first_ns"])),
        "closed_ts_ns": pa.array(np.ascontiguousarray(connections["last_ns"])),
        "tcp_rtt_ns": nullable(np.ascontiguousarray(connections["rtt_ns"])),
        "tcp_origin": _origins(ended),
        "tcp_end": _texts(connections["tcp_end"], _TCP_ENDS),
        "tcp_end_by": _texts(np.where(end_by < 0, -1, end_by != client), _SIDES),
        "syn_captured": pa.array(connections["syn_ns"] >= 0),
        "roles_from": _texts(connections["known_by"], _KNOWN_BY),
        "content": _texts(carried_protocols(ended), _CONTENTS),
        "versions_offered": _offered(ended),
        "tls": _tls(ended),
        "undecoded_reason": pa.array(unread(ended), pa.string()),
        "transport": _texts(transports(ended), _TRANSPORTS),
        "conflicting_overlap_bytes": pa.array(directions["conflicting_bytes"].sum(axis=1)),
        "proxy_bytes": pa.array((directions["proxy_bytes"] + directions["preamble_bytes"]).sum(axis=1)),
        "limits": map_distinct(limit_names, limits_reached(ended), _TEXTS),
    }
    columns |= _proxied(connections["proxy_header"])
    columns |= process_columns(processes, ended)
    for side, direction in zip(SIDES, (client, 1 - client), strict=True):
        columns[f"{side}_ip"] = _addresses(addresses[indices, direction])
        columns[f"{side}_port"] = pa.array(ports[indices, direction])
        columns[side] = _ledger(directions, direction)
    return _struct(columns, _FACTS)


def _proxied(headers: NDArray[np.uint8]) -> dict[str, pa.Array]:
    """The columns that a header of the PROXY protocol gives; `headers` uint8 (n, STORED_BYTES), zeros: none."""
    index, clients, keys = np.full(len(headers), -1), b"", b""
    for row in np.flatnonzero(headers[:, 0]).tolist():
        ends = proxied_ends(headers[row].tobytes())
        if ends is not None:
            index[row] = len(clients) // END_BYTES
            clients += ends[0]
            keys += flow_key(*ends)
    client = np.frombuffer(clients, np.uint8).reshape(-1, END_BYTES)
    ports = np.ascontiguousarray(client[:, IP_BYTES:]).view(">u2").astype(np.int32)
    columns = {
        "proxied_client_ip": _addresses(client[:, :IP_BYTES]),
        "proxied_client_port": pa.array(ports.reshape(-1)),
        "proxied_community_id": _fixed_texts(
            name_flows(np.frombuffer(keys, np.uint8).reshape(-1, 2 * END_BYTES)), NAME_BYTES
        ),
    }
    return {name: column.take(pa.array(index, mask=missing(index))) for name, column in columns.items()}


def _origins(ended: EndedConnections) -> pa.Array:
    """`tcp_origin`. The layers number the bytes inside TLS anew."""
    directions, indices = ended.directions.view(np.ndarray), np.arange(len(ended.directions))
    begins = (directions["seq"] - directions["next"]) % (1 << 32)
    client = ended.connections["client"]
    unknown = (directions["anchored"] == 0).any(axis=1)
    unknown[list(ended.layers)] = True
    both = begins[indices, client].astype(np.uint64) << np.uint64(32) | begins[indices, 1 - client].astype(np.uint64)
    return pa.array(both.view(np.int64), mask=unknown)


def _ledger(directions: NDArray[np.void], which: NDArray[np.int64]) -> pa.StructArray:
    """LEDGER of the direction `which` of each connection. Records are large, so fields are taken, not records."""
    indices = np.arange(len(directions))
    columns = {name: directions[COUNTED_AS.get(name, name)][indices, which] for name in LEDGER.names}
    return _struct({name: pa.array(column) for name, column in columns.items()}, _LEDGER)


def _struct(columns: Mapping[str, pa.Array], fields: list[pa.Field]) -> pa.StructArray:
    values = [cast_column(columns[field.name], field.type, False) for field in fields]
    return pa.StructArray.from_arrays(values, fields=fields)


def _texts(numbers: NDArray[np.int64], table: TextTable) -> pa.Array:
    return table.column(np.ascontiguousarray(numbers)).dictionary_decode()


def _fixed_texts(data: NDArray[np.uint8], size: int) -> pa.Array:
    return binary_column(np.ascontiguousarray(data), np.arange(len(data) + 1) * size, kind=pa.string())


def _addresses(data: NDArray[np.uint8]) -> pa.Array:
    """The usual texts of addresses, uint8 (n, 16); IPv4 ones are mapped."""
    return map_distinct_bytes(address_text, pa.string(), _fixed_texts(data, IP_BYTES).view(pa.binary()))


def _offered(ended: EndedConnections) -> pa.Array:
    """`versions_offered`."""

    def names(row: list[int]) -> list[str]:
        client, count, *offers = row
        return offered_versions(offers[:count], client)

    connections = ended.connections.view(np.ndarray)
    rows = np.column_stack([connections["client"], connections["offers"], connections["offer"]])
    return map_distinct(names, rows, _TEXTS)


def _tls(ended: EndedConnections) -> pa.Array:
    """Facts of TLS, null where nothing was encrypted."""
    known = layer_facts(ended)
    if not known:
        return pa.nulls(len(ended.connections), _TLS)
    index = np.full(len(ended.connections), -1)
    index[list(known)] = np.arange(len(known))
    return pa.array([_with_times(facts) for facts in known.values()], _TLS).take(pa.array(index, mask=missing(index)))


def _with_times(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of TLS, with the times of certificates in microseconds, as Arrow expects them."""
    named = {name: facts.get(name) for name in ("server_certificate", "client_certificate")}
    return facts | {
        name: {**certificate, "not_after": certificate["not_after_s"] * 1_000_000}
        for name, certificate in named.items()
        if certificate is not None
    }
