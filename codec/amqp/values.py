"""Second pass over rows: the octets that the stream decoder stored become VARIANT arguments and properties.

Framing and values have separate kernels, so that they are compiled and profiled separately. A kernel stops at the row
for which a writer has no room, and continues from that row when it is called again. Cost: linear in the octets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from codec import variant as W
from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp import versions as V
from codec.amqp.classic.methods import decode_arguments, decode_properties
from codec.amqp.classic.tables import classic_tables
from codec.amqp.v0_10.containers import new_stack
from codec.amqp.v0_10.detect import content_length
from codec.amqp.v0_10.tables import V0_10Tables, v0_10_keys, v0_10_tables
from codec.amqp.v0_10.values import HEADER_SEGMENT, decode_segment
from codec.amqp.v1_0.message import decode_frame
from codec.amqp.v1_0.scalars import Scratch, new_scratch
from codec.amqp.v1_0.tables import ValueTables, WireTables, v1_0_tables
from codec.compiler.kernel import kernel
from codec.variant.writer import METADATA, VALUE

HEADER_KEYS = np.frombuffer(b"protocol_idmajorminorrevision", np.uint8).copy()
HEADER_KEY_AT = np.array([0, 11, 16, 21, 29], np.int64)


class V0_10Values(NamedTuple):
    """Tables and scratch (`stack`) of 0-10."""

    tables: V0_10Tables
    keys: W.KnownKeys
    stack: np.ndarray


class V1_0Values(NamedTuple):
    """Tables and scratch of 1.0."""

    wire: WireTables
    values: ValueTables
    scratch: Scratch


def definitions() -> dict[int, tuple[Callable[..., int], tuple[Any, ...]]]:
    """By family: the kernel that decodes its values, and the tables that the kernel reads."""
    return {
        V.CLASSIC: (classic_values, classic_tables()),
        V.V0_10_FAMILY: (v0_10_values, V0_10Values(v0_10_tables(), v0_10_keys(), new_stack())),
        V.V1_0_FAMILY: (v1_0_values, V1_0Values(*v1_0_tables(), new_scratch())),
    }


@kernel
def put_protocol_header(octets, start, w):
    """Write the four octets after "AMQP" under their names in the 0-9-1 and 1.0 specifications."""
    W.begin(w)
    W.begin_object(w)
    for i in range(4):
        W.key(w, HEADER_KEYS, int(HEADER_KEY_AT[i]), int(HEADER_KEY_AT[i + 1]))
        W.put_int(w, int(octets[start + i]))
    W.end_object(w)
    return W.finish(w)


@kernel
def note_code(row, code, misfit):
    """Set status and error of a row whose values did not decode with OK. `misfit`: the error of values that do not fit
    their definition; those of a frame that lost bytes cannot fit."""
    if row[R.STATUS] == V.PARTIAL:
        row[R.ERROR] = V.E_MISSING_VALUES
    else:
        row[R.STATUS] = V.MALFORMED
    if code == W.TOO_LARGE:
        row[R.ERROR] = V.E_VALUE_SIZE
    elif code == W.TOO_DEEP:
        row[R.ERROR] = V.E_DEPTH
    elif row[R.ERROR] == 0:
        row[R.ERROR] = misfit


@kernel
def finish_row(row, code, misfit, arguments, properties):
    """Set status, error, notes and the ends of values of a row after decoding; False when a writer is full and the row
    must be decoded again."""
    if code == W.FULL:
        return False
    if code != W.OK:
        note_code(row, code, misfit)
    if row[R.STATUS] != V.PARTIAL:
        row[R.NOTES] |= arguments.positions[W.NOTES] | properties.positions[W.NOTES]
    if arguments.positions[W.ESCAPED] > 0 or properties.positions[W.ESCAPED] > 0:
        row[R.NOTES] |= N.NOT_UTF8
        if row[R.STATUS] == V.OK:
            row[R.STATUS] = V.MALFORMED
            row[R.ERROR] = V.E_TEXT
    if arguments.positions[W.MASKED] > 0 or properties.positions[W.MASKED] > 0:
        row[R.NOTES] |= N.USERINFO
    arguments.positions[W.MASKED] = properties.positions[W.MASKED] = 0
    arguments.positions[W.NOTES] = properties.positions[W.NOTES] = 0
    arguments.positions[W.ESCAPED] = properties.positions[W.ESCAPED] = 0
    row[R.ARGUMENTS_END] = arguments.positions[VALUE]
    row[R.ARGUMENTS_META_END] = arguments.positions[METADATA]
    row[R.PROPERTIES_END] = properties.positions[VALUE]
    row[R.PROPERTIES_META_END] = properties.positions[METADATA]
    return True


@kernel
def _octets_from(cells, index):
    return int(cells[index - 1, R.OCTETS_END]) if index > 0 else 0


@kernel
def classic_values(cells, octets, first, stop, t, arguments, properties):
    """Decode rows `first` to `stop` of the classic or of an unknown family: the row at which a writer is full, or
    `stop`."""
    for index in range(first, stop):
        row = cells[index]
        start, end = _octets_from(cells, index), int(row[R.OCTETS_END])
        definition, kind, version = int(row[R.DEFINITION]), int(row[R.TYPE]), int(row[R.VERSION])
        code, misfit, cut = W.OK, V.E_ARGUMENTS, row[R.STATUS] == V.PARTIAL
        if kind == V.PROTOCOL_HEADER:
            code = put_protocol_header(octets, start, arguments)
        elif definition >= 0 and kind in (V.METHOD, V.OOB_METHOD):
            guarded = row[R.HANDSHAKE] != 0
            code, _ = decode_arguments(octets, start, end, t, version, definition, arguments, guarded, cut)
        elif definition >= 0 and kind in (V.HEADER, V.OOB_HEADER):
            misfit = V.E_PROPERTIES
            code, _ = decode_properties(octets, start, end, t, version, definition, properties, cut)
        if not finish_row(row, code, misfit, arguments, properties):
            return index
    return stop


@kernel
def v0_10_values(cells, octets, first, stop, t, arguments, properties):
    """`classic_values` for 0-10; `t`: V0_10Values."""
    for index in range(first, stop):
        row = cells[index]
        start, end = _octets_from(cells, index), int(row[R.OCTETS_END])
        definition, kind = int(row[R.DEFINITION]), int(row[R.TYPE])
        code, misfit = W.OK, V.E_ARGUMENTS
        if kind == V.PROTOCOL_HEADER:
            code = put_protocol_header(octets, start, arguments)
        elif definition >= 0:
            segment, writer = kind - V.CONTROL, arguments
            if kind == V.HEADER:
                segment, writer, misfit = HEADER_SEGMENT, properties, V.E_PROPERTIES
                row[R.BODY_SIZE] = content_length(octets, start, end, t.tables)
            guarded = row[R.HANDSHAKE] != 0
            code = decode_segment(octets, start, end, segment, definition, t.tables, t.keys, t.stack, writer, guarded)
        if not finish_row(row, code, misfit, arguments, properties):
            return index
    return stop


@kernel
def v1_0_values(cells, octets, first, stop, t, arguments, properties):
    """`classic_values` for 1.0; `t`: V1_0Values."""
    for index in range(first, stop):
        row = cells[index]
        start, end = _octets_from(cells, index), int(row[R.OCTETS_END])
        definition = int(row[R.DEFINITION])
        code = W.OK
        if row[R.TYPE] == V.PROTOCOL_HEADER:
            code = put_protocol_header(octets, start, arguments)
        elif definition >= 0:
            code = decode_frame(octets, start, end, row, definition, t.wire, t.values, t.scratch, arguments, properties)
        if not finish_row(row, code, V.E_ARGUMENTS, arguments, properties):
            return index
    return stop


def decode_values(cells, octets, first, stop, definitions, arguments, properties):  # type: ignore[no-untyped-def]
    """Decode rows `first` to `stop`: the row at which a writer is full (to be decoded again), or `stop`.

    Consecutive rows of one family go to the kernel of that family, so that only kernels in use are compiled.
    """
    family = V.FAMILY_OF_VERSION[cells[:stop, R.VERSION]]
    family[family == V.UNKNOWN_FAMILY] = V.CLASSIC
    changes = np.flatnonzero(np.diff(family)) + 1
    for end in [*changes[changes > first].tolist(), stop]:
        decode, tables = definitions[int(family[first])]
        stopped = int(decode(cells, octets, first, end, tables, arguments, properties))
        if stopped < end:
            return stopped
        first = end
    return first
