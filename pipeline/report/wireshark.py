"""What to paste into the filter bar of Wireshark, or into a shell, to see what a finding is about.

Only rules, addresses, numbers and the place of the tables go into it, nothing that was sent as text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any


def packet(packet_no: int | None) -> str | None:
    """One packet of the capture."""
    return None if packet_no is None else f"frame.number == {packet_no:d}"


def connection(ends: Mapping[str, Any]) -> str | None:
    """All packets of a TCP connection: `ends` has client_ip, client_port, server_ip, server_port."""
    try:
        sides = [(ip_address(ends[f"{side}_ip"]), int(ends[f"{side}_port"])) for side in ("client", "server")]
    except (KeyError, TypeError, ValueError):
        return None
    terms = [f"{'ipv6' if ip.version == 6 else 'ip'}.addr == {ip}" for ip in dict.fromkeys(ip for ip, _ in sides)]
    return " && ".join([*terms, *(f"tcp.port == {port:d}" for port in dict.fromkeys(port for _, port in sides))])


def cut(tables: str, rule_id: str, connection_id: int | None, frame_no: int | None) -> str:
    """The command that writes the packets of a finding of `tables` (a directory) to a file, with what Wireshark needs
    to dissect them."""
    place = "/".join([rule_id, *(str(number) for number in (connection_id, frame_no) if number is not None)])
    return shlex.join(["wirehare", "cut", tables, "--finding", place, "-o", f"{rule_id}.pcapng"])
