"""permessage-deflate, the compression of WebSocket (RFC 7692).

A message is compressed with DEFLATE (RFC 1951), without its last four bytes, which are always the same. With *context
takeover*, the usual way, a message may refer to the last 32 KB of the messages before it. So between two messages the
state of a direction is these bytes. The compressed bytes of a message are collected until it ends and inflated in one
call; what that may cost has bounds (`Limits.inflate_*`).
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from codec.compiler.limits import LIMITS
from codec.errors import WirehareError

EXTENSION = b"permessage-deflate"
NO_TAKEOVER = (b"client_no_context_takeover", b"server_no_context_takeover")  # parameters (section 7.1.1)
TAIL = b"\x00\x00\xff\xff"  # section 7.2.2
RAW = -zlib.MAX_WBITS  # a window of the largest size inflates what was compressed with any smaller one
WINDOW_BYTES = 1 << zlib.MAX_WBITS
COUNTS = ("compressed", "inflated", "expanded")


class NotInflated(WirehareError):
    """A message is not valid DEFLATE."""


class TooLarge(NotInflated):
    """A message expands to more than the limits allow."""


def agreed(extensions: bytes) -> tuple[bool, bool] | None:
    """Whether the client's and the server's messages are without context takeover, by the field
    Sec-WebSocket-Extensions of a response; None: permessage-deflate is not among its extensions."""
    for extension in extensions.lower().split(b","):
        name, *parameters = (part.strip(b" \t") for part in extension.split(b";"))
        if name == EXTENSION:
            return NO_TAKEOVER[0] in parameters, NO_TAKEOVER[1] in parameters
    return None


class Inflater:
    """The compressed messages of one direction. `fresh`: without context takeover."""

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.pending = bytearray()  # of the current message
        self.compressed = self.inflated = 0  # bytes of all messages
        self.expanded = 0  # bytes that inflating added
        self._recent: deque[bytes] = deque()  # with the last WINDOW_BYTES of the messages
        self._recent_bytes = 0
        self._stream = zlib.decompressobj(RAW)

    def add(self, octets: bytes) -> None:
        """Compressed bytes of the current message."""
        if len(self.pending) + len(octets) > LIMITS.inflate_bytes:
            raise TooLarge
        self.pending += octets

    def end(self, complete: bool = True) -> bytes:
        """The bytes of the current message; not `complete`: as many as can be inflated before a hole."""
        octets, self.pending = bytes(self.pending), bytearray()
        if not octets:  # no block at all: an empty message has at least one (section 7.2.3.6)
            return b""
        self.compressed += len(octets)
        allowed = LIMITS.inflate_grace + LIMITS.inflate_ratio * self.compressed - self.inflated
        plain = self._inflate(octets + TAIL if complete else octets, min(allowed, LIMITS.inflate_bytes))
        self.inflated += len(plain)
        self.expanded += len(plain) - len(octets)
        if self.fresh:
            self._stream = zlib.decompressobj(RAW)
        return plain

    def _inflate(self, octets: bytes, allowed: int) -> bytes:
        parts, size = [], 0
        while True:
            try:
                part = self._stream.decompress(octets, allowed - size + 1)
            except zlib.error as error:
                raise NotInflated from error
            size += len(part)
            if size > allowed:
                raise TooLarge
            parts.append(part)
            if not self.fresh:
                self._remember(part)
            octets = self._stream.unused_data
            if not octets:
                break
            # A block was the last of its stream (section 7.2.3.4); another stream follows, which has the same window.
            self._stream = self._resumed()
        if self._stream.eof:
            self._stream = self._resumed()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _remember(self, plain: bytes) -> None:
        if plain:
            self._recent.append(plain[-WINDOW_BYTES:])
            self._recent_bytes += len(self._recent[-1])
            while self._recent_bytes - len(self._recent[0]) >= WINDOW_BYTES:
                self._recent_bytes -= len(self._recent.popleft())

    @property
    def window(self) -> bytes:
        """The bytes to which the next message may refer."""
        return b"".join(self._recent)[-WINDOW_BYTES:]

    def _resumed(self) -> Any:
        window = self.window
        return zlib.decompressobj(RAW, zdict=window) if window else zlib.decompressobj(RAW)

    def state(self) -> dict[str, Any]:
        """Its state between two chunks."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {"fresh": self.fresh, "pending": bytes(self.pending), "window": self.window}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Inflater:
        """The inverse of `state`."""
        found = cls(state["fresh"])
        for name in COUNTS:
            setattr(found, name, state[name])
        found.pending = bytearray(state["pending"])
        found._remember(state["window"])
        found._stream = found._resumed()
        return found
