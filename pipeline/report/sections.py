"""The sections of the report: what is counted of the tables and of the findings, as data in `sections.json`.

One object for each source, with `measures` (`groups.Source`) and `sections`: the fields of `groups.Section`, and
`table`, how the page shows the section (TableSpec). A source is a table, or the query in `rows`. All SQL is DuckDB's,
over views with the names of the tables; '{name}' in it stands for a value of `sources`. Times are microseconds since
1970 UTC.

Findings are counted by rule and by what they are about; some examples of each rule have their evidence. Findings of two
audits are the same if `IDENTITY` is equal: the rule, the client, and what it concerns. Connection ids, ports of
clients, packet and frame numbers are not part of it, because they differ in every capture. Generated names
(`amq.gen-...`, UUIDs, long numbers) count as one name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.audit.catalogue import KNOWN
from pipeline.report.grouped_counts import CLASSES_PER_OCTAVE, Section, Source

DEFINITIONS: Mapping[str, Any] = json.loads(Path(__file__).with_name("sections.json").read_text("utf-8"))
# Bars of a chart over time: one is about four pixels wide on a phone.
TIME_BARS = 80
SEVERITIES = ("info", "warning", "violation")  # rising
EXAMPLES = 4  # of each rule
EVIDENCE_CHARACTERS = 2000
NAME_CHARACTERS = 200
# The most entries in a baseline.
IDENTITIES: int = DEFINITIONS["findings"]["sections"]["identities"]["limit"]
IDENTITY = ("rule_id", "client_product", "user", "vhost", "server", "entities")
# Columns by which people search findings.
NAMED = ("application", "user", "vhost", "server", "things")
# Names in evidence.
ENTITIES = ("method", "exchange", "queue", "routing_key", "address", "name")
# Evidence that is text of a peer.
PEER_TEXTS = ("reply_text", "text", "description", "condition", "error")
# Names that applications choose.
USER_DEFINED_NAMES = ENTITIES[1:]

# Hex of at least 12 digits with a decimal one: RE2 has no look-ahead, so the first decimal digit is at one of these.
HEX = "|".join([*(f"[a-f]{{{at}}}[0-9][0-9a-f]{{{11 - at},}}" for at in range(12)), "[a-f]{12,}[0-9][0-9a-f]*"])
# Generated parts of names: what RabbitMQ appends to amq.gen- and amq.rabbitmq.reply-to., UUIDs, long hex, long numbers.
# The first group is what stays before them.
GENERATED_NAME = (
    r"(amq\.(?:gen|ctag)-)[\w-]+"
    r"|(amq\.rabbitmq\.reply-to\.)[^\s\x0b]+"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    rf"|\b(?:{HEX})\b"
    r"|\d{5,}"
)


def without_generated(name: str) -> str:
    """SQL for a name with '*' for its generated parts."""
    return rf"regexp_replace({name}, '{GENERATED_NAME}', '\1\2*', 'g')"


def in_evidence(name: str) -> str:
    """SQL for a name in the evidence of a finding, without generated parts."""
    return without_generated(f"TRY_CAST(evidence.{name} AS VARCHAR)")


def endpoint(side: str) -> str:
    """SQL for address and port of a side; null if either is unknown."""
    return f"if({side}_ip LIKE '%:%', '[' || {side}_ip || ']', {side}_ip) || ':' || {side}_port"


def thing(name: str) -> str:
    """SQL for a name in evidence after what it is; the empty name is ''."""
    label, found = name.replace("_", " "), in_evidence(name)
    return f"'{label} ' || if({found} = '', '''''', {found})"


def concat_sql(separator: str, parts: Iterable[str]) -> str:
    """SQL for the known ones of some texts; null for none."""
    return f"nullif(concat_ws('{separator}', {', '.join(parts)}), '')"


def shortened(characters: int, *names: str) -> str:
    """SQL for columns of which only so many characters are read."""
    return ", ".join(f"left({name}, {characters}) AS {name}" for name in names)


def how_it_ended() -> str:
    """SQL for how a connection ended."""
    return (
        "CASE WHEN tcp_end = 'none' THEN 'open at the end' "
        "WHEN state = 'closed' THEN 'closed' "
        "WHEN tcp_end = 'rst' THEN 'reset' || coalesce(' by the ' || tcp_end_by, '') "
        "WHEN tcp_end = 'fin' THEN 'ended without close' || coalesce(' by the ' || tcp_end_by, '') "
        "ELSE tcp_end END"
    )


LISTED = ", ".join(f"'{name}'" for name in SEVERITIES)
# The name of the client's application, with generated parts replaced; else its product, else its address. Then the pod,
# the container or the program that it runs in, where the capture says so.
NAME = f"coalesce(nullif({without_generated('client_name')}, '*'), client_product, proxied_client_ip, client_ip)"
PROCESS = f"coalesce({', '.join(f'client_process.{name}' for name in ('pod_name', 'container_name', 'name'))})"
APPLICATION = f"({NAME} || coalesce(' (' || {without_generated(PROCESS)} || ')', ''))"
PEER_TEXT = f"coalesce({', '.join(f'TRY_CAST(evidence.{name} AS VARCHAR)' for name in PEER_TEXTS)})"
VALUES = {
    **KNOWN,
    # 0-9-1 section 1.1: 200 is success, errors begin with 3.
    "closed_with_error": "(coalesce(close_code, 0) >= 300 OR (close_code IS NULL AND close_text IS NOT NULL))",
    "last_bar": TIME_BARS - 1,
    "classes": CLASSES_PER_OCTAVE,
    "application": APPLICATION,
    "client": f"coalesce({endpoint('proxied_client')}, {endpoint('client')})",
    "server": endpoint("server"),
    "ended": how_it_ended(),
    "severities": LISTED,
    "weight": f"list_position([{LISTED}], severity)",
    # After the code that came with it.
    "peer_text": f"coalesce(TRY_CAST(evidence.observed AS INTEGER) || ' ', '') || {PEER_TEXT}",
    # The names in evidence as 'queue=orders exchange=logs'; null for none.
    "entities": concat_sql(" ", {name: f"'{name}=' || {in_evidence(name)}" for name in ENTITIES}.values()),
    # USER_DEFINED_NAMES in evidence as text: 'exchange logs, routing key a.b'; the empty name is ''; null for none.
    "things": concat_sql(", ", map(thing, USER_DEFINED_NAMES)),
}


def first_findings(number: int, *keys: str) -> str:
    """SQL for the first findings of each group with equal keys: the worst first, those without a reservation before
    others."""
    return f"""
        SELECT rule_id, severity, scope, offender, connection_id, channel, frame_no, packet_no, occurrences,
            reservation, client_ip, client_port, server_ip, server_port, client, server, epoch_us(ts) AS ts,
            tcp_end, tcp_end_by, heartbeat_s, client_max_silence_ns, server_max_silence_ns, summary,
            {shortened(NAME_CHARACTERS, "application", "client_product", "client_version", "user", "vhost")},
            {shortened(EVIDENCE_CHARACTERS, "capture_file", "entities")},
            left(CAST(to_json(evidence) AS VARCHAR), {EVIDENCE_CHARACTERS}) AS evidence,
            row_number() OVER (
                PARTITION BY {", ".join(keys)}
                ORDER BY {VALUES["weight"]} DESC, reservation NULLS FIRST, ts NULLS FIRST, connection_id NULLS FIRST,
                    frame_no NULLS FIRST) AS nth
        FROM {Source.named("findings")}
        QUALIFY nth <= {number}
        ORDER BY rule_id, nth, connection_id NULLS FIRST, frame_no NULLS FIRST
        LIMIT {IDENTITIES}
    """


FIRST_FINDINGS = first_findings(EXAMPLES, "rule_id")
FIRST_OF_EACH = first_findings(1, *IDENTITY)


@dataclass(frozen=True)
class TableSpec:
    """A table of the page: `columns` are (heading, key or measure, kind of `page.KINDS`); `query` shows all rows;
    `nothing`: the text of an empty table."""

    caption: str
    columns: Sequence[tuple[str, str, str]]
    query: str
    nothing: str


TABLES: Mapping[str, TableSpec] = {
    name: TableSpec(**section["table"])
    for source in DEFINITIONS.values()
    for name, section in source["sections"].items()
    if "table" in section
}


def sources(first_ns: int, last_ns: int) -> Sequence[Source]:
    """All sources, for a capture between two times."""
    values = {**VALUES, "first_ns": first_ns, "width_ns": bar_width_ns(first_ns, last_ns)}

    def sql(text: str | Sequence[str]) -> str:
        whole = text if isinstance(text, str) else " ".join(text)
        return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), whole)

    def section(name: str, fields: Mapping[str, Any]) -> Section:
        keys = {key: sql(value) for key, value in fields["keys"].items()}
        others = {key: value for key, value in fields.items() if key in ("rank", "limit")}
        return Section(name, keys, sql(fields.get("where", "true")), **others)

    return [
        Source(
            name,
            {measure: sql(value) for measure, value in source["measures"].items()},
            [section(each, fields) for each, fields in source["sections"].items()],
            sql(source["rows"]) if "rows" in source else None,
        )
        for name, source in DEFINITIONS.items()
    ]


def bar_width_ns(first_ns: int, last_ns: int) -> int:
    """The width of one bar in a chart over the whole capture, ns."""
    return max(1, -(-(last_ns - first_ns + 1) // TIME_BARS))


def at_least(severity: str) -> Iterable[str]:
    """The severities from `severity` upwards."""
    return SEVERITIES[SEVERITIES.index(severity) :]
