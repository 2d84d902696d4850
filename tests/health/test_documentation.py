"""docs/health.md says what the rules are, and names tests that exist."""

import re
from pathlib import Path

import pytest

from statewise.health import KINDS, Kind
from statewise.health.documentation import BEGIN, END, findings_chapter, with_chapter

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")
# The catalogue of faults that training health is held to: every one has a finding.
CATALOGUE = {
    f"{letter}{number}"
    for letter, last in (("G", 7), ("R", 7), ("O", 15), ("N", 5), ("B", 14))
    for number in range(1, last + 1)
}
MOST_FREQUENT = 10


def test_the_chapter_on_findings_is_the_one_that_the_rules_write() -> None:
    assert with_chapter(TEXT) == TEXT, "run `make docs`"
    assert all(f"\n#### {kind.id}\n" in TEXT for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_every_finding_says_what_it_means_what_to_do_and_how_to_declare_it_intended(kind: Kind) -> None:
    assert kind.severities
    for text in (kind.meaning, kind.remedy, kind.intended):
        assert len(text) > 3
        assert text[-1] not in " \n"
    for line in kind.example.splitlines():
        assert len(line) <= 100


def test_every_fault_of_the_catalogue_has_a_finding_and_no_finding_claims_another() -> None:
    claimed = {fault for kind in KINDS for fault in kind.catalogue}
    assert {fault for fault in claimed if re.fullmatch(r"[GRONB]\d+", fault)} == CATALOGUE


def test_the_most_frequent_findings_are_shown_with_the_code_that_causes_them() -> None:
    assert sum(bool(kind.example) for kind in KINDS) >= MOST_FREQUENT
    for kind in KINDS:
        compile(kind.example, kind.id, "exec")


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the marks"):
        with_chapter("text")
    assert with_chapter(f"a{BEGIN}old{END}b") == f"a{BEGIN}\n{findings_chapter()}\n{END}b"


def test_every_fault_of_the_origin_has_a_row_and_its_tests_exist() -> None:
    rows = TEXT.split("## The faults of the origin")[1].split("## ")[0]
    assert re.findall(r"^\| (\d+) ", rows, flags=re.MULTILINE) == [str(number) for number in range(1, 13)]
    named = re.findall(r"`(tests/[^`]+)`", rows)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
