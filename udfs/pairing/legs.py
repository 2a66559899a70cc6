"""Connections that were captured several times on their way to the broker: on both sides of a NAT, or of a proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.sides import SIDES
from udfs.arrow.hashing import hashed
from udfs.arrow.rows import numbers_of

Integers = NDArray[np.int64]

NAT_US = 50_000  # at most from one side of a NAT to the other, microseconds
PROXY_US = 1_000_000  # and of a proxy, which makes a connection of its own
RANDOM = np.uint64(1 << 16)  # sequence numbers begin below it once in 65,536 times

# Columns of table connections; a proxy passes these frames and names on.
PASSED_ON = (
    "version", "vhost", "user", "client_name", "client_frames", "server_frames", "messages_published",
    "messages_delivered",
)  # fmt: skip


def legs_of(rows: Mapping[str, pa.Array]) -> Integers:
    """How many others of these connections (`udfs.pairing.schemas.CONNECTION_COLUMNS`) are the same one nearer to the
    broker. The side whose packets come later is nearer."""
    legs = _of_translations(rows)
    nearer = _of_proxies(rows)
    relayed = np.flatnonzero(nearer >= 0)
    # Those nearest to the broker first.
    for each in relayed[np.argsort(-_times(rows, "opened_ts")[relayed], kind="stable")]:
        legs[each] += 1 + legs[nearer[each]]
    return legs


def _of_translations(rows: Mapping[str, pa.Array]) -> Integers:
    """The same for NATs alone, which leave sequence numbers, packets and bytes, and are fast. Numbers that other
    connections have as well are not random, and say nothing. Neither are those that begin low (captures that were made
    by a program), unless the client's port is the same, and one of the addresses, and no third connection has these."""
    legs = np.zeros(len(rows["connection_id"]), np.int64)
    known = np.flatnonzero(rows["tcp_origin"].is_valid().to_numpy(zero_copy_only=False))
    if len(np.unique(numbers_of(rows["tcp_origin"])[known])) == len(known):
        return legs
    counts = [f"{side}_{name}" for side in SIDES for name in ("packets", "bytes")]
    origins = numbers_of(rows["tcp_origin"])[known].view(np.uint64)
    low = (origins >> np.uint64(32) < RANDOM) | (origins & np.uint64(0xFFFFFFFF) < RANDOM)
    copied = ["tcp_origin", *counts]
    stream = np.where(low, _hashed(rows, [*copied, "client_port"])[known], _hashed(rows, copied)[known])
    ends, clients, servers = (
        _hashed(rows, names)[known]
        for names in (("client_ip", "server_ip"), ("client_ip",), ("server_ip", "server_port"))
    )
    opened_us, closed_us = (_times(rows, name)[known] for name in ("opened_ts", "closed_ts"))
    order = np.lexsort([numbers_of(rows["connection_id"])[known], opened_us, stream, origins])
    stream, ends, origins, later_us = stream[order], ends[order], origins[order], np.diff(opened_us[order])
    same = (stream[1:] == stream[:-1]) & (ends[1:] != ends[:-1])
    same &= (later_us > 0) & (later_us <= NAT_US) & (np.abs(np.diff(closed_us[order])) <= NAT_US)
    elsewhere = (origins[1:] == origins[:-1]) & ~same
    one_end = (np.diff(clients[order]) == 0) | (np.diff(servers[order]) == 0)
    _, of_port, alike = np.unique(
        _hashed(rows, ("tcp_origin", "client_port"))[known][order], return_inverse=True, return_counts=True
    )
    one_end &= alike[of_port][1:] == 2
    same &= np.where(low[order][1:], one_end, ~np.isin(origins[1:], origins[1:][elsewhere]))
    places = np.arange(len(order))
    last = np.where(np.append(same, False), len(order), places)  # of the connections that follow each other
    legs[known[order]] = np.minimum.accumulate(last[::-1])[::-1] - places
    return legs


def _of_proxies(rows: Mapping[str, pa.Array]) -> Integers:
    """For each connection to a proxy, the one that the proxy made for it: its client is where the other one ends, or
    its PROXY header names the other's client; it has as many frames and messages, and both begin and end at about the
    same time. -1 for others."""
    number = len(rows["connection_id"])
    nearer = np.full(number, -1, np.int64)
    opened_us, closed_us = _times(rows, "opened_ts"), _times(rows, "closed_ts")
    passed_on = _hashed(rows, PASSED_ON)
    handshake_us = numbers_of(rows["handshake_ns"].fill_null(0)) // 1000
    carried = numbers_of(pc.add(rows["messages_published"], rows["messages_delivered"]).fill_null(0)) > 0
    clients = _hashed(rows, ("client_ip",))
    named = rows["proxied_client_ip"].is_valid().to_numpy(zero_copy_only=False)
    for there, here, of_proxy in (
        (("server_ip",), ("client_ip",), carried),
        (("client_ip", "client_port"), ("proxied_client_ip", "proxied_client_port"), carried & named),
    ):
        to, made = np.flatnonzero(carried), np.flatnonzero(of_proxy)
        place = np.concatenate([to, made])
        keys = np.concatenate([_hashed(rows, there)[to], _hashed(rows, here)[made]])
        is_made = np.repeat([False, True], [len(to), len(made)])
        order = np.lexsort([is_made, opened_us[place], passed_on[place], keys])
        place, keys, is_made = place[order], keys[order], is_made[order]
        # The next connection that a proxy made after each one.
        at = np.where(is_made, np.arange(len(order)), len(order))
        at = np.minimum.accumulate(at[::-1])[::-1]
        found = np.append(place, -1)[at]
        same = (found >= 0) & (np.append(keys, 0)[at] == keys) & (passed_on[found] == passed_on[place]) & ~is_made
        later_us = opened_us[found] - opened_us[place]
        same &= (later_us >= 0) & (later_us <= PROXY_US) & (np.abs(closed_us[found] - closed_us[place]) <= PROXY_US)
        # The client hears the broker's open-ok after the proxy did.
        same &= (handshake_us[place] == 0) | (later_us + handshake_us[found] <= handshake_us[place])
        same &= (clients[found] != clients[place]) & (found != place)
        nearer[place[same]] = found[same]
    return nearer


def _hashed(rows: Mapping[str, pa.Array], names: Sequence[str]) -> Integers:
    return hashed(*(rows[name] for name in names))


def _times(rows: Mapping[str, pa.Array], name: str) -> Integers:
    """Microseconds."""
    found: Integers = numbers_of(rows[name].cast(pa.int64()))
    return found
