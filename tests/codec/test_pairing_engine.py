"""The pairing engine against the same rules spelled out message by message, in plain Python over lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.pairing.engine import (
    ANY,
    ANY_QUEUE,
    CLASSIC,
    COMMON,
    DELIVERY,
    LABEL,
    NONE,
    PERHAPS_ANY_QUEUE,
    PUBLISH,
    TO_ADDRESS,
    TO_EXCHANGE,
    TO_QUEUE,
    V1_0_FAMILY,
    Rows,
    pairs_of,
)
from codec.variant.entries import NAME, VALUE, WHOLE

QUEUE_ROUTES = {11: 101, 12: 102}  # number of a queue -> that of its name on the default exchange


@dataclass(frozen=True)
class Message:
    side: int
    at: int
    key: int = 1
    source: int = 0
    route: int = 0
    kind: int = TO_QUEUE
    digest: int = 0
    family: int = CLASSIC
    again: bool = False
    back: int = -1
    unmarked: bool = False
    lasts: int = 0
    surely: bool = True
    label: int = 0
    common: int = 0
    refused: bool = False
    origin: int = 0
    shared: tuple[tuple[int, int], ...] = ()

    @property
    def order(self) -> tuple[int, ...]:
        return (self.key, self.side, self.source, self.at)


def rows(messages: list[Message]) -> Rows:
    def column(values: list[int]) -> np.ndarray:
        array = np.array(values, np.int64)
        array.flags.writeable = False
        return array

    return Rows(
        key=column([m.key for m in messages]),
        side=column([m.side for m in messages]),
        source=column([m.source for m in messages]),
        route=column([m.route for m in messages]),
        queue_route=column([QUEUE_ROUTES.get(m.source, 0) for m in messages]),
        kind=column([m.kind for m in messages]),
        digest=column([m.digest for m in messages]),
        family=column([m.family for m in messages]),
        first_ns=column([m.at for m in messages]),
        last_ns=column([m.at + m.lasts for m in messages]),
        redelivered=column([m.again for m in messages]),
        requeued_ns=column([m.back for m in messages]),
        requeue_seen=column([m.surely for m in messages]),
        flag_optional=column([m.unmarked for m in messages]),
        label=column([m.label for m in messages]),
        common=column([m.common for m in messages]),
        refused=column([m.refused for m in messages]),
        origin_route=column([m.origin for m in messages]),
        shared=column([name << NAME | value << VALUE | WHOLE for m in messages for name, value in m.shared]),
        shared_at=column([*accumulate((len(m.shared) for m in messages), initial=0)][:-1]),
        shared_end=column([*accumulate(len(m.shared) for m in messages)]),
    )


def fits(publish: Message, delivery: Message) -> bool:
    of_delivery = dict(delivery.shared)
    if publish.refused > delivery.refused or any(of_delivery.get(n, value) != value for n, value in publish.shared):
        return False
    if (publish.family == V1_0_FAMILY) != (delivery.family == V1_0_FAMILY):
        return True
    return 0 in (publish.digest, delivery.digest) or publish.digest == delivery.digest


def reachable(publishes: list[tuple[int, Message]], first: Message) -> tuple[list[tuple[int, Message]], bool]:
    """The publishes that can have come to the queue of `first`, and whether they fit loosely only."""
    route = first.route or QUEUE_ROUTES.get(first.source, 0)
    exact = [(i, p) for i, p in publishes if p.route == route]
    if exact:
        return exact, False
    if first.origin in (ANY_QUEUE, PERHAPS_ANY_QUEUE):
        return [(i, p) for i, p in publishes if p.kind == TO_QUEUE], first.origin == PERHAPS_ANY_QUEUE
    of_origin = [(i, p) for i, p in publishes if first.origin and p.route == first.origin]
    if of_origin:
        return of_origin, False
    named = [(i, p) for i, p in publishes if p.kind == TO_EXCHANGE]
    if first.route == 0 and named:
        return named, False
    return [(i, p) for i, p in publishes if p.kind == TO_ADDRESS], True


def label_of(publishes: list[tuple[int, Message]], delivery: Message) -> int:
    """The label that distinguishes a delivery from others of its queue; 0: none."""
    if delivery.label and any(p.label == delivery.label for _, p in publishes):
        return delivery.label
    return delivery.common if delivery.common and any(p.common == delivery.common for _, p in publishes) else 0


def expected(messages: list[Message]) -> list[tuple[int, ...]]:
    """(first, publish, last, redeliveries, ambiguous) of each message, as `Pairs` has them."""
    found = [[NONE, NONE, NONE, 0, 0] for _ in messages]
    numbered = list(enumerate(messages))
    for key, source in sorted({(m.key, m.source) for m in messages if m.side == DELIVERY}):
        queue = [(i, m) for i, m in numbered if (m.side, m.key, m.source) == (DELIVERY, key, source)]
        publishes, loosely = reachable([(i, m) for i, m in numbered if (m.side, m.key) == (PUBLISH, key)], queue[0][1])
        labels = {label_of(publishes, m) for _, m in queue}
        claimed = labels - {0} if len(labels) > 1 else set()
        used: set[int] = set()
        for label in sorted(labels, key=lambda label: (label == 0, label in COMMONS, label)):
            if label == 0:
                own = [(i, p) for i, p in publishes if not {p.label, p.common} & claimed]
            elif label in COMMONS:
                own = [(i, p) for i, p in publishes if p.common == label and p.label not in claimed]
            else:
                own = [(i, p) for i, p in publishes if p.label == label]
            run = [(i, m) for i, m in queue if label_of(publishes, m) == label]
            paired(found, messages, run, own, used, loosely)
    return [tuple(row) for row in found]


def paired(
    found: list[list[int]], messages: list[Message], run: list[tuple[int, Message]], own: list[tuple[int, Message]],
    used: set[int], loosely: bool,
) -> None:  # fmt: skip
    """Deliveries that go by the same label, and the publishes that theirs may be among."""
    strangers = False
    waiting: list[tuple[int, int]] = []
    ready: list[tuple[bool, int, int]] = []
    turns = 0
    for i, m in run:
        now = m.at + m.lasts
        for since, first in sorted(entry for entry in waiting if entry[0] <= now):
            surely = messages[found[first][2]].surely
            turns += not surely
            ready.append((not surely, first if surely else turns, first))
            waiting.remove((since, first))
        ready.sort()
        first = i
        if ready and (m.again or (m.family != CLASSIC and messages[ready[0][2]].unmarked)):
            first = ready.pop(0)[2]
            found[first][3] += 1
        else:
            fitting = [n for n, p in own if n not in used and fits(p, m) and p.at <= now]
            if fitting:
                used.add(fitting[0])
                found[i][1] = fitting[0]
                found[i][4] = int(loosely or sum(fits(p, m) for _, p in own) > 1)
            else:
                strangers = True
        found[i][0] = first
        found[first][2] = i
        if m.back >= 0:
            waiting.append((m.back, first))
    if strangers:
        for i, _ in run:
            found[i][4] = 1


LABELS, COMMONS = (0, 1, 2, 3), (0, 11, 12)
shared = st.dictionaries(st.integers(1, 3), st.integers(0, 1), max_size=2).map(lambda each: tuple(sorted(each.items())))
publishes = st.builds(
    Message,
    side=st.just(PUBLISH),
    at=st.integers(0, 30),
    key=st.integers(1, 2),
    route=st.sampled_from([101, 102, 103]),
    kind=st.sampled_from([TO_QUEUE, TO_EXCHANGE, TO_ADDRESS]),
    digest=st.integers(0, 2),
    family=st.sampled_from([CLASSIC, V1_0_FAMILY]),
    label=st.sampled_from(LABELS),
    common=st.sampled_from(COMMONS),
    refused=st.sampled_from([False, False, True]),
    shared=shared,
)
deliveries = st.builds(
    Message,
    side=st.just(DELIVERY),
    at=st.integers(0, 30),
    key=st.integers(1, 2),
    source=st.sampled_from([11, 12]),
    digest=st.integers(0, 2),
    family=st.sampled_from([CLASSIC, V1_0_FAMILY]),
    label=st.sampled_from(LABELS),
    common=st.sampled_from(COMMONS),
    again=st.booleans(),
    back=st.integers(-1, 30),
    unmarked=st.booleans(),
    surely=st.booleans(),
    lasts=st.integers(0, 3),
    refused=st.sampled_from([False, False, True]),
    shared=shared,
)


def routed(messages: list[Message], routes: tuple[int, int], origins: tuple[int, int]) -> list[Message]:
    """A queue's deliveries all have the same route and origin, or none has one (its number is made of both)."""
    by_source = dict(zip(QUEUE_ROUTES, routes, strict=True))
    origin = dict(zip(QUEUE_ROUTES, origins, strict=True))
    messages = [
        replace(m, route=by_source[m.source], origin=origin[m.source], back=m.back if m.back >= m.at else -1)
        if m.side == DELIVERY
        else m
        for m in messages
    ]
    return sorted(messages, key=lambda m: m.order)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(publishes, deliveries), max_size=24),
    st.tuples(st.sampled_from([0, 101, 103]), st.sampled_from([0, 102, 103])),
    st.tuples(st.sampled_from([0, 0, 102, ANY_QUEUE]), st.sampled_from([0, 0, 101, PERHAPS_ANY_QUEUE])),
)
def test_the_engine_follows_the_rules(
    messages: list[Message], routes: tuple[int, int], origins: tuple[int, int]
) -> None:
    messages = routed(messages, routes, origins)
    pairs = pairs_of(rows(messages))
    columns = (pairs.first, pairs.publish, pairs.last, pairs.redeliveries, pairs.ambiguous)
    got = list(zip(*(column.tolist() for column in columns), strict=True))
    assert got == expected(messages)
    used = {publish for _, publish, *_ in got if publish != NONE}
    assert {i for i, value in enumerate(pairs.paired.tolist()) if value} == used


