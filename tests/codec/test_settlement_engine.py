"""The settlement engine: which event settles which message, by hand, against a naive reference, and at size."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from codec.conversation.channel_outcomes import final_messages
from codec.conversation.channel_state import EVENT
from codec.conversation.settlement import Settled, settled_at_once

LOWEST, HIGHEST = -(2**63), 2**63 - 1
COMMITTED, ROLLED_BACK, RESTORED = "committed", "rolled-back", "restored"


class Event(NamedTuple):
    """As the engine takes it; frame n is at 10 n ns."""

    frame_no: int
    opens: bool
    first: int
    last: int | None = None
    outcome: str | None = None
    final: int = True
    transaction: str | None = None
    effective_ts_ns: int | None = None
    map_no: int = 1
    connection_id: int = 1


def opened(frame_no: int, number: int, map_no: int = 1) -> Event:
    return Event(frame_no, True, number, map_no=map_no)


def settles(frame_no: int, first: int, last: int, outcome: str | None = "acked", **more: Any) -> Event:
    return Event(frame_no, False, first, last, outcome, **more)


def noted(frame_no: int, first: int, last: int, outcome: str, **more: Any) -> Event:
    return Event(frame_no, False, first, last, outcome, False, **more)


# A result: frame_no of the message -> (outcome, settled_ts_ns, settled_frame_no, transaction).
Result = dict[tuple[int, int], tuple[str | None, int | None, int | None, str | None]]


OUTCOMES: list[str | None] = [None, "unsettled", "unknown", "presettled", "aborted"]
TRANSACTIONS = (None, COMMITTED, ROLLED_BACK, RESTORED)
SPARES = 2  # `final` of an event that leaves alone what the transaction that goes on has settled
UNTIL, NO_CONNECTIONS = np.array([1 << 62]), np.zeros(0, np.int64)


def records(events: list[Event]) -> np.ndarray:
    """Events as the engine takes them; maps are none of those in which transactions are final."""
    OUTCOMES.extend(sorted({e.outcome for e in events if e.outcome} - set(OUTCOMES)))
    rows = [
        (
            e.connection_id, 4 * e.map_no, e.frame_no, e.opens, e.first, e.last or 0, OUTCOMES.index(e.outcome),
            0 if e.opens else e.final, e.effective_ts_ns or 10 * e.frame_no, TRANSACTIONS.index(e.transaction),
        )
        for e in events
    ]  # fmt: skip
    return np.array(rows, EVENT)


def run(events: list[Event], rows: int = 10_000) -> Result:
    """What the engine reports for `events`, passed in pieces of `rows` in the order of frames."""
    found: Result = {}
    for connection in {e.connection_id for e in events}:
        own = records([e for e in events if e.connection_id == connection])
        own = own[np.argsort(own["frame_no"], kind="stable")]
        carried = own[:0]
        for at in range(0, len(own), rows):
            concluding = final_messages(np.concatenate([carried, own[at : at + rows]]), np.array([connection]), UNTIL)
            carried = concluding.events
            take(found, concluding.settled)
        take(found, final_messages(carried, NO_CONNECTIONS, UNTIL[:0]).settled)
    return found


def take(found: Result, settled: Settled) -> None:
    for row in zip(*settled, strict=True):
        connection, _, frame_no, outcome, settled_ns, settled_frame_no, transaction = map(int, row)
        assert (connection, frame_no) not in found
        when = (settled_ns, settled_frame_no) if settled_frame_no >= 0 else (None, None)
        found[connection, frame_no] = (OUTCOMES[outcome], *when, TRANSACTIONS[transaction])


def of_one(events: list[Event]) -> dict[int, tuple[str | None, int | None, int | None, str | None]]:
    return {frame: result for (_, frame), result in run(events).items()}


def test_an_event_settles_its_id_and_no_other() -> None:
    assert of_one([opened(1, 1), opened(2, 2), opened(3, 3), settles(4, 2, 2, "nacked")]) == {
        2: ("nacked", 40, 4, None)
    }


def test_multiple_settles_all_outstanding_up_to_its_id() -> None:
    events = [opened(n, n) for n in (1, 2, 3, 4)]
    assert of_one([*events, settles(5, 2, 2, "rejected"), settles(6, LOWEST, 3)]) == {
        1: ("acked", 60, 6, None), 2: ("rejected", 50, 5, None), 3: ("acked", 60, 6, None),
    }  # fmt: skip


def test_messages_opened_later_are_not_settled() -> None:
    assert of_one([opened(1, 1), settles(2, LOWEST, HIGHEST), opened(3, 2), opened(4, 1)]) == {
        1: ("acked", 20, 2, None)
    }


def test_ranges_of_one_frame_are_several_events() -> None:
    events = [opened(n, n) for n in range(1, 8)]
    assert sorted(of_one([*events, settles(9, 1, 2), settles(9, 5, 6)])) == [1, 2, 5, 6]


def test_message_and_settlement_in_one_frame() -> None:
    assert of_one([opened(1, 1), settles(1, 1, 1)]) == {1: ("acked", 10, 1, None)}


def test_equal_ids_are_settled_together() -> None:
    assert of_one([opened(1, 1), opened(2, 2), opened(3, 1), settles(4, 1, 1)]) == {
        1: ("acked", 40, 4, None), 3: ("acked", 40, 4, None),
    }  # fmt: skip


def test_falling_ids() -> None:
    events = [opened(n, 10 - n) for n in range(1, 9)]  # ids 9 down to 2
    assert sorted(of_one([*events, settles(9, 3, 5), settles(10, LOWEST, 6)])) == [4, 5, 6, 7, 8]


def test_settlement_takes_effect_when_its_transaction_ends() -> None:
    event = settles(2, 1, 1, transaction=COMMITTED, effective_ts_ns=70)
    assert of_one([opened(1, 1), event]) == {1: ("acked", 70, 2, COMMITTED)}


def test_a_rolled_back_settlement_marks_its_messages_until_another_takes_effect() -> None:
    events = [opened(1, 1), opened(2, 2), settles(3, LOWEST, 2, transaction=ROLLED_BACK), opened(4, 3)]
    assert of_one(events) == {1: (None, None, None, ROLLED_BACK), 2: (None, None, None, ROLLED_BACK)}
    assert of_one([*events, settles(5, 1, 1), settles(6, 2, 2, transaction=COMMITTED)]) == {
        1: ("acked", 50, 5, None), 2: ("acked", 60, 6, COMMITTED),
    }  # fmt: skip


def test_a_noted_outcome_retains_the_mark_unless_it_was_committed() -> None:
    events = [opened(1, 1), settles(2, 1, 1, transaction=ROLLED_BACK), noted(3, 1, 1, "unknown")]
    assert of_one(events) == {1: ("unknown", None, None, ROLLED_BACK)}
    assert of_one([*events, noted(4, 1, 1, "accepted", transaction=COMMITTED)]) == {
        1: ("accepted", None, None, COMMITTED)
    }


def test_a_mark_does_not_change_settled_messages() -> None:
    events = [opened(1, 1), settles(2, 1, 1), settles(3, 1, 1, transaction=ROLLED_BACK)]
    assert of_one(events) == {1: ("acked", 20, 2, None)}


def test_a_noted_outcome_remains_when_the_settlement_has_none() -> None:
    events = [opened(1, 1), opened(2, 2), noted(3, 1, 2, "accepted", transaction=COMMITTED)]
    assert of_one([*events, settles(4, 1, 1, None)]) == {
        1: ("accepted", 40, 4, COMMITTED), 2: ("accepted", None, None, COMMITTED),
    }  # fmt: skip
    assert of_one([*events, settles(4, 1, 1, "released")])[1] == ("released", 40, 4, None)


def test_the_latest_note_counts_but_not_one_before_the_message() -> None:
    events = [opened(1, 1), noted(2, 1, 9, "modified"), opened(3, 5), noted(4, 1, 1, "accepted")]
    assert of_one(events) == {1: ("accepted", None, None, None)}


def test_settlement_without_any_outcome_has_none() -> None:
    assert of_one([opened(1, 1), settles(2, 1, 1, None)]) == {1: (None, 20, 2, None)}


def test_unsettled_maps_and_connections_are_separate() -> None:
    events = [
        opened(1, 1), settles(3, 1, 1), opened(2, 1, map_no=2), opened(4, 2, map_no=2),
        settles(5, LOWEST, HIGHEST, connection_id=2), noted(6, 1, 1, "accepted", connection_id=2),
    ]  # fmt: skip
    assert run(events) == {(1, 1): ("acked", 30, 3, None)}


class Message(NamedTuple):
    event: Event
    outcome: str | None = None
    transaction: str | None = None
    settled_by: Event | None = None
    reported: bool = False
    marked: bool = False


def naive(events: list[Event]) -> Result:
    """The rules read out: every event looks at every message of its map_no."""
    messages: list[Message] = []
    for e in events:
        if e.opens:
            messages.append(Message(e))
            continue
        for at, m in enumerate(messages):
            same = (m.event.connection_id, m.event.map_no) == (e.connection_id, e.map_no)
            assert e.last is not None
            if not same or m.settled_by is not None or not e.first <= m.event.first <= e.last:
                continue
            if e.transaction == ROLLED_BACK:
                messages[at] = m._replace(transaction=ROLLED_BACK, reported=True, marked=True)
            elif not e.final:
                if e.outcome is not None:
                    result = e.transaction or (ROLLED_BACK if m.marked else None)
                    messages[at] = m._replace(outcome=e.outcome, transaction=result, reported=True)
            else:
                # A rollback gives way to any settlement; a noted commit stays where the settlement reports nothing new.
                noted_transaction = (
                    noted_commit(m.event, events, e) if e.outcome is None and e.transaction is None else None
                )
                messages[at] = m._replace(
                    outcome=e.outcome or m.outcome,
                    transaction=e.transaction or noted_transaction,
                    settled_by=e,
                    reported=True,
                )
    return {
        (m.event.connection_id, m.event.frame_no): (
            m.outcome,
            m.settled_by and (m.settled_by.effective_ts_ns or 10 * m.settled_by.frame_no),
            m.settled_by and m.settled_by.frame_no,
            m.transaction,
        )
        for m in messages
        if m.reported
    }


def noted_commit(message: Event, events: list[Event], until: Event) -> str | None:
    """The transaction of the last note on `message` before `until`."""
    between = events[events.index(message) : events.index(until)]
    notes = [
        e
        for e in between
        if not e.opens and not e.final and e.outcome and e.transaction != ROLLED_BACK
        and (e.connection_id, e.map_no) == (message.connection_id, message.map_no)
        and e.first <= message.first <= (e.last or 0)
    ]  # fmt: skip
    return notes[-1].transaction if notes else None


ids = st.integers(1, 25)
ranges = st.one_of(
    st.tuples(ids, ids).map(lambda pair: (min(pair), max(pair))),
    ids.map(lambda last: (LOWEST, last)),
    st.just((LOWEST, HIGHEST)),
)
results = st.sampled_from([None, None, COMMITTED, ROLLED_BACK])
steps = st.one_of(
    st.integers(-6, 3).map(lambda step: ("open", max(step, -3) if step > -3 else 1)),
    st.tuples(ranges, st.sampled_from([None, "acked", "nacked"]), st.booleans(), results),
)


@given(st.lists(st.tuples(st.integers(1, 2), steps), max_size=60), st.integers(1, 7))
def test_engine_agrees_with_the_naive_reference(script: list[Any], rows: int) -> None:
    """Ids mostly rise, now and then they fall or stand; events come in batches of any size."""
    latest = {1: 0, 2: 0}
    events = []
    for frame_no, (map_no, step) in enumerate(script, start=1):
        if step[0] == "open":
            latest[map_no] = max(1, latest[map_no] + step[1])
            events.append(opened(frame_no, latest[map_no], map_no))
        else:
            (first, last), outcome, final, transaction = step
            events.append(Event(frame_no, False, first, last, outcome, final, transaction, map_no=map_no))
    events.sort(key=lambda e: (e.map_no, e.frame_no))
    assert run(events, rows) == naive(events)


def spared_and_held(events: list[Event]) -> Result:
    """The rules of recovers in transactions, and of deliveries whose sender settles them, read out."""
    messages, found, restored = list[list[Any]](), Result(), 0  # event, time of its mark, note
    for now, e in enumerate(events, 1):
        if e.opens:
            messages.append([e, 0, None])
        elif e.transaction == RESTORED:
            restored = now
        elif e.transaction == ROLLED_BACK or not e.final:
            for message in messages:
                if e.first <= message[0].first <= (e.last or 0):
                    message[1 if e.final else 2] = now if e.final else e.outcome
        else:
            for message in [m for m in messages if e.first <= m[0].first <= (e.last or 0)]:
                opening, marked, noted_outcome = message
                spared = e.final == SPARES and marked > restored
                retained = noted_outcome == "presettled" and e.outcome not in ("presettled", "aborted")
                if not (spared or retained):
                    found[1, opening.frame_no] = (e.outcome, 10 * e.frame_no, e.frame_no, e.transaction)
                    messages.remove(message)
    return found


@given(
    st.lists(
        st.one_of(
            st.integers(-6, 3),
            st.tuples(ranges, st.just(ROLLED_BACK)),
            st.tuples(ranges, st.sampled_from(["presettled", "modified"])),
            st.tuples(ranges, st.sampled_from([True, SPARES, "presettled", "aborted"])),
            st.none(),
        ),
        max_size=80,
    )
)
def test_recovers_spare_and_senders_hold_what_the_naive_reference_says(script: list[Any]) -> None:
    latest, events = 0, list[Event]()
    for frame_no, step in enumerate(script, 1):
        if step is None:
            events.append(settles(frame_no, LOWEST, HIGHEST, transaction=RESTORED))
        elif isinstance(step, int):
            latest = max(1, latest + step)
            events.append(opened(frame_no, latest))
        else:
            (first, last), how = step
            if how == ROLLED_BACK:
                events.append(settles(frame_no, first, last, transaction=ROLLED_BACK))
            elif how in (True, SPARES):
                events.append(settles(frame_no, first, last, "requeued", final=how))
            elif how == "aborted" or frame_no % 2:
                events.append(settles(frame_no, first, last, how))
            else:
                events.append(noted(frame_no, first, last, how))
    engine = Result()
    take(engine, settled_at_once(records(events)))
    settled = {message: result for message, result in engine.items() if result[2] is not None}
    assert settled == spared_and_held(events)


def columns_of(frames: int, opens: np.ndarray, **columns: Any) -> dict[str, np.ndarray]:
    n, one = np.arange(1, frames + 1), np.ones(frames, np.int64)
    events = {"connection": one, "map_no": 4 * one, "frame_no": n, "final": one, "transaction": 0 * one, **columns}
    return {**events, "opens": opens.astype(np.int64), "outcome": np.where(opens, 0, 1), "effective_ns": 10 * n}


def took(columns: dict[str, np.ndarray]) -> tuple[float, int]:
    """Seconds, and how many messages have a row."""
    started = time.process_time()
    rows = len(settled_at_once(columns).frame_no)
    return time.process_time() - started, rows


def repeated_multiple(count: int) -> dict[str, np.ndarray]:
    """`count` messages; then `multiple` acknowledgements of ever more of them, one more message each."""
    opens = np.arange(2 * count) < count
    tag = np.where(opens, np.arange(2 * count), np.arange(2 * count) - count)
    return columns_of(2 * count, opens=opens, first=np.where(opens, tag, LOWEST), last=tag)


def repeated_notes(count: int) -> dict[str, np.ndarray]:
    """As many notes on all of them."""
    opens = np.arange(2 * count) < count
    last = np.where(opens, np.arange(2 * count), HIGHEST)
    return {**repeated_multiple(count), "last": last, "final": np.zeros(2 * count, np.int64)}


def falling(count: int) -> dict[str, np.ndarray]:
    """Ids that never rise, and acknowledgements of the lowest."""
    opens = np.arange(2 * count) < count
    tag = np.where(opens, count - np.arange(2 * count), np.arange(2 * count) - count + 1)
    return columns_of(2 * count, opens=opens, first=tag, last=tag)


def zigzag(count: int) -> dict[str, np.ndarray]:
    """Every other id is 1, as of direct replies."""
    opens = np.arange(2 * count) < count
    tag = np.where(np.arange(2 * count) % 2, 1, np.arange(2 * count) + 2)
    return columns_of(2 * count, opens=opens, first=tag, last=tag)


def of_halves(count: int, marks: dict[str, int], events: dict[str, int]) -> dict[str, np.ndarray]:
    """`count` messages; something about all of them; as many events that leave them outstanding; and one that settles
    them."""
    at = np.arange(2 * count)
    opens = at < count
    found = columns_of(2 * count, opens=opens, first=np.where(opens, at, LOWEST), last=np.where(opens, at, HIGHEST))
    for name, value in events.items():
        found[name] = np.where(opens, found[name], value)
    for name, value in marks.items():
        found[name][count] = value
    last = {"transaction": 0, "final": 1, "outcome": OUTCOMES.index("presettled")}
    for name, value in last.items():
        found[name][-1] = value
    return found


def recovers(count: int) -> dict[str, np.ndarray]:
    """As many recovers after an acknowledgement of all in a transaction that is rolled back."""
    return of_halves(count, {"transaction": TRANSACTIONS.index(ROLLED_BACK)}, {"final": SPARES})


def recovers_and_rollbacks(count: int) -> dict[str, np.ndarray]:
    """The same, with acknowledgements and rollbacks between them, so that all are spared anew."""
    found = recovers(count)
    found["transaction"][count + 1 : -1 : 3] = TRANSACTIONS.index(RESTORED)
    found["transaction"][count + 2 : -1 : 3] = TRANSACTIONS.index(ROLLED_BACK)
    return found


def held_by_the_sender(count: int) -> dict[str, np.ndarray]:
    """As many settlements by the receiver of deliveries that their sender has settled while more was to come."""
    return of_halves(count, {"final": 0, "outcome": OUTCOMES.index("presettled")}, {"final": 1})


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="a million events in plain Python")
@pytest.mark.parametrize(
    "make",
    [repeated_multiple, repeated_notes, falling, zigzag, recovers, recovers_and_rollbacks, held_by_the_sender],
)
def test_the_cost_of_a_message_does_not_grow_with_those_outstanding(make: Any) -> None:
    count = 1_000_000
    took(make(1000))

    def seconds_of(messages: int) -> float:
        seconds, rows = took(make(messages))
        assert rows == (messages // 2 if make is zigzag else messages)
        return seconds

    assert_linear(seconds_of, (count // 8, count), spread=3)
