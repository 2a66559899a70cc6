"""Columns of table messages that are made of properties: what several versions say in ways of their own."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

DIGITS = "0123456789"
# Properties that others are made of.
INGREDIENTS = (
    "delivery_mode", "delivery_count", "durable_flag", "discard_unroutable", "ttl", "to", "reply_node",
    "reply_exchange", "reply_routing_key", "content_length", "traceparent", "annotated_traceparent", "diagnostic_id",
)  # fmt: skip
# Where a publisher says in which trace it is, the first that is there.
TRACEPARENTS = ("annotated_traceparent", "traceparent", "diagnostic_id")
# version-trace id-span id-flags; what follows in later versions is not known (W3C Trace Context, section 3.2).
TRACE_CONTEXT = "^(00-{0}|(0[1-9a-f]|[1-9a-e][0-9a-f]|f[0-9a-e])-{0}(-.*)?)$".format(
    "[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
)
TRACE_AT, SPAN_AT = (3, 35), (36, 52)
BLANKS = "".join(map(chr, range(33))) + "\x7f"
INT64 = range(-(1 << 63), 1 << 63)


def derived(
    said: Mapping[str, pa.Array], state: Mapping[str, pa.Array], headed: pa.BooleanArray, persistent: int
) -> dict[str, pa.Array]:
    """Properties that are columns as they stand, and those made of others. `said`: properties of a version; `state`:
    what is known of the messages; `headed`: whether their properties were captured; `persistent` as for `Shown`."""
    columns = dict(said)
    no_truth, nothing = pa.scalar(None, pa.bool_()), pa.scalar(None, pa.string())

    def default(name: str) -> pa.Array:
        return pc.fill_null(said[name], False)

    delivered = pc.equal(state["operation"], "deliver")
    if "durable_flag" in said:
        durable = default("durable_flag")
    else:
        durable = pc.fill_null(pc.equal(said["delivery_mode"], persistent), False)
    columns["durable"] = pc.if_else(headed, durable, no_truth)
    if "redelivered" in said:
        columns["redelivered"] = pc.if_else(pc.and_(delivered, headed), default("redelivered"), no_truth)
    if "delivery_count" in said:
        again = pc.fill_null(pc.greater(said["delivery_count"], 0), False)
        columns["redelivered"] = pc.if_else(pc.and_(delivered, headed), again, no_truth)
    if "discard_unroutable" in said:
        published = pc.and_(headed, pc.invert(delivered))
        columns["mandatory"] = pc.if_else(published, pc.invert(default("discard_unroutable")), no_truth)
        columns["immediate"] = pc.if_else(published, default("immediate"), no_truth)
    if "exchange" in said:
        columns["exchange"] = pc.coalesce(state["exchange"], said["exchange"])
    if "to" in said:
        columns["address"] = said["to"]
    if "reply_node" in said:
        node = pc.binary_join_element_wise(
            said["reply_exchange"].fill_null(""), said["reply_routing_key"].fill_null(""), "/"
        )
        columns["reply_to"] = pc.if_else(said["reply_node"], node, nothing)
    contexts = [said[name] for name in TRACEPARENTS if name in said]
    columns["trace_id"], columns["span_id"] = trace_context(pc.coalesce(*contexts))
    columns["ttl_ms"] = said["ttl"] if "ttl" in said else whole_numbers(said["expiration"])
    return columns


def trace_context(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Trace id and span id of each traceparent; null where it is none, or one of them is zeros only."""
    nothing = pa.scalar(None, pa.string())
    if texts.null_count == len(texts):
        return (pa.nulls(len(texts), pa.string()),) * 2
    valid = pc.match_substring_regex(texts, TRACE_CONTEXT)
    trace, span = (pc.utf8_slice_codeunits(texts, *place) for place in (TRACE_AT, SPAN_AT))
    for part in (trace, span):
        valid = pc.and_(valid, pc.match_substring_regex(part, "[^0]"))
    return pc.if_else(valid, trace, nothing), pc.if_else(valid, span, nothing)


def whole_numbers(texts: pa.Array) -> pa.Array:
    """Texts that are whole numbers, as Spark's try_cast to BIGINT reads them; the others null."""
    encoded = texts.dictionary_encode()
    values = [_whole_number(text) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
    return pa.array(values, pa.int64()).take(encoded.indices)


def _whole_number(octets: bytes) -> int | None:
    text = octets.decode("utf-8", "replace").strip(BLANKS)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or digits.strip(DIGITS) or int(text) not in INT64:
        return None
    return int(text)
