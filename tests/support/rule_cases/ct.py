"""CT: contents, that is a method, its header and its bodies; and what properties say."""

from __future__ import annotations

import struct
from typing import Any

import classic_frames as classic
from classic_support import shortstr
from rule_support import SERVER_PROPERTIES, Case, Connection, spoken

V = spoken()
PLAIN = {"mechanism": "PLAIN", "response": "\0alice\0wonderland"}


def opened(version: str = V, **given: Any) -> Connection:
    return Connection(version).handshake(**given).open(1)


def publish(version: str = V, channel: int = 1) -> bytes:
    """Only the method."""
    return classic.method(version, "basic.publish", channel, ticket=version != "0-9-1", exchange="e", routing_key="q")


def header(size: int, properties: bytes = b"\0\0", class_id: int = 60, weight: int = 0, channel: int = 1) -> bytes:
    """A content header in these bytes, from the property flags on."""
    return classic.frame(classic.HEADER, channel, struct.pack(">HHQ", class_id, weight, size) + properties)


def body(data: bytes, channel: int = 1) -> bytes:
    return classic.body(data, channel)


def sent(*frames: bytes, version: str = V) -> Connection:
    """These frames by the client, amid others that are right."""
    return opened(version).publish().client_bytes(b"".join(frames)).publish().close()


def by_server(*frames: bytes) -> Connection:
    return opened().server_bytes(b"".join(frames)).close()


def staged(*steps: str, version: str = "0-9") -> Connection:
    """Steps of class file of 0-8 and 0-9 after an open of 'f'."""
    connection = opened(version).client("file.open", identifier="f", content_size=3)
    for step in steps:
        if step == "file.open-ok":
            connection.server(step, staged_size=0)
        else:
            given: dict[str, Any] = {"identifier": "f"} if step == "file.publish" else {}
            connection.client(step, **given)
            if step == "file.stage":
                connection.content(b"abc", class_name="file")
    return connection.close()


