"""Primary causes, the verdict, and findings as plain values."""

import json

import pytest

from statewise.health import RULES, Finding, Severity
from statewise.health.verdict import foremost, primary, report, verdict


def finding(name: str, *parameters: str, severity: Severity = Severity.ERROR, step: int = 0) -> Finding:
    return Finding(name, severity, step, parameters, f"about {name}")


def test_a_symptom_is_collapsed_into_its_cause() -> None:
    cause = finding("not-in-optimizer", "a", "b")
    assert primary([finding("zero-gradient", "a", step=5), cause]) == [cause]


def test_another_parameter_is_another_matter() -> None:
    both = [finding("not-in-optimizer", "a"), finding("zero-gradient", "b", step=5)]
    assert primary(both) == both


def test_a_warning_does_not_hide_an_error_nor_a_finding_without_parameters() -> None:
    error = finding("zero-gradient", "a")
    warning = finding("frozen-by-mistake", "a", severity=Severity.WARNING)
    rounded = finding("dtype-round-trip", severity=Severity.WARNING)
    assert primary([warning, rounded, error]) == [error, warning, rounded]


def test_what_follows_from_a_loss_that_nothing_reaches_is_not_said_beside_it() -> None:
    cause = finding("autograd-off", "a", "b")
    assert primary([finding("gradients-not-applied", "a", "b"), cause, finding("ignored-input")]) == [cause]
    # The same step, the same depth, and nothing is known to follow.
    both = [finding("gradients-not-applied", "a"), finding("constant-loss", "a")]
    assert primary(both) == both


def test_a_weight_that_is_fed_zeros_suffers_from_the_dead_activation_before_it() -> None:
    cause = Finding("dead-activation", Severity.ERROR, 5, ("a",), "off", {"consequences": ["b"]})
    assert primary([finding("zero-gradient", "a", "b", step=5), cause]) == [cause]
    assert len(primary([finding("zero-gradient", "a", "c", step=5), cause])) == 2


def test_an_input_that_does_not_count_explains_the_weights_that_it_is_multiplied_with() -> None:
    ignored = finding("ignored-input", severity=Severity.WARNING, step=3)
    assert primary([finding("zero-gradient", "a", severity=Severity.WARNING, step=5), ignored]) == [ignored]
    # An error is not explained by a warning.
    assert len(primary([finding("zero-gradient", "a", step=5), ignored])) == 2


def test_people_are_shown_three_findings_and_facts_only_where_there_is_nothing_else() -> None:
    many = [finding("unused", name, severity=Severity.INFO) for name in "ab"]
    assert foremost(many) == many
    serious = [finding("graph-cut", name, step=step) for step, name in enumerate("cdef")]
    assert foremost([*many, *serious]) == serious[:3]
    assert len(report([*many, *serious], [])["findings"]) == 6


@pytest.mark.parametrize(
    ("severities", "expected"),
    [((), "healthy"), (("info",), "healthy"), (("info", "warning"), "warning"), (("warning", "error"), "error")],
)
def test_the_verdict_is_the_worst_severity(severities: tuple[str, ...], expected: str) -> None:
    assert verdict([finding("unused", severity=Severity(name)) for name in severities]) == expected


def test_a_report_is_plain_json_and_findings_come_back() -> None:
    original = Finding("unused", Severity.WARNING, 3, ("a",), "text", {"batches": 20})
    values = json.loads(json.dumps(report([original], [{"name": "unused", "ran": True, "why": ""}])))
    assert values["verdict"] == "warning"
    assert Finding.from_dict(values["findings"][0]) == original


def test_every_kind_has_a_kebab_case_id_of_its_own() -> None:
    kinds = {rule.kind for rule in RULES}
    assert all(kind.id == kind.id.lower().replace("_", "-") for kind in kinds)
    assert len({kind.id for kind in kinds}) == len(kinds)
