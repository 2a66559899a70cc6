"""What the state of channels and sessions gives, family by family: the same five parts for each.

    found = families(all_frames, versions={"0-9-1"})

A family that does not occur is left out: planning its part costs Spark seconds, however few rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from pipeline.tables.channels import channels, ended
from pipeline.tables.credit_0_10 import without_credit
from pipeline.tables.deliveries_1_0 import placed_performatives, settled_deliveries
from pipeline.tables.history import history, kind_of
from pipeline.tables.links import links
from pipeline.tables.links_0_10 import links_0_10
from pipeline.tables.links_1_0 import links_1_0
from pipeline.tables.properties import CLASSIC, DESCRIBED, SEGMENTED
from pipeline.tables.roles import CLASSIC_VERSIONS
from pipeline.tables.sessions import sessions
from pipeline.tables.settlement import settled_by_ledger
from pipeline.tables.transfers_0_10 import placed_commands, settled_transfers


@dataclass(frozen=True)
class Family:
    """`name` as in `properties`. `channels`, `links`: rows of those tables. `messages`: what the state tells of each
    message (`messages.STATE`); `settled`: what became of them, where that stands apart. `replies`: requests with their
    answers. `kept`: rows that several of these are made of, persisted."""

    name: str
    channels: DataFrame
    links: DataFrame
    messages: DataFrame
    settled: DataFrame | None
    replies: DataFrame | None
    kept: tuple[DataFrame, ...]


def classic(frames: DataFrame) -> Family:
    """0-8, 0-9, 0-9-1, and rows of no known version."""
    past = history(frames).persist(StorageLevel.MEMORY_AND_DISK)
    settled = settled_by_ledger(kind_of(past, "event")).persist(StorageLevel.MEMORY_AND_DISK)
    return Family(
        CLASSIC,
        channels=channels(kind_of(past, "life"), ended(settled)),
        links=links(kind_of(past, "link")),
        messages=kind_of(past, "message"),
        settled=settled,
        replies=kind_of(past, "reply"),
        kept=(past, settled),
    )


def segmented(frames: DataFrame) -> Family:
    """0-10."""
    commands = placed_commands(frames).persist(StorageLevel.MEMORY_AND_DISK)
    transfers = settled_transfers(commands).persist(StorageLevel.MEMORY_AND_DISK)
    credit = without_credit(commands, frames)
    kept = (commands, transfers)
    return Family(SEGMENTED, sessions(transfers), links_0_10(transfers, credit), transfers, None, None, kept)


def described(frames: DataFrame) -> Family:
    """1.0."""
    performatives = placed_performatives(frames).persist(StorageLevel.MEMORY_AND_DISK)
    deliveries = settled_deliveries(performatives).persist(StorageLevel.MEMORY_AND_DISK)
    return Family(
        DESCRIBED, sessions(deliveries), links_1_0(deliveries), deliveries, None, None, (performatives, deliveries)
    )


FAMILIES: dict[Callable[[DataFrame], Family], frozenset[str]] = {
    classic: frozenset(CLASSIC_VERSIONS),
    segmented: frozenset({"0-10"}),
    described: frozenset({"1.0"}),
}


def families(frames: DataFrame, versions: Collection[str] | None = None) -> list[Family]:
    """The families of `versions`, of all where that is None; the classic one where none of them is known."""
    wanted = [make for make, its in FAMILIES.items() if versions is None or its & set(versions)]
    return [make(frames) for make in wanted or [classic]]
