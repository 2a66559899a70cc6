"""What a link states of how it takes messages: acquire mode, distribution mode, filters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import decoding
import proton
import pytest
from encode_1_0 import SOURCE, described
from link_connections import closed, receiver_link, symbol
from rule_connections import done_0_10, send_0_10, session_0_10
from rule_support import Case, Connection, write_cases

from pipeline.tables.decoding import config
from udfs.tables import tables_of


def links(folder: Path, connection: Connection) -> list[dict[str, Any]]:
    """Rows of table links."""
    write_cases(folder / "links.pcap", [Case("", connection.version, connection, [])])
    runs = decoding.in_flow_order(decoding.runs([folder / "links.pcap"])).combine_chunks()
    return [
        row
        for table, _, batch in tables_of(runs.to_batches(), config())
        if table == "links"
        for row in batch.to_pylist()
    ]


def test_a_browser_of_1_0_copies_and_selects(tmp_path: Path) -> None:
    selector = proton.Described(symbol("apache.org:selector-filter:string"), "colour = 'red'")
    source = described(SOURCE, "q", None, None, None, None, None, symbol("copy"), {symbol("selector"): selector})
    (link,) = links(tmp_path, closed(receiver_link(source=source)))
    assert (link["distribution_mode"], link["acquire_mode"]) == ("copy", None)
    assert json.loads(link["filters"])["selector"]["value"] == "colour = 'red'"


def test_a_link_of_1_0_that_states_nothing(tmp_path: Path) -> None:
    (link,) = links(tmp_path, closed(receiver_link()))
    assert (link["distribution_mode"], link["filters"]) == (None, None)


@pytest.mark.parametrize(("acquire_mode", "expected"), [(0, "pre-acquired"), (1, "not-acquired")])
def test_a_subscription_of_0_10_acquires_or_does_not(tmp_path: Path, acquire_mode: int, expected: str) -> None:
    connection = session_0_10()
    send_0_10(
        connection, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=acquire_mode
    )
    (link,) = links(tmp_path, done_0_10(connection, 0).fin())
    assert (link["acquire_mode"], link["distribution_mode"], link["filters"]) == (expected, None, None)
