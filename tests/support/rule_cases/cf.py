"""CF: publisher confirms."""

from __future__ import annotations

from rule_support import Case, Connection, spoken

from rule_cases.ch import opened

V = spoken()


def confirming() -> Connection:
    return opened().asks("confirm.select")


def confirmed(connection: Connection, tag: int, multiple: bool = False) -> Connection:
    return connection.server("basic.ack", delivery_tag=tag, multiple=multiple)


def given_back(connection: Connection, body: bytes = b"x") -> Connection:
    connection.server("basic.return", reply_code=312, reply_text="NO_ROUTE", exchange="e", routing_key="q")
    return connection.content(body)


def later(connection: Connection, seconds: float) -> Connection:
    return connection.wait(seconds).heartbeat("client").heartbeat("server")


CASES = [
    Case("CF-01", V, confirmed(opened().publish(), 1), confirmed(confirming().publish(), 1), offender="server"),
    Case("CF-02", V, confirmed(confirming().publish(), 2),
         confirmed(confirming().publish().publish(), 2, multiple=True), evidence={"observed": 2}, offender="server"),
    Case("CF-02", V, confirmed(confirmed(confirming().publish().publish(), 2, multiple=True), 1),
         confirmed(confirmed(confirming().publish().publish(), 2), 1), evidence={"observed": 1}),
    Case("CF-02", V, confirmed(confirming().publish(), 0), confirmed(confirming().publish(), 0, multiple=True),
         evidence={"observed": 0}),
    Case("CF-03", V, given_back(confirming().publish(mandatory=True).server("basic.ack", delivery_tag=1)),
         confirmed(given_back(confirming().publish(mandatory=True)), 1), evidence={"delivery_tag": 1},
         besides=("CT-15",)),
    # Equal messages, returned one after the other: nothing identifies them.
    Case("CF-03", V,
         given_back(given_back(confirmed(confirming().publish(mandatory=True).publish(mandatory=True), 2, True))),
         confirmed(given_back(confirmed(given_back(confirming().publish(mandatory=True).publish(mandatory=True)), 1)),
             2), besides=("CT-15",)),
    Case("CF-04", V, confirmed(later(confirming().publish(), 31), 1), confirmed(later(confirming().publish(), 29), 1),
         evidence={"expected": 30, "outcome": "confirmed"}),
    Case("CF-04", V, later(confirming().publish(), 31), later(confirming().publish(), 29),
         evidence={"outcome": "unsettled", "outstanding": 1}),
    Case("CF-05", V, confirming().publish().server("basic.nack", delivery_tag=1),
         confirmed(confirming().publish(), 1), evidence={"delivery_tag": 1}),
    Case("CF-06", V, opened().publish(delivery_mode=2).publish(delivery_mode=2),
         [confirmed(confirming().publish(delivery_mode=2), 1),
          opened().asks("tx.select").publish(delivery_mode=2).asks("tx.commit"), opened().publish(delivery_mode=1)],
         evidence={"observed": 2}),
]  # fmt: skip
