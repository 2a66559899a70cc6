"""Reply codes of the versions, out of the fact tables, as conditions in SQL over a row with `version`."""

from __future__ import annotations

from codec.amqp.tables import CLASSIC_VERSIONS
from codec.amqp.versions import fact_table
from pipeline.audit.detector import Sql


def reply_codes(code: Sql) -> Sql:
    """True where `code` is a reply code of the row's version, or one that brokers add to it."""
    return _one_of(code, ("reply-code",))


def hard_errors(code: Sql) -> Sql:
    """True where `code` is one with which the whole connection has to be closed."""
    return _one_of(code, ("hard-error",))


def _one_of(code: Sql, wanted: tuple[str, ...]) -> Sql:
    cases = []
    for version in CLASSIC_VERSIONS:
        facts = fact_table(version)
        constants = [*facts["constants"], *facts.get("extension_constants", [])]
        codes = sorted({c["value"] for c in constants if {c.get("class"), c.get("kind", "reply-code")} & {*wanted}})
        cases.append(f"WHEN '{version}' THEN {code} IN ({', '.join(map(str, codes))})")
    return f"coalesce(CASE version {' '.join(cases)} END, false)"
