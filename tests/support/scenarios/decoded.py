"""Many scripts in one capture directory, decoded once; rows of tables by script and peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.sql import SparkSession

import pipeline
from pipeline.run.local_processes import LocalProcesses
from scenarios.capture import Packet, disturbed, packets, write_pcap
from scenarios.script import FIRST_CLIENT_PORT, VERSIONS, Script
from scenarios.strategies import scripts

POPULATION = 480
# Without a seed of its own, Hypothesis takes one from the text of the function: another name in it makes other scripts.
SEED = int(
    "260466184365026742430389125057025853610725332991762181556"
    "0826881667920982715206889580194574042523960129512812911823"
)
APART_NS = 100_000  # between the starts of scripts: they overlap


@cache
def population() -> tuple[Script, ...]:
    """The same scripts in every run, each with a broker and a time of its own."""
    found: list[Script] = []

    @seed(SEED)
    @settings(
        max_examples=POPULATION, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(scripts())
    def collect(script: Script) -> None:
        found.append(with_number(script, len(found)))

    collect()
    return tuple(found)


def busiest(count: int) -> list[Script]:
    """First those that together show all that happens in any version, then those in which most happens, each version in
    its turn (Hypothesis likes what is simple); numbered from 0."""
    selected: dict[int, Script] = {}
    covered: set[tuple[str, str]] = set()
    while True:
        best = max(population(), key=lambda script: len(features(script) - covered))
        if features(best) <= covered:
            break
        selected[best.number] = best
        covered |= features(best)
    ranked = {version: sorted(population(), key=partial(busy, version=version)) for version in VERSIONS}
    while len(selected) < count:
        best = ranked[VERSIONS[len(selected) % len(VERSIONS)]].pop()
        selected.setdefault(best.number, best)
    return [with_number(script, number) for number, script in enumerate(selected.values())][:count]


@cache
def features(script: Script) -> frozenset[tuple[str, str]]:
    """What happens in which version."""
    found = set()
    for event in script.events:
        version = script.peers[event.peer].version
        found |= {(version, event.kind), (version, event.outcome)} | {
            (version, death.reason) for death in event.x_death
        }
        if event.redelivered:
            found.add((version, "redelivered"))
        if event.of is not None:
            found.add((version, f"of {script.peers[script.events[event.of].peer].version}"))
    return frozenset(found)


def busy(script: Script, version: str) -> int:
    """How much happens on connections of a version."""
    counted = ("deliver", "get", "settle", "confirm", "commit", "rollback")
    mine = [event for event in script.events if script.peers[event.peer].version == version]
    return sum((event.kind in counted) + 3 * event.redelivered + 3 * len(event.x_death) for event in mine)


def with_number(script: Script, number: int) -> Script:
    """The same script at broker `number`, as much later."""
    later = (number - script.number) * APART_NS
    events = tuple(replace(event, at=event.at + later, end=event.end + later) for event in script.events)
    return replace(script, number=number, start=script.start + later, events=events)


def write_scripts(
    path: Path, played: Sequence[Script], disturb: bool = False, captured: Callable[[Packet], bool] | None = None
) -> list[Packet]:
    """One pcap with all packets of these scripts in order of time; those not `captured` were lost by the capture."""
    random = Random(1)
    mixed = []
    for script in played:
        mixed += disturbed(packets(script), random) if disturb else packets(script)
    # Python sorts stably: what `disturbed` put before an older packet comes after it again only in another script.
    order = mixed if disturb else sorted(mixed, key=lambda packet: packet.at)
    written = [packet for packet in order if captured is None or captured(packet)]
    write_pcap(path, written)
    return written


class Decoded:
    """Tables of a directory of scripts; `rows` gives those of one script, each with the number of its peer."""

    def __init__(self, spark: SparkSession, folder: Path, played: Sequence[Script]) -> None:
        pipeline.write(LocalProcesses(1), str(folder), str(folder / "tables"))
        self.tables = pipeline.load(spark, str(folder / "tables"))
        numbers = {script.server: script.number for script in played}
        self.origin_of: dict[int, tuple[int, int]] = {
            row.connection_id: (numbers[f"{row.server_ip}:{row.server_port}"], row.client_port - FIRST_CLIENT_PORT)
            for row in self.tables.connections.select(
                "connection_id", "server_ip", "server_port", "client_port"
            ).collect()
        }
        self.number_of = numbers
        self.collected: dict[str, list[dict[str, Any]]] = {}

    def rows(self, table: str, script: int, *columns: str) -> list[dict[str, Any]]:
        if table not in self.collected:
            self.collected[table] = [row.asDict() for row in getattr(self.tables, table).select(*columns).collect()]
        rows = []
        for row in self.collected[table]:
            number, peer = self.origin_of[row["connection_id"]]
            if number == script:
                rows.append({"peer": peer, **{name: row[name] for name in columns if name != "connection_id"}})
        return rows

    def flows(self, script: int, *columns: str) -> list[dict[str, Any]]:
        """Rows of message_flows, connections as numbers of peers."""
        if "message_flows" not in self.collected:
            ends = ("publish_connection_id", "deliver_connection_id")
            rows = self.tables.message_flows.select(*ends, *columns).collect()
            self.collected["message_flows"] = [row.asDict() for row in rows]
        found = []
        for row in self.collected["message_flows"]:
            if self.number_of[row["server"]] == script:
                peers = {
                    f"{side}_peer": self.origin_of.get(row[f"{side}_connection_id"], (0, None))[1]
                    for side in ("publish", "deliver")
                }
                found.append({**peers, **{name: row[name] for name in columns}})
        return found
