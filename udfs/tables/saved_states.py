"""The states of connections as bytes: what the decoder knows of each, and what its tables do.

    digest = layout_digest(schemas)
    bytes = [sealed(each, LAYOUT, digest) for each in writer.bytes()]     # of each connection that was written
    reader = Reader([unsealed(each, LAYOUT, digest) for each in bytes])

A state is read by a release with the same layout only: `StateError` otherwise. It holds bytes of the capture,
credentials among them where a login is cut in two: keep it as private as the captures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from codec.conversation import session_state as semantics
from codec.conversation.channel_batches import LAYOUT as CHANNELS
from codec.conversation.channel_state import EVENT, INCARNATION
from codec.conversation.session_batches import LAYOUT as SESSIONS
from codec.conversation.session_links import CREDIT
from codec.framing.connection_state import ConnectionState
from codec.framing.connection_state import layout as decoder_layout
from codec.layers.connection import holds_secrets
from codec.tables import ATTRIBUTES
from udfs.arrow.types import cast_to
from udfs.conversation.roles import STAGES, TEXTS, method_roles
from udfs.conversation.session_rows import BYTE_COUNT, USE
from udfs.conversation.tracker_states import COMPLETED
from udfs.conversation.tracker_states import COUNT as SESSION_COUNT
from udfs.tables.connections import BLOCK
from udfs.tables.conversation import COUNT, DECLARED
from udfs.tables.handled import CANCEL, DELIVERY, SETTLED
from udfs.tables.settled import ITEM
from udfs.tables.stalls_table import CLOSING

LAYOUT = 6  # raise it when the meaning of a part changes; changed columns, records and roles change the digest

# Rows of states. `over`: TCP has ended the connection, only copies of what was seen may still arrive; `secrets`: the
# bytes hold secrets of TLS; `error`: why the bytes that were given could not be read.
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


def digest(layout: Any) -> bytes:
    return hashlib.sha256(json.dumps(layout, default=repr).encode()).digest()[:8]


def layout_digest(schemas: Sequence[pa.Schema]) -> bytes:
    """A digest of all that the meaning of states with the tables `schemas` depends on."""
    records = [EVENT, INCARNATION, COUNT, BLOCK, ITEM, SESSION_COUNT, COMPLETED, BYTE_COUNT, USE, CREDIT, CLOSING]
    records += [DECLARED, DELIVERY, SETTLED, CANCEL]
    kinds = [*CHANNELS.kinds.items(), *SESSIONS.kinds.items(), *records]
    roles = [list(method_roles()), TEXTS, semantics.OUTCOMES, semantics.NAMES]
    handshake = [list(ATTRIBUTES), STAGES]
    parts = [[repr(kind) for kind in kinds], [str(schema) for schema in schemas], repr(roles), repr(handshake)]
    return digest([*parts, decoder_layout().hex()])


def state_rows(states: Sequence[ConnectionState], data: Sequence[bytes]) -> pa.RecordBatch:
    """ARROW_STATES of connections that are still open."""
    return _rows(
        connection_id=[state.connection_id for state in states],
        flow=[state.flow for state in states],
        opened_ns=[state.first_ns for state in states],
        last_ns=[state.last_ns for state in states],
        over=[state.tcp_ended for state in states],
        secrets=[state.layers is not None and holds_secrets(state.layers) for state in states],
        octets=data,
    )


def unread_rows(errors: Sequence[tuple[bytes, str]]) -> pa.RecordBatch:
    """ARROW_STATES of flows whose bytes could not be read, and why."""
    return _rows(flow=[flow for flow, _ in errors], error=[text for _, text in errors])


def _rows(**columns: Sequence[object]) -> pa.RecordBatch:
    arrays = {name: pa.array(values, ARROW_STATES.field(name).type) for name, values in columns.items()}
    return cast_to(arrays, ARROW_STATES)
