"""A thread-safe cached property."""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

Made = TypeVar("Made")


class shared_property(cached_property[Made]):
    """functools.cached_property for several threads: computed once. Shared properties may depend on each other, and
    different ones are computed in parallel. Their object must have a `lock` (RLock), which guards the lock of each."""

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Made:  # type: ignore[override]
        with instance.lock:
            own = instance.__dict__.setdefault(f"{self.attrname}.lock", RLock())
        with own:
            made: Made = super().__get__(instance, owner)
            return made