def test_a_label_distinguishes_equal_contents_in_any_order() -> None:
    published = [Message(PUBLISH, at, route=101, label=at, common=12) for at in (1, 2, 3)]
    delivered = [Message(DELIVERY, 9 - label, source=11, label=label, common=12) for label in (3, 2, 1)]
    pairs = pairs_of(rows(published + delivered))
    assert pairs.publish.tolist()[3:] == [2, 1, 0]
    assert pairs.ambiguous.tolist()[3:] == [0, 0, 0]
    assert pairs.tier.tolist()[3:] == [LABEL] * 3


def test_a_delivery_without_a_known_label_takes_no_publish_that_another_delivery_claims() -> None:
    """Publishes 1 and 2; the first was changed on its way."""
    published = [Message(PUBLISH, 1, route=101, label=1), Message(PUBLISH, 2, route=101, label=2)]
    delivered = [Message(DELIVERY, 5, source=11, label=2), Message(DELIVERY, 6, source=11, label=3)]
    for order in (delivered, [replace(m, at=11 - m.at) for m in reversed(delivered)]):
        pairs = pairs_of(rows(published + order))
        by_label = {m.label: pairs.publish[2 + n] for n, m in enumerate(order)}
        assert by_label == {2: 1, 3: 0}
        assert {m.label: pairs.tier[2 + n] for n, m in enumerate(order)} == {2: LABEL, 3: ANY}


