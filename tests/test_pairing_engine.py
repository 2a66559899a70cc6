"""The pairing engine against the same rules spelled out message by message, in plain Python over lists."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.pairing import CLASSIC, DELIVERY, DESCRIBED, EXACT, NAMED, NOBODY, PLAIN, PUBLISH, Rows, pairs_of

QUEUE_ROUTES = {11: 101, 12: 102}  # number of a queue -> that of its name on the default exchange


@dataclass(frozen=True)
class Message:
    side: int
    at: int
    key: int = 1
    place: int = 0
    route: int = 0
    kind: int = EXACT
    digest: int = 0
    family: int = CLASSIC
    again: bool = False
    back: int = -1
    unmarked: bool = False
    lasts: int = 0

    @property
    def order(self) -> tuple[int, ...]:
        return (self.key, self.side, self.place, self.at)


def rows(messages: list[Message]) -> Rows:
    def column(values: list[int]) -> np.ndarray:
        array = np.array(values, np.int64)
        array.flags.writeable = False
        return array

    return Rows(
        key=column([m.key for m in messages]),
        side=column([m.side for m in messages]),
        place=column([m.place for m in messages]),
        route=column([m.route for m in messages]),
        own_route=column([QUEUE_ROUTES.get(m.place, 0) for m in messages]),
        kind=column([m.kind for m in messages]),
        digest=column([m.digest for m in messages]),
        family=column([m.family for m in messages]),
        from_ns=column([m.at for m in messages]),
        until_ns=column([m.at + m.lasts for m in messages]),
        again=column([m.again for m in messages]),
        back_ns=column([m.back for m in messages]),
        unmarked=column([m.unmarked for m in messages]),
    )


def fits(publish: Message, delivery: Message) -> bool:
    if (publish.family == DESCRIBED) != (delivery.family == DESCRIBED):
        return True
    return 0 in (publish.digest, delivery.digest) or publish.digest == delivery.digest


def reachable(publishes: list[tuple[int, Message]], first: Message) -> tuple[list[tuple[int, Message]], bool]:
    """The publishes that can have come to the queue of `first`, and whether they fit loosely only."""
    route = first.route or QUEUE_ROUTES.get(first.place, 0)
    exact = [(i, p) for i, p in publishes if p.route == route]
    if exact:
        return exact, False
    named = [(i, p) for i, p in publishes if p.kind == NAMED]
    if first.route == 0 and named:
        return named, False
    return [(i, p) for i, p in publishes if p.kind == PLAIN], True


def expected(messages: list[Message]) -> list[tuple[int, ...]]:
    """(first, publish, last, repeats, doubt) of each message, as `Pairs` has them."""
    found = [[NOBODY, NOBODY, NOBODY, 0, 0] for _ in messages]
    numbered = list(enumerate(messages))
    for key, place in sorted({(m.key, m.place) for m in messages if m.side == DELIVERY}):
        queue = [(i, m) for i, m in numbered if (m.side, m.key, m.place) == (DELIVERY, key, place)]
        publishes, loosely = reachable([(i, m) for i, m in numbered if (m.side, m.key) == (PUBLISH, key)], queue[0][1])
        free, strangers = list(publishes), False
        back: list[tuple[int, int]] = []
        for i, m in queue:
            ready = sorted(first for since, first in back if since <= m.at + m.lasts)
            first = i
            if ready and (m.again or (m.family != CLASSIC and messages[ready[0]].unmarked)):
                first = ready[0]
                back.remove(next(entry for entry in back if entry[1] == first))
                found[first][3] += 1
            else:
                fitting = [entry for entry in free if fits(entry[1], m) and entry[1].at <= m.at + m.lasts]
                if fitting:
                    free.remove(fitting[0])
                    found[i][1] = fitting[0][0]
                    found[i][4] = int(loosely or sum(fits(p, m) for _, p in publishes) > 1)
                else:
                    strangers = True
            found[i][0] = first
            found[first][2] = i
            if m.back >= 0:
                back.append((m.back, first))
        if strangers:
            for i, _ in queue:
                found[i][4] = 1
    return [tuple(row) for row in found]


publishes = st.builds(
    Message,
    side=st.just(PUBLISH),
    at=st.integers(0, 30),
    key=st.integers(1, 2),
    route=st.sampled_from([101, 102, 103]),
    kind=st.sampled_from([EXACT, NAMED, PLAIN]),
    digest=st.integers(0, 2),
    family=st.sampled_from([CLASSIC, DESCRIBED]),
)
deliveries = st.builds(
    Message,
    side=st.just(DELIVERY),
    at=st.integers(0, 30),
    key=st.integers(1, 2),
    place=st.sampled_from([11, 12]),
    digest=st.integers(0, 2),
    family=st.sampled_from([CLASSIC, DESCRIBED]),
    again=st.booleans(),
    back=st.integers(-1, 30),
    unmarked=st.booleans(),
    lasts=st.integers(0, 3),
)


def routed(messages: list[Message], routes: tuple[int, int]) -> list[Message]:
    """A queue's deliveries all tell the same route, or none does (its number is made of both)."""
    by_place = dict(zip(QUEUE_ROUTES, routes, strict=True))
    told = [
        replace(m, route=by_place[m.place], back=m.back if m.back >= m.at else -1) if m.side == DELIVERY else m
        for m in messages
    ]
    return sorted(told, key=lambda m: m.order)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(publishes, deliveries), max_size=24),
    st.tuples(st.sampled_from([0, 101, 103]), st.sampled_from([0, 102, 103])),
)
def test_the_engine_does_what_the_rules_say(messages: list[Message], routes: tuple[int, int]) -> None:
    messages = routed(messages, routes)
    pairs = pairs_of(rows(messages))
    columns = (pairs.first, pairs.publish, pairs.last, pairs.repeats, pairs.doubt)
    got = list(zip(*(column.tolist() for column in columns), strict=True))
    assert got == expected(messages)
    taken = {publish for _, publish, *_ in got if publish != NOBODY}
    assert {i for i, value in enumerate(pairs.taken.tolist()) if value} == taken


def test_the_nth_publish_goes_with_the_nth_delivery_of_each_queue() -> None:
    published = [Message(PUBLISH, at, route=103, kind=NAMED) for at in (1, 2, 3)]
    delivered = [Message(DELIVERY, at, place=place, route=103) for place in (11, 12) for at in (5, 6, 7)]
    pairs = pairs_of(rows(published + delivered))
    assert pairs.publish.tolist()[3:] == [0, 1, 2, 0, 1, 2]
    assert pairs.doubt.tolist()[3:] == [1] * 6


@pytest.mark.parametrize("n", [100_000])
def test_many_alike_on_one_queue_cost_no_more_each(n: int) -> None:
    """All given back and delivered again, in the order of the queue: each finds its own."""
    published = [Message(PUBLISH, i, route=101) for i in range(n)]
    delivered = [Message(DELIVERY, n + i, place=11, route=101, back=2 * n) for i in range(n)]
    again = [Message(DELIVERY, 3 * n + i, place=11, route=101, again=True) for i in range(n)]
    pairs = pairs_of(rows(published + delivered + again))
    assert (pairs.publish[n : 2 * n] == np.arange(n)).all()
    assert (pairs.first[2 * n :] == np.arange(n, 2 * n)).all()
    assert (pairs.repeats[n : 2 * n] == 1).all()