CONTENT = [publish(), header(3), body(b"abc")]
CASES = [
    Case("CT-01", V, opened().client_bytes(publish() + body(b"abc")).asks("basic.qos").close(), sent(*CONTENT),
         evidence={"observed": "body", "expected": "header"}, offender="client"),
    # frames of other channels, and heartbeats, may come in between
    Case("CT-01", V, sent(publish(), classic.method(V, "channel.flow-ok", 1, active=True), *CONTENT),
         sent(publish(), classic.heartbeat(), header(3), body(b"abc")), also=("MT-02",),
         evidence={"observed": "method", "name": "channel.flow-ok"}),
    Case("CT-02", "0-8", sent(publish("0-8"), header(0, class_id=70), version="0-8"),
         sent(publish("0-8"), header(0), version="0-8"), evidence={"observed": 70}, offender="client"),
    Case("CT-03", V, sent(publish(), header(0, weight=1)), sent(publish(), header(0))),
    Case("CT-04", V, sent(publish(), header(2), body(b"abc")), sent(*CONTENT),
         evidence={"last_body": 3}, offender="client"),
    Case("CT-04", V, sent(*CONTENT, body(b"d")), sent(publish(), header(4), body(b"abc"), body(b"d"))),
    Case("CT-05", V, sent(publish(), header(3), body(b"ab"), classic.method(V, "basic.ack", 1), body(b"c")),
         sent(*CONTENT), also=("CT-06", "DL-07"), evidence={"observed": "method", "name": "basic.ack"},
         offender="client", severity="info"),
    # The sender gives up the content, which the specification allows (4.2.6), and RabbitMQ does not.
    Case("CT-05", V, opened().client_bytes(publish() + header(3) + body(b"ab")).close(), sent(*CONTENT),
         evidence={"name": "channel.close"}, severity="info"),
    Case("CT-05", V, opened(start={"server_properties": {**SERVER_PROPERTIES, "product": "RabbitMQ"}})
             .client_bytes(publish() + header(3) + body(b"ab")).close(),
         sent(*CONTENT), evidence={"name": "channel.close"}, severity="warning"),
    Case("CT-05", V, sent(publish(), header(3), body(b"ab"), header(3)), sent(*CONTENT),
         evidence={"observed": "header"}, severity="violation"),
    Case("CT-06", V, sent(header(3), body(b"abc")), sent(*CONTENT), offender="client"),
    Case("CT-06", V, by_server(body(b"abc")),
         opened().consume().deliver(1, b"abc").client("basic.ack", delivery_tag=1).close(),
         evidence={"observed": "body"}, offender="server"),
    Case("CT-07", V, sent(header(0, channel=0)), sent(publish(), header(0)),
         also=("CT-06",), evidence={"observed": 0, "frame_type": "header"}, offender="client"),
    Case("CT-08", V, sent(publish(), header(0, b"\0\x02")), sent(publish(), header(0, b"\0\0"))),
    Case("CT-08", V, sent(publish(), header(0, b"\0\x01\x80\0")), sent(publish(), header(0))),
    Case("CT-09", V, sent(publish(), header(0, b"\x80\0")), sent(publish(), header(0, b"\x80\0" + shortstr(b"a"))),
         evidence={"observed": "bytes missing"}, offender="client"),
    Case("CT-09", V, sent(publish(), header(0, b"\0\0" + shortstr(b"a"))), sent(publish(), header(0)),
         evidence={"observed": "bytes left"}),
    Case("CT-10", V, sent(publish(), header(3), body(b""), body(b"abc")), sent(*CONTENT),
         evidence={"observed": 0}, offender="client"),
    Case("CT-10", V, sent(publish(), header(0), body(b"abc")), sent(publish(), header(0)), evidence={"observed": 3}),
    Case("CT-11", V, sent(publish(), header(3), body(b"ab"), *CONTENT),
         opened().open(2).client_bytes(publish() + header(3) + body(b"ab")).publish(channel=2)
             .client_bytes(body(b"c")).close(),
         also=("CT-05",), evidence={"observed": "basic.publish"}, offender="client"),
    Case("CT-12", V, opened().publish(delivery_mode=3).close(), opened().publish(delivery_mode=1).close(),
         evidence={"delivery_mode": 3}, offender="client"),
    Case("CT-12", V, opened().publish(priority=10).close(),
         opened().publish(priority=9).publish(delivery_mode=1).close(),
         evidence={"priority": 10}),
    Case("CT-13", V, opened(start={"mechanisms": "PLAIN"}, start_ok=PLAIN).publish(user_id="bob").close(),
         opened(start={"mechanisms": "PLAIN"}, start_ok=PLAIN).publish(user_id="alice").close(), besides=("SEC-01",),
         evidence={"observed": "bob", "expected": "alice"}, offender="client"),
    Case("CT-14", V, opened().publish(expiration="60s").close(), opened().publish(expiration="60000").publish().close(),
         evidence={"observed": "60s"}, offender="client"),
    Case("CT-15", V, opened().publish(mandatory=True).server("basic.return", reply_code=312, reply_text="NO_ROUTE",
             exchange="e", routing_key="q").content(b"x").close(),
         opened().publish(mandatory=True).close(), evidence={"observed": 312, "exchange": "e", "routing_key": "q"}),
    Case("CT-16", V, sent(publish(), header(0, b"\0\x04" + shortstr(b"c"))),
         sent(publish(), header(0, b"\0\x08" + shortstr(b"a")))),
    Case("CT-17", V, opened().client_bytes(publish() + header((128 << 20) + 1)),
         opened().client_bytes(publish() + header(128 << 20)), besides=("PR-09",),
         evidence={"observed": "134217729", "expected": 134217728}, offender="client"),
    Case("CT-17", V, opened().client_bytes(publish() + header(2**63)), opened().client_bytes(publish() + header(3)),
         evidence={"observed": "2^63 or more"}),
    Case("CT-18", "0-9", staged("file.publish"), opened("0-9").close(),
         also=("CT-19",), evidence={"observed": "file.publish", "identifier": "f"}, offender="client"),
    # staged, and nothing to say but that class file is in use
    Case("CT-19", "0-9", staged("file.open-ok", "file.stage", "file.publish"), opened("0-9").close(),
         evidence={"observed": "file.open"}),
]  # fmt: skip
