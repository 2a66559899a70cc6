"""Table oddities: each oddity on a case made for it, and not on the nearest correct one; nothing is odd that bytes
which were not captured may explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import decoding
import golden
import pytest
from encode_0_10 import one_frame
from encode_1_0 import END
from link_connections import CHANNEL, attach, begin, detach, end, flow, receiver_link, say, sender_link, transfer
from rule_cases import cases_of
from rule_connections import done_0_10, opened_0_10, opened_1_0, send_0_10, session_0_10
from rule_support import Case, Connection, Key, write_cases

from codec.conversation import oddities
from codec.conversation.oddities import FRAME, NAMES, NEEDS_OF
from pipeline.audit.detectors import DETECTORS
from pipeline.tables.decoding import config
from udfs.conversation.roles import SESSION_VERSIONS
from udfs.tables import tables_of

OTHERS = ("FL-03", "FL-04", "PR-06")  # of all versions
CASES = [
    *cases_of("l10", "t10"),
    *(case for case in cases_of("fl", "practice") if case.rule in OTHERS and case.version in SESSION_VERSIONS),
]
# Rule -> oddities that break it.
OF_RULE = {
    rule: {name for name in NAMES for detector in found if f"'{name}'" in detector.when}
    for rule in {case.rule for case in CASES}
    if (found := [each for each in DETECTORS if each.rule == rule and each.context == "sequences"])
}
Odd = dict[Key, set[str]]
Step = tuple[str, str, dict[str, Any]]  # who sends which control or command of 0-10, with which arguments


def noticed(path: Path) -> list[dict[str, Any]]:
    """The oddities in a capture."""
    runs = iter(decoding.in_flow_order(decoding.runs([path])).to_batches())
    return [row for part in tables_of(runs, config()) if part.table == "oddities" for row in part.rows.to_pylist()]


def odd_in(path: Path, connection: Connection) -> list[dict[str, Any]]:
    """The oddities of a connection; `path`: where it is written."""
    write_cases(path, [Case("", connection.version, connection, [])])
    return noticed(path)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """Oddities of each half of each case."""
    path = tmp_path_factory.mktemp("cases") / "cases.pcap"
    owner = write_cases(path, CASES)
    runs = decoding.in_flow_order(decoding.runs([path]))
    found: Odd = {}
    rows: dict[str, list[dict[str, Any]]] = {"connections": [], "oddities": []}
    for part in tables_of(iter(runs.to_batches()), config()):
        if part.table in rows:
            rows[part.table] += part.rows.to_pylist()
    of = {row["connection_id"]: owner[row["client_port"]] for row in rows["connections"]}
    for row in rows["oddities"]:
        found.setdefault(of[row["connection_id"]], set()).add(row["name"])
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.rule for case in CASES])
def test_an_oddity_is_found_in_its_case_and_in_no_correct_one(odd: Odd, number: int) -> None:
    case: Case = CASES[number]
    if case.rule in OF_RULE:
        assert odd.get((number, "breaks"), set()) & OF_RULE[case.rule]
        # Late answers are noted from a second on; which are too late is for the rule to say.
        late = {name for name in OF_RULE[case.rule] if name.endswith("unanswered") or name == "window-closed"}
        assert not odd.get((number, "conforms"), set()) & (OF_RULE[case.rule] - late)


def again(connection: Connection, channel: int, name: bytes, next_of: tuple[int, int], *steps: Step) -> Connection:
    """`name` is attached, where the next commands of the sides have these numbers, and detached after `steps`."""
    point = [("session.command-point", {"command-id": number, "command-offset": 0}) for number in next_of]
    begins: list[Step] = [("client", "session.attach", {"name": name}), ("server", "session.attached", {"name": name})]
    begins += [(side, *each) for side, each in zip(("client", "server"), point, strict=False)]
    ends: list[Step] = [
        ("client", "session.detach", {"name": name}), ("server", "session.detached", {"name": name, "code": 0})
    ]  # fmt: skip
    for sender, control, fields in (*begins, *steps, *ends):
        connection.data(sender, one_frame(control, fields, channel))
    return connection


def test_a_session_that_continues_on_another_channel_is_no_anomaly(tmp_path: Path) -> None:
    connection = opened_0_10(Connection("0-10"))
    subscribe = {"queue": "q", "destination": "d", "accept-mode": 0}
    done: list[Step] = [("server", "session.completed", {"commands": [(0, number)]}) for number in (1, 2, 4)]
    again(connection, 1, b"s", (0, 0), ("server", "session.timeout", {"timeout": 9}), ("client", "tx.select", {}),
          ("client", "message.subscribe", subscribe), done[0])  # fmt: skip
    again(connection, 2, b"s", (2, 0), ("client", "message.flow", {"destination": "d", "unit": 0, "value": 1}), done[1])
    again(connection, 1, b"t", (0, 0))
    again(
        connection,
        1,
        b"s",
        (3, 0),
        ("client", "message.cancel", {"destination": "d"}),
        ("client", "tx.commit", {}),
        done[2],
    )
    again(connection, 2, b"u", (0, 0), ("client", "tx.commit", {}))
    (row,) = odd_in(tmp_path / "a.pcap", connection)
    # It has no tx.select, and is the first session that began on channel 2.
    assert (row["name"], row["channel"], row["channel_incarnation"]) == ("transaction-order", 2, 1)


def test_a_channel_may_be_attached_again_before_its_detach_is_answered(tmp_path: Path) -> None:
    """Controls are done in order: a session is detached when the next attach arrives. Until the server answers, it goes
    on with the session before. The last attach is to another channel."""
    connection = opened_0_10(Connection("0-10"))
    attaches: tuple[tuple[int, bytes], ...] = ((1, b"s"), (1, b"t"), (2, b"t"))
    for number, (channel, name) in enumerate(attaches):
        if number:
            before, left = attaches[number - 1]
            connection.client_bytes(one_frame("session.command-point", {"command-id": 0, "command-offset": 0}, before))
            connection.client_bytes(one_frame("execution.sync", {}, before))
            connection.client_bytes(one_frame("session.detach", {"name": left}, before))
        connection.client_bytes(one_frame("session.attach", {"name": name}, channel))
        if number:
            connection.server_bytes(one_frame("session.completed", {"commands": [(0, 0)]}, before))
            connection.server_bytes(one_frame("session.detached", {"name": left, "code": 0}, before))
        connection.server_bytes(one_frame("session.attached", {"name": name}, channel))
    assert odd_in(tmp_path / "a.pcap", connection) == []


def test_begins_of_one_number_are_answered_in_order(tmp_path: Path) -> None:
    """Transport 2.5.5: a side that has sent an end may begin the channel again. The server answers with 4, 5 and 6."""
    connection = opened_1_0(Connection("1.0"))
    for _ in range(2):
        end(begin(connection, "client"), "client")
    begin(connection, "client")
    for channel in (4, 5, 6):
        begin(connection, "server", CHANNEL, channel)
        if channel < 6:
            say(connection, "server", END, channel=channel)
    assert odd_in(tmp_path / "a.pcap", connection) == []


def test_a_flow_that_names_no_transfer_number_lacks_the_next_one(tmp_path: Path) -> None:
    """Transport 2.7.4: next-incoming-id must be set once the other begin has arrived. Transfers 0 and 1 have."""
    connection = receiver_link()
    for number in (0, 1):
        transfer(connection, "server", 1, number, settled=True)
    flow(connection.wait(1), "client", None, next_incoming_id=None)
    (row,) = odd_in(tmp_path / "a.pcap", connection)
    assert (row["name"], row["observed"], row["expected"]) == ("next-incoming-id", None, 2)


@pytest.mark.parametrize("name", ["010_mid_stream.pcap", "10_mid_stream.pcap"])
def test_in_the_middle_of_a_connection_is_odd_what_a_frame_shows_by_itself(name: str) -> None:
    """Sessions, links and credit come from before the capture."""
    assert {NEEDS_OF[row["name"]] for row in noticed(golden.CAPTURES / name)} <= {FRAME}


def test_what_was_lost_may_be_what_is_lacking(tmp_path: Path) -> None:
    """A transfer has no credit, unless bytes are missing that may have granted some."""
    found = []
    for lost in (0, 40):
        connection = receiver_link(credit=0)
        if lost:
            connection.lose("client", lost)
        transfer(connection, "server", 1, 0, settled=True)
        found.append([row["name"] for row in odd_in(tmp_path / f"{lost}.pcap", connection)])
    assert found == [["no-credit"], []]


@pytest.mark.parametrize("again", [False, True])
def test_a_tag_is_in_use_until_its_link_is_attached_again(tmp_path: Path, again: bool) -> None:
    """Transport 2.6.12 and 2.6.13: an attach without a map of unsettled deliveries begins without any."""
    connection = sender_link()
    transfer(connection, "client", 0, 0, b"tag")
    if again:
        detach(detach(connection, "client", 0), "server", 0)
        for side in ("client", "server"):
            attach(connection, side, "s", 0, side == "server")
        flow(connection, "server", 0, 10)
    transfer(connection, "client", 0, 1, b"tag")
    found = [row["name"] for row in odd_in(tmp_path / "a.pcap", connection)]
    assert found.count("tag-in-use") == (0 if again else 1)


def test_a_result_is_unknown_unless_a_command_waits_for_it(tmp_path: Path) -> None:
    """Many commands wait; each result comes, and that of the last one comes again."""
    connection, count = session_0_10(), 40
    for _ in range(count):
        send_0_10(connection, "client", "queue.query", queue="q")
    result = ("queue.queue-query-result", {"queue": "q"})
    for number in (*range(count), count - 1):
        send_0_10(connection, "server", "execution.result", command_id=number, value=result)
    done_0_10(connection, count - 1)
    rows = [row for row in odd_in(tmp_path / "a.pcap", connection) if row["name"] == "result-unknown"]
    assert [row["observed"] for row in rows] == [count - 1]


def test_every_oddity_is_a_rule() -> None:
    assert set().union(*OF_RULE.values()) == set(NAMES)


def test_oddities_are_numbered_by_their_names() -> None:
    assert [getattr(oddities, name.upper().replace("-", "_")) for name in NAMES] == [*range(len(NAMES))]
