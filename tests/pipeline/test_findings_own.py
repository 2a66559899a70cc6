"""Rules of one's own beside those of the catalogue. What they find in the samples, Wireshark knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from cut_support import NEEDS_TSHARK, fields
from pyspark.sql import SparkSession

import pipeline
from pipeline import Tables
from pipeline.audit import Detector, Rule
from pipeline.audit.config import Accepted, Config, ConfigError, read

SAMPLES = Path(__file__).parents[2] / "samples"
EXCEPTIONS, ORDERS = SAMPLES / "091_channel_exceptions.pcap", SAMPLES / "091_declare_publish_consume_ack.pcap"
# With what means something in SQL, and to Spark in its texts.
NOT_NAMED = 'A queue isn\'t named TEAM.PURPOSE \\ ("{}"; costs ${spark.sql.session.timeZone} 5).'
NAMES = (
    Rule(id="HOUSE-01", severity="warning", scope="link", summary=NOT_NAMED),
    Detector(
        "HOUSE-01",
        "methods",
        when="name = 'queue.declare' AND queue NOT LIKE '%.%' AND queue != ''",
        evidence={"observed": "queue", "durable": "arguments.durable::BOOLEAN"},
        thing="queue",
    ),
)
SIZES = (
    Rule(
        id="HOUSE-02",
        severity="info",
        scope="message",
        summary="A message is larger than agreed.",
        versions=("0-9-1",),
        parameters={"most_bytes": 20},
    ),
    Detector(
        "HOUSE-02",
        "messages",
        when="operation = 'publish' AND body_size > {most_bytes}",
        evidence={"observed": "body_size", "expected": "{most_bytes}"},
        frame="first_frame_no",
        thing="first_frame_no",
    ),
)


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[Tables]:
    found = pipeline.decode(spark, [str(EXCEPTIONS), str(ORDERS)])
    yield found
    found.release()


@NEEDS_TSHARK
def test_own_rules_find_what_they_say(tables: Tables) -> None:
    found = pipeline.findings(tables, rules=["HOUSE", "CH-01"], extra=[NAMES, SIZES]).selectExpr(
        "rule_id", "severity", "category", "packet_no", "substring_index(capture_file, '/', -1) AS capture",
        "to_json(evidence) AS evidence", "summary",
    ).collect()  # fmt: skip
    declared: dict[tuple[str, ...], str] = {}  # the first packet of each channel that declares a queue
    columns = ("frame.number", "_ws.col.Info", "tcp.stream", "amqp.channel", "amqp.method.arguments.queue")
    for number, info, *key in fields(EXCEPTIONS, *columns, only="amqp.method.class == 50"):
        if "Queue.Declare " in info and "." not in key[-1] and key[-1]:
            declared.setdefault(tuple(key), number)
    names = [row for row in found if row.rule_id == "HOUSE-01"]
    assert len(declared) > 3
    assert sorted(str(row.packet_no) for row in names) == sorted(declared.values())
    assert {row.capture for row in names} == {EXCEPTIONS.name}
    assert {(row.severity, row.category, row.summary) for row in names} == {("warning", "house", NOT_NAMED)}
    # one body of the two captures is longer than 20 bytes: 28, as the packet's content header says
    (size,) = [row for row in found if row.rule_id == "HOUSE-02"]
    assert size.evidence == '{"expected":20,"observed":28}'
    assert size.capture == ORDERS.name
    ((number, sizes),) = fields(ORDERS, "frame.number", "amqp.header.body-size", only="amqp.header.body-size > 20")
    assert [count for count in sizes.split(",") if int(count) > 20] == ["28"]
    assert str(size.packet_no) == number


SETTINGS = """
disable = ["HOUSE-01"]

[parameters."HOUSE-02"]
most_bytes = 28

[[accept]]
rule = "HOUSE-01"
user = "guest"
reason = "until the broker is moved"
until = 2027-03-31
"""


def test_settings_in_a_file_are_for_own_rules_too(tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(SETTINGS)
    house = (NAMES[0], SIZES[0])
    assert read(file, house) == Config(
        {"HOUSE-02": {"most_bytes": 28}},
        ("HOUSE-01",),
        (Accepted("HOUSE-01", "until the broker is moved", date(2027, 3, 31), user="guest"),),
    )
    with pytest.raises(ConfigError, match="no rule or group 'HOUSE-01'"):
        read(file)
    file.write_text("disable = ['HOUSE']")
    assert read(file, house).disabled == ("HOUSE",)
    file.write_text("[parameters.'HOUSE-02']\nmost = 28")
    with pytest.raises(ConfigError, match="no parameter of HOUSE-02 'most'"):
        read(file, house)


RULES = f"""
disable = ["HOUSE-02"]

