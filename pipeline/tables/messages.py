"""Table messages: one row each time a message crossed the wire.

Workers put messages together out of their frames, as `shown_messages` tells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.schemas import MESSAGES
from pipeline.tables.properties import CLASSIC, NOT_0_10, NOT_1_0, NOT_CLASSIC, PERSISTENT, V0_10, V1_0
from pipeline.tables.roles import CLASSIC_VERSIONS

if TYPE_CHECKING:
    from udfs.conversation.contents import Shown

BODY_FRAMES = ("body", "oob-body")
# Arguments of the method of a message that are columns of the table.
CLASSIC_ARGUMENTS = ("exchange", "routing_key", "redelivered", "mandatory", "immediate")


def shown_messages(payload: bool) -> tuple[Shown, ...]:
    """How workers make the table out of the frames of each family."""
    from udfs.conversation.contents import Shown

    return tuple(
        Shown(MESSAGES, versions, and_unknown, BODY_FRAMES, arguments, properties, absent, PERSISTENT, payload)
        for versions, and_unknown, arguments, properties, absent in (
            (CLASSIC_VERSIONS, True, CLASSIC_ARGUMENTS, CLASSIC, NOT_CLASSIC),
            (("0-10",), False, (), V0_10, NOT_0_10),
            (("1.0",), False, ("handle",), V1_0, NOT_1_0),
        )
    )
