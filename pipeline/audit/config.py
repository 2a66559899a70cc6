"""Settings of an audit: thresholds, rules switched off, exceptions that somebody accepted until a day."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.audit.catalogue import Number


@dataclass(frozen=True)
class Accepted:
    """Findings of `rule` that are not shown up to and including the day `until`, because of `reason`.

    Where given, `client_product`, `user` and `vhost` have to be those of the connection.
    """

    rule: str
    reason: str
    until: date
    client_product: str | None = None
    user: str | None = None
    vhost: str | None = None


@dataclass(frozen=True)
class Config:
    """`parameters`: rule -> threshold -> value; `disabled`: rules or groups; `exceptions`."""

    parameters: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    disabled: Collection[str] = ()
    exceptions: Collection[Accepted] = ()


def exempted(exceptions: Collection[Accepted], today: date) -> Column:
    """True on findings that an exception covers today."""
    covered = F.lit(False)
    for accepted in exceptions:
        if accepted.until >= today:
            same = F.col("rule_id") == accepted.rule
            for name in ("client_product", "user", "vhost"):
                value = getattr(accepted, name)
                same &= F.lit(True) if value is None else F.col(name).eqNullSafe(value)
            covered |= same
    return covered
