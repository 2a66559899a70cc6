"""NEG: protocol headers and versions."""

from __future__ import annotations

import encode_1_0 as P
from link_connections import say
from rule_connections import HEADER_0_10, HEADERS_1_0, closed_0_10, closed_1_0, opened_0_10, opened_1_0, sasl
from rule_support import Case, Connection, spoken

V = spoken()
HTTP = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"
# CONNECT of MQTT 3.1.1: type, 22 bytes, the name, level 4, a clean session, 60 s, the client's name.
MQTT = bytes.fromhex("101600044d5154540402003c000a") + b"my-client1"
# What a client asks of a proxy between it and the broker, and its answer: CONNECT of HTTP, SOCKS 5.
THROUGH_PROXIES = (
    (b"CONNECT broker:5672 HTTP/1.1\r\nHost: broker:5672\r\n\r\n", b"HTTP/1.1 200 Connection established\r\n\r\n"),
    (bytes.fromhex("050100050100030662726f6b65721628"), bytes.fromhex("050005000001000000000000")),
)
REASON = P.frame(P.performative(P.OPEN, "broker")) + P.frame(P.performative(P.CLOSE))


def proxy(client: int) -> bytes:
    """A header of the PROXY protocol for a client of its own, in a private network."""
    return b"PROXY TCP4 10.77.0.%d 10.77.1.1 56324 5672\r\n" % client


def greeted(version: str = V) -> Connection:
    return Connection(version).handshake().close()


def early(seconds: float) -> Connection:
    """So long after the server's header comes an open of the client, who has sent another one."""
    connection = Connection("1.0").client_bytes(HEADERS_1_0["amqp"]).server_bytes(HEADERS_1_0["sasl"]).wait(seconds)
    return say(connection, "client", P.OPEN, "c", "test", channel=0)


CASES = [
    Case("NEG-01", V, Connection().client_bytes(HTTP).header(sender="server").fin("server"), greeted(),
         also=("SEC-12",)),
    Case("NEG-01", V, Connection().client_bytes(proxy(1) + HTTP).header(sender="server").fin("server"),
         Connection(V).client_bytes(proxy(2)).handshake().close(), also=("SEC-12",),
         evidence={"observed": "47455420", "looks_like": "HTTP"}),
    *(Case("NEG-01", V, Connection().client_bytes(asked).header(sender="server").fin("server"),
           Connection(V).client_bytes(asked).server_bytes(answered).handshake().close(), also=("SEC-12",))
      for asked, answered in THROUGH_PROXIES),
    Case("NEG-02", V, Connection().client_bytes(b"AMQP\x09\x09\x09\x09").header(sender="server").fin("server"),
         greeted(),
         evidence={"observed": "9.9.9.9", "answered": V}, offender="client"),
    Case("NEG-03", V, Connection("0-9").header().header(V, "server").wait(1).start_ok().fin("server"),
         Connection("0-9").header().header(V, "server").wait(1).fin("server"), also=("HS-01", "MT-02"),
         besides=("NEG-11",),
         evidence={"asked": "0-9", "answered": V}),
    Case("NEG-04", V,
         Connection().header().header(sender="server").start().start_ok().tune().tune_ok().connection_open().close(),
         greeted(), also=("NEG-03",)),
    Case("NEG-05", "0-8", Connection("0-8").header().start(version_major=0, version_minor=9),
         Connection("0-8").header().start()),
    Case("NEG-06", "0-10", Connection("0-10").client_bytes(HEADER_0_10).server_bytes(HEADERS_1_0["amqp"]).wait(1)
             .client_bytes(HEADER_0_10),
         closed_0_10(opened_0_10(Connection("0-10"))), also=("NEG-09",),
         evidence={"client": "101000A", "server": "10000"}),
    Case("NEG-06", "1.0",
         Connection("1.0").client_bytes(HEADERS_1_0["amqp"]).server_bytes(HEADERS_1_0["sasl"]).wait(1)
             .client_bytes(HEADERS_1_0["sasl"]),
         Connection("1.0").client_bytes(HEADERS_1_0["amqp"]).server_bytes(HEADERS_1_0["sasl"]).fin("server"),
         also=("NEG-07", "NEG-09"), besides=("L10-24",)),
    # An open that the client sent ahead arrives after the other header, and the server closes.
    Case("NEG-06", "1.0", early(2), early(0.5).fin("server"), besides=("L10-24", "SEC-04")),
    Case("NEG-07", "1.0", sasl(Connection("1.0")).client_bytes(HEADERS_1_0["sasl"]).server_bytes(HEADERS_1_0["amqp"]),
         closed_1_0(opened_1_0(Connection("1.0"))), evidence={"observed": "3010000", "earlier": "3010000"},
         offender="client"),
    # 0-10 frames behind a header of 0-9-1.
    Case("NEG-08", V, Connection().header().start().client_bytes(HEADER_0_10[4:] * 40).fin(), greeted()),
    Case("NEG-09", V, Connection().handshake().wait(1).header().wait(1).heartbeat("server").heartbeat().close(),
         greeted(),
         offender="client"),
    # The broker says why, in its version.
    Case("NEG-04", V, Connection().header().server_bytes(HEADERS_1_0["amqp"] + REASON).fin("server"),
         Connection().header().server_bytes(HEADERS_1_0["amqp"]).fin("server"), besides=("NEG-11",),
         evidence={"asked": V, "answered": "1.0"}),
    Case("NEG-01", V, Connection().client_bytes(MQTT).header(sender="server").fin("server"), greeted(),
         also=("SEC-12",), evidence={"observed": "10160004", "looks_like": "MQTT"}),
    Case("NEG-01", V, Connection().client_bytes(bytes.fromhex("fff4fffd06")).header(sender="server").fin("server"),
         Connection().client_bytes(b"AMQP\0").header(sender="server").fin("server"), also=("SEC-12",),
         besides=("CAP-05", "NEG-08"), evidence={"observed": "FFF4FFFD", "looks_like": "unknown"}),
    Case("NEG-11", V, Connection().header().server_bytes(HEADERS_1_0["amqp"]).fin("server"), greeted(),
         evidence={"asked": V, "answered": "1.0", "header": "00010000"}),
    Case("NEG-11", V, Connection().client_bytes(proxy(3)).header().header(sender="server").rst("server"),
         [Connection().client_bytes(proxy(4)).header().header(sender="server").rst("server"),
          Connection(at=90).client_bytes(proxy(4)).handshake().close()],
         evidence={"asked": V, "answered": V, "before": "header of the PROXY protocol"}),
    Case("NEG-10", "0-9-1",
         [Connection("0-9").header().header("0-9-1", "server").fin("server"), Connection(at=5).handshake().close()],
         [Connection("0-9").header().header("0-9-1", "server").fin("server"), Connection(at=70).handshake().close()],
         evidence={"first": "0-9", "then": "0-9-1"}),
    # Another program of the same host: it spoke the version before, or speaks one that was not offered.
    Case("NEG-10", "0-9-1",
         [Connection("0-9").header().header("0-9-1", "server").fin("server"), Connection(at=5).handshake().close()],
         [Connection(at=-5).handshake().close(),
          Connection("0-9").header().header("0-9-1", "server").fin("server"), Connection(at=5).handshake().close(),
          Connection("0-9", client=3).header().header("0-8", "server").fin("server"),
          Connection(client=3, at=5).handshake().close()],
         evidence={"first": "0-9", "answered": "0-9-1"}),
]  # fmt: skip
