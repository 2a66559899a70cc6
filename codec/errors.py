"""The base class of all errors of Wirehare."""

from __future__ import annotations


class WirehareError(Exception):
    """The base of all errors that Wirehare raises on purpose; the message says what is wrong and what to do."""
