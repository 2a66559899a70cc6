"""Examples of classic methods and headers by an encoder of the tests' own, and what the product reads of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from codec.protocol.classic_tables import Method, classic_tables, methods
from codec.protocol.classic_values import (
    check_header,
    check_method,
    classify_method,
    decode_arguments,
    decode_properties,
)
from codec.protocol.versions import VERSIONS
from codec.variant import METADATA, OK, VALUE, Writer, new_writer

Decoded = tuple[int, int, Any]
PAD = b"\xce\xff\xce"  # around the decoded bytes, to detect reads beyond them


def shortstr(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long_prefixed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def with_padding(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(PAD + data + PAD), np.uint8)


def method_named(version: str, name: str) -> Method:
    """The method 'class.method' of a version, its own one before an extension."""
    return next(method for method in methods(version) if method.name == name)


def method_fits(version: str, name: str, data: bytes) -> bool:
    """The result of `check_method` for these argument bytes."""
    method = method_named(version, name)
    payload = struct.pack(">HH", method.class_id, method.method_id) + data
    buf, end, t, code = with_padding(payload), len(PAD) + len(payload), classic_tables(), VERSIONS.index(version)
    return bool(check_method(buf, len(PAD), end, t, code, classify_method(buf, len(PAD), end, t, code)))


def header_fits(version: str, class_id: int, data: bytes) -> bool:
    """The result of `check_header` for these bytes from the property flags on."""
    payload = struct.pack(">HHQ", class_id, 0, 5) + data
    end = len(PAD) + len(payload)
    return bool(check_header(with_padding(payload), len(PAD), end, classic_tables(), VERSIONS.index(version)))


def read(w: Writer) -> Any:
    value, metadata = w.value[: int(w.positions[VALUE])], w.metadata[: int(w.positions[METADATA])]
    return VariantUtils.to_python(bytes(value), bytes(metadata))


def arguments(version: str, name: str, data: bytes, w: Writer | None = None) -> Decoded:
    """Code, offset from the first argument, and what Spark reads."""
    method = method_named(version, name)
    payload = struct.pack(">HH", method.class_id, method.method_id) + data
    buf, start, end = with_padding(payload), len(PAD), len(PAD) + len(payload)
    t, code_of = classic_tables(), VERSIONS.index(version)
    index = classify_method(buf, start, end, t, code_of)
    w = w or new_writer(1 << 16)
    code, at = decode_arguments(buf, start + 4, end, t, code_of, index, w)
    # the check does not follow nested tables, so it may believe more
    assert check_method(buf, start, end, t, code_of, index) or code != OK
    return code, at - start - 4, read(w)


def properties(version: str, class_id: int, data: bytes) -> Decoded:
    """Code, offset from the property flags, and what Spark reads."""
    header = struct.pack(">HHQ", class_id, 0, 5)
    buf, start, end = with_padding(header + data), len(PAD), len(PAD) + 12 + len(data)
    t, code_of, w = classic_tables(), VERSIONS.index(version), new_writer()
    code, at = decode_properties(buf, start + 12, end, t, code_of, class_id, w)
    assert check_header(buf, start, end, t, code_of) or code != OK
    return code, at - start - 12, read(w)


TABLE = long_prefixed(
    shortstr(b"x-key") + b"S" + long_prefixed(b"x") + shortstr(b"queue") + b"I" + struct.pack(">i", -5)
)
TABLE_READ = {"x-key": "x", "queue": -5}
SAMPLES: dict[str, list[tuple[bytes, Any]]] = {
    "octet": [(b"\x07", 7), (b"\xff", 255)],
    "short": [(b"\x01\x02", 258), (b"\xff\xff", 65535)],
    "long": [(b"\x00\x00\x00\x05", 5), (b"\xff\xff\xff\xff", 4294967295)],
    "longlong": [(bytes(7) + b"\x09", 9), (b"\xff" * 8, Decimal(2**64 - 1))],
    "shortstr": [(shortstr(b"name"), "name"), (shortstr(b"\xff" * 255), r"\xff" * 255)],
    "longstr": [(long_prefixed(b"long text"), "long text"), (long_prefixed(b""), "")],
    "timestamp": [(struct.pack(">Q", 86400), datetime(1970, 1, 2, tzinfo=UTC)), (b"\xff" * 8, Decimal(2**64 - 1))],
    "table": [(TABLE, TABLE_READ), (long_prefixed(b""), {})],
    "content": [(b"\x00" + long_prefixed(b"inline"), "inline"), (b"\x00" + long_prefixed(b""), "")],
}
SECRETS = {"response", "new-secret", "security-token", "string-2", "string-result"}
MECHANISMS = {"mechanism": (shortstr(b"PLAIN"), "PLAIN")}  # other names are not shown


@cache
def fact_table(version: str) -> dict[str, Any]:
    """The fact table as in its file, without the product's reader."""
    name = f"amqp-{version.replace('.', '-')}.json"
    table: dict[str, Any] = json.loads(resources.files("codec.protocol.spec").joinpath(name).read_text("utf-8"))
    return table


def example(fields: list[dict[str, Any]], turn: int) -> tuple[bytes, dict[str, Any]]:
    """Bytes of these fields and what they mean; `turn` chooses among the samples."""
    data, bits, behind_secret, secret = b"", [], False, b""
    meaning: dict[str, Any] = {}
    for i, field in enumerate(fields):
        key = field.get("practice_name", field["name"]).replace("nowait", "no-wait").replace("-", "_")
        if field["type"] == "bit":
            bits.append((i + turn) % 2)
            meaning[key] = bool(bits[-1])
            continue
        data += pack_bits(bits)
        bits = []
        byte, value = MECHANISMS.get(field["name"], SAMPLES[field["type"]][(i + turn) % 2])
        data += byte
        if field["name"] == "challenge":
            meaning["challenge_size"] = len(byte) - 4
        is_secret = field["name"] in SECRETS or (field["name"], field["type"]) == ("result", "longstr")
        is_text = field["type"] == "shortstr"  # behind an empty secret it may be the secret
        if not is_secret and field["name"] != "challenge":
            if not (behind_secret and (len(byte) > 32 or (is_text and secret == bytes(4)))):
                meaning[key] = value
        elif is_secret:
            behind_secret, secret = True, byte
    return data + pack_bits(bits), meaning


def pack_bits(bits: list[int]) -> bytes:
    """First bit lowest, eight to an byte."""
    return bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def described_methods(version: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for of_class in fact_table(version)["classes"]:
        for method in of_class["methods"]:
            yield f"{of_class['name']}.{method['name']}", method


texts = st.text(max_size=40)
tables = st.dictionaries(
    st.text(min_size=1, max_size=10), texts | st.booleans() | st.integers(-(2**31), 2**31 - 1), max_size=4
)
BY_TYPE = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": texts,
    "longstr": texts,
    "bit": st.booleans(),
    "table": tables,
}
