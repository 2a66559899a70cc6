"""What the rules say of logins inside TLS that was decrypted: the same as in clear, but that nobody could read them."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from rule_cases.sec import CASES
from rule_support import Talk
from tls_talks import Peers, Said, wire_of
from wire import CLIENT, SERVER
from wire_capture import FIRST_CLIENT_PORT, write_capture

import pipeline
from jobs.cli import main

# A password, and a token, where everybody on the path can read them.
IN_CLEAR = {"SEC-01", "SEC-14"}
LOGINS = [(case.rule, case.breaks) for case in CASES if case.rule in IN_CLEAR and isinstance(case.breaks, Talk)]


def said(talk: Talk) -> list[Said]:
    """What the peers send."""
    return [(CLIENT if packet.sender == "client" else SERVER, packet.data) for packet in talk.packets if packet.data]


def test_a_password_inside_tls_is_no_finding(spark: SparkSession, tmp_path: Path) -> None:
    """The same logins in clear and in TLS, of 0-9-1 and 1.0, passwords and tokens."""
    assert {rule for rule, _ in LOGINS} == IN_CLEAR
    assert {talk.version for _, talk in LOGINS} == {"0-9-1", "1.0"}
    peers = Peers()
    clear = [wire_of(said(talk)) for _, talk in LOGINS]
    encrypted = [wire_of(peers.talk(said(talk))) for _, talk in LOGINS]
    capture, log = tmp_path / "logins.pcap", tmp_path / "keys.txt"
    write_capture(capture, clear + encrypted)
    log.write_bytes(peers.key_log)
    assert main(["decode", str(capture), "--keylog", str(log), "--output", str(tmp_path / "tables")]) == 0
    tables = pipeline.load(spark, str(tmp_path / "tables"))
    connections = {row.client_port - FIRST_CLIENT_PORT: row for row in tables.connections.collect()}
    rules: dict[int, set[str]] = {row.connection_id: set() for row in connections.values()}
    for row in pipeline.findings(tables).collect():
        rules.get(row.connection_id, set()).add(row.rule_id)
    for number, (rule, _) in enumerate(LOGINS):
        bare, inside = connections[number], connections[number + len(LOGINS)]
        assert (bare.transport, inside.transport, inside.tls.decrypted) == ("tcp", "tls", True)
        assert (bare.mechanism, bare.user) == (inside.mechanism, inside.user)
        assert rule in rules[bare.connection_id]
        assert not rules[inside.connection_id] & IN_CLEAR
        of_amqp = {name for name in rules[inside.connection_id] if not name.startswith("TLS-")}
        assert of_amqp == rules[bare.connection_id] - IN_CLEAR
