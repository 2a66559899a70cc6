"""What workers are told about tables: the data of this folder in one value."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipeline.schemas import TABLES
from pipeline.tables.connections import frame_counts, handshake
from pipeline.tables.history import method_roles
from pipeline.tables.messages import shown_messages
from pipeline.tables.methods import READ_ARGUMENTS, shown_methods

if TYPE_CHECKING:
    from udfs.tables.config import Config


# Tables that follow from the frames of one connection.
MADE_BY_WORKERS = ("frames", "methods", "messages", "channels", "links", "connections", "streams")


def config(payload: bool = False, tables: Collection[str] = MADE_BY_WORKERS) -> Config:
    """How tables are made; `payload`: with the bytes of content bodies; `tables`: those that are wanted."""
    # Here, not above: the kernels behind it take a second to load, and tables already written need none.
    from udfs.tables.config import Config

    return Config(
        {name: TABLES[name] for name in MADE_BY_WORKERS},
        method_roles(),
        shown_messages(payload),
        shown_methods(),
        frame_counts(),
        handshake(),
        READ_ARGUMENTS,
        payload,
        frozenset(tables),
    )
