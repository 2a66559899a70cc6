"""The two sides of a connection, as tables name them; their places are the numbers that kernels have for them."""

from __future__ import annotations

SIDES = ("client", "server")
