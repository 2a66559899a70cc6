"""Parts of latency against what was done to real clients and brokers (`record.py`): each part is what the clients
measured, within 5 % or 1 ms for 95 % of the messages of a recording."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import write
from pipeline.run.local_processes import LocalProcesses

RECORDED = Path(__file__).parent / "recorded.tar.xz"
MILLISECOND = 1_000_000
PROTOCOLS = ("091", "10")
PARTS = (
    "send_ns", "network_ns", "confirm_wait_ns", "queue_blocked_ns", "queue_ready_ns", "redelivery_ns", "delivery_ns",
    "consumer_ns", "ack_held_ns",
)  # fmt: skip
Notes = list[dict[str, int]]  # of all messages, in the order of their deliveries
Row = dict[str, Any]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def measured(recordings: Path) -> dict[str, tuple[Notes, list[Row]]]:
    """Of each recording what clients noted of its messages, and their flows."""
    manifest, found = json.loads((recordings / "MANIFEST.json").read_text()), {}
    with LocalProcesses() as processes:
        for name, recording in manifest.items():
            write(processes, [str(recordings / name)], str(recordings / f"{name}.tables"))
            messages, flows = (
                pq.read_table(recordings / f"{name}.tables" / table).to_pylist()
                for table in ("messages", "message_flows")
            )
            names = {(row["connection_id"], row["first_frame_no"]): row["message_id"] for row in messages}
            of_name = {names[row["publish_connection_id"], row["publish_frame_no"]]: row for row in flows}
            notes = sorted(recording["messages"].items(), key=lambda item: item[1]["delivered"])
            found[name.removesuffix(".pcap")] = [note for _, note in notes], [of_name[name] for name, _ in notes]
    return found


def check(expected: list[int], rows: list[Row], part: str) -> None:
    """95 % of these parts are those that were measured."""
    pairs = [(ns, row[part] or 0) for ns, row in zip(expected, rows, strict=True)]
    wrong = [(ns, part) for ns, part in pairs if abs(ns - part) > max(MILLISECOND, 0.05 * abs(ns))]
    assert len(wrong) <= 0.05 * len(pairs), wrong


def worked(notes: Notes) -> list[int]:
    return [note["worked"] - note["delivered"] for note in notes]


def taken_in_turn(notes: Notes) -> list[int]:
    """All were delivered with the first one."""
    return [note["worked"] - notes[0]["delivered"] for note in notes]


def until_consumer_listened(notes: Notes) -> list[int]:
    return [note["listening"] - note["confirmed"] for note in notes]


def until_the_one_before_was_settled(notes: Notes) -> list[int]:
    free = [notes[0]["listening"], *(note["settled"] for note in notes[:-1])]
    return [max(0, at - note["confirmed"]) for at, note in zip(free, notes, strict=True)]


def until_sent_again(notes: Notes) -> list[int]:
    """Others than those that were lost are confirmed at once."""
    took = [note["confirmed"] - note["published"] for note in notes]
    return [ns if ns > 150 * MILLISECOND else 0 for ns in took]


def until_confirmed(notes: Notes) -> list[int]:
    return [note["confirmed"] - note["published"] for note in notes]


def until_acknowledged(notes: Notes) -> list[int]:
    return [note["settled"] - note["worked"] for note in notes]


CAUSES: list[tuple[str, str, Callable[[Notes], list[int]]]] = [
    ("consumer-works", "consumer_ns", worked),
    ("prefetch-full", "consumer_ns", worked),
    ("prefetch-full", "queue_blocked_ns", until_the_one_before_was_settled),
    ("no-consumer", "queue_blocked_ns", until_consumer_listened),
    ("acknowledged-together", "consumer_ns", taken_in_turn),
    ("acknowledged-together", "ack_held_ns", until_acknowledged),
    ("lost-publish", "network_ns", until_sent_again),
    ("slow-wire", "send_ns", until_confirmed),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("scenario", "part", "expected"), CAUSES, ids=lambda each: getattr(each, "__name__", each))
def test_a_part_is_what_was_done(
    measured: dict[str, tuple[Notes, list[Row]]],
    protocol: str,
    scenario: str,
    part: str,
    expected: Callable[[Notes], list[int]],
) -> None:
    notes, rows = measured[f"{protocol}-{scenario}"]
    check(expected(notes), rows, part)


def test_parts_add_up(measured: dict[str, tuple[Notes, list[Row]]]) -> None:
    rows = [row for _, own in measured.values() for row in own]
    assert all(row["total_latency_ns"] == sum(row[name] or 0 for name in PARTS) for row in rows)
    assert all(row[name] is None or row[name] >= 0 for row in rows for name in PARTS)
