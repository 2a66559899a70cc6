"""The error that all errors of Wirehare are: `except WirehareError` catches what Wirehare raises, and nothing else."""

from __future__ import annotations


class WirehareError(Exception):
    """Something that Wirehare was asked to do cannot be done; the message says why, and what to do instead."""
