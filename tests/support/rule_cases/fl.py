"""FL: channel.flow, and connection.blocked."""

from __future__ import annotations

from rule_support import Case, Connection, spoken

V = spoken()


def paused(active: bool = False, answer: bool | None = None) -> Connection:
    connection = Connection().handshake().open(1).server("channel.flow", active=active)
    return connection.client("channel.flow-ok", active=active if answer is None else answer)


def blocked(seconds: float, publish: bool) -> Connection:
    connection = Connection().handshake().open(1).server("connection.blocked", 0, reason="low on memory").wait(seconds)
    if publish:
        connection.publish(delivery_mode=1)
    return connection.server("connection.unblocked", 0).publish(delivery_mode=1).close()


CASES = [
    Case("FL-01", V, paused().publish(delivery_mode=1).close(),
         paused().server("channel.flow", active=True).client("channel.flow-ok", active=True).publish(delivery_mode=1)
             .close(),
         evidence={"observed": "basic.publish"}, offender="client"),
    Case("FL-02", V, paused(True, False).close(), paused(True).close(), evidence={"observed": False, "expected": True}),
    Case("FL-03", V, blocked(2, True), blocked(2, False)),
    Case("FL-04", V, blocked(61, False), blocked(59, False), evidence={"limit_s": 60}),
]  # fmt: skip
