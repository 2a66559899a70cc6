"""When the broker took a message, as it states: a header of 0-9-1 (encoded by pika), annotations of 1.0 (qpid-proton).

RabbitMQ documents `timestamp_in_ms` and `x-opt-rabbitmq-received-time` (message interceptors), Azure Service Bus
`x-opt-enqueued-time` (AMQP 1.0 protocol guide, message annotations).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pika.frame
import pika.spec
import proton
import pytest
from encode_0_10 import content, header, one_frame, segment
from local_rows import LocalTables
from pika_frames import method
from test_tables_0_10 import opened
from test_tables_1_0_written import moved, receiving
from wire import CLIENT, SERVER, Wire

MS = 1_795_169_307_714
NS = MS * 1_000_000


def classic(headers: dict[str, Any] | None) -> Wire:
    """A delivery with these headers, mid-stream."""
    wire = Wire(syn=False)
    deliver = pika.spec.Basic.Deliver("c", 1, False, "", "q")
    about = pika.frame.Header(1, 0, pika.spec.BasicProperties(headers=headers)).marshal()
    wire.add(SERVER, method(deliver) + about)
    wire.add(CLIENT, method(pika.spec.Basic.Ack(1)))
    return wire


def annotated(annotations: dict[Any, Any], properties: dict[str, Any] | None = None, group: str | None = None) -> Wire:
    message = proton.Message(body=b"x", inferred=True, annotations=annotations, properties=properties)
    if group is not None:
        message.group_id = group
    wire = receiving()
    wire.add(SERVER, moved(0, payload=message.encode()))
    return wire


def with_time(name: str, value: Any) -> Wire:
    return annotated({proton.symbol(name): value})


def scripts() -> dict[str, Wire]:
    now = proton.timestamp(MS)
    wires = {
        "header": classic({"timestamp_in_ms": MS}),
        "header of 4.x": classic({"x-opt-rabbitmq-received-time": MS, "timestamp_in_ms": 5}),
        "header, text": classic({"timestamp_in_ms": "yesterday"}),
        "header, too large": classic({"timestamp_in_ms": 2**63 - 1}),
        "header, too small": classic({"timestamp_in_ms": -(2**63)}),
        "no header": classic(None),
        "RabbitMQ": with_time("x-opt-rabbitmq-received-time", now),
        "Azure": with_time("x-opt-enqueued-time", now),
        "RabbitMQ, header": annotated({}, {"timestamp_in_ms": proton.ulong(MS)}),
        "text": with_time("x-opt-enqueued-time", "yesterday"),
    }
    locked = {"x-opt-sequence-number": 42, "x-opt-locked-until": now, "x-opt-enqueued-time": now}
    wires["Azure, session"] = annotated({proton.symbol(name): value for name, value in locked.items()}, group="s-1")
    wire = wires["0-10"] = opened()
    about = header(("message.message-properties", {"application-headers": {"timestamp_in_ms": ("int64", MS)}}))
    wire.add(CLIENT, b"".join(content(segment("message.transfer", {"destination": "q"}), about)))
    wire.add(CLIENT, one_frame("session.detach", {"name": b"s"}, 1))
    return wires


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("times") / "wires.pcap", scripts())


@pytest.mark.parametrize("script", ["header", "header of 4.x", "RabbitMQ", "Azure", "RabbitMQ, header"])
def test_the_time_at_which_the_broker_took_a_message_is_a_column(written: LocalTables, script: str) -> None:
    assert written.rows("messages", script, "broker_ts_ns") == [(NS,)]


@pytest.mark.parametrize(
    "script", ["header, text", "header, too large", "header, too small", "no header", "text", "0-10"]
)
def test_what_is_no_time_is_null(written: LocalTables, script: str) -> None:
    assert written.rows("messages", script, "broker_ts_ns") == [(None,)]


def test_what_azure_service_bus_adds_is_in_the_properties(written: LocalTables) -> None:
    ((properties, used),) = written.rows("messages", "Azure, session", "properties", "broker_ts_ns")
    annotations = properties["message_annotations"]
    assert (properties["properties"]["group_id"], annotations["x-opt-sequence-number"], used) == ("s-1", 42, NS)
    assert annotations["x-opt-locked-until"] == datetime.fromtimestamp(MS // 1000, UTC).replace(microsecond=714_000)
