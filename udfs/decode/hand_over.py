"""Names of what workers hand over beside the tables; no kernel is needed to import this."""

from __future__ import annotations

ACCOUNTS = "accounts"  # what each split of a capture held: DECODED rows of kind 'capture'
STATES = "states"  # of connections that are still open (`udfs.tables`)
STREAM_QUEUES = "stream_queues"  # queues that are streams, as methods tell
