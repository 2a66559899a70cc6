"""What the state of sessions gives, family by family: the same parts for each.

    found = families(all_frames, versions={"0-9-1", "1.0"})

A family that does not occur is left out: planning its part costs Spark seconds, however few rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from pipeline.tables.credit_0_10 import without_credit
from pipeline.tables.deliveries_1_0 import placed_performatives, settled_deliveries
from pipeline.tables.links_0_10 import links_0_10
from pipeline.tables.links_1_0 import links_1_0
from pipeline.tables.properties import DESCRIBED, SEGMENTED
from pipeline.tables.sessions import sessions
from pipeline.tables.transfers_0_10 import placed_commands, settled_transfers


@dataclass(frozen=True)
class Family:
    """`name` as in `properties`. `channels`, `links`: rows of those tables. `messages`: what the state tells of each
    message (`messages.STATE`). `kept`: rows that several of these are made of, persisted."""

    name: str
    channels: DataFrame
    links: DataFrame
    messages: DataFrame
    kept: tuple[DataFrame, ...]


def segmented(frames: DataFrame) -> Family:
    """0-10."""
    commands = placed_commands(frames).persist(StorageLevel.MEMORY_AND_DISK)
    transfers = settled_transfers(commands).persist(StorageLevel.MEMORY_AND_DISK)
    credit = without_credit(commands, frames)
    kept = (commands, transfers)
    return Family(SEGMENTED, sessions(transfers), links_0_10(transfers, credit), transfers, kept)


def described(frames: DataFrame) -> Family:
    """1.0."""
    performatives = placed_performatives(frames).persist(StorageLevel.MEMORY_AND_DISK)
    deliveries = settled_deliveries(performatives).persist(StorageLevel.MEMORY_AND_DISK)
    return Family(DESCRIBED, sessions(deliveries), links_1_0(deliveries), deliveries, (performatives, deliveries))


FAMILIES: dict[str, Callable[[DataFrame], Family]] = {"0-10": segmented, "1.0": described}  # by version


def families(frames: DataFrame, versions: Collection[str] | None = None) -> list[Family]:
    """The families of `versions`, of all where that is None."""
    return [make(frames) for version, make in FAMILIES.items() if versions is None or version in versions]
