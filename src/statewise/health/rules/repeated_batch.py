"""The training sees the same data again and again where new data are meant."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.observers.batches import Repetition
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "repeated-batch",
    ("B7",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning=(
        "Four training batches in a row of one epoch have the same content; or each batch comes once for every worker of the "
        "loader; or the module is given an old batch in four steps while new ones arrive. Content is compared by checksums. "
        "Not judged: an epoch of one batch, `overfit_batches`, L-BFGS, batches whose rows are all equal."
    ),
    remedy="look at the sampler, at the seeds of the workers, and at a batch that is kept and used again",
    intended='`{"intended": ("repeated-batch",)}` from `health_contract()`',
    example="def training_step(self, batch, batch_idx):\n"
    "    x, y = next(iter(self.loader))  # the first batch, every time: use `batch`",
)

_INTENDED = 'return {"intended": ("repeated-batch",)} from health_contract() of the module'


def check(facts: Facts, repetition: Repetition) -> Iterator[Finding]:
    """Which of the three ways it is."""
    if repetition.run:
        yield KIND.finding(
            Severity.WARNING,
            facts,
            (),
            what=f"{repetition.run} training batches in a row have the same content",
            why="the module learns one batch by heart and sees nothing else",
            remedy="look at the sampler, a seed that is set for every batch, and a batch that is kept",
            intended=_INTENDED,
            evidence={"run": repetition.run},
        )
    if repetition.groups:
        yield KIND.finding(
            Severity.WARNING,
            facts,
            (),
            what=f"every training batch comes {repetition.workers} times, as often as the loader has workers",
            why="all workers read, or draw, the same: an epoch holds a fraction of the data that it seems to hold",
            remedy="share the data between workers (torch.utils.data.get_worker_info()) and seed each by its own number",
            intended=_INTENDED,
            evidence={"groups": repetition.groups, "workers": repetition.workers},
        )
    if repetition.stale:
        yield KIND.finding(
            Severity.WARNING,
            facts,
            (),
            what=f"the module was given the same earlier batch in {repetition.stale} steps in a row, while new batches came",
            why="what the loader brings is not what the loss sees",
            remedy="use the batch that training_step is given",
            intended=_INTENDED,
            evidence={"stale": repetition.stale},
        )


RULES = (Rule(KIND, Repetition, check),)
