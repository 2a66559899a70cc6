"""`wirehare diff`: what it compares, how sure it is, and how it is written.

Values of the captures are those of tshark; those of statistics are computed by hand or by scipy's own functions.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import golden
import html5lib
import numpy as np
import pytest
from scipy import stats

from jobs.cli import main
from pipeline.audit.catalogue import catalogue
from pipeline.diff import Compared, Comparison, Difference, Proof, Threshold, diff, pages, statistics
from pipeline.diff.sides import MOST_SUBJECTS, DiffError, Key, Side, measures, moved, renamed
from pipeline.diff.statistics import Sample

CONFIRMS = Key("confirm_latency", "exchange orders", "", "")
HOSTILE = "x\x1b[31m|`<script>alert(1)</script>` @someone [a](http://b) \u202e\n# y"
DIFFERENCE = Difference(
    "heartbeat", "agreed heartbeat, s", HOSTILE, HOSTILE, "value", HOSTILE, HOSTILE, "", "certain", 1, 2,
    proof_before=Proof(1, HOSTILE, 2, 3), also=[HOSTILE], details=[HOSTILE],
)  # fmt: skip
COMPARISON = Comparison(
    HOSTILE, "after", [DIFFERENCE], [replace(DIFFERENCE, confidence="few")], 7, ["x"], [HOSTILE], [HOSTILE]
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    for name in ("091_handshake_ok", "091_heartbeats", "10_rabbitmq_settle_modes", "091_declare_publish_consume_ack"):
        assert main(["decode", str(golden.CAPTURES / f"{name}.pcap"), "--output", str(folder / name), "-q"]) == 0
    return folder


def test_a_capture_and_itself(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = str(tables / "091_handshake_ok")
    assert main(["diff", same, same, "--fail-on", "any"]) == 0
    printed = capsys.readouterr().out
    assert "No difference was found." in printed
    assert "Equal: " in printed


def test_a_negotiated_value(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tshark, connection.tune-ok: heartbeat 60 in 091_handshake_ok; 2 and 1 in the connections of 091_heartbeats."""
    arguments = ["diff", str(tables / "091_handshake_ok"), str(tables / "091_heartbeats"), "--json"]
    assert main([*arguments, "--fail-on", "heartbeat"]) == 1
    found = json.loads(capsys.readouterr().out)
    (heartbeat,) = (each for each in found["differences"] if each["measure"] == "heartbeat")
    assert heartbeat["confidence"] == "certain"
    assert (heartbeat["before"], heartbeat["after"]) == ("60", "1 (1 of 2), 2 (1 of 2)")
    assert heartbeat["proof_after"]["capture_file"].endswith("/091_heartbeats.pcap")
    assert found["failed"]


def test_classic_and_1_0_share_a_vocabulary(tables: Path) -> None:
    found = diff(tables / "091_declare_publish_consume_ack", tables / "10_rabbitmq_settle_modes")
    names = {each.measure for each in [*found.differences, *found.unsure]}
    assert "version" in names or any("1.0" in str(each.after) for each in found.differences)
    shared = {id for kind in ("facts", "rates", "distributions") for id, each in measures(kind).items() if each.shared}
    assert names <= shared | {"errors", "presence", "argument", "methods"}
    assert any("in common" in note for note in found.notes)


