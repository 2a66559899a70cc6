"""The last step of every table: exactly its schema's columns, cast to their types, and no text that is not UTF-8."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

# Well-formed characters of UTF-8 (RFC 3629, section 4) but the backslash, and what else there is, one octet each. Of
# octets read as ISO 8859-1, which has a character for each.
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
_LATIN = "ISO-8859-1"


def shaped(rows: DataFrame, schema: StructType, checked: bool = False) -> DataFrame:
    """The columns of `schema`, in order, of its types; a column that `rows` does not have is null. `checked`: all texts
    are UTF-8 as they come."""
    present = set(rows.columns)
    columns = []
    for column in schema.fields:
        value = F.col(column.name) if column.name in present else F.lit(None)
        value = value.cast(column.dataType)
        if isinstance(column.dataType, StringType) and column.name in present and not checked:
            value = utf8(value)
        columns.append(value.alias(column.name, metadata=column.metadata))
    return rows.select(*columns)


def none(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows. Spark sees that there are none, and plans nothing for them; of an empty list it makes tasks with Python
    workers."""
    nulls = [F.lit(None).cast(column.dataType).alias(column.name, metadata=column.metadata) for column in schema.fields]
    return spark.range(1).where("false").select(*nulls)


def elapsed(since: Column, until: Column) -> Column:
    """Nanoseconds between two moments; null where the later one was captured first: how long it took is not known."""
    return F.when(until >= since, until - since)


def utf8(text: Column) -> Column:
    """`text`; where it is not UTF-8, escaped by the rule of `codec.text`: Spark makes strings of any octets of a
    VARIANT."""
    pieces = F.regexp_extract_all(F.decode(text.cast("binary"), _LATIN), F.lit(_CHARACTERS), F.lit(0))
    return F.when(F.is_valid_utf8(text), text).otherwise(F.array_join(F.transform(pieces, _shown), ""))


def _shown(piece: Column) -> Column:
    octets = F.encode(piece, _LATIN)
    odd = (F.length(piece) == 1) & ((piece >= "\x80") | (piece == "\\"))
    return F.when(odd, F.concat(F.lit("\\x"), F.lower(F.hex(octets)))).otherwise(F.decode(octets, "UTF-8"))


def timestamp(nanoseconds: str) -> Column:
    """Column of nanoseconds since 1970 -> TIMESTAMP, microseconds, rounded down."""
    return F.expr(f"timestamp_micros({nanoseconds} div 1000)")
