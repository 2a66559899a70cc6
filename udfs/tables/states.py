"""The state of a connection as octets: what the decoder knows of it, and what its tables do.

A state is read by a release with the same layout only: `StateError` otherwise. It holds bytes of the capture,
credentials among them where a login is cut in two: keep it as private as the captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from codec.amqp.connections.state import ConnectionState
from codec.conversation import carried
from codec.conversation.channels import carried as channel_carried
from codec.conversation.channels.state import EVENT, LIFE
from codec.conversation.sessions import semantics
from codec.layers.state import holds_secrets
from udfs.arrow.types import arrow_schema
from udfs.tables.channels import COUNT
from udfs.tables.config import Config
from udfs.tables.connections import BLOCK
from udfs.tables.packing import digest, packed, unpacked
from udfs.tables.returned import ITEM
from udfs.tables.settled import ENDS, RETURNED

LAYOUT = 1  # raise it when the meaning of a part changes; changed columns, records and roles change the digest

# Rows of states. `over`: TCP has ended the connection, only copies of what was seen may still arrive; `secrets`: the
# octets hold secrets of TLS; `error`: why the octets that were given could not be read.
ARROW_STATES = pa.schema(
    [
        ("connection_id", pa.int64()),
        ("flow", pa.binary()),
        ("opened_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("over", pa.bool_()),
        ("secrets", pa.bool_()),
        ("octets", pa.binary()),
        ("error", pa.string()),
    ]
)
BATCH_BYTES = 1 << 20


class StateRows:
    """Collects rows of states (ARROW_STATES)."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, state: ConnectionState, octets: bytes) -> None:
        """The state of a connection that is still open."""
        secrets = state.layers is not None and holds_secrets(state.layers)
        values = (state.connection_id, state.flow, state.first_ns, state.last_ns, state.over, secrets, octets, None)
        self._rows.append(values)
        self._bytes += len(octets)

    def unread(self, flow: bytes, error: str) -> None:
        """Octets that could not be read."""
        self._rows.append((None, flow, None, None, None, None, None, error))

    @property
    def enough(self) -> bool:
        """Whether there are as many as should be handed out at a time."""
        return self._bytes >= BATCH_BYTES

    def take(self) -> pa.RecordBatch:
        """The rows so far, in the order in which they came."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(ARROW_STATES)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_STATES, strict=True)]
        self._rows, self._bytes = [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_STATES)


def layout_of(config: Config) -> bytes:
    """A digest of what the meaning of the parts depends on."""
    kinds = [*channel_carried.ARRAYS.items(), *carried.ARRAYS.items(), EVENT, LIFE, COUNT, BLOCK, ITEM]
    tables = [ENDS, RETURNED, *(arrow_schema(schema) for schema in config.schemas.values())]
    roles = [list(config.roles.roles), config.roles.texts, semantics.OUTCOMES, semantics.NAMES]
    columns = [list(config.handshake.statements), config.handshake.stages]
    return digest([[repr(kind) for kind in kinds], [str(table) for table in tables], repr(roles), repr(columns)])


def to_octets(state: ConnectionState, parts: Mapping[str, Any], layout: bytes) -> bytes:
    """The state of one connection; `layout` of the tables it is of."""
    return packed({"state": state.to_bytes(), **parts}, LAYOUT, layout)


def from_octets(octets: bytes, layout: bytes) -> tuple[ConnectionState, dict[str, Any]]:
    """What `to_octets` was given; `StateError` for anything else."""
    parts = unpacked(octets, LAYOUT, layout)
    return ConnectionState.from_bytes(parts.pop("state")), parts
