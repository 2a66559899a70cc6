"""SQL conditions on names and reply codes, and the constant NEVER."""

from __future__ import annotations

from collections.abc import Iterable

from codec.amqp.classic.tables import CLASSIC_VERSIONS
from codec.amqp.versions import fact_table
from pipeline.audit.detector import Sql

NEVER = (1 << 63) - 1  # later than any frame or time


def reply_codes(code: Sql) -> Sql:
    """True if `code` is a reply code of the row's version, or an extension of brokers."""
    return _reply_code_of(code, ("reply-code",))


def hard_errors(code: Sql) -> Sql:
    """True if `code` requires closing the connection."""
    return _reply_code_of(code, ("hard-error",))


def sql_in(value: Sql, words: Iterable[str]) -> Sql:
    """True if `value` is one of the words."""
    return f"{value} IN ('" + "', '".join(words) + "')"


def _reply_code_of(code: Sql, wanted: tuple[str, ...]) -> Sql:
    cases = []
    for version in CLASSIC_VERSIONS:
        facts = fact_table(version)
        constants = [*facts["constants"], *facts.get("extension_constants", [])]
        codes = sorted({c["value"] for c in constants if {c.get("class"), c.get("kind", "reply-code")} & {*wanted}})
        cases.append(f"WHEN '{version}' THEN {code} IN ({', '.join(map(str, codes))})")
    return f"coalesce(CASE version {' '.join(cases)} END, false)"
