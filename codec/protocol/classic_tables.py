"""The fact tables of the classic family (0-8, 0-9, 0-9-1): dataclasses by name, and arrays for kernels.

They are read once from the JSON files of `codec.protocol.spec`, with additions in `overlay.json`. No method is
defined in code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from codec.names import CLASSIC_VERSIONS, SIDES
from codec.protocol.versions import FRAME_TYPES, VERSIONS, fact_table, overlay
from codec.variant import KnownKeys, known_keys

# Kinds of values in 0-8, 0-9 and 0-9-1: types of arguments, properties and field-table values.
#
# Method fields and field-table tags share one numbering, because their bytes are the same.


NAMES = (
    "undefined", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64",
    "decimal", "shortstr", "longstr", "binary", "character", "timestamp", "table", "array", "void", "bit", "content",
    "secret", "sasl-response", "sasl-name", "after-secret", "peer-table",
)  # fmt: skip
# SASL_NAME: a short string, the name of a SASL mechanism. AFTER_SECRET: a short string that follows a secret.
# PEER_TABLE: a table in which a peer describes itself.
(
    UNDEFINED, BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, FLOAT32, FLOAT64, DECIMAL, SHORTSTR,
    LONGSTR, BINARY, CHARACTER, TIMESTAMP, TABLE, ARRAY, VOID, BIT, CONTENT, SECRET, SASL_RESPONSE, SASL_NAME,
    AFTER_SECRET, PEER_TABLE,
) = range(len(NAMES))  # fmt: skip

# Bytes of a value; or, negative, the bytes of the length before it (1, 4), or of an byte and a length (5).
LENGTH_8, LENGTH_32, BYTE_AND_LENGTH_32, NO_VALUE = -1, -4, -5, -9
SIZE = np.array(
    [
        *(NO_VALUE, 1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, LENGTH_8, LENGTH_32, LENGTH_32, 1, 8, LENGTH_32, LENGTH_32, 0),
        *(NO_VALUE, BYTE_AND_LENGTH_32, LENGTH_32, LENGTH_32, LENGTH_8, LENGTH_8, LENGTH_32),
    ],
    np.int64,
)

# Names in the fact tables: types of fields and properties, and types of field-table tags.
OF_FIELD = {
    "bit": BIT, "octet": UINT8, "short": UINT16, "long": UINT32, "longlong": UINT64, "shortstr": SHORTSTR,
    "longstr": LONGSTR, "timestamp": TIMESTAMP, "table": TABLE, "content": CONTENT,
}  # fmt: skip
OF_TAG = {
    "bool": BOOL, "int8": INT8, "uint8": UINT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "uint32": UINT32,
    "int64": INT64, "uint64": UINT64, "float32": FLOAT32, "float64": FLOAT64,
    "decimal (uint8 scale + 32-bit value)": DECIMAL, "shortstr": SHORTSTR, "longstr": LONGSTR,
    "longstr (ascii)": LONGSTR, "longstr (wide)": LONGSTR, "uint8 character": CHARACTER,
    "array (uint32 byte length + tagged values)": ARRAY, "binary (uint32 length + bytes)": BINARY,
    "timestamp uint64": TIMESTAMP, "table": TABLE, "void": VOID,
}  # fmt: skip


RESERVED_PROPERTY = "reserved"  # name of the property that 0-9-1 reserves
CLASS_IDS, METHOD_IDS = 128, 544  # above every id of the fact tables (120, 530)
WITHOUT_CONTENT = 2  # of a method that is a message although no content follows
# Flags of a field: it may be omitted at the end of a method; it must be zero or empty. From UNUSED_SHIFT on, for the
# last bit of an byte of bits: the bits of the byte that must be zero.
OPTIONAL, RESERVED, UNUSED_SHIFT = 1, 2, 8


@dataclass(frozen=True)
class Field:
    """One argument of a method or property of a class. `key`: its key in a row; None for a secret."""

    name: str
    key: str | None
    kind: int
    optional: bool = False
    reserved: bool = False


@dataclass(frozen=True)
class Method:
    """One method of one version. `name` is 'class.method'; `replies` and `reply_to` are such names; a request is a
    method with `replies`. A reply is not a request, although file.stage is to follow file.open-ok. `sent_by` is
    'client', 'server' or 'both', extensions included."""

    version: str
    class_id: int
    method_id: int
    name: str
    sent_by: str
    content: bool
    replies: tuple[str, ...]
    reply_to: tuple[str, ...]
    fields: tuple[Field, ...]
    extension: str | None


@dataclass(frozen=True)
class ContentClass:
    """A class whose methods carry content; `properties` by flag bit (15 is the first)."""

    version: str
    class_id: int
    name: str
    properties: dict[int, Field]


class ClassicTables(NamedTuple):
    """Kernel arrays. First index `version` is a code of `codec.protocol.versions`; -1 means none.

    lookup int16 (versions, class id, method id): method index. Per method, int64: `method_name`, `method_content` 0, 1
    or WITHOUT_CONTENT, `method_ticket` 0/1 (a reserved short replaces the access ticket of older versions),
    `method_sender`,
    `method_secret` index of its first secret field, `method_authenticates` 0/1 (a client authenticates with it),
    `field_from` (one more), `field_room` bytes its fields may need above their size on the wire. Per field, int64:
    `field_kind`, `field_key` number in the key set of its method, `field_flags`. class_name (versions, class id): name
    of a class with content; class_index likewise. Per such class: `property_kind`, `property_key` (classes, flag bit),
    `reserved_flags` bits of its reserved properties. tag_kind (versions, 256): kind of a field-table tag. frame_kind
    (versions, 256): code of FRAME_TYPES. start, tune_ok (versions,): method index. start_version (versions, 2): major
    and minor in connection.start. `keys`: key sets of the methods, then of the classes with content from set number
    len(method_name) on. Names index `classic_names()`.
    """

    lookup: np.ndarray
    method_name: np.ndarray
    method_content: np.ndarray
    method_ticket: np.ndarray
    method_sender: np.ndarray
    method_secret: np.ndarray
    method_authenticates: np.ndarray
    field_from: np.ndarray
    field_room: np.ndarray
    field_kind: np.ndarray
    field_key: np.ndarray
    field_flags: np.ndarray
    class_name: np.ndarray
    class_index: np.ndarray
    property_kind: np.ndarray
    property_key: np.ndarray
    reserved_flags: np.ndarray
    tag_kind: np.ndarray
    frame_kind: np.ndarray
    start: np.ndarray
    start_version: np.ndarray
    tune_ok: np.ndarray
    keys: KnownKeys


def _field(definition: dict[str, Any], of: str, optional: bool) -> Field:
    """A field of method `of`, or a property of the class `of`."""
    name, facts = definition["name"], overlay()
    renamed, secrets = facts["key_names"], facts["credentials"].get(of, {})
    in_practice = definition.get("practice_name", name)
    key: str | None = renamed.get(in_practice, in_practice).replace("-", "_")
    kind = OF_FIELD[definition["type"]]
    if name in secrets:
        by_mechanism = "user_from" in secrets[name]
        key, kind = ("user", SASL_RESPONSE) if by_mechanism else (secrets[name].get("size_as"), SECRET)
    elif name in facts["sasl_names"].get(of, ()):
        kind = SASL_NAME
    elif name in facts["describes_peer"].get(of, ()):
        kind = PEER_TABLE
    return Field(name, key, kind, optional, definition.get("reserved", name == RESERVED_PROPERTY))


def _after_secrets(fields: list[Field]) -> tuple[Field, ...]:
    """`fields`, with the kind AFTER_SECRET for short strings after a secret."""
    first = _first_secret(fields)
    return tuple(
        replace(field, kind=AFTER_SECRET) if 0 <= first < i and field.kind == SHORTSTR else field
        for i, field in enumerate(fields)
    )


def _first_secret(fields: Sequence[Field]) -> int:
    """Index of the first secret field; -1: none."""
    return next((i for i, field in enumerate(fields) if field.kind in (SECRET, SASL_RESPONSE)), -1)


def _method(version: str, of_class: dict[str, Any], definition: dict[str, Any]) -> Method:
    class_name = of_class["name"]
    name = f"{class_name}.{definition['name']}"
    fields = [_field(field, name, False) for field in definition["fields"]]
    fields += [_field(field, name, True) for field in definition.get("optional_trailing_fields", [])]
    pairs = overlay()["replies"].get(version, {})
    are_replies = {each["name"] for each in of_class["methods"] if each["response_to"]}
    replies = [f"{class_name}.{reply}" for reply in definition["responses"] if definition["name"] not in are_replies]
    requests = [f"{class_name}.{request}" for request in definition["response_to"] if request not in are_replies]
    replies += [reply for request, reply in pairs.items() if request == name]
    requests += [request for request, reply in pairs.items() if reply == name]
    return Method(
        version,
        of_class["index"],
        definition["index"],
        name,
        overlay()["sent_by"].get(version, {}).get(name) or definition.get("sent_by_extension", definition)["sent_by"],
        definition["content"],
        tuple(replies),
        tuple(requests),
        _after_secrets(fields),
        definition.get("extension"),
    )


def _methods_of(version: str, defined_by: str) -> list[Method]:
    table = fact_table(defined_by)["classes"]
    found = [_method(defined_by, of_class, definition) for of_class in table for definition in of_class["methods"]]
    return [replace(method, version=version) for method in found]


@lru_cache
def methods(version: str) -> tuple[Method, ...]:
    """Every method of a classic version ('0-8', '0-9', '0-9-1'): those of its document, then extensions.

    Numbers are unique, names are not: with a 0-9 header basic.recover is 100, and 110 with RabbitMQ.
    """
    known = _methods_of(version, version)
    extra = overlay()["extra_methods"].get(version)
    if extra:
        known += [method for method in _methods_of(version, extra["from"]) if method.name in extra["methods"]]
    return tuple(known)


@lru_cache
def method_name(version: str, class_id: int, method_id: int) -> str | None:
    """'basic.publish' for ('0-9-1', 60, 40); None when the version does not define it."""
    return {(m.class_id, m.method_id): m.name for m in methods(version)}.get((class_id, method_id))


@lru_cache
def content_classes(version: str) -> tuple[ContentClass, ...]:
    """The classes of a classic version that have content."""
    return tuple(
        ContentClass(
            version,
            of_class["index"],
            of_class["name"],
            {each["flag_bit"]: _field(each, of_class["name"], False) for each in of_class["properties"]},
        )
        for of_class in fact_table(version)["classes"]
        if any(definition["content"] for definition in of_class["methods"])
    )


@lru_cache
def tag_kinds(version: str) -> dict[str, int]:
    """Field-table tag -> kind (`codec.protocol.classic_tables`): as in practice, else as specified."""
    tags = fact_table(version)["field_table"]["tags"]
    return {tag["tag"]: OF_TAG[(tag["practice"] or tag["spec"])["type"]] for tag in tags}


@lru_cache
def printed_kinds(version: str) -> dict[str, int]:
    """Field-table tag -> kind as specified, for tags whose value has another width in practice."""
    tags = fact_table(version)["field_table"]["tags"]
    both = {tag["tag"]: (tag["spec"], tag["practice"]) for tag in tags if tag["spec"] and tag["practice"]}
    return {tag: OF_TAG[spec["type"]] for tag, (spec, practice) in both.items() if spec["width"] != practice["width"]}


@lru_cache
def classic_names() -> tuple[str, ...]:
    """Names of methods ('basic.publish') and of classes with content ('basic'), each once."""
    names = {method.name: None for version in CLASSIC_VERSIONS for method in methods(version)}
    names.update({of_class.name: None for version in CLASSIC_VERSIONS for of_class in content_classes(version)})
    return tuple(names)


def key_set(fields: tuple[Field, ...]) -> list[str]:
    """Keys of `fields` in order. A `content` argument has two: inline content under its own name, or a reference."""
    keys: list[str] = []
    for field in fields:
        if field.key is not None:
            keys.append(field.key)
            if field.kind == CONTENT:
                keys.append(f"{field.key}_reference")
    return keys


def _room(fields: tuple[Field, ...]) -> int:
    """Bytes that the values of `fields`, except tables, may need as VARIANT beyond their size on the wire."""
    # the widest form less the bytes on the wire: an integer of n bytes takes up to 1 + 2n, text up to 5 and itself
    above = {BIT: 1, UINT64: 10, TIMESTAMP: 10}
    return sum(above.get(field.kind, 5) for field in fields)


@lru_cache
def classic_tables() -> ClassicTables:
    """The arrays of all three versions."""
    every = [method for version in CLASSIC_VERSIONS for method in methods(version)]
    classes = [of_class for version in CLASSIC_VERSIONS for of_class in content_classes(version)]
    alone = overlay()["without_content"]["methods"]
    key_sets = [key_set(method.fields) for method in every]
    key_sets += [key_set(tuple(of_class.properties.values())) for of_class in classes]
    names = {name: number for number, name in enumerate(classic_names())}
    fields = [(field, keys) for method, keys in zip(every, key_sets, strict=False) for field in method.fields]
    lookup = np.full((len(VERSIONS), CLASS_IDS, METHOD_IDS), -1, np.int16)
    for index, method in enumerate(every):
        lookup[VERSIONS.index(method.version), method.class_id, method.method_id] = index
    class_name, class_index, property_kind, property_key, reserved_flags = _class_arrays(classes, names)
    return ClassicTables(
        lookup,
        np.array([names[method.name] for method in every], np.int64),
        np.array([WITHOUT_CONTENT if m.name in alone else int(m.content) for m in every], np.int64),
        np.array([_reserves_ticket(method) for method in every], np.int64),
        np.array([SIDES.index(m.sent_by) if m.sent_by in SIDES else -1 for m in every], np.int64),
        np.array([_first_secret(method.fields) for method in every], np.int64),
        np.array([method.name in overlay()["handshake"]["methods"] for method in every], np.int64),
        np.cumsum([0] + [len(method.fields) for method in every], dtype=np.int64),
        np.array([_room(method.fields) for method in every], np.int64),
        np.array([field.kind for field, _ in fields], np.int64),
        np.array([keys.index(field.key) if field.key else -1 for field, keys in fields], np.int64),
        np.array([flags for method in every for flags in _field_flags(method)], np.int64),
        class_name,
        class_index,
        property_kind,
        property_key,
        reserved_flags,
        _tag_array(),
        _frame_array(),
        _named_array(every, "connection.start"),
        _start_array(),
        _named_array(every, "connection.tune-ok"),
        known_keys(key_sets),
    )


def _field_flags(method: Method) -> list[int]:
    """Flags of the fields of a method."""
    in_use = overlay()["reserved_in_use"].get(method.name, {}).get("fields", ())
    flags, bit = [], 0
    following = [*(field.kind for field in method.fields[1:]), None]
    for field, after in zip(method.fields, following, strict=False):
        own = (OPTIONAL if field.optional else 0) | (RESERVED if field.reserved and field.name not in in_use else 0)
        if field.kind == BIT:
            bit += 1
            if bit == 8 or after != BIT:
                own |= (0xFF << bit & 0xFF) << UNUSED_SHIFT
                bit = 0
        flags.append(own)
    return flags


def _reserves_ticket(method: Method) -> bool:
    return bool(method.fields) and method.fields[0].reserved and method.fields[0].kind == UINT16


def _named_array(every: list[Method], name: str) -> np.ndarray:
    array = np.full(len(VERSIONS), -1, np.int64)
    for index, method in enumerate(every):
        if method.name == name:
            array[VERSIONS.index(method.version)] = index
    return array


def _start_array() -> np.ndarray:
    array = np.full((len(VERSIONS), 2), -1, np.int64)
    for version in CLASSIC_VERSIONS:
        numbers = fact_table(version)["protocol_header"]["start_version"]
        array[VERSIONS.index(version)] = numbers["major"], numbers["minor"]
    return array


def _class_arrays(classes: list[ContentClass], names: dict[str, int]) -> tuple[np.ndarray, ...]:
    class_name = np.full((len(VERSIONS), CLASS_IDS), -1, np.int64)
    class_index = np.full((len(VERSIONS), CLASS_IDS), -1, np.int64)
    property_kind = np.full((len(classes), 16), UNDEFINED, np.int64)
    property_key = np.full((len(classes), 16), -1, np.int64)
    reserved_flags = np.zeros(len(classes), np.int64)
    for index, of_class in enumerate(classes):
        key = VERSIONS.index(of_class.version), of_class.class_id
        class_name[key], class_index[key] = names[of_class.name], index
        for number, (bit, field) in enumerate(of_class.properties.items()):
            property_kind[index, bit], property_key[index, bit] = field.kind, number
            reserved_flags[index] |= field.reserved << bit
    return class_name, class_index, property_kind, property_key, reserved_flags


def _tag_array() -> np.ndarray:
    array = np.full((len(VERSIONS), 256), UNDEFINED, np.int64)
    for version in CLASSIC_VERSIONS:
        for tag, kind in tag_kinds(version).items():
            array[VERSIONS.index(version), ord(tag)] = kind
    return array


def _frame_array() -> np.ndarray:
    array = np.full((len(VERSIONS), 256), -1, np.int64)
    for version in CLASSIC_VERSIONS:
        for frame in fact_table(version)["frame_types"]:
            if frame["defined"]:
                array[VERSIONS.index(version), frame["value"]] = FRAME_TYPES.index(frame["name"])
    return array
