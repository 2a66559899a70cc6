"""HB: heartbeats, and the silence that they should have broken."""

from __future__ import annotations

from rule_connections import closed_0_10, opened_0_10
from rule_support import Case, Connection, spoken

V = spoken()


def beating(interval: int, silence: float, version: str = V) -> Connection:
    """The server beats every half interval; the client is silent for so long, then beats and closes."""
    connection = (
        Connection(version).handshake(tune={"heartbeat": interval}, tune_ok={"heartbeat": interval}).heartbeat()
    )
    remaining = silence
    while remaining > interval / 2:
        connection.wait(interval / 2).heartbeat("server")
        remaining -= interval / 2
    return connection.wait(remaining).heartbeat().close()


def barred(silence: float, *, window: int) -> Connection:
    """The server shows a TCP receive window for so long, in which the client cannot send if it is closed."""
    connection = Connection(V).handshake(tune={"heartbeat": 10}, tune_ok={"heartbeat": 10}).heartbeat()
    connection.packet("server", window=window)
    remaining = silence
    while remaining > 5:
        connection.wait(5).heartbeat("server").packets[-1].window = window
        remaining -= 5
    return connection.wait(remaining).packet("server").heartbeat().close()


def agreed(seconds: int) -> Connection:
    return Connection().handshake(tune={"heartbeat": seconds}, tune_ok={"heartbeat": seconds}).close()


def tuned(heartbeat: int | None) -> Connection:
    return closed_0_10(opened_0_10(Connection("0-10"), tune_ok={"heartbeat": heartbeat}))


CASES = [
    Case("HB-01", V, beating(10, 21), beating(10, 14), evidence={"negotiated_s": 10}, offender="client"),
    Case("HB-01", V, barred(21, window=65535), barred(21, window=0), evidence={"negotiated_s": 10}, offender="client"),
    Case("HB-02", V, Connection().header().start().start_ok().heartbeat().tune().tune_ok().connection_open().close(),
         Connection().header().start().start_ok().tune().tune_ok().connection_open().heartbeat().close(),
         offender="client"),
    Case("HB-03", V,
         Connection().handshake(tune={"heartbeat": 0}, tune_ok={"heartbeat": 0}).heartbeat().heartbeat().close(),
         Connection().handshake().heartbeat().close(), also=("HB-04",), evidence={"negotiated": 0}),
    Case("HB-04", V, agreed(0), agreed(10), evidence={"negotiated": 0}),
    Case("HB-04", "0-10", tuned(0), tuned(60), evidence={"negotiated": 0, "observed": None}),
    Case("HB-04", "0-10", tuned(None), tuned(60), evidence={"negotiated": 0, "observed": "no heartbeat in tune-ok"}),
    Case("HB-05", V, agreed(4), agreed(5), evidence={"negotiated": 4, "expected": 5}),
    Case("HB-06", V, beating(10, 16), beating(10, 14), evidence={"negotiated_s": 10}, offender="client"),
]  # fmt: skip
