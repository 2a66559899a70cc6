"""AMQP 0-8, 0-9, 0-9-1, 0-10 and 1.0 on the wire: from the ordered bytes of connections to rows of frames.

    >>> import codec.amqp
    >>> codec.amqp.decode(b"AMQP\\x00\\x00\\x09\\x01")[0].version
    '0-9-1'

The public names:

    decode, Frame      decodes a few bytes to readable frames, at a prompt
    UnknownVersion     the error of `decode` for bytes that are not AMQP, a `codec.errors.WirehareError`
    VERSIONS           the names of the five versions in tables
    Decoder, Batch     decodes the segments of connections to batches of rows

Importing the package loads none of its modules; the first use of a name does. `decoder` is the way in for segments of
many connections, `batches` makes VARIANT values of the bytes of its rows, `standalone` decodes frames and values that
belong to no connection, `readable` shows them at a prompt, `redaction` blanks secrets in frames.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codec.amqp.batches import Batch as Batch
    from codec.amqp.decoder import Decoder as Decoder
    from codec.amqp.readable import Frame as Frame
    from codec.amqp.readable import UnknownVersion as UnknownVersion
    from codec.amqp.readable import decode as decode
    from codec.protocol.versions import VERSIONS as VERSIONS

MODULES = {
    "Batch": "codec.amqp.batches",
    "Decoder": "codec.amqp.decoder",
    "Frame": "codec.amqp.readable",
    "UnknownVersion": "codec.amqp.readable",
    "VERSIONS": "codec.protocol.versions",
    "decode": "codec.amqp.readable",
}
__all__ = ["VERSIONS", "Batch", "Decoder", "Frame", "UnknownVersion", "decode"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(MODULES[name]), name)
    return value
