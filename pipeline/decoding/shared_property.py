"""A property that several threads may ask for, and that is made once."""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

Made = TypeVar("Made")


class shared_property(cached_property[Made]):
    """As functools.cached_property, made once whichever thread asks first. Shared properties may be made of each other;
    other threads make others meanwhile. Their object has a `lock`, an RLock, under which each gets one of its own."""

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Made:  # type: ignore[override]
        with instance.lock:
            own = instance.__dict__.setdefault(f"{self.attrname}.lock", RLock())
        with own:
            made: Made = super().__get__(instance, owner)
            return made
