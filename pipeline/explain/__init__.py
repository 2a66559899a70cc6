"""Why: what explains a connection, a queue, a message, or the captures as a whole; with the proof and what to do.

    for answer in explain("tables", "10.0.0.7:44650"):
        print(answer)
    answers, more = explain_worst(session, 30)      # for the report

Causes are data (`causes.json`): a condition in DuckDB's SQL over the facts of what is explained (`facts.sql`,
`queue.sql`, `message.sql`), texts, advice, and why a cause is ruled out where it does not hold. The first cause whose
condition holds is the answer. Read this file, then `answers`, which writes answers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from codec.errors import WirehareError
from pipeline.explain.answers import Answer, Event, filled, page
from udfs.findings.program import quoted
from udfs.source.options import meant

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session

__all__ = ["Answer", "Event", "SubjectError", "explain", "explain_worst", "page"]

Row = Mapping[str, Any]
MOST_ANSWERS = 5
MOST_EVENTS = (12, 12)  # the first and the last ones of a connection, and a line for those between
MOST_EVENTS_OF_WORST = (1, 8)
MOST_FRAMES = 300_000  # of the connections of `explain_worst`
QUIET_NS = 1_000_000_000  # a silence that is an event
ENDPOINT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})")
MESSAGE = re.compile(r"([0-9]{1,19})/([0-9]{1,18})")  # connection_id/first_frame_no
LARGEST_ID = (1 << 63) - 1
# Names that a subject may have, for suggestions.
NAMES = """SELECT DISTINCT name FROM (
    SELECT client_name AS name FROM connections UNION ALL SELECT "user" FROM connections
    UNION ALL SELECT queue FROM links UNION ALL SELECT address FROM links) WHERE name IS NOT NULL LIMIT 1000"""
# The queues, and addresses of 1.0, over which most messages are delivered.
QUEUES = """SELECT coalesce(queue, address) AS queue FROM messages
    WHERE operation IN ('deliver', 'get') AND coalesce(queue, address) IS NOT NULL
    GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 10"""
# Connections that break a rule, ended badly, or were held up; those that cost most first.
WORST = """FROM (
    SELECT connection_id, sum(coalesce(client_frames, 0) + coalesce(server_frames, 0)) OVER (
               ORDER BY badness DESC, opened_ts, connection_id) AS frames, row_number() OVER (
               ORDER BY badness DESC, opened_ts, connection_id) AS turn
    FROM (SELECT *, CASE WHEN content = 'none' AND server_packets > 0 AND tcp_end_by = 'client' THEN 1
                         WHEN close_code >= 300 OR tcp_end = 'rst'
                              OR close_code IS NULL AND (close_text IS NOT NULL OR close_initiator = 'server')
                              OR state NOT IN ('open', 'closing', 'closed') THEN 8
                         WHEN tcp_end != 'none' AND close_initiator IS NULL THEN 4 ELSE 0 END
                    + CASE worst WHEN 2 THEN 4 WHEN 1 THEN 1 ELSE 0 END
                    + CASE WHEN held_ns >= 1000000000 OR blocked_ns >= 1000000000 THEN 2 ELSE 0 END AS badness
          FROM connections
          LEFT JOIN (SELECT connection_id, max(CASE severity WHEN 'violation' THEN 2 WHEN 'warning' THEN 1 END) AS worst
                     FROM findings GROUP BY ALL) USING (connection_id)
          LEFT JOIN (SELECT connection_id, sum(stall_ns) AS held_ns FROM stalls WHERE kind != 'silence' GROUP BY ALL)
              USING (connection_id))
    WHERE badness > 0)"""
CONNECTION = "{client} -> {server}  {client_name:application}{user:login}, {version:protocol}"
QUEUE = "queue {queue}"
MESSAGES = "message {message_id:text} ({operation}) of {client} -> {server}  {client_name:application}"


class SubjectError(WirehareError):
    """Nothing in the tables is what was asked about."""


class Cause(NamedTuple):
    """One entry of `causes.json`, which says what its parts mean."""

    id: str
    question: str
    weight: int
    told: bool
    when: str
    answer: str
    advice: Sequence[str] = ()
    advice_by: str | None = None
    instead: Mapping[str, str] | None = None
    harmless: str = "false"
    frame: str = "NULL"
    packet: str = "NULL"
    at: str = "NULL"


@cache
def causes(kind: str) -> tuple[Cause, ...]:
    """The causes of a kind of subject ('causes': of connections, 'queue', 'message'), in the order of precedence."""
    return tuple(Cause(**entry) for entry in _data()[kind])


@cache
def _data() -> Any:
    return json.loads(_text("causes.json"))


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def explain(tables: Session | str | os.PathLike[str], subject: str | None = None) -> list[Answer]:
    """Answers about `subject`, at most MOST_ANSWERS; None: what costs most in all tables. An answer prints as a page.
    `tables`: their directory, or a session (`pipeline.explore.duckdb_tables.connect`).

    A subject is a connection (connection_id, IP:PORT of one side), an application (client_name) or a user, a message
    (connection_id/first_frame_no, or its message-id), a queue or an address. Raises SubjectError, QueryError, and for a
    directory TablesError.
    """
    if isinstance(tables, str | os.PathLike):
        from pipeline.explore.duckdb_tables import connect

        with connect(os.fspath(tables)) as session:
            return explain(session, subject)
    session = tables
    if subject is None:
        _ask(session, "true")
        found = _connections(session)
        for row in session.rows(QUEUES):
            _set(session, subject=row["queue"])
            found += _queues(session)
        wrong = [answer for answer in found if answer.weight and not answer.harmless]
        return sorted(wrong, key=lambda answer: -answer.weight)[:MOST_ANSWERS]
    _set(session, subject=subject)
    if message := MESSAGE.fullmatch(subject):
        found = _messages(session, int(message[1]), int(message[2]))
    else:
        _ask(session, _condition(subject))
        found = _with_events(session, _connections(session)[:MOST_ANSWERS])
        found = found or _queues(session) or _messages(session, -1, -1)
    if not found:
        names = [row["name"] for row in session.rows(NAMES)]
        raise SubjectError(
            f"no connection, application, user, queue or message {subject!r} in these tables{meant(subject, names)}"
        )
    return found


def explain_worst(session: Session, most: int) -> tuple[list[Answer], int]:
    """What explains the connections that break a rule, ended badly or were held up, at most `most` answers, what costs
    most first, and how many such connections they do not cover. What is read does not grow with the tables: those that
    ended worst, with MOST_FRAMES frames in all."""
    session.execute(f"CREATE OR REPLACE TEMP TABLE worst AS {WORST}")
    total = session.rows("SELECT count(*) AS total FROM worst")[0]["total"]
    if not total:
        return [], 0
    candidates = f"SELECT connection_id FROM worst WHERE frames <= {MOST_FRAMES} AND turn <= {8 * most}"
    _ask(session, f"connection_id IN ({candidates})")
    answers = [answer for answer in _connections(session) if answer.weight and not answer.harmless]
    harmless = session.rows(f"SELECT count(*) AS n FROM ({candidates})")[0]["n"] - sum(
        each.connections for each in answers
    )
    worst = answers[:most]
    return _with_events(session, worst, MOST_EVENTS_OF_WORST), total - harmless - sum(
        each.connections for each in worst
    )


def _set(session: Session, **variables: str | int) -> None:
    """Set variables of SQL."""
    for name, value in variables.items():
        literal = str(value) if isinstance(value, int) else quoted(value)
        session.execute(f"SET VARIABLE {name} = {literal}")


def _condition(subject: str) -> str:
    """The condition of the connections that `subject` names."""
    if subject.isdecimal() and int(subject) <= LARGEST_ID:
        return f"connection_id = {int(subject)}"
    if endpoint := ENDPOINT.fullmatch(subject):
        ip, port = endpoint[1] or endpoint[2], int(endpoint[3])  # of digits, dots, colons
        return " OR ".join(f"{side}_ip = '{ip}' AND {side}_port = {port}" for side in ("client", "server"))
    return "client_name = getvariable('subject') OR \"user\" = getvariable('subject')"


def _ask(session: Session, condition: str) -> None:
    """Make the facts of the connections for which `condition` is true."""
    session.execute(f"CREATE OR REPLACE TEMP TABLE asked AS SELECT connection_id FROM connections WHERE {condition}")
    session.rows(_text("facts.sql"))


def _connections(session: Session) -> list[Answer]:
    """Answers about the connections of `_ask`, one for each cause, application and server; what costs most first."""
    rows = session.rows(
        f"""WITH explained AS ({_caused("causes", "SELECT * FROM facts")}),
        alike AS (SELECT *, count(*) OVER same AS alike,
                         row_number() OVER (same ORDER BY opened_ns, connection_id) AS turn
                  FROM explained
                  WINDOW same AS (PARTITION BY cause, client_name, "user", server, close_kind, error_kind))
        SELECT alike.*, found.rules FROM alike LEFT JOIN (
            SELECT connection_id, list(DISTINCT rule_id ORDER BY rule_id) AS rules FROM findings
            WHERE severity != 'info' GROUP BY connection_id) AS found USING (connection_id)
        WHERE turn = 1"""
    )
    found = [_answer("causes", CONNECTION, row) for row in rows]
    return sorted(found, key=lambda each: (-each.weight, -each.connections, each.opened_ns, each.connection_id))


def _queues(session: Session) -> list[Answer]:
    rows = session.rows(f"FROM ({_caused('queue', _text('queue.sql'))}) WHERE published + deliveries + consumers > 0")
    return [_answer("queue", QUEUE, row) for row in rows]


def _messages(session: Session, connection_id: int, frame_no: int) -> list[Answer]:
    _set(session, connection=min(connection_id, LARGEST_ID), frame=frame_no)
    rows = session.rows(_caused("message", _text("message.sql")))
    return [replace(_answer("message", MESSAGES, row), events=_events_of_message(row)) for row in rows[:MOST_ANSWERS]]


def _caused(kind: str, rows: str) -> str:
    """The query `rows` with the index of the first cause of each row, its proof, and which causes are ruled out."""
    known = causes(kind)
    first = " ".join(f"WHEN coalesce({each.when}, false) THEN {index}" for index, each in enumerate(known))
    ruled_out = ", ".join(f"coalesce({each.instead['unless']}, false)" if each.instead else "false" for each in known)
    proof = ", ".join(
        f"CASE cause {' '.join(f'WHEN {index} THEN {text}' for index, text in enumerate(texts))} END AS {name}"
        for name, texts in {
            "proof_frame": [each.frame for each in known],
            "proof_packet": [each.packet for each in known],
            "proof_ns": [each.at for each in known],
            "is_harmless": [each.harmless for each in known],
        }.items()
    )
    return f"SELECT *, {proof} FROM (SELECT *, CASE {first} END AS cause, [{ruled_out}] AS ruled_out FROM ({rows}))"


def _answer(kind: str, subject: str, row: Row) -> Answer:
    known = causes(kind)
    cause = known[row["cause"]]
    # What a peer states needs no argument; what is inferred does.
    inferred = cause.question in ("end", "queue") and cause.told and cause.weight > 0 and not row.get("has_close")
    ruled_out = [
        filled(each.instead["text"], row)
        for each, holds in zip(known, row["ruled_out"], strict=True)
        if inferred and each.instead and holds and each is not cause and each.question in (cause.question, "error")
    ]
    advice = cause.advice
    if cause.advice_by:
        by_value = _data()["advice"]
        advice = by_value.get(str(row[cause.advice_by]), by_value[""])
    return Answer(
        subject=filled(subject, row),
        cause=cause.id,
        told=cause.told,
        answer=filled(cause.answer, row),
        connection_id=row.get("connection_id"),
        capture_file=row.get("capture_file"),
        opened_ns=row.get("opened_ns"),
        at_ns=row["proof_ns"],
        frame_no=row["proof_frame"],
        packet_no=row["proof_packet"],
        connections=row.get("alike", 1),
        ruled_out=ruled_out,
        findings=row.get("rules") or (),
        advice=[filled(text, row) for text in advice],
        weight=cause.weight,
        harmless=row["is_harmless"],
    )


def _with_events(session: Session, answers: Sequence[Answer], most: tuple[int, int] | None = None) -> list[Answer]:
    """The answers with what happened on their connections: handshake, requests and errors, runs of messages, silences,
    the end; as many of the first and the last of them as `most` (MOST_EVENTS) says, and those around the proof."""
    columns = {
        "connection_id": [answer.connection_id for answer in answers],
        "proof_frame": [answer.frame_no for answer in answers],
    }
    lists = ", ".join(
        f"unnest([{', '.join('NULL' if each is None else str(each) for each in values)}]::BIGINT[]) AS {name}"
        for name, values in columns.items()
    )
    session.execute(f"CREATE OR REPLACE TEMP TABLE shown AS SELECT {lists}")
    first, last = most or MOST_EVENTS
    _set(session, first=first, last=last)
    found: dict[int | None, list[Event]] = {answer.connection_id: [] for answer in answers}
    end_ns = index = 0
    for row in session.rows(_text("events.sql")):
        events = found[row["connection_id"]]
        if left_out := row["index"] - (index if events else 0) - 1:
            events.append(Event(row["ts_ns"], "", f"{left_out:,} more"))
        elif events and row["ts_ns"] - end_ns >= QUIET_NS:
            quiet = filled("{quiet_ns} without a method", {"quiet_ns": row["ts_ns"] - end_ns})
            events.append(Event(row["ts_ns"], "", quiet))
        lasts_ns = row["end_ns"] - row["ts_ns"]
        text = row["text"] + (filled(" in {lasts_ns}", {"lasts_ns": lasts_ns}) if lasts_ns else "")
        events.append(Event(row["ts_ns"], row["who"] or "", text, row["frame_no"], row["packet_no"]))
        end_ns, index = row["end_ns"], row["index"]
    return [replace(answer, events=tuple(found[answer.connection_id])) for answer in answers]


def _events_of_message(row: Row) -> tuple[Event, ...]:
    published = row["operation"] == "publish"
    own, peer = ("client", "server") if published else ("server", "client")
    where = "exchange {exchange:text}, routing key {routing_key:text}" if published else "from {queue:text}"
    events = [
        Event(
            row["opened_ns"],
            own,
            filled(f"{{operation}} begins, {where}", row),
            row["first_frame_no"],
            row["packet_no"],
        ),
        Event(row["last_ts_ns"], own, filled("{operation} is complete, {body_size} bytes", row)),
    ]
    if row["settled_ts_ns"] is not None:
        events.append(Event(row["settled_ts_ns"], peer, filled("{outcome}", row), row["settled_frame_no"]))
    return tuple(sorted(events, key=lambda event: event.ts_ns))
