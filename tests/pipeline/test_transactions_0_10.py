"""How transactions of 0-10 end where command ids are not known, and where a branch outlives its session.

Expected values follow from the bytes: who has asked for a completion, which completion came, who has ended a branch
(0-10 specification, classes session, tx and dtx).
"""

from __future__ import annotations

from typing import Any

import pytest
from encode_0_10 import one_frame
from local_rows import LocalTables
from test_tables_0_10 import control, opened, point, subscribed, transfer
from wire import CLIENT, SERVER, Wire, give_up

COMMIT, ROLLBACK = "tx.commit", "tx.rollback"


def waited(name: str, /, **fields: Any) -> bytes:
    """A command whose sender waits: it asks for the completion."""
    return one_frame(name, {key.replace("_", "-"): item for key, item in fields.items()}, 1, sync=True)


def completed(last: int) -> bytes:
    return control("session.completed", commands=[(0, last)])


def branch(name: bytes) -> dict[str, Any]:
    return {"xid": {"format": 0, "global-id": name, "branch-id": b""}}


def result(command_id: int, status: int = 0) -> bytes:
    answer = ("dtx.xa-result", {"status": status})
    return control("execution.result", command_id=command_id, value=answer)


def ended(wire: Wire, name: bytes = b"s") -> Wire:
    """The session is detached."""
    wire.add(CLIENT, control("session.detach", name=name))
    wire.add(SERVER, control("session.detached", name=name, code=0))
    return wire


def mid_stream() -> Wire:
    """A session of transactions whose begin was not captured; the server has completed the commands up to 9 and 11."""
    wire = Wire(syn=False)
    wire.add(CLIENT, transfer("amq.direct"))
    wire.add(CLIENT, waited(COMMIT))
    wire.add(SERVER, completed(9))
    wire.add(CLIENT, transfer("amq.direct"))
    wire.add(CLIENT, waited(COMMIT))
    wire.add(SERVER, completed(11))
    return wire


def with_a_hole() -> Wire:
    """A session of transactions; bytes of the client are missing before its second one."""
    wire = opened()
    wire.add(CLIENT, waited("tx.select"))
    wire.add(SERVER, completed(0))
    wire.add(CLIENT, transfer("amq.direct") + waited(COMMIT))
    wire.add(SERVER, completed(2))
    wire.lose(CLIENT, len(waited("execution.sync")))
    wire.add(SERVER, completed(3))
    wire.add(CLIENT, control("message.subscribe", queue="q", destination="d"))
    give_up(wire, CLIENT)
    wire.add(CLIENT, waited(COMMIT))
    wire.add(SERVER, completed(5) + transfer("d"))
    return wire


def scripts() -> dict[str, Wire]:
    wires = {}
    for script, begun in (("mid-stream", mid_stream), ("hole", with_a_hole)):
        work = transfer("amq.direct") + control("message.accept", transfers=[(0, 0)])
        for end in (COMMIT, ROLLBACK):
            wire = wires[f"{script}, {end}, waits"] = begun()
            wire.add(CLIENT, work)
            wire.add(CLIENT, waited(end))
            wire.add(SERVER, completed(20))
            ended(wire)
            wire = wires[f"{script}, {end}, execution.sync"] = begun()
            wire.add(CLIENT, work + control(end))
            wire.add(CLIENT, waited("execution.sync"))
            wire.add(SERVER, completed(20))
            ended(wire)
        wire = wires[f"{script}, does not wait"] = begun()
        wire.add(CLIENT, work + control(COMMIT))
        wire.add(SERVER, completed(20))
        ended(wire)
        wire = wires[f"{script}, another completion comes first"] = begun()
        wire.add(CLIENT, work + control("session.flush", completed=True) + waited(COMMIT))
        wire.add(SERVER, completed(18))
        wire.add(SERVER, control("execution.exception", error_code=501, command_id=20))
        ended(wire)
        wire = wires[f"{script}, goes on"] = begun()
        wire.add(CLIENT, work + waited(COMMIT) + transfer("amq.direct"))
        wire.add(SERVER, completed(20))
        ended(wire)
        wire = wires[f"{script}, nothing new is completed"] = begun()
        wire.add(CLIENT, work + waited(COMMIT))
        wire.add(SERVER, completed(5))
        ended(wire)
        wire = wires[f"{script}, refused"] = begun()
        wire.add(CLIENT, work + waited(COMMIT))
        wire.add(SERVER, control("execution.exception", error_code=501, command_id=20))
        ended(wire)
        wire = wires[f"{script}, no answer"] = begun()
        wire.add(CLIENT, work + waited(COMMIT))
        ended(wire)

    # Of a branch: one message is delivered and accepted in it, one is published.
    def in_branch() -> Wire:
        wire = subscribed(opened(), "q")
        wire.add(SERVER, transfer("d"))
        wire.add(CLIENT, control("dtx.select") + control("dtx.start", **branch(b"g")))
        wire.add(CLIENT, transfer("amq.direct") + control("message.accept", transfers=[(0, 0)]))
        wire.add(SERVER, completed(4))
        return wire

    for script, commands in {
        "is suspended": [control("dtx.end", **branch(b"g"), suspend=True)],
        "is left": [control("dtx.end", **branch(b"g"))],
        "is prepared": [control("dtx.end", **branch(b"g")), control("dtx.prepare", **branch(b"g"))],
        "is active when its session is detached": [],
    }.items():
        wire = wires[f"branch {script}"] = in_branch()
        for number, command in enumerate(commands, 5):
            wire.add(CLIENT, command)
            wire.add(SERVER, result(number) + completed(number))
        ended(wire)
    wire = wires["branch is active when its connection is closed"] = in_branch()
    wire.add(CLIENT, one_frame("connection.close", {"reply-code": 200}, 0))
    wires["branch is active"] = in_branch()
    for end in ("dtx.commit", "dtx.rollback"):
        wire = wires[f"branch, {end} is not answered"] = in_branch()
        wire.add(CLIENT, control("dtx.end", **branch(b"g")) + control(end, **branch(b"g")))
        ended(wire)
        wire = wires[f"branch, {end} fails"] = in_branch()
        wire.add(CLIENT, control("dtx.end", **branch(b"g")) + control(end, **branch(b"g")))
        wire.add(SERVER, result(5) + control("execution.exception", error_code=542, command_id=6))
        ended(wire)
        wire = wires[f"branch, {end} fails, another session commits"] = in_branch()
        wire.add(CLIENT, control("dtx.end", **branch(b"g")) + control(end, **branch(b"g")))
        wire.add(SERVER, result(5) + control("execution.exception", error_code=542, command_id=6))
        ended(wire)
        wire.add(CLIENT, control("session.attach", name=b"t") + point(0))
        wire.add(SERVER, control("session.attached", name=b"t") + point(0))
        wire.add(CLIENT, control("dtx.select") + control("dtx.commit", **branch(b"g")))
        wire.add(SERVER, result(1) + completed(1))
    return wires


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("transactions") / "wires.pcap", scripts())


