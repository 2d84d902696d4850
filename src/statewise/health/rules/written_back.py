"""Updates that are undone outside the optimizer."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps

KIND = Kind(
    "written-back",
    ("O13", "O14"),
    Cause.WIRING,
    (Severity.ERROR,),
    meaning=(
        "Three steps running begin with exactly the values of the step before, although that step had changed them: something "
        "outside the optimizer writes them back. Begin of step is compared with begin of step, so that swaps for validation, "
        "restored checkpoints and averaged weights are no such thing. At a bound see `pinned-at-bound`."
    ),
    remedy="remove the write: look for `copy_`, `.data =` or loading in hooks, callbacks and forward",
    intended="`requires_grad_(False)` and `health.frozen`",
    example="def forward(self, x):\n    self.A.data = hippo(self.n)  # undoes each update\n    return x @ self.A",
    spreads=True,
)

_STEPS = 3


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Each step starts from the very values of the step before, although that step had changed them."""
    undone = [t for t in steps.tracks if t.written_back_run >= _STEPS and t.name not in facts.declared.frozen]
    if not undone:
        return
    names = tuple(track.name for track in undone)
    run = undone[0].written_back_run
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"the optimizer moves {listed(names)}, then the old value is written back outside the optimizer: {run} steps "
        "running began with exactly the same values",
        why="every update is undone, it cannot learn",
        remedy="look for copy_, .data = or load in hooks, callbacks and forward",
        intended=f"requires_grad_(False), and health.frozen=[{names[0]}]",
        evidence={"run": run},
    )


RULES = (Rule(KIND, Steps, check),)
