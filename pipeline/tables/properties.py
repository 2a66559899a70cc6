"""Properties of messages as columns: where each family keeps what, as data.

The families agree on little but the meaning: 1.0 and 0-10 keep properties in several sections, a time to live is a
text in the classic family, and identifiers may be of any type.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# Column -> its type in the table and, by family, (section or '', property, type to read it as).
PROPERTIES: dict[str, tuple[str, dict[str, tuple[str, str, str]]]] = {
    "exchange": ("string", {"0-10": ("delivery_properties", "exchange", "string")}),
    "routing_key": ("string", {"0-10": ("delivery_properties", "routing_key", "string")}),
    "redelivered": ("boolean", {"0-10": ("delivery_properties", "redelivered", "boolean")}),
    "discard_unroutable": ("boolean", {"0-10": ("delivery_properties", "discard_unroutable", "boolean")}),
    "immediate": ("boolean", {"0-10": ("delivery_properties", "immediate", "boolean")}),
    "delivery_count": ("bigint", {"1.0": ("header", "delivery_count", "bigint")}),
    "durable_flag": ("boolean", {"1.0": ("header", "durable", "boolean")}),
    "delivery_mode": (
        "int",
        {"": ("", "delivery_mode", "int"), "0-10": ("delivery_properties", "delivery_mode", "int")},
    ),
    "priority": (
        "int",
        {
            "": ("", "priority", "int"),
            "0-10": ("delivery_properties", "priority", "int"),
            "1.0": ("header", "priority", "int"),
        },
    ),
    "ttl": (
        "bigint",
        {"0-10": ("delivery_properties", "ttl", "bigint"), "1.0": ("header", "ttl", "bigint")},
    ),
    "expiration": ("string", {"": ("", "expiration", "string")}),
    "message_id": (
        "string",
        {
            "": ("", "message_id", "string"),
            "0-10": ("message_properties", "message_id", "string"),
            "1.0": ("properties", "message_id", "any"),
        },
    ),
    "correlation_id": (
        "string",
        {
            "": ("", "correlation_id", "string"),
            "0-10": ("message_properties", "correlation_id", "any"),
            "1.0": ("properties", "correlation_id", "any"),
        },
    ),
    "reply_to": ("string", {"": ("", "reply_to", "string"), "1.0": ("properties", "reply_to", "string")}),
    "reply_to_node": (
        "struct<exchange: string, routing_key: string>",
        {"0-10": ("message_properties", "reply_to", "struct<exchange: string, routing_key: string>")},
    ),
    "to": ("string", {"1.0": ("properties", "to", "string")}),
    "content_type": (
        "string",
        {
            "": ("", "content_type", "string"),
            "0-10": ("message_properties", "content_type", "string"),
            "1.0": ("properties", "content_type", "string"),
        },
    ),
    "content_encoding": (
        "string",
        {
            "": ("", "content_encoding", "string"),
            "0-10": ("message_properties", "content_encoding", "string"),
            "1.0": ("properties", "content_encoding", "string"),
        },
    ),
    "type": ("string", {"": ("", "type", "string")}),
    "user_id": (
        "string",
        {
            "": ("", "user_id", "string"),
            "0-10": ("message_properties", "user_id", "any"),
            "1.0": ("properties", "user_id", "any"),
        },
    ),
    "app_id": ("string", {"": ("", "app_id", "string"), "0-10": ("message_properties", "app_id", "any")}),
    "timestamp": (
        "timestamp",
        {
            "": ("", "timestamp", "timestamp"),
            "0-10": ("delivery_properties", "timestamp", "timestamp"),
            "1.0": ("properties", "creation_time", "timestamp"),
        },
    ),
    "content_length": ("bigint", {"0-10": ("message_properties", "content_length", "bigint")}),
    "headers": (
        "variant",
        {
            "": ("", "headers", "variant"),
            "0-10": ("message_properties", "application_headers", "variant"),
            "1.0": ("", "application_properties", "variant"),
        },
    ),
}
# Columns of table messages that are properties as they stand.
PLAIN_PROPERTIES = (
    "priority", "expiration", "message_id", "correlation_id", "content_type", "content_encoding", "type", "user_id",
    "app_id", "timestamp", "headers",
)  # fmt: skip
CLASSIC, SEGMENTED, DESCRIBED = "", "0-10", "1.0"
PERSISTENT = 2  # delivery mode (0-9-1 specification, class basic, property delivery-mode; the same in 0-10)
LISTED_AS = {"any": "variant"}


def with_properties(rows: DataFrame, families: Collection[str]) -> DataFrame:
    """`rows` of session families with struct `property` of PROPERTIES out of VARIANT `properties`, by column `version`.

    Each family's part is read in one pass, into a column of its own: within a condition Spark would read it anew for
    every property.
    """
    read = {f"read_{family}": F.when(F.col("version") == family, _read(family)) for family in families}
    fields = []
    for column, (kind, places) in PROPERTIES.items():
        values = [_value(family, *places[family]) for family in families if family in places]
        fields.append(F.coalesce(F.lit(None).cast(kind), *values).alias(column))
    return rows.withColumns(read).withColumn("property", F.struct(*fields)).drop(*read)


def by_family() -> dict[str, Column]:
    """Columns of table messages that each session family makes of other properties, out of structs `state`, `property`,
    `header`."""
    segmented, described = (F.col("version") == family for family in (SEGMENTED, DESCRIBED))
    delivered = F.col("state.operation") == "deliver"
    # What a content that is all there leaves out has its default.
    headed = F.col("header").isNotNull() | F.col("body_sha256").isNotNull()
    again = F.when(segmented, F.coalesce("property.redelivered", F.lit(False))).otherwise(
        F.coalesce(F.col("property.delivery_count") > 0, F.lit(False))
    )
    returns = ~F.coalesce("property.discard_unroutable", F.lit(False))
    published = segmented & headed & ~delivered
    durable = F.when(described, F.coalesce("property.durable_flag", F.lit(False))).otherwise(
        F.coalesce(F.col("property.delivery_mode") == PERSISTENT, F.lit(False))
    )
    node = F.col("property.reply_to_node")
    reply_node = F.concat_ws("/", F.coalesce(node["exchange"], F.lit("")), F.coalesce(node["routing_key"], F.lit("")))
    # A link without an address (to an anonymous relay) leaves it to each message.
    return {
        "exchange": F.coalesce("state.exchange", "property.exchange"),
        "routing_key": F.col("property.routing_key"),
        "address": F.coalesce("state.address", F.when(described, F.col("property.to"))),
        "redelivered": F.when(delivered & headed, again),
        "mandatory": F.when(published, returns),
        "immediate": F.when(published, F.coalesce("property.immediate", F.lit(False))),
        "durable": F.when(headed, durable),
        "ttl_ms": F.col("property.ttl"),
        "reply_to": F.coalesce("property.reply_to", F.when(node.isNotNull(), reply_node)),
    }


def _read(family: str) -> Column:
    """All that PROPERTIES names of one family, section by section."""
    sections: dict[str, list[str]] = {}
    for _, places in PROPERTIES.values():
        if family in places:
            section, name, kind = places[family]
            sections.setdefault(section, []).append(f"`{name}`: {LISTED_AS.get(kind, kind)}")
    fields = sections.pop("", [])
    fields += [f"`{section}`: struct<{', '.join(inside)}>" for section, inside in sections.items()]
    return F.expr(f"try_variant_get(properties, '$', 'struct<{', '.join(fields)}>')")


def _value(family: str, section: str, name: str, read_as: str) -> Column:
    read = F.col(f"`read_{family}`")
    value = (read[section] if section else read)[name]
    return _text(value) if read_as == "any" else value


def _text(value: Column) -> Column:
    """A VARIANT of any type as text: octets as UTF-8 where they are, else as lower-case hex."""
    octets = F.try_variant_get(value, "$", "binary")
    from_octets = F.coalesce(F.try_validate_utf8(octets.cast("string")), F.lower(F.hex(octets)))
    is_binary = F.schema_of_variant(value) == "BINARY"
    return F.when(is_binary, from_octets).otherwise(F.try_variant_get(value, "$", "string"))
