"""The chapter of docs/health.md on the findings, written from the rules: `python -m statewise.health.documentation FILE`."""

import sys
from itertools import groupby
from pathlib import Path

from statewise.health.findings import Cause
from statewise.health.rule import Kind
from statewise.health.rules import KINDS

BEGIN, END = "<!-- findings: written by make docs -->", "<!-- /findings -->"
_CAUSES = {
    Cause.LOOP: "Loss and loop",
    Cause.REGISTRATION: "Registration",
    Cause.WIRING: "Optimizer wiring",
    Cause.GRAPH: "Graph",
    Cause.GRADIENT: "Gradient state",
    Cause.NUMERICS: "Numerics",
    Cause.BEHAVIOUR: "Behaviour",
}


def findings_chapter() -> str:
    """A table of all kinds of findings, then each with its meaning, example, remedy and how to declare it intended."""
    lines = ["| finding | severity | catalogue |", "|---|---|---|"]
    lines += [f"| [`{kind.id}`](#{kind.id}) | {_severities(kind)} | {' '.join(kind.catalogue)} |" for kind in KINDS]
    for cause, kinds in groupby(KINDS, key=lambda kind: kind.cause):
        lines += ["", f"### {_CAUSES[cause]}"]
        for kind in kinds:
            lines += ["", *_section(kind)]
    return "\n".join(lines)


def _section(kind: Kind) -> list[str]:
    catalogue = f" ({', '.join(kind.catalogue)})" if kind.catalogue else ""
    lines = [f"#### {kind.id}", "", f"*{_severities(kind)}*{catalogue}. {kind.meaning}"]
    if kind.example:
        lines += ["", "```python", kind.example.strip("\n"), "```"]
    return [*lines, "", f"- Remedy: {kind.remedy}", f"- Intended: {kind.intended}"]


def _severities(kind: Kind) -> str:
    return ", ".join(severity.value for severity in kind.severities)


def with_chapter(text: str) -> str:
    """The document with the chapter between its two marks replaced.

    Raises:
        ValueError: where a mark is absent.
    """
    if BEGIN not in text or END not in text:
        raise ValueError(f"the document needs the marks {BEGIN} and {END}")
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{findings_chapter()}\n{END}{rest.split(END, 1)[1]}"


def main(path: Path) -> None:
    """Bring the document up to date."""
    path.write_text(with_chapter(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
