"""Conditions in SQL on words and numbers: one of a list, reply codes of the row's version out of the fact tables; the
time of what has not ended."""

from __future__ import annotations

from collections.abc import Iterable

from codec.amqp.classic.tables import CLASSIC_VERSIONS
from codec.amqp.versions import fact_table
from pipeline.audit.detector import Sql

NEVER = (1 << 63) - 1  # later than any frame or time: what has not ended


def reply_codes(code: Sql) -> Sql:
    """True where `code` is a reply code of the row's version, or one that brokers add to it."""
    return _reply_code_of(code, ("reply-code",))


def hard_errors(code: Sql) -> Sql:
    """True where `code` is one with which the whole connection has to be closed."""
    return _reply_code_of(code, ("hard-error",))


def one_of(value: Sql, words: Iterable[str]) -> Sql:
    """True where `value` is one of the words."""
    return f"{value} IN ('" + "', '".join(words) + "')"


def _reply_code_of(code: Sql, wanted: tuple[str, ...]) -> Sql:
    cases = []
    for version in CLASSIC_VERSIONS:
        facts = fact_table(version)
        constants = [*facts["constants"], *facts.get("extension_constants", [])]
        codes = sorted({c["value"] for c in constants if {c.get("class"), c.get("kind", "reply-code")} & {*wanted}})
        cases.append(f"WHEN '{version}' THEN {code} IN ({', '.join(map(str, codes))})")
    return f"coalesce(CASE version {' '.join(cases)} END, false)"
