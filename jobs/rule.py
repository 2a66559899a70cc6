"""Explain one rule of the audit.

What breaks it, how that is detected, its source, and on which connections it is not checked.
"""

from __future__ import annotations

import argparse

from jobs.rules import rule_text
from jobs.terminal.running import OK, UsageError

EPILOG = """examples:
  wirehare rule CH-09
  wirehare rule CH-09 --sql
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", metavar="RULE", help="the id of a rule, such as CH-09")
    parser.add_argument("--sql", action="store_true", help="print the SQL of DuckDB that finds what breaks it")


def run(arguments: argparse.Namespace) -> int:
    from pipeline.audit.catalogue import catalogue, removed
    from udfs.source.options import meant

    name = arguments.rule.upper()
    if name in removed():
        raise UsageError(f"rule {name} is not checked: {removed()[name]}")
    if name not in catalogue():
        raise UsageError(f"no rule {arguments.rule!r} (see wirehare rules){meant(name, catalogue())}")
    if arguments.sql:
        from pipeline.audit.rule_program import script

        print(script(catalogue()[name]))
    else:
        print(rule_text(catalogue()[name]))
    return OK
