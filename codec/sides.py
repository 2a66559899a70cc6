"""The two sides of a connection, as in tables; kernels use their indexes."""

from __future__ import annotations

SIDES = ("client", "server")