[rules."HOUSE-01"]
severity = "warning"
scope = "link"
summary = '''{NOT_NAMED}'''
table = "methods"
when = "name = 'queue.declare' AND queue NOT LIKE '%.%' AND queue != ''"
evidence = {{ observed = "queue", durable = "arguments.durable::BOOLEAN" }}
thing = "queue"

[rules."HOUSE-02"]
severity = "info"
scope = "message"
summary = "A message is larger than agreed."
versions = ["0-9-1"]
parameters = {{ most_bytes = 20 }}
table = "messages"
when = "operation = 'publish' AND body_size > {{most_bytes}}"
evidence = {{ observed = "body_size", expected = "{{most_bytes}}" }}
frame = "first_frame_no"
thing = "first_frame_no"
"""


def test_a_file_may_hold_the_rules_themselves(tables: Tables, tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(RULES)
    settings = read(file)
    assert settings == Config({}, ("HOUSE-02",), (), (NAMES, SIZES))
    columns = ("rule_id", "connection_id", "frame_no", "to_json(evidence)", "occurrences")
    by_file = pipeline.findings(tables, rules=["HOUSE"], config=settings).selectExpr(*columns).collect()
    in_python = pipeline.findings(tables, rules=["HOUSE"], extra=[NAMES]).selectExpr(*columns).collect()
    assert by_file
    assert sorted(by_file) == sorted(in_python)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("HOUSE-01", "HS-08", "rules.HS-08: there is a rule of that name already"),
        ("HOUSE-01", "A/B", "expected letters, digits and hyphens"),
        ('"warning"', '"bad"', "rule HOUSE-01: 'bad' is none of"),
        ('table = "methods"\n', "", "rules.HOUSE-01: has no 'table'"),
        ('table = "methods"', 'table = "events"', "no context 'events'"),
        ('thing = "queue"', "thing = 1", "rules.HOUSE-01.thing: expected a text"),
        ('thing = "queue"', 'things = "queue"', "rules.HOUSE-01: no key 'things'"),
        ('"queue", durable', "1, durable", "rules.HOUSE-01.evidence: expected a table"),
        ("most_bytes = 20", "most_bytes = '20'", "rules.HOUSE-02.parameters: expected numbers by name"),
        ('["0-9-1"]', '"0-9-1"', "rules.HOUSE-02.versions: expected a list of texts"),
        ("queue != ''", "que != ''", 'rule HOUSE-01: Binder Error: Referenced column "que" not found'),
        ("queue != ''", "true) OR (true", "rule HOUSE-01: when is not an SQL expression"),
        ("queue != ''", "true; DROP TABLE hits", "rule HOUSE-01: when is not an SQL expression"),
        ("queue != ''", "(SELECT true FROM read_text('/etc/hostname'))", "rule HOUSE-01: "),
    ],
)
def test_a_rule_in_a_file_has_to_make_sense(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    file = tmp_path / "audit.toml"
    assert old in RULES
    file.write_text(RULES.replace(old, new, 1))
    with pytest.raises(ConfigError, match=complaint):
        read(file)


def test_thresholds_and_choices_hold_for_own_rules_too(tables: Tables, capsys: pytest.CaptureFixture[str]) -> None:
    limits = Config({"HOUSE-02": {"most_bytes": 28}})
    found = pipeline.findings(tables, rules=["HOUSE"], disable=["HOUSE-01"], config=limits, extra=[NAMES, SIZES])
    assert found.collect() == []
    found.explain()
    assert "Join" not in capsys.readouterr().out  # found already: what was found is not joined again
    with pytest.raises(ValueError, match="no rule HOUSE-01 in the catalogue, nor in `extra`"):
        pipeline.findings(tables, rules=["HOUSE-01"])


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ([(replace(NAMES[0], id="HS-08"), NAMES[1])], "no id of the catalogue"),
        *(
            ([(replace(NAMES[0], id=wrong), NAMES[1])], "expected letters, digits and hyphens")
            for wrong in ("A/B", "A_B", "A.1", "ä", "-A", "")
        ),
        ([(NAMES[0], SIZES[1])], "rule HOUSE-01: its detector is one of 'HOUSE-02'"),
        ([NAMES, (replace(NAMES[0], severity="info"), NAMES[1])], "HOUSE-01 is there twice, and is not the same"),
        ([(NAMES[0], replace(NAMES[1], context="events"))], "no context 'events'; expected one of frames, streams,"),
    ],
)
def test_an_invalid_pair_is_refused(tables: Tables, extra: list[tuple[Rule, Detector]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        pipeline.findings(tables, extra=extra)


@pytest.mark.parametrize(
    "wrong",
    [{"severity": "bad"}, {"scope": "queue"}, {"versions": ("0-7",)}, {"needs": ("luck",)}, {"prefers": ("luck",)}],
)
def test_an_unknown_value_of_a_rule_is_an_error_that_lists_the_known(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"rule HOUSE-01: '[\w-]+' is none of"):
        replace(NAMES[0], **wrong)  # type: ignore[arg-type]
