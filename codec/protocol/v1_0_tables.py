"""The fact table of AMQP 1.0: dataclasses by name, and arrays for kernels.

It is read once from the JSON file of `codec.protocol.spec`, with the fields that have a secret in `overlay.json`. No
performative, composite or section is defined in code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from codec.memory import as_records
from codec.names import SIDES
from codec.protocol.classic_tables import classic_tables
from codec.protocol.disclosure import SECRETS, SHOW_SASL_NAMES, describes_peer, disclosure
from codec.protocol.rows import NAMES
from codec.protocol.versions import AMQP, SASL, V0_9_1, fact_table
from codec.variant import KnownKeys, known_keys

# Primitive types; a bit each in the types that a field may have, and one more for any described value.
TYPES = (
    *("null", "boolean", "ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long", "float", "double"),
    *("decimal32", "decimal64", "decimal128", "char", "timestamp", "uuid", "binary", "string", "symbol"),
    *("list", "map", "array", "described"),
)
NULL, BOOLEAN, UBYTE, USHORT, UINT, ULONG, BYTE, SHORT_INT, INT, LONG, FLOAT, DOUBLE = range(12)
DECIMAL32, DECIMAL64, DECIMAL128, CHAR, TIMESTAMP, UUID, BINARY, STRING, SYMBOL = range(12, 21)
LIST, MAP, ARRAY, DESCRIBED_VALUE = range(21, 25)
UNDEFINED = -1

FRAMING = ("open", "attach", "detach", "transfer")  # performatives that the framing reads
CATEGORIES = ("fixed", "variable", "compound", "array")
FIXED, VARIABLE, COMPOUND, ARRAY_OF = range(len(CATEGORIES))

BODY_KINDS = {"data": "data", "amqp-sequence": "sequence", "amqp-value": "value"}
# Sections by their order in a message; those from DATA to VALUE are kinds of body.
DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = range(
    1, 9
)


@dataclass(frozen=True)
class Field:
    """One field of a composite. `key`: its key in a row; `types`: bit mask over TYPES of its allowed types;
    `disclosure`: SHOW_ALL or another code of `codec.protocol.disclosure`."""

    name: str
    key: str
    types: int
    mandatory: bool
    multiple: bool
    disclosure: int
    describes_peer: bool = False


@dataclass(frozen=True)
class Descriptor:
    """One descriptor. `fields` is None for restricted types (annotations, data ...), whose value is not a list of
    fields.

    `frame_type`: FRAME_TYPES code when it is the body of a frame; `section`: its order in a message. -1: none."""

    code: int
    symbol: str
    name: str
    part: str
    fields: tuple[Field, ...] | None
    frame_type: int
    sender: int
    section: int


# One constructor byte: `type` (TYPES code), `category`, `width` bytes of the value (FIXED) or of the length before
# it, `constant` value of those without bytes.
CONSTRUCTOR = np.dtype([("type", "i8"), ("category", "i8"), ("width", "i8"), ("constant", "i8")], align=True)
# One descriptor: `name` number among the names of rows; where `text` has its symbol and its name; its fields, and the
# index of the first of them that may hold a secret.
DESCRIPTOR = np.dtype(
    [
        *((name, "i8") for name in ("code", "name", "symbol_from", "symbol_end", "text_from", "text_end")),
        *((name, "i8") for name in ("composite", "frame_type", "sender", "section", "transactional", "framing")),
        *((name, "i8") for name in ("field_from", "field_end", "secret")),
    ],
    align=True,
)
OF_FIELD = ("types", "mandatory", "multiple", "disclosure", "describes_peer")
FIELD = np.dtype([(name, "i8") for name in OF_FIELD], align=True)


# Descriptor indexes of the performatives that the framing reads, and indexes of their fields.
INDEX_OF = np.dtype(
    [
        (name, "i8")
        for name in (
            "open", "attach", "detach", "transfer", "max_frame_size", "channel_max", "attach_handle", "role", "target",
            "detach_handle", "handle", "delivery_id", "message_format", "more", "resume", "aborted",
        )
    ],
    align=True,
)  # fmt: skip


class WireTables(NamedTuple):
    """Tables for reading values; -1 means none. They are few arrays, since each is seven arguments of every kernel.

    `constructor` CONSTRUCTOR (256,); `descriptor` DESCRIPTOR (n,); `field` FIELD (all fields, in that order); `by_code`
    int64 (256,): descriptor index by numeric descriptor; `text` uint8: symbols and names; `index_of` PLACES (1,).
    """

    constructor: np.ndarray
    descriptor: np.ndarray
    field: np.ndarray
    by_code: np.ndarray
    text: np.ndarray
    index_of: np.ndarray


class ValueTables(NamedTuple):
    """Further tables for writing values.

    `section` int64 (9, 3): per section its number in the message's keys, and for composites that of its first field,
    and their descriptor index. `span` int64 (28, 2): where `WireTables.text` has the names of TYPES, then of
    BODY_KINDS. `tags`: kinds of field-table tags, for AMQPLAIN (as in `ClassicTables.tag_kind`). `keys`: one set per
    descriptor (its fields, then "type"); then set `message_set`: sections but those of the body, `body_kind_key`,
    `body_key`, `body_value_key`, fields of the sections that are composites; then set `fixed_key_set`: WORDS.
    """

    section: np.ndarray
    span: np.ndarray
    tags: np.ndarray
    keys: KnownKeys
    message_set: int
    fixed_key_set: int
    body_kind_key: int
    body_key: int
    body_value_key: int


FIXED_KEYS = ("descriptor", "value", "key", "type", "count", "hex")
# numpy integers: numba compiles a kernel once more for every Python constant that it is called with
DESCRIPTOR_KEY, VALUE_KEY, MAP_KEY, TYPE_KEY, COUNT_KEY, HEX_KEY = np.arange(len(FIXED_KEYS))


@lru_cache
def _types_of(name: str) -> int:
    """Mask of TYPES that a field of type `name` (primitive, restricted or composite) may have on the wire."""
    if name in TYPES:
        return 1 << TYPES.index(name)
    table = fact_table("1.0")
    restricted = {entry["name"]: entry for entry in table["restricted_types"]}.get(name)
    if restricted is None or "descriptor" in restricted:
        return 1 << DESCRIBED_VALUE
    return _types_of(restricted["source_type"])


def _field_types(described: dict[str, Any]) -> int:
    if described["type"] != "*":
        return _types_of(described["type"])
    table = fact_table("1.0")
    every = table["composite_types"] + table["restricted_types"]
    provided = [_types_of(entry["name"]) for entry in every if described.get("requires") in entry["provides"]]
    mask = 0
    for types in provided or [(1 << len(TYPES)) - 1]:
        mask |= types
    return mask


def _field(described: dict[str, Any], of: str) -> Field:
    """A field of composite `of`."""
    name = described["name"]
    key, policy = disclosure(of, name)
    mandatory, multiple = described["mandatory"], described["multiple"]
    return Field(name, key, _field_types(described), mandatory, multiple, policy, describes_peer(of, name))


@lru_cache
def descriptors() -> tuple[Descriptor, ...]:
    """Every descriptor of the fact table: composites with their fields, and described restricted types."""
    table = fact_table("1.0")
    composites = {entry["name"]: entry for entry in table["composite_types"]}
    sasl = {entry["name"]: entry for entry in table["sasl_frames"]}
    frame_types = {entry["name"]: AMQP for entry in table["performatives"]} | dict.fromkeys(sasl, SASL)
    sections = {entry["name"]: entry["order"] for entry in table["message_sections"]}
    found = []
    for entry in table["descriptor_index"]:
        name, fields = entry["name"], None
        if name in composites:
            fields = tuple(_field(described, name) for described in composites[name]["fields"])
        sender = sasl[name]["sent_by"] if name in sasl else "both"
        found.append(
            Descriptor(
                entry["code"],
                entry["symbol"],
                name,
                entry["part"],
                fields,
                frame_types.get(name, -1),
                SIDES.index(sender) if sender in SIDES else -1,
                sections.get(name, -1),
            )
        )
    return tuple(found)


def _key_sets() -> list[list[str]]:
    sets = [[*(field.key for field in described.fields or ()), FIXED_KEYS[TYPE_KEY]] for described in descriptors()]
    sections = sorted((d for d in descriptors() if d.section >= 0), key=lambda d: d.section)
    message = [described.name.replace("-", "_") for described in sections if described.name not in BODY_KINDS]
    message += ["body_kind", "body", "body_value"]
    for described in sections:
        message += [field.key for field in described.fields or ()]
    return [*sets, message, list(FIXED_KEYS)]


def _constructors() -> np.ndarray:
    array = np.full(256, UNDEFINED, CONSTRUCTOR)
    for primitive in fact_table("1.0")["primitive_types"]:
        for encoding in primitive["encodings"]:
            constant = encoding.get("value")
            array[encoding["code"]] = (
                TYPES.index(primitive["name"]),
                CATEGORIES.index(encoding["category"]),
                encoding["width"],
                constant if isinstance(constant, int) else 0,
            )
    return as_records(array)


def _index_of() -> np.ndarray:
    index = {described.name: number for number, described in enumerate(descriptors())}

    def field_index(name: str, field: str) -> int:
        return [known.name for known in descriptors()[index[name]].fields or ()].index(field)

    array = np.zeros(1, INDEX_OF)
    array[0] = (
        *(index[name] for name in FRAMING),
        *(field_index("open", name) for name in ("max-frame-size", "channel-max")),
        *(field_index("attach", name) for name in ("handle", "role", "target")),
        field_index("detach", "handle"),
        *(
            field_index("transfer", name)
            for name in ("handle", "delivery-id", "message-format", "more", "resume", "aborted")
        ),
    )
    return as_records(array)


def _sections(message: list[str]) -> np.ndarray:
    """By section in order: number of its key, and of its first field's key, in the message's keys; its descriptor."""
    array = np.full((len(BODY_KINDS) + 6, 3), -1, np.int64)
    for index, described in enumerate(descriptors()):
        if described.section >= 0 and described.name not in BODY_KINDS:
            array[described.section, 0] = message.index(described.name.replace("-", "_"))
            if described.fields:
                array[described.section, 1] = message.index(described.fields[0].key, message.index("body"))
                array[described.section, 2] = index
    return array


class _Texts:
    """Texts end to end."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, text: str) -> tuple[int, int]:
        start = len(self.data)
        self.data += text.encode()
        return start, len(self.data)


