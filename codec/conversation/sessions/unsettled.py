"""Deliveries that the unsettled map of a later attach leaves out.

An attach that resumes a link lists the deliveries that its side considers unsettled. If it does not say that the map is
incomplete, what is left out is settled there, or has never come there (1.0 core specification, part 2, 2.6.13): unless
its outcome was stated before, nothing tells it. A link that was closed is not resumed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.events import frame_keys
from codec.conversation.sessions.state import ALL_LISTED, LISTED, NONE, SessionRecords
from codec.conversation.states import numbered

Integers = NDArray[np.int64]


class _Deliveries(NamedTuple):
    """Deliveries, and the entries of maps, of links by name, link and frame: int64 (n,) each. `place`: of the message;
    `name`: number of the link's name; `is_entry`: bool; `number`: of an entry the map that it is in, of a delivery the
    last map before it could be in one; `last`: the last map of its name. `maps` (m,): places of maps, by number from 1
    on."""

    place: Integers
    name: Integers
    is_entry: NDArray[np.bool_]
    number: Integers
    last: Integers
    maps: Integers


def left_out(records: SessionRecords) -> Integers:
    """By message: the place of the next complete map, of either side, without it; NONE if there is none.

    A delivery is to be in all maps that follow it, which are numbered in order. Its entries are, too: the first number
    without an entry is that of the map that leaves it out.
    """
    messages = records.messages
    found = np.full(len(messages), NONE)
    if not (messages["resumes"] == ALL_LISTED).any():
        return found
    rows = _numbered(records)
    own = messages[rows.place]
    group = numbered(rows.name, own["tag"])
    order = np.lexsort([own["frame_no"], ~rows.is_entry, own["link"], group])
    own, group, is_entry, number = own[order], group[order], rows.is_entry[order], rows.number[order]
    ends = _are_last(group)
    # The number before that of the next entry; that of the last map where the group ends.
    until = np.where(ends, rows.last[order], np.append((number - is_entry)[1:], 0)[: len(own)])
    missing = until > number
    stops = missing | ends | np.append(own["resumes"][1:] == 0, True)[: len(own)]
    at = np.minimum.accumulate(np.where(stops, np.arange(len(own)), len(own))[::-1])[::-1]
    leaves = ~is_entry & missing[at] & (records.links["closed"][own["link"]] == 0)
    found[rows.place[order][leaves]] = rows.maps[number[at[leaves]]]
    return found


def _numbered(records: SessionRecords) -> _Deliveries:
    """The deliveries and the entries of complete maps, which are numbered."""
    messages, links = records.messages, records.links
    place = np.flatnonzero((messages["link"] != NONE) & ((messages["tag"] != 0) | (messages["resumes"] == ALL_LISTED)))
    place = place[links["known"][messages["link"][place]] == 1]
    own = messages[place]
    link = links[own["link"]]
    name = numbered(own["connection"], link["name"], link["kind"])
    order = np.lexsort([-own["resumes"], own["frame_no"], own["link"], name])  # a map, then its entries
    place, own, name = place[order], own[order], name[order]
    is_map, is_entry = own["resumes"] == ALL_LISTED, own["resumes"] == LISTED
    count = np.cumsum(is_map)
    # What is sent after an attach is only in the maps of later attaches, whichever side they come from.
    number = np.where(is_entry, count, _at_end(count, own["link"]))
    maps = np.flatnonzero(is_map)
    of_map = own[maps[number - 1]]
    stray = is_entry & ((of_map["frame_no"] != own["frame_no"]) | (of_map["link"] != own["link"]))  # incomplete maps
    rows = np.flatnonzero(~is_map & ~stray)
    return _Deliveries(place[rows], name[rows], is_entry[rows], number[rows], _at_end(count, name)[rows], place[maps])


def _are_last(groups: Integers) -> NDArray[np.bool_]:
    """Which rows are the last of their group."""
    return np.append(groups[1:] != groups[:-1], True)[: len(groups)]


def _at_end(values: Integers, groups: Integers) -> Integers:
    """The last value of each group, for all its rows."""
    ends = np.flatnonzero(_are_last(groups))
    found: Integers = np.repeat(values[ends], np.diff(ends, prepend=-1))
    return found


def lists_of(records: SessionRecords, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which records are entries of the chosen maps: bool (messages,)."""
    messages = records.messages
    frames = frame_keys(messages["session"], messages["frame_no"])
    maps = chosen & (messages["resumes"] == ALL_LISTED)
    entries: NDArray[np.bool_] = (messages["resumes"] == LISTED) & np.isin(frames, frames[maps])
    return entries
