"""Deliveries that the unsettled map of a later attach leaves out.

An attach that resumes a link lists the deliveries that its side considers unsettled. If it does not say that the map is
incomplete, what is left out is settled there, or has never come there (1.0 core specification, part 2, 2.6.13): unless
its outcome was stated before, nothing tells it. A link that was closed is not resumed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.events import frame_keys
from codec.conversation.sessions.state import ALL_LISTED, LISTED, NONE, SessionRecords
from codec.conversation.states import numbered

Integers = NDArray[np.int64]


def left_out(records: SessionRecords) -> Integers:
    """By message: the place of the next complete map, of either side, without it; NONE if there is none.

    Maps are numbered in order. A delivery that was sent after some maps of its link is to be in all that follow: of
    each next one an entry, or the first number that has none is that of the map that leaves it out.
    """
    messages, links = records.messages, records.links
    found = np.full(len(messages), NONE)
    if not (messages["resumes"] == ALL_LISTED).any():
        return found
    places = np.flatnonzero((messages["link"] != NONE) & ((messages["tag"] != 0) | (messages["resumes"] == ALL_LISTED)))
    places = places[links["known"][messages["link"][places]] == 1]
    own = messages[places]
    link = links[own["link"]]
    name = numbered(own["connection"], link["name"], link["kind"])
    order = np.lexsort([-own["resumes"], own["frame_no"], own["link"], name])  # a map, then its entries
    places, own, name = places[order], own[order], name[order]
    is_map, listed = own["resumes"] == ALL_LISTED, own["resumes"] == LISTED
    number = np.cumsum(is_map)
    total = _at_end(number, name)
    # What is sent after an attach is in the maps of later attaches alone, whichever side they come from.
    number = np.where(listed, number, _at_end(number, own["link"]))
    maps = np.flatnonzero(is_map)
    of_map = own[maps[number - 1]]
    stray = listed & ((of_map["frame_no"] != own["frame_no"]) | (of_map["link"] != own["link"]))  # of incomplete maps
    rows = np.flatnonzero(~is_map & ~stray)
    group = numbered(name[rows], own["tag"][rows])
    order = np.lexsort([own["frame_no"][rows], ~listed[rows], own["link"][rows], group])
    rows, group = rows[order], group[order]
    number, total, listed = number[rows], total[rows], listed[rows]
    ends = np.append(group[1:] != group[:-1], True)[: len(rows)]
    following = np.append((number - listed)[1:], 0)[: len(rows)]
    missing = np.where(ends, total, following) > number
    stops = missing | ends | np.append(own["resumes"][rows][1:] == 0, True)[: len(rows)]
    at = np.minimum.accumulate(np.where(stops, np.arange(len(rows)), len(rows))[::-1])[::-1]
    waits = ~listed & missing[at] & (links["closed"][own["link"][rows]] == 0)
    found[places[rows[waits]]] = places[maps[number[at[waits]]]]
    return found


def _at_end(values: Integers, groups: Integers) -> Integers:
    """The last value of each group, for all its rows."""
    ends = np.flatnonzero(np.append(groups[1:] != groups[:-1], True)[: len(groups)])
    found: Integers = np.repeat(values[ends], np.diff(ends, prepend=-1))
    return found


def lists_of(records: SessionRecords, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which records are entries of the chosen maps: bool (messages,)."""
    messages = records.messages
    frames = frame_keys(messages["session"], messages["frame_no"])
    maps = chosen & (messages["resumes"] == ALL_LISTED)
    entries: NDArray[np.bool_] = (messages["resumes"] == LISTED) & np.isin(frames, frames[maps])
    return entries
