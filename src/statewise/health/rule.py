"""A rule: the facts it needs, and what follows from them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from statewise.health.findings import Cause, Finding
from statewise.health.signals import Facts


@dataclass(frozen=True)
class Rule:
    """One question asked of a run. `id` is the id of its findings, `catalogue` the faults it answers (docs/health.md)."""

    id: str
    catalogue: tuple[str, ...]
    cause: Cause
    # The field of Facts whose news it judges: it runs when that field is known.
    needs: str
    check: Callable[[Facts], Iterable[Finding]]
