"""What methods do to channels, links and messages, as numbers for the kernel behind `udfs.conversation.history`, which
knows no method by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.tables.roles import (
    CLASSIC_VERSIONS,
    CLOSES_CHANNEL,
    CLOSES_LINK,
    DECLARES_QUEUE,
    LOSSES,
    METHOD_FRAMES,
    MODES,
    OPENED_CHANNEL,
    OPENS_CHANNEL,
    OPENS_LINK,
    OPERATIONS,
    OUTSIDE_TRANSACTIONS,
    SESSION_VERSIONS,
    SETS_PREFETCH,
    SETTLEMENTS,
    SETTLES_ALL,
    TELLS_QUEUE_TYPE,
    TRANSACTION_ENDS,
    replies,
    request_groups,
)

if TYPE_CHECKING:
    from udfs.conversation.history import MethodRoles

# Texts by number, from 1 on, in the order in which `codec.conversation.channels.state` and
# `codec.conversation.settlement` name the first of them.
TEXTS = {
    "operations": ("publish", "deliver", "get", "return"),
    "modes": ("confirm", "tx", "dtx"),
    "transactions": ("committed", "rolled-back"),
    "outcomes": tuple(dict.fromkeys(["unsettled", "unknown", "presettled", *SETTLEMENTS.values()])),
    "kinds": tuple(dict.fromkeys(OPENS_LINK.values())),
}


def method_roles() -> MethodRoles:
    """The effects of the methods of the classic family, for the kernel."""
    from udfs.conversation.history import MethodRoles, Said

    groups = request_groups()
    numbers = {group: number for number, group in enumerate(sorted(set(groups.values())), start=1)}

    def number(kind: str, text: str | None) -> int:
        return 0 if text is None else TEXTS[kind].index(text) + 1

    roles = {
        name: {
            "operation": number("operations", OPERATIONS.get(name)),
            "dialogue": numbers.get(groups.get(name, ""), 0),
            "asks": int(name in replies()),
            "answers": int(name in groups and name not in replies()),
            "opens_channel": int(name in OPENS_CHANNEL),
            "opened_channel": int(name in OPENED_CHANNEL),
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
        for name in sorted({*groups, *OPERATIONS, *(method for method, _, _ in SETTLEMENTS)})
    }
    said = Said(CLASSIC_VERSIONS, SESSION_VERSIONS, METHOD_FRAMES, tuple(roles), LOSSES)
    return MethodRoles(roles, SETTLEMENTS, TEXTS, said, TELLS_QUEUE_TYPE)
