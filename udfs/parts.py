"""Names of the parts that workers make of frames. Each is a folder of files (`udfs.writing`), or a column of rows
(`udfs.past.PastRows`); no kernel is needed to import this."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

METHODS, REQUESTS = "methods", "requests"  # methods that cannot have a reply; those that may
SAID = "said"  # frames in which the two sides speak of their connection
FRAME_COUNTS = "frame_counts"  # how many frames of each kind connections have
STREAM_QUEUES = "stream_queues"  # queues that are streams, as methods tell
MESSAGES, OPEN = "messages", "open"  # messages as the table has them; those that Spark has to settle,
EVENTS = "history/event"  # and how
COUNTS = "counts"  # how many of the others were settled how
# Rows of tables channels and links, of versions whose channels are sessions; no table is written into these folders.
CHANNELS, LINKS_OF_SESSIONS = "history/channels", "history/links"
HISTORY_OF = {kind: f"history/{kind}" for kind in ("life", "link", "reply")}  # of channels, kinds as they are
LIVES, LINKS, REPLIES = HISTORY_OF.values()

# COUNTS: outcomes of the messages of a ledger that has been settled, and how many have each.
ENDED = StructType(
    [
        StructField("connection_id", LongType()),
        StructField("ledger", LongType()),
        StructField("outcome", StringType()),
        StructField("count_all", LongType()),
    ]
)

Parts = Iterator[tuple[str, pa.RecordBatch]]
