"""One prediction for a whole batch."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.probes.mixing import RowsAlone
from statewise.health.probes.naming import called, intend, subject
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "collapsed-batch",
    ("B12",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning="The prediction that the loss compares with the targets has no row for each example, or the same row for all of "
    "them, and it depends on which examples are in the batch: somewhere the batch was averaged or summed away.",
    remedy="Reduce over the axes of one example (time, pixels, tokens), never over the batch.",
    intended='One prediction for a set of rows: `{"intended": ("collapsed-batch",)}` in the health_contract() of the module.',
    example="""
def forward(self, x):  # [batch, time, 8]
    h = self.encoder(x)
    return self.head(h.mean(0, keepdim=True))  # the mean over the batch; over time it is h.mean(1)
""",
)


def check(facts: Facts, seen: RowsAlone) -> Iterator[Finding]:
    """No rows, or all alike."""
    if seen.kind not in ("identical", "collapsed"):
        return
    place = called(facts, seen.module)
    shape = f"the prediction has shape {list(seen.prediction)}"
    if seen.kind == "collapsed":
        what = f"{shape}, for {seen.rows} rows of targets {list(seen.target)}: no axis of it follows the batch"
    else:
        what = f"{shape}, and all its {seen.rows} rows are the same; for {seen.alone} of the rows alone it is another one"
    where = f"after {place}, outside of all modules" if seen.own_code else f"in {place}"
    yield KIND.finding(
        Severity.WARNING,
        facts,
        subject(facts, seen.module),
        what=f"{what}; the batch is reduced {where}",
        why="every example gets the same answer, and the loss fits it to all targets at once",
        remedy="reduce over the axes of one example, not over the batch",
        intended=intend(KIND.id),
        evidence={
            "module": seen.module,
            "prediction": list(seen.prediction),
            "target": list(seen.target),
            "rows": seen.rows,
            "deviation": seen.deviation,
        },
    )


RULES = (Rule(KIND, RowsAlone, check),)
