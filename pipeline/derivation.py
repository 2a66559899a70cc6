"""The tables of decoded rows, each planned when it is first asked for.

    derived = Derivation(rows, versions={"0-9-1"})
    derived.connections.write...     # plans this table and what it is made of, nothing else

Planning a table takes Spark a second or more, however few rows there are, and a job may want few tables.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from threading import RLock

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from pipeline.shared import shared
from pipeline.tables.captures import captures
from pipeline.tables.connections import connections
from pipeline.tables.families import Family, families
from pipeline.tables.flows import OF_MESSAGES, message_flows
from pipeline.tables.frames import frames
from pipeline.tables.messages import messages
from pipeline.tables.methods import methods
from pipeline.tables.streams import streams


class Derivation:
    """`decoded` (`udfs.schemas.DECODED`) is read several times: it should come from files, or be persisted. `payload`
    fills column `body` of messages. `versions`: those that occur, where the caller knows; the others are not planned
    for. Each table is an attribute; several threads may ask for them."""

    def __init__(self, decoded: DataFrame, *, payload: bool = False, versions: Collection[str] | None = None) -> None:
        self._decoded, self._payload, self._versions = decoded, payload, versions
        self._kept: list[DataFrame] = []
        self.lock = RLock()

    @property
    def persisted(self) -> tuple[DataFrame, ...]:
        """Rows that Spark keeps once they are computed, because several tables are made of them."""
        return tuple(self._kept)

    def release(self) -> None:
        """Drop these rows."""
        for rows in self._kept:
            rows.unpersist()

    @shared
    def captures(self) -> DataFrame:
        return captures(self._decoded)

    @shared
    def frames(self) -> DataFrame:
        return frames(self._decoded)

    @shared
    def streams(self) -> DataFrame:
        return streams(self._decoded)

    @shared
    def connections(self) -> DataFrame:
        return connections(self._decoded)

    @shared
    def channels(self) -> DataFrame:
        return reduce(DataFrame.unionByName, (family.channels for family in self._families))

    @shared
    def links(self) -> DataFrame:
        return reduce(DataFrame.unionByName, (family.links for family in self._families))

    @shared
    def methods(self) -> DataFrame:
        return methods(self.frames, [family.replies for family in self._families if family.replies is not None])

    @shared
    def messages(self) -> DataFrame:
        states = {family.name: family.messages for family in self._families}
        settled = [family.settled for family in self._families if family.settled is not None]
        return messages(states, settled, self.frames, payload=self._payload)

    @shared
    def message_flows(self) -> DataFrame:
        to_pair = self.messages.select(*OF_MESSAGES).persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(to_pair)
        return message_flows(to_pair, self.connections)

    @shared
    def _families(self) -> list[Family]:
        found = families(self.frames, self._versions)
        self._kept += (rows for family in found for rows in family.kept)
        return found
