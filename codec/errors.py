"""The base class of all errors of Wirehare."""

from __future__ import annotations


class WirehareError(Exception):
    """Wirehare cannot do what it was asked to do; the message has the reason and the remedy."""
