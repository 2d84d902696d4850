"""Dropout and noise that do not ask whether the model is in training."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.probes.naming import called, intend, subject
from statewise.health.probes.repetition import Reseeded
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "random-in-evaluation",
    ("B3",),
    Cause.BEHAVIOUR,
    (Severity.WARNING, Severity.INFO),
    meaning="In evaluation mode the same batch gives different outputs from different random states. The innermost module that "
    "is given the same and gives something else is named. A fact only, where all draws that were seen look like sampling by "
    "design: noise that the network itself scales, noise on the data, random choices.",
    remedy="`F.dropout(h, p, training=self.training)`, or `nn.Dropout`; noise behind `if self.training:`.",
    intended='A model that samples in evaluation: `{"intended": ("random-in-evaluation",)}` in the health_contract() of the '
    "module.",
    example="""
def forward(self, x):
    return self.head(F.dropout(self.body(x), 0.3))  # training=self.training is missing
""",
)

_WORDS = {"dropout": "dropout", "noise": "noise of a fixed strength on what the network computed"}


def check(facts: Facts, seen: Reseeded) -> Iterator[Finding]:
    """Two seeds, two answers."""
    if seen.module is None:
        return
    words = [_WORDS[draw] for draw in seen.draws if draw in _WORDS]
    drawn = f"; the step draws {' and '.join(words)}" if words else ""
    yield KIND.finding(
        Severity.INFO if seen.sampled else Severity.WARNING,
        facts,
        subject(facts, seen.module),
        what=f"{called(facts, seen.module)} gives the same batch different outputs in evaluation mode from different random "
        f"states (by {seen.deviation:.2g} of the largest){drawn}",
        why="validation and use are as noisy as training, and no two evaluations agree",
        remedy="pass training=self.training to dropout, and add noise only `if self.training:`",
        intended=f"{intend(KIND.id)}, for a model that samples",
        evidence={"module": seen.module, "deviation": seen.deviation, "draws": list(seen.draws)},
    )


RULES = (Rule(KIND, Reseeded, check),)
