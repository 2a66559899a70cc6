"""Options of a cut, its result, and its errors."""

from __future__ import annotations

from dataclasses import dataclass, field

from codec.errors import WirehareError


class CutError(WirehareError):
    """The packets cannot be extracted; the message is one line that says why."""


class CapturesError(CutError):
    """The captures are missing, or differ from those that the tables were made of."""


@dataclass(frozen=True)
class CutOptions:
    """Options of a cut. `whole`: write all packets of every selected connection. `context`: also write the packets that
    open a connection and lead to a frame. `captures`: directory where the captures are now. `key`: 32 bytes
    (codec.pseudonyms.key_of), to anonymise addresses. `secrets`: add the TLS secrets of these connections as a
    Decryption Secrets Block. `decrypted`: rewrite connections inside TLS or WebSocket in clear. `key_logs`: files with
    secrets, besides the captures."""

    whole: bool = False
    context: bool = True
    captures: str | None = None
    redact: bool = False
    key: bytes | None = None
    secrets: bool = False
    decrypted: bool = False
    key_logs: tuple[str, ...] = ()


@dataclass
class Result:
    """What was written. `problems`: one line per capture that could not be read completely."""

    packets: int = 0
    connections: int = 0
    captures: list[str] = field(default_factory=list)
    blanked: int = 0
    problems: list[str] = field(default_factory=list)
