"""The pages of docs/ that speak of tables, limits and versions are true: they are what the code says, and every query
of the cookbook gives its answer. What is in the samples is known from Wireshark: see `test_answers_by_hand`."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from deployment import answer, answers, blocks
from pyspark.sql import SparkSession

import pipeline
from codec.compiler.limits import LIMITS, REACHED
from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import NAMES, methods, tag_kinds
from codec.tables import ALL_TABLES, TABLES
from jobs.cli import main
from jobs.schema import columns
from pipeline.run.local_processes import LocalProcesses
from pipeline.run.session import RUNTIME

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COOKBOOK = (DOCS / "cookbook.md").read_text()
LIMITS_PAGE = (DOCS / "limits.md").read_text()
VERSIONS_PAGE = (DOCS / "versions.md").read_text()
# What the page says of dialects, by version.
NAMED = {
    "0-8": ["queue.unbind", "exchange.bound", "basic.recover-sync"],
    "0-9": ["exchange.bound", "basic.recover-sync", "connection.blocked", "exchange.bind", "basic.nack"],
    "0-9-1": [
        *("connection.blocked", "connection.unblocked", "connection.update-secret", "exchange.bind", "exchange.unbind"),
        *("basic.nack", "basic.credit", "confirm.select", "exchange.bound"),
    ],
}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "ms": 10**6, "bytes": 1}


def rows(page: str) -> list[list[str]]:
    """The cells of every line of every table in a page, heads and rules too."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", page, re.M)]


def quantity(text: str) -> int:
    """'16 MiB' in bytes, '5 ms' in ns, '1000' as it is."""
    number, _, name = text.partition(" ")
    return int(number) * UNITS.get(name, 1)


def test_the_data_dictionary_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--markdown"]) == 0
    assert (DOCS / "tables.md").read_text() == capsys.readouterr().out


def test_one_table_in_markdown_is_a_section_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "links", "--markdown"]) == 0
    section = capsys.readouterr().out
    assert section.startswith("## links\n")
    assert section.rstrip() in (DOCS / "tables.md").read_text()


def test_the_readme_says_the_same_of_each_table() -> None:
    """Its table leaves out what no run of `decode` writes."""
    page = (ROOT / "README.md").read_text().partition("## The tables")[2]
    described = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M))
    assert described == {name: table.row for name, table in TABLES.items()}


def test_a_documented_unit_is_the_unit_of_the_column() -> None:
    """The comments name units too, in words of their own."""
    for name, table in ALL_TABLES.items():
        for path, column in columns(table):
            last = column.doc.rpartition(", ")[2]
            if last in ("ns", "s", "ms", "bytes", "ns since 1970-01-01 UTC"):
                assert column.unit == last, f"{name}.{path}"


def test_every_limit_is_documented_with_its_value() -> None:
    documented = [row for row in rows(LIMITS_PAGE) if len(row) == 3 and re.match(r"\d", row[1])]
    assert {name.strip("`"): quantity(value) for name, value, _ in documented} == asdict(LIMITS)


def test_the_names_of_reached_limits_are_documented() -> None:
    for name in REACHED:
        assert f"| `{name}` |" in LIMITS_PAGE


def facts(version: str) -> Any:
    """The fact table of a version."""
    name = f"amqp-{version.replace('.', '-')}.json"
    return json.loads(resources.files("codec.protocol.spec").joinpath(name).read_text("utf-8"))


def test_versions_and_their_sizes() -> None:
    documented = {row[0]: row for row in rows(VERSIONS_PAGE) if len(row) == 4 and row[0][0].isdigit()}
    assert list(documented) == ["0-8", "0-9", "0-9-1", "0-10", "1.0"]
    for version in CLASSIC_VERSIONS:
        every = methods(version)
        extra = [method for method in every if method.extension is not None]
        assert documented[version][3] == f"{len(every)} methods, {len(extra)} of them extensions"
    for version in ("0-8", "0-9", "0-9-1", "0-10"):
        assert facts(version)["protocol_header"]["hex"] in documented[version][1]
    for layer in facts("1.0")["protocol_header"]["ids"]:
        assert layer["name"] == "tls" or layer["hex"] in documented["1.0"][1]
    counts = facts("0-10")["counts"]
    assert documented["0-10"][3] == f"{counts['controls']} controls, {counts['commands']} commands"
    parts = [len(facts("1.0")[name]) for name in ("performatives", "sasl_frames", "message_sections")]
    assert list(map(int, re.findall(r"\d+", documented["1.0"][3]))) == parts


def test_the_tags_of_field_tables() -> None:
    cells = [row[at : at + 2] for row in rows(VERSIONS_PAGE) if len(row) == 5 for at in (0, 3)]
    documented = {tag: kind for tags, kind in cells for tag in re.findall(r"`(\w)`", tags)}
    assert documented.pop("U") == "int16, 0-9-1 only"
    for version in CLASSIC_VERSIONS:
        read = {tag: NAMES[kind] for tag, kind in tag_kinds(version).items()}
        assert read.pop("U", None) == ("int16" if version == "0-9-1" else None)
        assert read == documented


