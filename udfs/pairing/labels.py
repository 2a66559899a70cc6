"""What tells messages apart beside their body: hashes of headers and properties, as far as these survive a broker."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.pairing.state import CLASSIC
from codec.variant.entries import mix_entries, names_of
from udfs.arrow.fields import values_of
from udfs.pairing.hashes import hashed

LABEL, COMMON = 6, 7  # what a hash is of (`udfs.pairing.pairable` has the others)
# What brokers and their plugins add, change or take away; '*': names that begin so. RabbitMQ (its documentation: Dead
# Letter Exchanges, Federation, Shovel, Sender-selected Distribution, Quorum Queues; plugins message-timestamp, delayed
# exchange), Qpid (federation, ring queues).
CHANGED = (
    "x-death", "x-first-death-*", "x-last-death-*", "x-received-from", "x-shovelled", "x-shovelled-*",
    "x-delivery-count", "x-acquired-count", "x-stream-*", "x-opt-*", "x-delay", "cc", "bcc", "timestamp_in_ms",
    "x-amqp-*", "x-qpid.*", "qpid.*",
)  # fmt: skip
# Of these RabbitMQ makes annotations where a message goes from 0-9-1 to 1.0, and headers the other way.
OF_FAMILY = ("x-*",)
DEFAULT_PRIORITY = 4  # of 0-10 and 1.0; a broker may write it out
KEPT = ("content_type", "content_encoding")
KEPT_IN_FAMILY = ("type", "app_id")


def labels(rows: Mapping[str, pa.Array], family: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Of messages (columns KEPT, KEPT_IN_FAMILY, `priority`, `headers`) of a `family` two numbers each: the same where
    all that a broker leaves alone is the same; and where what it also hands on to other families is."""
    values = values_of(rows["headers"])
    all_, common = np.zeros((2, len(values.starts), 2), np.int64)
    mix_entries(*values, names_of(CHANGED), names_of(OF_FAMILY), all_, common)
    default = pc.if_else(pc.equal(family, CLASSIC), pa.scalar(None, pa.int64()), DEFAULT_PRIORITY)
    priority = pc.coalesce(rows["priority"].cast(pa.int64()), default)
    kept = [rows[name] for name in KEPT]
    mine = [rows[name] for name in KEPT_IN_FAMILY]
    label = hashed(family.cast(pa.int64()), *kept, *mine, priority, _number(all_), seed=LABEL)
    return label, hashed(*kept, _number(common), seed=COMMON)


def _number(lanes: np.ndarray) -> pa.Array:
    low, high = lanes.T.astype(np.uint64)
    return pa.array((high << np.uint64(32) | low).view(np.int64))
