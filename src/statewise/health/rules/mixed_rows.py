"""Rows of a batch that depend on one another."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.probes.mixing import RowsAlone
from statewise.health.probes.naming import called, intend, subject
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "mixed-rows",
    ("B8",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning="The last rows of a batch, run alone in evaluation mode, get other predictions than among the other rows: the "
    "examples of a batch are not independent. Most often batch and time are swapped (a recurrent layer without "
    "`batch_first=True`, a transpose too many), or a softmax or a norm goes over the wrong axis. The innermost module that is "
    "given the same rows and gives others back is named. What a loss does after the last module is not concerned.",
    remedy="Bring the batch to the axis that the module expects, and normalise over the axes of one example.",
    intended='A model that compares the rows of a batch by design: `{"intended": ("mixed-rows",)}` in its health_contract(). '
    "A contrastive loss and batch norm need none.",
    example="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 16)  # batch_first=True is missing: it takes the batch for time

    def forward(self, x):  # [batch, time, 8]
        return self.rnn(x)[0][:, -1]
""",
)


def check(facts: Facts, seen: RowsAlone) -> Iterator[Finding]:
    """The same rows, other predictions."""
    if seen.kind != "mixed" or seen.in_loss:
        return
    place = called(facts, seen.module)
    where = f"in code after {place}, outside of all modules" if seen.own_code else f"in {place}"
    yield KIND.finding(
        Severity.WARNING,
        facts,
        subject(facts, seen.module),
        what=f"the last {seen.alone} of {seen.rows} rows get other predictions alone than in the batch "
        f"(by {seen.deviation:.2g} of the largest), in evaluation mode; the rows are mixed {where}",
        why="what the model says of an example depends on which others are in its batch",
        remedy="check which axis is the batch there: batch and time swapped, batch_first, the dim of a softmax or a norm",
        intended=intend(KIND.id),
        evidence={
            "module": seen.module,
            "deviation": seen.deviation,
            "rows": seen.rows,
            "alone": seen.alone,
            "prediction": list(seen.prediction),
        },
    )


RULES = (Rule(KIND, RowsAlone, check),)
