"""`wirehare rules` and `wirehare rule`: the catalogue, as a list, as a page, and rule by rule."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import duckdb
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from jobs.cli import main
from jobs.rules import NEEDED
from jobs.terminal.running import USAGE
from pipeline.audit import wanted_program
from pipeline.audit.catalogue import GROUPS, KNOWLEDGE, catalogue
from udfs.findings.program import FACT_CONNECTIONS, Program, hits_of, settings_of, view_of

ROOT = Path(__file__).parents[2]
DATA = ROOT / "pipeline" / "audit" / "catalogue"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_the_page_of_rules_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert (ROOT / "docs" / "rules.md").read_text() == printed(capsys, "rules", "--markdown")


def test_every_rule_is_listed_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "rules").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        name for group in GROUPS for name in json.loads((DATA / f"{group}.json").read_text())
    ]
    assert lines[-1].startswith(f"{len(catalogue())} rules: violation ")


def test_rules_are_chosen_by_version_severity_and_group(capsys: pytest.CaptureFixture[str]) -> None:
    rules = json.loads((DATA / "SEC.json").read_text())
    expected = [name for name, rule in rules.items() if "1.0" in rule["versions"] and rule["severity"] == "warning"]
    output = printed(capsys, "rules", "SEC", "--version", "1.0", "--severity", "warning")
    assert re.findall(r"^  (SEC-\d+) ", output, re.M) == expected
    assert output.splitlines()[-1] == f"{len(expected)} rules: warning {len(expected)}"
    assert printed(capsys, "rules", "FL", "--version", "0-10") == "0 rules\n"


def test_a_rule_is_printed_with_all_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "rule", "dl-13")
    entry = json.loads((DATA / "DL.json").read_text())["DL-13"]
    assert output.startswith(f"DL-13  {entry['summary']}\n")
    for part in (entry["severity"], entry["reference"], f"limit_seconds = {entry['parameters']['limit_seconds']}"):
        assert part in output
    assert "needs              all bytes, both directions, packets in the order in which they were sent" in output
    assert "--finding DL-13" in output
    assert "needs              the beginning of the connection\n" in printed(capsys, "rule", "HS-08")
    assert NEEDED.keys() == KNOWLEDGE.keys()


def test_every_rule_says_why_it_matters_and_what_to_do() -> None:
    sentence = re.compile(r"[A-Z0-9].*\S\.")
    texts = {(rule.id, text) for rule in catalogue().values() for text in (rule.why, rule.remedy)}
    assert {key for key in texts if not sentence.fullmatch(key[1]) or "  " in key[1]} == set()
    assert all(all(rule.settings.values()) for rule in catalogue().values())


def test_what_to_do_is_printed_and_is_in_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    output = " ".join(printed(capsys, "rule", "CH-09").split())
    page = (ROOT / "docs" / "rules.md").read_text()
    rule = catalogue()["CH-09"]
    for text in (rule.why, rule.remedy, rule.reason):
        assert text in output
    assert "RabbitMQ Java Channel.addShutdownListener" in output
    assert f"### CH-09\n\n**{rule.summary}** Warning, costs work; 0-8 0-9 0-9-1.\n\n{rule.why}" in page
    assert "- RabbitMQ Java: Channel.addShutdownListener" in page
    assert re.findall(r"^### (\S+)$", page, re.M) == [
        name for group in GROUPS for name in catalogue() if name.split("-")[0] == group
    ]


def test_settings_of_pika_are_those_of_the_library() -> None:
    """Parameters of connections, methods of channels and connections, and errors, by the names that pika has."""
    parameters = inspect.signature(pika.ConnectionParameters).parameters
    texts = [rule.settings["pika"] for rule in catalogue().values() if "pika" in rule.settings]
    given = {name for text in texts for call in re.findall(r"ConnectionParameters\((.*)\)", text)
             for name in re.findall(r"(\w+)=", re.sub(r"\(.*?\)|\{.*?\}", "", call))}  # fmt: skip
    assert given > {"heartbeat", "virtual_host"}
    assert given <= parameters.keys()
    for owner, kind in (("channel", BlockingChannel), ("connection", BlockingConnection)):
        named = {name for text in texts for name in re.findall(rf"\b{owner}\.(\w+)", text)}
        assert named
        assert {name for name in named if not hasattr(kind, name)} == set()
    assert {name for text in texts for name in re.findall(r"exceptions\.(\w+)", text)
            if not hasattr(pika.exceptions, name)} == set()  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rule", "CH-90"], "no rule 'CH-90' (see wirehare rules)"),
        (["rules", "--version", "0-9.1"], "there is no version '0-9.1'; did you mean '0-9-1'? Expected one of 0-8"),
        (["rules", "--severity", "warn"], "did you mean 'warning'?"),
        (["rules", "sec"], "did you mean 'SEC'?"),
    ],
)
def test_unknown_rules_and_groups_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == USAGE
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert message in error


def test_the_sql_of_a_rule_is_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that DuckDB runs over tables without rows: macros, relations, and the rows that break the rule."""
    assert main(["rule", "ch-09", "--sql"]) == 0
    script = capsys.readouterr().out
    program = wanted()
    (context,) = program.contexts
    assert script.startswith(program.macros[0])
    of_findings = {FACT_CONNECTIONS}  # of all findings, not of the rule
    queries = [each.query for each in program.relations if each.name not in of_findings]
    parts = [*program.macros, *queries, hits_of(context, context.checks)]
    assert [part for part in parts if part.rstrip(";") not in script] == []
    assert "args.reply_code >= 300" in script
    assert "context_request_reply" not in script
    with duckdb.connect() as connection:
        for name, schema in program.schemas.items():
            connection.execute(view_of(name, schema, None))
        connection.execute(settings_of(program))
        assert connection.execute(script).fetchall() == []


def wanted() -> Program:
    found = wanted_program(["CH-09"])
    assert found is not None
    return found
