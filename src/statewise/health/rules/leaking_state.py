"""Something of one batch that enters the next."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.probes.naming import called, intend, subject
from statewise.health.probes.repetition import Repeated
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "leaking-state",
    ("B11",),
    Cause.BEHAVIOUR,
    (Severity.WARNING, Severity.INFO),
    meaning="The same batch, twice in evaluation mode and from the same random state, gives two different predictions (or its "
    "second graph reaches into the first): something of the first pass was kept and used. The module and the attributes that "
    "changed are named. A fact only, where all that changed are registered buffers (a queue, a running average), or where "
    "each row keeps a state and the batches come in order, as in training on long sequences in pieces, or where the step plays "
    "from a memory.",
    remedy="Begin every forward pass with a new state, or reset it where a batch begins; keep it without its graph "
    "(`h.detach()`) and only where the rows of the next batch go on with those of this one.",
    intended='A state that is carried on purpose: `{"intended": ("leaking-state",)}` in the health_contract() of the module.',
    example="""
def forward(self, x):
    out, self.h = self.rnn(x, self.h)  # shuffled rows begin with the state of others
    return self.head(out)
""",
)


def check(facts: Facts, seen: Repeated) -> Iterator[Finding]:
    """Not the same twice."""
    if not seen.leaks:
        return
    in_order = seen.per_row and seen.shuffled is False and not seen.graph_kept
    meant = (seen.registered and not seen.per_row) or in_order or seen.replayed
    place = called(facts, seen.module)
    kept = f", which is kept in {listed(seen.holders)}" if seen.holders else ""
    if seen.deviation:
        what = f"{place} gives the same batch another prediction the second time (by {seen.deviation:.2g} of the largest): "
        what += f"it uses something of the pass before{kept}"
    else:
        what = f"the second pass's graph reaches into the first one's{kept}"
    graph = "; its graph is kept too, so that backward fails or memory grows" if seen.graph_kept else ""
    yield KIND.finding(
        Severity.INFO if meant else Severity.WARNING,
        facts,
        subject(facts, seen.module, seen.holders),
        what=what + graph,
        why="what the model says of an example depends on the batch before, also in validation and in use",
        remedy=f"set {listed(seen.holders) if seen.holders else 'the state'} anew in every forward pass or at a batch's begin",
        intended=intend(KIND.id),
        evidence={
            "module": seen.module,
            "attributes": list(seen.holders),
            "deviation": seen.deviation,
            "graph_kept": seen.graph_kept,
            "per_row": seen.per_row,
        },
    )


RULES = (Rule(KIND, Repeated, check),)
