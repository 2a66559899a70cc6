"""What workers make of runs: which tables, and what they return beside these. Importing this loads no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codec.tables import STRING, Table, table_of

# What workers return beside the tables.
ACCOUNTS = "accounts"  # what each split of a capture held
ACCOUNT_ROWS = table_of("accounts", ("account", STRING))  # each as JSON
STATES = "states"  # of connections that are still open (`udfs.tables`)
STREAM_QUEUES = "stream_queues"  # queues that are streams, by their declaration
FACT = "\0"  # between the parts of a fact about a stream (`udfs.conversation.methods.STREAMS`)


@dataclass(frozen=True)
class Config:
    """What workers make of frames. `schemas`: columns of each table; `payload`: with the bytes of content bodies;
    `tables`: the wanted ones."""

    schemas: Mapping[str, Table]
    payload: bool
    tables: frozenset[str]
