"""One night over everything: the cases of all rules, logins in clear and in TLS, odd captures (`night`), and all
shipped captures. Several test files look at it; an audit takes 20 s of CPU, however few connections there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import captured_rows
import golden
import night
import pytest
from pyspark.sql import Row, SparkSession
from rule_cases import capture_cases, cases_of, cases_spoken_in, sec
from rule_support import SCALED, Case, Connection, Key, write_cases
from tls_peers import Peers, Sent, wire_of
from wire import CLIENT, SERVER, write_capture

import pipeline
from codec.tables import FINDINGS
from jobs.cli import main
from jobs.terminal.running import OK, UNREADABLE
from pipeline.audit import rule_program as engine
from pipeline.audit.catalogue import catalogue
from pipeline.run import session as sessions
from pipeline.run.exchange import Local, Source
from pipeline.tables import decoding
from udfs.arrow.spark_schemas import spark_schema

OLDER = ("0-8", "0-9")
CASES = [
    *cases_of(),
    *(case for version in OLDER for case in cases_spoken_in(version) if version in catalogue()[case.rule].versions),
]
CAPTURE_CASES = capture_cases()
# A password, and a token, where everybody on the path can read them.
IN_CLEAR = {"SEC-01", "SEC-14"}
LOGINS = [
    (case.rule, case.breaks) for case in sec.CASES if case.rule in IN_CLEAR and isinstance(case.breaks, Connection)
]
LOGINS_PORT = 30000  # of the first of their clients
CONNECTION = ("connection_id", "client_ip", "client_port", "server_port", "transport", "tls", "mechanism", "user")


def sent(connection: Connection) -> list[Sent]:
    """What the peers of a connection send."""
    return [
        (CLIENT if packet.sender == "client" else SERVER, packet.data) for packet in connection.packets if packet.data
    ]


def on_channel_0(connection: Connection, times: int = 1) -> Connection:
    """Breaks HS-03, which prefers to know all bytes."""
    for _ in range(times):
        connection.client("channel.flow", 0, active=True)
    return connection


def bound_to_the_log(connection: Connection, channel: int) -> Connection:
    """Breaks SEC-10 twice, a rule about channels."""
    for _ in range(2):
        connection.asks("queue.bind", channel, queue="q", exchange="amq.rabbitmq.log", routing_key="#")
    return connection


INCARNATIONS = Connection().handshake().open(1).asks("queue.declare", 1, {"queue": "q"}, queue="q")
bound_to_the_log(INCARNATIONS, 1).client("channel.close", 1, reply_code=200, reply_text="").server(
    "channel.close-ok", 1
)
bound_to_the_log(INCARNATIONS.asks("channel.open", 1).asks("queue.declare", 1, {"queue": "q"}, queue="q"), 1)
FURTHER = {
    "a loss before": Case(
        "HS-03", "0-9-1", on_channel_0(Connection().handshake().lose("client", 30).heartbeat()), Connection()
    ),
    "a loss after": Case(
        "HS-03", "0-9-1", on_channel_0(Connection().handshake()).wait(1).lose("client", 30), Connection()
    ),
    "several times": Case("HS-03", "0-9-1", on_channel_0(Connection().handshake(), 3), Connection()),
    "two incarnations": Case("SEC-10", "0-9-1", INCARNATIONS, Connection()),
}


class Audited:
    """What `audit` has written into `folder`. Of the cases and the logins: `connections`, `findings`, and `owner`, the
    case and half of each client port; of the shipped captures: `shipped`, findings with the name of their capture."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder, self.tables = folder, pipeline.load(spark, str(folder / "tables"))
        self.owner: dict[int, Key] = {
            int(port): (number, half)
            for port, (number, half) in json.loads((folder / "owner.json").read_text()).items()
        }
        ports = {*self.owner, *range(LOGINS_PORT, LOGINS_PORT + 2 * len(LOGINS))}
        connections = self.tables.connections.select(*CONNECTION).collect()
        findings = spark.read.schema(spark_schema(FINDINGS)).parquet(str(folder / "tables" / "findings"))
        self.all_findings = findings.collect()
        captures = {row.connection_id: captured_rows.capture_at(row.client_ip) for row in connections}
        found = [(captures.get(row.connection_id) or shipped_file(row), row) for row in self.all_findings]
        self.shipped = [(name, row) for name, row in found if name is not None]
        self.connections = [
            row
            for row in connections
            if captures[row.connection_id] is None and not ports.isdisjoint((row.client_port, row.server_port))
        ]
        own = {None, *(row.connection_id for row in self.connections)}
        odd = {(folder / "captures" / name).as_uri() for name in night.NAMES}
        self.findings = [
            row for name, row in found if name is None and row.connection_id in own and row.capture_file not in odd
        ]


def shipped_file(finding: Row) -> str | None:
    """The name of the shipped capture that a finding is about; None: another one."""
    folder, _, name = (finding.capture_file or "").rpartition("/")
    return name if folder == golden.CAPTURES.as_uri() else None


def audit(spark: SparkSession, folder: Path) -> None:
    """Write into `folder` the `captures`, their `tables` and those of the shipped captures, with findings,
    `audit.html`, `audit.json`, and what was `printed`."""
    captures, log, rules = folder / "captures", folder / "keys.txt", folder / "audit.toml"
    captures.mkdir()
    owner = write_cases(captures / "cases.pcap", [*CASES, *FURTHER.values()])
    (folder / "owner.json").write_text(json.dumps(owner))
    for number, case in enumerate(CAPTURE_CASES):
        for half, data in case.halves.items():
            (captures / f"{number}-{half}.pcap").write_bytes(data)
    peers = Peers()
    clear = [wire_of(sent(connection)) for _, connection in LOGINS]
    encrypted = [wire_of(peers.exchange(sent(connection))) for _, connection in LOGINS]
    write_capture(captures / "logins.pcap", clear + encrypted, LOGINS_PORT)
    log.write_bytes(peers.key_log)
    night.write_captures(captures)
    rules.write_text(
        "".join(
            f"[parameters.{rule}]\n{name} = {limit}\n"
            for rule, limits in SCALED.items()
            for name, limit in limits.items()
        )
    )
    tables, report, as_json = (str(folder / name) for name in ("tables", "audit.html", "audit.json"))
    logs = ("--keylog", str(log), str(night.KEY_LOG))
    with (folder / "printed").open("w") as printed, redirect_stdout(printed), redirect_stderr(printed):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sessions, "has_session", lambda: False)
            patch.setattr(decoding, "local_runs", with_shipped_captures(decoding.local_runs))
            assert main(["decode", str(captures), "--output", tables, "--payload", *logs]) == UNREADABLE
        with pytest.MonkeyPatch.context() as patch:
            # Connections are short: leave routine rows out of every stretch.
            patch.setattr(engine, "STRETCH_FRAMES", 0)
            written = ("--report", report, "--json", as_json, "--format", "sarif", "--config", str(rules))
            assert main(["audit", tables, *written, "--fail-on", "never"]) == OK


def with_shipped_captures(local_runs: Callable[..., Local]) -> Callable[..., Local]:
    """A source of runs that has those of the shipped captures, too."""
    shipped = [*captured_rows.runs_apart()]
    return lambda processes, *rest: local_runs(processes, *rest).with_rows(Local(processes, [Source(shipped)]))
