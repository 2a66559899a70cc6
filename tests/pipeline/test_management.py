"""What requests to management nodes over 1.0 are about: columns of messages.

HTTP over AMQP as RabbitMQ documents it (paths with percent-encoded names, maps as bodies), and AMQP Management 1.0.
Messages are as qpid-proton encodes them; those of the capture are what tshark shows in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import proton
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_rows import LocalTables
from test_tables_1_0_written import RECEIVES, SENDS, attach, moved, opened, receiving, sending
from wire import CLIENT, SERVER, Wire

import pipeline
from pipeline.run.local_processes import LocalProcesses
from udfs.conversation.addresses import managed_by

CAPTURE = Path(__file__).parents[1] / "captures" / "brokers" / "10_rabbitmq4_management_link_pair.pcap"
COLUMNS = ("management_operation", "management_exchange", "management_queue", "management_routing_key")


def request(method: str, path: str, body: Any = None, node: str = "/management", cuts: tuple[int, ...] = ()) -> Wire:
    message = proton.Message(body=body, id="r", subject=method, address=path, reply_to="$me")
    return asked(message, node, cuts)


def asked(message: proton.Message, node: str, cuts: tuple[int, ...] = ()) -> Wire:
    wire, payload = sending(address=node), message.encode()
    for start, end in zip((0, *cuts), (*cuts, len(payload)), strict=True):
        wire.add(CLIENT, moved(0, payload=payload[start:end], more=end < len(payload), first=start == 0))
    return wire


def created(kind: str, name: str, node: str = "$management") -> Wire:
    properties = {"operation": "CREATE", "type": kind, "name": name}
    return asked(proton.Message(id="r", reply_to="me", properties=properties), node)


BINDING = {"source": "e", "destination_queue": "q", "binding_key": "k.#", "arguments": {}}


def scripts() -> dict[str, Wire]:
    reply = receiving("/management")
    answer = proton.Message(body=BINDING, correlation_id="r", subject="200", properties={"http:response": "1.1"})
    reply.add(SERVER, moved(0, payload=answer.encode()))
    return {
        "binding": request("POST", "/bindings", BINDING),
        "binding in parts": request("POST", "/bindings", BINDING, cuts=(30, 77, 78)),
        "binding to an exchange": request("POST", "/bindings", {"source": "e", "destination_exchange": "f"}),
        "binding without a map": request("POST", "/bindings", "e"),
        "queue": request("PUT", "/queues/a%2Fb", {}),
        "body of another path": request("PUT", "/queues/q", BINDING),
        "another node": request("PUT", "/queues/q", {}, node="q"),
        "broker-j": created("org.apache.qpid.Queue", "jobs"),
        "broker-j, exchange": created("org.apache.qpid.DirectExchange", "e"),
        "another type": created("org.apache.qpid.VirtualHost", "v"),
        "to a queue": created("org.apache.qpid.Queue", "jobs", node="q"),
        "reply": reply,
        **{name: declaring(*steps) for name, (steps, _) in DECLARED.items()},
    }


def declaring(*steps: tuple[str, str | None]) -> Wire:
    """Declarations of one queue, each of a type, with the status of the reply, if there is one; then links to it."""
    wire = opened()
    for name, handle, role in (("ask", 0, SENDS), ("hear", 1, RECEIVES)):
        own, other = (CLIENT, SERVER), (role, not role)
        for side, as_role in zip(own, other, strict=True):
            wire.add(side, attach(name, handle, as_role, source="/management", target="/management"))
    for number, (kind, status) in enumerate(steps):
        body = {"durable": True, "arguments": {"x-queue-type": kind}}
        asks = proton.Message(body=body, id=f"r{number}", subject="PUT", address="/queues/o%2Fq", reply_to="$me")
        wire.add(CLIENT, moved(number, payload=asks.encode(), settled=True))
        if status is not None:
            reply = proton.Message(correlation_id=f"r{number}", subject=status, properties={"http:response": "1.1"})
            wire.add(SERVER, moved(number, handle=1, payload=reply.encode(), settled=True))
    wire.add(CLIENT, attach("to", 2, SENDS, target="/queues/o%2Fq"))
    wire.add(SERVER, attach("to", 2, RECEIVES, target="/queues/o%2Fq"))
    wire.add(CLIENT, attach("from", 3, RECEIVES, source="/queues/o%2Fq"))
    wire.add(SERVER, attach("from", 3, SENDS, source="/queues/o%2Fq"))
    wire.add(CLIENT, attach("route", 4, SENDS, target="/exchanges/e/o%2Fq"))
    return wire


DECLARED: dict[str, tuple[list[tuple[str, str | None]], str | None]] = {
    "accepted": ([("quorum", "201")], "quorum"),
    "not answered": ([("quorum", None)], "quorum"),
    "refused": ([("quorum", "409")], None),
    "another type is refused": ([("classic", "201"), ("quorum", "409")], "classic"),
    "refused, then accepted": ([("quorum", "409"), ("quorum", "201")], "quorum"),
    "accepted twice, then refused": ([("stream", "201"), ("stream", "200"), ("stream", "409")], "stream"),
    "the first type again": ([("classic", "201"), ("quorum", "201"), ("classic", "201")], "classic"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("management") / "wires.pcap", scripts())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("binding", ("POST", "e", "q", "k.#")),
        ("binding in parts", ("POST", "e", "q", "k.#")),
        ("binding to an exchange", ("POST", "e", None, None)),
        ("binding without a map", ("POST", None, None, None)),
        ("queue", ("PUT", None, "a/b", None)),
        ("body of another path", ("PUT", None, "q", None)),
        ("another node", ("PUT", None, "q", None)),  # it may be a proxy: method and reply-to say what it is
        ("broker-j", ("CREATE", None, "jobs", None)),
        ("broker-j, exchange", ("CREATE", "e", None, None)),
        ("another type", ("CREATE", None, None, None)),
        ("to a queue", (None, None, None, None)),
        ("reply", (None, None, None, None)),
    ],
)
def test_what_a_request_is_about(written: LocalTables, script: str, expected: tuple[str | None, ...]) -> None:
    assert written.rows("messages", script, *COLUMNS) == [expected]


@pytest.mark.parametrize("script", DECLARED)
def test_links_to_a_queue_have_its_name_and_the_type_that_was_not_refused(written: LocalTables, script: str) -> None:
    """Senders as receivers; a route of an exchange is no queue."""
    found = {name: about for name, *about in written.rows("links", script, "name", "queue", "queue_type")}
    kind = DECLARED[script][1]
    assert [found[name] for name in ("to", "from", "route")] == [["o/q", kind], ["o/q", kind], [None, None]]


def test_types_of_queues_in_pieces_are_those_of_one_go(tmp_path: Path) -> None:
    names = ("refused, then accepted", "accepted twice, then refused", "the first type again")
    LocalTables(tmp_path / "wires.pcap", {name: scripts()[name] for name in names}).check_pieces()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/queues/q", (None, "q", None)),
        ("/queues/q%2Fwith%20slash", (None, "q/with slash", None)),
        ("/queues/q/messages", (None, "q", None)),
        ("/queues/q/other", (None, None, None)),
        ("/queues", (None, None, None)),
        ("/exchanges/ev.topic", ("ev.topic", None, None)),
        ("/bindings", (None, None, None)),
        ("/bindings?src=e&dstq=q&key=k", (None, None, None)),
        ("/bindings/src=e%3B;dstq=q;key=a.%2A;args=", ("e;", "q", "a.*")),
        ("/bindings/src=e;dstq=q;key=;args=hash", ("e", "q", "")),
        ("/bindings/src=e;dste=f;key=k;args=", ("e", None, "k")),
        ("/bindings/src=e;dstq=q;key=k", (None, None, None)),
        ("/queues/%zz", (None, "%zz", None)),
        (None, (None, None, None)),
    ],
)
def test_paths_of_management(path: str | None, expected: tuple[str | None, ...]) -> None:
    assert tuple(column[0].as_py() for column in managed_by(pa.array([path], pa.string()))) == expected


def test_requests_of_a_client_of_rabbitmq(tmp_path: Path) -> None:
    pipeline.write(LocalProcesses(1), str(CAPTURE), str(tmp_path / "tables"))
    found = pq.read_table(tmp_path / "tables" / "messages").sort_by("first_frame_no")
    rows = zip(*(found[name].to_pylist() for name in ("management_operation", *COLUMNS[1:])), strict=True)
    changes = [row for row in rows if row[0] in ("PUT", "POST", "DELETE")]
    assert changes[:7] == [
        ("PUT", "ev.topic", None, None),
        ("PUT", "ev.fan", None, None),
        ("PUT", None, "q.classic", None),
        ("PUT", None, "q/with slash & more", None),
        ("PUT", None, "q.stream", None),
        ("POST", "ev.topic", "q.classic", "a.*"),
        ("POST", "ev.fan", None, ""),
    ]
    assert changes[-6:] == [
        ("PUT", None, "transient.nonexcl", None),
        ("DELETE", "ev.topic", "q.classic", "a.*"),
        ("DELETE", "ev.fan", "ev.topic", ""),  # the client wrote dstq
        ("DELETE", None, "q.classic", None),
        ("DELETE", None, "never-there", None),
        ("DELETE", "ev.topic", None, None),
    ]