def last_publish(written: LocalTables, script: str) -> str | None:
    """How the transaction of the publish in question ended."""
    rows = written.rows("messages", script, "operation", "transaction")
    published: list[str | None] = [transaction for operation, transaction in rows if operation == "publish"]
    return published[1 if script.startswith("hole") else 2]


BEGINNINGS = pytest.mark.parametrize("begun", ["mid-stream", "hole"])


@BEGINNINGS
@pytest.mark.parametrize("asked", ["waits", "execution.sync"])
@pytest.mark.parametrize(("end", "how"), [(COMMIT, "committed"), (ROLLBACK, "rolled-back")])
def test_the_first_completion_after_a_commit_without_id_that_waits_ends_its_transaction(
    written: LocalTables, begun: str, asked: str, end: str, how: str
) -> None:
    assert last_publish(written, f"{begun}, {end}, {asked}") == how


@pytest.mark.parametrize("asked", ["waits", "execution.sync"])
@pytest.mark.parametrize(
    ("end", "accepted"), [(COMMIT, ("acked", "committed")), (ROLLBACK, ("unsettled", "rolled-back"))]
)
def test_accepts_of_such_a_transaction_take_effect(
    written: LocalTables, asked: str, end: str, accepted: tuple[str, str]
) -> None:
    """In the connection with a hole the server's ids are known: transfer 0 is delivered, and accepted."""
    rows = written.rows("messages", f"hole, {end}, {asked}", "operation", "outcome", "transaction")
    assert [row[1:] for row in rows if row[0] == "deliver"] == [accepted]


@BEGINNINGS
@pytest.mark.parametrize(
    "script",
    [
        "does not wait", "another completion comes first", "goes on", "nothing new is completed", "refused",
        "no answer",
    ],
)  # fmt: skip
def test_a_transaction_whose_commit_without_id_has_no_certain_answer_is_unknown(
    written: LocalTables, begun: str, script: str
) -> None:
    """Never rolled back with its session, which it did not outlive."""
    assert last_publish(written, f"{begun}, {script}") is None


def test_the_transaction_before_is_committed(written: LocalTables) -> None:
    rows = written.rows("messages", f"mid-stream, {ROLLBACK}, waits", "transaction")
    assert rows[:2] == [(None,), ("committed",)]  # that the first one was in a transaction, no captured byte tells


@pytest.mark.parametrize(
    "script",
    [
        "is suspended", "is left", "is prepared", "is active when its session is detached",
        "is active when its connection is closed", "dtx.commit is not answered", "dtx.rollback is not answered",
        "dtx.commit fails", "dtx.rollback fails",
    ],
)  # fmt: skip
def test_a_branch_outlives_its_session_so_that_its_outcome_is_unknown(written: LocalTables, script: str) -> None:
    script = f"branch {script}" if script.startswith("is") else f"branch, {script}"
    rows = written.rows("messages", script, "operation", "outcome", "transaction")
    assert rows == [("deliver", "unknown", None), ("publish", "unknown", None)]


def test_what_is_in_an_active_branch_is_unsettled(written: LocalTables) -> None:
    """No other session may end it before dtx.end."""
    rows = written.rows("messages", "branch is active", "operation", "outcome", "transaction")
    assert rows == [("deliver", "unsettled", None), ("publish", "unsettled", None)]


@pytest.mark.parametrize("end", ["dtx.commit", "dtx.rollback"])
def test_a_later_session_ends_a_branch_whose_end_failed(written: LocalTables, end: str) -> None:
    script = f"branch, {end} fails, another session commits"
    rows = written.rows("messages", script, "operation", "outcome", "transaction")
    assert rows == [("deliver", "acked", "committed"), ("publish", "confirmed", "committed")]


def test_in_pieces_they_end_alike(written: LocalTables) -> None:
    written.check_pieces()
