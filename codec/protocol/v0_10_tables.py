"""The fact table of AMQP 0-10: dataclasses by name, and arrays for kernels.

It is read once from a JSON file of `codec.protocol.spec`, the fields that have a secret from `overlay.json`. Controls,
commands and structs are *entries*: an ordered list of fields after packing flags. No entry is defined in code. The
*form* of a type tells how its bytes are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from codec.names import SIDES
from codec.protocol import classic_tables as K
from codec.protocol.disclosure import SECRETS, SHOW_SHORT_TEXT, describes_peer, disclosure
from codec.protocol.rows import NAMES
from codec.protocol.versions import fact_table, overlay
from codec.variant import KnownKeys, known_keys

KINDS = ("controls", "commands", "structs")
CONTROL_ENTRY, COMMAND_ENTRY, STRUCT_ENTRY = range(len(KINDS))
NUMBERS = 16  # above every class, control, command and struct code

# Forms: the kinds of the classic family where the bytes are the same, and forms that only 0-10 has.
# LATIN, UTF16, UTF32 in the order of `codec.variant.scalars`.
UUID, DECIMAL64, TEXT, LATIN, UTF16, UTF32, RANGES = range(len(K.NAMES), len(K.NAMES) + 7)
MAP, LIST, ARRAY_OF, STRUCT32, STRUCT = range(RANGES + 1, RANGES + 6)
TYPES_OF_FORM = {
    K.BINARY: "bin8 bin16 bin32 bin64 bin128 bin256 bin512 bin1024 bin40 bin72 vbin8 vbin16 vbin32", K.INT8: "int8",
    K.INT16: "int16", K.INT32: "int32", K.INT64: "int64", K.UINT8: "uint8", K.UINT16: "uint16",
    K.UINT32: "uint32 sequence-no", K.UINT64: "uint64", K.BOOL: "boolean", K.FLOAT32: "float", K.FLOAT64: "double",
    K.TIMESTAMP: "datetime", K.DECIMAL: "dec32", K.VOID: "void", K.BIT: "bit", DECIMAL64: "dec64", UUID: "uuid",
    UTF32: "char-utf32", TEXT: "str8 str16", LATIN: "char str8-latin str16-latin", UTF16: "str8-utf16 str16-utf16",
    RANGES: "sequence-set byte-ranges", MAP: "map", LIST: "list", ARRAY_OF: "array", STRUCT32: "struct32",
}  # fmt: skip

# Type numbers: the type code, and from 256 on the types without a code.
UNCODED = ("sequence-no", "byte-ranges", "sequence-set", "struct")
BYTE_RANGES, SEQUENCE_SET, STRUCT_TYPE = (256 + UNCODED.index(name) for name in UNCODED[1:])
CATEGORIES = ("reserved", "fixed", "variable")
RESERVED, FIXED, VARIABLE = range(len(CATEGORIES))

SECTIONS = ("message.delivery-properties", "message.fragment-properties", "message.message-properties")
OTHER_SECTIONS = ("file.file-properties", "stream.stream-properties")
RANGE_KEYS = ("lower", "upper")
FIXED_KEYS = ("struct", "value", "type", "count", "scale", *RANGE_KEYS)
STRUCT_KEY, VALUE_KEY, TYPE_KEY, COUNT_KEY, SCALE_KEY, LOWER_KEY = range(6)
SYNC_KEY, COMMAND_ID_KEY = 0, 1  # of every command

# Columns of `types`, `entries` and `fields`.
FORM, CATEGORY, WIDTH = range(3)
NAME, FIELD_FROM, FIELD_END, PACK, SIZE_WIDTH, CLASS_CODE, CODE, SENDER, CONTENT = range(9)
BASE, SECTION_KEY, SECTION_BASE, SECRET, AUTHENTICATES = range(9, 14)
SEGMENTS, HEADER_REQUIRED = 1, 2  # CONTENT: segments may follow; one of them must be a header
FIELD_TYPE, FIELD_OF, FIELD_DISCLOSURE, FIELD_BASE, FIELD_MASKED = range(5)


@dataclass(frozen=True)
class Field:
    """One field. `key`: its key in a row; `type`: type number; `of`: the declared struct of the field, or of the
    elements of an array, when that struct has no code on the wire; `disclosure`: see `codec.protocol.disclosure`."""

    name: str
    key: str
    type: int
    of: str | None
    disclosure: int
    describes_peer: bool = False


@dataclass(frozen=True)
class Entry:
    """A control, command or struct. `name` is 'class.entry'; `code` None: a struct that only fields declare. `pack` and
    `size_width`: bytes of the packing flags and of the size before them. `content`: see CONTENT."""

    kind: int
    name: str
    class_code: int
    code: int | None
    pack: int
    size_width: int
    sender: int
    content: int
    fields: tuple[Field, ...]


class V0_10Tables(NamedTuple):
    """Kernel arrays, int64; -1 means none.

    `types` (3, type number): form, category, width of the value (FIXED) or of the size before it. `lookup` (kind, class
    code, code): entry. `entries` (n, 14): number of its name among those of rows, fields from and to, bytes of packing
    flags and size, class code, code, sender, content, key of its first field in its own key set; in the key set of
    header segments its own key and that of its first field; index of its first secret field; whether a client
    authenticates by it. `fields` (m, 5): type, entry of the declared struct, disclosure, number of the first key of a
    nested value in the key set of the entry (of header segments, for their structs), whether a peer describes itself
    there. `special` (9,): the entries that the framing reads, then numbers of key sets (`v0_10_keys`).
    """

    types: np.ndarray
    lookup: np.ndarray
    entries: np.ndarray
    fields: np.ndarray
    special: np.ndarray


_SPECIAL = (
    *("connection.tune-ok", "session.command-point", "session.attach", "session.attached"),
    "message.message-properties",
)
TUNE_OK, COMMAND_POINT, ATTACH, ATTACHED, MESSAGE_PROPERTIES = range(len(_SPECIAL))
HEADER_SET, FIXED_KEY_SET, NAME_SET, TYPE_SET = range(len(_SPECIAL), len(_SPECIAL) + 4)


@lru_cache
def type_numbers() -> dict[str, int]:
    """Type number by name: its code, or a number from 256 on."""
    coded = {entry["name"]: entry["code"] for entry in fact_table("0-10")["types"] if entry["code"] is not None}
    return coded | {name: 256 + index for index, name in enumerate(UNCODED)}


def _classes() -> list[dict[str, Any]]:
    classes: list[dict[str, Any]] = fact_table("0-10")["classes"]
    return classes


def _resolve(name: str, class_name: str) -> tuple[int, str | None]:
    """Type number of the type or domain `name` as class `class_name` uses it, and the struct that it or its elements
    are."""
    numbers = type_numbers()
    if name in numbers and name != "struct":
        return numbers[name], None
    owner, _, local = name.rpartition(".")
    owner = owner or class_name
    of_class = next((known for known in _classes() if known["name"] == owner), None)
    if of_class and any(struct["name"] == local for struct in of_class["structs"]):
        return STRUCT_TYPE, f"{owner}.{local}"
    domains = [*(of_class["domains"] if of_class else []), *fact_table("0-10")["domains"]]
    domain = next(known for known in domains if known["name"] == local)
    number, of = _resolve(domain["type"], owner)
    items = domain.get("item_type", "")
    if "." in items:
        of = _resolve(items, owner)[1]
    return number, of


def _field(definition: dict[str, Any], class_name: str, entry: str) -> Field:
    name = definition["name"]
    key, policy = disclosure(entry, name)
    return Field(name, key, *_resolve(definition["type"], class_name), policy, describes_peer(entry, name))


def _fields(of_class: dict[str, Any], definition: dict[str, Any]) -> tuple[Field, ...]:
    """The fields of an entry; texts after a secret have SHOW_SHORT_TEXT."""
    entry = f"{of_class['name']}.{definition['name']}"
    fields = [_field(field, of_class["name"], entry) for field in definition["fields"]]
    first = _first_secret(fields)
    return tuple(
        replace(field, disclosure=SHOW_SHORT_TEXT) if 0 <= first < i and field.type == type_numbers()["str8"] else field
        for i, field in enumerate(fields)
    )


def _first_secret(fields: Sequence[Field]) -> int:
    """Index of the first secret field; -1: none."""
    return next((i for i, field in enumerate(fields) if field.disclosure in SECRETS), -1)


def _content(segments: dict[str, Any] | None) -> int:
    """The segments that follow a command: 0 none, SEGMENTS, HEADER_REQUIRED."""
    if not segments:
        return 0
    return HEADER_REQUIRED if segments["header"]["required"] else SEGMENTS


def _entry(of_class: dict[str, Any], kind: int, definition: dict[str, Any]) -> Entry:
    name = f"{of_class['name']}.{definition['name']}"
    sender = definition.get("sent_by")
    return Entry(
        kind,
        name,
        of_class["code"],
        definition["code"],
        definition["pack_width"],
        definition["size_width"],
        SIDES.index(sender) if sender in SIDES else -1,
        _content(definition.get("segments")),
        _fields(of_class, definition),
    )


@lru_cache
def entries() -> tuple[Entry, ...]:
    """Every control, command and struct of the fact table."""
    return tuple(
        _entry(of_class, kind, definition)
        for of_class in _classes()
        for kind, group in enumerate(KINDS)
        for definition in of_class.get(group, [])
    )


def _fields_named(name: str) -> tuple[Field, ...]:
    return next(entry.fields for entry in entries() if entry.name == name)


def _nested(field: Field) -> list[str]:
    """The known keys of the values inside a field."""
    if field.type in (BYTE_RANGES, SEQUENCE_SET):
        return list(RANGE_KEYS)
    return [inner.key for inner in _fields_named(field.of)] if field.of and field.type == STRUCT_TYPE else []


def _key_set(entry: Entry) -> list[str]:
    """`sync` and the implicit id of a command, the fields, and the keys nested in them. A command with a field
    `command_id` (the id of another command) has its implicit id under `own_command_id`."""
    own = [field.key for field in entry.fields]
    keys = own
    if entry.kind == COMMAND_ENTRY:
        keys = ["sync", "own_command_id" if "command_id" in own else "command_id", *own]
    return _with_nested(keys, entry.fields)


def _with_nested(keys: list[str], fields: tuple[Field, ...]) -> list[str]:
    for field in fields:
        keys = keys + [key for key in _nested(field) if key not in keys]
    return keys


def _header_keys() -> list[str]:
    keys = [name.partition(".")[2].replace("-", "_") for name in (*SECTIONS, *OTHER_SECTIONS)]
    for name in SECTIONS:
        keys = _with_nested(keys + [field.key for field in _fields_named(name)], _fields_named(name))
    return keys


def _base(keys: list[str], wanted: list[str]) -> int:
    """Index of the run `wanted` in `keys`; -1: none."""
    if not wanted or wanted[0] not in keys:
        return -1
    at = keys.index(wanted[0])
    return at if keys[at : at + len(wanted)] == wanted else -1


def _types() -> np.ndarray:
    table = np.zeros((3, 256 + len(UNCODED)), np.int64)
    facts = fact_table("0-10")
    for code_range in facts["type_code_ranges"]:
        if code_range["width"] is not None:
            for code in range(int(code_range["from"], 16), int(code_range["to"], 16) + 1):
                table[:, code] = K.BINARY, CATEGORIES.index(code_range["kind"]), code_range["width"]
    forms = {name: form for form, names in TYPES_OF_FORM.items() for name in names.split()}
    for definition in facts["types"]:
        number, form = type_numbers()[definition["name"]], forms[definition["name"]]
        table[:, number] = form, CATEGORIES.index(definition["kind"]), definition["width"]
    table[:, STRUCT_TYPE] = STRUCT, RESERVED, 0
    return table


def _type_names() -> list[str]:
    names = [f"{number:02x}" for number in range(256 + len(UNCODED))]
    for name, number in type_numbers().items():
        names[number] = name
    return names


@lru_cache
def v0_10_tables() -> V0_10Tables:
    """The arrays of version 0-10."""
    every = entries()
    index = {entry.name: number for number, entry in enumerate(every)}
    header_keys = _header_keys()
    sets = [_key_set(entry) for entry in every]
    lookup = np.full((len(KINDS), NUMBERS, NUMBERS), -1, np.int64)
    rows: list[tuple[int, ...]] = []
    fields: list[tuple[int, ...]] = []
    for number, (entry, keys) in enumerate(zip(every, sets, strict=True)):
        if entry.code is not None:
            lookup[entry.kind, entry.class_code, entry.code] = number
        own = [field.key for field in entry.fields]
        section = entry.name in SECTIONS
        sections = entry.name.partition(".")[2].replace("-", "_") if entry.kind == STRUCT_ENTRY else ""
        rows.append(
            (
                NAMES.index(entry.name) if entry.kind != STRUCT_ENTRY else -1,
                len(fields),
                len(fields) + len(own),
                entry.pack,
                entry.size_width,
                entry.class_code,
                -1 if entry.code is None else entry.code,
                entry.sender,
                entry.content,
                keys.index(own[0]) if own else 0,
                header_keys.index(sections) if sections in header_keys else -1,
                _base(header_keys, own) if section else -1,
                _first_secret(entry.fields),
                entry.name in overlay()["handshake"]["methods"],
            )
        )
        for field in entry.fields:
            base = _base(header_keys if section else keys, _nested(field))
            of = index[field.of] if field.of else -1
            fields.append((field.type, of, field.disclosure, base, field.describes_peer))
    n = len(every)
    return V0_10Tables(
        _types(),
        lookup,
        np.array(rows, np.int64),
        np.array(fields, np.int64),
        np.array([*(index[name] for name in _SPECIAL), n, n + 1, n + 2, n + 3], np.int64),
    )


@lru_cache
def v0_10_keys() -> KnownKeys:
    """A key set per entry, then that of header segments, FIXED_KEYS, the names of entries, and the names of types by
    number."""
    every = entries()
    sets = [_key_set(entry) for entry in every]
    return known_keys([*sets, _header_keys(), list(FIXED_KEYS), [entry.name for entry in every], _type_names()])
