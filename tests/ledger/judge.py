"""Compares decoded tables with the accounts of clients.

    python judge.py TABLES ACCOUNTS         TABLES: decoded with --payload; ACCOUNTS: a folder of *.jsonl

Each value that an account states is compared with the row that states it: `equal`, `unknown` (the row does not say,
which it may where packets are missing), or `wrong`. A client without `closed` was killed, and one with `error` was cut
off: of its last events the wire may show more or less than it wrote down. What a library took, never sent and never
confirmed is unknown (if the folder has the capture, which does not have it). Prints the numbers by column, and each
wrong value with its packet; exit status 1 if there is one.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.dataset

Row = dict[str, Any]
MARKER = re.compile(rb"\|([a-z0-9][a-z0-9.-]*:\d{7})\|")
LAST_EVENTS = 120  # of a client that was cut off, which the wire may show otherwise: two batches of its publishes
TRANSACTIONS = {"committed", "rolled-back"}
OUTCOMES = {"confirmed", "nacked", "returned", "acked", "rejected", "requeued", "released", "modified"}
TAKEN_BACK_NS = 19 * 10**9  # RabbitMQ 4.3 releases what is not settled for `run.PATIENCE_S`, seconds
NOT_KNOWN = {None, "unknown"}
COLUMNS = {
    "messages": [
        "connection_id", "operation", "first_frame_no", "packet_no", "outcome", "transaction", "redelivered",
        "ts_ns", "settled_ts_ns", "body_size", "body_sha256", "body", "message_id",
    ],
    "connections": ["connection_id", "client_name", "close_code", "close_text", "version"],
    "channels": ["connection_id", "close_code", "close_text"],
    "message_flows": [
        "publish_connection_id", "publish_frame_no", "deliver_connection_id", "deliver_frame_no",
    ],
}  # fmt: skip


@dataclass
class Verdict:
    """`counts`: by column and judgement; `wrong`: a line for each wrong value."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: list[str] = field(default_factory=list)

    def compare(self, column: str, facts: Any, found: Any, where: str, allowed: frozenset[Any] = frozenset()) -> None:
        """Count one value; `allowed`: what else the wire may show."""
        if found == facts or found in allowed:
            self.counts[column]["equal"] += 1
        elif found in NOT_KNOWN:
            self.counts[column]["unknown"] += 1
        else:
            self.counts[column]["wrong"] += 1
            self.wrong.append(f"{where}: {column} is {found!r}, the account says {facts!r}")

    def text(self) -> str:
        width = max(map(len, self.counts), default=0)
        lines = [
            f"{column:<{width}}  equal {of['equal']:>8}  unknown {of['unknown']:>6}  wrong {of['wrong']:>6}"
            for column, of in sorted(self.counts.items())
        ]
        return "\n".join(
            [*lines, *self.wrong[:50], *([f"... {len(self.wrong) - 50} more"] if len(self.wrong) > 50 else [])]
        )


@dataclass
class Client:
    """What one client wrote down: its events in order."""

    events: list[Row]

    @cached_property
    def cut_off(self) -> bool:
        """Whether it was killed, or its connection or session was ended by the broker."""
        names = {event["event"] for event in self.events}
        return "closed" not in names or "error" in names

    @cached_property
    def _first_error(self) -> int:
        """Its index; what follows it may not have reached the wire."""
        return next((at for at, event in enumerate(self.events) if event["event"] == "error"), len(self.events))

    def uncertain(self, index: int) -> bool:
        """Whether the wire may show this event otherwise."""
        return self.cut_off and index >= min(len(self.events) - LAST_EVENTS, self._first_error)


