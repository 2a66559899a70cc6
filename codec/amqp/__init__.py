"""Decode bytes of AMQP 0-8, 0-9, 0-9-1, 0-10 and 1.0: a few at a prompt, or the segments of whole connections.

    >>> from codec import amqp
    >>> amqp.decode(b"AMQP\\x00\\x00\\x09\\x01")[0].version
    '0-9-1'
    >>> (frame,) = amqp.decode(bytes.fromhex("01 0001 0000000e 0014 0028 00c8 03 62 79 65 0000 0000 ce"))
    >>> frame.channel, frame.name, frame.arguments["reply_text"]
    (1, 'channel.close', 'bye')

    decode(data)       the frames in some bytes
    Frame              one of them: version, channel, name, arguments, ...
    UnknownVersion     the error of `decode` for bytes that are not AMQP
    VERSIONS           the names of the five versions in tables
    Decoder, Batch     decode the segments of connections to batches of rows

Read `decoder` first, the way in for segments of many connections; then `batches`, which makes VARIANT values of the
bytes of its rows. `standalone` decodes frames and values that belong to no connection, `readable` shows them at a
prompt, `redaction` blanks secrets in frames. Each name is imported when it is first used.
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
__all__ = ["VERSIONS", "decode"]  # what `help` shows: the listing of a class would come first


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(MODULES)
