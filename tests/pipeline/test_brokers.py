"""Messages that are published at one address of a broker and delivered at another.

RabbitMQ states the name of its cluster (`rabbitmqctl set_cluster_name`) in the server properties of 0-9-1 and of 1.0,
Qpid its federation tag in those of 0-10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rule_support import Case, Connection, write_cases

import pipeline
from pipeline.run.local_processes import LocalProcesses

CAPTURES = Path(__file__).parents[1] / "captures"
PUBLISHED_AT, DELIVERED_AT = 1, 4  # addresses of the cases


def connected(server: int, cluster: str | None, client: int, at: float) -> Connection:
    connection = Connection("0-9-1", client=client, server=server, at=at)
    properties = {} if cluster is None else {"cluster_name": cluster}
    start = {"server_properties": {"product": "RabbitMQ", **properties}}
    return connection.handshake(start=start, connection_open={"virtual_host": "/"}).open(1)


def crossing(*clusters: str | None) -> list[Connection]:
    """A message that is published at the first address and delivered at the second, which say that they are of these
    clusters."""
    publisher, consumer = clusters
    return [
        connected(PUBLISHED_AT, publisher, 2, 0).publish(b"crossing"),
        connected(DELIVERED_AT, consumer, 3, 5).consume(no_ack=True).deliver(1, b"crossing"),
    ]


def seen_late() -> list[Connection]:
    """The consumer's connection was open before the capture: another one tells the name of its server."""
    consumer = Connection("0-9-1", client=3, server=DELIVERED_AT, at=5, syn=False)
    return [
        connected(PUBLISHED_AT, "shop", 2, 0).publish(b"crossing"),
        consumer.deliver(1, b"crossing").client("basic.ack", delivery_tag=1, multiple=False),
        connected(DELIVERED_AT, "shop", 5, 9),
    ]


CASES = {
    "one cluster": (crossing("rabbit@node-1", "rabbit@node-1"), True),
    "two clusters": (crossing("rabbit@node-2", "rabbit@node-3"), False),
    "no name": (crossing(None, None), False),
    "empty name": (crossing("", ""), False),
    # Every node has this name whose machine does not know its own.
    "local name": (crossing("rabbit@localhost", "rabbit@localhost"), False),
    "name in another connection": (seen_late(), True),
}


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("brokers")
    owner = write_cases(folder / "cases.pcap", [Case("", "0-9-1", written, []) for written, _ in CASES.values()])
    pipeline.write(LocalProcesses(), str(folder / "cases.pcap"), str(folder / "tables"))
    connections = pq.read_table(folder / "tables" / "connections").to_pylist()
    number_of = {row["connection_id"]: owner[row["client_port"]][0] for row in connections}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for row in pq.read_table(folder / "tables" / "message_flows").to_pylist():
        number = number_of[row["publish_connection_id"] or row["deliver_connection_id"]]
        found[list(CASES)[number]].append(row)
    return found


@pytest.mark.parametrize("name", CASES)
def test_messages_are_paired_at_all_addresses_of_their_broker(
    flows: dict[str, list[dict[str, Any]]], name: str
) -> None:
    if CASES[name][1]:
        (flow,) = flows[name]
        assert (flow["match"], flow["broker_latency_ns"] > 0) == ("fingerprint", True)
        assert flow["server"].endswith(f".{DELIVERED_AT}:5672")
    else:
        assert [flow["match"] for flow in flows[name]] == ["none", "none"]


def test_names_of_brokers(tmp_path: Path) -> None:
    """The names as tshark and strings show them in these captures."""
    names = {
        "091_handshake_ok.pcap": "corpus@vm",
        "10_rabbitmq_proton_send_receive.pcap": "corpus@vm",
        "010_auth.pcap": "0b64687c-52e5-40ae-8bd7-86df6feff8f2",
        "10_rhea_peer_to_peer.pcap": None,
    }
    pipeline.write(LocalProcesses(), [str(CAPTURES / name) for name in names], str(tmp_path / "tables"))
    connections, frames = (pq.read_table(tmp_path / "tables" / name).to_pylist() for name in ("connections", "frames"))
    name_of = {row["connection_id"]: row["broker_name"] for row in connections}
    found = {(Path(row["capture_file"]).name, name_of[row["connection_id"]]) for row in frames}
    assert found == {*names.items()}
