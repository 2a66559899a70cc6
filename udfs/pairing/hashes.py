"""Labels: hashes of what brokers preserve of headers and properties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.pairing.state import CLASSIC
from codec.variant.entries import mix_entries, names_of
from udfs.arrow.fields import values_of
from udfs.arrow.hashing import hashed

BY_ID, BY_BODY, IDENTITY, ROUTE, SOURCE, BODY, LABEL, COMMON = range(8)  # seeds: what a hash is of
# Headers that brokers and their plugins add, change or remove; '*': any ending. RabbitMQ (its documentation: Dead
# Letter Exchanges, Federation, Shovel, Sender-selected Distribution, Quorum Queues; plugins message-timestamp, delayed
# exchange), Qpid (federation, ring queues).
CHANGED_HEADERS = (
    "x-death", "x-first-death-*", "x-last-death-*", "x-received-from", "x-shovelled", "x-shovelled-*",
    "x-delivery-count", "x-acquired-count", "x-stream-*", "x-opt-*", "x-delay", "cc", "bcc", "timestamp_in_ms",
    "x-amqp-*", "x-qpid.*", "qpid.*",
)  # fmt: skip
# RabbitMQ makes these annotations when a message goes from 0-9-1 to 1.0, and headers the other way.
FAMILY_HEADERS = ("x-*",)
DEFAULT_PRIORITY = 4  # of 0-10 and 1.0; a broker may write it out
COMMON_PROPERTIES = ("content_type", "content_encoding")
FAMILY_PROPERTIES = ("type", "app_id")


def labels(rows: Mapping[str, pa.Array], family: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Two hashes of each message (columns COMMON_PROPERTIES, FAMILY_PROPERTIES, `priority`, `headers`): its label, of
    all that brokers preserve, and its common label, of what they preserve across families."""
    values = values_of(rows["headers"])
    all_, common = np.zeros((2, len(values.starts), 2), np.int64)
    mix_entries(*values, names_of(CHANGED_HEADERS), names_of(FAMILY_HEADERS), all_, common)
    default = pc.if_else(pc.equal(family, CLASSIC), pa.scalar(None, pa.int64()), DEFAULT_PRIORITY)
    priority = pc.coalesce(rows["priority"].cast(pa.int64()), default)
    common_properties = [rows[name] for name in COMMON_PROPERTIES]
    family_properties = [rows[name] for name in FAMILY_PROPERTIES]
    label = hashed(
        family.cast(pa.int64()), *common_properties, *family_properties, priority, _as_array(all_), seed=LABEL
    )
    return label, hashed(*common_properties, _as_array(common), seed=COMMON)


def _as_array(lanes: np.ndarray) -> pa.Array:
    low, high = lanes.T.astype(np.uint64)
    return pa.array((high << np.uint64(32) | low).view(np.int64))
