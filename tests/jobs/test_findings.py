"""Findings: for every rule a stream that breaks it and fires it, and a conforming twin that fires nothing."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from audit_support import by_connection
from audited import CAPTURE_CASES, CASES, FURTHER, IN_CLEAR, LOGINS, LOGINS_PORT, Audited
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import VariantVal
from rule_support import AMBIENT, NOBODY, Case, Key

import pipeline
from codec.conversation.oddities import NAMES as ODDITIES
from codec.protocol.rows import NOTE_NAMES
from codec.protocol.versions import ERRORS
from codec.tables import FINDINGS
from pipeline.audit import config, contexts, findings_in, wanted_program
from pipeline.audit import rule_program as engine
from pipeline.audit.catalogue import KNOWLEDGE, KNOWN, SCOPES, SEVERITIES, catalogue, entries, removed
from pipeline.audit.detectors import DEFINITIONS, DETECTORS
from udfs.arrow.spark_schemas import TABLES, spark_schema
from udfs.findings.program import TRAITS, possible

Fired = dict[Key, dict[str, list[dict[str, Any]]]]
RULES = sorted(catalogue())
LITERAL = re.compile(r"'((?:[^']|'')*)'")
# Texts that detectors compare columns with, each with what the decoder may write there.
WRITTEN = {"ERROR_IS": set(map(str, ERRORS)), "HAS_NOTE": set(NOTE_NAMES), "oddity": set(ODDITIES)}


@pytest.fixture(scope="module")
def fired(audited: Audited) -> Fired:
    """Findings of every half of every case, by rule, in the order of frames."""
    owner = audited.owner
    of_port = {
        row.connection_id: owner[row.client_port if row.client_port in owner else row.server_port]
        for row in audited.connections
        if row.client_port in owner or row.server_port in owner
    }
    found: Fired = defaultdict(lambda: defaultdict(list))
    for row in sorted(audited.findings, key=lambda row: (row.frame_no is None, row.frame_no)):
        if row.connection_id is None or row.connection_id in of_port:
            values = row.asDict() | {"evidence": json.loads(row.evidence.toJson())}
            found[of_port.get(row.connection_id) or position_of(row)][row.rule_id].append(values)
    return found


def position_of(row: Row) -> Key:
    """The half of a case that a finding about a capture is of, counted from -1 downwards."""
    number, half = Path(row.capture_file).stem.split("-")
    return -1 - int(number), half


def further(fired: Fired, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of the findings that case `name` is about."""
    number = len(CASES) + list(FURTHER).index(name)
    return [tuple(row[column] for column in columns) for row in fired[number, "breaks"][FURTHER[name].rule]]


def test_what_is_known_of_a_connection_is_the_same_for_rules_and_report() -> None:
    script = " ".join(resources.files(contexts).joinpath("connections.sql").read_text().split())
    assert [name for name, sql in KNOWN.items() if f"{sql} AS {name}" not in script.replace('"', "")] == []


def test_a_removed_rule_has_a_reason_and_no_entry() -> None:
    assert not set(RULES) & set(removed())
    assert all(len(reason) > 20 for reason in removed().values())


def test_detectors_look_for_what_the_decoder_writes() -> None:
    texts = [text for entry in entries().values() for text in strings(entry["detectors"])]
    texts += strings(DEFINITIONS["sql"])
    found = {
        "ERROR_IS": quoted(r"\{ERROR_IS\((.*?)\)\}", texts),
        "HAS_NOTE": quoted(r"\{HAS_NOTE\((.*?)\)\}", texts),
        "oddity": quoted(r"oddity (?:=|IN) \(?((?:'[^']*'(?:, )?)+)", texts),
    }
    assert {name: values - WRITTEN[name] for name, values in found.items()} == {name: set() for name in WRITTEN}
    assert all(found.values())


