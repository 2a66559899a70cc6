"""Events for the settlement engine, as sessions of 0-10 and 1.0 make them: a ledger is what one side sent on a session.

Ids are serial numbers (RFC 1982) of 32 bits: delivery numbers of 1.0, command ids of 0-10.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.tables.session_roles import SERIAL

RANGES = "array<struct<first: bigint, last: bigint>>"
EVENT = "struct<ledger: bigint, opens: boolean, first: bigint, last: bigint, outcome: string, final: boolean>"
EVENTS = f"array<{EVENT}>"


def ledger(side: Column) -> Column:
    """The ledger of what `side` sent on the row's session; null where `side` is."""
    return F.when(side.isNotNull(), F.xxhash64("session_channel", "channel_life", side))


def no_events() -> Column:
    """An array of events without any."""
    return F.array().cast(EVENTS)


def opening(side: Column, number: Column) -> Column:
    """The event that `side` sent something under `number`."""
    return _event(side, True, number, F.lit(None), F.lit(None), F.lit(True))


def settling(side: Column, first: Column, last: Column, outcome: Column, final: Column) -> Column:
    """The event that what `side` sent under `first` to `last` is settled, or (not `final`) has an outcome."""
    return _event(side, False, first, last, outcome, final)


def _event(side: Column, opens: bool, first: Column, last: Column, outcome: Column, final: Column) -> Column:
    return F.struct(ledger(side), F.lit(opens), first, last, outcome, final).cast(EVENT)


def ranges(first: Column, last: Column) -> Column:
    """Array of the ranges of numbers from `first` to `last`: two where they pass the highest number, none where `last`
    is not after `first` (more than half of all numbers away)."""
    sense = F.pmod(last - first, F.lit(SERIAL)) < SERIAL // 2
    one = F.array(F.struct(first.alias("first"), last.alias("last")))
    passing = F.array(
        F.struct(first.alias("first"), F.lit(SERIAL - 1).cast("bigint").alias("last")),
        F.struct(F.lit(0).cast("bigint").alias("first"), last.alias("last")),
    )
    return F.when(sense, F.when(first <= last, one).otherwise(passing)).otherwise(F.array().cast(RANGES))
