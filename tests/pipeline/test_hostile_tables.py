"""What acknowledgements that make no sense leave in the tables: nothing is settled that they do not name.

Unknown tags, tag 0, the highest tags; ranges whose ends are swapped, ranges of half of all numbers; deliveries that are
never finished. One capture of all versions; every expectation is argued beside its script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika.spec
import pytest
from encode_1_0 import ACCEPTED, described
from pika_frames import method
from pyspark.sql import SparkSession
from test_hostile import CLASSIC_HEADER, body, header
from test_tables_0_10 import control, opened, subscribed, transfer
from test_tables_1_0_written import RECEIVES, disposed, moved, receiving
from wire import CLIENT, FIRST_CLIENT_PORT, SERVER, Wire, write_capture

import pipeline

VERSIONS = {"0-9-1", "0-10", "1.0"}
HIGHEST = 2**64 - 1  # of a delivery tag


def ack(tag: int, multiple: bool = False) -> bytes:
    return method(pika.spec.Basic.Ack(tag, multiple))


def delivered(*acknowledged: bytes, tags: tuple[int, ...] = (1, 2, 3)) -> Wire:
    """A consumer gets messages under these tags, then the client says something."""
    wire = Wire()
    wire.add(CLIENT, CLASSIC_HEADER + method(pika.spec.Channel.Open()))
    wire.add(SERVER, method(pika.spec.Channel.OpenOk()))
    wire.add(CLIENT, method(pika.spec.Basic.Consume(queue="q", consumer_tag="c")))
    wire.add(SERVER, method(pika.spec.Basic.ConsumeOk("c")))
    for tag in tags:
        deliver = pika.spec.Basic.Deliver(consumer_tag="c", delivery_tag=tag, exchange="", routing_key="q")
        wire.add(SERVER, method(deliver) + header(1) + body(b"x"))
    wire.add(CLIENT, b"".join(acknowledged))
    return wire


def accepted_0_10(*ranges: tuple[int, int]) -> Wire:
    """Three transfers, 0 to 2, then an accept of these ranges."""
    wire = subscribed(opened(), "q")
    wire.add(SERVER, transfer("d") * 3)
    wire.add(CLIENT, control("message.accept", transfers=list(ranges)))
    return wire


def accepted_1_0(first: int, last: int | None) -> Wire:
    """The same in 1.0."""
    wire = receiving()
    wire.add(SERVER, moved(0) + moved(1) + moved(2))
    wire.add(CLIENT, disposed(RECEIVES, first, last, outcome=described(ACCEPTED)))
    return wire


def unfinished() -> Wire:
    wire = receiving()
    wire.add(SERVER, moved(0) + moved(1, more=True))
    wire.add(CLIENT, disposed(RECEIVES, 0, 1, outcome=described(ACCEPTED)))
    return wire


NOTHING, ALL = ["unsettled"] * 3, ["acked"] * 3
CASES: dict[str, tuple[Callable[[], Wire], list[str]]] = {
    "tags nobody gave": (lambda: delivered(ack(4), ack(2**32), ack(2**63), ack(HIGHEST)), NOTHING),
    # 0 alone names no message (0-9-1, basic.ack: it is for all outstanding ones, with `multiple`)
    "tag 0": (lambda: delivered(ack(0)), NOTHING),
    "tag 0 of all": (lambda: delivered(ack(0, multiple=True)), ALL),
    "the same tag again": (lambda: delivered(ack(2), ack(2), ack(2)), ["unsettled", "acked", "unsettled"]),
    "the highest tags": (
        lambda: delivered(ack(2**63 - 1), tags=(1, 2**63 - 2, 2**63 - 1)),
        ["unsettled", "unsettled", "acked"],
    ),
    # Ranges count modulo 2^32 (0-10: 5.3, 1.0: 2.8.10): from 2 to 0 are 2^32 - 1 numbers, more than there can be.
    "0-10: ends swapped": (lambda: accepted_0_10((2, 0)), NOTHING),
    "0-10: one sound, one not": (lambda: accepted_0_10((2, 0), (1, 1)), ["unsettled", "acked", "unsettled"]),
    "0-10: nearly half of all": (lambda: accepted_0_10((0, 2**31 - 1)), ALL),
    "0-10: of numbers to come": (lambda: accepted_0_10((3, 2**31)), NOTHING),
    "1.0: ends swapped": (lambda: accepted_1_0(2, 0), NOTHING),
    "1.0: all numbers there are": (lambda: accepted_1_0(0, 2**32 - 1), NOTHING),
    "1.0: nearly half of all": (lambda: accepted_1_0(0, 2**31 - 1), ALL),
    "1.0: from the highest number on": (lambda: accepted_1_0(2**32 - 5, 1), ["acked", "acked", "unsettled"]),
    "1.0: an unfinished delivery": (unfinished, ["acked", "acked"]),
}


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Any]]]:
    path: Path = tmp_path_factory.mktemp("hostile") / "hostile.pcap"
    write_capture(path, [make() for make, _ in CASES.values()])
    tables = pipeline.decode(spark, str(path))
    ports = {row.connection_id: row.client_port for row in tables.connections.collect()}
    found: dict[str, list[Any]] = {name: [] for name in CASES}
    for row in sorted(tables.messages.collect(), key=lambda row: row.first_frame_no):
        found[list(CASES)[ports[row.connection_id] - FIRST_CLIENT_PORT]].append(row)
    yield found
    tables.release()


@pytest.mark.parametrize("case", CASES)
def test_only_named_messages_are_settled(outcomes: dict[str, list[Any]], case: str) -> None:
    assert [row.outcome for row in outcomes[case]] == CASES[case][1]


def test_an_unfinished_delivery_is_not_complete(outcomes: dict[str, list[Any]]) -> None:
    assert [row.complete for row in outcomes["1.0: an unfinished delivery"]] == [True, False]
