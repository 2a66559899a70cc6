"""What follows from the frames of connections, one after the other: the history of channels, and messages, in parts.

    past = Past(recipe)
    for part, rows in past.feed(frames, arguments): ...

A decoding worker writes the parts into files (`udfs.writing`). `PastRows` makes rows of Spark of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from udfs.arrow import arrow_schema
from udfs.contents import OF_FRAMES as OF_CONTENTS
from udfs.contents import Contents, Shown
from udfs.fields import fields
from udfs.history import OF_FRAMES, Follower, MethodRoles, Records, schema_of
from udfs.messages import WAITING_BYTES, Messages
from udfs.parts import CHANNELS, COUNTS, ENDED, EVENTS, HISTORY_OF, LINKS_OF_SESSIONS, MESSAGES, OPEN, Parts
from udfs.performatives import OF_FRAMES as OF_PERFORMATIVES
from udfs.rows import fitted, with_parts
from udfs.sessions import Sessions


def schemas(messages: StructType, channels: StructType, links: StructType) -> dict[str, StructType]:
    """Part -> its columns; those of tables are given."""
    history = {part: schema_of(kind) for kind, part in HISTORY_OF.items()}
    tables = {MESSAGES: messages, OPEN: messages, CHANNELS: channels, LINKS_OF_SESSIONS: links}
    return {**tables, EVENTS: schema_of("event"), COUNTS: ENDED, **history}


@dataclass(frozen=True)
class Recipe:
    """`roles`: what methods do; `shown`: how messages of each family are put together; `channels`, `links`: the columns
    of these tables; `waiting_bytes`: see `Messages`."""

    roles: MethodRoles
    shown: tuple[Shown, ...]
    channels: StructType
    links: StructType
    waiting_bytes: int = WAITING_BYTES

    @property
    def schemas(self) -> dict[str, StructType]:
        """Part -> its columns."""
        return schemas(self.shown[0].schema, self.channels, self.links)


class Past:
    """The history of channels, and the messages that are made of it."""

    def __init__(self, recipe: Recipe) -> None:
        self._follower = Follower(recipe.roles)
        sessions = Sessions(recipe.roles.said.losses)
        contents = [Contents(shown) for shown in recipe.shown]
        self._messages = Messages(self._follower, sessions, contents, recipe.waiting_bytes)
        self._schemas = {part: arrow_schema(kind) for part, kind in recipe.schemas.items()}

    def feed(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> Parts:
        """Take frames, those of a connection together and in order, at least one, and fields of
        their arguments -> part, rows."""
        found = self._follower.feed(frames, arguments)
        yield from self._shown(found)
        yield from self._tables(self._messages.feed(frames, arguments, found))

    def finish(self) -> Parts:
        """There are no more frames."""
        found = self._follower.finish()
        yield from self._shown(found)
        yield from self._tables(self._messages.finish(found))

    def _tables(self, parts: Parts) -> Parts:
        """Rows of tables channels and links have all of their columns."""
        for part, rows in parts:
            yield part, fitted(rows, self._schemas[part]) if part in (CHANNELS, LINKS_OF_SESSIONS) else rows

    def _shown(self, found: Mapping[str, Records]) -> Parts:
        return ((HISTORY_OF[kind], self._follower.shown(kind, found[kind])) for kind in found if kind in HISTORY_OF)


@dataclass(frozen=True)
class PastRows:
    """The function for `mapInArrow` over sorted frames (`columns`) -> rows of `schema`: a struct for each part, one of
    which is not null. `arguments`: what is read of those of methods, by name and type.

    A class of this module, not a nested function: that would travel to the workers with the kernels it names, and they
    would be compiled anew there.
    """

    recipe: Recipe
    arguments: dict[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of frames that are read."""
        payload = ("payload",) if self.recipe.shown[0].payload else ()
        return tuple(dict.fromkeys((*OF_FRAMES, *OF_PERFORMATIVES, *OF_CONTENTS, *payload)))

    @property
    def schema(self) -> StructType:
        return StructType([StructField(part, kind) for part, kind in self.recipe.schemas.items()])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kinds = {part: arrow_schema(kind) for part, kind in self.recipe.schemas.items()}
        schema = pa.schema([(part, pa.struct(list(kind))) for part, kind in kinds.items()])
        for part, rows in self._followed(batches):
            values = [rows[column.name].cast(column.type) for column in kinds[part]]
            present = pa.StructArray.from_arrays(values, fields=list(kinds[part]))
            columns = [present if name == part else pa.nulls(rows.num_rows, schema.field(name).type) for name in kinds]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _followed(self, batches: Iterator[pa.RecordBatch]) -> Parts:
        past = Past(self.recipe)
        for batch in batches:
            if batch.num_rows:
                frames = with_parts(batch)
                yield from past.feed(frames, fields(frames["arguments"], self.arguments))
        yield from past.finish()
