"""Kinds of values in 0-8, 0-9 and 0-9-1: types of arguments, properties and field-table values.

Method fields and field-table tags share one numbering, because their octets are the same.
"""

from __future__ import annotations

import numpy as np

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

# Octets of a value; or, negative, the octets of the length before it (1, 4), or of an octet and a length (5).
LENGTH_8, LENGTH_32, OCTET_AND_LENGTH_32, NO_VALUE = -1, -4, -5, -9
SIZE = np.array(
    [
        *(NO_VALUE, 1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, LENGTH_8, LENGTH_32, LENGTH_32, 1, 8, LENGTH_32, LENGTH_32, 0),
        *(NO_VALUE, OCTET_AND_LENGTH_32, LENGTH_32, LENGTH_32, LENGTH_8, LENGTH_8, LENGTH_32),
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
