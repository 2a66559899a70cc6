"""Options of the data sources, from the strings that Spark passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import ParamSpec, TypeVar

from codec.compiler.limits import LIMITS
from codec.errors import WirehareError
from codec.net.layers import (
    BEGINNING,
    END_OF_TIME,
    PORTS,
    Filter,
    host_bytes,
)

# Suggestions for misspelled names.


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def meant(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'ports'?" for 'prots'; '' where no known name is near."""
    by_small_letters = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_small_letters, n=1)
    return f"; did you mean {by_small_letters[near[0]]!r}?" if near else ""


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """A line about an unknown name of a `kind`: the nearest of the `known` names, and all of them."""
    hint, names = meant(name, known), ", ".join(known)
    expected = f"{hint} Expected one of {names}" if hint else f"; expected one of {names}"
    return f"there is no {kind} {name!r}{expected}"


def suggesting(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: the TypeError about an unknown keyword suggests the nearest one."""
    known = [
        name
        for name, parameter in signature(function).parameters.items()
        if parameter.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]

    @wraps(function)
    def checked(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        for name in keywords:
            if name not in known:
                hint = meant(name, known)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*arguments, **keywords)

    return checked


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OptionError(WirehareError, ValueError):
    """An option has an invalid value; the message is one line."""


KNOWN = (
    "path", "paths", "splitBytes", "blockBytes", "runBytes", "references", "ports", "hosts", "since", "until",
    "packetsRead", "settle", "maxFilesPerTrigger", "maxBytesPerTrigger",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Options of a reader: path or paths, splitBytes, blockBytes, runBytes, references, ports, hosts, since, until;
    `skipped`: number of packets to skip, by name of the capture. Of streams: a capture that changed within `settle_ns`
    is left for later; `max_files`, `max_bytes`: of a batch, None: all."""

    paths: tuple[str, ...]
    split_bytes: int
    block_bytes: int
    run_bytes: int
    references: bool
    wanted: Filter
    skipped: Mapping[str, int] = field(default_factory=dict)
    settle_ns: int = 0
    max_files: int | None = None
    max_bytes: int | None = None


def parse_options(options: Mapping[str, str]) -> Options:
    """Options from Spark; names are case-insensitive. Raises OptionError, also for an unknown one."""
    given = {name.lower(): value for name, value in options.items() if value}
    known = {name.lower() for name in KNOWN}
    for name in options:
        if name.lower() not in known:
            raise OptionError(unknown("option", name, KNOWN))
    paths = _paths(given["paths"]) if "paths" in given else ()
    return Options(
        (*paths, *([given["path"]] if "path" in given else [])),
        _size(given, "splitBytes", LIMITS.split_bytes),
        _size(given, "blockBytes", LIMITS.block_bytes),
        _size(given, "runBytes", LIMITS.run_bytes),
        given.get("references", "false").lower() == "true",
        parse_filter(given.get("ports"), given.get("hosts"), given.get("since"), given.get("until")),
        {name: int(packets) for name, packets in json.loads(given.get("packetsread", "{}")).items()},
        _settle(given.get("settle", "30")),
        _size(given, "maxFilesPerTrigger", 0, "captures") or None,
        _size(given, "maxBytesPerTrigger", 0) or None,
    )


def parse_filter(
    ports: str | None = None, hosts: str | None = None, since: str | None = None, until: str | None = None
) -> Filter:
    """Which packets are wanted: ports and IP addresses separated by commas, times as in `parse_time`.

    Raises OptionError.
    """
    return Filter(
        frozenset(_port(text) for text in _listed(ports)),
        host_bytes(_address(text) for text in _listed(hosts)),
        parse_time(since, "since") if since else BEGINNING,
        parse_time(until, "until") if until else END_OF_TIME,
    )


def parse_time(text: str, name: str) -> int:
    """Nanoseconds since 1970-01-01 UTC, from such a number or from an ISO 8601 time (UTC unless it says otherwise)."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{name}: {text!r} is not a valid time; expected one like 2026-01-31T12:00:00Z, or nanoseconds since 1970"
        ) from None
    since_epoch = (time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH
    return since_epoch // timedelta(microseconds=1) * 1000


def _paths(text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text)
    except json.JSONDecodeError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError(f'paths: {text!r} is not a JSON list of strings; expected one like ["a.pcap", "b.pcap"]')
    return tuple(paths)


def _size(given: Mapping[str, str], name: str, otherwise: int, unit: str = "bytes") -> int:
    text = given.get(name.lower())
    if text is None:
        return otherwise
    if not text.isdecimal() or not int(text):
        raise OptionError(f"{name}: {text!r} is not a valid size; expected a number of {unit} above 0")
    return int(text)


def _settle(text: str) -> int:
    """Seconds as nanoseconds."""
    if not text.isdecimal():
        raise OptionError(f"settle: {text!r} is not a valid time; expected a number of seconds")
    return int(text) * 1_000_000_000


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= PORTS:
        raise OptionError(
            f"ports: {text!r} is not a valid TCP port; expected numbers below {PORTS}, separated by commas"
        )
    return int(text)


def _address(text: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(text)
    except ValueError:
        raise OptionError(f"hosts: {text!r} is not a valid IP address; expected some, separated by commas") from None
