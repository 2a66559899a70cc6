"""History: what happens on each life of each channel, computed in one pass over the methods of a connection.

What a method does comes from `roles`; the kernel behind `udfs.history` knows the rules and no method. One exchange by
connection; the pass gives five kinds of rows (`udfs.history.KINDS`): messages, events for the settlement engine, lives
of channels, links, requests with their answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.tables.events import has_a_say, stateful
from pipeline.tables.roles import (
    CLASSIC_VERSIONS,
    CLOSES_CHANNEL,
    CLOSES_LINK,
    DECLARES_QUEUE,
    METHOD_FRAMES,
    MODES,
    OPENS_CHANNEL,
    OPENS_LINK,
    OPERATIONS,
    OUTSIDE_TRANSACTIONS,
    SESSION_VERSIONS,
    SETS_PREFETCH,
    SETTLEMENTS,
    SETTLES_ALL,
    TRANSACTION_ENDS,
    dialogue_of,
    replies,
)

if TYPE_CHECKING:
    from udfs.history import MethodRoles

# Texts by number, from 1 on, in the order in which `codec.channel_state` and `codec.settlement` name the first of them.
TEXTS = {
    "operations": ("publish", "deliver", "get", "return"),
    "modes": ("confirm", "tx", "dtx"),
    "transactions": ("committed", "rolled-back"),
    "outcomes": tuple(dict.fromkeys(["unsettled", "unknown", "presettled", *SETTLEMENTS.values()])),
    "kinds": tuple(dict.fromkeys(OPENS_LINK.values())),
}
IN_ORDER = ("connection_id", "frame_no")


def history(frames: DataFrame) -> DataFrame:
    """`frames` (or decoded rows of kind 'frame') -> HISTORY, rows of several kinds; `kind_of` gives those of one."""
    # Here, not above: the kernel behind it takes a second to load, and tables already written need none.
    from udfs.history import HISTORY, OF_FRAMES, ChannelHistory

    return (
        frames.filter(has_a_say())
        .select(*OF_FRAMES)
        .repartition("connection_id")
        .sortWithinPartitions(*IN_ORDER)
        .mapInArrow(ChannelHistory(method_roles()), HISTORY)
    )


def kind_of(history: DataFrame, kind: str) -> DataFrame:
    """The rows of one kind, with its columns."""
    from udfs.history import slots_of

    columns = {
        name: F.col(slot).cast("boolean") if truth else F.col(slot) for name, (slot, truth) in slots_of(kind).items()
    }
    return history.filter(F.col("kind") == kind).select(*(value.alias(name) for name, value in columns.items()))


def method_roles() -> MethodRoles:
    """What the methods of the classic family do, for the kernel."""
    from udfs.history import MethodRoles, Said

    dialogues = dialogue_of()
    numbers = {dialogue: number for number, dialogue in enumerate(sorted(set(dialogues.values())), start=1)}

    def number(kind: str, text: str | None) -> int:
        return 0 if text is None else TEXTS[kind].index(text) + 1

    roles = {
        name: {
            "operation": number("operations", OPERATIONS.get(name)),
            "dialogue": numbers.get(dialogues.get(name, ""), 0),
            "asks": int(name in replies()),
            "answers": int(name in dialogues and name not in replies()),
            "opens_channel": int(name in OPENS_CHANNEL),
            "closes_channel": int(name in CLOSES_CHANNEL),
            "mode": number("modes", MODES.get(name)),
            "ends_transaction": number("transactions", TRANSACTION_ENDS.get(name)),
            "declares": int(name in DECLARES_QUEUE),
            "opens_link": number("kinds", OPENS_LINK.get(name)),
            "closes_link": int(name in CLOSES_LINK),
            "prefetch": int(name in SETS_PREFETCH),
            "settles_all": int(name in SETTLES_ALL),
            "outside_transactions": int(name in OUTSIDE_TRANSACTIONS),
        }
        for name in stateful()
    }
    said = Said(CLASSIC_VERSIONS, SESSION_VERSIONS, METHOD_FRAMES, tuple(stateful()))
    return MethodRoles(roles, SETTLEMENTS, TEXTS, said)
