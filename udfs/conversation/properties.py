"""Properties of messages as columns, out of VARIANT `properties`, as each version keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.variant import decode
from codec.variant.reading import OTHER, TIME
from udfs.arrow.fields import Values, are_objects, fields_and_insides, read_as, values_of
from udfs.arrow.octets import text_or_hex

Place = tuple[str, str, str]  # section ('a.b' for nested ones, '' for none), property, type: of `fields`, or 'any'


def properties(column: pa.StructArray, wanted: Mapping[str, Place]) -> dict[str, pa.Array]:
    """The `wanted` properties by column; 'any' is a value of any type as text, 'object' whether it is one."""
    found: dict[str, pa.Array] = {}
    sections: dict[str, dict[str, tuple[str, str]]] = {}
    for name, (section, own_name, kind) in wanted.items():
        sections.setdefault(section, {})[name] = (own_name, kind)
    values = values_of(column)
    within: dict[str, Values] = {"": values}
    for section in sections:
        path = ""
        for part in section.split(".") if section else ():
            whole = f"{path}.{part}" if path else part
            if whole not in within:
                within[whole] = fields_and_insides(within[path], {}, (part,))[1][part]
            path = whole
    for section, places in sections.items():
        plain = {own: kind for own, kind in places.values() if kind not in ("any", "object")}
        containers = tuple(own for own, kind in places.values() if kind in ("any", "object"))
        columns, insides = fields_and_insides(within[section], plain, containers)
        for name, (own, kind) in places.items():
            if kind == "any":
                found[name] = as_text(insides[own])
            elif kind == "object":
                found[name] = pa.array(are_objects(insides[own]))
            else:
                found[name] = columns[own]
    return found


def as_text(values: Values) -> pa.Array:
    """Values of any type as text: octets as UTF-8 where they are, else as lower-case hex; null where there is none."""
    kinds, read = read_as(values, ("binary", "bigint", "boolean"))
    text = pc.coalesce(
        text_or_hex(read["binary"]),
        read["bigint"].cast(pa.string()),
        read["boolean"].cast(pa.string()),
    )
    others = np.flatnonzero((kinds == OTHER) | (kinds == TIME))
    if len(others):  # decimals, as unsigned numbers above 2**63 are, and what no sender should put there
        texts = text.to_pylist()
        for row in others.tolist():
            octets = values.octets[values.starts[row] : values.stops[row]].tobytes()
            words = values.words[values.words_starts[row] : values.words_stops[row]].tobytes()
            texts[row] = _text(decode(octets, words))
        text = pa.array(texts, pa.string())
    return text


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, separators=(",", ":"))
    return str(value)
