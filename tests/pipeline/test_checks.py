"""The sequence of frames of 0-10 and 1.0 in-process, without Spark: each oddity on a case made for it, and not on the
nearest correct one; the same oddities however the rows are cut into batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import decoding
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from encode_0_10 import one_frame
from encode_1_0 import END
from link_connections import CHANNEL, begin, end, flow, receiver_link, say, transfer
from pyspark.sql.variant_utils import VariantUtils
from rule_cases import cases_of
from rule_connections import opened_0_10, opened_1_0
from rule_support import Case, Connection, Key, write_cases
from test_carried_size import transaction, with_coordinator

from codec.checks import v1_0
from codec.checks.state import NEW_END, NEW_ENDPOINT, ODDITIES, new_state, with_room
from pipeline.audit.detectors import DETECTORS
from udfs.conversation.checks import METHOD_COLUMNS, odd_rows, rows_1_0
from udfs.conversation.roles import METHOD_FRAMES, SESSION_VERSIONS

OTHERS = ("FL-03", "FL-04", "PR-06")  # of all versions
CASES = [
    *cases_of("l10", "t10"),
    *(case for case in cases_of("fl", "practice") if case.rule in OTHERS and case.version in SESSION_VERSIONS),
]
# Rule -> oddities that break it.
OF_RULE = {
    rule: {name for name in ODDITIES for detector in found if f"'{name}'" in detector.when}
    for rule in {case.rule for case in CASES}
    if (found := [each for each in DETECTORS if each.rule == rule and each.context == "sequences"])
}
GRACE_NS = 10**6
CHANNELS = 100  # channel-max of the cases of 0-10
Odd = dict[Key, set[str]]
Step = tuple[str, str, dict[str, Any]]  # who sends which control or command of 0-10, with which arguments


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, dict[int, Key]]:
    """Rows of methods of all cases; connection -> case and half."""
    return methods_of(tmp_path_factory.mktemp("cases") / "cases.pcap", CASES)


def methods_of(path: Path, cases: list[Case]) -> tuple[pa.Table, dict[int, Key]]:
    owner = write_cases(path, cases)
    decoded = decoding.decode_table(decoding.in_flow_order(decoding.runs([path])))
    of_connections = decoded.filter(pc.equal(decoded["kind"], "connection")).select(["connection_id", "facts"])
    facts = {row["connection_id"]: row["facts"] for row in of_connections.to_pylist()}
    frames = decoded.filter(pc.equal(decoded["kind"], "frame"))
    for name in ("version", "name", "sender", "status", "error", "frame_type"):
        frames = frames.set_column(frames.schema.get_field_index(name), name, frames[name].cast(pa.string()))
    frames = frames.filter(pc.is_in(frames["frame_type"], pa.array(METHOD_FRAMES)))
    frames = frames.filter(pc.is_in(frames["version"], pa.array(SESSION_VERSIONS)))
    frames = frames.sort_by([("connection_id", "ascending"), ("frame_no", "ascending")])
    asked = [operation(row) for row in frames.select(["name", "properties"]).to_pylist()]
    of_rows = frames["connection_id"].to_pylist()
    columns = {
        "grace_ns": pa.repeat(pa.scalar(GRACE_NS), frames.num_rows),
        "last_ns": pa.array([facts[number]["closed_ts_ns"] for number in of_rows]),
        "agreed_channel_max": pa.repeat(pa.scalar(CHANNELS), frames.num_rows),
        "transaction_command": pa.array([command for command, _ in asked], pa.string()),
        "discharged": pa.array([txn_id for _, txn_id in asked], pa.binary()),
    }
    for name, column in columns.items():
        frames = frames.append_column(name, column)
    return frames.select(METHOD_COLUMNS), {number: owner[fact["client_port"]] for number, fact in facts.items()}


def operation(row: dict[str, Any]) -> tuple[str | None, bytes | None]:
    """What a transfer asks of a transaction coordinator, and of which transaction."""
    value = row["properties"]
    arguments: Any = (
        VariantUtils.to_python(value["value"], value["metadata"]) if value and row["name"] == "transfer" else {}
    )
    body = arguments.get("body")
    if not isinstance(body, dict) or body.get("type") not in ("declare", "discharge"):
        return None, None
    return body["type"], body.get("txn_id") if body["type"] == "discharge" else None


def noticed(rows: pa.Table, size: int) -> list[dict[str, Any]]:
    """What is odd about `rows`, given in batches of `size`."""
    batches = rows.combine_chunks().to_batches(max_chunksize=size)
    return [row for batch in odd_rows(iter(batches)) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def odd(written: tuple[pa.Table, dict[int, Key]]) -> Odd:
    """Oddities of each half of each case."""
    rows, owner = written
    found: Odd = {}
    for row in noticed(rows, rows.num_rows):
        found.setdefault(owner[row["connection_id"]], set()).add(row["oddity"])
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.rule for case in CASES])
def test_an_anomaly_is_found_in_its_case_and_in_no_correct_one(odd: Odd, number: int) -> None:
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
    rows, _ = methods_of(tmp_path / "a.pcap", [Case("", "0-10", connection, [])])
    (row,) = noticed(rows, rows.num_rows)
    # It has no tx.select, and is the first session that began on channel 2.
    assert (row["oddity"], row["channel"], row["channel_incarnation"]) == ("transaction-order", 2, 1)


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
    rows, _ = methods_of(tmp_path / "a.pcap", [Case("", "0-10", connection, [])])
    assert noticed(rows, rows.num_rows) == []


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
    rows, _ = methods_of(tmp_path / "a.pcap", [Case("", "1.0", connection, [])])
    assert noticed(rows, rows.num_rows) == []


def test_a_flow_that_names_no_transfer_number_lacks_the_next_one(tmp_path: Path) -> None:
    """Transport 2.7.4: next-incoming-id must be set once the other begin has arrived. Transfers 0 and 1 have."""
    connection = receiver_link()
    for number in (0, 1):
        transfer(connection, "server", 1, number, settled=True)
    flow(connection.wait(1), "client", None, next_incoming_id=None)
    rows, _ = methods_of(tmp_path / "a.pcap", [Case("", "1.0", connection, [])])
    (row,) = noticed(rows, rows.num_rows)
    assert (row["oddity"], row["observed"], row["expected"]) == ("next-incoming-id", None, 2)


def test_every_oddity_is_a_rule() -> None:
    assert set().union(*OF_RULE.values()) == set(ODDITIES)


@pytest.mark.parametrize("size", [40, 97])
def test_batches_change_nothing(written: tuple[pa.Table, dict[int, Key]], size: int) -> None:
    rows, _ = written

    def in_order(size: int) -> list[str]:
        return sorted(map(repr, noticed(rows, size)))

    assert in_order(size) == in_order(rows.num_rows)


def test_settled_and_discharged_state_is_dropped(tmp_path: Path) -> None:
    connection = with_coordinator()
    for number in range(20):
        transaction(connection, number)
    rows, _ = methods_of(tmp_path / "a.pcap", [Case("", "1.0", connection, [])])
    state, used = new_state(NEW_ENDPOINT, NEW_END), []
    for batch in rows.combine_chunks().to_batches(max_chunksize=rows.num_rows // 2):
        state = with_room(state, batch.num_rows, v1_0.KEYS_A_ROW)
        v1_0.follow(state, rows_1_0(batch))
        state = with_room(state, len(state.found_by.keys), v1_0.KEYS_A_ROW)  # more than the table has room for
        used.append(int(state.found_by.used[0]))
    assert used[1] - used[0] < 10, used
