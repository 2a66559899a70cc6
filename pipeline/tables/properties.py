"""Properties of messages as columns: their place in each family of versions, as data.

1.0 and 0-10 have properties in several sections, a time to live is a text in the classic family, and identifiers may
have any type. `udfs.conversation.derived` computes the columns of table messages that have other names here.
"""

from __future__ import annotations

PERSISTENT = 2  # delivery mode (0-9-1 specification, class basic, property delivery-mode; the same in 0-10)
_DELIVERY, _MESSAGE, _REPLY_TO = "delivery_properties", "message_properties", "message_properties.reply_to"
# Column -> (section, or '', property, type to read it as); columns of messages that a family does not have.
CLASSIC = {
    "delivery_mode": ("", "delivery_mode", "int"),
    "priority": ("", "priority", "int"),
    "expiration": ("", "expiration", "string"),
    "message_id": ("", "message_id", "string"),
    "correlation_id": ("", "correlation_id", "string"),
    "reply_to": ("", "reply_to", "string"),
    "content_type": ("", "content_type", "string"),
    "content_encoding": ("", "content_encoding", "string"),
    "type": ("", "type", "string"),
    "user_id": ("", "user_id", "string"),
    "app_id": ("", "app_id", "string"),
    "timestamp": ("", "timestamp", "timestamp"),
    "headers": ("", "headers", "variant"),
    "traceparent": ("headers", "traceparent", "string"),
}
NOT_CLASSIC = ("address", "browsed", "delivery_id", "delivery_tag_hex", "message_format", "resumed")
V0_10 = {
    "exchange": (_DELIVERY, "exchange", "string"),
    "routing_key": (_DELIVERY, "routing_key", "string"),
    "redelivered": (_DELIVERY, "redelivered", "boolean"),
    "discard_unroutable": (_DELIVERY, "discard_unroutable", "boolean"),
    "immediate": (_DELIVERY, "immediate", "boolean"),
    "delivery_mode": (_DELIVERY, "delivery_mode", "int"),
    "priority": (_DELIVERY, "priority", "int"),
    "ttl": (_DELIVERY, "ttl", "bigint"),
    "timestamp": (_DELIVERY, "timestamp", "timestamp"),
    "message_id": (_MESSAGE, "message_id", "string"),
    "correlation_id": (_MESSAGE, "correlation_id", "any"),
    "reply_node": (_MESSAGE, "reply_to", "object"),
    "reply_exchange": (_REPLY_TO, "exchange", "string"),
    "reply_routing_key": (_REPLY_TO, "routing_key", "string"),
    "content_type": (_MESSAGE, "content_type", "string"),
    "content_encoding": (_MESSAGE, "content_encoding", "string"),
    "user_id": (_MESSAGE, "user_id", "any"),
    "app_id": (_MESSAGE, "app_id", "any"),
    "content_length": (_MESSAGE, "content_length", "bigint"),
    "headers": (_MESSAGE, "application_headers", "variant"),
    "traceparent": (f"{_MESSAGE}.application_headers", "traceparent", "string"),
}
NOT_0_10 = ("address", "delivery_tag", "expiration", "type")
V1_0 = {
    "delivery_count": ("header", "delivery_count", "bigint"),
    "durable_flag": ("header", "durable", "boolean"),
    "priority": ("header", "priority", "int"),
    "ttl": ("header", "ttl", "bigint"),
    "message_id": ("properties", "message_id", "any"),
    "correlation_id": ("properties", "correlation_id", "any"),
    "reply_to": ("properties", "reply_to", "string"),
    "to": ("properties", "to", "string"),
    "content_type": ("properties", "content_type", "string"),
    "content_encoding": ("properties", "content_encoding", "string"),
    "user_id": ("properties", "user_id", "any"),
    "timestamp": ("properties", "creation_time", "timestamp"),
    "headers": ("", "application_properties", "variant"),
    "traceparent": ("application_properties", "traceparent", "string"),
    "annotated_traceparent": ("message_annotations", "traceparent", "string"),
    "diagnostic_id": ("application_properties", "Diagnostic-Id", "string"),  # Azure's name for it
}
NOT_1_0 = ("app_id", "delivery_tag", "expiration", "immediate", "mandatory", "routing_key", "type")
