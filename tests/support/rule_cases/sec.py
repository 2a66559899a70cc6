"""SEC: what an attacker, or an auditor, would look at."""

from __future__ import annotations

from typing import Any

from rule_connections import HEADERS_1_0, closed_0_10, closed_1_0, opened_0_10, opened_1_0, sasl
from rule_support import Case, Connection, spoken

V = spoken()
# Parts of a JSON web token: base64url of '{"alg":"none"}', '{}', and a signature.
TOKEN = b"eyJhbGciOiJub25lIn0.e30.c2ln"
PUBLIC = "93.184.216.34"


def plain(user: bytes = b"u", password: bytes = b"p", **more: Any) -> Connection:
    return logged_in(Connection(**more), b"\0" + user + b"\0" + password)


def logged_in(connection: Connection, response: bytes) -> Connection:
    return connection.handshake(
        start={"mechanisms": "PLAIN"}, start_ok={"mechanism": "PLAIN", "response": response}
    ).close()


def external(**more: Any) -> Connection:
    return Connection(**more).handshake().close()


def failed(at: float, client: int = 2) -> Connection:
    connection = Connection(at=at, client=client).header().start().start_ok()
    connection.server("connection.close", 0, reply_code=403, reply_text="ACCESS_REFUSED")
    return connection.client("connection.close-ok", 0).fin("server")


def turned_away(mechanism: str) -> Connection:
    """A login that the broker refuses."""
    connection = Connection().header().start(mechanisms=mechanism).start_ok(mechanism=mechanism)
    connection.server("connection.close", 0, reply_code=403, reply_text="ACCESS_REFUSED - Login was refused")
    return connection.client("connection.close-ok", 0).fin("server")


def refused(times: int, apart: float = 1, text: str = "no") -> Connection:
    connection = Connection().handshake()
    for _ in range(times):
        connection.open(1).client("queue.declare", 1, queue="q", passive=True)
        connection.server("channel.close", 1, reply_code=403, reply_text=text, class_id=50, method_id=10)
        connection.client("channel.close-ok", 1).wait(apart).heartbeat().heartbeat("server")
    return connection.close(channels=False)


def bound(exchange: str) -> Connection:
    connection = Connection().handshake().open(1).asks("queue.declare", 1, {"queue": "q"}, queue="q")
    return connection.asks("queue.bind", 1, queue="q", exchange=exchange, routing_key="#").close()


def tls_offered(client: int) -> Connection:
    return Connection("1.0", client=client).client_bytes(HEADERS_1_0["tls"]).server_bytes(HEADERS_1_0["tls"])