def test_across_families_the_common_label_decides() -> None:
    published = [Message(PUBLISH, n, route=101, label=n, common=10 + n) for n in (1, 2)]
    delivered = [
        Message(DELIVERY, 5, source=11, family=V1_0_FAMILY, label=8, common=12),
        Message(DELIVERY, 6, source=11, family=V1_0_FAMILY, label=9, common=11),
    ]
    pairs = pairs_of(rows(published + delivered))
    assert (pairs.publish.tolist()[2:], pairs.ambiguous.tolist()[2:]) == ([1, 0], [0, 0])
    assert pairs.tier.tolist()[2:] == [COMMON] * 2


def test_a_delivery_without_a_publish_makes_those_of_its_label_ambiguous() -> None:
    published = [Message(PUBLISH, n, route=101, label=n) for n in (1, 2)]
    delivered = [Message(DELIVERY, 5 + n, source=11, label=label) for n, label in enumerate((1, 2, 2))]
    pairs = pairs_of(rows(published + delivered))
    assert pairs.publish.tolist()[2:] == [0, 1, NONE]
    assert pairs.ambiguous.tolist()[2:] == [0, 1, 1]


@pytest.mark.parametrize("n", [50])
def test_equal_messages_without_a_captured_requeue_are_redelivered_in_order(n: int) -> None:
    """Delivered once and again, and neither time is it known what became of them: each came again once."""
    published = [Message(PUBLISH, i, route=101) for i in range(n)]
    delivered = [Message(DELIVERY, n + i, source=11, back=n + i, surely=False) for i in range(n)]
    again = [Message(DELIVERY, 2 * n + i, source=11, again=True, back=2 * n + i, surely=False) for i in range(n)]
    pairs = pairs_of(rows(published + delivered + again))
    assert pairs.redeliveries[n : 2 * n].tolist() == [1] * n
    assert pairs.first[2 * n :].tolist() == list(range(n, 2 * n))


