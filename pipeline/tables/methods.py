"""Table methods: the frames that say something, with what they say in plain columns and their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

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
from pipeline.tables.shape import shaped

if TYPE_CHECKING:
    from udfs.commands import Commands
    from udfs.methods import Methods
    from udfs.streams import Streams

KEY = ("connection_id", "frame_no")
READ_ARGUMENTS = {**HOT_ARGUMENTS, "name": "string"}  # in one pass; the name is that of a link


def shown_methods() -> Methods:
    """How workers make the table out of frames."""
    from udfs.methods import Methods

    return Methods(METHODS, METHOD_FRAMES, NAMES_LINK, tuple(replies()), coordination())


def streams() -> Streams:
    """How workers find queues that are streams."""
    from udfs.streams import Streams

    return Streams(TELLS_STREAM)


def coordination() -> Commands:
    """Commands to transaction coordinators, as workers find them."""
    from udfs.commands import Commands

    return Commands(COMMANDS_TO, COORDINATES)


def answered(requests: DataFrame, replies: DataFrame) -> DataFrame:
    """Rows of table methods with what the `replies` of the history say of them."""
    asked = requests.drop(*(name for name in replies.columns if name not in KEY))
    return shaped(asked.join(replies, list(KEY), "left"), METHODS)
