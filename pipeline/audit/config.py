"""Configuration of an audit: thresholds, disabled rules, accepted exceptions, custom rules.

    settings = config.read("audit.toml")
    settings = config.read("audit.toml", [house])      # the file may name these custom rules, too

A file:

    disable = ["SEC-09", "CAP"]                # rules or groups

    [parameters."CL-01"]
    limit_seconds = 60

    [[accept]]
    rule = "SEC-01"
    client_product = "legacy-sensor"           # client_product, user, vhost: all optional
    reason = "firmware without TLS, replaced in spring"
    until = 2027-03-31                         # the last day

    [rules."HOUSE-01"]                         # a custom rule: the keys in RULE and DETECTOR (docs/audit.md)

The context of a custom rule is a whole table with all of its columns, and `version` if it has none; 'connections' is
the context of the catalogue, with `frame_no` and `ts_ns`. The other contexts of the catalogue are not available: they
leave out rows that no rule of the catalogue can be about.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any

from codec.errors import WirehareError
from pipeline.audit.catalogue import Number, Rule, catalogue, names_of, with_custom
from pipeline.audit.detectors import Detector, Sql
from pipeline.audit.rule_program import CONNECTION_KEYS, require_runnable
from udfs.findings.program import quoted
from udfs.source.capture_bytes import first_line, printable, read_at_most
from udfs.source.options import meant

BYTES = 1 << 20  # of a configuration, at most
# Also in custom rules and reasons, which every output shows.
UNPRINTABLE = re.compile("[^\t\n\r -\x7e\xa0-\ufffd\U00010000-\U0010ffff]")


class ConfigError(WirehareError, ValueError):
    """The configuration is invalid; the message is one line that says where and what was expected."""


@dataclass(frozen=True)
class Accepted:
    """Findings of `rule` that are left out up to and including the day `until`, because of `reason`.

    If given, `client_product`, `user` and `vhost` must be those of the connection.
    """

    rule: str
    reason: str
    until: date
    client_product: str | None = None
    user: str | None = None
    vhost: str | None = None


@dataclass(frozen=True)
class Config:
    """`parameters`: rule -> threshold -> value; `disabled`: rules or groups; `exceptions`; `rules`: custom rules."""

    parameters: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    disabled: Collection[str] = ()
    exceptions: Collection[Accepted] = ()
    rules: Collection[tuple[Rule, Detector]] = ()


def read(path: str | Path, additional: Iterable[Rule] = ()) -> Config:
    """Read a TOML file, which may name rules of the catalogue and the additional ones. Raises ConfigError."""
    try:
        given = tomllib.loads(read_at_most(str(path), BYTES).decode())
        _require_printable(given)
        return parse_config(given, with_custom(additional))
    except RecursionError as error:
        raise ConfigError(f"{path}: its values are nested too deeply") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({first_line(error)})") from error
    except ValueError as error:  # also an integer with too many digits
        raise ConfigError(f"{path}: {printable(first_line(error))}") from error


def _require_printable(value: Any) -> None:
    """Raises ConfigError for a text that a terminal would execute, and no XML may have."""
    if isinstance(value, str) and (found := UNPRINTABLE.search(value)):
        raise ConfigError(f"the text {printable(value[:40])!r} has the character {ord(found[0]):#x}")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for each in value if isinstance(value, list) else ():
        _require_printable(each)


def parse_config(given: Mapping[str, Any], rules: Mapping[str, Rule]) -> Config:
    """Parsed TOML, which may name `rules` (by id), as Config. Raises ConfigError."""
    _require_known(given, ("disable", "parameters", "accept", "rules"), "setting")
    mine = _custom_rules(_section(given, "rules", dict), rules)
    rules = {**rules, **{rule.id: rule for rule, _ in mine}}
    disabled = given.get("disable", [])
    if not isinstance(disabled, list):
        raise ConfigError("disable: expected a list of rules or groups")
    _require_known(disabled, names_of(rules), "rule or group")
    parameters = _section(given, "parameters", dict)
    for name, values in parameters.items():
        _require_known([name], rules, "rule")
        if not isinstance(values, dict):
            raise ConfigError(f"parameters.{name}: expected thresholds by name")
        _require_known(values, rules[name].parameters, f"parameter of {name}")
        for parameter, value in values.items():
            if not is_number(value):
                raise ConfigError(
                    f"parameters.{name}.{parameter}: expected a number from 0 to 2147483647, not {value!r}"
                )
    exceptions = tuple(
        _accepted(number, entry, rules) for number, entry in enumerate(_section(given, "accept", list), start=1)
    )
    return Config(parameters, tuple(disabled), exceptions, mine)


def _custom_rules(entries: Mapping[str, Any], known: Collection[str]) -> tuple[tuple[Rule, Detector], ...]:
    """Custom rules from parsed TOML; none may have a `known` id. Raises ConfigError."""
    for name in entries:
        if name in known:
            raise ConfigError(f"rules.{name}: there is a rule of that name already")
    try:
        found = tuple(parse_rule(name, entry) for name, entry in entries.items())
        validate(found)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return found


def _section(given: Mapping[str, Any], name: str, kind: type) -> Any:
    found = given.get(name, kind())
    if not isinstance(found, kind):
        raise ConfigError(f"{name}: expected a {'table' if kind is dict else 'list of tables'}")
    return found


def _accepted(number: int, entry: Any, rules: Collection[str]) -> Accepted:
    where = f"accept, entry {number}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected a table")
    _require_known(entry, [part.name for part in fields(Accepted)], f"key of {where}")
    for name in ("rule", "reason", "until"):
        if name not in entry:
            raise ConfigError(f"{where}: has no {name!r}")
    _require_known([entry["rule"]], rules, "rule")
    for name in ("reason", *CONNECTION_KEYS):
        if not isinstance(entry.get(name, "-"), str) or (name == "reason" and not entry[name].strip()):
            raise ConfigError(f"{where}: {name!r} has to be a text")
    if not isinstance(entry["until"], date) or isinstance(entry["until"], datetime):
        raise ConfigError(f"{where}: 'until' has to be a day, as in until = 2027-03-31")
    return Accepted(**entry)


def _require_known(names: Collection[Any], known: Collection[str], what: str) -> None:
    for name in names:
        if not isinstance(name, str) or name not in known:
            hint = meant(name, sorted(known)) if isinstance(name, str) else ""
            raise ConfigError(f"there is no {what} {name!r}{hint}")


def is_accepted(exceptions: Collection[Accepted], today: date) -> Sql:
    """True on findings that an exception accepts today."""
    covered = ["false"]
    for accepted in exceptions:
        if accepted.until >= today:
            given = {name: value for name in CONNECTION_KEYS if (value := getattr(accepted, name)) is not None}
            same = (
                f'"{name}" IS NOT DISTINCT FROM {quoted(value)}'
                for name, value in {"rule_id": accepted.rule, **given}.items()
            )
            covered.append(f"({' AND '.join(same)})")
    return " OR ".join(covered)


# Tables whose rows belong to one connection.
CONTEXTS = ("frames", "streams", "connections", "channels", "links", "methods", "messages")
# No '/': `wirehare cut --finding` divides there. No hyphen first: a command line takes that for an option.
RULE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")

# Keys of a rule in a file that become fields of `Rule` and `Detector`, with their types. Elements of lists and values
# of tables are texts; parameters are numbers.
RULE: Mapping[str, type] = {
    "severity": str, "scope": str, "summary": str, "versions": list, "category": str, "offender": str,
    "reference": str, "parameters": dict, "needs": list, "prefers": list,
}  # fmt: skip
DETECTOR: Mapping[str, type] = {
    "table": str, "when": str, "evidence": dict, "frame": str, "at_ns": str, "occurrences": str, "thing": str,
}  # fmt: skip
REQUIRED = ("severity", "scope", "summary", "table", "when")
EXPECTED: Mapping[type, str] = {str: "a text", list: "a list of texts", dict: "a table"}


def parse_rule(name: str, entry: Any) -> tuple[Rule, Detector]:
    """A rule from its TOML table, with its detector. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"rules.{name}: expected a table")
    kinds = {**RULE, **DETECTOR}
    for key, value in entry.items():
        if key not in kinds:
            raise ValueError(f"rules.{name}: no key {key!r}; expected some of {', '.join(kinds)}")
        number = key == "parameters"
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        fits = all(is_number(part) if number else isinstance(part, str) for part in parts)
        if not isinstance(value, kinds[key]) or not fits:
            expected = "numbers by name" if number else EXPECTED[kinds[key]]
            raise ValueError(f"rules.{name}.{key}: expected {expected}")
    for key in REQUIRED:
        if key not in entry:
            raise ValueError(f"rules.{name}: has no {key!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    about = {key: value for key, value in values.items() if key in RULE}
    search = {"context" if key == "table" else key: value for key, value in values.items() if key in DETECTOR}
    return Rule(id=name, **about), Detector(name, **search)


def is_number(value: Any) -> bool:
    """Whether a value is a valid threshold."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < 2**31


def validate(extra: Iterable[tuple[Rule, Detector]]) -> tuple[Mapping[str, Rule], list[Detector]]:
    """The rules by id, and the detectors. Raises ValueError for an invalid pair."""
    rules: dict[str, Rule] = {}
    detectors = []
    for rule, detector in extra:
        if not RULE_ID.fullmatch(rule.id) or rule.id in catalogue():
            raise ValueError(
                f"rule {rule.id!r}: expected letters, digits and hyphens, no hyphen first, and no id of the catalogue"
            )
        if rules.setdefault(rule.id, rule) != rule:
            raise ValueError(f"rule {rule.id} is there twice, and is not the same")
        if detector.rule != rule.id:
            raise ValueError(f"rule {rule.id}: its detector is one of {detector.rule!r}")
        if detector.context not in CONTEXTS:
            raise ValueError(f"rule {rule.id}: no context {detector.context!r}; expected one of {', '.join(CONTEXTS)}")
        require_runnable(rule, detector)
        detectors.append(detector)
    return rules, detectors
