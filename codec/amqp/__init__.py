"""AMQP 0-8, 0-9, 0-9-1, 0-10 and 1.0 on the wire: from the ordered bytes of connections to rows of frames.

    >>> import codec.amqp
    >>> codec.amqp.decode(b"AMQP\\x00\\x00\\x09\\x01")[0].version
    '0-9-1'

The public names:

    decode, Frame      decodes a few bytes to readable frames, at a prompt
    UnknownVersion     the error of `decode` for bytes that are not AMQP, a `codec.errors.WirehareError`
    VERSIONS           the names of the five versions in tables
    Decoder, Batch     decodes the segments of connections to batches of rows

Importing the package loads none of its modules; the first use of a name does. (`Decoder`, `Batch` and `decode` are in
`codec.decode`.)

In which order to read it: `versions` and `rows` say what a row has; `connection` and `transport` what is known of a TCP
connection and how a segment is added to it; `stream` makes rows of its bytes; `detection` finds the version, and frames
after a loss. Each family has four modules, which name the same things: `*_tables` (its methods as data), `*_frames`,
`*_values`, `*_detection`; 1.0 also `v1_0_deliveries` (messages of several transfers) and `v1_0_contents` (requests,
tokens and batches in messages). `redaction` and `disclosure` keep secrets out of rows.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codec.amqp.versions import VERSIONS as VERSIONS
    from codec.decode.batches import Batch as Batch
    from codec.decode.decoder import Decoder as Decoder
    from codec.decode.readable import Frame as Frame
    from codec.decode.readable import UnknownVersion as UnknownVersion
    from codec.decode.readable import decode as decode

MODULES = {
    "Batch": "codec.decode.batches",
    "Decoder": "codec.decode.decoder",
    "Frame": "codec.decode.readable",
    "UnknownVersion": "codec.decode.readable",
    "VERSIONS": "codec.amqp.versions",
    "decode": "codec.decode.readable",
}
__all__ = ["VERSIONS", "Batch", "Decoder", "Frame", "UnknownVersion", "decode"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(MODULES[name]), name)
    return value
