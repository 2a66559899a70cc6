"""Parts of tables: what Python workers make of the frames of connections, one after the other.

There is one definition of them, in `udfs`, and two ways to them: jobs have workers write them into files as they decode
(`pipeline.decoding.Written`); `Followed` are rows of Spark, made when they are asked for.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Protocol

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.schemas import CHANNELS, FRAMES, LINKS, MESSAGES, METHODS
from pipeline.shared import shared
from pipeline.tables.connections import frame_counts, speaks
from pipeline.tables.frames import frames
from pipeline.tables.history import method_roles
from pipeline.tables.messages import shown_messages
from pipeline.tables.methods import READ_ARGUMENTS, shown_methods, streams
from pipeline.tables.roles import COMMANDS_TO, METHOD_FRAMES, TELLS_STREAM, named, replies
from udfs import parts

if TYPE_CHECKING:
    from udfs.past import Recipe

IN_ORDER = ("connection_id", "frame_no")


class Parts(Protocol):
    """Where parts come from."""

    @property
    def decoded(self) -> DataFrame:
        """The decoded rows (`udfs.schemas.DECODED`)."""

    def part(self, name: str) -> DataFrame | None:
        """The rows of a part (`schemas`); None if there are none."""

    def held(self, name: str, rows: DataFrame) -> DataFrame:
        """`rows` that several tables are made of: the same, computed once."""


def schemas() -> dict[str, StructType]:
    """Part -> its columns."""
    # Here, not above, as in the following: the kernels take a second to load, and tables already written need none.
    from udfs import past
    from udfs.counting import COUNTED
    from udfs.streams import STREAMS

    return {
        parts.SAID: FRAMES,
        parts.FRAME_COUNTS: COUNTED,
        parts.STREAM_QUEUES: STREAMS,
        parts.METHODS: METHODS,
        parts.REQUESTS: METHODS,
        **past.schemas(MESSAGES, CHANNELS, LINKS),
    }


def stream_queues(methods: DataFrame) -> DataFrame:
    """Rows of table methods, or of frames -> queues that are streams (`udfs.streams.STREAMS`)."""
    from udfs.streams import OF_METHODS, STREAMS

    return methods.filter(named(TELLS_STREAM)).select(*OF_METHODS).mapInArrow(streams(), STREAMS)


def recipe(payload: bool, waiting_bytes: int | None = None) -> Recipe:
    """How workers follow connections. `payload`: with the bytes of messages; `waiting_bytes`: of one connection that
    are held until it ends (`udfs.messages`)."""
    from udfs.past import Recipe

    most = () if waiting_bytes is None else (waiting_bytes,)
    return Recipe(method_roles(), shown_messages(payload), CHANNELS, LINKS, *most)


class Followed:
    """Parts of `decoded` rows, which are read several times. `kept`: rows that Spark keeps once they are computed,
    because several tables are made of them; with `payload` the bodies of messages are among them. Several threads may
    ask."""

    def __init__(self, decoded: DataFrame, *, payload: bool) -> None:
        self.decoded, self.kept = decoded, list[DataFrame]()
        self._payload = payload
        self.lock = RLock()

    def part(self, name: str) -> DataFrame | None:
        if name in (parts.METHODS, parts.REQUESTS):
            return self._methods(name)
        if name == parts.SAID:
            return frames(self.decoded).filter(speaks())
        if name == parts.FRAME_COUNTS:
            return self._counts()
        if name == parts.STREAM_QUEUES:
            return stream_queues(frames(self.decoded))
        return self._past.filter(F.col(f"`{name}`").isNotNull()).select(f"`{name}`.*")

    def held(self, name: str, rows: DataFrame) -> DataFrame:
        self.kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    def _methods(self, part: str) -> DataFrame:
        from udfs.methods import MethodRows

        spoken = frames(self.decoded).filter(F.col("frame_type").isin(*METHOD_FRAMES))
        if part == parts.REQUESTS:
            # The others, most of them, need not be looked at.
            spoken = spoken.filter(named((*replies(), *COMMANDS_TO)))
        read = [name for name in spoken.columns if name in METHODS.names or name in ("frame_type", "properties")]
        return spoken.select(*read).mapInArrow(MethodRows(shown_methods(), READ_ARGUMENTS, part), METHODS)

    def _counts(self) -> DataFrame:
        from udfs.counting import COUNTED, OF_FRAMES, CountRows

        return frames(self.decoded).select(*OF_FRAMES).mapInArrow(CountRows(frame_counts()), COUNTED)

    @shared
    def _past(self) -> DataFrame:
        """All other parts, a struct each: one exchange by connection, one pass over its frames."""
        from udfs.past import PastRows

        rows = PastRows(recipe(self._payload), READ_ARGUMENTS)
        return self.held(
            "past",
            frames(self.decoded)
            .select(*rows.columns)
            .repartition("connection_id")
            .sortWithinPartitions(*IN_ORDER)
            .mapInArrow(rows, rows.schema),
        )
