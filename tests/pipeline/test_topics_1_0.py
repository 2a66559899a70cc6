"""Topics of 1.0 whose address does not say so: source and target have the capability `topic` (AMQP JMS Mapping, 5.2).

Performatives are as qpid-proton encodes them. A topic gives each of its subscribers a copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encode_1_0 as P
import proton
import pyarrow.parquet as pq
import pytest
from encode_1_0 import described, performative_frame
from local_rows import LocalTables
from test_tables_1_0_written import RECEIVES, SENDS, disposed, moved, opened
from wire import CLIENT, SERVER, Wire, write_capture

import pipeline
from pipeline.run.local_processes import LocalProcesses

ACCEPTED = described(P.ACCEPTED)
TOPIC, QUEUE = (proton.symbol(name) for name in ("topic", "queue"))
SEVERAL: Any = proton.Array(proton.UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("shared"), TOPIC)  # type: ignore[arg-type]


def node(code: int, address: str | None, capabilities: Any = None, mode: str | None = None) -> Any:
    """A source (of eleven fields) or target (of seven)."""
    between: list[Any] = [None] * (9 if code == P.SOURCE else 5)
    if mode is not None:
        between[5] = proton.symbol(mode)
    return described(code, address, *between, capabilities)


def attached(
    role: bool, address: str, of_client: Any = None, of_server: Any = None, name: str = "l", mode: str | None = None
) -> Wire:
    wire = opened()
    for side, own, capabilities in ((CLIENT, role, of_client), (SERVER, not role, of_server)):
        far, near = (P.TARGET, P.SOURCE) if role == SENDS else (P.SOURCE, P.TARGET)
        nodes = {far: node(far, address, capabilities, mode if far == P.SOURCE else None), near: described(near, None)}
        fields = {"name": name, "handle": 0, "role": own, "source": nodes[P.SOURCE], "target": nodes[P.TARGET]}
        wire.add(side, performative_frame(P.ATTACH, **fields, initial_delivery_count=None if own else 0))
    return wire


def receiving(*args: Any, number: int = 1, **more: Any) -> Wire:
    wire = attached(RECEIVES, *args, **more)
    for each in range(number):
        wire.add(SERVER, moved(each, body=b"%d" % each))
    wire.add(CLIENT, disposed(RECEIVES, 0, number - 1, outcome=ACCEPTED))
    return wire


def sending(*args: Any, number: int = 1) -> Wire:
    wire = attached(SENDS, *args)
    for each in range(number):
        wire.add(CLIENT, moved(each, body=b"%d" % each))
    wire.add(SERVER, disposed(RECEIVES, 0, number - 1, outcome=ACCEPTED))
    return wire


def scripts() -> dict[str, Wire]:
    return {
        "client": receiving("prices", TOPIC),
        "server": receiving("prices", None, TOPIC),
        "temporary": receiving("prices", proton.symbol("temporary-topic")),
        "several": receiving("prices", SEVERAL),
        "with a mode": receiving("prices", TOPIC, mode="copy"),
        "published": sending("prices", TOPIC),
        "queue": receiving("prices", QUEUE, QUEUE),
        "mode only": receiving("prices", mode="move"),
        "nothing": receiving("prices"),
        "form": receiving("topic://prices", TOPIC),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("topics") / "wires.pcap", scripts())


@pytest.mark.parametrize("script", ["client", "server", "temporary", "several", "with a mode", "published", "form"])
def test_a_topic_is_the_routing_key_of_its_messages(written: LocalTables, script: str) -> None:
    assert written.rows("messages", script, "routing_key", "queue", "exchange") == [("prices", None, None)]


@pytest.mark.parametrize("script", ["queue", "mode only", "nothing"])
def test_what_is_no_topic_has_no_routing_key(written: LocalTables, script: str) -> None:
    assert written.rows("messages", script, "routing_key", "address") == [(None, "prices")]


def test_capabilities_do_not_change_the_distribution_mode(written: LocalTables) -> None:
    for script, mode in (("client", None), ("with a mode", "copy"), ("mode only", "move"), ("queue", None)):
        assert written.rows("links", script, "distribution_mode") == [(mode,)]
        assert written.rows("messages", script, "browsed") == [(None if mode is None else mode == "copy",)]


def test_topics_are_the_same_in_pieces(written: LocalTables) -> None:
    written.check_pieces()


def test_each_subscriber_of_a_topic_has_its_own_copy(tmp_path: Path) -> None:
    """Three messages, two subscribers: six pairs, none of which is a redelivery, and nothing is uncertain."""
    wires = [sending("prices", TOPIC, number=3)]
    wires += [receiving("prices", TOPIC, number=3, name=name) for name in ("one", "two")]
    write_capture(tmp_path / "a.pcap", wires)
    pipeline.write(LocalProcesses(1), str(tmp_path / "a.pcap"), str(tmp_path / "tables"))
    rows = pq.read_table(tmp_path / "tables" / "message_flows").to_pylist()
    names = ("match", "ambiguous", "redeliveries", "routing_key")
    assert [tuple(row[name] for name in names) for row in rows] == [("message-id", False, 0, "prices")] * 6