def accounts(folder: Path) -> dict[str, Client]:
    """The clients by name."""
    found: dict[str, list[Row]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl*")):
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for line in text.decode(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # the last line of a killed client
                continue
            found[event["client"]].append(event)
    return {name: Client(events) for name, events in found.items()}


def read(tables: Path, name: str) -> list[Row]:
    """The rows of a table."""
    rows: list[Row] = (
        pyarrow.dataset.dataset(tables / name, format="parquet").to_table(columns=COLUMNS[name]).to_pylist()
    )
    return rows


def marker_of(row: Row) -> str | None:
    """The marker at the begin of a body; in 1.0 the body has all sections."""
    found = MARKER.search(row["body"] or b"")
    return found[1].decode() if found else None


def captured(folder: Path) -> set[str] | None:
    """The markers in the capture of a folder; None without it."""
    file = folder / "capture.pcap"
    if not file.is_file():
        return None
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {found[1].decode() for found in MARKER.finditer(data)}


def judge(tables: Path, folder: Path, whole: bool = True) -> Verdict:
    """Compare all that the accounts in a folder state with the tables. `whole`: all packets were captured; otherwise
    missing rows are unknown."""
    verdict, clients, sent = Verdict(), accounts(folder), captured(folder)
    connections = read(tables, "connections")
    versions = {row["connection_id"]: row["version"] for row in connections}
    ids: dict[str, set[int]] = defaultdict(set)
    for row in connections:
        ids[str(row["client_name"])].add(row["connection_id"])
    messages = sorted(read(tables, "messages"), key=lambda row: (row["connection_id"], row["first_frame_no"]))
    of_connection: dict[int, list[Row]] = defaultdict(list)
    for row in messages:
        row["marker"] = marker_of(row)
        of_connection[row["connection_id"]].append(row)
        if row["marker"] and row["operation"] == "publish":  # its name, also where the login was not captured
            ids[row["marker"].rpartition(":")[0]].add(row["connection_id"])
    stated_closes: dict[int, list[Row]] = defaultdict(list)
    for row in [*connections, *read(tables, "channels")]:
        stated_closes[row["connection_id"]].append(row)
    for name, client in clients.items():
        rows = [row for connection in sorted(ids_of(ids, name)) for row in of_connection[connection]]
        classic = all(versions[row["connection_id"]] != "1.0" for row in rows)
        judge_publishes(verdict, client, [row for row in rows if row["operation"] == "publish"], classic, sent, whole)
        judge_deliveries(
            verdict, client, [row for row in rows if row["operation"] in ("deliver", "get")], classic, whole
        )
        closes = [row for connection in ids_of(ids, name) for row in stated_closes[connection]]
        for event in client.events:
            if event["event"] == "error" and event.get("code"):
                codes = {row["close_code"] for row in closes}
                verdict.compare("close_code", event["code"], event["code"] if event["code"] in codes else min(
                    (code for code in codes if code), default=None), name)  # fmt: skip
    judge_flows(verdict, read(tables, "message_flows"), messages, clients)
    return verdict


def ids_of(ids: dict[str, set[int]], name: str) -> set[int]:
    """The connections of a client; libraries add to the name that they are given, or state it beside their own."""
    return {
        connection for known, of_name in ids.items() if known == name or name in known.split() for connection in of_name
    }


def judge_publishes(
    verdict: Verdict, client: Client, rows: list[Row], classic: bool, sent: set[str] | None, whole: bool
) -> None:
    """`sent`: markers that are on the wire, None if that is not known."""
    found: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["marker"]].append(row)
    heard = {event["id"]: event["event"] for event in client.events if event["event"] in OUTCOMES}
    ended = {event["id"]: event["event"] for event in client.events if event["event"] in TRANSACTIONS}
    # Of the messages after it, the wire may have outcomes that a client which was cut off did not read.
    heard_at = [at for at, event in enumerate(client.events) if event["event"] == "published" and event["id"] in heard]
    last_heard = max(heard_at, default=-1)
    for index, event in enumerate(client.events):
        if event["event"] != "published":
            continue
        own = found[event["id"]]
        if len(own) != 1:
            unsent = not whole or (sent is not None and event["id"] not in sent and event["id"] not in heard)
            if own or not client.uncertain(index):
                verdict.compare("publishes of a message", 1, None if unsent else len(own), event["id"])
            continue
        (row,) = own
        where = f"{event['id']} packet {row['packet_no']}"
        verdict.compare("publishes of a message", 1, 1, where)
        if classic:
            verdict.compare("body_size", event["size"], row["body_size"], where)
            verdict.compare("body_sha256", event["sha256"], row["body_sha256"], where)
        if int(event["id"].rpartition(":")[2]) % 2:  # the others have none, or one of the library's own
            verdict.compare("message_id", event["id"], row["message_id"], where)
        if event["id"] in ended:
            verdict.compare("transaction", ended[event["id"]], row["transaction"], where)
        if event["id"] in heard:
            verdict.compare("publish outcome", heard[event["id"]], row["outcome"], where)
        elif event["id"] not in ended:  # the client did not hear of it: the wire may have what it did not read
            unread = client.cut_off and index > last_heard
            allowed = OUTCOMES if unread or client.uncertain(index) else {"presettled"}
            verdict.compare("publish outcome", "unsettled", row["outcome"], where, frozenset(allowed))


def judge_deliveries(verdict: Verdict, client: Client, rows: list[Row], classic: bool, whole: bool) -> None:
    """Deliveries of a message in their order; a client may not have looked at the last ones."""
    found: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["marker"]].append(row)
    turns: Counter[str] = Counter()
    settled: dict[tuple[str, int], tuple[str, int]] = {}  # outcomes, and the index of the event
    ended: dict[tuple[str, int], str] = {}
    for index, event in enumerate(client.events):
        if event["event"] == "delivered":
            turns[event["id"]] += 1
        elif event["event"] in OUTCOMES and turns[event["id"]]:
            settled[event["id"], turns[event["id"]]] = (event["event"], index)
        elif event["event"] in TRANSACTIONS:
            ended[event["id"], turns[event["id"]]] = event["event"]
    seen: Counter[str] = Counter()
    for index, event in enumerate(client.events):
        if event["event"] != "delivered":
            continue
        seen[event["id"]] += 1
        turn = seen[event["id"]]
        own = found[event["id"]]
        if len(own) < (turn if whole else turns[event["id"]]):
            verdict.compare("deliveries of a message", turn, len(own) if whole else None, event["id"])
            continue
        row = own[turn - 1]
        where = f"{event['id']} packet {row['packet_no']}"
        verdict.compare("deliveries of a message", turn, turn, where)
        if classic:
            verdict.compare("redelivered", event["redelivered"], row["redelivered"], where)
        if (event["id"], turn) in ended:
            verdict.compare("transaction", ended[event["id"], turn], row["transaction"], where)
        # Whatever the client stated later.
        taken_back = {"released"} if (row["settled_ts_ns"] or 0) - row["ts_ns"] >= TAKEN_BACK_NS else set()
        if (event["id"], turn) not in settled:
            allowed = OUTCOMES | {"unsettled"} if client.uncertain(index) else {"presettled", *taken_back}
            verdict.compare("delivery outcome", "unsettled", row["outcome"], where, frozenset(allowed))
        else:
            facts, at = settled[event["id"], turn]
            allowed = {"unsettled", *taken_back} if client.uncertain(at) else taken_back
            verdict.compare("delivery outcome", facts, row["outcome"], where, frozenset(allowed))
    for marker, own in found.items() if whole else ():
        for row in own[seen[str(marker)] :]:  # arrived, but nobody looked at it; its library may give it back
            where = f"{marker} packet {row['packet_no']}, which its client did not see"
            verdict.compare(
                "delivery outcome",
                "unsettled",
                row["outcome"],
                where,
                frozenset({"presettled", "released", "requeued"}),
            )


def judge_flows(verdict: Verdict, flows: list[Row], messages: list[Row], clients: dict[str, Client]) -> None:
    """Each pair is of one message, and each message that was delivered has a pair."""
    marker = {(row["connection_id"], row["first_frame_no"]): row["marker"] for row in messages}
    paired: Counter[str] = Counter()
    for flow in flows:
        publish = marker.get((flow["publish_connection_id"], flow["publish_frame_no"]))
        deliver = marker.get((flow["deliver_connection_id"], flow["deliver_frame_no"]))
        if publish and deliver:
            where = f"pair {publish} from frame {flow['publish_frame_no']} to {flow['deliver_frame_no']}"
            verdict.compare("message of a pair", publish, deliver, where)
            paired[publish] += 1
    published = {row["marker"] for row in messages if row["operation"] == "publish"}
    delivered = {event["id"] for client in clients.values() for event in client.events if event["event"] == "delivered"}
    for each in sorted(delivered & published):
        verdict.compare("a pair for a message", True, paired[each] > 0 or None, each)


def main() -> int:
    verdict = judge(Path(sys.argv[1]), Path(sys.argv[2]))
    print(verdict.text())
    return int(bool(verdict.wrong))


if __name__ == "__main__":
    sys.exit(main())