def _first_secret(fields: tuple[Field, ...]) -> int:
    """Index of the first secret field, or else of one that names mechanisms; -1: none."""
    by_policy = {each.disclosure: index for index, each in reversed(tuple(enumerate(fields)))}
    secrets = [by_policy[policy] for policy in SECRETS if policy in by_policy]
    return min(secrets, default=by_policy.get(SHOW_SASL_NAMES, -1))


def _descriptors(texts: _Texts) -> np.ndarray:
    array = np.zeros(len(descriptors()), DESCRIPTOR)
    field = 0
    for index, described in enumerate(descriptors()):
        fields = described.fields or ()
        array[index] = (
            described.code,
            NAMES.index(described.name) if described.frame_type >= 0 else -1,
            *texts.add(described.symbol),
            *texts.add(described.name),
            described.fields is not None,
            described.frame_type,
            described.sender,
            described.section,
            described.part == "transactions",
            described.name in FRAMING,
            field,
            field + len(fields),
            _first_secret(fields),
        )
        field += len(fields)
    return as_records(array)


@lru_cache
def v1_0_tables() -> tuple[WireTables, ValueTables]:
    """The arrays of version 1.0."""
    every = descriptors()
    by_code = np.full(256, -1, np.int64)
    for index, described in enumerate(every):
        by_code[described.code] = index
    fields = [field for described in every for field in described.fields or ()]
    texts = _Texts()
    descriptor = _descriptors(texts)
    span = np.array([texts.add(text) for text in (*TYPES, *BODY_KINDS.values())], np.int64)
    wire = WireTables(
        _constructors(),
        descriptor,
        as_records(
            np.array([(f.types, f.mandatory, f.multiple, f.disclosure, f.describes_peer) for f in fields], FIELD)
        ),
        by_code,
        np.frombuffer(texts.data, np.uint8),
        _index_of(),
    )
    sets = _key_sets()
    message = sets[len(every)]
    tags = np.ascontiguousarray(classic_tables().tag_kind[V0_9_1])
    body_keys = (message.index(name) for name in ("body_kind", "body", "body_value"))
    return wire, ValueTables(_sections(message), span, tags, known_keys(sets), len(every), len(every) + 1, *body_keys)