def test_extensions_that_are_named_are_known() -> None:
    for version, names in NAMED.items():
        assert set(names) <= {method.name for method in methods(version)}, version


def test_settings_of_a_cluster_are_those_that_the_session_sets() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows((DOCS / "deployment.md").read_text()) if len(row) == 3}
    ours = {name: value for name, value in documented.items() if name in RUNTIME}
    assert len(ours) == 4
    for name, value in ours.items():
        assert RUNTIME[name] == (str(quantity(value)) if value[0].isdigit() else value), name


def test_each_page_says_first_for_whom_it_is() -> None:
    others = [page.name for page in DOCS.glob("*.md") if not re.match(r"# .*\n\nFor \w+", page.read_text())]
    assert others == []


def test_every_linked_page_exists() -> None:
    for page in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.fixture(scope="module")
def out(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of the samples, as `wirehare decode samples --output out` writes them."""
    out = tmp_path_factory.mktemp("docs") / "out"
    pipeline.write(LocalProcesses(1), str(ROOT / "samples"), str(out))
    return out


@pytest.fixture(scope="module")
def views(out: Path, spark: SparkSession) -> SparkSession:
    """The session with a view of every table, made as the cookbook says."""
    snippet = blocks(COOKBOOK, "python")[0].replace('"out"', f'"{out}"')
    exec(compile(snippet, "cookbook.md", "exec"), {})
    return spark


def test_every_query_gives_the_answer_shown(views: SparkSession) -> None:
    for sql, expected in answers(COOKBOOK):
        assert answer(views.sql(sql)) == expected.rstrip(), sql


def test_every_question_has_an_answer() -> None:
    questions = re.findall(r"^## .*\?$", COOKBOOK, re.M)
    assert len(questions) == len(set(questions)) >= 20
    assert len(answers(COOKBOOK)) == COOKBOOK.count("```sql") >= len(questions)


# Of the samples, by Wireshark 4.0: `tshark -r FILE -Y ...` as each comment says.
BY_HAND = [
    # amqp.method.method == 30 || 31, fields heartbeat: proposed, chosen; amqp.type == 8 by port, counted
    "| 57576 | 60 | 2 | 2 | 11 | 11 | no |",
    "| 57582 | 60 | 1 | 1 | 0 | 5 | yes |",
    # amqp.method.class == 20 && amqp.method.method == 40, in packets 34, 42, 50, 56, 62, 72
    *(f"| 44684 | 1 | {number} | server | {code} |" for number, code in enumerate((404, 406, 406, 405, 403, 404), 1)),
    # frame.time_epoch of packet 24 less that of 20, 29 less 25, 34 less 30; of the nack 39 less 35
    *(f"| cq | {tag} | {outcome} | {ms} |" for tag, outcome, ms in [
        (1, "confirmed", 0.267), (2, "confirmed", 0.25), (3, "confirmed", 0.224), (4, "nacked", 0.165),
    ]),
    # packet 44, basic.return
    "| 44664 |  | no.such.queue | 10 | 312 | NO_ROUTE |",
    # delivery-mode 2 in packets 26, 38, 41
    "| orders | yes | 3 | 42 |",
    # io,stat SUM(tcp.len): 3367 + 1655 + 4300 + 2080 + 9825, less the 203 of packet 119 of the last, sent twice
    "| 8 | 21024 | 21024 | 0 | 0 |",
]  # fmt: skip


@pytest.mark.parametrize("line", BY_HAND)
def test_answers_by_hand(line: str) -> None:
    assert line in COOKBOOK


def test_the_snippets_of_other_readers(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for snippet in blocks(COOKBOOK, "python")[1:]:
        exec(compile(snippet.replace("out/", f"{out}/"), "cookbook.md", "exec"), {})
    printed = capsys.readouterr().out
    # twelve publishes to `orders` (packets 22 to 41), printed by pandas and by polars
    assert len(re.findall(r"orders\D+12\D+168", printed)) == 2
    assert "x-message-ttl" in printed  # DuckDB looks into a VARIANT
    # packet 18 of 091_declare_publish_consume_ack, bit durable: from DuckDB, and as JSON from pandas and polars
    assert len(re.findall(r"orders\.eu\W+true", printed, re.IGNORECASE)) == 3


def test_how_other_readers_see_a_variant(out: Path) -> None:
    import pandas  # type: ignore[import-untyped]
    import polars
    from polars.exceptions import ComputeError

    read = pandas.read_parquet(out / "methods", columns=["arguments"]).arguments.iloc[0]
    assert sorted(read) == ["metadata", "value"]
    refused = set()
    for name in pipeline.TABLES:
        try:
            polars.scan_parquet(out / name / "*.parquet").collect()
        except ComputeError:
            refused.add(name)
    assert refused == {"connections", "frames", "methods", "messages"}


def test_modules_that_how_it_works_names_exist() -> None:
    """Each dotted name is a module, or a name in one."""
    page = (ROOT / "docs/how-it-works.md").read_text()
    named = sorted(set(re.findall(r"`((?:codec|udfs|pipeline)(?:\.\w+)+)`", page)))
    assert len(named) > 30
    for name in named:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name
