"""FR: frames, and how arguments are laid out in them."""

from __future__ import annotations

import struct

import classic_frames as classic
from classic_support import long_prefixed, shortstr
from rule_support import TICKETS, Case, Connection, spoken

V = spoken()
ACK = classic.method(V, "basic.ack", 1, delivery_tag=1)
QOS = classic.method(V, "basic.qos", 1)


def method(version: str, name: str, arguments: bytes, channel: int = 1) -> bytes:
    """A method frame with these argument bytes."""
    class_id, described = classic.of_name(version, name)
    return classic.frame(classic.METHOD, channel, struct.pack(">HH", class_id, described["index"]) + arguments)


def opened(version: str = V) -> Connection:
    return Connection(version).handshake().open(1)


def declared(arguments: bytes = b"", bits: int = 0x02, ticket: int = V in TICKETS, queue: bytes = b"q") -> Connection:
    """A durable queue declared with these bytes."""
    data = struct.pack(">H", ticket) + shortstr(queue) + bytes([bits]) + long_prefixed(arguments)
    return opened().client_bytes(method(V, "queue.declare", data)).server("queue.declare-ok", queue=queue).close()


def bound(routing_key: bytes) -> Connection:
    return opened().asks("queue.bind", queue="q", exchange="e", routing_key=routing_key).close()


def qos(data: bytes) -> Connection:
    """basic.qos in these bytes, and its reply."""
    return opened().client_bytes(data).server("basic.qos-ok").close()


def granted(ticket: int, version: str = "0-8") -> Connection:
    """An access ticket of 7, then a declaration with `ticket`."""
    asked = opened(version).asks("access.request", reply={"ticket": 7}, realm="/data", active=True)
    return asked.asks("queue.declare", reply={"queue": "q"}, queue="q", ticket=ticket).close()


def consumed(rest: bytes) -> Connection:
    """basic.consume of 0-8 with `rest` after its arguments."""
    data = method("0-8", "basic.consume", b"\0\x01" + shortstr(b"q") + shortstr(b"c") + b"\0" + rest)
    return opened("0-8").asks("basic.qos", prefetch_count=10).client_bytes(data).server("basic.consume-ok").close()


def large(size: int) -> Connection:
    """A message in one body frame of `size` bytes, of 4096 agreed on."""
    connection = Connection().handshake(tune={"frame_max": 4096}, tune_ok={"frame_max": 4096}).open(1)
    return connection.publish(bytes(size - 8)).close()


