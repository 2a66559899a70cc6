"""List the rules of the audit.

By group, version or severity; `--markdown` prints them as a page. `wirehare rule` prints all that is known of one.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from jobs.terminal.running import OK, UsageError
from udfs.source.options import unknown

if TYPE_CHECKING:
    from pipeline.audit.catalogue import Rule

EPILOG = """examples:
  wirehare rules
  wirehare rules SEC HB --version 1.0
  wirehare rules --severity violation
  wirehare rule CH-09
"""

# What must be known of a connection for a rule to be checked on it.
NEEDED = {
    "start": "the beginning of the connection",
    "complete": "all bytes",
    "both": "both directions",
    "order": "packets in the order in which they were sent",
}

PAGE = """# Rules of the audit

For whoever reads a finding and wants to know what it rests on: all rules, group by group. `wirehare rules --markdown`
prints this page, `wirehare rule CH-09` prints everything about one rule. A *violation* breaks the protocol, a *warning*
causes trouble now or will later, *info* is worth knowing; within a severity, rules whose violation costs work come
first. Each rule lists settings of client libraries and of the broker that help: "Qpid" means Qpid JMS and Proton,
"RabbitMQ" the broker. [audit.md](audit.md) says how to disable rules, set their thresholds, and add your own. """


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", nargs="*", help="groups of rules, such as SEC; all unless named")
    parser.add_argument("--version", metavar="VERSION", help="rules that apply to this version, such as 1.0")
    parser.add_argument("--severity", metavar="SEVERITY", help="rules of this severity: violation, warning or info")
    parser.add_argument("--markdown", action="store_true", help="as a page in Markdown (docs/rules.md)")


def run(arguments: argparse.Namespace) -> int:
    from pipeline.audit.catalogue import ALL_VERSIONS, GROUPS, SEVERITIES

    for value, known, what in (
        (arguments.version, ALL_VERSIONS, "version"),
        (arguments.severity, SEVERITIES, "severity"),
        *((group, GROUPS, "group") for group in arguments.group),
    ):
        if value is not None and value not in known:
            raise UsageError(unknown(what, value, known))
    rules = selected(arguments.group, arguments.version, arguments.severity)
    print(page(rules) if arguments.markdown else as_list(rules))
    return OK


def selected(groups: Collection[str], version: str | None, severity: str | None) -> list[Rule]:
    """The selected rules of the catalogue, by group."""
    from pipeline.audit.catalogue import GROUPS, catalogue

    return [
        rule
        for group in GROUPS
        if not groups or group in groups
        for rule in catalogue().values()
        if rule.group == group
        and (version is None or version in rule.versions)
        and (severity is None or severity == rule.severity)
    ]


def as_list(rules: Collection[Rule]) -> str:
    """One line per rule below the name of its group, then a count."""
    from pipeline.audit.catalogue import GROUPS

    lines, group = [], ""
    for rule in rules:
        if rule.group != group:
            group = rule.group
            lines += ["", f"{group}: {GROUPS[group]}"]
        lines.append(f"  {rule.id:<7} {rule.severity:<9} {versions(rule):<23} {rule.summary}")
    return "\n".join([*lines, "", count_line(rules)]).lstrip("\n")


def count_line(rules: Collection[Rule]) -> str:
    from pipeline.audit.catalogue import SEVERITIES

    number = Counter(rule.severity for rule in rules)
    parts = ", ".join(f"{name} {number[name]}" for name in SEVERITIES if number[name])
    return f"{len(rules)} {'rule' if len(rules) == 1 else 'rules'}{f': {parts}' if parts else ''}"


def versions(rule: Rule) -> str:
    from pipeline.audit.catalogue import ALL_VERSIONS

    return "all" if set(rule.versions) == {*ALL_VERSIONS} else " ".join(rule.versions)


def page(rules: Collection[Rule]) -> str:
    """The rules in Markdown: how many apply to each version, then the rules group by group."""
    from pipeline.audit.catalogue import ALL_VERSIONS, GROUPS

    numbers = Counter(version for rule in rules for version in rule.versions)
    counts = [f"| {version} | {numbers[version]} |" for version in ALL_VERSIONS]
    parts = [PAGE.rstrip(), "\n".join(["| version | rules |", "|---|---|", *counts])]
    for group, name in GROUPS.items():
        own = [rule for rule in rules if rule.group == group]
        if own:
            parts += [f"## {group}: {name}", *map(rule_markdown, own)]
    return "\n\n".join(parts)


def rule_markdown(rule: Rule) -> str:
    """A rule in Markdown, under a heading that links lead to: `rules.md#ch-09`."""
    kind = f"{rule.severity}{', costs work' if rule.cost else ''}".capitalize()
    of_versions = "all versions" if versions(rule) == "all" else versions(rule)
    lines = [f"**{escaped(rule.summary)}** {kind}; {of_versions}.", escaped(rule.why)]
    lines.append(f"*What to do:* {escaped(rule.remedy)}")
    if rule.settings:
        lines.append("\n".join(f"- {name}: {escaped(setting)}" for name, setting in rule.settings.items()))
    lines.append(f"*Detected by:* {escaped(rule.detect)} *Source:* {escaped(rule.reference)}")
    return "\n\n".join([f"### {rule.id}", *filter(None, lines)])


def escaped(text: str) -> str:
    """Text with the special characters of Markdown escaped."""
    return re.sub(r"([*_<\[\]`|])", r"\\\1", text)


def rule_text(rule: Rule) -> str:
    from pipeline.audit.catalogue import ALL_VERSIONS, GROUPS, KNOWLEDGE

    needs = [name for name in KNOWLEDGE if name in rule.lacking(tuple(KNOWLEDGE))]
    facts = {
        "why": rule.why,
        "what to do": rule.remedy,
        **rule.settings,
        "severity": f"{rule.severity}: {rule.reason}",
        "versions": ", ".join(version for version in ALL_VERSIONS if version in rule.versions),
        "group": GROUPS.get(rule.group, rule.group),
        "offender": rule.offender or "the side named in the finding",
        "reported": f"once per {rule.scope}",
        "detected by": rule.detect,
        "source": rule.reference,
        "thresholds": ", ".join(f"{name} = {value}" for name, value in rule.parameters.items()),
        "needs": ", ".join(NEEDED[name] for name in needs),
        "less sure without": ", ".join(NEEDED[name] for name in rule.prefers),
        "extract packets": f"wirehare cut TABLES --finding {rule.id} -o {rule.id}.pcapng",
    }
    lines = [
        textwrap.fill(text, 118, initial_indent=f"  {name:<19}", subsequent_indent=" " * 21)
        for name, text in facts.items()
        if text
    ]
    return "\n".join([f"{rule.id}  {rule.summary}", *lines])
