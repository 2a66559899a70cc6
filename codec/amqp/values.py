"""Second pass over finished rows: the octets that the stream decoder kept become VARIANT arguments and properties.

A kernel of its own, so that framing and values are compiled (and can be profiled) apart. It stops where a writer has no
room left, and goes on from that row when it is called again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic import decode_arguments, decode_properties
from codec.amqp.message_1_0 import decode_described
from codec.amqp.scalars_1_0 import Scratch, new_scratch
from codec.amqp.tables import ClassicTables, classic_tables
from codec.amqp.tables_1_0 import ValueTables, WireTables, described_tables
from codec.amqp.versions import (
    CLASSIC,
    DESCRIBED,
    E_ARGUMENTS,
    E_DEPTH,
    E_PROPERTIES,
    E_VALUE_SIZE,
    FAMILY_OF_VERSION,
    HEADER,
    MALFORMED,
    METHOD,
    PROTOCOL_HEADER,
)
from codec.kernel import kernel
from codec.variant import FULL, OK, TOO_DEEP, TOO_LARGE, begin, begin_object, end_object, finish, key, put_int, rollback
from codec.variant.writer import METADATA, VALUE

HEADER_KEYS = np.frombuffer(b"protocol_idmajorminorrevision", np.uint8).copy()
HEADER_KEY_AT = np.array([0, 11, 16, 21, 29], np.int64)


class Definitions(NamedTuple):
    """What the octets of each family are decoded by."""

    classic: ClassicTables
    wire: WireTables
    values: ValueTables
    scratch: Scratch


def definitions() -> Definitions:
    """The tables of all versions."""
    return Definitions(classic_tables(), *described_tables(), new_scratch())


@kernel
def put_protocol_header(octets, start, w):
    """The four octets after "AMQP" by the names of the 0-9-1 and 1.0 specifications."""
    begin(w)
    begin_object(w)
    for i in range(4):
        key(w, HEADER_KEYS, int(HEADER_KEY_AT[i]), int(HEADER_KEY_AT[i + 1]))
        put_int(w, int(octets[start + i]))
    end_object(w)
    return finish(w)


@kernel
def note_code(row, code, misfit):
    """Say on the row what went wrong with its values; `misfit`: the error when they do not fit their definition."""
    row[R.STATUS] = MALFORMED
    if code == TOO_LARGE:
        row[R.ERROR] = E_VALUE_SIZE
    elif code == TOO_DEEP:
        row[R.ERROR] = E_DEPTH
    elif row[R.ERROR] == 0:
        row[R.ERROR] = misfit


@kernel
def decode_values(cells, octets, first, t, arguments, properties):
    """Decode rows `first` to the end of `cells`: the row at which a writer is full (to be done again), or their number."""
    for index in range(first, cells.shape[0]):
        row = cells[index]
        start = int(cells[index - 1, R.OCTETS_END]) if index > 0 else 0
        stop = int(row[R.OCTETS_END])
        definition = int(row[R.DEFINITION])
        kind = int(row[R.TYPE])
        code, misfit = OK, E_ARGUMENTS
        if kind == PROTOCOL_HEADER:
            code = put_protocol_header(octets, start, arguments)
        elif definition >= 0 and FAMILY_OF_VERSION[row[R.VERSION]] == CLASSIC:
            version = int(row[R.VERSION])
            if kind == METHOD:
                code, _ = decode_arguments(octets, start, stop, t.classic, version, definition, arguments)
            elif kind == HEADER:
                misfit = E_PROPERTIES
                code, _ = decode_properties(octets, start, stop, t.classic, version, definition, properties)
        elif definition >= 0 and FAMILY_OF_VERSION[row[R.VERSION]] == DESCRIBED:
            code = decode_described(
                octets, start, stop, row, definition, t.wire, t.values, t.scratch, arguments, properties
            )
        if code == FULL:
            rollback(properties if kind == HEADER else arguments)
            return index
        if code != OK:
            note_code(row, code, misfit)
        row[R.ARGUMENTS_END] = arguments.positions[VALUE]
        row[R.ARGUMENTS_META_END] = arguments.positions[METADATA]
        row[R.PROPERTIES_END] = properties.positions[VALUE]
        row[R.PROPERTIES_META_END] = properties.positions[METADATA]
    return cells.shape[0]
