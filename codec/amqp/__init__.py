"""AMQP 0-8, 0-9, 0-9-1, 0-10 and 1.0 on the wire: from the ordered bytes of connections to rows of frames.

    >>> import codec.amqp
    >>> codec.amqp.decode(b"AMQP\\x00\\x00\\x09\\x01")[0].name

`decode` is for a person at a prompt; `codec.amqp.decoder.Decoder` is what captures go through. What is public:

    decode, Frame     frames of a few octets, readable
    UnknownVersion    what `decode` raises for octets that are no AMQP
    VERSIONS          the five versions, as the tables name them

Importing the package loads none of its modules: each is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codec.amqp.readable import Frame as Frame
    from codec.amqp.readable import UnknownVersion as UnknownVersion
    from codec.amqp.readable import decode as decode
    from codec.amqp.versions import VERSIONS as VERSIONS

HOMES = {
    "Frame": "codec.amqp.readable",
    "UnknownVersion": "codec.amqp.readable",
    "VERSIONS": "codec.amqp.versions",
    "decode": "codec.amqp.readable",
}
__all__ = ["VERSIONS", "Frame", "UnknownVersion", "decode"]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(HOMES[name]), name)
    return found