def test_a_message_requeued_to_its_place_is_delivered_first_again() -> None:
    """Two wait; the first is refused three times in a row, and is the head of its queue each time."""
    published = [Message(PUBLISH, i, route=101) for i in range(2)]
    delivered = [Message(DELIVERY, 5, source=11, back=7), Message(DELIVERY, 6, source=11, back=7)]
    again = [Message(DELIVERY, 8 + 2 * i, source=11, again=True, back=9 + 2 * i) for i in range(3)]
    pairs = pairs_of(rows([*published, *delivered, *again, Message(DELIVERY, 20, source=11, again=True)]))
    assert pairs.first.tolist()[2:] == [2, 3, 2, 2, 2, 2]


def test_the_nth_publish_goes_with_the_nth_delivery_of_each_queue() -> None:
    published = [Message(PUBLISH, at, route=103, kind=TO_EXCHANGE) for at in (1, 2, 3)]
    delivered = [Message(DELIVERY, at, source=source, route=103) for source in (11, 12) for at in (5, 6, 7)]
    pairs = pairs_of(rows(published + delivered))
    assert pairs.publish.tolist()[3:] == [0, 1, 2, 0, 1, 2]
    assert pairs.ambiguous.tolist()[3:] == [1] * 6


@pytest.mark.parametrize("n", [100_000])
def test_the_cost_of_a_message_does_not_grow_with_equal_ones_on_its_queue(n: int) -> None:
    """All given back and delivered again, in the order of the queue: each finds its own."""
    published = [Message(PUBLISH, i, route=101) for i in range(n)]
    delivered = [Message(DELIVERY, n + i, source=11, route=101, back=2 * n) for i in range(n)]
    again = [Message(DELIVERY, 3 * n + i, source=11, route=101, again=True) for i in range(n)]
    pairs = pairs_of(rows(published + delivered + again))
    assert (pairs.publish[n : 2 * n] == np.arange(n)).all()
    assert (pairs.first[2 * n :] == np.arange(n, 2 * n)).all()
    assert (pairs.redeliveries[n : 2 * n] == 1).all()