CASES = [
    Case("SEC-01", V, plain(), external(), evidence={"mechanism": "PLAIN", "user": "u"}),
    Case("SEC-01", "1.0",
         closed_1_0(opened_1_0(Connection("1.0"), mechanism="PLAIN", offered=("PLAIN",), response=b"\0u\0p")),
         closed_1_0(opened_1_0(Connection("1.0"))), evidence={"user": "u"}),
    Case("SEC-02", V, plain(b"guest", b"secret"), external(), also=("SEC-01",), evidence={"user": "guest"}),
    Case("SEC-03", "0-8", external(version="0-8"), external(), evidence={"observed": "0-8"}),
    Case("SEC-03", "0-10", closed_0_10(opened_0_10(Connection("0-10"))), external(), evidence={"observed": "0-10"}),
    Case("SEC-04", "0-10", closed_0_10(opened_0_10(Connection("0-10"), start={"mechanisms": ("str16", ["ANONYMOUS"])},
             start_ok={"mechanism": "ANONYMOUS"})),
         closed_0_10(opened_0_10(Connection("0-10")))),
    Case("SEC-04", "1.0", closed_1_0(opened_1_0(Connection("1.0"), with_sasl=False)),
         closed_1_0(opened_1_0(Connection("1.0"))),
         evidence={"observed": "no SASL"}),
    # The broker does not let the client in.
    Case("SEC-04", V, Connection().handshake(start={"mechanisms": "ANONYMOUS"}, start_ok={"mechanism": "ANONYMOUS"})
             .close(),
         turned_away("ANONYMOUS"), besides=("HS-18", "CL-08"), evidence={"mechanism": "ANONYMOUS"}),
    Case("SEC-04", "1.0", closed_1_0(opened_1_0(Connection("1.0"), mechanism="ANONYMOUS", offered=("ANONYMOUS",))),
         sasl(Connection("1.0"), mechanism="ANONYMOUS", offered=("ANONYMOUS",), code=1).fin("server"),
         besides=("HS-17", "HS-18", "L10-23"), evidence={"mechanism": "ANONYMOUS"}),
    Case("SEC-05", "1.0",
         closed_1_0(opened_1_0(Connection("1.0"), mechanism="ANONYMOUS", offered=("ANONYMOUS", "SCRAM-SHA-1"))),
         closed_1_0(opened_1_0(Connection("1.0"), mechanism="EXTERNAL", offered=("ANONYMOUS", "EXTERNAL"))),
         also=("SEC-04",), evidence={"observed": "ANONYMOUS", "offered": ["SCRAM-SHA-1"]}),
    Case("SEC-06", V, [failed(n) for n in range(6)], [external(at=n) for n in range(6)],
         also=("HS-18", "CL-08"), evidence={"failures": 6}),
    Case("SEC-07", V, external(), closed_1_0(opened_1_0(Connection("1.0")))),
    Case("SEC-08", V,
         Connection(client="10.1.2.3", server="10.1.2.4").handshake().open(1).publish(delivery_mode=1).close(),
         Connection().handshake().open(1).publish(delivery_mode=1).close(), evidence={"published": 1}),
    Case("SEC-09", V, Connection().handshake(connection_open={"virtual_host": "/"}).close(), external()),
    Case("SEC-10", V, bound("amq.rabbitmq.trace"), bound("amq.topic"),
         evidence={"exchange": "amq.rabbitmq.trace", "queue": "q"}),
    Case("SEC-11", V, plain(password=b""), external(), also=("SEC-01",), evidence={"empty": "password"}),
    Case("SEC-11", "0-9", plain(user=b"", version="0-9"), external(), also=("SEC-01",), evidence={"empty": "user"}),
    Case("SEC-12", V, Connection().client_bytes(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n").fin(),
         Connection(server_port=8080).client_bytes(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n").fin(), also=("NEG-01",)),
    # The first bytes were not captured, a protocol header or not.
    Case("SEC-12", V, Connection().client_bytes(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n").fin(),
         Connection().lose("client", 8).client_bytes(b"Host: broker\r\nAccept: text/plain\r\n\r\n").fin(),
         also=("NEG-01",),
         evidence={"observed": "47455420", "looks_like": "HTTP"}),
    Case("SEC-13", V, [external(at=n / 4) for n in range(61)], [external(at=n / 4) for n in range(60)],
         evidence={"limit_per_minute": 60}),
    Case("SEC-14", V, Connection().handshake().client("connection.update-secret", 0, new_secret="s", reason="r")
             .server("connection.update-secret-ok", 0).close(),
         external(), evidence={"method": "connection.update-secret"}),
    Case("SEC-14", V, plain(b"", TOKEN), external(),
         also=("SEC-01", "SEC-11"), evidence={"method": "connection.start-ok"}),
    Case("SEC-15", V, [plain(client=n) for n in range(2, 13)], [external(client=n) for n in range(2, 13)],
         also=("SEC-01",), evidence={"user": "u", "hosts": 11}),
    Case("SEC-16", V, external(client=PUBLIC), external(client="192.168.7.7"), evidence={"client_ip": PUBLIC}),
    Case("SEC-17", "1.0", [tls_offered(2), closed_1_0(opened_1_0(Connection("1.0", client=3, at=1)))],
         [tls_offered(2), tls_offered(3)], evidence={"observed": "3010000"}),
    Case("SEC-18", V, refused(4), refused(3), besides=("CH-09",), evidence={"refusals": 4}),
    # A queue that another connection has for itself is no question of permissions.
    Case("SEC-18", V, refused(4, text="ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'u'"),
         refused(4, text="ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"), besides=("CH-09",),
         evidence={"refusals": 4}),
]  # fmt: skip
