"""Spark VARIANT values, built inside kernels.

A value is two byte strings (Parquet's "Variant Binary Encoding"; pyspark/sql/variant_utils.py reads it): `value`, where
containers begin with a header of key numbers and offsets, and `metadata`, the dictionary of keys. A `Writer` appends
both to heaps, value after value, so that the heaps are the data buffers of an Arrow column.

    begin(w)                                  begin(w)                  with keys known beforehand (`KnownKeys`)
    begin_object(w)                           begin_object_of(w, 2, 9)
    key(w, buf, 0, 5); put_int(w, 1)          known_key(w, 0); put_int(w, 1)
    end_object(w)                             end_known_object(w, keys, key_set)
    code = finish(w)                          code = finish_known(w, keys, key_set)

    begin_array(w); element(w); put_null(w); element(w); put_bool(w, True); end_array(w)

Errors are sticky: once something does not fit, every call until `finish` does nothing, and `finish` returns
 - FULL: a heap or the scratch has no room. `rollback(w)`, make room (empty the heaps, or `enlarge`), write it again;
 - TOO_LARGE: value or dictionary above `LIMITS.variant_bytes`; TOO_DEEP: nested deeper than the stack. `rollback(w)`.

Cost: linear in the bytes written, times log n for sorting the n keys of an object. Keys are put in order of their
bytes; of equal keys in an object the last wins (the bytes of the others stay unreferenced in the value). A key is
stored once in a dictionary, except that after `Limits.key_probes` hash collisions it is stored again rather than
searched for longer.
"""

from codec.variant.containers import (
    KnownKeys,
    begin_array,
    begin_object,
    begin_object_of,
    element,
    end_array,
    end_known_object,
    end_object,
    finish,
    finish_known,
    key,
    known_key,
    known_keys,
    load_known,
)
from codec.variant.python_values import decode, encode
from codec.variant.scalars import (
    DECIMAL_SCALE,
    put_binary,
    put_bool,
    put_bytes,
    put_decimal,
    put_f32,
    put_f64,
    put_int,
    put_null,
    put_string,
    put_text,
    put_timestamp_us,
    put_u64,
    text_key,
)
from codec.variant.writer import (
    ESCAPED,
    FULL,
    MALFORMED,
    MASKED,
    METADATA,
    NOTES,
    OK,
    TOO_DEEP,
    TOO_LARGE,
    VALUE,
    Writer,
    begin,
    bytes_are_text,
    enlarge,
    error_code,
    new_writer,
    note,
    rollback,
)

__all__ = (
    "DECIMAL_SCALE",
    "ESCAPED",
    "FULL",
    "MALFORMED",
    "MASKED",
    "METADATA",
    "NOTES",
    "OK",
    "TOO_DEEP",
    "TOO_LARGE",
    "VALUE",
    "KnownKeys",
    "Writer",
    "begin",
    "begin_array",
    "begin_object",
    "begin_object_of",
    "bytes_are_text",
    "decode",
    "element",
    "encode",
    "end_array",
    "end_known_object",
    "end_object",
    "enlarge",
    "error_code",
    "finish",
    "finish_known",
    "key",
    "known_key",
    "known_keys",
    "load_known",
    "new_writer",
    "note",
    "put_binary",
    "put_bool",
    "put_bytes",
    "put_decimal",
    "put_f32",
    "put_f64",
    "put_int",
    "put_null",
    "put_string",
    "put_text",
    "put_timestamp_us",
    "put_u64",
    "rollback",
    "text_key",
)  # fmt: skip