def test_captures_are_decoded_and_audited_first(capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(golden.CAPTURES / "091_handshake_ok.pcap")
    assert main(["diff", capture, capture, "-q"]) == 0
    assert "No difference was found." in capsys.readouterr().out


def test_captures_in_python() -> None:
    """Rules that one of the versions does not have are named, and not compared."""
    found = diff(
        golden.CAPTURES / "091_confirms_and_return.pcap", str(golden.CAPTURES / "10_rabbitmq_settle_modes.pcap")
    )
    assert found._repr_markdown_().startswith("### ")
    rules = [
        catalogue()[each.item.split()[0]] for each in [*found.differences, *found.unsure] if each.measure == "rule"
    ]
    assert all({"0-9-1", "1.0"} <= {*rule.versions} for rule in rules)
    (note,) = (note for note in found.notes if "one side only" in note)
    assert "L10-" in note


def test_tables_that_are_in_no_directory() -> None:
    with pytest.raises(DiffError, match=r"write them first \(wirehare.write\)"):
        diff(SimpleNamespace(directory=None))  # type: ignore[arg-type]


def test_days_of_a_lake(tmp_path: Path) -> None:
    """tshark, connection.tune-ok: heartbeat 60 in 091_handshake_ok; 2 and 1 in 091_heartbeats, here a day later."""
    (tmp_path / "captures").mkdir()
    for name, seconds in (("091_handshake_ok", 0), ("091_heartbeats", 86400)):
        capture = bytearray((golden.CAPTURES / f"{name}.pcap").read_bytes())
        at = 24  # behind the header of the file
        while at < len(capture):
            time, size = struct.unpack_from("<I4xI", capture, at)
            struct.pack_into("<I", capture, at, time + seconds)
            at += 16 + size
        (tmp_path / "captures" / f"{name}.pcap").write_bytes(capture)
    lake = str(tmp_path / "lake")
    assert main(["ingest", str(tmp_path / "captures"), "--lake", lake, "--once", "--settle", "0s", "-q"]) == 0
    found = diff(lake, before_day="2026-11-20", after_day="2026-11-21")
    (heartbeat,) = (each for each in found.differences if each.measure == "heartbeat")
    assert (heartbeat.before, heartbeat.after) == ("60", "1 (1 of 2), 2 (1 of 2)")


def test_days_of_one_directory(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The capture is of 2026-11-20: the day after has nothing to compare."""
    same = str(tables / "091_handshake_ok")
    assert main(["diff", same, "--before", "2026-11-20", "--after", "2026-11-20"]) == 0
    assert "No difference" in capsys.readouterr().out
    assert main(["diff", same, "--before", "2026-11-20", "--after", "2026-11-21", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["measure"] for each in found["differences"] + found["unsure"]} == {"presence"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a"], "diff needs BEFORE and AFTER"),
        (["a", "b", "--fail-on", "heartbeet"], "there is no measure 'heartbeet'; did you mean 'heartbeat'?"),
        (["a", "b", "--fail-on", "confirm_latency.p98=+5%"], "is not a valid threshold"),
        (["a", "b", "--fail-on", "heartbeat=+5%"], "heartbeat has no size"),
        (["a", "b", "--fail-on", "redelivered.p99"], "redelivered has no p99"),
        (["a", "b", "--html", "/nonsense/x.html"], "there is no directory"),
        (["nosuch-a", "nosuch-b"], "nosuch-a"),
    ],
)
def test_bad_usage_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *words]) == 2
    printed = capsys.readouterr().err
    assert line in printed
    assert printed.count("\n") == 1


def test_an_invalid_day(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tables / "091_handshake_ok"), "--before", "monday", "--after", "tuesday"]) == 2
    assert "'monday' is not a valid day" in capsys.readouterr().err


# Statistics


def test_a_quantile_of_a_histogram_is_that_of_the_values() -> None:
    """Within a bin, which is 4.7 % wide."""
    values = np.random.default_rng(1).lognormal(14, 1, 5000)
    bins = np.floor(statistics.BINS * np.log10(values)).astype(int)
    counts = np.bincount(bins - bins.min())[None].astype(float)
    sample = Sample(counts=counts, first=int(bins.min()))
    for of in (0.5, 0.99):
        assert statistics.quantile(sample, of) == pytest.approx(np.quantile(values, of), rel=0.02)


def test_a_rate_is_a_ratio_of_sums() -> None:
    """(1 + 5) / (10 + 20), not the mean of 0.1 and 0.25."""
    assert statistics.rate(Sample(np.array([1.0, 5.0]), np.array([10.0, 20.0]))) == 0.2


def rates(shares: list[float], of: float = 100.0) -> Sample:
    return Sample(np.array(shares) * of, np.full(len(shares), of))


def test_a_change_that_does_not_matter_is_none() -> None:
    assert statistics.compare(rates([0.10] * 8), rates([0.11] * 8), least=0.2, floor=0.01) is None


def test_a_change_that_every_connection_shows_is_sure() -> None:
    """No test of 8 and 8 connections can have a smaller p-value than 2 / C(16, 8) = 2 / 12,870."""
    change = statistics.compare(rates([0.10] * 8), rates([0.20] * 8), least=0.2, floor=0.0)
    assert change is not None
    assert change.p == pytest.approx(2 / 12870)
    assert [change.low, change.high] == pytest.approx([1.0, 1.0])


def test_a_change_from_zero_has_no_relative_size() -> None:
    change = statistics.compare(rates([0.0] * 8), rates([0.5] * 8), least=0.2, floor=0.01)
    assert change is not None
    assert change.p == pytest.approx(2 / 12870)
    assert math.isnan(change.low)


def test_nothing_shrinks_by_more_than_all_of_it() -> None:
    change = statistics.compare(rates([0.3, 0.5] * 8), rates([0.0] * 16), least=0.2, floor=0.01)
    assert change is not None
    assert -1.0 <= change.low <= change.high < -0.9


def test_a_change_that_one_connection_shows_is_not_sure() -> None:
    change = statistics.compare(rates([0.1] * 8), rates([0.1] * 7 + [0.9]), least=0.2, floor=0.0)
    assert change is not None
    assert change.p > statistics.LEVEL


def test_few_units_are_not_tested() -> None:
    change = statistics.compare(rates([0.1] * 2), rates([0.9] * 2), least=0.2, floor=0.0)
    assert change is not None
    assert not change.tested
    assert math.isnan(change.low)


def test_connections_that_differ_by_nature_seldom_look_changed() -> None:
    """Both sides drawn from one population, with half and double the messages: at most 1 % look changed."""
    random = np.random.default_rng(7)
    changed = 0
    for _ in range(300):
        sides = []
        for of in (50, 200):
            own = random.beta(4, 16, 12)  # of each connection its own rate
            sides.append(Sample(random.binomial(of, own).astype(float), np.full(12, float(of))))
        change = statistics.compare(sides[0], sides[1], least=0.2, floor=0.01)
        changed += change is not None and change.p <= statistics.LEVEL
    assert changed <= 3


def test_many_comparisons_are_corrected() -> None:
    """Benjamini and Hochberg: of m sorted p-values the first k, the largest k with p(k) <= k / m * 0.01. Here p(2) =
    0.0015 is below 0.002, and p(3) = 0.0035 above 0.003."""
    values = [0.0005, 0.0015, 0.0035, *[0.5] * 7]
    assert statistics.confident(values) == [True, True, *[False] * 8]


def test_shares_and_counts_are_those_of_scipy() -> None:
    assert statistics.shares(0, 8, 8, 8) == pytest.approx(2 / math.comb(16, 8))
    assert statistics.counts(3, 9, 0.5) == stats.binomtest(3, 12, 0.5).pvalue


# Thresholds


def test_a_threshold_on_growth() -> None:
    threshold = Threshold.of("confirm_latency.p99=+5%")
    assert (threshold.measure, threshold.statistic, threshold.limit) == ("confirm_latency", "p99", 0.05)
    with pytest.raises(DiffError, match="no measure"):
        Threshold.of("nonsense")


def test_a_limit_without_values_is_not_decided() -> None:
    failed, undecided = Threshold.of("redelivered=+5%").judged(Side(), Side(), [])
    assert (failed, undecided) == ([], ["redelivered=+5%: not on both sides"])


def test_growth_from_zero_is_no_percentage() -> None:
    sides = [Side(), Side()]
    for side, share in zip(sides, (0.0, 0.25), strict=True):
        side.samples[Key("redelivered", "queue orders", "", "")] = rates([share] * 8)
    failed, _ = Threshold.of("redelivered=+5%").judged(sides[0], sides[1], [])
    assert failed == ["redelivered=+5%: queue orders: 0 % -> 25 %"]


# Pages


def test_a_terminal_gets_no_control_characters() -> None:
    printed = pages.text(COMPARISON)
    assert not any(ord(character) < 32 and character != "\n" for character in printed)
    assert "\u202e" not in printed


def test_html_has_no_markup_from_the_wire() -> None:
    page = pages.html(COMPARISON)
    parsed = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    assert parsed.findall(".//script") == []
    assert parsed.findall(".//a") == []
    assert "\x1b" not in page


def test_markdown_has_no_markup_from_the_wire() -> None:
    """Outside of code spans is only what we write."""
    for line in pages.markdown(COMPARISON).splitlines():
        outside = "".join(line.split("`")[::2])
        assert line.count("`") % 2 == 0
        assert not set("<>@[\x1b") & set(outside), line
        assert "http" not in outside


def test_a_proof_names_the_file_without_its_folder() -> None:
    proof = Proof(7, "s3://bucket/captures/night.pcap", 2, 3000)
    assert pages.where(proof) == "connection 7, frame 2, packet 3,000 in night.pcap"


def test_json_has_no_numbers_that_are_none() -> None:
    unsure = replace(DIFFERENCE, change=math.inf, low=math.nan)
    found = json.loads(json.dumps(replace(COMPARISON, unsure=[unsure]).as_dict(), allow_nan=False))
    assert found["unsure"][0]["change"] is None


def test_captures_that_have_nothing_in_common(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tables / "091_handshake_ok"), str(tables / "10_rabbitmq_settle_modes")]) == 0
    printed = capsys.readouterr().out
    assert "No difference was found" not in printed


def test_a_latency_under_another_load_says_so() -> None:
    """10 messages for each second of a connection, then 25."""
    sides = [Side(), Side()]
    for side, load, first in zip(sides, (10.0, 25.0), (300, 350), strict=True):
        side.samples[CONFIRMS] = Sample(counts=np.full((20, 1), 10.0), first=first, connections=20)
        side.load[CONFIRMS.subject] = load
    compared = Compared(*sides)
    compared.samples()
    ((found,), _) = compared.judged()
    assert found.details == ["messages for each second of a connection: 10 -> 25"]


def test_a_rule_that_one_of_few_connections_breaks_is_named() -> None:
    sides = [Side(), Side()]
    key = Key("rule", "shop", "CL-04 TCP ended", "")
    for side in sides:
        side.has_findings = True
        side.asked[key._replace(item="")] = 4
    sides[1].facts[key]["fires"] = 1, Proof(7)
    compared = Compared(*sides)
    compared.facts()
    sure, (found,) = compared.judged()
    assert (sure, found.item, found.after) == ([], key.item, "fires (1 of 4)")


def test_a_change_as_sure_as_few_connections_can_be_is_seen() -> None:
    """4 and 20 connections: 2 / C(24, 4) is 0.00019, too much for a hundred comparisons."""
    sides = [Side(), Side()]
    for side, share, connections in zip(sides, (0.1, 0.5), (4, 20), strict=True):
        side.samples[Key("redelivered", "queue orders", "", "")] = rates([share] * connections)
    compared = Compared(*sides)
    compared.samples()
    compared.tests += [1.0] * 100
    sure, (found,) = compared.judged()
    assert not sure
    assert found.confidence == "few"
    assert found.p == pytest.approx(2 / math.comb(24, 4))


def test_every_measure_can_be_computed(tables: Path) -> None:
    """Titles are unique, and each refers to a measure that there is."""
    every = [each for kind in ("facts", "rates", "distributions") for each in measures(kind).values()]
    known = {each.id for each in every}
    assert len(known) == len(every) == len({each.title for each in every})
    assert all(not each.part_of or each.part_of in known for each in every)


def test_many_queues_take_no_more_time_than_the_busiest() -> None:
    """Each of 5,000 queues has changed; a bootstrap of each would take minutes."""
    sides = []
    for share in (0.1, 0.9):
        side = Side()
        for number in range(5000):
            name = f"queue {number}"
            side.samples[Key("redelivered", name, "", "")] = rates([share] * 8)
            side.messages[name] = number
        sides.append(side)
    compared = Compared(*sides)
    compared.samples()
    found, _ = compared.judged()
    assert {each.subject for each in found} == {f"queue {number}" for number in range(4800, 5000)}
    assert any("4,800 are left out" in note for note in compared.notes())


def test_an_application_with_another_name_is_found_by_what_it_uses() -> None:
    old, new = Side(), Side()
    for side, name in ((old, "billing"), (new, "billing-service")):
        side.connections = {name: 3, "other": 1}
        side.does[name] = {("deliver", "queue invoices")}
        side.messages[name] = 5
    assert list(renamed(old, new)) != []
    assert set(new.connections) == {"billing", "other"}
    assert new.messages == {"billing": 5}


def test_an_application_that_uses_something_else_is_compared_as_a_whole() -> None:
    """'shop' publishes to a queue instead of an exchange; 'new' is on one side only."""
    old, new = Side(), Side()
    old.does["shop"] = {("publish", "exchange events"), ("deliver", "queue a"), ("deliver", "queue b")}
    new.does["shop"] = {("publish", "queue orders"), ("deliver", "queue a")}
    new.does["new"] = {("publish", "queue orders")}
    (only,) = moved(old, new)
    assert only == ("shop", "publish", ["exchange events"], ["queue orders"])


@pytest.mark.parametrize(("growth", "failed", "undecided"), [(1.0, 0, 0), (1.04, 0, 0), (1.5, 1, 0)])
def test_a_limit_fails_when_growth_beyond_it_is_sure(growth: float, failed: int, undecided: int) -> None:
    """Ten connections, each with 1,000 confirms of about 1 ms; the limit is 5 % more."""
    random = np.random.default_rng(3)
    sides = []
    for times in (1.0, growth):
        bins = np.floor(statistics.BINS * np.log10(random.lognormal(0, 0.05, (10, 1000)) * 1e6 * times)).astype(int)
        counts = np.array([np.bincount(row - bins.min(), minlength=np.ptp(bins) + 1) for row in bins], float)
        side = Side()
        side.samples[CONFIRMS] = Sample(counts=counts, first=int(bins.min()), connections=10)
        sides.append(side)
    found = Threshold.of("confirm_latency.p99=+5%").judged(sides[0], sides[1], [])
    assert [len(lines) for lines in found] == [failed, undecided]


def test_a_limit_is_not_decided_by_few_messages() -> None:
    """The 99th percentile of 40 values is their largest but one."""
    sides = []
    for first in (300, 350):
        side = Side()
        side.samples[CONFIRMS] = Sample(counts=np.full((4, 1), 10.0), first=first, connections=4)
        sides.append(side)
    failed, undecided = Threshold.of("confirm_latency.p99=+5%").judged(sides[0], sides[1], [])
    assert (failed, len(undecided)) == ([], 1)


def test_many_names_of_clients_are_not_compared_each_with_each() -> None:
    """100,000 names on either side: each with each would be 10**10 comparisons. Those with most messages count."""
    old, new = Side(), Side()
    for side, word in ((old, "before"), (new, "after")):
        for number in range(100_000):
            side.connections[f"{word} {number}"], side.messages[f"{word} {number}"] = 1, float(number)
            side.does[f"{word} {number}"] = {("publish", f"queue {number}")}
    done = [*renamed(old, new)]
    assert any("'after 99999' after is compared with 'before 99999' before" in line for line in done)
    assert len(done) <= MOST_SUBJECTS
