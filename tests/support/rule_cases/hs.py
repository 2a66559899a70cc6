"""HS: the handshake."""

from __future__ import annotations

from typing import Any

from rule_connections import closed_0_10, opened_0_10
from rule_support import CLIENT_PROPERTIES, SERVER_PROPERTIES, Case, Connection, spoken

V = spoken()


def done(version: str = V, **given: dict[str, Any]) -> Connection:
    return Connection(version).handshake(**given).close()


def started(mechanism: str = "EXTERNAL", offered: str = "EXTERNAL") -> Connection:
    return Connection().header().start(mechanisms=offered).start_ok(mechanism=mechanism)


def lacking(properties: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in names}


def redirected(insist: bool, version: str = "0-9") -> Connection:
    connection = Connection(version).header().start().start_ok().tune().tune_ok()
    connection.client("connection.open", 0, virtual_host="/test", insist=insist)
    return connection.server("connection.redirect", 0, host="other", known_hosts="other")


CASES = [
    Case("HS-01", V, Connection().header().start().start_ok().client("connection.open", 0, virtual_host="/t")
             .server("connection.open-ok", 0),
         done(), evidence={"observed": "connection.open", "after": "connection.start-ok"}, offender="client"),
    Case("HS-01", "0-8", Connection("0-8").handshake().tune().close(), done("0-8"),
         evidence={"observed": "connection.tune", "after": "connection.open-ok"}, offender="server"),
    Case("HS-02", V,
         Connection().handshake().open(1).client("connection.update-secret", 1, new_secret="s", reason="r").close(),
         Connection().handshake().open(1).close(), also=("SEC-14",),
         evidence={"observed": 1, "method": "connection.update-secret"}, offender="client"),
    Case("HS-03", V, Connection().handshake().client("channel.flow", 0, active=True).close(),
         Connection().handshake().open(1).close(), evidence={"observed": "channel.flow"}),
    Case("HS-04", V, done(start={"mechanisms": "SCRAM-SHA-256 EXTERNAL"}, start_ok={"mechanism": "OTHER"}),
         done(start={"mechanisms": "SCRAM-SHA-256 EXTERNAL"}),
         evidence={"observed": "OTHER", "expected": ["SCRAM-SHA-256", "EXTERNAL"]}),
    Case("HS-05", V, done(start_ok={"locale": "de_DE"}),
         done(start={"locales": "en_US de_DE"}, start_ok={"locale": "de_DE"})),
    Case("HS-06", V, done(start={"locales": "de_DE"}, start_ok={"locale": "de_DE"}),
         done(start={"locales": "de_DE en_US"})),
    Case("HS-06", "0-10", closed_0_10(opened_0_10(Connection("0-10"), start={"locales": ("str16", ["de_DE"])})),
         closed_0_10(opened_0_10(Connection("0-10"), start={"locales": ("str16", ["de_DE", "en_US"])})),
         evidence={"observed": ["de_DE"]}),
    Case("HS-07", V,
         done(start_ok={"client_properties": lacking(CLIENT_PROPERTIES, "platform")}),
         done(), evidence={"client_lacks": ["platform"]}, offender="client"),
    Case("HS-07", "0-9", done("0-9", start={"server_properties": lacking(SERVER_PROPERTIES, "host", "product")}),
         done("0-9"), evidence={"server_lacks": ["product", "host"]}, offender="server"),
    Case("HS-08", V, done(tune={"channel_max": 100}, tune_ok={"channel_max": 101}),
         done(tune={"channel_max": 100}, tune_ok={"channel_max": 100}), evidence={"observed": 101, "expected": 100}),
    Case("HS-08", "0-8", done("0-8", tune_ok={"channel_max": 0}), done("0-8", tune={"channel_max": 0})),
    Case("HS-09", V, done(tune={"frame_max": 8192}, tune_ok={"frame_max": 8193}),
         done(tune={"frame_max": 8192}, tune_ok={"frame_max": 8192}), evidence={"observed": 8193, "expected": 8192}),
    Case("HS-10", V, done(tune_ok={"frame_max": 4095}), done(tune_ok={"frame_max": 4096}),
         evidence={"negotiated": 4095}),
    Case("HS-11", V, done(start_ok={"client_properties": {**CLIENT_PROPERTIES, "product": "x" * 4096}}),
         done(start_ok={"client_properties": {**CLIENT_PROPERTIES, "product": "x" * 3800}}),
         evidence={"method": "connection.start-ok"}, offender="client"),
    Case("HS-12", V, done(tune_ok={"heartbeat": 30}), done(), evidence={"observed": 30, "expected": 60}),
    Case("HS-13", V, Connection().header().start().start_ok().tune().tune_ok()
             .client("connection.open", 0, virtual_host="/test").client("channel.open")
             .server("connection.open-ok", 0).server("channel.open-ok").close(),
         Connection().handshake().asks("channel.open").close(), besides=("CH-07",),
         evidence={"observed": "channel.open"}),
    Case("HS-14", "0-8", done("0-8", connection_open={"virtual_host": "test"}), done("0-8")),
    Case("HS-14", "0-9", done("0-9", connection_open={"virtual_host": "/" + "v" * 127}), done("0-9")),
    Case("HS-15", V, done(connection_open={"virtual_host": ""}), done(connection_open={"virtual_host": "v" * 127}),
         evidence={"observed": ""}),
    Case("HS-16", "0-9", redirected(True).close(), redirected(False).close()),
    Case("HS-17", V, started().fin("client"), started().wait(5), evidence={"observed": "start", "tcp_end": "fin"}),
    Case("HS-17", "0-8", Connection("0-8").header().start().wait(11).packet("client"),
         Connection("0-8").header().start().wait(9).packet("client")),
    Case("HS-18", V, started().server("connection.close", 0, reply_code=403, reply_text="ACCESS_REFUSED")
             .client("connection.close-ok", 0).fin("server"), done(),
         also=("CL-08",), evidence={"reply_code": 403}),
    Case("HS-18", "0-8", Connection("0-8").header().start().start_ok().fin("server"), done("0-8"), also=("HS-17",)),
    Case("HS-19", "0-9", redirected(False).client("channel.open").close(), redirected(False).close(),
         also=("CH-07",), evidence={"observed": "channel.open"}),
    Case("HS-20", V, started().server("connection.secure", 0, challenge="c")
             .client("connection.secure-ok", 0, response="r").tune().tune_ok().connection_open().close(),
         started("SCRAM-SHA-256", "SCRAM-SHA-256").server("connection.secure", 0, challenge="c")
             .client("connection.secure-ok", 0, response="r").tune().tune_ok().connection_open().close(),
         evidence={"mechanism": "EXTERNAL", "observed": "secure"}),
    Case("HS-20", "0-9", done("0-9", start={"mechanisms": "CRAM-MD5"}, start_ok={"mechanism": "CRAM-MD5"}),
         done("0-9"), evidence={"observed": "tune"}),
]  # fmt: skip
