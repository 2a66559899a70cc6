"""Notes: oddities of a frame that its octets show, as data.

Rows have a bitmask of notes, column `notes` of table frames has their names. A note is not an error: status and error
of the row have the consequence for its values. Most notes up to "content-alone" are of 0-8 to 0-9-1.
"""

from __future__ import annotations

from functools import cache

NOTES = (
    "frame-type",  # the frame type is not defined in this version
    "frame-end",  # the octet after the payload is not 0xCE
    "size-implausible",  # on skipped bytes: a frame above LIMITS.plausible_frame_bytes seems to begin here
    "snap-length",  # on missing bytes: the capture cut the packets that carried them
    "fields-short",  # the octets end before the last argument or property does
    "octets-left",  # octets follow the last argument or property
    "table-broken",  # the entries of a field table do not fit its length, or a tag is not defined
    "ambiguous-tag",  # a field table uses a tag of AMBIGUOUS_TAGS
    "zero-octet",  # a short string holds a zero octet
    "reserved-set",  # a reserved argument is not zero or empty; a reserved property is present
    "unused-bits",  # bits above the last of a run of bit arguments are set
    "weight",  # the weight of a content header is not zero
    "undefined-flags",  # property flags are set that the class does not define
    "class-differs",  # a content header has another class than the method that announces it
    "header-missing",  # the last method on this channel announced a content, but this is not its header
    "body-short",  # the last content on this channel lacks bytes of its body
    "body-long",  # more body than the header declared, up to this frame
    "body-of-nothing",  # a body, but the header declared no bytes
    "content-alone",  # a header or body with no content announced or open
    "empty-password",  # a SASL response of PLAIN or AMQPLAIN with a password of no octets
    "token-password",  # the same with a token for a password: three base64url parts, the first a JSON object
    "not-utf8",  # a text is not UTF-8: its invalid octets are escaped as \\xHH, and its backslashes as \\x5c
    "frame-short",  # 0-10, 1.0: on skipped bytes: a frame smaller than its own header seems to begin here
    "frame-flags",  # 0-10: reserved bits of the frame's flags are set
    "track",  # 0-10: a control on another track than 0, or anything else on another than 1
    "segment-order",  # 0-10: flag first-segment does not fit the type of the segment
    "control-goes-on",  # 0-10: a control with segments after it
    "segment-cut",  # 0-10: a segment begins before the last frame of the previous one on its channel and track
    "segments-unexpected",  # 0-10: segments are announced after a command that has none
    "entry-unexpected",  # 0-10: a struct in a header is undefined or repeated
    "fields-missing",  # 1.0: a mandatory field is null, or the list ends before it
    "fields-extra",  # 1.0: a list has more fields than its type defines
    "peer-late",  # decoded before bytes of the peer that it acknowledges: they were captured later
    "captured-late",  # acknowledged by the peer in a packet that was captured earlier
    "userinfo",  # a text has a URI with userinfo, which the tables show as **** (`codec.userinfo`)
    "body-missing",  # 1.0: a message is complete and has no section with a body
    "values-broken",  # 1.0: the fields of a performative do not parse
)
(
    FRAME_TYPE, FRAME_END, SIZE_IMPLAUSIBLE, SNAP_LENGTH, FIELDS_SHORT, OCTETS_LEFT, TABLE_BROKEN, AMBIGUOUS_TAG,
    ZERO_OCTET, RESERVED_SET, UNUSED_BITS, WEIGHT, UNDEFINED_FLAGS, CLASS_DIFFERS, HEADER_MISSING, BODY_SHORT,
    BODY_LONG, BODY_OF_NOTHING, CONTENT_ALONE, EMPTY_PASSWORD, TOKEN_PASSWORD, NOT_UTF8, FRAME_SHORT, FRAME_FLAGS,
    TRACK, SEGMENT_ORDER, CONTROL_GOES_ON, SEGMENT_CUT, SEGMENTS_UNEXPECTED, ENTRY_UNEXPECTED, FIELDS_MISSING,
    FIELDS_EXTRA, PEER_LATE, CAPTURED_LATE, USERINFO, BODY_MISSING, VALUES_BROKEN,
) = (1 << bit for bit in range(len(NOTES)))  # fmt: skip

# Field-table tags that the 0-9-1 grammar (section 4.2.1) and the brokers' practice read as different types, or only one
# of the two defines, although values look alike.
AMBIGUOUS_TAGS = b"slLU"


@cache
def note_names(mask: int) -> list[str] | None:
    """The names of the notes in `mask`; None without notes."""
    return [name for bit, name in enumerate(NOTES) if mask >> bit & 1] or None
