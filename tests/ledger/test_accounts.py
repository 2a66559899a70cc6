"""Tables against the accounts of both ends: real brokers and eleven client libraries, as `run.py` recorded them.

The captures have clients under load, killed and slow consumers, connections that broker and network ended, a broker
that was killed, a memory alarm, transactions, expired, refused and dead-lettered messages. `make ledger` records and
judges new ones.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge
import pcap_files
import pytest

from jobs.cli import main

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(file.name.removesuffix(".jsonl.gz") for file in RECORDED.glob("*.jsonl.gz"))
ONLY_1_0 = {"proton", "rhea"}
OF_CLASSIC = (
    "redelivered",
    "body_size",
    "body_sha256",
    "transaction",
)  # columns whose values accounts of 1.0 do not have
KINDS_OF_CLASSIC = {"nacked", "returned", "requeued", "error", "committed", "rolled-back"}
Event = dict[str, Any]


CHANCE = random.Random()


def events_of(name: str) -> list[Event]:
    lines = gzip.decompress((RECORDED / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module", params=NAMES)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """The decoded tables of a recording, and the events of its accounts."""
    tables = tmp_path_factory.mktemp("ledger") / "tables"
    assert main(["decode", str(RECORDED / f"{request.param}.pcap.gz"), "--output", str(tables), "--payload", "-q"]) == 0
    return tables, events_of(request.param)


def judged(tables: Path, folder: Path, events: list[Event], whole: bool = True) -> judge.Verdict:
    folder.mkdir()
    (folder / "accounts.jsonl").write_text("\n".join(map(json.dumps, events)))
    return judge.judge(tables, folder, whole)


def test_every_account_is_what_the_tables_say(recording: tuple[Path, list[Event]], tmp_path: Path) -> None:
    tables, events = recording
    verdict = judged(tables, tmp_path / "accounts", events)
    assert verdict.wrong == []
    kinds = Counter(event["event"] for event in events)
    # Each event was compared; of a client that was cut off, what it wrote down last may never have reached the wire.
    assert verdict.counts["deliveries of a message"]["equal"] == kinds["delivered"]
    assert verdict.counts["publishes of a message"]["equal"] >= 0.9 * kinds["published"]
    libraries = {event["library"] for event in events}
    classic = libraries - ONLY_1_0
    for column in ("publish outcome", "delivery outcome", "message of a pair", *(OF_CLASSIC if classic else ())):
        assert verdict.counts[column]["equal"] > 40
        assert verdict.counts[column]["unknown"] == 0
    assert len(libraries) >= 10 if classic else libraries == ONLY_1_0
    assert {"confirmed", "acked", "rejected", "released", *(KINDS_OF_CLASSIC if classic else ())} <= kinds.keys()


SNAPLEN = 160
LOSSES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "one packet of a hundred": lambda records: [each for each in records if CHANCE.random() > 0.01],
    "the first third": lambda records: records[len(records) // 3 :],
    "ends of packets": lambda records: [cut_off(each) for each in records],
}


def cut_off(record: bytes) -> bytes:
    """The record as a capture with a snaplen has it."""
    times, wire_len, packet = record[:8], record[12 : pcap_files.RECORD], record[pcap_files.RECORD :][:SNAPLEN]
    return times + len(packet).to_bytes(4, "little") + wire_len + packet


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NAMES)
def test_where_packets_are_lost_what_is_not_known_is_unknown(name: str, loss: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole.pcap"
    whole.write_bytes(gzip.decompress((RECORDED / f"{name}.pcap.gz").read_bytes()))
    head, records = pcap_files.records(whole)
    CHANCE.seed(name)
    (tmp_path / "part.pcap").write_bytes(b"".join([head, *LOSSES[loss](records)]))
    tables = tmp_path / "tables"
    assert main(["decode", str(tmp_path / "part.pcap"), "--output", str(tables), "--payload", "-q"]) == 0
    verdict = judged(tables, tmp_path / "accounts", events_of(name), whole=False)
    assert verdict.wrong == []
    assert verdict.counts["publish outcome"]["equal"] > 0


def of_whole_clients(events: list[Event]) -> list[Event]:
    """Events of clients that nothing cut off."""
    named = {kind: {e["client"] for e in events if e["event"] == kind} for kind in ("closed", "error")}
    return [event for event in events if event["client"] in named["closed"] - named["error"]]


def first(events: list[Event], kind: str) -> Event:
    """The first event of a kind, in a client that ended by itself; of 1.0 if there is no other."""
    found = [event for event in of_whole_clients(events) if event["event"] == kind]
    return next((event for event in found if event["library"] not in ONLY_1_0), found[0])


CORRUPTIONS: dict[str, Callable[[list[Event]], None]] = {
    "publish outcome": lambda events: first(events, "confirmed").update(event="nacked"),
    "delivery outcome": lambda events: first(events, "acked").update(event="rejected"),
    "body_size": lambda events: first(events, "published").update(size=1),
    "body_sha256": lambda events: first(events, "published").update(sha256="0" * 64),
    "transaction": lambda events: first(events, "committed").update(event="rolled-back"),
    "redelivered": lambda events: first(events, "delivered").update(redelivered=None),
    "deliveries of a message": lambda events: events.append(first(events, "delivered")),
    "publishes of a message": lambda events: events.append(
        first(events, "published") | {"id": "pika-publish-2:9999999"}
    ),
}


@pytest.mark.parametrize("column", CORRUPTIONS)
def test_an_account_that_lies_is_noticed(recording: tuple[Path, list[Event]], tmp_path: Path, column: str) -> None:
    tables, events = recording
    if column in OF_CLASSIC and {event["library"] for event in events} == ONLY_1_0:
        pytest.skip("accounts of 1.0 do not have it")
    changed: list[Event] = json.loads(json.dumps(events))
    CORRUPTIONS[column](changed)
    verdict = judged(tables, tmp_path / "accounts", changed)
    assert verdict.counts[column]["wrong"] >= 1
    assert verdict.wrong


def test_what_a_library_never_sent_is_not_missed(recording: tuple[Path, list[Event]], tmp_path: Path) -> None:
    """A client that was cut off has handed more to its library, which is not in the capture; it is missed if it is."""
    tables, events = recording
    one = next(event for event in of_whole_clients(events) if event["event"] == "published")
    never = [one | {"client": "late", "id": f"late:{turn:07d}"} for turn in range(judge.LAST_EVENTS + 5)]
    folder = tmp_path / "accounts"
    assert len(judged(tables, folder, [*events, *never]).wrong) == 5
    for written, wrong in ((b"|other:0000000|", 0), (b"..|late:0000003|..", 1)):
        (folder / "capture.pcap").write_bytes(written)
        assert len(judge.judge(tables, folder).wrong) == wrong
