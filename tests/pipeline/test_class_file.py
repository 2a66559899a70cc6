"""Messages of class file of 0-8 and 0-9: the body comes first, by file.stage; publish and deliver carry none, they name
it (0-8 specification, class file)."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from rule_support import Case, Connection, write_cases

import pipeline
from pipeline.run.local_processes import LocalProcesses


def staged(connection: Connection, sender: str, identifier: str) -> Connection:
    other = "server" if sender == "client" else "client"
    connection.send(sender, "file.open", identifier=identifier, content_size=3).send(
        other, "file.open-ok", staged_size=0
    )
    return connection.send(sender, "file.stage").content(b"abc", class_name="file")


def files(version: str) -> Connection:
    connection = Connection(version).handshake().open(1)
    connection.asks("file.consume", reply={"consumer_tag": "f"}, queue="q", consumer_tag="f", no_ack=False)
    staged(connection, "client", "i").client("file.publish", exchange="e", routing_key="k", identifier="i")
    for tag in (1, 2, 3, 4):
        staged(connection, "server", f"j{tag}").server(
            "file.deliver", consumer_tag="f", delivery_tag=tag, exchange="e", routing_key="k", identifier=f"j{tag}"
        )
    connection.client("file.ack", delivery_tag=1, multiple=False)
    connection.client("file.reject", delivery_tag=2, requeue=True)
    connection.client("file.reject", delivery_tag=3, requeue=False)
    connection.server("file.return", reply_code=312, reply_text="NO_ROUTE", exchange="e", routing_key="k")
    return connection.content(b"abc", class_name="file").asks(
        "file.cancel", reply={"consumer_tag": "f"}, consumer_tag="f"
    )


@pytest.fixture(scope="module", params=["0-8", "0-9"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("files")
    write_cases(folder / "files.pcap", [Case("", request.param, files(request.param), [])])
    pipeline.write(LocalProcesses(), str(folder / "files.pcap"), str(folder / "tables"))
    return {name: pq.read_table(folder / "tables" / name).to_pylist() for name in ("messages", "links", "channels")}


def test_publish_deliver_and_return_are_messages(tables: dict[str, list[dict[str, Any]]]) -> None:
    columns = ("operation", "delivery_tag", "exchange", "routing_key", "link", "queue", "outcome", "body_size")
    rows = sorted(tables["messages"], key=lambda row: row["first_frame_no"])
    delivered = ("e", "k", "f", "q")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("publish", None, "e", "k", None, None, "unknown", None),
        ("deliver", 1, *delivered, "acked", None),
        ("deliver", 2, *delivered, "requeued", None),
        ("deliver", 3, *delivered, "rejected", None),
        ("deliver", 4, *delivered, "unsettled", None),
        ("return", None, "e", "k", None, None, "presettled", 3),
    ]


def test_consumers_of_class_file_are_links(tables: dict[str, list[dict[str, Any]]]) -> None:
    (link,) = tables["links"]
    assert [link[name] for name in ("kind", "name", "queue", "no_ack", "transfers")] == ["consumer", "f", "q", False, 4]
    (channel,) = tables["channels"]
    counts = ("published", "delivered", "returned", "acked", "rejected", "requeued", "unsettled")
    assert [channel[name] for name in counts] == [1, 4, 1, 1, 1, 1, 1]
