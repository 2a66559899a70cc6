"""Settings of an audit: what a file may contain, and the errors for everything else."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import duckdb
import pytest

from pipeline.audit import chosen_rules
from pipeline.audit.config import Accepted, Config, ConfigError, is_accepted, read

FILE = """
disable = ["SEC-09", "CAP"]

[parameters."CL-01"]
limit_seconds = 60

[[accept]]
rule = "SEC-01"
client_product = "legacy-sensor"
reason = "firmware without TLS"
until = 2027-03-31
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "audit.toml"
    path.write_text(text)
    return path


def test_a_file_gives_thresholds_disabled_rules_and_exceptions(tmp_path: Path) -> None:
    assert read(written(tmp_path, FILE)) == Config(
        {"CL-01": {"limit_seconds": 60}},
        ("SEC-09", "CAP"),
        (Accepted("SEC-01", "firmware without TLS", date(2027, 3, 31), client_product="legacy-sensor"),),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("disable = 'SEC'", "disable: expected a list"),
        ("disable = ['SEC-99']", "no rule or group 'SEC-99'"),
        ("disabled = []", "no setting 'disabled'"),
        ("[parameters.'CL-99']\nlimit_seconds = 1", "no rule 'CL-99'"),
        ("[parameters.'CL-01']\nlimit = 1", "no parameter of CL-01 'limit'"),
        ("[parameters.'CL-01']\nlimit_seconds = '1'", "expected a number"),
        ("[parameters.'CL-01']\nlimit_seconds = -1", "expected a number"),
        ("[[accept]]\nrule = 'SEC-01'\nuntil = 2027-03-31", "has no 'reason'"),
        ("[[accept]]\nrule = 'SEC-01'\nreason = ' '\nuntil = 2027-03-31", "'reason' has to be a text"),
        ("[[accept]]\nrule = 'SEC-01'\nreason = 'r'", "has no 'until'"),
        ("[[accept]]\nrule = 'SEC-01'\nreason = 'r'\nuntil = '2027-03-31'", "'until' has to be a day"),
        ("[[accept]]\nrule = 'SEC-01'\nreason = 'r'\nuntil = 2027-03-31\nproduct = 'p'", "no key of accept, entry 1"),
        ("disable = [", "audit.toml"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "9" * 5000, "4300 digits"),
        ("[parameters.'CL-01']\nlimit_seconds = 0x" + "f" * 5000, "4300 digits"),
        ("#" * (1 << 20) + "\n", "more than 1,048,576 bytes"),
        ('"\\u001b[31m" = 1', "has the character 0x1b"),
        ("[rules.\"A\\u001b\"]\nseverity = 'x'", "has the character 0x1b"),
        ('[[accept]]\nreason = "\\u009b31m"', "has the character 0x9b"),
        ("disable = ['SEC-09', ['a', \"\\uFFFE\"]]", "has the character 0xfffe"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_a_reason(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        read(written(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert "audit.toml" in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(path)


def test_rules_are_chosen_by_id_and_by_group() -> None:
    settings = Config({"CL-01": {"limit_seconds": 60}})
    selected = {rule.id: rule for rule in chosen_rules(["CL", "HS-08"], ["CL-04"], settings)}
    assert {"CL-01", "CL-03", "HS-08"} <= selected.keys()
    assert not {"CL-04", "HS-09"} & selected.keys()
    assert selected["CL-01"].parameters == {"limit_seconds": 60}
    with pytest.raises(ValueError, match="no rule CL-99"):
        chosen_rules(None, ["CL-99"], settings)


def test_an_exception_covers_its_connections_up_to_its_last_day() -> None:
    rows = [
        ("SEC-01", "a", "u", "/"),
        ("SEC-01", "b", "u", "/"),
        ("SEC-02", "a", "u", "/"),
        ("SEC-01", None, None, None),
    ]
    accepted = Accepted("SEC-01", "r", date(2027, 3, 31), client_product="a")

    def left(exceptions: list[Accepted], today: date) -> list[tuple[str | None, ...]]:
        with duckdb.connect() as connection:
            connection.execute('CREATE TABLE found (rule_id TEXT, client_product TEXT, "user" TEXT, vhost TEXT)')
            connection.executemany("INSERT INTO found VALUES (?, ?, ?, ?)", rows)
            return connection.execute(f"FROM found WHERE NOT ({is_accepted(exceptions, today)})").fetchall()

    assert left([accepted], date(2027, 3, 31)) == rows[1:]
    assert left([accepted], date(2027, 4, 1)) == rows
    assert left([], date(2027, 4, 1)) == rows