FIELD_UNKNOWN_TAG = shortstr(b"a") + b"?"
CASES = [
    Case("FR-01", V, qos(QOS[:-1] + b"\xcf"), qos(QOS),
         evidence={"expected": "byte ce after the payload", "frame_type": "method", "size": len(QOS)},
         offender="client"),
    # 8 is far too small a size: the boundary that it leads to is in the middle of the arguments
    Case("FR-01", "0-8", opened("0-8").client_bytes(b"\x01\0\x01\0\0\0\x08" + classic.method("0-8", "basic.qos")[7:])
             .client("basic.qos").server("basic.qos-ok").close(),
         opened("0-8").asks("basic.qos").close(), also=("FR-05", "FR-02"), offender="client"),
    Case("FR-02", V, opened().client_bytes(classic.frame(9, 1, b"abc")).asks("basic.qos").close(),
         opened().asks("basic.qos").close(), evidence={"version": V, "bytes": 11}, offender="client"),
    Case("FR-02", V, opened().server_bytes(b"\x77" * 20).asks("basic.qos").close(),
         opened().heartbeat("server").asks("basic.qos").close(), evidence={"bytes": 20}, offender="server"),
    # type 4 is a method out of band in 0-8, and nothing in 0-9-1
    Case("FR-02", "0-9-1", opened().client_bytes(b"\x04" + QOS[1:]).asks("basic.qos").close(),
         opened().asks("basic.qos").close()),
    Case("FR-03", V, large(4097), large(4096),
         evidence={"observed": 4097, "negotiated": 4096, "frame_type": "body", "channel": 1}, offender="client"),
    Case("FR-04", V, opened().client_bytes(classic.heartbeat(channel=1)).close(),
         opened().client_bytes(classic.heartbeat()).close(), evidence={"observed": {"channel": 1, "payload_size": 0}},
         offender="client"),
    Case("FR-04", "0-9", opened("0-9").server_bytes(classic.heartbeat(payload=b"x")).close(),
         opened("0-9").server_bytes(classic.heartbeat()).close(),
         evidence={"observed": {"channel": 0, "payload_size": 1}}, offender="server"),
    Case("FR-05", V, qos(method(V, "basic.qos", bytes(6))), qos(method(V, "basic.qos", bytes(7))),
         evidence={"method": "basic.qos", "observed": 10}, offender="client"),
    Case("FR-06", V, qos(method(V, "basic.qos", bytes(8))), qos(method(V, "basic.qos", bytes(7))),
         evidence={"method": "basic.qos", "observed": "bytes after the last argument"}, offender="client"),
    # the table that clients of 0-8 put after basic.consume is no rest; one more byte is
    Case("FR-06", "0-8", consumed(b"\0\0\0\0\0"), consumed(b"\0\0\0\0")),
    Case("FR-07", V, opened().client_bytes(classic.frame(1, 1, struct.pack(">HH", 60, 41))).close(), opened().close(),
         evidence={"observed": {"class": 60, "method": 41}, "version": V}, offender="client"),
    # confirm.select is of RabbitMQ's 0-9-1
    Case("FR-07", "0-8", opened("0-8").client_bytes(classic.method("0-9-1", "confirm.select")).close(),
         opened("0-8").asks("tx.select").asks("tx.rollback").close(),
         evidence={"observed": {"class": 85, "method": 10}, "version": "0-8"}),
    Case("FR-08", V, declared(FIELD_UNKNOWN_TAG), declared(shortstr(b"a") + b"V"),
         evidence={"name": "queue.declare"}, offender="client"),
    Case("FR-08", V, opened().publish(b"", headers=long_prefixed(b"\x09ab")).close(),
         opened().publish(b"", headers=long_prefixed(b"\x02abV")).close(),
         evidence={"name": "basic", "frame_type": "header"}),
    # `s` as the document prints it: a short string. What is broken is so with either reading.
    Case("FR-08", V, declared(shortstr(b"a") + b"s" + b"\x09abc"),
         declared(shortstr(b"a") + b"s" + shortstr(b"abc") + shortstr(b"b") + b"s" + shortstr(b"defg")),
         evidence={"name": "queue.declare"}, besides=("FR-09",)),
    *(
        Case("FR-09", V, declared(shortstr(b"a") + tag), declared(shortstr(b"a") + b"I\0\0\0\x01"),
             evidence={"name": "queue.declare"})
        for tag in (b"s\0\x01", b"l" + bytes(8), b"L" + bytes(8), b"U\0\x01")
    ),
    Case("FR-10", "0-8", opened("0-8").client_bytes(b"\x07\0\0\0\0\0\x01x\xce").close(),
         opened("0-8").heartbeat().close(), evidence={"observed": "trace"}),
    Case("FR-10", "0-9", opened("0-9").client_bytes(b"\x06\0\x01\0\0\0\x01x\xce").close(),
         opened("0-9").heartbeat().close(), evidence={"observed": "oob-body"}),
    Case("FR-11", V, bound(b"a\0b"), bound(b"a b"), offender="client"),
    Case("FR-11", V, bound(b"a\xc3"), bound("ü".encode())),
    Case("FR-11", V, opened().publish(b"", message_id=b"\xff").close(), opened().publish(b"", message_id="é").close(),
         evidence={"name": "basic", "frame_type": "header"}),
    Case("FR-12", V, declared(ticket=1), declared(ticket=0), evidence={"method": "queue.declare"}, offender="client"),
    # auto-delete and internal stand where the text reserves bits, and insist where it reserves another
    Case("FR-12", V, Connection().handshake(connection_open={"insist": True}).close(),
         opened().asks("exchange.declare", exchange="e", type="direct", durable=True, internal=True, auto_delete=True)
             .close(),
         evidence={"method": "connection.open"}),
    Case("FR-13", V, declared(bits=0x22), declared(bits=0x02), evidence={"method": "queue.declare"}),
    Case("FR-14", "0-8", granted(0), granted(7),
         evidence={"observed": 0, "method": "queue.declare"}, offender="client"),
    Case("FR-15", V, opened().client_bytes(b"\x03\0\x01\x08\0\0\x01abc").asks("basic.qos").close(),
         opened().asks("basic.qos").close(), also=("CAP-06",), evidence={"observed": "size field above 128 MiB"},
         offender="client"),
    # the sender ends the connection in the middle of a frame
    Case("FR-15", V, opened().publish(b"").client_bytes(b"\x01\0\x01\0\0\x10\0abc").fin("client"),
         opened().publish(b"").close(), also=("CAP-05", "CH-07", "CL-04"),
         evidence={"observed": "size field beyond the end of the stream", "bytes_seen": 10}, offender="client"),
]  # fmt: skip
