"""`codec.amqp.decode`: bytes that pika, py-amqp and the specifications' layouts give, as a person reads them."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from pika import spec
from pika.frame import Header, Method

import codec.amqp
import codec.amqp.readable
from codec.errors import WirehareError


def test_frames_of_pika_with_their_arguments() -> None:
    declare = Method(7, spec.Queue.Declare(queue="invoices", durable=True, arguments={"x-max-length": 5})).marshal()
    header = Header(7, 12, spec.BasicProperties(content_type="text/plain", delivery_mode=2)).marshal()
    first, second, third = codec.amqp.decode(b"AMQP\x00\x00\x09\x01" + declare + header)
    assert (first.frame_type, first.version, first.channel) == ("protocol-header", "0-9-1", None)
    assert (second.name, second.channel, second.status) == ("queue.declare", 7, "ok")
    assert second.arguments["queue"] == "invoices"
    assert second.arguments["durable"] is True
    assert second.arguments["arguments"] == {"x-max-length": 5}
    assert third.properties == {"content_type": "text/plain", "delivery_mode": 2}
    assert second.data == declare


def test_the_version_is_detected_from_frames_where_there_is_no_header() -> None:
    # an AMQP 1.0 frame of 30 bytes: open with container-id "cam1" and hostname "host" (part 2, 2.3 and 2.7.1)
    fields = bytes.fromhex("a1") + b"\x04cam1" + bytes.fromhex("a1") + b"\x04host"
    body = bytes.fromhex("005310c0") + bytes([len(fields) + 1, 2]) + fields
    (opened,) = codec.amqp.decode((8 + len(body)).to_bytes(4, "big") + bytes([2, 0, 0, 0]) + body)
    assert (opened.version, opened.name) == ("1.0", "open")
    assert opened.arguments == {"container_id": "cam1", "hostname": "host"}


def test_a_control_of_0_10() -> None:
    # session.attach (class 2, code 1) with name "s" (vbin16): flags 0x0f, type control, 0-10 part 1, 4.3 and 4.4
    body = bytes.fromhex("0201") + bytes.fromhex("0100") + b"\x00\x01s"
    head = bytes([0x0F, 0]) + (12 + len(body)).to_bytes(2, "big") + bytes.fromhex("0000 0001 00000000")
    (attach,) = codec.amqp.decode(head + body, version="0-10")
    assert (attach.name, attach.channel, attach.arguments["name"]) == ("session.attach", 1, b"s")


def test_trailing_bytes_are_returned() -> None:
    close = Method(0, spec.Connection.CloseOk()).marshal()
    frame, rest = codec.amqp.decode(close + b"\x01\x00", version="0-9-1")
    assert frame.name == "connection.close-ok"
    assert (rest.frame_type, rest.status, rest.data) == ("skipped", "malformed", b"\x01\x00")


def test_secrets_are_not_shown() -> None:
    start_ok = spec.Connection.StartOk(client_properties={}, mechanism="PLAIN", response="\0me\0hunter2hunter2")
    (frame,) = codec.amqp.decode(Method(0, start_ok).marshal())
    assert frame.name == "connection.start-ok"
    assert "hunter2" not in repr(frame)
    assert frame.arguments["mechanism"] == "PLAIN"


@pytest.mark.parametrize("data", [b"hello, world", b"\x00" * 40, b"GET / HTTP/1.1\r\n"])
def test_bytes_that_are_not_amqp(data: bytes) -> None:
    with pytest.raises(codec.amqp.UnknownVersion, match="expected a protocol header or a complete frame"):
        codec.amqp.decode(data)


def test_a_version_that_does_not_exist() -> None:
    with pytest.raises(WirehareError, match=r"0-8, 0-9, 0-9-1, 0-10, 1\.0"):
        codec.amqp.decode(b"", version="0-9-1-1")
    with pytest.raises(WirehareError, match="expected one of"):
        codec.amqp.decode(b"AMQP\x00\x00\x09\x01", version="2.0")


def test_no_bytes_give_no_frames() -> None:
    assert codec.amqp.decode(b"") == []


@pytest.mark.parametrize("module", [codec.amqp, codec.amqp.readable])
def test_the_examples_of_the_docstrings_print_the_documented_output(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert not failed
