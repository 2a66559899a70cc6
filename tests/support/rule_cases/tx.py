"""TX: transactions."""

from __future__ import annotations

from rule_support import Case, Connection, spoken

from rule_cases.ch import opened, shut

V = spoken()


def transacted(version: str = V) -> Connection:
    return opened(version).asks("tx.select")


def commits(connection: Connection, times: int, messages: int) -> Connection:
    for _ in range(times):
        for _ in range(messages):
            connection.publish()
        connection.asks("tx.commit")
    return connection


CASES = [
    Case("TX-01", V, opened().client("tx.commit"), transacted().publish().asks("tx.commit")),
    # A channel begins anew without what was selected on the one before.
    Case("TX-01", "0-8", shut(transacted("0-8")).open(1).client("tx.rollback"),
         shut(transacted("0-8")).open(1).asks("tx.select").asks("tx.rollback"), evidence={"observed": "tx.rollback"}),
    Case("TX-02", V, transacted().client("confirm.select"), shut(transacted()).open(1).asks("confirm.select"),
         evidence={"observed": "confirm.select", "first": "tx.select"}),
    Case("TX-02", V, opened().asks("confirm.select").client("tx.select"), transacted()),
    Case("TX-03", V, shut(transacted().publish()), shut(transacted().publish().asks("tx.commit"))),
    Case("TX-04", V, transacted().publish(mandatory=True).asks("tx.commit"), transacted().publish().asks("tx.commit"),
         evidence={"mandatory": True, "immediate": False}),
    Case("TX-05", "0-9", opened("0-9").client("dtx.start", dtx_identifier="1"),
         opened("0-9").asks("dtx.select").asks("dtx.start", dtx_identifier="1")),
    Case("TX-06", V, commits(transacted(), 10, 1), commits(transacted(), 10, 2)),
]  # fmt: skip
