"""What the state of sessions gives, family by family: the same parts for each.

    found = families(all_frames, held, versions={"0-9-1", "1.0"})

A family that does not occur is left out: planning its part costs Spark seconds, however few rows there are. What
several tables are made of is `held`: computed once, and in files a table of its own, whose plan others do not repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pipeline.tables.credit_0_10 import without_credit
from pipeline.tables.deliveries_1_0 import placed_performatives, replies, settled_deliveries
from pipeline.tables.links_0_10 import links_0_10
from pipeline.tables.links_1_0 import links_1_0
from pipeline.tables.properties import DESCRIBED, SEGMENTED
from pipeline.tables.sessions import sessions
from pipeline.tables.transfers_0_10 import placed_commands, settled_transfers

Held = Callable[[str, DataFrame], DataFrame]  # a name for rows, rows -> the same, computed once


@dataclass(frozen=True)
class Family:
    """`name` as in `properties`. `channels`, `links`: rows of those tables. `messages`: what the state tells of each
    message (`messages.STATE`). `replies`: of requests, as `udfs.parts.REPLIES`; None where the family has none."""

    name: str
    channels: DataFrame
    links: DataFrame
    messages: DataFrame
    replies: DataFrame | None = None


def segmented(frames: DataFrame, held: Held) -> Family:
    """0-10."""
    commands = held("commands", placed_commands(frames))
    transfers = held("transfers", settled_transfers(commands))
    credit = without_credit(commands, frames)
    return Family(SEGMENTED, sessions(transfers), links_0_10(transfers, credit), transfers)


def described(frames: DataFrame, held: Held) -> Family:
    """1.0."""
    performatives = held("performatives", placed_performatives(frames))
    deliveries = held("deliveries", settled_deliveries(performatives))
    return Family(DESCRIBED, sessions(deliveries), links_1_0(deliveries), deliveries, replies(deliveries))


FAMILIES: dict[str, Callable[[DataFrame, Held], Family]] = {"0-10": segmented, "1.0": described}  # by version


def families(frames: DataFrame, held: Held, versions: Collection[str]) -> list[Family]:
    """The families of `versions`."""
    return [make(frames, held) for version, make in FAMILIES.items() if version in versions]
