"""Names that tables and kernels share: the two sides of a connection, of which kernels use the indexes, and the
versions of the classic family."""

from __future__ import annotations

SIDES = ("client", "server")
CLASSIC_VERSIONS = ("0-8", "0-9", "0-9-1")
