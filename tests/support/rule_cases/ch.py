"""CH: channels."""

from __future__ import annotations

from rule_support import Case, Connection, spoken

V = spoken()


def opened(version: str = V) -> Connection:
    return Connection(version).handshake().open(1)


def shut(connection: Connection, channel: int = 1) -> Connection:
    return connection.asks("channel.close", channel, reply_code=200, reply_text="bye")


def ended(connection: Connection) -> Connection:
    """The connection is closed, whatever channels are open."""
    connection.client("connection.close", 0, reply_code=200, reply_text="bye").server("connection.close-ok", 0)
    return connection.fin()


def refused(
    connection: Connection, code: int, text: str, blamed: tuple[int, int] = (0, 0), channel: int = 1
) -> Connection:
    """The server closes the channel because of method `blamed`."""
    class_id, method_id = blamed
    connection.server(
        "channel.close", channel, reply_code=code, reply_text=text, class_id=class_id, method_id=method_id
    )  # fmt: skip
    return connection.client("channel.close-ok", channel)


def opened_and_closed(times: int) -> Connection:
    connection = Connection().handshake()
    for _ in range(times):
        shut(connection.open(1))
    return connection


QUEUE_DECLARE, BASIC_ACK = (50, 10), (60, 80)
CASES = [
    Case("CH-01", V, Connection().handshake().client("basic.qos", prefetch_count=5),
         opened().asks("basic.qos", prefetch_count=5), evidence={"observed": "basic.qos", "channel": 1},
         offender="client"),
    Case("CH-01", "0-8", shut(opened("0-8")).server("basic.qos-ok"), shut(shut(opened("0-8")).open(1)),
         also=("MT-02",), evidence={"observed": "basic.qos-ok", "after": "channel.close-ok"}, offender="server"),
    # Both sides close at once: each answers the other.
    Case("CH-01", V, shut(opened()).client("channel.close-ok"),
         opened().client("channel.close", reply_code=200).server("channel.close", reply_code=200)
             .client("channel.close-ok").server("channel.close-ok"),
         also=("CL-05", "MT-02")),
    Case("CH-02", V, opened().client("channel.open"), shut(opened()).open(1), offender="client"),
    Case("CH-03", V, Connection().handshake(tune={"channel_max": 10}, tune_ok={"channel_max": 10}).open(11),
         Connection().handshake(tune={"channel_max": 10}, tune_ok={"channel_max": 10}).open(10),
         evidence={"observed": 11, "negotiated": 10}, offender="client"),
    Case("CH-04", V, opened().client("channel.close", reply_code=200)
             .client("basic.ack", delivery_tag=0, multiple=True).server("channel.close-ok"),
         opened().client("basic.qos", prefetch_count=5).client("channel.close", reply_code=200)
             .server("basic.qos-ok").server("channel.close-ok"),
         evidence={"observed": "basic.ack", "expected": "channel.close-ok"}, offender="client"),
    Case("CH-05", V,
         opened().client("channel.close", reply_code=200).wait(31).heartbeat("client").heartbeat("server"),
         shut(opened()).wait(31).heartbeat("client").heartbeat("server"), evidence={"observed": "no answer"},
         offender="server"),
    Case("CH-06", V, opened().client("channel.close", reply_code=200).client("channel.open"), shut(opened()).open(1)),
    Case("CH-07", V, ended(opened()), ended(shut(opened())), evidence={"open_channels": 1}),
    # The server closes the connection: the client cannot close its channels. One that was never opened is not open.
    Case("CH-07", V, ended(opened().client("basic.qos", 2, prefetch_count=5)),
         shut(opened()).client("basic.qos", 2, prefetch_count=5).open(3).close("server", 504, "", channels=False),
         evidence={"open_channels": 1, "channel": 1}, besides=("CH-01", "CL-08")),
    Case("CH-08", V, refused(opened(), 504, "CHANNEL_ERROR"), shut(opened()),
         also=("CH-09",), evidence={"observed": 504}, offender="server"),
    Case("CH-09", V, refused(opened().client("queue.declare", queue="q"), 405, "RESOURCE_LOCKED", QUEUE_DECLARE),
         shut(opened().asks("queue.declare", reply={"queue": "q"}, queue="q")),
         evidence={"code": 405, "text": "RESOURCE_LOCKED", "class": 50, "method": 10}),
    Case("CH-10", V, refused(opened(), 406, "PRECONDITION_FAILED", BASIC_ACK), shut(opened()),
         also=("CH-09",), evidence={"observed": {"class": 60, "method": 80}}, offender="server"),
    Case("CH-11", V, opened_and_closed(101), opened_and_closed(100), evidence={"expected": 100}),
    Case("CH-12", V, opened().asks("channel.close", reply_code=299), shut(opened()),
         evidence={"observed": 299, "method": "channel.close"}, offender="client"),
    Case("CH-12", "0-9", refused(opened("0-9"), 599, "?"), shut(opened("0-9")),
         also=("CH-09",), evidence={"observed": 599}, offender="server"),
]  # fmt: skip
