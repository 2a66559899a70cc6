"""What is left of the tables to be made by Spark, where Python workers have written the most of them.

    written = decode_into(spark, captures, scratch, tables)
    Remainder(written).of("messages")        # those that are not in `written.moved("messages", ...)`, or None

Workers see one connection after the other: what needs nothing else they write as it is decoded. Left are replies, the
messages of the session families, and those of connections that were handed over (`udfs.messages`).
"""

from __future__ import annotations

from functools import reduce
from threading import RLock

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.decoding import Written
from pipeline.derivation import Derivation
from pipeline.shared import shared
from pipeline.tables.channels import channels, ended
from pipeline.tables.families import Family, families
from pipeline.tables.links import links
from pipeline.tables.messages import concluded, messages
from pipeline.tables.methods import answered
from pipeline.tables.returns import returned
from pipeline.tables.roles import SESSION_VERSIONS
from pipeline.tables.settlement import settled_by_ledger
from udfs.schemas import SETTLED

MADE_IN_PART = ("channels", "links", "methods", "messages")


class Remainder:
    """What is not `written` of the tables: `of(name)`, a DataFrame, or None where it is all there. Several threads may
    ask."""

    def __init__(self, written: Written, *, payload: bool = False) -> None:
        self._written, self._payload, self._versions = written, payload, written.versions()
        self._whole = Derivation(written.decoded, payload=payload, versions=self._versions)
        self._kept: list[DataFrame] = []
        self.lock = RLock()

    def of(self, table: str) -> DataFrame | None:
        """The rows of a table that are not written yet."""
        left: DataFrame | None = getattr(self if table in MADE_IN_PART else self._whole, table)
        return left

    def release(self) -> None:
        """Drop the rows that Spark has kept."""
        for rows in self._kept:
            rows.unpersist()
        self._whole.release()

    @shared
    def channels(self) -> DataFrame:
        counts = self._written.counts
        if self._settled is not None:
            counts = counts.unionByName(ended(self._settled))
        own = channels(self._written.history("life"), counts)
        return reduce(DataFrame.unionByName, (family.channels for family in self._families), own)

    @shared
    def links(self) -> DataFrame:
        own = links(self._written.history("link"))
        return reduce(DataFrame.unionByName, (family.links for family in self._families), own)

    @shared
    def methods(self) -> DataFrame | None:
        requests = self._written.requests
        return None if requests is None else answered(requests, [self._written.history("reply")])

    @shared
    def messages(self) -> DataFrame | None:
        parts = []
        if self._families:
            states = {family.name: family.messages for family in self._families}
            theirs = self._whole.frames.filter(F.col("version").isin(*SESSION_VERSIONS))
            parts.append(messages(states, [], theirs, payload=self._payload))
        left = self._written.open_messages
        if left is not None:
            settled = left.sparkSession.createDataFrame([], SETTLED) if self._settled is None else self._settled
            parts.append(concluded(left, settled, returned(self._whole.frames)))
        return reduce(DataFrame.unionByName, parts) if parts else None

    @shared
    def _settled(self) -> DataFrame | None:
        """What became of the messages that were handed over."""
        events = self._written.events
        if events is None:
            return None
        settled = settled_by_ledger(events).persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(settled)
        return settled

    @shared
    def _families(self) -> list[Family]:
        spoken = self._versions & set(SESSION_VERSIONS)
        found = families(self._whole.frames, spoken) if spoken else []
        self._kept += (rows for family in found for rows in family.kept)
        return found
