"""docs/health.md says what the rules are, and names tests that exist."""

import re
from pathlib import Path

from statewise.health import RULES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")
ROWS = {row.split("`")[1]: row for row in TEXT.splitlines() if row.startswith("| `") and row.count("|") == 7}


def test_every_finding_has_a_row_with_its_catalogue_ids_and_no_row_is_left_over() -> None:
    assert set(ROWS) == {rule.id for rule in RULES}
    for rule in RULES:
        assert all(fault in ROWS[rule.id].split("|")[3] for fault in rule.catalogue), rule.id


def test_every_fault_of_the_origin_has_a_row_and_its_tests_exist() -> None:
    rows = TEXT.split("## The faults of the origin")[1].split("## ")[0]
    assert re.findall(r"^\| (\d+) ", rows, flags=re.MULTILINE) == [str(number) for number in range(1, 13)]
    named = re.findall(r"`(tests/[^`]+)`", rows)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
