"""Names from the wire, of files and in settings are data: no statement of SQL is made of them, no file is opened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from rule_support import ABLE, Case, Connection, write_cases

from codec.tables import TABLES
from codec.variant.python_values import decode
from jobs.cli import main
from pipeline.audit import config, findings_in
from pipeline.audit.config import Accepted, Config, ConfigError

SAMPLES = Path(__file__).parents[2] / "samples"
NAMES = (
    "it's", "'; DROP TABLE hits; --", "' OR true OR '", "\\' OR true --", '"; ATTACH \':memory:\' AS "x', "$$; a; $$",
    "/* a", "-- b", "{LONGEST_NAME}", "{limit}", "{}", "{connection_id}", "getvariable('settings')",
    "read_csv('/etc/passwd')", "file:///etc/passwd", "${HOME}", "%s %(a)s", "a;b", "NULL", "*", "[0-9]", "\\N",
)  # fmt: skip


def says(name: str) -> Connection:
    """A connection of which application, virtual host, queue, exchange, header and expiration have this name."""
    product = {"product": name, "version": name, "platform": "P", "connection_name": name, "capabilities": ABLE}
    talk = Connection().handshake(start_ok={"client_properties": product}, connection_open={"virtual_host": name})
    talk.open(1).asks("queue.declare", 1, {"queue": name}, queue=name, arguments={name: name})
    talk.publish(exchange=name, routing_key=name, headers={name: name}, expiration=name)
    return talk.close()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    write_cases(folder / "names.pcap", [Case("CT-14", "0-9-1", says(name), ()) for name in NAMES])
    assert main(["decode", str(folder / "names.pcap"), "--output", str(folder / "tables"), "-q"]) == 0
    return folder / "tables"


def files_in(tables: Path) -> dict[str, list[str]]:
    return {name: sorted(map(str, (tables / name).glob("*.parquet"))) for name in TABLES}


def expirations(tables: Path, settings: Config | None = None) -> list[str]:
    """What CT-14 shows: expirations that are no number."""
    found = findings_in(files_in(tables), rules=["CT-14"], config=settings).to_pylist()
    return sorted(str(decode(**row["evidence"])["observed"]) for row in found)


def test_a_finding_shows_a_name_as_it_is(tables: Path) -> None:
    assert expirations(tables) == sorted(NAMES)


@pytest.mark.parametrize("key", ["client_product", "vhost"])
def test_an_exception_is_about_this_name_alone(tables: Path, key: str) -> None:
    accepted = NAMES[::2]
    exceptions = [Accepted("CT-14", name, date(9999, 1, 1), **{key: name}) for name in accepted]
    assert expirations(tables, Config(exceptions=exceptions)) == sorted({*NAMES} - {*accepted})
    with_others = [Accepted("CT-14", "r", date(9999, 1, 1), **{key: f"{name} "}) for name in NAMES]
    assert expirations(tables, Config(exceptions=with_others)) == sorted(NAMES)


def test_all_rules_report_and_explanation_of_such_names(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = ["--report", str(tmp_path / "a.html"), "--json", str(tmp_path / "a.json"), "--fail-on", "never"]
    assert main(["audit", str(tables), *written, "--format", "sarif"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"]
    tonight: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    assert {name for name in NAMES if json.dumps(name) in json.dumps(tonight)} == {*NAMES}
    assert main(["audit", str(tables), *written, "--baseline", str(tmp_path / "a.json")]) == 0
    capsys.readouterr()
    for name in NAMES[:4]:
        assert main(["explain", name, str(tables), "--json"]) == 0
        assert [f"  {name} (vhost {name})" in row["subject"] for row in json.loads(capsys.readouterr().out)] == [True]


# Signs of globs, and of SQL; what the glob matches lies beside it.
FOLDERS = (("it's [ab]", "it's a"), ("t*", "tables"), ("{a,b}?", "{a,b}c"), ('$$ \'; -- {NAME} "x"', "other"))


@pytest.mark.parametrize(("name", "beside"), FOLDERS)
def test_a_path_is_no_glob(tmp_path: Path, name: str, beside: str, capsys: pytest.CaptureFixture[str]) -> None:
    counted: list[Sequence[Any]] = []
    for folder, capture in ((name, "091_rpc_reply_to.pcap"), (beside, "091_heartbeats.pcap")):
        output = str(tmp_path / folder)
        assert main(["decode", str(SAMPLES / capture), "--output", output, "-q"]) == 0
    for folder in (name, beside):
        output, report = str(tmp_path / folder), str(tmp_path / "a.html")
        assert main(["audit", output, "--report", report, "--fail-on", "never", "--rules", "CAP", "CO"]) == 0
        capsys.readouterr()
        assert main(["sql", output, "SELECT DISTINCT capture_file FROM frames", "--format", "json"]) == 0
        counted.append(json.loads(capsys.readouterr().out))
    assert [[Path(row["capture_file"]).name for row in rows] for rows in counted] == [
        ["091_rpc_reply_to.pcap"], ["091_heartbeats.pcap"],
    ]  # fmt: skip


# Conditions that would read or write something else; {old} exists, {new} must not.
CONDITIONS = (
    "EXISTS (FROM read_csv('{old}'))", "(SELECT content FROM read_text('{old}')) = ''", "EXISTS (FROM '{old}')",
    "EXISTS (FROM glob('{folder}/*'))", "EXISTS (FROM query('FROM read_text(''{old}'')'))", "getenv('HOME') != ''",
    "EXISTS (FROM duckdb_secrets())", "EXISTS (FROM sniff_csv('{old}'))", "EXISTS (FROM parquet_metadata('{old}'))",
    "true; ATTACH '{new}'", "true; COPY (SELECT 1) TO '{new}'", "true); COPY (SELECT 1) TO '{new}'; --",
    "true THEN 1 END]) AS x FROM methods; COPY (SELECT 1) TO '{new}'; --", "true /*", "true)) --", "true -- ", "$$",
    "EXISTS (COPY (SELECT 1) TO '{new}')", "(ATTACH '{new}')", "EXISTS (FROM query('COPY (SELECT 1) TO ''{new}'''))",
    "true FROM read_text('{old}')", "true, (SELECT content FROM read_text('{old}'))", "SET VARIABLE settings = 1",
    "EXISTS (FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{old}'')')))",
)  # fmt: skip
RULE = """
[rules."HOUSE-01"]
severity = "warning"
scope = "connection"
summary = "Ours."
table = "methods"
when = {when}
evidence = {{ observed = {shown} }}
"""


def own_rule(when: str, displayed: str) -> str:
    """A file of settings with a custom rule."""
    return RULE.format(when=json.dumps(when), shown=json.dumps(displayed))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_custom_rule_touches_no_file(tmp_path: Path, condition: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    old, new, settings = folder / "old.csv", folder / "new", tmp_path / "audit.toml"
    old.write_text("content of another file\n1\n")
    text = condition.format(old=old, new=new, folder=folder)
    for when, displayed in ((text, "name"), ("true", text)):
        settings.write_text(own_rule(when, displayed))
        with pytest.raises(ConfigError, match="rule HOUSE-01: ") as refused:
            config.read(settings)
        assert "content of another file" not in str(refused.value)
    assert [path.name for path in folder.iterdir()] == ["old.csv"]


def test_what_only_looks_like_a_statement_is_a_text(tables: Path, tmp_path: Path) -> None:
    settings = tmp_path / "audit.toml"
    settings.write_text(own_rule("name = 'queue.declare' AND queue = '-- b; {limit} $$'", "queue"))
    assert findings_in(files_in(tables), rules=["HOUSE"], config=config.read(settings)).num_rows == 0
    settings.write_text(own_rule("name = 'queue.declare' AND queue = $$'; DROP TABLE hits; --$$", "queue"))
    (row,) = findings_in(files_in(tables), rules=["HOUSE"], config=config.read(settings)).to_pylist()
    assert decode(**row["evidence"])["observed"] == "'; DROP TABLE hits; --"
