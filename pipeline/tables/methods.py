"""Table methods: the frames that say something, with what they say in plain columns and their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.schemas import METHODS
from pipeline.tables.roles import (
    COMMANDS_TO,
    COORDINATES,
    HOT_ARGUMENTS,
    METHOD_FRAMES,
    NAMES_LINK,
    TELLS_STREAM,
    replies,
)

if TYPE_CHECKING:
    from udfs.conversation.commands import Commands
    from udfs.conversation.methods import Methods
    from udfs.conversation.streams import Streams

READ_ARGUMENTS = {**HOT_ARGUMENTS, "name": "string"}  # in one pass; the name is that of a link


def shown_methods() -> Methods:
    """How workers make the table out of frames."""
    from udfs.conversation.methods import Methods

    return Methods(METHODS, METHOD_FRAMES, NAMES_LINK, tuple(replies()), coordination())


def streams() -> Streams:
    """How workers find queues that are streams."""
    from udfs.conversation.streams import Streams

    return Streams(TELLS_STREAM)


def coordination() -> Commands:
    """Commands to transaction coordinators, as workers find them."""
    from udfs.conversation.commands import Commands

    return Commands(COMMANDS_TO, COORDINATES)
