"""Arguments of methods that detectors read, as typed columns `args.<name>`; null if a method has no such argument."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

# Arguments of methods on channels, context 'events'.
CHANNEL_ARGUMENTS = {
    "exchange": "string",
    "routing_key": "string",
    "queue": "string",
    "consumer_tag": "string",
    "delivery_tag": "bigint",
    "type": "string",
    "source": "string",
    "destination": "string",
    "identifier": "string",
    "reply_code": "int",
    "reply_text": "string",
    "class_id": "int",
    "method_id": "int",
    "ticket": "int",
    "prefetch_count": "int",
    "active": "boolean",
    "multiple": "boolean",
    "requeue": "boolean",
    "no_wait": "boolean",
    "no_ack": "boolean",
    "exclusive": "boolean",
    "passive": "boolean",
    "durable": "boolean",
    "auto_delete": "boolean",
    "internal": "boolean",
    "mandatory": "boolean",
    "immediate": "boolean",
    "redelivered": "boolean",
    "global": "boolean",
    "realm": "string",
}

# Arguments of methods of class connection, context 'connections'.
CONNECTION_ARGUMENTS = {
    "version_major": "int",
    "version_minor": "int",
    "insist": "boolean",
    "reply_code": "int",
    "reply_text": "string",
    "code": "int",
    "hostname": "string",
    "heartbeat": "int",
    "heartbeat_min": "int",
    "heartbeat_max": "int",
}


def arguments_struct(fields: Mapping[str, str]) -> Column:
    """Struct of these arguments from VARIANT `arguments`, in one pass; a value of another type is null."""
    return F.expr(f"try_variant_get(arguments, '$', 'struct<{', '.join(f'{n} {t}' for n, t in fields.items())}>')")
