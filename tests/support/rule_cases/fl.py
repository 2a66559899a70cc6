"""FL: channel.flow, and connection.blocked."""

from __future__ import annotations

from link_connections import closed, flow, sender_link, transfer
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


def shut(seconds: float, publishes: bool) -> Connection:
    """The server's window is 0 for so long; the client sends a message before that, one after it, and one meanwhile."""
    connection = transfer(sender_link(), "client", 0, 0, settled=True)
    flow(connection, "server", None, next_incoming_id=1, incoming_window=0).wait(seconds)
    if publishes:
        transfer(connection, "client", 0, 1, settled=True)
    at = 2 if publishes else 1
    flow(connection, "server", None, next_incoming_id=at)
    return closed(transfer(connection.wait(0.1), "client", 0, at, settled=True))


CASES = [
    Case("FL-01", V, paused().publish(delivery_mode=1).close(),
         paused().server("channel.flow", active=True).client("channel.flow-ok", active=True).publish(delivery_mode=1)
             .close(),
         evidence={"observed": "basic.publish"}, offender="client"),
    Case("FL-02", V, paused(True, False).close(), paused(True).close(), evidence={"observed": False, "expected": True}),
    Case("FL-03", V, blocked(2, True), blocked(2, False)),
    # 1.0: the server takes no transfers, which it says with a window of 0.
    Case("FL-03", "1.0", shut(2, True), shut(2, False), evidence={"channel": 1}, offender="client"),
    Case("FL-03", "1.0", shut(2, True), shut(0.5, True)),
    Case("FL-04", "1.0", shut(61, False), shut(59, False), evidence={"limit_s": 60, "channel": 1}, besides=("L10-95",)),
    Case("FL-04", V, blocked(61, False), blocked(59, False), evidence={"limit_s": 60}),
]  # fmt: skip
