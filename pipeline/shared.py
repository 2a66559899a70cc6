"""A property that several threads may ask for, and that is made once."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

Made = TypeVar("Made")


class shared(cached_property[Made]):
    """As functools.cached_property, made once whichever thread asks first. Its object has a `lock`, an RLock,
    for all of them: shared properties may be made of each other."""

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Made:  # type: ignore[override]
        with instance.lock:
            made: Made = super().__get__(instance, owner)
            return made
