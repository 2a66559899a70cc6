"""Columns of table messages from VARIANT `properties`: read as they are, or derived from several."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.tables import MESSAGES, PropertyPath
from codec.variant.reading import OTHER, TIME
from udfs.arrow.arrays import is_one_of
from udfs.arrow.fields import TYPES, Fields, Values, are_objects, read_as, text_or_hex, texts, values_of
from udfs.arrow.types import map_distinct_bytes
from udfs.conversation.addresses import managed_by
from udfs.conversation.roles import DELIVERIES


def properties(column: pa.StructArray, wanted: Mapping[str, PropertyPath]) -> dict[str, pa.Array]:
    """The `wanted` properties by column; 'any' is a value of any type as text, 'object' whether it is one."""
    sections: dict[str, dict[str, tuple[str, str]]] = {"": {}}
    for name, (section, own_name, kind) in wanted.items():
        sections.setdefault(section, {})[name] = (own_name, kind)
    parts = {path: path.rpartition(".")[::2] for section in sections for path in _paths(section)}
    within, found = {"": values_of(column)}, {}
    for section in sorted({"", *parts}):  # the outer ones first
        fields_of = sections.get(section, {})
        inner = {path: part for path, (outer, part) in parts.items() if outer == section}
        # A text that may also be a container is read as such.
        both = {own for own, kind in fields_of.values() if kind == "string" and own in inner.values()}
        plain = {own: kind for own, kind in fields_of.values() if kind not in ("any", "object") and own not in both}
        containers = [own for own, kind in fields_of.values() if kind in ("any", "object")]
        read = Fields(within[section], plain, (*containers, *inner.values()))
        within |= {path: read.inside(part) for path, part in inner.items()}
        for name, (own, kind) in fields_of.items():
            if kind == "any":
                found[name] = as_text(read.inside(own))
            elif kind == "object":
                found[name] = pa.array(are_objects(read.inside(own)))
            elif own in both:
                found[name] = texts(read.inside(own))
            else:
                found[name] = read.column(own)
    return found


def _paths(section: str) -> list[str]:
    """A section and those around it: 'a', 'a.b' for 'a.b'."""
    names = section.split(".") if section else []
    return [".".join(names[:depth]) for depth in range(1, len(names) + 1)]


def as_text(values: Values) -> pa.Array:
    """Values of any type as text: bytes as UTF-8 where they are, else as lower-case hex; null where there is none."""
    kinds, read = read_as(values, ("binary", "bigint", "boolean"))
    if not kinds.any():
        return pa.nulls(len(kinds), pa.string())
    text = text_or_hex(read["binary"])
    for name in ("bigint", "boolean"):
        if read[name].null_count < len(kinds):
            text = pc.coalesce(text, read[name].cast(pa.string()))
    others = np.flatnonzero((kinds == OTHER) | (kinds == TIME))
    if len(others):  # decimals, as unsigned numbers above 2**63 are, and what no sender should put there
        texts = text.to_pylist()
        for row in others.tolist():
            texts[row] = _text(values.python(row))
        text = pa.array(texts, pa.string())
    return text


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, separators=(",", ":"))
    return str(value)


PERSISTENT = 2  # delivery mode (0-9-1 specification, class basic, property delivery-mode; the same in 0-10)
DIGITS = "0123456789"
# HTTP over AMQP: methods, the reply-to of requests, the form of a status, and the first one of errors.
HTTP_METHODS, HTTP_REPLY_TO, STATUS, FIRST_ERROR = ("GET", "PUT", "POST", "DELETE"), "$me", "^[1-5][0-9]{2}$", 400
BINDINGS = "/bindings"  # where bindings are posted
# Properties that only requests to management nodes and their replies have, beside those that all messages may have.
OF_MANAGEMENT = (
    "http_response", "requested_operation", "requested_name", "requested_type", "status_code", "status_text",
    "claims_status", "claims_text",
)  # fmt: skip
# Properties that only serve to derive others.
ONLY_DERIVED_FROM = (
    "delivery_mode", "delivery_count", "durable_flag", "has_header", "discard_unroutable", "ttl", "to", "reply_node",
    "reply_exchange", "reply_routing_key", "content_length", "traceparent", "annotated_traceparent", "diagnostic_id",
    "acquired_count", "annotated_exchange", "annotated_routing_key", "subject", "body_value", "http_response",
    "bound_exchange", "bound_queue", "bound_key",
    "requested_operation", "requested_name", "requested_type", "status_code", "status_text", "claims_status",
    "claims_text",
    "broker_ms", "received_ms", "received_time", "enqueued_time",
)  # fmt: skip
# Properties with the time at which the broker took the message, and nanoseconds of their units; the first one that is
# there counts.
BROKER_TIMES = {
    "received_time": 1000, "enqueued_time": 1000, "received_ms": 1_000_000, "broker_ms": 1_000_000,
}  # fmt: skip
# Properties with the trace of a publisher; the first that is there counts.
TRACEPARENTS = ("annotated_traceparent", "traceparent", "diagnostic_id")
# version-trace id-span id-flags; what follows in later versions is not known (W3C Trace Context, section 3.2).
TRACE_CONTEXT = "^(00-{0}|(0[1-9a-f]|[1-9a-e][0-9a-f]|f[0-9a-e])-{0}(-.*)?)$".format(
    "[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
)
TRACE_AT, SPAN_AT = (3, 35), (36, 52)
BLANKS = "".join(map(chr, range(33))) + "\x7f"
INT64 = range(-(1 << 63), 1 << 63)


def derived(
    found: Mapping[str, pa.Array], state: Mapping[str, pa.Array], headed: pa.BooleanArray
) -> dict[str, pa.Array]:
    """Columns that are properties, and columns derived from them. `found`: the properties; `state`: other columns of
    the messages; `headed`: whether all of their properties were captured."""
    columns = dict(found)
    no_truth, nothing = pa.scalar(None, pa.bool_()), pa.scalar(None, pa.string())

    def default(truth: pa.Array) -> pa.Array:
        return pc.if_else(headed, pc.fill_null(truth, False), truth)

    delivered = is_one_of(state["operation"], DELIVERIES)
    durable = found["durable_flag"] if "durable_flag" in found else pc.equal(found["delivery_mode"], PERSISTENT)
    columns["durable"] = default(durable)
    if "has_header" in found:  # without a header the broker decides
        columns["durable"] = pc.if_else(found["has_header"].fill_null(False), columns["durable"], no_truth)
    if "redelivered" in found:
        columns["redelivered"] = pc.if_else(delivered, default(found["redelivered"]), no_truth)
    if "delivery_count" in found:
        again = pc.or_kleene(pc.greater(found["delivery_count"], 0), pc.greater(found["acquired_count"], 0))
        columns["redelivered"] = pc.if_else(delivered, default(again), no_truth)
    if "discard_unroutable" in found:
        columns["mandatory"] = pc.if_else(delivered, no_truth, pc.invert(default(found["discard_unroutable"])))
        columns["immediate"] = pc.if_else(delivered, no_truth, default(found["immediate"]))
    if "exchange" in found:
        columns["exchange"] = pc.coalesce(state["exchange"], found["exchange"])
    if "queue_offset" in found:  # a client may have copied it into what it publishes
        columns["queue_offset"] = pc.if_else(delivered, found["queue_offset"], pa.scalar(None, pa.int64()))
    if "annotated_exchange" in found:
        columns["exchange"] = pc.if_else(delivered, found["annotated_exchange"], nothing)
        columns["routing_key"] = pc.if_else(delivered, found["annotated_routing_key"], nothing)
    if "to" in found:
        columns["address"] = found["to"]
        columns |= management(found, delivered)
    if "reply_node" in found:
        node = pc.binary_join_element_wise(
            found["reply_exchange"].fill_null(""), found["reply_routing_key"].fill_null(""), "/"
        )
        columns["reply_to"] = pc.if_else(found["reply_node"], node, nothing)
    contexts = [found[name] for name in TRACEPARENTS if name in found]
    columns["trace_id"], columns["span_id"] = trace_context(pc.coalesce(*contexts))
    if "broker_ms" in found:
        columns["broker_ts_ns"] = pc.coalesce(
            *(nanoseconds(found[name], unit) for name, unit in BROKER_TIMES.items() if name in found)
        )
    columns["ttl_ms"] = found["ttl"] if "ttl" in found else whole_numbers(found["expiration"])
    return columns


def management(found: Mapping[str, pa.Array], delivered: pa.BooleanArray) -> dict[str, pa.Array]:
    """Requests and replies of management nodes over 1.0. Which of them come from such a node is only known by the
    address of their link, except those of HTTP over AMQP (`codec.protocol.v1_0_contents`)."""
    nothing, no_number = pa.scalar(None, pa.string()), pa.scalar(None, pa.int32())
    subject, to = found["subject"], found["to"]
    has_method = pc.and_(is_one_of(subject, HTTP_METHODS), pc.equal(found["reply_to"], HTTP_REPLY_TO).fill_null(False))
    if not has_method.true_count and all(found[name].null_count == len(to) for name in OF_MANAGEMENT):
        types = {name: MESSAGES[name].type for name in MESSAGES.names if name.startswith("management_")}
        return {name: pa.nulls(len(to), TYPES[str(kind)]) for name, kind in types.items()}
    by_http = pc.and_(has_method, pc.starts_with(to, "/").fill_null(False))
    replied = pc.and_(found["http_response"].is_valid(), pc.match_substring_regex(subject, STATUS).fill_null(False))
    code = pc.if_else(replied, subject, nothing).cast(pa.int32())
    error = pc.if_else(pc.greater_equal(code, FIRST_ERROR).fill_null(False), found["body_value"], nothing)
    reply_status = pc.coalesce(found["status_code"], found["claims_status"])
    status = pc.coalesce(code, pc.if_else(found["correlation_id"].is_valid(), reply_status, no_number))
    text = pc.coalesce(error, pc.if_else(replied, nothing, pc.coalesce(found["status_text"], found["claims_text"])))
    operation = pc.if_else(by_http, subject, found["requested_operation"])
    target = pc.if_else(by_http, to, pc.coalesce(found["requested_name"], found["requested_type"]))
    asked = pc.and_(pc.invert(delivered), operation.is_valid())
    of_path = managed_by(pc.if_else(pc.and_(asked, by_http), to, nothing))
    binds = pc.and_(pc.and_(asked, by_http), pc.equal(to, BINDINGS).fill_null(False))
    of_body = (found[name] for name in ("bound_exchange", "bound_queue", "bound_key"))
    exchange, queue, key = (pc.if_else(binds, own, named) for own, named in zip(of_body, of_path, strict=True))
    # AMQP Management 1.0, 3.1: the type of the entity is the server's, such as org.apache.qpid.Queue.
    of_type, by_name = pc.utf8_lower(found["requested_type"]), pc.and_(asked, pc.invert(by_http))

    def named(kind: str) -> pa.Array:
        is_kind = pc.and_(by_name, pc.ends_with(of_type, kind).fill_null(False))
        return pc.if_else(is_kind, found["requested_name"], nothing)

    return {
        "management_operation": pc.if_else(delivered, nothing, operation),
        "management_target": pc.if_else(pc.or_(delivered, operation.is_null()), nothing, target),
        "management_exchange": pc.coalesce(exchange, named("exchange")),
        "management_queue": pc.coalesce(queue, named("queue")),
        "management_routing_key": key,
        "management_status": pc.if_else(delivered, status, no_number),
        "management_text": pc.if_else(pc.and_(delivered, status.is_valid()), text, nothing),
    }


def nanoseconds(times: pa.Array, unit: int) -> pa.Array:
    """Times of `unit` nanoseconds each; null where int64 has no room for them."""
    counts = times.cast(pa.int64())
    valid = pc.less_equal(pc.abs(pc.if_else(pc.equal(counts, INT64[0]), None, counts)), INT64[-1] // unit)
    return pc.multiply(pc.if_else(valid, counts, pa.scalar(None, pa.int64())), unit)


def trace_context(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Trace id and span id of each traceparent; null where it is none, or one of them is zeros only."""
    nothing = pa.scalar(None, pa.string())
    if texts.null_count == len(texts):
        return (pa.nulls(len(texts), pa.string()),) * 2
    valid = pc.match_substring_regex(texts, TRACE_CONTEXT)
    trace, span = (pc.utf8_slice_codeunits(texts, *at) for at in (TRACE_AT, SPAN_AT))
    for part in (trace, span):
        valid = pc.and_(valid, pc.match_substring_regex(part, "[^0]"))
    return pc.if_else(valid, trace, nothing), pc.if_else(valid, span, nothing)


def whole_numbers(texts: pa.Array) -> pa.Array:
    """Texts that are whole numbers, as Spark's try_cast to BIGINT reads them; the others null."""
    return map_distinct_bytes(_whole_number, pa.int64(), texts.cast(pa.binary()))


def _whole_number(data: bytes) -> int | None:
    text = data.decode("utf-8", "replace").strip(BLANKS)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or digits.strip(DIGITS) or int(text) not in INT64:
        return None
    return int(text)
