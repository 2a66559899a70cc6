"""The tables of decoded rows, each planned when it is first asked for.

    derived = Derivation(parts)
    derived.of("connections").write...     # plans this table and what it is made of, nothing else

Workers see one connection after the other: what needs nothing else they make (`pipeline.parts`). Left to Spark are
replies, the messages of connections that were handed over (`udfs.messages`), and what is said of many frames. Planning
a table takes Spark a second or more, however few rows there are, and a job may want few.
"""

from __future__ import annotations

from functools import reduce
from threading import RLock

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pipeline.parts import Parts, schemas
from pipeline.schemas import TABLES
from pipeline.shared import shared
from pipeline.tables.captures import captures
from pipeline.tables.channels import channels, ended
from pipeline.tables.connections import connections
from pipeline.tables.flows import OF_MESSAGES, message_flows
from pipeline.tables.frames import frames
from pipeline.tables.links import links
from pipeline.tables.messages import concluded
from pipeline.tables.methods import answered
from pipeline.tables.settlement import settled_by_ledger
from pipeline.tables.streams import streams
from udfs.parts import (
    CHANNELS,
    COUNTS,
    EVENTS,
    FRAME_COUNTS,
    LINKS,
    LINKS_OF_SESSIONS,
    LIVES,
    MESSAGES,
    METHODS,
    OPEN,
    REPLIES,
    REQUESTS,
    SAID,
    STREAM_QUEUES,
)
from udfs.schemas import SETTLED

WHOLE = (METHODS, MESSAGES)  # parts that are rows of the table of this name


class Derivation:
    """Tables out of `parts`. Several threads may ask for them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.lock = RLock()

    def of(self, table: str) -> DataFrame | None:
        """The rows of a table that are in none of its parts; None if there are none."""
        left: DataFrame | None = getattr(self, table)
        return left

    def whole(self, table: str) -> DataFrame:
        """All rows of a table."""
        found = [self._parts.part(table) if table in WHOLE else None, self.of(table)]
        rows = [part for part in found if part is not None]
        return reduce(DataFrame.unionByName, rows) if rows else self._none(TABLES[table])

    @shared
    def captures(self) -> DataFrame:
        return captures(self._parts.decoded)

    @shared
    def frames(self) -> DataFrame:
        return frames(self._parts.decoded)

    @shared
    def streams(self) -> DataFrame:
        return streams(self._parts.decoded)

    @shared
    def connections(self) -> DataFrame:
        return connections(self._parts.decoded, self._part(SAID), self._part(FRAME_COUNTS))

    @shared
    def channels(self) -> DataFrame:
        counts = self._part(COUNTS)
        if self._settled is not None:
            counts = counts.unionByName(ended(self._settled))
        own = channels(self._part(LIVES), counts)
        return own.unionByName(self._part(CHANNELS))

    @shared
    def links(self) -> DataFrame:
        own = links(self._part(LINKS))
        return own.unionByName(self._part(LINKS_OF_SESSIONS))

    @shared
    def methods(self) -> DataFrame | None:
        requests = self._parts.part(REQUESTS)
        if requests is None:
            return None
        return answered(requests, self._part(REPLIES))

    @shared
    def messages(self) -> DataFrame | None:
        handed_over = self._parts.part(OPEN)
        if handed_over is None:
            return None
        return concluded(handed_over, self._none(SETTLED) if self._settled is None else self._settled)

    @shared
    def message_flows(self) -> DataFrame:
        to_pair = self._parts.held("to_pair", self.whole("messages").select(*OF_MESSAGES))
        return message_flows(to_pair, self.connections, self.stream_queues)

    @property
    def stream_queues(self) -> DataFrame | None:
        """Queues that are streams (`udfs.streams.STREAMS`); None if there are none."""
        return self._parts.part(STREAM_QUEUES)

    @shared
    def _settled(self) -> DataFrame | None:
        """What became of the messages that were handed over."""
        events = self._parts.part(EVENTS)
        if events is None:
            return None
        return self._parts.held("settled", settled_by_ledger(events))

    def _part(self, name: str) -> DataFrame:
        rows = self._parts.part(name)
        return self._none(schemas()[name]) if rows is None else rows

    def _none(self, schema: StructType) -> DataFrame:
        return self._parts.decoded.sparkSession.createDataFrame([], schema)
