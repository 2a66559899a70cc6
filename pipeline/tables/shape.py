"""DataFrames of tables: exactly the columns and types of the schema, valid UTF-8, and `toArrow` with VARIANT
columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


# Well-formed UTF-8 (RFC 3629, section 4) without the backslash, or any single octet. The input is octets decoded as
# ISO 8859-1, which has a character for each.
_TAIL = r"[\x80-\xBF]"
_CHARACTERS = "|".join(
    (
        r"[\x00-\x5B\x5D-\x7F]+",
        rf"[\xC2-\xDF]{_TAIL}",
        rf"\xE0[\xA0-\xBF]{_TAIL}|[\xE1-\xEC\xEE\xEF]{_TAIL}{{2}}|\xED[\x80-\x9F]{_TAIL}",
        rf"\xF0[\x90-\xBF]{_TAIL}{{2}}|[\xF1-\xF3]{_TAIL}{{3}}|\xF4[\x80-\x8F]{_TAIL}{{2}}",
        r"[\x00-\xFF]",
    )
)
_ESCAPED = (
    "array_join(transform(regexp_extract_all(decode(CAST({} AS BINARY), 'ISO-8859-1'), r'"
    + _CHARACTERS.replace("{", "{{").replace("}", "}}")
    + "', 0), piece -> "
    "if(length(piece) = 1 AND (piece >= '\\u0080' OR piece = r'\\'), "
    "concat(r'\\x', lower(hex(encode(piece, 'ISO-8859-1')))), "
    "decode(encode(piece, 'ISO-8859-1'), 'UTF-8'))), '')"
)


def shaped(rows: DataFrame, schema: StructType) -> DataFrame:
    """The columns of `schema`, in order, with its types; a column that `rows` lacks is null."""
    present = set(rows.columns)
    columns = []
    for column in schema.fields:
        value = f"`{column.name}`" if column.name in present else "NULL"
        value = f"CAST({value} AS {column.dataType.simpleString()})"
        found = F.expr(value)
        if isinstance(column.dataType, StructType):  # in SQL its fields lose their comments
            found = found.cast(column.dataType)
        columns.append(found.alias(column.name, metadata=column.metadata))
    return rows.select(*columns)


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows that Spark optimizes away; for an empty list it would start tasks with Python
    workers."""
    nulls = [F.lit(None).cast(column.dataType).alias(column.name, metadata=column.metadata) for column in schema.fields]
    return spark.range(1).where("false").select(*nulls)


def utf8(text: str) -> str:
    """SQL for a text, escaped by the rule of `codec.text` if it is not UTF-8: a VARIANT may give strings of any
    octets. `text`: SQL of it."""
    return f"if(is_valid_utf8({text}), {text}, {_ESCAPED.format(text)})"


def timestamp(nanoseconds: str) -> Column:
    """Column of nanoseconds since 1970 -> TIMESTAMP, microseconds, rounded down."""
    return F.expr(f"timestamp_micros({nanoseconds} div 1000)")


def to_arrow(rows: DataFrame) -> pa.Table:
    """All of `rows` as a pyarrow.Table. A VARIANT is a struct of its `value` and `metadata`, as in Parquet files.

    Replaces `rows.toArrow()`, which raises ArrowInvalid if a VARIANT is null (pyspark 4.1 to 4.3, pyarrow 26). Such
    columns are converted in Python workers.
    """
    from udfs.arrow.types import as_structs, as_variants, struct_schema, variant_columns

    columns = variant_columns(rows.schema)
    if not columns:
        return type(rows).toArrow(rows)
    plain = rows.mapInArrow(as_structs, struct_schema(rows.schema))
    return as_variants(plain.toArrow(), columns)


def with_to_arrow(rows: DataFrame) -> DataFrame:
    """`rows` with `to_arrow` as their method `toArrow`; DataFrames derived from them have pyspark's."""
    rows.__dict__["toArrow"] = lambda: to_arrow(rows)
    return rows
