"""What a client states of deliveries after the broker has cancelled their consumer: RabbitMQ 4.3 has taken them back.

A late acknowledgement is ignored (https://github.com/rabbitmq/rabbitmq-server/discussions/18207), unless the delivery
did not wait too long itself: the capture cannot tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from local_rows import check_pieces, tables_of_captures
from rule_support import Case, Connection, write_cases


def consuming(*tags: str) -> Connection:
    connection = Connection().handshake().open(1)
    for tag in tags:
        connection.consume(tag=tag)
    return connection


def cancelled(connection: Connection, tag: str = "c") -> Connection:
    return connection.server("basic.cancel", consumer_tag=tag, no_wait=True)


def acked(connection: Connection, tag: int, multiple: bool = False) -> Connection:
    return connection.client("basic.ack", delivery_tag=tag, multiple=multiple)


def late_ack() -> Connection:
    return acked(cancelled(consuming("c").deliver(1)), 1).close()


def late_reject() -> Connection:
    return cancelled(consuming("c").deliver(1)).client("basic.reject", delivery_tag=1, requeue=False).close()


def early_ack() -> Connection:
    return cancelled(acked(consuming("c").deliver(1), 1)).close()


def no_ack() -> Connection:
    return cancelled(consuming("c").deliver(1)).close()


def of_two_consumers() -> Connection:
    """One acknowledgement for both, of which one was cancelled."""
    connection = consuming("c", "d").deliver(1).deliver(2, consumer_tag="d")
    return acked(cancelled(connection), 2, multiple=True).close()


def consumed_again() -> Connection:
    """The same tag for another consumer."""
    connection = cancelled(consuming("c").deliver(1)).consume(tag="c").deliver(2)
    return acked(acked(connection, 1), 2).close()


def cancelled_by_the_client() -> Connection:
    connection = consuming("c").deliver(1).asks("basic.cancel", 1, {"consumer_tag": "c"}, consumer_tag="c")
    return acked(connection, 1).close()


SCRIPTS = {
    late_ack: ["unknown"], late_reject: ["unknown"], early_ack: ["acked"], no_ack: ["unsettled"],
    of_two_consumers: ["unknown", "acked"], consumed_again: ["unknown", "acked"], cancelled_by_the_client: ["acked"],
}  # fmt: skip


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cancelled") / "a.pcap"
    write_cases(path, [Case("", "0-9-1", script(), []) for script in SCRIPTS])
    return path


def test_what_is_stated_after_the_broker_cancelled_a_consumer_is_unknown(capture: Path) -> None:
    tables = tables_of_captures([capture])
    ports = {row["connection_id"]: row["client_port"] for row in tables["connections"]}
    scripts = {id_: list(SCRIPTS)[port - min(ports.values())] for id_, port in ports.items()}
    found: dict[object, list[str]] = {}
    for row in tables["messages"]:
        found.setdefault(scripts[row["connection_id"]], []).append(row["outcome"])
    assert found == SCRIPTS
    acknowledged = {scripts[row["connection_id"]]: row["acked"] for row in tables["channels"]}
    assert acknowledged == {script: outcomes.count("acked") for script, outcomes in SCRIPTS.items()}


def test_in_pieces_they_are_the_same(tmp_path: Path) -> None:
    capture = tmp_path / "a.pcap"
    write_cases(capture, [Case("", "0-9-1", [of_two_consumers(), consumed_again()], [])])
    check_pieces(capture)
