"""The five versions, their protocol headers, and the codes and texts of frame types, statuses and errors, as data.

Codes are indexes into the tuples; `NONE` (0) is "unknown". Protocol headers come from the fact tables (section
`protocol_header` of each): eight bytes, "AMQP" and four more.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.limits import LIMITS

VERSIONS = (None, "0-8", "0-9", "0-9-1", "0-10", "1.0")
NONE, V0_8, V0_9, V0_9_1, V0_10, V1_0 = range(6)

OFFERS = LIMITS.offers
# Replaces the first byte of a protocol header (0 to 3) where an offer is the version in a connection.start.
START_VERSION = 0xFF

FAMILIES = (None, "classic", "0-10", "1.0")
UNKNOWN_FAMILY, CLASSIC, V0_10_FAMILY, V1_0_FAMILY = range(4)
FAMILY_OF_VERSION = np.array([UNKNOWN_FAMILY, CLASSIC, CLASSIC, CLASSIC, V0_10_FAMILY, V1_0_FAMILY], np.int64)

FRAME_TYPES = (
    "protocol-header", "method", "header", "body", "oob-method", "oob-header", "oob-body", "trace", "heartbeat",
    "control", "command", "amqp", "sasl", "empty", "tls", "gap", "skipped", "foreign",
)  # fmt: skip
(
    PROTOCOL_HEADER, METHOD, HEADER, BODY, OOB_METHOD, OOB_HEADER, OOB_BODY, TRACE, HEARTBEAT, CONTROL, COMMAND, AMQP,
    SASL, EMPTY, TLS_SPAN, GAP, SKIPPED, FOREIGN_SPAN,
) = range(len(FRAME_TYPES))  # fmt: skip

STATUSES = ("ok", "partial", "malformed", "unknown")
OK, PARTIAL, MALFORMED, UNKNOWN = range(len(STATUSES))

ERRORS = (
    None,
    "bytes of this frame are missing from the capture",
    "these bytes are missing from the capture",
    "no frame boundary found in these bytes",
    "the capture ends inside a frame",
    "frame end octet is not 0xCE",
    "frame type is not defined in this version",
    "class and method are not defined in this version",
    "arguments do not fit the method's definition",
    "properties do not fit the class's definition",
    "content header is shorter than its fixed part",
    "method frame is shorter than its class and method",
    "content header names a class without content",
    "content header without the method that announces it",
    "content body without its header",
    "content body is longer than its header declared",
    "protocol header of no known version",
    "the decoded value is above the decoder's limit",
    "heartbeat with a payload",
    "not AMQP",
    "encrypted with TLS",
    "frame is shorter than its own header",
    "values do not fit the performative's definition",
    "no performative where one must be",
    "values are nested above the decoder's limit",
    "reserved bits of the frame header are not zero",
    "track or flags of the frame do not fit its segment type",
    "segment without the command that it belongs to",
    "frame goes on with a segment whose beginning was not seen",
    "bytes of this segment are missing from the capture",
    "the sections of the message do not fit their definitions",
    "text that is not UTF-8",
    "bytes of these values are missing from the capture",
    "header of the PROXY protocol",
)
(
    NO_ERROR, E_MISSING_INSIDE, E_MISSING, E_NO_BOUNDARY, E_TAIL, E_FRAME_END, E_FRAME_TYPE, E_METHOD, E_ARGUMENTS,
    E_PROPERTIES, E_SHORT_HEADER, E_SHORT_METHOD, E_NO_CONTENT_CLASS, E_UNEXPECTED_HEADER, E_UNEXPECTED_BODY,
    E_BODY_LONG, E_VERSION, E_VALUE_SIZE, E_HEARTBEAT, E_FOREIGN, E_TLS, E_SHORT_FRAME, E_FIELDS, E_NO_PERFORMATIVE,
    E_DEPTH, E_RESERVED, E_TRACK, E_NO_COMMAND, E_UNEXPECTED_SEGMENT, E_SEGMENT_HOLE, E_SECTIONS, E_TEXT,
    E_MISSING_VALUES, E_PROXY,
) = range(len(ERRORS))  # fmt: skip


class Headers(NamedTuple):
    """Known protocol headers: `bytes` uint8 (n, 4) after "AMQP", `version` int64 (n,); `echoed` bool (n,): the server
    sends it too, and frames that only one side may send follow, or (`either_side`) those of either side."""

    data: np.ndarray
    version: np.ndarray
    echoed: np.ndarray
    either_side: np.ndarray


@lru_cache
def fact_table(version: str) -> dict:
    """The fact table of one version ('0-8', '0-9', '0-9-1', '0-10', '1.0'), read from its JSON file."""
    name = f"amqp-{version.replace('.', '-')}.json"
    table: dict = json.loads(resources.files("codec.protocol.spec").joinpath(name).read_text("utf-8"))
    return table


@lru_cache
def overlay() -> dict[str, Any]:
    """Additions to the printed specifications, and what rows hide, read from its JSON file."""
    table: dict[str, Any] = json.loads(
        resources.files("codec.protocol.spec").joinpath("overlay.json").read_text("utf-8")
    )
    return table


@lru_cache
def headers() -> Headers:
    """Variants of headers that no version defines, then the header of every version."""
    own: dict[bytes, int] = {}
    variants: dict[bytes, int] = {}
    marked: dict[str, set[bytes]] = {"server_echo": set(), "either_side": set()}
    for code, version in enumerate(VERSIONS):
        if version is None:
            continue
        definition = fact_table(version)["protocol_header"]
        for form in definition.get("ids", [definition]):
            own[bytes.fromhex(form["hex"])] = code
            for mark in marked.keys() & form.keys():
                marked[mark].add(bytes.fromhex(form["hex"]))
        for form in definition.get("variants", []):
            variants.setdefault(bytes.fromhex(form["hex"]), code)
    known = {**variants, **own}
    return Headers(
        np.array([list(data[4:]) for data in known], np.uint8),
        np.array(list(known.values()), np.int64),
        *(np.array([data in of_mark for data in known]) for of_mark in marked.values()),
    )