def strings(value: Any) -> list[str]:
    """All texts within a JSON value."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in strings(part)]


def quoted(pattern: str, texts: list[str]) -> set[str]:
    """The SQL literals in what `pattern` finds."""
    literals = (text for part in texts for found in re.findall(pattern, part) for text in LITERAL.findall(found))
    return {text.replace("''", "'") for text in literals}


def test_every_definition_is_used() -> None:
    used = " ".join(json.dumps(entry["detectors"]) for entry in entries().values())
    used += json.dumps([part["sql"] for part in DEFINITIONS["sql"].values()])
    assert [name for name in DEFINITIONS["sql"] if f"{{{name}}}" not in used and f"{{{name}(" not in used] == []
    assert [name for name in DEFINITIONS["templates"] if f'"like": "{name}"' not in used] == []


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_every_text_that_a_finding_needs(name: str) -> None:
    rule = catalogue()[name]
    assert rule.severity in SEVERITIES
    assert rule.scope in SCOPES
    assert rule.offender in ("client", "server", None)
    assert {*rule.needs, *rule.prefers} <= set(KNOWLEDGE)
    assert all([rule.versions, rule.summary, rule.reference, rule.detect, rule.category])


def test_every_rule_has_a_detector() -> None:
    assert sorted({detector.rule for detector in DETECTORS}) == RULES


def test_every_rule_has_a_case_in_each_of_its_versions() -> None:
    claimed = {(rule.id, version) for rule in catalogue().values() for version in rule.versions}
    assert claimed - {(case.rule, case.version) for case in CASES} == set()


def test_a_case_is_of_a_version_that_its_rule_is_about() -> None:
    assert [case for case in CASES if case.version not in catalogue()[case.rule].versions] == []


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.rule}-{case.version}" for case in CASES])
def test_a_rule_fires_on_its_breaking_case_and_not_on_its_conforming_one(fired: Fired, number: int) -> None:
    case: Case = CASES[number]
    broken, conforming = (
        set(fired[number, half]) - ({*AMBIENT, *case.besides} - {case.rule}) for half in ("breaks", "conforms")
    )
    assert conforming == set()
    assert broken == {case.rule, *case.also}
    (first, *_) = fired[number, "breaks"][case.rule]
    assert {name: first["evidence"].get(name) for name in case.evidence} == dict(case.evidence)
    assert first["packet_no"] is not None
    if case.offender:
        assert (first["offender"] or NOBODY) == case.offender
    if case.frame_no:
        assert first["frame_no"] == case.frame_no
    if case.severity:
        assert first["severity"] == case.severity
    if case.occurrences:
        assert sum(found["occurrences"] for found in fired[number, "breaks"][case.rule]) == case.occurrences


@pytest.mark.parametrize("number", range(len(CAPTURE_CASES)), ids=[str(case.evidence) for case in CAPTURE_CASES])
def test_a_limit_of_a_capture_is_a_finding_of_no_connection(fired: Fired, number: int) -> None:
    case = CAPTURE_CASES[number]
    assert (-1 - number, "conforms") not in fired
    ((name, (row,)),) = fired[-1 - number, "breaks"].items()
    assert (name, row["scope"], row["occurrences"]) == (case.rule, "capture", case.occurrences)
    assert {name: row["evidence"].get(name) for name in case.evidence} == dict(case.evidence)
    assert [row[name] for name in ("connection_id", "channel", "frame_no", "packet_no", "ts", "reservation")] == 6 * [
        None
    ]


def test_a_finding_has_the_texts_of_its_rule(fired: Fired) -> None:
    for of_rule in fired.values():
        for name, rows in of_rule.items():
            rule = catalogue()[name]
            for row in rows:
                scope = rule.scope if row["connection_id"] is not None else "capture"
                fields = (row["scope"], row["category"], row["summary"], row["reference"])
                assert fields == (scope, rule.category, rule.summary, rule.reference)
                assert (row["channel"] is None) == (scope in ("connection", "capture"))


def test_severity_falls_where_bytes_are_missing_before(fired: Fired) -> None:
    assert further(fired, "a loss before", "severity", "reservation") == [("warning", "bytes are missing")]
    assert further(fired, "a loss after", "severity", "reservation") == [("violation", None)]


def test_occurrences_on_one_connection_are_one_finding(fired: Fired) -> None:
    # header, start, start-ok, tune, tune-ok, open, open-ok come before the first
    assert further(fired, "several times", "occurrences", "frame_no") == [(3, 8)]


def test_incarnations_of_a_channel_are_distinguished(fired: Fired) -> None:
    assert further(fired, "two incarnations", "channel", "channel_incarnation", "occurrences") == [(1, 1, 2), (1, 2, 2)]


def test_a_password_inside_tls_is_no_finding(audited: Audited) -> None:
    """The same logins in clear and in TLS that was decrypted, of 0-9-1 and 1.0, passwords and tokens."""
    assert {rule for rule, _ in LOGINS} == IN_CLEAR
    assert {connection.version for _, connection in LOGINS} == {"0-9-1", "1.0"}
    connections = {row.client_port - LOGINS_PORT: row for row in audited.connections}
    rules: dict[int, set[str]] = defaultdict(set)
    for row in audited.findings:
        rules[row.connection_id].add(row.rule_id)
    for number, (rule, _) in enumerate(LOGINS):
        bare, inside = connections[number], connections[number + len(LOGINS)]
        assert (bare.transport, inside.transport, inside.tls.decrypted) == ("tcp", "tls", True)
        assert (bare.mechanism, bare.user) == (inside.mechanism, inside.user)
        assert rule in rules[bare.connection_id]
        assert not rules[inside.connection_id] & IN_CLEAR
        of_amqp = {name for name in rules[inside.connection_id] if not name.startswith("TLS-")}
        assert of_amqp == rules[bare.connection_id] - IN_CLEAR


def test_findings_in_groups_and_on_spark_are_those_of_the_whole(
    audited: Audited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRETCH_FRAMES", 0)
    settings = config.read(audited.folder / "audit.toml")
    folder = audited.folder / "tables"
    files = {name: sorted(map(str, (folder / name).glob("*.parquet"))) for name in TABLES}
    groups = by_connection(files, tmp_path, 3)
    whole = Counter(map(text_of, audited.all_findings))
    found = findings_in(groups, config=settings, most_bytes=0)
    rows = [Row(**row | {"evidence": VariantVal(**row["evidence"])}) for row in found.to_pylist()]
    assert Counter(map(text_of, rows)) == whole
    on_spark = pipeline.findings(audited.tables, config=settings).collect()
    assert Counter(map(text_of, on_spark)) == whole


def text_of(row: Row) -> str:
    values = row.asDict() | {"evidence": json.loads(row.evidence.toJson())}
    return json.dumps(values | {"ts": row.ts and row.ts.timestamp()}, sort_keys=True, default=str)


def test_no_check_is_skipped_that_a_case_breaks(
    audited: Audited, fired: Fired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked follows from what occurs: for each half of a case, from what occurs in its own connections."""
    of_port = {row.connection_id: port_of(row, audited) for row in audited.connections}
    occurring: dict[Key, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in audited.tables.connections.select(*OCCURRING).collect():
        words = occurring[of_port.get(row.connection_id, NOWHERE)]
        words["versions"] |= {row.version, *(text.split(" ")[1] for text in row.versions_offered or ())}
        words["products"].add(row.server_product)
        words["traits"] |= {*TRAITS}  # of messages: whatever they are
    for table in (audited.tables.frames, audited.tables.methods):
        for row in table.select("connection_id", "version", "name").distinct().collect():
            words = occurring[of_port.get(row.connection_id, NOWHERE)]
            words["versions"].add(row.version)
            words["names"].add(row.name)
    program = wanted_program()
    assert program is not None
    skipped = {}
    for key, rules in fired.items():
        if key[0] >= 0:
            checked = {check.rule_id for each in program.contexts for check in possible(each, occurring[key])}
            skipped[key] = set(rules) - checked
    assert {key: rules for key, rules in skipped.items() if rules} == {}
    assert len(skipped) > 700
    few = {check.rule_id for each in program.contexts for check in possible(each, {"versions": {"0-9-1"}})}
    assert not {rule for rule in few if rule.startswith(("L10", "T10"))}


NOWHERE: Key = (-1, "")
OCCURRING = ("connection_id", "version", "versions_offered", "server_product")


def port_of(row: Row, audited: Audited) -> Key:
    port = row.client_port if row.client_port in audited.owner else row.server_port
    return audited.owner.get(port, NOWHERE)


def test_findings_of_tables_without_rows(spark: SparkSession) -> None:
    empty: dict[str, Any] = {name: spark.createDataFrame([], schema) for name, schema in TABLES.items()}
    tables = pipeline.Tables(**empty)
    assert pipeline.findings(tables, rules=["CL-08"]).collect() == []
    assert pipeline.findings(tables, rules=["CL-08"], disable=["CL"]).schema == spark_schema(FINDINGS)
