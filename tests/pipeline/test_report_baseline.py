"""From one night to the next: what is new, what persists, what is gone."""

from __future__ import annotations

import json

import pytest
from report_support import audit_of, everywhere, identity

from pipeline.report.baseline import BaselineError, Comparison, Previous, compare, read
from pipeline.report.formats import document
from pipeline.report.grouped_counts import Groups


def night(*identities: dict[str, object], total: int | None = None) -> Groups:
    return Groups(list(identities), len(identities) if total is None else total)  # type: ignore[arg-type]


def written(found: Comparison) -> Previous:
    return read(document(audit_of(everywhere("x"), found)))


def statuses(found: Comparison) -> dict[str, str | None]:
    return {str(known.about["rule_id"]): known.status for known in found.known}


def test_without_a_baseline_nothing_is_new() -> None:
    assert statuses(compare(night(identity("HB-01")), None)) == {"HB-01": None}


def test_findings_are_new_persisting_or_gone() -> None:
    last = written(compare(night(identity("HB-01"), identity("NM-03", entities="queue=amq.x")), None))
    found = compare(night(identity("HB-01", findings=50), identity("SEC-01")), last)
    assert statuses(found) == {"HB-01": "persisting", "SEC-01": "new"}
    assert [entry["rule_id"] for entry in found.gone] == ["NM-03"]


@pytest.mark.parametrize(
    "change", [{"client_product": "qpid"}, {"user": "app"}, {"vhost": "v"}, {"server": "10.0.0.3:5672"}, {"user": None}]
)
def test_another_client_user_vhost_or_server_is_another_finding(change: dict[str, str | None]) -> None:
    last = written(compare(night(identity("HB-01")), None))
    assert statuses(compare(night({**identity("HB-01"), **change}), last)) == {"HB-01": "new"}


def test_the_same_with_a_lower_severity_is_one_finding() -> None:
    found = compare(night(identity("HB-01", "warning", 2), identity("HB-01", "violation", 3)), None)
    ((known),) = found.known
    assert (known.severity, known.findings) == ("violation", 5)


def test_a_truncated_list_does_not_make_findings_new_or_gone() -> None:
    last = written(compare(night(identity("HB-01"), total=20_000), None))
    assert not last.complete
    assert statuses(compare(night(identity("SEC-01")), last)) == {"SEC-01": None}
    assert compare(night(identity("SEC-01"), total=20_000), last).gone == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not what `wirehare audit --json` writes"),
        ("[]", "is not what"),
        ('{"format": "wirehare-audit/1"}', "is not what"),
        ('{"format": "wirehare-audit/1", "findings": [7]}', "is not what"),
        ('{"format": "sarif", "findings": []}', "has format 'sarif'; expected 'wirehare-audit/1'"),
        ("[" * 100_000, "is not what"),
    ],
)
def test_a_file_that_is_not_an_audit_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(BaselineError) as error:
        read(text)
    assert str(error.value).startswith(reason)
    assert "\n" not in str(error.value)


def test_the_document_is_for_machines() -> None:
    found = compare(night(identity("SEC-01", "warning"), identity("HB-01")), None)
    entry = json.loads(document(audit_of(everywhere("x"), found)))
    assert entry["format"] == "wirehare-audit/1"
    assert entry["audited"] == "2026-11-21T02:00:00+00:00"
    assert (entry["verdict"]["failed"], entry["verdict"]["fail_on"]) == (True, "violation")
    assert [one["rule_id"] for one in entry["findings"]] == ["HB-01", "SEC-01"]  # the worst first
    assert set(entry["findings"][0]) == {
        "key", "rule_id", "client_product", "user", "vhost", "server", "entities", "severity", "findings",
        "occurrences", "status", "first",
    }  # fmt: skip


def test_the_document_can_be_embedded_in_a_script() -> None:
    """Names in it are those of the wire; what reads it back gets them as they were."""
    name = "</script><script src=x.js>&\u2028<!--"
    found = compare(night(identity("HB-01", client_product=name)), None)
    text = document(audit_of(everywhere(name), found, title=name))
    assert not set("<>&\u2028") & set(text)
    ((entry,),) = [json.loads(text)["findings"]]
    assert (entry["client_product"], json.loads(text)["title"]) == (name, name)
