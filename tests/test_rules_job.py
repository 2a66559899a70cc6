"""`wirehare rules` and `wirehare rule`: the catalogue, as a list, as a page, and rule by rule."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jobs.cli import USAGE, main
from jobs.rules import NEEDED
from pipeline.audit.catalogue import GROUPS, KNOWLEDGE, catalogue

ROOT = Path(__file__).parent.parent
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
    wanted = [name for name, rule in rules.items() if "1.0" in rule["versions"] and rule["severity"] == "warning"]
    told = printed(capsys, "rules", "SEC", "--version", "1.0", "--severity", "warning")
    assert re.findall(r"^  (SEC-\d+) ", told, re.M) == wanted
    assert told.splitlines()[-1] == f"{len(wanted)} rules: warning {len(wanted)}"
    assert printed(capsys, "rules", "FL", "--version", "1.0") == "0 rules\n"


def test_a_rule_says_what_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "rule", "dl-13")
    entry = json.loads((DATA / "DL.json").read_text())["DL-13"]
    assert told.startswith(f"DL-13  {entry['summary']}\n")
    for part in (entry["severity"], entry["reference"], f"limit_seconds = {entry['parameters']['limit_seconds']}"):
        assert part in told
    assert "needs           all bytes, both directions, packets in the order in which they were sent" in told
    assert "--finding DL-13" in told
    assert "needs           the beginning of the connection\n" in printed(capsys, "rule", "HS-08")
    assert NEEDED.keys() == KNOWLEDGE.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rule", "CH-90"], "no rule 'CH-90' (see wirehare rules)"),
        (["rules", "--version", "0-9.1"], "no version '0-9.1'; expected one of 0-8, 0-9, 0-9-1"),
        (["rules", "--severity", "warn"], "did you mean 'warning'?"),
        (["rules", "sec"], "did you mean 'SEC'?"),
    ],
)
def test_what_does_not_exist_is_said_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == USAGE
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert said in error
